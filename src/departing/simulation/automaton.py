"""Automaton of a policy: a finite-state machine, one state for every counts that matter, that kernels follow."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from departing.evaluation.traversal import first_level, traverse
from departing.model.counts import Integers, clicks
from departing.model.instance import CLICK, STAY, Instance
from departing.policy.protocol import Policy, recommended
from departing.policy.schedule import Schedule

# States of an automaton: bounds its memory (8 bytes for each of 4 K + 3 numbers) and the time to build it.
MAX_NODES = 2**20
# Nodes times categories plus types: bounds counts and tables (32 bytes for each) at 128 MB.
MAX_NUMBERS = 2**22
# Share of users below which counts are left out at first; refined by REFINEMENT until exits cost less than building.
RAREST_SHARE, REFINEMENT = 1e-4, 4


@dataclass(frozen=True)
class Automaton:
    """Nodes with the category to recommend, `[n]`, and the next node after a click and after a stay, `[n, 2]`.

    A node with category -1 is an exit: users there are not followed further by the automaton. `counts[n, K, 4]` are
    counts for which the policy acts as at the node. Users start at node 0.
    """

    category: Integers
    following: Integers
    counts: Integers

    def table(self, instance: Instance) -> npt.NDArray[np.uint64]:
        """Flat table of the states `node * M + type` that `run_lanes` reads."""
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
    """Thresholds `[K, M, 2]`: a random 64-bit word below the first is a click, below the second no departure.

    The second is computed from the departure probability, so that this is accurate however small it is.
    """
    click, stay = instance.outcome_probabilities[:, CLICK], instance.outcome_probabilities[:, STAY]
    leaving = np.maximum(np.minimum(instance.departure_probabilities, 1 - 2.0**-53) * 2.0**64, 1.0).astype(np.uint64)
    goes_on = np.where(instance.departure_probabilities < 1, ~leaving + np.uint64(1), np.uint64(0))
    clicks = (np.minimum(click, 1 - 2.0**-53) * 2.0**64).astype(np.uint64)
    return np.stack([np.where(stay > 0, np.minimum(clicks, goes_on), goes_on), goes_on], axis=-1)


def max_nodes(instance: Instance) -> int:
    """Largest number of nodes: fewer for large instances, so that the tables stay small in memory."""
    return min(MAX_NODES, max(MAX_NUMBERS // (instance.n_categories + instance.n_types), 1))


def automaton(instance: Instance, policy: Policy, users: int, max_steps: int | None) -> Automaton:
    """Build the automaton of `policy`, with exits at `max_steps` and where more nodes would not pay for `users`."""
    if isinstance(policy, Schedule):
        return _schedule_automaton(instance, policy, max_steps)
    rarest = RAREST_SHARE
    graph, left = _count_automaton(instance, policy, rarest, max_steps)
    while left * users > len(graph.category) / 10:  # a user at an exit costs about as much as ten nodes
        rarest /= REFINEMENT
        finer, finer_left = _count_automaton(instance, policy, rarest, max_steps)
        if finer_left >= left:  # it became too large
            break
        graph, left = finer, finer_left
    return graph


def counts_like(counts: Integers, clicked: Integers) -> Integers:
    """Counts `[n, K, 4]` of nodes with as many clicks as the users there: the policy acts as for their own counts."""
    like = counts.copy()
    extra = clicked - clicks(counts)  # nonzero only for schedules, which depend on the number of steps only
    like[:, 0, CLICK] += extra
    like[:, 0, STAY] -= extra
    return like


def _schedule_automaton(instance: Instance, policy: Schedule, max_steps: int | None) -> Automaton:
    """Automaton with a node for every step of a schedule; the last one loops."""
    prefix = sum(n for _, n in policy.phases)
    length = min(prefix if max_steps is None else max_steps, max_nodes(instance))
    counts = np.zeros((length + 1, instance.n_categories, 4), np.int64)
    counts[:, 0, STAY] = np.arange(length + 1)  # a schedule depends on the number of steps only
    category = recommended(policy, counts)
    if length < prefix or max_steps is not None:
        category[-1] = -1
    following = np.minimum(np.arange(1, length + 2), length)
    return Automaton(category, np.stack([following, following], axis=1), counts)


def _count_automaton(
    instance: Instance, policy: Policy, rarest: float, max_steps: int | None
) -> tuple[Automaton, float]:
    """Automaton of all counts that at least a share `rarest` of users reach, and the share of users at its exits.

    Nodes from which the category never changes loop. An automaton that becomes too large has exits from there on.
    """
    most = max_nodes(instance)
    categories: list[Integers] = []
    followings: list[Integers] = []
    counts: list[Integers] = []
    first, left = 0, 0.0
    for level in traverse(first_level(instance, policy, instance.prior)):
        nodes, last = first + np.arange(len(level)), level.step == max_steps
        share = level.weights.sum(axis=1)
        follow = (share >= rarest) & (first + len(level) <= most or first == 0) & (not last)
        left += 0.0 if last else float(share[~follow].sum())
        loops = follow & (level.switch_bounds == 0).all(axis=1) & (max_steps is None)
        following = np.stack([nodes, nodes], axis=1)
        categories.append(np.where(follow, level.categories, -1))
        followings.append(following)
        counts.append(level.counts)
        moving = follow & ~loops
        first += len(level)
        level.keep(moving)
        following[moving] = np.where(level.child < 0, nodes[moving, None], first + level.child)
    graph = Automaton(np.concatenate(categories), np.concatenate(followings), np.concatenate(counts))
    return graph, left
