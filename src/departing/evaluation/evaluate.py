"""`evaluate`: what a policy is worth, exactly."""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import count

import numpy as np

from departing.evaluation.bounds import UNDERFLOW, Bounds
from departing.evaluation.closed_form import schedule_values
from departing.evaluation.forward import Leavers, follow, forward_pass
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats, Instance
from departing.model.validation import check_float, check_instance, check_int
from departing.policy.protocol import Policy, resolve_policy
from departing.policy.schedule import Schedule

NODES = 10**7


@dataclass(frozen=True, eq=False)
class Distribution:
    """How users leave: chances by type, joint with the prior, so that the sums over types are chances.

    `returns_by_type[c, x]`: leaves after c clicks; `steps_by_type[n, x]`: leaves at step n;
    `survival_by_type[n, x]`: is still here after n steps. `left` is the chance of all that was not followed
    to the end: entries are exact but for what of it belongs to them.
    """

    returns_by_type: Floats
    steps_by_type: Floats
    survival_by_type: Floats
    left: float

    @property
    def returns(self) -> Floats:
        """The chance of every number of clicks."""
        return np.asarray(self.returns_by_type.sum(axis=1))

    @property
    def steps(self) -> Floats:
        """The chance of every number of steps."""
        return np.asarray(self.steps_by_type.sum(axis=1))

    @property
    def survival(self) -> Floats:
        """The chance to be still here after every number of steps."""
        return np.asarray(self.survival_by_type.sum(axis=1))


@dataclass(frozen=True)
class Evaluation(Bounds):
    """The expected clicks of one user under a policy, with the split by type and the distribution."""

    by_type: tuple[Bounds, ...]
    instance: Instance = field(repr=False)
    policy: Policy = field(repr=False)
    tolerance: float = field(repr=False)
    nodes: int = field(repr=False)

    @cached_property
    def distribution(self) -> Distribution:
        """The distribution of clicks and steps, followed until at most `tolerance` of the users are left."""
        if isinstance(self.policy, Schedule):
            leavers, left = _follow_schedule(self.instance, self.policy, self.tolerance, self.nodes)
        else:
            leavers, left = follow(self.instance, self.policy, self.tolerance, self.nodes)
        prior = self.instance.normalised_prior
        returns = leavers.returns[: int(np.argwhere(leavers.returns)[:, 0].max(initial=0)) + 1]
        return Distribution(
            returns * prior, np.array(leavers.steps) * prior, np.array(leavers.survival) * prior, left
        )


def evaluate(instance: Instance, policy: Policy, tolerance: float = 1e-9, nodes: int | None = None) -> Evaluation:
    """The exact expected clicks of one user under `policy`, as a bracket.

    Schedules (Fixed, Threshold, Walk) have a closed form. Every other policy is followed through the graph
    of counts until what is left, times the most it can still bring, is below the `tolerance`. About `nodes`
    counts are expanded at most (10⁷ divided by the number of categories unless told); then the bracket reached so far
    is returned, wider than the tolerance and just as right.

    >>> from departing.policy.schedule import Fixed, Threshold
    >>> blog = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]], depart=1.0)
    >>> round(evaluate(blog, Fixed(0)).value, 10)
    0.6333333333
    >>> round(evaluate(blog, Threshold(first=1, steps=6, then=0)).value, 10)
    0.6502905844
    """
    check_instance(instance)
    policy = resolve_policy(policy, instance.categories)
    tolerance = check_float("tolerance", tolerance, 0.0, np.inf)
    nodes = NODES // instance.n_categories + 1 if nodes is None else check_int("nodes", nodes)
    if isinstance(policy, Schedule):
        lower, upper = schedule_values(instance, policy)
    else:
        lower, upper = forward_pass(instance, policy, tolerance, nodes)
    by_type = tuple(Bounds(float(low), float(high)) for low, high in zip(lower, upper, strict=True))
    shares = instance.normalised_prior
    low, high = float(shares @ lower), float(shares @ upper)
    sums = (instance.n_types + 2) * 2.0**-52
    tiny = UNDERFLOW * 2 * instance.n_types
    low, high = max(low * (1 - sums) - tiny, 0.0), high * (1 + sums) + tiny
    return Evaluation(low, high, by_type, instance, policy, tolerance, nodes)


def _follow_schedule(instance: Instance, policy: Schedule, tolerance: float, nodes: int) -> tuple[Leavers, float]:
    """As `follow`; a schedule does not look at the counts, so clicks alone need to be told apart."""
    leavers = Leavers(instance.n_types)
    here = np.ones((1, instance.n_types))  # [clicks so far, M]
    expanded, ends = 0, np.append(np.cumsum([n for _, n in policy.phases]), np.inf)
    for step in count():
        leavers.survival.append(here.sum(axis=0))
        left = float(instance.prior @ leavers.survival[-1])
        if left <= tolerance or expanded >= nodes:
            break
        chances = instance.outcome_probabilities[policy.phase_categories[np.searchsorted(ends, step, side="right")]]
        leavers.add(np.arange(len(here)), here * chances[DEPART], here * chances[CLICK_DEPART])
        expanded += len(here)
        moved = np.zeros((len(here) + 1, instance.n_types))
        moved[1:] = here * chances[CLICK]
        moved[:-1] += here * chances[STAY]
        here = moved
    return leavers, left
