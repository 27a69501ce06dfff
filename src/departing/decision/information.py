"""Value of information: the expected loss of a decision, and the users that would halve it."""

from collections.abc import Sequence

import numpy as np

from departing.model.instance import Floats

NEGLIGIBLE = 1e-6  # loss relative to the value that is not worth more users: below the gap of the plans


def expected_loss(values: Floats) -> float:
    """Expected value of perfect information (EVPI), given `values[policies, draws]`: the loss of deciding now."""
    return float(values.max(axis=0).mean() - values.mean(axis=1).max())


def sample_information(values: Floats, share: float) -> float:
    """Expected value of sample information (EVSI) of more users, which remove a `share` of the variance.

    Linear-Gaussian preposterior analysis: the posterior means after the new users have the distribution of the draws,
    shrunk to their mean by the square root of `share`.
    """
    mean = values.mean(axis=1, keepdims=True)
    return float((mean + np.sqrt(share) * (values - mean)).max(axis=0).mean() - mean.max())


def users_to_halve(parts: Sequence[tuple[float, Floats]], users: int) -> int | None:
    """Number of further users after which the expected loss is half as large; None if there is hardly any loss.

    `parts` are shares of users, such as segments, with their `values[policies, draws]`.

    With `n` more users beside the present ones a share `n / (users + n)` of the variance is removed.
    """
    from scipy.optimize import brentq  # 0.2 s to import

    loss = sum(weight * expected_loss(values) for weight, values in parts)
    if loss <= NEGLIGIBLE * sum(weight * float(values.mean(axis=1).max()) for weight, values in parts):
        return None

    def remaining(share: float) -> float:
        return sum(weight * sample_information(values, share) for weight, values in parts) - loss / 2

    share = brentq(remaining, 0.0, 1.0, xtol=1e-6)
    return int(np.ceil(users * share / (1 - share)))
