"""Histories drawn anew: from a model of users and of how they were watched, or from the users themselves."""

from dataclasses import dataclass

import numpy as np

from departing.model.counts import Integers, merge
from departing.model.histories import Histories
from departing.model.instance import CLICK_DEPART, DEPART, Floats, Instance

CROWD = 2**17  # users who are drawn at a time


@dataclass(frozen=True)
class Design:
    """How users were watched: how often categories were shown, and when we stopped looking.

    `shown[K]` are shares; `stopped[n]` is the chance to stop looking at a user who is still here after n + 1 steps.
    """

    users: int
    shown: Floats
    stopped: Floats

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
        return cls(histories.users, shown / shown.sum(), stopped)

    def draw(self, instance: Instance, rng: np.random.Generator) -> Histories:
        """Histories of as many users of `instance`, shown and watched so."""
        crowds = [
            _merged(self._crowd(instance, min(CROWD, self.users - first), rng))
            for first in range(0, self.users, CROWD)
        ]
        counts, times = (np.concatenate(parts) for parts in zip(*crowds, strict=True))
        return Histories(counts, times, categories=instance.categories).distinct

    def _crowd(self, instance: Instance, n: int, rng: np.random.Generator) -> Integers:
        k, m = instance.n_categories, instance.n_types
        types = rng.choice(m, n, p=instance.normalised_prior)
        counts, here = np.zeros((n, k, 4), np.int64), np.arange(n)
        for stopped in self.stopped:
            category = rng.choice(k, len(here), p=self.shown)
            outcome = outcomes(instance, category, types[here], rng)
            counts[here, category, outcome] += 1
            here = here[(outcome < DEPART) & (rng.random(len(here)) >= stopped)]
            if not len(here):
                break
        return counts


def outcomes(instance: Instance, categories: Integers, types: Integers, rng: np.random.Generator) -> Integers:
    """What comes of showing `categories[n]` to users of `types[n]`, 0 to 3 each."""
    ends = instance.outcome_probabilities.cumsum(axis=1)[categories, :, types]
    luck = rng.random(len(types)) * ends[:, -1]
    return np.asarray(np.minimum((luck[:, None] >= ends).sum(axis=1), CLICK_DEPART))


def _merged(counts: Integers) -> tuple[Integers, Integers]:
    return merge(counts, np.ones(len(counts), np.int64))


def redrawn(histories: Histories, rng: np.random.Generator) -> Histories:
    """As many users, drawn with replacement."""
    seen = histories.distinct
    times = rng.multinomial(seen.users, seen.multiplicity / seen.users)
    kept = times > 0
    return Histories(seen.counts[kept], times[kept], categories=histories.categories)
