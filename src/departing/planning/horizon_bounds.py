"""Upper bounds by steps left: of known types, and of users of two types."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from departing.model.counts import Integers
from departing.model.instance import Floats
from departing.planning.certificate import EDGE_POINTS, edge_grid
from departing.planning.problem import PlanningProblem, values_by_steps

MAX_PAIR_BYTES = 2**28  # of the bounds of pairs of types: beyond it, none are used
MAX_PAIR_TYPES = 16  # beyond it, covers by pairs are loose and take longer than nodes
CHUNKS = 8  # parts in which the heaviest type is divided among pairs: more change the bound by less than a percent


@dataclass(frozen=True, eq=False)
class HorizonBounds:
    """Bounds `known[N + 1, M]` of types and `pairs[N + 1, P, grid]` of pairs of types for at most N steps.

    With more steps left than N, `tail[M]` bounds the value of the others. `pair[M, M]` are the rows of the pairs.
    """

    known: Floats
    tail: Floats
    pairs: Floats
    pair: Integers

    @classmethod
    def of(cls, problem: PlanningProblem, occurring: Floats, pairs: bool = True) -> Self:
        """Bounds for the types that `occurring` marks, with pairs of types if that is sensible."""
        known, tail = values_by_steps(problem.reward, problem.click_stay + problem.stay, problem.horizon)
        types, n_types = np.flatnonzero(occurring), len(tail)
        pair = np.zeros((n_types, n_types), np.int64)
        size = len(types) * (len(types) - 1) // 2
        if not pairs or len(types) > MAX_PAIR_TYPES or size * len(known) * (EDGE_POINTS + 1) * 8 > MAX_PAIR_BYTES:
            size = 0
        values = np.zeros((len(known), size, EDGE_POINTS + 1))
        if size:
            from departing.kernels.planning.finite_horizon import pair_bounds

            grid, chosen = edge_grid(), [(x, y) for x in types for y in types if x < y]
            for i, (x, y) in enumerate(chosen):
                pair[x, y] = pair[y, x] = i
                own = np.empty((len(known), len(grid)))
                pair_bounds(problem.reward, problem.click_stay, problem.stay, x, y, grid, known, own)
                values[:, i] = own
        return cls(known, tail, values, pair)

    @cached_property
    def grid(self) -> Floats:
        """Beliefs in the first type of a pair."""
        return edge_grid()

    def upper(self, weights: Floats, left: Integers) -> Floats:
        """Upper bounds `[n]` at `weights[n, M]` with `left[n]` steps left, in plain NumPy.

        The heaviest type is divided among pairs with the others, each part where it gains most. The value is
        sublinear, so the sum of the bounds of the pairs bounds it, however the type is divided.
        """
        last, rows = len(self.known) - 1, np.arange(len(weights))
        m = np.minimum(left, last)
        later = np.where(left > last, weights @ self.tail, 0.0)
        alone = weights * self.known[m]
        if not self.pairs.shape[1]:
            return np.asarray(later + alone.sum(axis=1))
        heaviest = weights.argmax(axis=1)
        top, others = weights[rows, heaviest], weights > 0
        others[rows, heaviest] = False
        n_parts = CHUNKS if weights.shape[1] > 2 else 1
        parts, value = np.zeros(weights.shape), np.where(others, alone, 0.0)
        more = self._joined(weights, m, heaviest, parts + 1 / n_parts)
        unpaired = alone[rows, heaviest] / n_parts
        paired = value.sum(axis=1)
        for _ in range(n_parts):
            gain = np.where(others, more - value, np.inf)
            best = gain.argmin(axis=1)
            joins = gain[rows, best] < unpaired
            paired += np.where(joins, gain[rows, best], unpaired)
            joined, where = rows[joins], best[joins]
            parts[joined, where] += 1 / n_parts
            value[joined, where] = more[joined, where]
            more[joins] = self._joined(weights[joins], m[joins], heaviest[joins], parts[joins] + 1 / n_parts)
        return np.asarray(
            later + np.where((top > 0) & (m > 0), np.minimum(paired, alone.sum(axis=1)), alone.sum(axis=1))
        )

    def _joined(self, weights: Floats, m: Integers, heaviest: Integers, parts: Floats) -> Floats:
        """Bounds `[n, M]` of each type with a part of the heaviest one."""
        n, n_types = weights.shape
        x, y = heaviest[:, None], np.arange(n_types)[None]
        share = parts * weights[np.arange(n), heaviest][:, None]
        first, second = np.where(x < y, share, weights), np.where(x < y, weights, share)
        mass = first + second
        t = np.divide(first, mass, out=np.zeros_like(mass), where=mass > 0)
        j = np.clip(np.searchsorted(self.grid, t.ravel(), side="right").reshape(t.shape) - 1, 0, len(self.grid) - 2)
        f = (t - self.grid[j]) / (self.grid[j + 1] - self.grid[j])
        pair = np.where(x == y, 0, self.pair[x, y])
        low, high = (self.pairs[m[:, None], pair, i] for i in (j, j + 1))
        return np.asarray(mass * (low * (1 - f) + high * f))
