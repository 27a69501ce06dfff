"""Evidence for several types of users instead of one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from departing.fitting.estimation import SelectionCriteria, sabic_penalty
from departing.fitting.likelihood import MixtureLikelihood

SIGNIFICANCE = 0.01  # of the test for more types; low, since every fit is tested


def hidden_types(criteria: Sequence[SelectionCriteria], n_types: int) -> int | None:
    """Smallest larger number of types that a likelihood-ratio test prefers to `n_types`, or None.

    An information criterion needs a number of nats for each parameter, so it selects too few types if there are few
    users. The test needs less. The likelihood ratio of mixtures is not chi-squared distributed with the number of
    added parameters; twice the number of added probabilities of responses is Wolfe's approximation (1971).

    >>> one, two = ((1, 8, -2900.0, 5858.5, 5830.0, 0.0), (2, 17, -2870.0, 5864.3, 5833.0, 0.0))
    >>> fits = (SelectionCriteria(*one), SelectionCriteria(*two))
    >>> hidden_types(fits, 1), hidden_types(fits[:1], 1)
    (2, None)
    """
    from scipy.special import chdtrc  # 0.1 s to import

    (own,) = (row for row in criteria if row.types == n_types)
    for row in criteria:
        if row.types > n_types:
            degrees = 2 * (row.parameters - own.parameters - (row.types - n_types))
            ratio = max(2 * (row.log_likelihood - own.log_likelihood), 0.0)
            if chdtrc(degrees, ratio) < SIGNIFICANCE:
                return row.types
    return None


def sabic_gain(likelihood: MixtureLikelihood, log_likelihood: float) -> float:
    """Adjusted BIC of one type minus that of a fit with this log-likelihood; 0 if the fit has one type."""
    if likelihood.n_types == 1:
        return 0.0
    single = replace(likelihood, n_types=1)
    successes, trials = likelihood.totals
    rates = single.parameters(np.ones(1), (successes / np.maximum(trials, 1.0))[:, None], 1.0, 0.0)
    value = single.log_likelihood(single.to_logits(rates))
    added = (likelihood.n_parameters - single.n_parameters) * sabic_penalty(float(likelihood.users.sum()))
    return float(2 * (log_likelihood - value) - added)


def describe_hidden(n_types: int, hidden: int) -> str:
    """Describe in two sentences that a larger number of types, `hidden`, is likely but not selected.

    >>> describe_hidden(1, 2)
    'A likelihood-ratio test prefers 2 types to 1, but the adjusted BIC does not: there are too few users ...'
    """
    return (
        f"A likelihood-ratio test prefers {hidden} types to {n_types}, but the adjusted BIC does not: there are too "
        "few users to estimate them. Clicks per user are then usually underestimated."
    )


def describe_gain(n_types: int, gain: float) -> str:
    """Describe in one sentence whether one type suffices, given the `gain` in adjusted BIC of several.

    >>> describe_gain(3, 93712.4)
    '3 types describe the users better than one: their adjusted BIC is lower by 93,712.'
    """
    if gain > 0:
        return f"{n_types} types describe the users better than one: their adjusted BIC is lower by {gain:,.0f}."
    note = "" if n_types == 1 else f", because {n_types} types do not lower the adjusted BIC"
    return (
        f"One type of users suffices{note}: the same category is best for everybody, and planning has nothing to "
        "gain over the best single category."
    )
