"""SegmentCounts: the transition counts of the users of each segment."""

from typing import Any

import numpy as np

from departing.learning.transition_counts import TransitionCounts
from departing.model.counts import Integers
from departing.model.instance import Floats


class SegmentCounts:
    """Transition counts by segment; the last ones are of users of unknown segment."""

    def __init__(
        self, categories: int, limit: int, n_segments: int, kind: type[TransitionCounts] = TransitionCounts
    ) -> None:
        self.parts = [kind(categories, limit) for _ in range(n_segments + 1)]

    def add(
        self,
        counts: Integers,
        categories: Integers,
        outcomes: Integers,
        segment: int,
        arrivals: Integers | None = None,
    ) -> None:
        """Add users of a segment, -1 for unknown; see `TransitionCounts.add`."""
        self.parts[segment].add(counts, categories, outcomes, arrivals)

    @property
    def users(self) -> Floats:
        """Weighted number of users of each segment with an outcome, `[S + 1]`."""
        return np.array([part.users for part in self.parts], np.float64)

    @property
    def shares(self) -> Floats:
        """Estimated share of each segment, `[S + 1]`, from weighted users; one is added to each known segment."""
        users = self.users + np.append(np.ones(len(self.parts) - 1), 0.0)
        return np.asarray(users / users.sum())

    def histograms(self, depth: int) -> list[tuple[Integers, Integers]]:
        """Return distinct counts of each segment, and their users, censored after `depth` steps."""
        return [part.histogram(depth=depth) for part in self.parts]

    def add_category(self) -> None:
        """Add a category that nobody has been shown."""
        for part in self.parts:
            part.add_category()

    def state(self) -> dict[str, Any]:
        """Return everything needed to resume."""
        return {"parts": [part.state() for part in self.parts]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.restore(saved)
