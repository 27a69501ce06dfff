"""CountLattice: upper bounds, over all policies, of expected clicks plus multiples of divergences."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from departing.evaluation.bounds import ROUNDING
from departing.evaluation.traversal import Booleans
from departing.kernels.hash_table import insert_rows, key_multipliers
from departing.kernels.learning import pricing as kernels
from departing.learning.lower_bound.alternative import Alternative
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance

# Leaves are expanded that cause this share of the slack of a pricing; most leaves cause very little.
EXPANDED_SHARE = 0.9
# Levels below such a leaf that are expanded at once: two more levels cost less than two more pricings.
EXPANDED_LEVELS = 2
# Expansions of one pricing: enough for sure departure, where a policy has one leaf.
MAX_EXPANSIONS = 1000
MAX_COARSE = 400  # nodes of a policy in the search for alternatives, where precision is not needed


@dataclass(frozen=True, eq=False)
class PolicyGraph:
    """Nodes of the lattice that a policy reaches, in the order of steps.

    Attributes
    ----------
    nodes : array [n]
        Indices of the nodes in the lattice.
    number : array [n]
        Histories that lead to each node.
    weights : array [n, M]
        Probability of one of these histories by type.
    expanded : array [n]
        False at leaves, from which on the category is fixed.
    category : array [n]
        Category recommended.
    children : array [n, 2]
        Nodes after a click and after a stay, as indices into `nodes`; -1 if there is none.
    """

    nodes: Integers
    number: Floats
    weights: Floats
    expanded: Booleans
    category: Integers
    children: Integers

    @cached_property
    def coarse(self) -> "PolicyGraph":
        """Graph of at most `MAX_COARSE` nodes around the most frequent ones; where it ends, the category is fixed."""
        if len(self.nodes) <= MAX_COARSE:
            return self
        inner = np.zeros(len(self.nodes), np.bool_)
        inner[np.argsort(-self.number * self.weights.sum(axis=1), kind="stable")[: MAX_COARSE // 2]] = True
        inner[0] = True
        expanded, keep = self.expanded & inner, inner.copy()
        children = self.children[expanded]
        keep[children[children >= 0]] = True
        place = np.cumsum(keep) - 1
        moved = np.where((self.children >= 0) & expanded[:, None], place[self.children], -1)
        weights, category = self.weights[keep], self.category[keep]
        return PolicyGraph(self.nodes[keep], self.number[keep], weights, expanded[keep], category, moved[keep])

    def outcomes(self, priors: Floats, probabilities: Floats, fixed: Floats) -> tuple[Floats, Floats]:
        """Path probabilities `[S, 4 n]` and values `[S]` under S instances; see `policy_outcomes`."""
        paths, values = kernels.policy_outcomes(
            self.expanded, self.category, self.children, priors, probabilities, fixed
        )
        return paths, values


@dataclass(frozen=True, eq=False)
class Pricing:
    """Upper bound of clicks plus divergences, and the policy that attains it with the types known at leaves.

    Attributes
    ----------
    value : float
        Upper bound for every policy, rounding included.
    category : array [nodes]
        Category of the policy at every node of the lattice; at a leaf, that of the best fixed policy.
    leaf_category : array [M]
        Best category from a leaf on if the type is known; empty if the lattice is not certified.
    slack : float
        Estimate of the part of `value` that is due to knowing the types at leaves.
    """

    value: float
    category: Integers
    leaf_category: Integers
    slack: float


class CountLattice:
    """Lattice of the counts of one user, as deep as pricings need it.

    Parameters
    ----------
    instance : Instance
        The true instance.
    max_nodes : int
        No pricing adds nodes beyond this number.
    certified : bool
        If true, types are known at leaves, and prices are upper bounds. Otherwise a leaf keeps the category that is
        best for all types together, and prices are estimates, which are closer on a small lattice.
    """

    _counts: Integers
    child: Integers
    parent: Integers
    step: Integers
    depth: Integers
    expanded: Booleans
    weights: Floats
    click: Floats

    def __init__(self, instance: Instance, max_nodes: int, certified: bool) -> None:
        self.instance, self.max_nodes, self.certified = instance, max_nodes, certified
        k, outcomes = instance.n_categories, instance.outcome_probabilities
        self._here = np.ascontiguousarray(outcomes)
        self._go = np.ascontiguousarray(outcomes[:, [CLICK, STAY]])
        self._possible = (self._go[:, :, instance.prior > 0] > 0).any(axis=2)
        self._multipliers = key_multipliers(2 * k)
        self.size = 0
        self._allocate(1024)
        self.weights[0] = instance.normalised_prior
        self._add(1)
        self._rows: dict[tuple[bytes, ...], tuple[Floats, Floats, Floats, list[int]]] = {}
        self.expand(np.zeros(1, np.int64))

    def _allocate(self, capacity: int) -> None:
        k, m, old = self.instance.n_categories, self.instance.n_types, self.size
        shapes = {"_counts": (2 * k,), "child": (k, 2), "weights": (m,), "click": (k,)}
        types = {"depth": np.int16, "expanded": np.bool_, "weights": np.float64, "click": np.float64}
        for name in ("_counts", "child", "parent", "step", "depth", "expanded", "weights", "click"):
            array: Any = np.full(
                (capacity, *shapes.get(name, ())), -1 if name == "child" else 0, types.get(name, int)
            )
            if old:
                array[:old] = getattr(self, name)[:old]
            setattr(self, name, array)
        self._slots = np.full(4 * capacity, -1, np.int64)
        insert_rows(self._slots, self._counts, max(old, 1), self._multipliers)

    def _add(self, size: int) -> None:
        """Complete the nodes up to `size`."""
        added = slice(self.size, size)
        self.click[added] = self.weights[added] @ self.instance.click.T
        self.size = size
        self.order = np.argsort(-self.depth[:size], kind="stable")

    def expand(self, leaves: Integers) -> None:
        """Expand `leaves`, and with them `EXPANDED_LEVELS` of their descendants."""
        for _ in range(EXPANDED_LEVELS):
            leaves = leaves[~self.expanded[leaves]]
            needed = self.size + len(leaves) * self.child[0].size
            if needed > len(self.parent):
                self._allocate(1 << needed.bit_length())
            row, slots = np.zeros(self._counts.shape[1], np.int64), (self._slots, self._multipliers)
            arrays = (self._counts, self.depth, self.weights, self.parent, self.step, self.child, *slots)
            size = kernels.expand_nodes(leaves, self._go, self._possible, *arrays, self.size, row)
            self.expanded[leaves] = True
            self._add(size)
            children = np.unique(self.child[leaves])
            leaves = children[children >= 0]

    def expand_depth(self, depth: int, max_nodes: int) -> None:
        """Expand all nodes of fewer than `depth` steps, as long as there are at most `max_nodes` nodes."""
        for level in range(depth):
            leaves = np.flatnonzero((self.depth[: self.size] == level) & ~self.expanded[: self.size])
            if self.size + 2 * len(leaves) > max_nodes:
                return
            self.expand(leaves)

    def divergence_tables(self, alternative: Alternative) -> tuple[Floats, Floats]:
        """Step divergences `[n, K]` and tail bounds `[n]` of an alternative at all nodes."""
        n_types, k = alternative.instance.n_types, self.instance.n_categories
        known = self._rows.get(alternative.key)
        if known is None or len(known[2]) < self.size:
            capacity = len(self.parent)
            arrays = np.empty((capacity, n_types)), np.empty((capacity, k)), np.empty(capacity)
            done = [0] if known is None else known[3]
            if known is not None:
                for new, old in zip(arrays, known[:3], strict=True):
                    new[: done[0]] = old[: done[0]]
            self._rows[alternative.key] = known = (*arrays, done)
        belief, divergence, tail, done = known
        if done[0] < self.size:
            model = (self._here, alternative.instance.normalised_prior, alternative.outcome_probabilities)
            types = alternative.matched, alternative.type_divergence, alternative.excess
            tree = self.parent, self.step, self.weights
            kernels.add_divergences(done[0], self.size, *tree, *model, *types, belief, divergence, tail)
            done[0] = self.size
        return divergence[: self.size], tail[: self.size]

    def price(
        self, alternatives: Sequence[Alternative], multipliers: Floats, tolerance: float, expansions: int
    ) -> Pricing:
        """Bound expected clicks plus Σ multiplier × divergence of every policy from above.

        Parameters
        ----------
        alternatives : sequence of Alternative
        multipliers : array [J]
            Clicks per nat, none negative.
        tolerance : float
            Slack, in clicks, below which no more leaves are expanded.
        expansions : int
            Largest number of times that leaves are expanded.

        Returns
        -------
        Pricing
        """
        used = {alternative.key for alternative in alternatives}
        self._rows = {key: row for key, row in self._rows.items() if key in used}
        terms = list(zip(alternatives, multipliers.tolist(), strict=True))
        prices = _Prices(self, terms)
        for attempt in range(expansions + 1):
            n = self.size
            prices.extend()
            leaf = prices.relaxed if self.certified else prices.fixed
            value, category = np.empty(n), prices.category[:n].copy()
            kernels.price(self.order, self.child, self.expanded, prices.reward, leaf, value, category)
            graph = self.graph(category)
            at_leaf = ~graph.expanded
            nodes = graph.nodes[at_leaf]
            slack = graph.number[at_leaf] * (prices.relaxed[nodes] - prices.fixed[nodes])
            total = float(slack.sum())
            if total <= tolerance or attempt == expansions or n >= self.max_nodes:
                break
            largest = np.argsort(-slack, kind="stable")
            enough = int(np.searchsorted(slack[largest].cumsum(), EXPANDED_SHARE * total)) + 1
            room = max((self.max_nodes - n) // self.child[0].size, 1)
            self.expand(nodes[largest[: min(enough, room)]])
        upper = float(value[0]) + self._rounding(float(value[0]), terms)
        return Pricing(upper, category, prices.leaf_category, total)

    def _rounding(self, value: float, terms: list[tuple[Alternative, float]]) -> float:
        """Bound on the rounding error of a pricing, in clicks.

        A weight or a belief at depth d passes through at most (M + 4) d + M roundings, relative to itself: a product
        with a probability of 3 roundings, and the sum of M terms. So the logarithm in the divergence of a step has an
        absolute error of at most 4 ((M + 4) d + M + 8) roundings (two weights, two sums) and fewer than 2048 of its
        own (it is at most 750), which count at every step of a user, times the clicks per nat. Clicks and multiples
        are sums of positive terms with at most as many roundings each.
        """
        types = max([self.instance.n_types, *(each.instance.n_types for each, _ in terms)])
        depth = int(self.depth[: self.size].max())
        roundings = 8 * ((types + 4) * (depth + 2) + 512)
        steps = float((1 / self.instance.departure_probabilities).max())
        return ROUNDING * roundings * (abs(value) + sum(m for _, m in terms) * (1 + steps))

    def counts(self, nodes: Integers) -> Integers:
        """Counts of active users at `nodes[n]`, `[n, K, 4]`."""
        counts = np.zeros((len(nodes), self.instance.n_categories, 4), np.int64)
        counts[..., CLICK : STAY + 1] = self._counts[nodes].reshape(len(nodes), -1, 2)
        return counts

    def graph(self, category: Integers) -> PolicyGraph:
        """Nodes that the policy with this category at every node reaches."""
        n = self.size
        scratch = np.zeros(n), np.empty(n, np.int64)
        nodes, number = kernels.reachable(self.child, self.expanded, category, *scratch)
        children = kernels.graph_children(nodes, self.child, self.expanded, category, scratch[1])
        return PolicyGraph(nodes, number, self.weights[nodes], self.expanded[nodes], category[nodes], children)

    def divergences(self, graph: PolicyGraph, leaf_category: Integers, alternatives: Sequence[Alternative]) -> Floats:
        """Divergence of a policy from every alternative, from leaves on as in `price`, `[J]`."""
        policy = graph.number, graph.weights, graph.expanded, graph.category, graph.children
        result = np.empty(len(alternatives))
        for j, each in enumerate(alternatives):
            model = each.instance.normalised_prior, each.outcome_probabilities
            from_leaf = each.step_divergence / self.instance.departure_probabilities
            tables = each.matched, each.type_divergence, each.excess, from_leaf
            result[j] = kernels.policy_divergences(*policy, self._here, *model, *tables, leaf_category)
        return result

    def clicks_of(self, graph: PolicyGraph, leaf_category: Integers) -> float:
        """Expected clicks of a policy, from leaves on as in `price`."""
        types, inside = np.arange(self.instance.n_types), graph.expanded
        clicks = (graph.weights[inside] * self.instance.click[graph.category[inside]]).sum(axis=1)
        fixed = self.instance.fixed_values
        after = fixed[leaf_category, types] if self.certified else fixed[graph.category[~inside]]
        return float(
            graph.number[inside] @ clicks + graph.number[~inside] @ (graph.weights[~inside] * after).sum(axis=1)
        )

    def weights_under(self, instance: Instance) -> Floats:
        """Probability of one history of every node by type under another instance, `[n, N]`."""
        go = np.ascontiguousarray(instance.outcome_probabilities[:, [CLICK, STAY]])
        weights = np.empty((self.size, instance.n_types))
        kernels.path_weights(self.parent, self.step, instance.normalised_prior, go, weights)
        return weights


class _Prices:
    """Arrays of one pricing for all nodes: `reward[n, K]` of a step; what follows a leaf and the `category` there.

    From a leaf on, `relaxed[n]` is the price with the types known, an upper bound, and `fixed[n]` an estimate for the
    category that is best for all types together.
    """

    def __init__(self, lattice: CountLattice, terms: list[tuple[Alternative, float]]) -> None:
        self._lattice, self._terms, self._done = lattice, terms, 0
        instance = lattice.instance
        steps = instance.click + sum((m * each.step_divergence for each, m in terms), np.zeros(1))
        self._from_leaf = np.asarray(steps / instance.departure_probabilities)  # [K, M], if the type is known
        self.leaf_category = self._from_leaf.argmax(axis=0) if lattice.certified else np.empty(0, np.int64)
        k = instance.n_categories
        self.reward, self.relaxed, self.fixed = np.empty((0, k)), np.empty(0), np.empty(0)
        self.category = np.empty(0, np.int64)

    def extend(self) -> None:
        """Fill the arrays for the nodes that were added to the lattice."""
        lattice, start = self._lattice, self._done
        self._done = size = lattice.size
        capacity = len(lattice.parent)
        if len(self.relaxed) < capacity:
            for name in ("reward", "relaxed", "fixed", "category"):
                old = getattr(self, name)
                new = np.empty((capacity, *old.shape[1:]), old.dtype)
                new[:start] = old[:start]
                setattr(self, name, new)
        added = slice(start, size)
        weights = lattice.weights[added]
        fixed = weights @ self._from_leaf.T
        self.category[added] = fixed.argmax(axis=1)
        self.fixed[added] = fixed.max(axis=1)
        self.relaxed[added] = weights @ self._from_leaf.max(axis=0)
        self.reward[added] = lattice.click[added]
        for each, m in self._terms:
            divergence, tail = lattice.divergence_tables(each)
            self.reward[added] += m * divergence[added]
            self.relaxed[added] += m * tail[added]
