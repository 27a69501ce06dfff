"""The first steps of a plan in words: what comes first, and what after a click and after a stay."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats
from departing.policy.protocol import recommended, unsettled
from departing.policy.schedule import Schedule

if TYPE_CHECKING:
    from departing.planning.plan import Plan

SETTLED = 0.01  # of the users may ever see another category, where the present one counts as settled


@dataclass(frozen=True)
class Branch:
    """What is recommended after an outcome (None at the start) to the `share` of all users who get there.

    `for_good` tells that hardly anyone will ever be shown another category; `then` are the branches that follow.
    """

    outcome: int | None
    category: int
    share: float
    for_good: bool
    then: tuple["Branch", ...]


def outline(plan: "Plan", depth: int = 3, least: float = 0.01) -> Branch:
    """The tree of first recommendations, `depth` steps deep, without branches of fewer than `least` of the users.

    >>> from departing.model.examples import magazine
    >>> from departing.planning.plan import plan
    >>> first = outline(plan(magazine(), gap=1e-3))
    >>> first.category, [branch.category for branch in first.then]
    (2, [2, 0])
    """
    prior = plan.instance.shares
    counts = np.zeros((plan.instance.n_categories, 4), np.int64)
    return _follow(plan, None, counts, prior, depth, least)


def _follow(plan: "Plan", outcome: int | None, counts: Integers, weights: Floats, depth: int, least: float) -> Branch:
    category = int(recommended(plan.policy, counts[None])[0])
    moving = float((weights * unsettled(plan.policy, counts[None], plan.instance)[0]).sum() / weights.sum())
    branches = []
    if depth > 1 and moving > SETTLED:
        for after in (CLICK, STAY):
            moved = weights * plan.instance.chances[category, after]
            if moved.sum() >= least:
                then = counts.copy()
                then[category, after] += 1
                branches.append(_follow(plan, after, then, moved, depth - 1, least))
    return Branch(outcome, category, float(weights.sum()), moving <= SETTLED, tuple(branches))


def is_plain(plan: "Plan") -> bool:
    """Whether the policy's own words say it all."""
    return isinstance(plan.policy, Schedule)
