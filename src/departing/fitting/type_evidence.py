"""Evidence for several types of users instead of one."""

from dataclasses import replace

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood


def bic_gain(likelihood: MixtureLikelihood, log_likelihood: float) -> float:
    """BIC of one type minus that of a fit with this log-likelihood; 0 if the fit has one type."""
    if likelihood.n_types == 1:
        return 0.0
    single = replace(likelihood, n_types=1)
    trials, successes = likelihood.users @ likelihood.trials, likelihood.users @ likelihood.successes
    rates = single.parameters(np.ones(1), (successes / np.maximum(trials, 1.0))[:, None], 1.0, 0.0)
    value = single.log_likelihood(single.to_logits(rates))
    added = (likelihood.n_parameters - single.n_parameters) * np.log(likelihood.users.sum())
    return float(2 * (log_likelihood - value) - added)


def describe_gain(n_types: int, gain: float) -> str:
    """Describe in one sentence whether one type suffices, given the `gain` in BIC of several.

    >>> describe_gain(3, 93712.4)
    '3 types describe the users better than one: their BIC is lower by 93,712.'
    """
    if gain > 0:
        return f"{n_types} types describe the users better than one: their BIC is lower by {gain:,.0f}."
    note = "" if n_types == 1 else f", because {n_types} types do not lower the BIC"
    return (
        f"One type of users suffices{note}: the same category is best for everybody, and planning has nothing to "
        "gain over the best single category."
    )
