"""Sure departure: the best sequence of categories, found in the lattice of counts of clicks."""

import numpy as np

from departing.evaluation.bounds import ROUNDING
from departing.kernels.hash_table import insert_keys, key_multipliers
from departing.kernels.planning import lattice as kernels
from departing.kernels.planning.lattice import BEST, BEST_THEN, DEEPEST, FULL, NODES, OPEN
from departing.planning.memory import MEMORY, grown, key_table, nbytes
from departing.planning.problem import Clock, Problem, Progress
from departing.policy.schedule import Schedule, simplest_schedule

CHUNK = 256  # nodes made between two looks at the clock, at least


class Lattice:
    """The state of a search for the best walk. `run` makes the bracket narrower, and can be called again."""

    def __init__(self, problem: Problem, progress: Progress | None = None) -> None:
        self.problem = problem
        self._progress = progress
        self.hope = problem.reward + problem.click * problem.best
        n, n_types, k = 1024, problem.instance.n_types, len(problem.categories)
        self.size = np.zeros(kernels.SIZES, np.int64)
        self.steps = kernels.Steps(
            weights=np.zeros((n, n_types)),
            gained=np.zeros(n),
            parent=np.full(n, -1, np.int32),
            category=np.full(n, -1, np.int32),
            depth=np.zeros(n, np.int32),
            key=np.zeros(n, np.uint64),
            ceiling=np.empty((n, k)),
        )
        self.steps.weights[0] = problem.prior
        keys = key_multipliers(k)
        self._queue = kernels.Queue(np.empty(n), np.empty(n, np.int32), key_table(n), keys)
        insert_keys(self._queue.table, self.steps.key, 1)
        self.lower = -np.inf

    @property
    def made(self) -> int:
        """The number of nodes."""
        return int(self.size[NODES])

    @property
    def slack(self) -> float:
        """A bound on the relative rounding of the ceiling: sums of products of as many factors as steps."""
        return ROUNDING * (64 + 4 * self.problem.instance.n_types + 8 * int(self.size[DEEPEST]))

    @property
    def upper(self) -> float:
        """What no sequence of categories can surpass."""
        top = float(self._queue.bound[0]) if self.size[OPEN] else self.lower
        return max(top, self.lower) * (1 + self.slack)

    def run(self, gap: float, clock: Clock) -> None:
        """Search until the bracket is narrower than `gap`, or time, memory or digits have run out."""
        while True:
            before = int(self.size[NODES])
            wanted = max(gap - 4 * self.slack * max(self.lower, 0.0), 0.0)
            self.lower = kernels.walk(
                self.problem.reward,
                self.problem.click,
                self.problem.fixed,
                self.hope,
                self.steps,
                self._queue,
                self.size,
                self.lower,
                wanted,
                CHUNK + before // 4,
            )
            if self._progress is not None:
                self._progress(self.lower, self.upper)
            top = self._queue.bound[0] if self.size[OPEN] else -np.inf
            if top <= self.lower + wanted or clock.over:
                return
            if self.size[FULL]:
                if nbytes(self.steps, self._queue) > MEMORY / 2:
                    return
                n = 2 * len(self.steps.gained)
                self.steps = grown(self.steps, n)
                queue = grown(self._queue, n, only={"bound", "node"})
                self._queue = queue._replace(table=key_table(n))
                insert_keys(self._queue.table, self.steps.key, int(self.size[NODES]))
                self.size[FULL] = 0

    def policy(self) -> Schedule:
        """The best walk found, as the plainest policy that makes it."""
        categories: list[int] = []
        node, then = int(self.size[BEST]), int(self.problem.categories[self.size[BEST_THEN]])
        while node > 0:
            categories.append(int(self.problem.categories[self.steps.category[node]]))
            node = int(self.steps.parent[node])
        return simplest_schedule(categories[::-1], then)
