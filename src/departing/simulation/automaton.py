"""A policy as a graph that kernels can follow: one node for every counts that matter."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from departing.evaluation.forward import Frontier
from departing.model.counts import Integers, clicks
from departing.model.instance import CLICK, STAY, Instance
from departing.policy.protocol import Policy, recommended, switch_probability_bounds
from departing.policy.schedule import Schedule

NODES = 2**20


@dataclass(frozen=True)
class Automaton:
    """Nodes with the category to show and the next node after a click and after a stay, `[n]` and `[n, 2]`.

    A node with category -1 is an exit: a user there is followed no further by the graph. `counts[n, K, 4]`
    are counts for which the policy acts as at the node; node 0 is where users start.
    """

    category: Integers
    following: Integers
    counts: Integers

    def table(self, instance: Instance) -> npt.NDArray[np.uint64]:
        """The flat table of states `node * M + type` that `run_lanes` reads."""
        m, nodes = instance.n_types, np.arange(len(self.category))
        states = 4 * (nodes[:, None] * m + np.arange(m))
        table = np.empty((len(nodes), m, 4), np.uint64)
        table[..., :2] = np.where(self.category[:, None, None] < 0, 0, _thresholds(instance)[self.category])
        for outcome in (CLICK, STAY):
            target = 4 * (self.following[:, outcome, None] * m + np.arange(m))
            table[..., 2 + outcome] = (target - states).astype(np.uint64)
        table[..., 2] += np.uint64(2**32)
        return table.reshape(-1)


def _thresholds(instance: Instance) -> npt.NDArray[np.uint64]:
    """`[K, M, 2]`: the 64-bit numbers below which a random word is a click that goes on, and goes on at all.

    The second comes from the chance of leaving, so that this chance is right however small it is.
    """
    click, stay = instance.outcome_probabilities[:, CLICK], instance.outcome_probabilities[:, STAY]
    leaving = np.maximum(np.minimum(instance.departure_probabilities, 1 - 2.0**-53) * 2.0**64, 1.0).astype(np.uint64)
    goes_on = np.where(instance.departure_probabilities < 1, ~leaving + np.uint64(1), np.uint64(0))
    clicks = (np.minimum(click, 1 - 2.0**-53) * 2.0**64).astype(np.uint64)
    return np.stack([np.where(stay > 0, np.minimum(clicks, goes_on), goes_on), goes_on], axis=-1)


def most_nodes(instance: Instance) -> int:
    """How many nodes a graph may have: fewer for large instances, so that it stays small in memory."""
    return min(NODES, max(2**22 // (instance.n_categories + instance.n_types), 1))


def automaton(instance: Instance, policy: Policy, users: int, max_steps: int | None) -> Automaton:
    """The graph of `policy`, cut at `max_steps` and where so few of `users` come that more of it does not pay."""
    if isinstance(policy, Schedule):
        return _line(instance, policy, max_steps)
    rarest = 1e-4
    graph, left = _graph(instance, policy, rarest, max_steps)
    while left * users > len(graph.category) / 10:
        rarest /= 4
        finer, finer_left = _graph(instance, policy, rarest, max_steps)
        if finer_left >= left:  # it became too large
            break
        graph, left = finer, finer_left
    return graph


def counts_like(counts: Integers, clicked: Integers) -> Integers:
    """The `counts[n, K, 4]` of nodes, with so many clicks as users there have: the policy acts as for their own."""
    like = counts.copy()
    extra = clicked - clicks(counts)  # not zero only for schedules, which look at the number of steps alone
    like[:, 0, CLICK] += extra
    like[:, 0, STAY] -= extra
    return like


def _line(instance: Instance, policy: Schedule, max_steps: int | None) -> Automaton:
    """A node for every step of a schedule; the last one loops."""
    prefix = sum(n for _, n in policy.phases)
    length = min(prefix if max_steps is None else max_steps, most_nodes(instance))
    counts = np.zeros((length + 1, instance.n_categories, 4), np.int64)
    counts[:, 0, STAY] = np.arange(length + 1)  # a schedule looks at the number of steps alone
    category = recommended(policy, counts)
    if length < prefix or max_steps is not None:
        category[-1] = -1
    following = np.minimum(np.arange(1, length + 2), length)
    return Automaton(category, np.stack([following, following], axis=1), counts)


def _graph(instance: Instance, policy: Policy, rarest: float, max_steps: int | None) -> tuple[Automaton, float]:
    """A node for every counts that at least the share `rarest` of users meet, and the share that leaves these.

    Settled nodes loop. A graph that becomes too large ends there, and what is open is left.
    """
    frontier, most = Frontier(instance, instance.prior), most_nodes(instance)
    go = instance.outcome_probabilities[:, [CLICK, STAY]]
    categories: list[Integers] = []
    followings: list[Integers] = []
    counts: list[Integers] = []
    first, step, left = 0, 0, 0.0
    while len(frontier):
        here = first + np.arange(len(frontier))
        share = frontier.weights.sum(axis=1)
        follow = (share >= rarest) & (first + len(frontier) <= most or first == 0) & (step != max_steps)
        left += float(share[~follow].sum()) if step != max_steps else 0.0
        category = recommended(policy, frontier.counts)
        category[~follow] = -1
        loops = (
            follow
            & (switch_probability_bounds(policy, frontier.counts, instance) == 0).all(axis=1)
            & (max_steps is None)
        )
        following = np.stack([here, here], axis=1)
        categories.append(category)
        followings.append(following)
        counts.append(frontier.counts)
        moving = follow & ~loops
        first += len(frontier)
        frontier.keep(moving)
        child = frontier.advance(category[moving], frontier.weights[:, None] * go[category[moving]])
        following[moving] = np.where(child < 0, here[moving, None], first + child)
        step += 1
    graph = Automaton(np.concatenate(categories), np.concatenate(followings), np.concatenate(counts))
    return graph, left
