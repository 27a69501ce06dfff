"""Sub-exponential constants of the return of a schedule, from its moment generating function."""

from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np

from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats, Instance
from departing.model.validation import MAX_USERS, check_instance, check_int, check_positive
from departing.policy.library import PolicyLike, to_policy
from departing.policy.protocol import check_category_range
from departing.policy.schedule import Schedule

RATIO = 1.02  # of neighbouring γ of the grid
SMALLEST = 1e-3  # of γ, as a share of 1 / (standard deviation)
LARGEST = 0.95  # of γ, as a share of the γ at which the moment generating function diverges
MAX_GAMMA = 20.0  # if it does not diverge
MIN_TAU = 1e-6  # clicks; for returns that are constant up to rounding


@dataclass(frozen=True)
class SubExponential:
    """Constants with E exp(γ (V - E V)) ≤ exp(γ² τ² / 2) for γ from -1 / b to 1 / b, V the return of a policy.

    Attributes
    ----------
    tau : float
        τ, in clicks.
    b : float
        b, in clicks.
    """

    tau: float
    b: float

    @property
    def eta(self) -> float:
        """The paper's η = b² / τ²."""
        return (self.b / self.tau) ** 2


def sub_exponential(
    instance: Instance, policy: PolicyLike, users: int = 10**6, policies: int = 1, *, b: float | None = None
) -> SubExponential:
    """Compute sub-exponential constants of the return of a schedule that hold exactly and are nearly the smallest.

    For a given b, τ²(b) is the supremum of 2 ψ(γ) / γ² over γ ≠ 0 from -1 / b to 1 / b, where
    ψ(γ) = ln E exp(γ (V - E V)) is known in closed form. It is bounded from above: ψ is convex, so between two points
    of a grid it is below the chord, whose quotient by γ² has a closed maximum; between 0 and the first point 2 ψ / γ²
    is at most the largest variance of the tilted distributions, which is at most M''(γ) / M(0) - (M'(0) / M(0))²
    because the moment generating function M of a return, which is not negative, has increasing derivatives. Rounding
    errors are added.

    Parameters
    ----------
    instance : Instance
    policy : Policy
        A schedule: Fixed, Threshold or Walk.
    users : int, default 10**6
        Total number of users T of UCB-Hybrid.
    policies : int, default 1
        Number of policies of UCB-Hybrid.
    b : float, optional
        b, in clicks. By default the one that minimises the policy's share of the regret bound of UCB-Hybrid,
        16 b ln T + sqrt(32 T ln T / policies) τ(b).

    Returns
    -------
    SubExponential

    Raises
    ------
    InputError
        If the policy is not a schedule, or the moment generating function diverges below 1 / b.

    Examples
    --------
    >>> from departing.policy.schedule import Fixed
    >>> one = Instance(prior=[1.0], click=[[0.5]], depart=1.0)  # the variance of the return is 2
    >>> round(sub_exponential(one, Fixed(0), users=10**6).tau ** 2, 2)
    2.25
    >>> round(sub_exponential(one, Fixed(0), users=10**12).tau ** 2, 2)
    2.01
    """
    check_instance(instance)
    schedule = to_policy(policy, instance.categories, instance)
    if not isinstance(schedule, Schedule):
        raise InputError(f"policy is a {type(policy).__name__}; expected a schedule: Fixed, Threshold or Walk.")
    check_category_range(type(schedule).__name__, schedule.phase_categories, instance.n_categories)
    logs, n = log(check_int("users", users, 2, MAX_USERS)), check_int("policies", policies)
    grid = _grid(instance, schedule, None if b is None else check_positive("b", b))
    tau = _tau(instance, schedule, grid)
    if b is not None:
        return SubExponential(float(tau[-1]), b)
    share = 16 * logs / grid + sqrt(32 * users * logs / n) * tau
    best = int(share.argmin())
    return SubExponential(float(tau[best]), float(1 / grid[best]))


def _grid(instance: Instance, schedule: Schedule, b: float | None) -> Floats:
    """Return increasing γ > 0, up to 1 / b."""
    final = instance.outcome_probabilities[schedule.final_category][:, instance.prior > 0]
    with np.errstate(divide="ignore"):
        limit = float(np.log1p((final[DEPART] + final[CLICK_DEPART]) / final[CLICK]).min())
    if b is not None and 1 / b >= limit:
        raise InputError(f"b is {b!r}; expected more than {1 / limit:.6g}, where the moments exist.", "b")
    _, mean, second = generating_function(instance, schedule, np.zeros(1))[:, 0]
    deviation = sqrt(max(second - mean**2, MIN_TAU**2))
    largest = LARGEST * min(limit, MAX_GAMMA) if b is None else 1 / b
    smallest = SMALLEST * min(largest, 1 / deviation)
    return np.geomspace(smallest, largest, 2 + int(log(largest / smallest) / log(RATIO)))


def _tau(instance: Instance, schedule: Schedule, grid: Floats) -> Floats:
    """Return upper bounds of τ(1 / γ) for every γ of the grid."""
    moments = generating_function(instance, schedule, np.concatenate([-grid[::-1], [0.0], grid]))
    zero, steps = len(grid), sum(n for _, n in schedule.phases)
    _, mean, second = moments[:, zero]
    # Relative rounding error of M: some operations per phase and squaring, and the powers of the step.
    error = 2.0**-52 * (200 + 200 * len(schedule.phases) + 8 * steps)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        squares = []
        for m, sign in ((moments[:, zero + 1 :], 1.0), (moments[:, :zero][:, ::-1], -1.0)):
            psi = np.log(m[0]) - sign * grid * mean + error * (1 + grid * mean)
            low = (1.0, mean) if sign > 0 else (m[0, 0], m[1, 0])
            high = m[2, 0] if sign > 0 else second
            tilted = high / low[0] * (1 + 4 * error) - (low[1] / low[0]) ** 2 * (1 - 4 * error)
            squares.append(np.append(tilted, _chord_maxima(grid, psi)))
        largest = np.maximum.accumulate(np.maximum(*squares))
    return np.sqrt(np.where(np.isnan(largest), inf, np.maximum(largest, MIN_TAU**2)))


def _chord_maxima(grid: Floats, psi: Floats) -> Floats:
    """Return the maximum of 2 L(γ) / γ² over each cell of the grid, where L is the chord of `psi`."""
    slope = np.diff(psi) / np.diff(grid)
    intercept = psi[:-1] - slope * grid[:-1]  # at most 0 up to rounding: psi is convex and 0 at 0
    peak = np.clip(np.where(slope > 0, -2 * intercept / slope, inf), grid[:-1], grid[1:])
    at_peak = 2 * (intercept + slope * peak) / peak**2
    ends = 2 * psi / grid**2
    return np.asarray(np.maximum(at_peak, np.maximum(ends[:-1], ends[1:])))


def generating_function(instance: Instance, schedule: Schedule, gamma: Floats) -> Floats:
    """Return the moment generating function E exp(γ V) of the return of a schedule, and two derivatives, `[3, n]`.

    A step at which a user of type x clicks and stays with probability c, stays without a click with s, departs with
    d, or clicks and departs with e turns M into t + m M, where t = d + e exp(γ) and m = c exp(γ) + s. The steps of a
    phase are composed by repeated squaring; the last phase has M = t / (1 - m). All terms are positive.
    """
    growth = np.exp(gamma)[:, None]
    zero = np.zeros((len(gamma), instance.n_types))
    probabilities = instance.outcome_probabilities

    def step(category: int) -> tuple[Floats, Floats]:
        clicked, departed = probabilities[category, CLICK] * growth, probabilities[category, CLICK_DEPART] * growth
        return (
            np.stack([probabilities[category, DEPART] + departed, departed, departed]),
            np.stack([clicked + probabilities[category, STAY], clicked, clicked]),
        )

    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        t, m = step(schedule.final_category)
        stops = instance.departure_probabilities[schedule.final_category] - probabilities[
            schedule.final_category, CLICK
        ] * np.expm1(gamma[:, None])
        inverse = np.where(stops > 0, 1 / stops, inf)
        value = _product(t, np.stack([inverse, m[1] * inverse**2, (m[2] + 2 * m[1] ** 2 * inverse) * inverse**2]))
        for category, n in reversed(schedule.phases):
            t, m = step(category)
            total, power = np.stack([zero, zero, zero]), np.stack([zero + 1, zero, zero])
            while n:
                if n & 1:
                    total, power = total + _product(power, t), _product(power, m)
                t, m, n = t + _product(m, t), _product(m, m), n >> 1
            value = total + _product(power, value)
        return np.asarray((value * instance.normalised_prior)[..., instance.prior > 0].sum(axis=-1))


def _product(one: Floats, other: Floats) -> Floats:
    """Return the product of two functions, each given by its value and two derivatives."""
    a, b = one, other
    return np.stack([a[0] * b[0], a[0] * b[1] + a[1] * b[0], a[0] * b[2] + 2 * a[1] * b[1] + a[2] * b[0]])
