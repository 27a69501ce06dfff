"""Regret bound of UCB-Hybrid with all constants (theory, UCB-Hybrid)."""

from collections.abc import Callable
from math import inf, log, log1p, sqrt

import numpy as np
import numpy.typing as npt

from departing.model.errors import InputError


def pull_bound(loss: float, tau: float, eta: float, users: float) -> float:
    """Largest number of users of a policy while every mean return is within its confidence radius.

    A policy is chosen after n of its users only if twice its radius r(n) is at least its loss, and r(n) is the larger
    one of its two forms.

    Parameters
    ----------
    loss : float
        Loss Δ of the policy compared with the best one, in clicks per user.
    tau, eta : float
        Constants of the policy, such that its return is sub-exponential with (τ², b), b = sqrt(η) τ.
    users : float
        Number of users T that UCB-Hybrid is planned for.

    Returns
    -------
    float
        1 + max(16 b ln T / Δ, 32 τ² ln T / Δ²); inf if the loss is 0 or below 1e-100.

    Examples
    --------
    >>> round(pull_bound(0.5, 1.0, 1.0, 10**6))
    1769
    """
    if loss <= 1e-100:  # its square would underflow
        return inf
    return 1 + max(16 * sqrt(eta) * tau * log(users) / loss, 32 * tau**2 * log(users) / loss**2)


def ucb_regret_bound(
    losses: npt.ArrayLike,
    tau: npt.ArrayLike,
    eta: npt.ArrayLike,
    users: float,
    after: float | None = None,
    *,
    epsilon: float | None = None,
    horizon: int | None = None,
) -> float:
    """Upper bound of the expected regret of UCB-Hybrid, for users one after another.

    It bounds the regret against the best of its policies. With `epsilon` and `horizon` it bounds the regret of the
    threshold policies against all threshold policies; with two types, two categories and sure departure one of these
    is optimal.

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
    epsilon, horizon : float and int, optional
        Both or none: the lower bound ε of Λ (1 - P), and the largest number of steps H of the threshold policies.

    Returns
    -------
    float
        Σ (loss + 16 b ln T) + sqrt(32 t ln T Σ τ²) + 2 P max(loss) / T², where the sums leave out the best policy;
        plus `truncation_bound(t, epsilon, horizon)` if these are given.

    Raises
    ------
    InputError
        If only one of `epsilon` and `horizon` is given.

    Examples
    --------
    >>> round(ucb_regret_bound([0.0] + [0.017] * 29, 31.373, 1.0, 10**6))
    3753446
    >>> round(ucb_regret_bound([0.0] + [0.017] * 29, 31.373, 1.0, 10**6, epsilon=0.5, horizon=14))
    3753507
    """
    if (epsilon is None) != (horizon is None):
        raise InputError("Only one of epsilon and horizon is set; expected both, or none.")
    t = users if after is None else after
    lost = np.asarray(losses, np.float64)
    others, logs = np.arange(len(lost)) != lost.argmin(), log(users)
    scale = np.broadcast_to(np.asarray(tau, np.float64), lost.shape)[others]
    b = scale * np.sqrt(np.broadcast_to(np.asarray(eta, np.float64), lost.shape)[others])
    first = lost[others].sum() + 16 * logs * b.sum()
    later = sqrt(32 * t * logs * float((scale**2).sum()))
    truncated = 0.0 if epsilon is None or horizon is None else truncation_bound(t, epsilon, horizon)
    return float(first) + later + 2 * len(lost) * float(lost.max()) / users**2 + truncated


def truncation_bound(users: float, epsilon: float, horizon: int) -> float:
    """Upper bound of the regret of the best threshold policy of at most H steps against all threshold policies.

    Parameters
    ----------
    users : float
        Number of users T.
    epsilon : float
        Lower bound ε of Λ (1 - P) over all types and categories; users may also depart at clicks.
    horizon : int
        H.

    Returns
    -------
    float
        T (1 - ε)^(H + 1) / ε: all clicks after step H.

    Examples
    --------
    >>> round(truncation_bound(10**6, 0.5, 20), 3)
    0.954
    """
    return users * float(np.exp((horizon + 1) * log1p(-epsilon))) / epsilon


def informative_from(bound: Callable[[float], float], loss: float, most: float = 1e30) -> float:
    """Smallest number of users with which a bound of the regret is below the trivial bound.

    Parameters
    ----------
    bound : callable
        Bound of the regret as a function of the number of users T. Divided by T, it must decrease from the result on.
    loss : float
        Largest loss of a policy, in clicks per user: the trivial bound is `loss` × T.
    most : float, default 1e30
        Largest number of users that is tried.

    Returns
    -------
    float
        T up to 1 %; inf if the bound is not below the trivial one at `most`.

    Examples
    --------
    >>> f"{informative_from(lambda users: ucb_regret_bound([0.0, 0.5], 1.0, 1.0, users), 0.5):.0f}"
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
