"""Aggregate engine: integer numbers of users moved through the count graph, at a cost independent of their number."""

from collections.abc import Callable

import numpy as np

from departing.evaluation.traversal import Booleans, Level, traverse
from departing.model.counts import Integers
from departing.model.histories import Histories
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY
from departing.simulation.reference import FinishedUsers, UsersProgress

# Probability that a user is still active after the steps that `_play_chains` draws at once. A smaller one draws more
# empty cells, a larger one needs more rounds; both cost little.
CHAIN_TAIL = 1e-4
# Cost of a level in counts, however few it has: the fixed cost of some twenty NumPy calls.
LEVEL_COST = 30
# counts[n, K, 4], categories[n], numbers of users with each outcome[n, 4]
ObserveUsers = Callable[[Integers, Integers, Integers], None]


def aggregate(
    first: Level,
    rng: np.random.Generator,
    max_steps: int | None,
    max_nodes: int,
    effort: float,
    progress: UsersProgress,
    observe: ObserveUsers | None = None,
    observed_steps: int | None = None,
) -> Histories | None:
    """Sample the histories of the users of the `first` level; their joint distribution is exact.

    The users of one type with the same counts are split by binomials: who clicks, which of these depart, which of the
    others depart. A learner observes the first `observed_steps` steps of all users, or all steps if that is None.
    Returns None if there are more than `max_nodes` distinct counts, or the work exceeds that of `effort` counts.
    """
    users = active = int(first.weights.sum())
    finished, visited, affordable = FinishedUsers(merge_at=np.inf), 0, True
    sure = (first.instance.outcome_probabilities[:, STAY] == 0).all(axis=1)
    chains_possible = max_steps is None and bool(sure.any())
    repeated = type(first) is not Level  # equal final counts may be in several rows
    for level in traverse(first):
        visited += len(level)
        affordable = visited + LEVEL_COST * level.step <= effort
        if visited > max_nodes or not affordable:
            break
        if level.step == max_steps:
            finished.add(level.counts, level.weights.sum(axis=1))
            break
        observed = observe is not None and (observed_steps is None or level.step < observed_steps)
        if chains_possible and not observed:
            chain = sure[level.categories] & (level.switch_bounds == 0).all(axis=1)
            if chain.any():
                visited += _play_chains(level, chain, rng, finished, max_nodes)
                repeated |= int(chain.sum()) > 1
        outcomes = _split_by_outcome(level, rng)
        totals = outcomes.sum(axis=2)
        if observe is not None and observed:
            observe(level.counts, level.categories, totals)
        for outcome in (DEPART, CLICK_DEPART):
            finished.depart(level.counts, level.categories, outcome, totals[:, outcome])
        level.flows = np.ascontiguousarray(outcomes[:, : STAY + 1])
        moved = level.next.weights.sum(axis=1)
        if not moved.all():
            level.next.keep(moved > 0)
        before, active = active, int(moved.sum())
        progress(before - active)
    if visited > max_nodes or not affordable:
        progress(active - users)  # take back what was reported: another engine starts over
        return None
    progress(active)
    return finished.histories(first.instance.n_categories, distinct=not repeated)


def _split_by_outcome(level: Level, rng: np.random.Generator) -> Integers:
    """Sample the outcome of one step of all users of a level: numbers of users `[n, 4, M]`."""
    instance, categories = level.instance, level.categories
    outcomes = np.empty((len(categories), 4, instance.n_types), np.int64)
    clicked = rng.binomial(level.weights, instance.click[categories])
    outcomes[:, CLICK_DEPART] = click_departed = rng.binomial(clicked, instance.depart_on_click[categories])
    not_clicked = level.weights - clicked
    outcomes[:, DEPART] = departed = rng.binomial(not_clicked, instance.depart[categories])
    outcomes[:, CLICK], outcomes[:, STAY] = clicked - click_departed, not_clicked - departed
    return outcomes


def _play_chains(
    level: Level, chain: Booleans, rng: np.random.Generator, finished: FinishedUsers, max_nodes: int
) -> int:
    """Play the users in the rows `chain` to the end and take these rows off the level.

    These users always see the same category from now on and stay only by clicking, so the number of clicks before
    they depart is geometric: many steps are drawn as one multinomial, and the users beyond these start again from
    there. Returns the number of counts met, and stops if these are more than `max_nodes`.
    """
    cells, instance = 0, level.instance
    counts, users, categories = level.counts[chain], level.weights[chain], level.categories[chain]
    level.keep(~chain)
    while len(users):
        stay = np.where(users > 0, instance.outcome_probabilities[categories, CLICK], 0.0)
        n_steps = int(np.clip(np.log(CHAIN_TAIL) / np.log(max(stay.max(), CHAIN_TAIL)), 1, 1000))
        cells += users.size * n_steps
        if cells > max_nodes:
            return cells
        survival = stay[..., None] ** np.arange(n_steps + 1)
        departing = survival[..., :-1] * (1 - stay[..., None])
        # Backwards: the last cell takes what is left after rounding, so it must not be a rare one.
        drawn = rng.multinomial(users, np.concatenate([survival[..., -1:], departing[..., ::-1]], axis=-1))[..., ::-1]
        ratio = (
            instance.outcome_probabilities[categories, CLICK_DEPART] / instance.departure_probabilities[categories]
        )
        click_departed = rng.binomial(drawn[..., :-1], ratio[..., None]).sum(axis=1)
        ends, shown = np.repeat(counts, n_steps, axis=0), np.repeat(categories, n_steps)
        ends[np.arange(len(ends)), shown, CLICK] += np.tile(np.arange(n_steps), len(counts))
        finished.depart(ends, shown, CLICK_DEPART, click_departed.reshape(-1))
        finished.depart(ends, shown, DEPART, (drawn[..., :-1].sum(axis=1) - click_departed).reshape(-1))
        more = drawn[..., -1].any(axis=1)
        counts, users, categories = counts[more], drawn[more, :, -1], categories[more]
        counts[np.arange(len(counts)), categories, CLICK] += n_steps
    return cells
