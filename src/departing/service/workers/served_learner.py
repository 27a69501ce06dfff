"""The Bayes learner with evidence from a store instead of single steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood
from departing.learning.bayes import Bayes
from departing.learning.segment_likelihood import SegmentedLikelihood
from departing.learning.type_numbers import TypeNumbers
from departing.model.counts import Integers
from departing.model.instance import Floats
from departing.policy.protocol import Policy

Part = tuple[Integers, Integers | Floats]  # distinct counts and their users


class StoredSegments:
    """Users in the store by segment, in place of the transition counts of the learner; unknown segments are last."""

    def __init__(self, n_segments: int) -> None:
        self.parts: list[Part] = []
        self._n = n_segments + 1

    @property
    def shares(self) -> Floats:
        """Estimated share of each segment, `[S + 1]`: one user is added to each known segment."""
        users = np.array([float(users.sum()) for _, users in self.parts] or [0.0] * self._n)
        users[:-1] += 1.0
        return np.asarray(users / users.sum())

    def add_category(self) -> None:
        """Do nothing: the store has the counts."""

    def state(self) -> dict[str, Any]:
        """Return nothing: the store has the counts."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Do nothing: the counts are set before each block."""


class ServedBayes(Bayes):
    """The Bayes learner with evidence from a store instead of single steps."""

    saved = (*Bayes.saved, "weight")
    stored: MixtureLikelihood | None = None
    weight: float | None = None  # of all users of the last block, None if they count alike
    _by_segment: StoredSegments  # type: ignore[assignment]  # the part of the interface that the learner uses

    def _set_segments(self, segments: int | Sequence[str] | None) -> None:
        super()._set_segments(segments)
        self._by_segment = StoredSegments(len(self.segments or ()) if self.distinguishes_segments else 0)

    def evidence(self) -> MixtureLikelihood | None:
        """Return the evidence in the store."""
        parts, n_types = self._by_segment.parts, self.posterior.n_types
        if self.stored is None or not parts or n_types == 1:
            return self.stored
        return SegmentedLikelihood.of_segments(parts, n_types, self.concentration)  # type: ignore[arg-type]

    @property
    def effective_users(self) -> float:
        """The number of users that count, older ones less."""
        return self.arrived if self.weight is None else min(self.arrived, max(self.weight, 1.0))

    def block(
        self,
        arrived: int,
        parts: Sequence[Part],
        allowed: tuple[int, ...] | None = None,
        weight: float | None = None,
    ) -> list[tuple[Policy, int]]:
        """Return the policies of the next users and how many get each.

        `arrived` users have come so far; `parts` are those of each segment and those of unknown segment, or all of
        them without segments; `allowed` are the categories that may be shown. `weight` is that of all users, if older
        ones count less.
        """
        self.arrived, self.weight = arrived, weight
        counts, users = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        n_types = self.posterior.n_types
        self.stored = MixtureLikelihood.from_counts(counts, users, n_types) if len(users) else None
        self._by_segment.parts = list(parts) if self.distinguishes_segments else []
        self.restrict(allowed)
        return self._block()

    def set_segments(self, segments: tuple[str, ...]) -> None:
        """Set the segments of the next blocks; everything that was learned about the users and the others stays."""
        before, budget, concentration = self.segments or (), self._segment_budget, self.concentration
        if segments == before:
            return
        self._set_segments(segments or None)
        self.concentration = concentration
        if not segments:
            self._budget.spent = budget.spent
            return
        self._segment_budget.spent = budget.spent if before else self._budget.spent
        known = dict(zip((*before, None), budget.parts, strict=True)) if before else {}
        for i, name in enumerate((*segments, None)):
            self._segment_budget.parts[i] = known.get(name, self._segment_budget.parts[i])

    def set_fewest_types(self, fewest: int) -> None:
        """Set the smallest number of types of the next blocks, if the number is inferred."""
        if self._numbers is not None and self._numbers.fewest != fewest:
            self._numbers = TypeNumbers(self.n_categories, self.rng, fewest)

    def set_reward(self, reward: Sequence[float] | None, unit: str, horizon: int | None) -> None:
        """Set what is maximised from the next block on; the rewards of categories are estimated again every time."""
        self._set_objective(reward, unit, horizon)
        self.horizon = self.objective.horizon
        self._rescale(self.objective.scale)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state` of a learner with the same arguments."""
        super().restore({"weight": None} | state)  # states of earlier releases have none
