"""Integer counts of users pushed through the graph of counts: any number of users for the price of a few."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from departing.evaluation.forward import Frontier
from departing.model.counts import Integers, merge
from departing.model.histories import Histories
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Instance
from departing.policy.protocol import Policy, recommended, switch_probability_bounds
from departing.simulation.reference import deal_types
from departing.simulation.run import Progress

TAIL = 1e-4
Tell = Callable[
    [Integers, Integers, Integers], None
]  # counts[n, K, 4], categories[n], how many in each outcome[n, 4]


@dataclass
class Gone:
    """The final counts of users, and how many have each."""

    counts: list[Integers] = field(default_factory=list)
    users: list[Integers] = field(default_factory=list)
    repeat: bool = False  # whether counts may stand in more than one row

    def add(self, counts: Integers, users: Integers) -> None:
        """Add `users[n]` who end with `counts[n, K, 4]`, where there are any."""
        rows = users > 0
        if rows.any():
            self.counts.append(counts[rows])
            self.users.append(users[rows])

    def depart(self, counts: Integers, categories: Integers, outcome: int, users: Integers) -> None:
        """Add `users[n]` who leave `counts[n, K, 4]` by `outcome` of `categories[n]`."""
        final = counts.copy()
        final[np.arange(len(counts)), categories, outcome] += 1
        self.add(final, users)

    def histories(self) -> Histories:
        """All of them, every counts once."""
        counts, users = np.concatenate(self.counts), np.concatenate(self.users)
        return Histories(*merge(counts, users)) if self.repeat else Histories(counts, users)


def aggregate(
    instance: Instance,
    policy: Policy,
    users: int,
    rng: np.random.Generator,
    max_steps: int | None,
    nodes: int,
    effort: float,
    progress: Progress,
    tell: Tell | None = None,
    told_steps: int | None = None,
) -> Histories | None:
    """The histories of `users` users, with the exact distribution.

    None if more than `nodes` counts are met, or before the end it takes the `effort` of so many counts. A learner is
    told of the first `told_steps` steps of all users, of all their steps if that is None.
    The users of one type at one counts are split by binomials: who clicks, which of these depart all the
    same, which of the others depart.
    """
    frontier = Frontier(instance, deal_types(instance, users, rng))
    gone, visited, step = Gone(), 0, 0
    sure = (instance.outcome_probabilities[:, STAY] == 0).all(axis=1)
    here = users
    while True:
        visited += len(frontier)
        # A level costs as much as about thirty counts, however few it has.
        if visited > nodes or (len(frontier) and visited + 30 * step > effort):
            progress(here - users)  # take back what was reported: another engine starts over
            return None
        if not len(frontier):
            break
        if step == max_steps:
            gone.add(frontier.counts, frontier.weights.sum(axis=1))
            break
        categories = recommended(policy, frontier.counts)
        telling = tell is not None and (told_steps is None or step < told_steps)
        if max_steps is None and sure.any() and not telling:
            chain = sure[categories] & (switch_probability_bounds(policy, frontier.counts, instance) == 0).all(axis=1)
            visited += _play_chains(instance, frontier, categories, chain, rng, gone, nodes)
            categories = categories[~chain]
        clicked = rng.binomial(frontier.weights, instance.click[categories])
        last = rng.binomial(clicked, instance.depart_on_click[categories])
        missed = frontier.weights - clicked
        departed = rng.binomial(missed, instance.depart[categories])
        outcomes = np.stack([clicked - last, missed - departed, departed, last], axis=1)
        totals = outcomes.sum(axis=2)
        if tell is not None and telling:
            tell(frontier.counts, categories, totals)
        gone.depart(frontier.counts, categories, DEPART, totals[:, DEPART])
        gone.depart(frontier.counts, categories, CLICK_DEPART, totals[:, CLICK_DEPART])
        frontier.advance(categories, np.ascontiguousarray(outcomes[:, : STAY + 1]))
        frontier.keep(frontier.weights.sum(axis=1) > 0)
        step, before, here = step + 1, here, int(frontier.weights.sum())
        progress(before - here)
    progress(here)
    return gone.histories()


def _play_chains(
    instance: Instance,
    frontier: Frontier,
    categories: Integers,
    chain: npt.NDArray[np.bool_],
    rng: np.random.Generator,
    gone: Gone,
    nodes: int,
) -> int:
    """Play the rows of `chain` to the end and take them off the frontier.

    These users see one category for ever and stay only by clicking, so the number of clicks before they
    leave is geometric: many steps are drawn as one multinomial, and those beyond it start again from there.
    Returns how many counts were met, and stops if these are more than `nodes`.
    """
    cells = 0
    counts, users, categories = frontier.counts[chain], frontier.weights[chain], categories[chain]
    frontier.keep(~chain)
    while len(users):
        here = np.where(users > 0, instance.outcome_probabilities[categories, CLICK], 0.0)
        n_steps = int(np.clip(np.log(TAIL) / np.log(max(here.max(), TAIL)), 1, 1000))
        cells += users.size * n_steps
        if cells > nodes:
            return cells
        survival = here[..., None] ** np.arange(n_steps + 1)
        leaving = survival[..., :-1] * (1 - here[..., None])
        # Backwards: the last cell takes what is left after rounding, so it must not be a rare one.
        drawn = rng.multinomial(users, np.concatenate([survival[..., -1:], leaving[..., ::-1]], axis=-1))[..., ::-1]
        ratio = (
            instance.outcome_probabilities[categories, CLICK_DEPART] / instance.departure_probabilities[categories]
        )
        last = rng.binomial(drawn[..., :-1], ratio[..., None]).sum(axis=1)
        final = np.repeat(counts, n_steps, axis=0)
        shown = np.repeat(categories, n_steps)
        final[np.arange(len(final)), shown, CLICK] += np.tile(np.arange(n_steps), len(counts))
        gone.depart(final, shown, CLICK_DEPART, last.reshape(-1))
        gone.depart(final, shown, DEPART, (drawn[..., :-1].sum(axis=1) - last).reshape(-1))
        gone.repeat |= len(counts) > 1
        more = drawn[..., -1].any(axis=1)
        counts, users, categories = counts[more], drawn[more, :, -1], categories[more]
        counts[np.arange(len(counts)), categories, CLICK] += n_steps
    return cells
