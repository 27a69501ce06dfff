"""Histories drawn anew: from a model of users and of how they were watched, or from the users themselves."""

from dataclasses import dataclass

import numpy as np

from departing.model.histories import Histories
from departing.model.instance import DEPART, Floats, Instance

CROWD = 2**17  # users who are drawn at a time


@dataclass(frozen=True)
class Design:
    """How users were watched: how often categories were shown, and when we stopped looking.

    `shown[K]` are shares; `stopped[n]` is the chance to stop looking at a user who is still here after n + 1 steps;
    `pending[n]` is the chance that n of a censored user's latest steps are such that it is not known who stayed.
    """

    users: int
    shown: Floats
    stopped: Floats
    pending: Floats

    @classmethod
    def of(cls, histories: Histories) -> "Design":
        """The design of histories, as if categories had been shown at random at every step."""
        times = histories.multiplicity.astype(np.float64)
        shown = times @ histories.counts.sum(axis=2)
        longest = int(histories.steps.max())
        ended = np.bincount(histories.steps, times, longest + 1)
        looking = np.bincount(histories.steps[histories.censored], times[histories.censored], longest + 1)
        here = looking + ended[::-1].cumsum()[::-1] - ended  # still here after n steps
        stopped = np.divide(looking, here, out=np.ones_like(here), where=here > 0)[1:]
        late = np.bincount(histories.pending.sum(axis=(1, 2)), times * histories.censored)
        pending = late / late.sum() if late.sum() else np.ones(1)
        return cls(histories.users, shown / shown.sum(), stopped, pending)

    def draw(self, instance: Instance, rng: np.random.Generator) -> Histories:
        """Histories of as many users of `instance`, shown and watched so."""
        parts = [
            self._crowd(instance, min(CROWD, self.users - first), rng).distinct
            for first in range(0, self.users, CROWD)
        ]
        counts, times, pending = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("counts", "multiplicity", "pending")
        )
        return Histories(counts, times, pending=pending, categories=instance.categories).distinct

    def _crowd(self, instance: Instance, n: int, rng: np.random.Generator) -> Histories:
        k, m = instance.n_categories, instance.n_types
        types = rng.choice(m, n, p=instance.prior / instance.prior.sum())
        ends = instance.chances.cumsum(axis=1)
        counts, pending = np.zeros((n, k, 4), np.int64), np.zeros((n, k, 2), np.int64)
        steps, censored, here = np.zeros(n, np.int64), np.zeros(n, bool), np.arange(n)
        trail = []
        for stopped in self.stopped:
            category = rng.choice(k, len(here), p=self.shown)
            luck = rng.random(len(here)) * ends[category, -1, types[here]]
            outcome = np.minimum((luck[:, None] >= ends[category, :, types[here]]).sum(axis=1), 3)
            trail.append((here, category, outcome))
            counts[here, category, outcome] += 1
            steps[here] += 1
            stays = outcome < DEPART
            unseen = stays & (rng.random(len(here)) < stopped)
            censored[here[unseen]] = True
            here = here[stays & ~unseen]
            if not len(here):
                break
        late = np.where(censored, rng.choice(len(self.pending), n, p=self.pending), 0)
        for step, (users, category, outcome) in enumerate(trail):
            mine = steps[users] - step <= late[users]
            pending[users[mine], category[mine], outcome[mine]] += 1
        return Histories(counts, pending=pending)


def redrawn(histories: Histories, rng: np.random.Generator) -> Histories:
    """As many users, drawn with replacement."""
    seen = histories.distinct
    times = rng.multinomial(seen.users, seen.multiplicity / seen.users)
    kept = times > 0
    return Histories(seen.counts[kept], times[kept], pending=seen.pending[kept], categories=histories.categories)
