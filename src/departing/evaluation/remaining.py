"""Expected remaining clicks, or reward, of users with given counts under a policy."""

from dataclasses import dataclass

import numpy as np

from departing.evaluation.closed_form import schedule_values
from departing.evaluation.horizon import RemainingValues
from departing.model.belief import log_weights, posterior
from departing.model.counts import Integers, hash_rows, steps
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.policy.alpha import Alpha
from departing.policy.protocol import Policy, recommended, switch_probability_bounds
from departing.policy.schedule import Schedule

# Nodes expanded at most, times the number of categories: some seconds of work, and well below 1 GB.
MAX_NODES = 10**7
# The tolerance of single nodes starts coarse, so that few nodes give first bounds, and decreases by a factor until
# the gap is reached. The number of nodes about doubles each time, so that the last pass is half of the work.
FIRST_TOLERANCE, TOLERANCE_STEP = 100.0, 10.0


@dataclass(frozen=True)
class RemainingClicks:
    """Expected remaining reward `values[n]`, clicks by default, and bounds that contain the exact ones."""

    values: Floats
    lower: Floats
    upper: Floats


def remaining_clicks(
    instance: Instance, policy: Policy, counts: Integers, gap: float, max_nodes: int | None = None
) -> RemainingClicks:
    """Compute the expected reward, clicks by default, from now on of active users with given counts.

    After the last step of the horizon it is 0. Schedules have a closed form. Every other policy is followed through
    the count graph, from all counts at once, until the bounds of each are at most `gap` apart.

    Parameters
    ----------
    instance : Instance
        Users and categories. Of an instance with segments the common prior is used: pass `instance.in_segment(name)`
        and the policy of the segment.
    policy : Policy
        Policy whose categories are indices into those of the instance.
    counts : int array [n, K, 4]
        Counts without departures that have a positive probability under the instance.
    gap : float
        Largest difference of the bounds, in the unit of the value.
    max_nodes : int, optional
        Largest number of nodes to expand. Then the bounds reached so far are returned.
        [default: 10⁷ divided by the number of categories]

    Returns
    -------
    RemainingClicks
    """
    if isinstance(policy, Schedule):
        return _of_schedule(instance, policy, counts)
    budget = MAX_NODES // instance.n_categories + 1 if max_nodes is None else max_nodes
    best = np.stack([np.zeros(len(counts)), np.zeros(len(counts)), np.full(len(counts), np.inf)])
    rows, tolerance = np.arange(len(counts)), FIRST_TOLERANCE * gap
    while len(rows):
        graph = _Graph(instance, policy, counts[rows], tolerance, budget)
        results, budget = graph.root_values(), budget - graph.expanded
        narrower = results[2] - results[1] < best[2, rows] - best[1, rows]  # not everywhere if nodes ran out
        best[:, rows[narrower]] = results[:, narrower]
        rows, tolerance = rows[best[2, rows] - best[1, rows] > gap], tolerance / TOLERANCE_STEP
        if budget <= 0:
            break
    return RemainingClicks(*best)


def _of_schedule(instance: Instance, policy: Schedule, counts: Integers) -> RemainingClicks:
    """Closed form: the values depend on the number of steps and the belief only."""
    last = sum(n for _, n in policy.phases)
    if instance.horizon is not None:
        last = instance.horizon
    made, row = np.unique(np.minimum(steps(counts), last), return_inverse=True)
    bounds = np.array([schedule_values(instance, policy, int(step)) for step in made]).reshape(
        -1, 2, instance.n_types
    )
    beliefs = posterior(log_weights(instance, counts), instance.prior)
    lower, upper = (np.einsum("nx,nx->n", beliefs, bounds[row, end]) for end in (0, 1))
    return RemainingClicks((lower + upper) / 2, lower, upper)


class _Level:
    """Nodes of one number of steps: their estimates and bounds `values[3, n]`, and where they are expanded, children.

    `reach[n]` is the largest probability with which a user at one of the roots reaches the node.
    """

    def __init__(
        self,
        instance: Instance,
        policy: Policy,
        counts: Integers,
        reach: Floats,
        remaining: RemainingValues,
        step: int,
    ) -> None:
        self.counts, self.reach = counts, reach
        self.categories = recommended(policy, counts)
        self.beliefs = posterior(log_weights(instance, counts), instance.prior)
        switch = switch_probability_bounds(policy, counts, instance) * self.beliefs
        (worst, best), fixed = remaining.limits(step), remaining.fixed(step)
        staying = ((self.beliefs - switch) * fixed[self.categories]).sum(axis=1)
        lower, upper = staying + switch @ worst, staying + switch @ best
        if isinstance(policy, Alpha) and instance.horizon is None and policy.instance == instance:
            estimate = policy.value(self.beliefs)  # that of the best vector, usually close
        else:
            estimate = (self.beliefs * fixed[self.categories]).sum(axis=1)
        self.values = np.stack([np.clip(estimate, lower, upper), lower, upper])
        self.rows = np.empty(0, np.int64)
        self.child = np.empty((0, 2), np.int64)
        self.transition = np.empty((0, 3))

    @property
    def widths(self) -> Floats:
        return np.asarray(self.values[2] - self.values[1])

    def expand(self, instance: Instance, rows: Integers) -> tuple[Integers, Floats]:
        """Expand these rows; return the counts of the children and their reach."""
        from departing.kernels.evaluation.count_graph import expand

        shown = self.categories[rows]
        probabilities = instance.outcome_probabilities[shown][:, [CLICK, STAY]]
        outcomes = np.einsum("nox,nx->no", probabilities, self.beliefs[rows])
        gained = (instance.expected_reward[shown] * self.beliefs[rows]).sum(axis=1)
        reachable = (instance.outcome_probabilities[:, [CLICK, STAY]] > 0).any(axis=2)
        child, counts = expand(self.counts[rows], shown, reachable)
        self.rows, self.child, self.transition = rows, child, np.column_stack([gained, outcomes])
        reach = np.zeros(len(counts) + 1)  # the last entry takes the outcomes of probability 0
        np.maximum.at(reach, child, self.reach[rows, None] * outcomes)
        return counts, reach[:-1]

    def forget(self) -> None:
        """Drop what the backward pass does not need."""
        del self.counts, self.beliefs, self.categories, self.reach


class _Graph:
    """Count graph from all roots forward, level by level, until `reach` times the width of a node is negligible."""

    def __init__(
        self, instance: Instance, policy: Policy, counts: Integers, tolerance: float, max_nodes: int
    ) -> None:
        self.instance, self.policy, self.expanded = instance, policy, 0
        made = steps(counts)
        self.first, last = int(made.min()), int(made.max())
        self.n_roots, self.levels = len(counts), list[_Level]()
        self.root_rows = list[tuple[Integers, Integers]]()  # per level: roots, and their rows of the level
        arrived, reach, step, remaining = counts[:0], np.zeros(0), self.first, RemainingValues(instance)
        while len(arrived) or step <= last:
            roots = np.flatnonzero(made == step) if step <= last else np.empty(0, np.int64)
            nodes, reach, row = _join(arrived, reach, counts[roots])
            level = _Level(instance, policy, nodes, reach, remaining, step)
            follow = np.flatnonzero(level.reach * level.widths > tolerance)
            follow = follow[: max(max_nodes - self.expanded, 0)]
            arrived, reach = level.expand(instance, follow) if len(follow) else (counts[:0], np.zeros(0))
            level.forget()
            self.expanded += len(follow)
            self.levels.append(level)
            self.root_rows.append((roots, row))
            step += 1

    def root_values(self) -> Floats:
        """Estimates and bounds at the roots, `[3, n]`, computed backward."""
        results, following = np.empty((3, self.n_roots)), np.zeros((3, 0))
        for level, (roots, row) in zip(reversed(self.levels), reversed(self.root_rows), strict=True):
            if len(level.rows):
                ahead = np.concatenate([following, np.zeros((3, 1))], axis=1)[:, level.child]
                gained, outcomes = level.transition[:, 0], level.transition[:, 1:]
                level.values[:, level.rows] = gained + (outcomes * ahead).sum(axis=2)
            results[:, roots] = level.values[:, row]
            following = level.values
        return results


def _join(arrived: Integers, reach: Floats, roots: Integers) -> tuple[Integers, Floats, Integers]:
    """Append the roots to the distinct counts that arrived; return all, their reach, and the rows of the roots."""
    if not len(roots):
        return arrived, reach, np.empty(0, np.int64)
    n, both = len(arrived), np.concatenate([arrived, roots])
    _, first, inverse = np.unique(hash_rows(both), return_index=True, return_inverse=True)
    added = first[first >= n]
    place = np.where(first < n, first, n + np.cumsum(first >= n) - 1)
    rows = place[inverse[n:]]
    reach = np.concatenate([reach, np.ones(len(added))])
    reach[rows] = 1.0
    return np.concatenate([arrived, both[added]]), reach, rows
