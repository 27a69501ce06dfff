"""Random instances and their likelihoods."""

import numpy as np

import departing as dp
from departing.fitting.likelihood import MixtureLikelihood, Parameters


def parameters_of(instance):
    return Parameters(instance.prior, instance.click, instance.depart, instance.depart_on_click)


def random_mixture(seed, types=2, categories=2, sure=False, last=False):
    """An instance with `sure` departures after a no-click, or some departures after a click (`last`)."""
    rng = np.random.default_rng(seed)
    shape = (categories, types)
    return dp.Instance(
        prior=rng.dirichlet(np.full(types, 3.0)),
        click=rng.uniform(0.1, 0.9, shape),
        depart=1.0 if sure else rng.uniform(0.3, 0.9, shape),
        depart_on_click=rng.uniform(0.02, 0.2, shape) if last else 0.0,
    )


def likelihood_of(instance, users=2000, seed=1):
    """Histories of users of the instance, and their likelihood."""
    histories = dp.simulate(instance, dp.Greedy(instance), users=users, seed=seed, max_steps=8).histories
    return histories, MixtureLikelihood.from_counts(histories.counts, histories.multiplicity, instance.n_types)
