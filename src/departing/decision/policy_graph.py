"""Count graph of a policy that is followed once and evaluated under many instances."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from departing.evaluation.forward import Truncation
from departing.evaluation.horizon import RemainingValues
from departing.evaluation.traversal import Booleans, first_level, traverse
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.policy.protocol import Policy


@dataclass(frozen=True, eq=False)
class PolicyGraph:
    """Counts that users reach under a policy, level by level.

    For every level: the category `[n]` recommended at each of the counts, their rows in the next level after a click
    and after a stay, `[m, 2]`, of those that are followed, and which ones are not, `[n]`. There the policy is taken
    to recommend the present category from then on.
    """

    levels: tuple[tuple[Integers, Integers, Booleans], ...]

    @classmethod
    def follow(cls, policy: Policy, instance: Instance, gap: float, max_nodes: int) -> Self:
        """Follow a policy until users of `instance` lose a reward of at most `gap`, or `max_nodes` are expanded."""
        prior, truncation, lost = instance.normalised_prior, Truncation(gap, max_nodes), 0.0
        remaining = RemainingValues(instance)
        levels = []
        for level in traverse(first_level(instance, policy, np.ones(instance.n_types))):
            worst, best = remaining.limits(level.step)
            errors = (level.weights * level.switch_bounds) @ (prior * (best - worst))
            stop = truncation.rows(errors, lost)
            if level.step == instance.horizon:
                stop[:] = True
            lost += float(errors[stop].sum())
            categories = level.categories
            level.keep(~stop)
            levels.append((categories, level.child, stop))
        return cls(tuple(levels))

    def values(self, instance: Instance) -> Floats:
        """Expected reward of a user of each type of `instance`, `[M]`; any number of types."""
        probabilities = instance.outcome_probabilities[:, [CLICK, STAY]]
        following, remaining = np.zeros((0, instance.n_types)), RemainingValues(instance)
        for step, (categories, child, stop) in reversed([*enumerate(self.levels)]):
            values = remaining.fixed(step)[categories]
            if not stop.all():
                shown = categories[~stop]
                ahead = np.concatenate([following, np.zeros((1, instance.n_types))])[child]  # -1: impossible outcome
                values[~stop] = instance.expected_reward[shown] + (probabilities[shown] * ahead).sum(axis=1)
            following = values
        return np.asarray(following[0])
