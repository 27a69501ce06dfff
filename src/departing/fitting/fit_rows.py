"""Rows of histories for a fit: distinct counts of all users and of segments, with weights; held-out users."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood
from departing.fitting.segments import SegmentedLikelihood
from departing.model.counts import Integers
from departing.model.histories import Histories
from departing.model.instance import Floats

HELD_OUT_FRACTION = 0.2  # of the users, as in five-fold cross-validation


@dataclass(frozen=True, eq=False)
class FitRows:
    """Users of a fit.

    Attributes
    ----------
    likelihood : MixtureLikelihood
        Of the confirmed rows of the histories, which equal counts of different segments share, with one type.
    multiplicity : int array [N]
        Number of users of each row.
    segment : int array [N] or None
        Segment of each row, -1 if it is unknown; None without segments.
    n_segments : int
        Number of segments.
    histories : Histories
        The histories.
    """

    likelihood: MixtureLikelihood
    multiplicity: Integers
    segment: Integers | None
    n_segments: int
    histories: Histories

    @classmethod
    def of(cls, histories: Histories, free: tuple[Integers, Integers]) -> Self:
        """Rows of the histories; departures are estimated in the `free` categories.

        Weights are scaled so that their sum and that of their squares equal the effective number of users: the
        curvature of the likelihood is then that of as many users of equal weight.
        """
        rows = list(histories.confirmed_rows())
        k = histories.counts.shape[1]
        weights = None if not has_weights(histories) else [each.weights for each in rows]
        if weights is None:
            parts = ((each.counts, each.users, each.final) for each in rows)
            likelihood = MixtureLikelihood.from_parts(parts, k, 1, *free)
        else:
            both = np.concatenate([each for each in weights if each is not None])
            total, squares = both.sum(axis=0)
            scale = float(total / squares) if squares > 0 else 1.0
            weighted = (
                (each.counts, scale * own[:, 0], each.final)
                for each, own in zip(rows, weights, strict=True)
                if own is not None
            )
            likelihood = MixtureLikelihood.from_parts(weighted, k, 1, *free)
            likelihood = replace(likelihood, squares=scale**2 * both[:, 1])
        known = histories.segments is not None and histories.segment_users.any()
        segment = np.concatenate([each.segment for each in rows if each.segment is not None]) if known else None
        multiplicity = np.concatenate([each.users for each in rows])
        return cls(likelihood, multiplicity, segment, len(histories.segments or ()), histories)

    @cached_property
    def merged(self) -> "FitRows":
        """Rows without segments, equal counts merged."""
        if self.segment is None:
            return self
        free = self.likelihood.depart_categories, self.likelihood.depart_on_click_categories
        return FitRows.of(self.histories.without_segments, free)

    @property
    def several_segments(self) -> bool:
        """True if there are users of at least two segments: their priors can differ."""
        return self.segment is not None and len(np.unique(self.segment[self.segment >= 0])) > 1

    @property
    def share(self) -> Floats:
        """Share of each segment in the users of known segment, `[S]`."""
        assert self.segment is not None
        users = np.bincount(self.segment + 1, self.likelihood.users, self.n_segments + 1)[1:]
        return np.asarray(users / users.sum())

    def segmented(self, n_types: int) -> SegmentedLikelihood:
        """Likelihood with a prior for each segment, all equal at first."""
        assert self.segment is not None
        likelihood = replace(self.likelihood, n_types=n_types)
        target = np.full(n_types, 1 / n_types)
        return SegmentedLikelihood.of(likelihood, self.segment, self.n_segments, target)

    def held_out(self, rng: np.random.Generator) -> Floats | Integers:
        """Draw the held-out users of each row: their number, or the sum of their weights."""
        numbers = rng.binomial(self.multiplicity, HELD_OUT_FRACTION)
        if self.likelihood.squares is None:
            return numbers
        return np.asarray(self.likelihood.users * (numbers / self.multiplicity))


def has_weights(histories: Histories) -> bool:
    """True if users have weights other than 1."""
    return histories.is_weighted and not np.array_equal(histories.weight, histories.multiplicity)
