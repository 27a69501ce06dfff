"""What a learner has observed."""

import departing as dp
from departing.fitting.likelihood import MixtureLikelihood


def evidence_of(instance, users, types=None, policy=None, seed=1, steps=10):
    """Likelihood of the first steps of users under a policy."""
    policy = policy or dp.Walk([0, 1, 0], then=1)
    histories = dp.simulate(instance, policy, users=users, seed=seed, max_steps=steps).histories
    return MixtureLikelihood.from_counts(histories.counts, histories.multiplicity, types or instance.n_types)
