"""Integer counts of users pushed through the graph of counts: any number of users for the price of a few."""

import numpy as np

from departing.evaluation.push import Frontier
from departing.model.counts import Integers
from departing.model.histories import Histories
from departing.model.instance import CLICK_DEPART, DEPART, Instance
from departing.policy.protocol import Policy, recommended


def aggregate(
    instance: Instance, policy: Policy, users: int, seed: int, max_steps: int | None, nodes: int | None
) -> Histories | None:
    """The histories of `users` users, with the exact distribution; None if more than `nodes` counts are met.

    The users of one type at one counts are split by binomials: who clicks, which of these depart all the
    same, which of the others depart.
    """
    rng = np.random.default_rng([seed, 1])
    frontier = Frontier(instance, rng.multinomial(users, instance.prior / instance.prior.sum()))
    counts: list[Integers] = []
    multiplicity: list[Integers] = []
    visited = step = 0
    while len(frontier):
        visited += len(frontier)
        if nodes is not None and visited > nodes:
            return None
        if step == max_steps:
            counts.append(frontier.counts)
            multiplicity.append(frontier.weights.sum(axis=1))
            break
        categories = recommended(policy, frontier.counts)
        clicked = rng.binomial(frontier.weights, instance.click[categories])
        last = rng.binomial(clicked, instance.depart_on_click[categories])
        missed = frontier.weights - clicked
        departed = rng.binomial(missed, instance.depart[categories])
        for outcome, leavers in ((DEPART, departed), (CLICK_DEPART, last)):
            rows, times = _leave(frontier.counts, categories, outcome, leavers)
            counts.append(rows)
            multiplicity.append(times)
        frontier.advance(categories, np.stack([clicked - last, missed - departed], axis=1))
        frontier.keep(frontier.weights.any(axis=1))
        step += 1
    return Histories(np.concatenate(counts), np.concatenate(multiplicity))


def _leave(
    counts: Integers, categories: Integers, outcome: int, users: Integers
) -> tuple[Integers, Integers]:
    """The final counts of `users[n, M]` who leave `counts[n, K, 4]` by `outcome`, and how many have each."""
    leaving = users.sum(axis=1)
    rows = np.flatnonzero(leaving)
    final = counts[rows]
    final[np.arange(len(rows)), categories[rows], outcome] += 1
    return final, leaving[rows]
