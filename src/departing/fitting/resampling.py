"""Bootstrap samples of histories: simulated from an instance, or drawn from the users with replacement."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from departing.model.counts import Integers
from departing.model.histories import Histories
from departing.model.history_fields import UNKNOWN
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats, Instance
from departing.model.sampling import sample_outcomes

BATCH_USERS = 2**17  # simulated at a time; bounds memory to 4 MiB of counts per category


@dataclass(frozen=True)
class SamplingDesign:
    """Number of users, probabilities of the categories shown, and the censoring of episodes.

    `shown[K]` sums to 1; `censoring[n]` is the probability that a user who is active after n + 1 steps is censored
    there. After step `last`, if there is one, it is unknown whether the user stayed: the step at the horizon.
    """

    users: int
    shown: Floats
    censoring: Floats
    last: int | None = None

    @classmethod
    def from_histories(cls, histories: Histories) -> Self:
        """Estimate the design as if categories had been shown at random at every step."""
        users = histories.multiplicity.astype(np.float64)
        shown = histories.totals.sum(axis=1)
        longest = int(histories.steps.max())
        ended = np.bincount(histories.steps, users, longest + 1)
        censored = np.bincount(histories.steps[histories.censored], users[histories.censored], longest + 1)
        active = censored + ended[::-1].cumsum()[::-1] - ended  # after n steps
        censoring = np.divide(censored, active, out=np.ones_like(active), where=active > 0)[1:]
        last = histories.horizon if histories.pending.any() else None
        return cls(histories.users, shown / shown.sum(), censoring, last)

    def sample(self, instance: Instance, rng: np.random.Generator) -> Histories:
        """Simulate histories of as many users of `instance`."""
        batches = [
            self._sample_batch(instance, min(BATCH_USERS, self.users - first), rng)
            for first in range(0, max(self.users, 1), BATCH_USERS)
        ]
        counts, users, pending = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        return Histories(counts, users, pending=pending, categories=instance.categories, horizon=self.last).distinct

    def sample_segments(self, instance: Instance, users: Integers, rng: np.random.Generator) -> Histories:
        """Simulate histories of `users[S + 1]` users of each segment of `instance`, those of unknown segment last."""
        assert instance.segments is not None
        names = instance.segments.names
        parts = [
            replace(self, users=int(n)).sample(instance.in_segment(name), rng)
            for name, n in zip((*names, None), users, strict=True)
        ]
        segment = np.repeat(np.append(np.arange(len(names)), UNKNOWN), [len(part) for part in parts])
        counts, number, pending = (
            np.concatenate([getattr(part, field) for part in parts])
            for field in ("counts", "multiplicity", "pending")
        )
        return Histories(
            counts,
            number,
            pending=pending,
            horizon=self.last,
            categories=instance.categories,
            segment=segment,
            segments=names,
            segment_columns=instance.segments.columns,
        ).distinct

    def _sample_batch(
        self, instance: Instance, n: int, rng: np.random.Generator
    ) -> tuple[Integers, Integers, Integers]:
        """Distinct counts of n simulated users, the number of users of each, and their pending steps."""
        k, m = instance.n_categories, instance.n_types
        types = rng.choice(m, n, p=instance.normalised_prior)
        counts, active = np.zeros((n, k, 4), np.int64), np.arange(n)
        pending = np.zeros((n, k, 2), np.int64)
        for step, censoring in enumerate(self.censoring, 1):
            category = rng.choice(k, len(active), p=self.shown)
            outcome = sample_outcomes(instance, category, types[active], rng.random(len(active)))
            if step == self.last:
                outcome = np.where((outcome == CLICK) | (outcome == CLICK_DEPART), CLICK, STAY)
                pending[active, category, outcome] = 1
            counts[active, category, outcome] += 1
            active = active[(outcome < DEPART) & (rng.random(len(active)) >= censoring)]
            if not len(active):
                break
        sample = Histories(counts, pending=pending).distinct
        return sample.counts, sample.multiplicity, sample.pending


def resample_users(histories: Histories, rng: np.random.Generator) -> Histories:
    """Draw as many users with replacement; of users with weights, as many of equal weight as they are worth."""
    distinct, weight = histories.distinct, np.zeros(0)
    worth = distinct.multiplicity.astype(np.float64)
    if distinct.weights is not None:
        sums, squares = distinct.weights.T
        weight = np.divide(squares, sums, out=np.zeros_like(sums), where=sums > 0)  # of one of these
        worth = np.divide(sums, weight, out=np.zeros_like(sums), where=weight > 0)
    users = rng.multinomial(round(float(worth.sum())), worth / worth.sum())
    kept = users > 0
    fields: dict[str, Any] = {"categories": histories.categories, "horizon": histories.horizon}
    if distinct.segment is not None:
        columns = {"segments": distinct.segments, "segment_columns": distinct.segment_columns}
        fields |= {"segment": distinct.segment[kept], **columns}
    if distinct.weights is not None:
        fields["weight"] = (users * weight)[kept]
    return Histories(distinct.counts[kept], users[kept], pending=distinct.pending[kept], **fields)
