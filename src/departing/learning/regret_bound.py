"""Regret bound of UCB-Hybrid with all constants (theory, UCB-Hybrid)."""

from collections.abc import Callable
from math import inf, log, log1p, sqrt

import numpy as np
import numpy.typing as npt


def pull_bound(loss: float, tau: float, eta: float, users: float) -> float:
    """Largest number of users of a policy while every mean return is within its confidence radius.

    A policy is chosen after n of its users only if twice its radius r(n) is at least its `loss` per user compared
    with the best policy, and r(n) is the larger one of its two forms.

    >>> round(pull_bound(0.5, 1.0, 1.0, 10**6))
    1769
    """
    if loss <= 0:
        return inf
    return 1 + max(16 * sqrt(eta) * tau * log(users) / loss, 32 * tau**2 * log(users) / loss**2)


def regret_bound(
    losses: npt.ArrayLike, tau: npt.ArrayLike, eta: npt.ArrayLike, users: float, after: float | None = None
) -> float:
    """Upper bound of the expected regret of UCB-Hybrid against the best of its policies.

    Parameters
    ----------
    losses : array_like of float, shape (P,)
        Loss of each policy compared with the best one, in clicks per user.
    tau, eta : array_like of float, shape (P,) or ()
        Constants of the policies, such that the returns are sub-exponential with (τ², b), b = sqrt(η) τ.
    users : float
        Number of users T that UCB-Hybrid is planned for.
    after : float, optional
        Number of users t ≤ T whose regret is bounded; by default T.

    Returns
    -------
    float
        Σ (loss + 16 b ln T) + sqrt(32 t ln T Σ τ²) + 2 P max(loss) / T², where the sums leave out the best policy.

    Examples
    --------
    >>> round(regret_bound([0.0] + [0.017] * 29, 31.373, 1.0, 10**6))
    3753446
    """
    lost = np.asarray(losses, np.float64)
    others, logs = np.arange(len(lost)) != lost.argmin(), log(users)
    scale = np.broadcast_to(np.asarray(tau, np.float64), lost.shape)[others]
    b = scale * np.sqrt(np.broadcast_to(np.asarray(eta, np.float64), lost.shape)[others])
    first = lost[others].sum() + 16 * logs * b.sum()
    later = sqrt(32 * (users if after is None else after) * logs * float((scale**2).sum()))
    return float(first) + later + 2 * len(lost) * float(lost.max()) / users**2


def truncation_bound(users: float, epsilon: float, horizon: int) -> float:
    """Upper bound T (1 - ε)^(H + 1) / ε of the regret of the best threshold policy of at most H steps.

    Users depart with probability at least ε at every step, and departure after a no-click is sure.

    >>> round(truncation_bound(10**6, 0.5, 20), 3)
    0.954
    """
    return users * float(np.exp((horizon + 1) * log1p(-epsilon))) / epsilon


def informative_from(bound: Callable[[float], float], loss: float, most: float = 1e30) -> float:
    """Smallest number of users T, up to 1 %, with `bound(T)` below the trivial bound `loss` × T; inf above `most`.

    The bound per user must decrease in T from there on.

    >>> f"{informative_from(lambda users: regret_bound([0.0, 0.5], 1.0, 1.0, users), 0.5):.0f}"
    '1357'
    """
    low, high = log(2.0), log(most)
    if bound(most) >= loss * most:
        return inf
    while high - low > 0.01:
        middle = (low + high) / 2
        users = float(np.exp(middle))
        low, high = (low, middle) if bound(users) < loss * users else (middle, high)
    return float(np.exp(high))
