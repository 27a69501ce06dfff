"""Policy tree: the first recommendations of a policy after each sequence of outcomes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.policy.protocol import Policy, recommended, switch_probability_bounds

# A policy counts as committed to a category where at most this fraction of the users ever gets another one.
COMMITTED = 0.01


@dataclass(frozen=True)
class Branch:
    """Node of a policy tree with the branches below it.

    Attributes
    ----------
    outcome : int or None
        Outcome that leads here: click (0) or stay (1); None at the root.
    category : int
        Recommendation.
    share : float
        Fraction of all users who get here.
    belief : tuple of float, length M
        Belief here.
    committed : bool
        True if at most 1 % of these users ever get another category.
    children : tuple of Branch
        Branches after a click and after a stay.
    """

    outcome: int | None
    category: int
    share: float
    belief: tuple[float, ...]
    committed: bool
    children: tuple["Branch", ...]

    def to_dict(self, instance: Instance) -> dict[str, Any]:
        """Return the tree as JSON values, with the names of `instance`."""
        values: dict[str, Any] = {
            "category": instance.categories[self.category],
            "share": self.share,
            "belief": dict(zip(instance.types, self.belief, strict=True)),
            "committed": self.committed,
        }
        if self.outcome is not None:
            values["after"] = {CLICK: "click", STAY: "stay"}[self.outcome]
        if self.children:
            values["children"] = [child.to_dict(instance) for child in self.children]
        return values


def policy_tree(policy: Policy, instance: Instance, depth: int = 3, min_share: float = 0.01) -> Branch:
    """Return the tree of the first recommendations of a policy.

    Parameters
    ----------
    policy : Policy
        Policy to follow.
    instance : Instance
        Instance that gives the shares and beliefs.
    depth : int
        Number of steps.
    min_share : float
        Branches with a smaller fraction of all users are left out.

    Returns
    -------
    Branch
        The root.

    Examples
    --------
    >>> from departing.model.examples import magazine
    >>> from departing.planning.plan import plan
    >>> root = policy_tree(plan(magazine(), gap=1e-3).policy, magazine())
    >>> root.category, [child.category for child in root.children]
    (2, [2, 0])
    """

    depth = min(depth, instance.horizon or depth)

    def follow(outcome: int | None, counts: Integers, weights: Floats, depth: int) -> Branch:
        category, belief = int(recommended(policy, counts[None])[0]), weights / weights.sum()
        switching = float((belief * switch_probability_bounds(policy, counts[None], instance)[0]).sum())
        children = []
        if depth > 1 and switching > COMMITTED:
            for after in (CLICK, STAY):
                moved = weights * instance.outcome_probabilities[category, after]
                if moved.sum() >= min_share:
                    later = counts.copy()
                    later[category, after] += 1
                    children.append(follow(after, later, moved, depth - 1))
        share = float(weights.sum())
        return Branch(outcome, category, share, tuple(belief.tolist()), switching <= COMMITTED, tuple(children))

    return follow(None, np.zeros((instance.n_categories, 4), np.int64), instance.normalised_prior, depth)
