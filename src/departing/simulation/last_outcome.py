"""Simulates users under a LastOutcomePolicy: after a click one category, otherwise another."""

import numpy as np

from departing.learning.protocol import LastOutcomeRule
from departing.model.counts import Integers, merge
from departing.model.histories import Histories
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Instance
from departing.simulation.aggregate import Gone, Tell
from departing.simulation.reference import deal_types
from departing.simulation.run import Progress

Crowd = tuple[Integers, Integers]  # counts[n, K, 4] and how many users of each type have them, [n, M]


def aggregate_last_outcome(
    instance: Instance,
    policy: LastOutcomeRule,
    users: int,
    rng: np.random.Generator,
    nodes: int,
    progress: Progress,
    tell: Tell,
) -> Histories | None:
    """The histories of `users` users under `policy`, with the exact distribution; None if there are too many counts.

    It is `aggregate` for what is no function of counts alone, and a learner is told of all steps.
    """
    liked: Crowd = np.zeros((1, instance.n_categories, 4), np.int64), deal_types(instance, users, rng)[None]
    missed: Crowd = liked[0][:0], liked[1][:0]
    gone, visited, here = Gone(repeat=True), 0, users
    while here:
        visited += len(liked[0]) + len(missed[0])
        if visited > nodes:
            return None
        counts, weights = (np.concatenate(parts) for parts in zip(liked, missed, strict=True))
        categories = policy.recommend_after(np.arange(len(counts)) < len(liked[0]))
        clicked = rng.binomial(weights, instance.click[categories])
        last = rng.binomial(clicked, instance.depart_on_click[categories])
        departed = rng.binomial(weights - clicked, instance.depart[categories])
        outcomes = np.stack([clicked - last, weights - clicked - departed, departed, last], axis=1)
        totals = outcomes.sum(axis=2)
        tell(counts, categories, totals)
        for outcome in (DEPART, CLICK_DEPART):
            gone.depart(counts, categories, outcome, totals[:, outcome])
        liked, missed = (_after(counts, categories, outcomes[:, outcome], outcome) for outcome in (CLICK, STAY))
        before, here = here, int(liked[1].sum() + missed[1].sum())
        progress(before - here)
    return gone.histories()


def _after(counts: Integers, categories: Integers, users: Integers, outcome: int) -> Crowd:
    """The crowd of those of `users[n, M]` who had `counts[n, K, 4]` and then this outcome."""
    some = users.any(axis=1)
    moved = counts[some]
    moved[np.arange(len(moved)), categories[some], outcome] += 1
    return merge(moved, users[some]) if len(moved) else (moved, users[some])
