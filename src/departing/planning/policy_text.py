"""The first steps of a plan in words: what comes first, and what after a click and after a stay."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.policy.protocol import Policy, recommended, switch_probability_bounds
from departing.policy.schedule import Schedule

if TYPE_CHECKING:
    from departing.planning.plan import Plan

SETTLED = 0.01  # of the users may ever see another category, where the present one counts as settled


@dataclass(frozen=True)
class Branch:
    """What is recommended after an outcome (None at the start) to the `share` of all users who get there.

    `belief` is what is known of them, `for_good` tells that hardly anyone will ever be shown another category; `then`
    are the branches that follow.
    """

    outcome: int | None
    category: int
    share: float
    belief: tuple[float, ...]
    for_good: bool
    then: tuple["Branch", ...]

    def to_dict(self, instance: Instance) -> dict[str, Any]:
        """Return the branch and those that follow as JSON values, with the names of `instance`."""
        values: dict[str, Any] = {
            "category": instance.categories[self.category],
            "share": self.share,
            "belief": dict(zip(instance.types, self.belief, strict=True)),
            "for_good": self.for_good,
        }
        if self.outcome is not None:
            values["after"] = {CLICK: "click", STAY: "stay"}[self.outcome]
        if self.then:
            values["then"] = [branch.to_dict(instance) for branch in self.then]
        return values


def outline(policy: Policy, instance: Instance, depth: int = 3, least: float = 0.01) -> Branch:
    """The tree of a policy's first recommendations, `depth` steps deep, without branches of few users.

    Few are fewer than a share `least` of all.

    >>> from departing.model.examples import magazine
    >>> from departing.planning.plan import plan
    >>> first = outline(plan(magazine(), gap=1e-3).policy, magazine())
    >>> first.category, [branch.category for branch in first.then]
    (2, [2, 0])
    """
    counts = np.zeros((instance.n_categories, 4), np.int64)
    return _follow(policy, instance, None, counts, instance.normalised_prior, depth, least)


def _follow(
    policy: Policy,
    instance: Instance,
    outcome: int | None,
    counts: Integers,
    weights: Floats,
    depth: int,
    least: float,
) -> Branch:
    category, belief = int(recommended(policy, counts[None])[0]), weights / weights.sum()
    moving = float((belief * switch_probability_bounds(policy, counts[None], instance)[0]).sum())
    branches = []
    if depth > 1 and moving > SETTLED:
        for after in (CLICK, STAY):
            moved = weights * instance.outcome_probabilities[category, after]
            if moved.sum() >= least:
                then = counts.copy()
                then[category, after] += 1
                branches.append(_follow(policy, instance, after, then, moved, depth - 1, least))
    share = float(weights.sum())
    return Branch(outcome, category, share, tuple(belief.tolist()), moving <= SETTLED, tuple(branches))


def is_plain(plan: "Plan") -> bool:
    """Whether the policy's own words say it all."""
    return isinstance(plan.policy, Schedule)
