"""`plan`: the optimal policy of an instance, or the decision from a fit."""

from typing import TYPE_CHECKING, Any, overload

from departing.model.errors import InputError
from departing.model.instance import Instance
from departing.model.progress import Progress
from departing.planning.plan import Plan
from departing.planning.plan import plan as plan_instance
from departing.planning.problem import BoundsProgress
from departing.policy.protocol import Allowed

if TYPE_CHECKING:
    from departing.decision.decision import Decision
    from departing.fitting.fit import Fit

SECONDS, METHOD = 60.0, "auto"  # defaults for an instance
BOOTSTRAP, SEED = 100, 0  # defaults for a fit; 100 resamples place the ends of a 95% interval


@overload
def plan(
    source: Instance,
    gap: float | None = None,
    seconds: float = SECONDS,
    method: str = METHOD,
    *,
    allowed: Allowed = None,
    progress: BoundsProgress | None = None,
) -> Plan: ...


@overload
def plan(
    source: "Fit",
    *,
    allowed: Allowed = None,
    bootstrap: int = BOOTSTRAP,
    seed: int = SEED,
    progress: Progress | None = None,
) -> "Decision": ...


def plan(
    source: "Instance | Fit",
    gap: float | None = None,
    seconds: float | None = None,
    method: str | None = None,
    *,
    allowed: Allowed = None,
    bootstrap: int | None = None,
    seed: int | None = None,
    progress: Any = None,
) -> "Plan | Decision":
    """Compute the optimal policy of an instance within a gap, or the policy to use given a fit.

    For an instance the result is exact: a policy with certified bounds on its value. A fit is an estimate. The
    policies that are optimal under bootstrap draws of it are compared under all draws; the one with the best mean is
    recommended, with the probability that each first category is optimal, the expected loss of the decision, and
    expected clicks that are corrected for the optimism of choosing the best policy on an estimate.

    Parameters
    ----------
    source : Instance or Fit
        Instance to plan for, or fit to decide from.
    gap : float
        For an instance: largest difference of the bounds, in expected reward per user [default: a millionth of
        the largest reward].
    seconds : float
        For an instance: time limit [default: 60]. Compilation, which happens once, does not count. When the time is
        up, the best bounds so far are returned.
    method : str
        For an instance: 'closed-form' (one category that is best for every type, or the paper's formulas for two
        types, two categories and sure departure), 'lattice' (sure departure; the policy is a walk), 'search' (any
        instance), or 'auto' (the first of these that applies) [default: 'auto'].
    allowed : sequence of str or int, or of bool, optional
        Categories that may be recommended, by name or index, or True and False for each [default: all].
    bootstrap : int
        For a fit: number of bootstrap draws, at least 20 [default: 100].
    seed : int
        For a fit: seed of the random numbers [default: 0].
    progress : callable, optional
        Called from time to time: with the lower and the upper bound for an instance, with the number of finished
        draws and their total for a fit.

    Returns
    -------
    Plan or Decision
        `Plan` for an instance, `Decision` for a fit.

    Raises
    ------
    InputError
        If an argument is invalid, applies to the other kind of source only, or the method does not apply.

    Examples
    --------
    >>> blog = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]], depart=1.0)
    >>> best = plan(blog)
    >>> best.policy, round(best.value, 10), best.method
    (Threshold(first=1, steps=6, then=0), 0.6502905844, 'closed-form')

    >>> import departing as dp
    >>> site = Instance([0.7, 0.3], [[0.7, 0.2], [0.3, 0.6]], depart=0.7, categories=["news", "film"])
    >>> decision = plan(dp.fit(dp.sample_log(site, users=5000, seed=1).histories, types=2))
    >>> decision.first[0].category, decision.value.lower < dp.evaluate(site, decision.policy).value
    ('news', True)
    """
    if not isinstance(source, Instance):
        from departing.decision.decide import decide  # compiled functions, which a closed form does not need
        from departing.fitting.fit import Fit

        if isinstance(source, Fit):
            _check_unused("an instance", gap=gap, seconds=seconds, method=method)
            draws = BOOTSTRAP if bootstrap is None else bootstrap
            return decide(source, allowed, draws, SEED if seed is None else seed, progress)
    _check_unused("a fit", bootstrap=bootstrap, seed=seed)
    seconds = SECONDS if seconds is None else seconds
    method = METHOD if method is None else method
    return plan_instance(source, gap, seconds, method, allowed=allowed, progress=progress)


def _check_unused(kind: str, **arguments: object) -> None:
    """Raise if an argument is given that applies to the other kind of source."""
    for name, value in arguments.items():
        if value is not None:
            raise InputError(f"{name} is {value!r}; it applies to {kind} only, so omit it.", name)
