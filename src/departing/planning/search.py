"""The general planner: a search through the graph of counts, for any types, categories and departures."""

import numpy as np
import numpy.typing as npt

from departing.kernels.hash_table import insert_keys, key_multipliers
from departing.kernels.planning import search as kernels
from departing.kernels.planning.alpha_vectors import ALWAYS, REPEAT_AFTER_CLICK, REPEAT_AFTER_STAY, Floors
from departing.kernels.planning.sizes import COLUMNS, DEEPEST, EXPANDED, FLOORS, FULL, NODES, POINTS, SIZES, VECTORS
from departing.kernels.planning.trial_backups import practise
from departing.kernels.planning.upper_bound import RANGES, SHORT, Bench, Points, edge
from departing.model.counts import Integers
from departing.model.instance import Floats
from departing.planning.controller import Controller
from departing.planning.memory import MEMORY, grown, key_table, nbytes
from departing.planning.problem import Clock, Problem, Progress

GRID = 256  # beliefs on an edge
EDGE_TOLERANCE = 1e-4  # of the value: how far an edge may be off between the points kept of it
EDGES = 32  # types at most for which edges are solved: there are M (M - 1) / 2 of them
POOL = 4096
PRACTISE_AT = 1500  # expanded nodes, or a fifth of the time, before the first time
OFTEN, SELDOM = 1.2, 2.0  # times as many nodes before the next, if the last was worth it or not
WALKS, WALK = 20, 200  # so many walks at a time, of so many steps at most
WORTH_PRACTISING = 0.01  # of the gap
SPARE = (0.1, 0.03, 0.01)  # of the gap may be given up for a shorter controller; the first that is enough
LOOK = 0.1  # seconds, about, between two looks at the clock
PACE = 5e-3  # seconds for a node, until that is known
Array = npt.NDArray[np.generic]


class Search:
    """The state of a search. `run` makes the bracket narrower, and can be called again."""

    def __init__(self, problem: Problem, clock: Clock, progress: Progress | None = None) -> None:
        self.problem = problem
        self._progress = progress
        self._stuck = False
        self._practise_at = PRACTISE_AT
        self._pace = PACE
        n_types, n_categories = problem.instance.n_types, len(problem.categories)
        self.model = kernels.Model(problem.reward, problem.click, problem.stay, problem.leave)
        self.edges = _solve_edges(problem, clock) if n_types <= EDGES else []
        shown = sum(int(keep.sum()) for *_, keep in self.edges)
        self.size = np.zeros(SIZES, np.int64)
        room = 1024
        self.nodes = _nodes(room, room // 2, n_types, n_categories)
        self.points = _points(n_types + shown + room // 2, n_types, n_categories)
        self.floors = _floors(n_categories + room, n_types)
        self._bench = _bench(n_types, len(self.points.value), len(self.floors.category))
        keys = key_multipliers(2 * n_categories).reshape(n_categories, 2)
        self._room = _room(room, n_types, keys)
        self._add_corners_and_edges()
        self._add_root()

    def _add_corners_and_edges(self) -> None:
        problem, grid = self.problem, edge_grid()
        n_types = problem.instance.n_types
        points = self.points
        known = problem.reward + (problem.click + problem.stay) * problem.best
        n = n_types
        points.at[:n], points.value[:n], points.by_category[:n] = np.eye(n_types), problem.best, known.T
        for x, y, value, by_category, keep in self.edges:
            rows = slice(n, n + int(keep.sum()))
            points.at[rows] = 0.0
            points.at[rows, x], points.at[rows, y] = grid[keep], 1 - grid[keep]
            points.value[rows], points.by_category[rows] = value[keep], by_category[keep]
            n = rows.stop
        points.node[:n], points.slot[:n_types] = -1, -1
        shown = n - n_types
        points.slot[n_types:n], points.owner[:shown] = np.arange(shown), np.arange(n_types, n)
        points.columns[:, :shown], points.values[:shown] = points.at[n_types:n].T, points.value[n_types:n]
        self.size[POINTS], self.size[COLUMNS] = n, shown
        k = len(problem.categories)
        floors = self.floors
        floors.vector[:k], floors.columns[:, :k] = problem.fixed, problem.fixed.T
        floors.category[:k], floors.owner[:k] = range(k), range(k)
        floors.form[:k], floors.after[:k] = ALWAYS, -1
        self.size[VECTORS] = self.size[FLOORS] = k

    def _add_root(self) -> None:
        """The root, covered by the corners."""
        nodes, prior = self.nodes, self.problem.prior
        values = self.problem.fixed @ prior
        nodes.weights[0], nodes.multiplier[0], nodes.cover[0] = prior, prior, range(len(prior))
        nodes.mass[0], nodes.n_cover[0], nodes.slack[0] = 1.0, len(prior), 0.0
        nodes.upper[0], nodes.lower[0], nodes.floor[0] = prior @ self.problem.best, values.max(), values.argmax()
        nodes.depth[0], nodes.key[0], nodes.opened[0], nodes.slot[0] = 0, 0, -1, -1
        self.size[NODES] = 1
        insert_keys(self._room.table, nodes.key, 1)

    @property
    def tolerance(self) -> float:
        """What rounding can have done to either bound."""
        return self.problem.tolerance(int(self.size[DEEPEST]))

    @property
    def lower(self) -> float:
        """The floor of the root, before rounding is allowed for."""
        return float(self.nodes.lower[0])

    @property
    def upper(self) -> float:
        """The ceiling of the root, before rounding is allowed for."""
        return float(self.nodes.upper[0])

    def run(self, gap: float, clock: Clock) -> None:
        """Search until the bracket is narrower than `gap`, or time, memory or digits have run out."""
        while not clock.over:
            wanted = max(gap - 2 * self.tolerance, self.tolerance)
            if self.upper - self.lower <= wanted:
                return
            before = (int(self.size[EXPANDED]), self.upper, self.lower)
            most = max(min(int(LOOK / self._pace), self._practise_at - self.expanded), 1)
            started = clock.passed
            kernels.rounds(
                self.model, self.nodes, self.points, self.floors, self._room, self._bench, self.size, wanted, most
            )
            self._pace = max((clock.passed - started) / max(self.expanded - before[0], 1), 1e-6)
            slow = self._practise_at == PRACTISE_AT and clock.passed > clock.seconds / 5
            if (slow or self.expanded >= self._practise_at) and not self.size[FULL]:
                self._practise_at = int(self.expanded * (OFTEN if self.practise(clock) else SELDOM)) + 1
            if self._progress is not None:
                self._progress(self.lower, self.upper)
            if self.size[FULL]:
                if self._bytes() > MEMORY / 2:
                    self._stuck = True
                    return
                self._grow()
            elif before == (int(self.size[EXPANDED]), self.upper, self.lower):
                self._stuck = True
                return

    def practise(self, clock: Clock) -> bool:
        """Raise the floor far from the root, as long as that closes a good part of the gap; whether it ever did."""
        paid = False
        prior, size = self.problem.prior, self.size
        beliefs = np.empty((WALK, len(prior)))
        while not clock.over and not size[FULL]:
            gap = self.upper - self.lower
            vector = practise(
                self.model, self.floors, self._bench, self._room, size, prior, beliefs, 1e-3 * gap, WALKS
            )
            value = float(self.floors.vector[vector] @ prior)
            gained = value - self.lower
            if gained > 0:
                self.nodes.floor[0], self.nodes.lower[0] = vector, value
            if gained < WORTH_PRACTISING * gap:
                break
            paid = True
        return paid

    def can_go_on(self, gap: float) -> bool:
        """Whether a run for half this gap could still do something."""
        return not self._stuck and gap / 2 > 2 * self.tolerance

    @property
    def expanded(self) -> int:
        """The number of expanded nodes."""
        return int(self.size[EXPANDED])

    def controller(self, gap: float) -> Controller:
        """A controller that keeps the promise of the root's floor, as short as the asked `gap` allows.

        A vector may go on with vectors that have been replaced by newer ones since. With the newer ones, where they
        are as good for those who arrive, there are far fewer states, and they bring about the same or more.
        """
        size = self.size
        if size[VECTORS] + size[NODES] > len(self.floors.category):
            self.floors = grown(self.floors, 2 * int(size[VECTORS] + size[NODES]))
            self._bench = _bench(
                self.problem.instance.n_types, len(self.points.value), len(self.floors.category), self._bench.seen
            )
        root = int(kernels.settle(self.model, self.nodes, self.floors, self._room, size))
        n, floors, problem = int(size[VECTORS]), self.floors, self.problem
        own, form = np.arange(n), floors.form[:n]
        after = np.where(floors.after[:n] < 0, own[:, None], floors.after[:n])
        renewed = self._renewed(after)
        for o, repeating in enumerate((REPEAT_AFTER_CLICK, REPEAT_AFTER_STAY)):
            repeats = (form == ALWAYS) | (form == repeating)
            after[repeats, o] = renewed[repeats, o] = own[repeats]
        categories = problem.categories[floors.category[:n]]
        short = Controller(floors.vector[:n], categories, renewed, root).used().solve(problem.instance)
        least = self.upper + 2 * self.tolerance - gap
        if not short.solved or short.promise(problem) < min(least, self.lower):
            long = Controller(floors.vector[:n], categories, after, root).used().solve(problem.instance)
            if not short.solved or long.promise(problem) > short.promise(problem) + 0.1 * gap:
                return long
        for spare in SPARE:
            shorter = short.pruned(problem, spare * gap)
            if shorter.solved and shorter.promise(problem) >= least:
                return shorter
        return short

    def _renewed(self, after: Integers) -> Integers:
        """`after[n, 2]` with the newest vectors in the place of those that bring no more to those who arrive."""
        floors, n = self.floors, len(after)
        newest = np.where(floors.newer[:n] < 0, np.arange(n), floors.newer[:n])
        while (newest[newest] != newest).any():
            newest = newest[newest]
        weights = self.nodes.weights[np.maximum(floors.node[:n], 0)]
        renewed = after.copy()
        for o, go in enumerate((self.model.click, self.model.stay)):
            arriving = weights * go[floors.category[:n]]
            new = newest[after[:, o]]
            gained = ((floors.vector[new] - floors.vector[after[:, o]]) * arriving).sum(axis=1)
            as_good = (gained >= -1e-12 * (floors.vector[new] * arriving).sum(axis=1)) & (floors.node[:n] >= 0)
            renewed[as_good, o] = new[as_good]
        return renewed

    def _bytes(self) -> int:
        return nbytes(self.nodes, self.points, self.floors, self._bench, self._room)

    def _grow(self) -> None:
        """Double whatever is nearly full."""
        size, nodes, points, floors = self.size, self.nodes, self.points, self.floors
        if size[NODES] * 2 > len(nodes.mass):
            n = 2 * len(nodes.mass)
            old = self._room
            self._room = _room(n, len(old.one), old.step_key)
            self.nodes = nodes = grown(nodes, n, skip=_BY_OPENED)
            insert_keys(self._room.table, nodes.key, size[NODES])
        if size[EXPANDED] * 2 > len(nodes.point):
            self.nodes = grown(nodes, 2 * len(nodes.point), only=_BY_OPENED)
        if size[POINTS] * 2 > len(points.value):
            self.points = points = grown(points, 2 * len(points.value))
        if size[VECTORS] * 2 > len(floors.category):
            self.floors = floors = grown(floors, 2 * len(floors.category))
        self._bench = _bench(self.problem.instance.n_types, len(points.value), len(floors.category), self._bench.seen)
        size[FULL] = 0


_BY_OPENED = {"child", "gain", "bound", "fresh", "point"}


def _nodes(n: int, opened: int, n_types: int, n_categories: int) -> kernels.Nodes:
    def ints(*shape: int) -> npt.NDArray[np.int32]:
        return np.empty(shape, np.int32)

    return kernels.Nodes(
        weights=np.empty((n, n_types)),
        mass=np.empty(n),
        upper=np.empty(n),
        lower=np.empty(n),
        depth=ints(n),
        key=np.empty(n, np.uint64),
        opened=ints(n),
        floor=ints(n),
        slot=ints(n),
        n_cover=ints(n),
        cover=ints(n, n_types),
        multiplier=np.empty((n, n_types)),
        slack=np.empty(n),
        paths=np.zeros(n),
        child=ints(opened, n_categories, 2),
        gain=np.empty((opened, n_categories)),
        bound=np.empty((opened, n_categories)),
        fresh=np.empty((opened, n_categories), np.int64),
        point=ints(opened),
    )


def _points(n: int, n_types: int, n_categories: int) -> Points:
    return Points(
        at=np.empty((n, n_types)),
        value=np.empty(n),
        by_category=np.empty((n, n_categories)),
        node=np.empty(n, np.int32),
        slot=np.empty(n, np.int32),
        columns=np.empty((n_types, n)),
        values=np.empty(n),
        owner=np.empty(n, np.int32),
    )


def _floors(n: int, n_types: int) -> Floors:
    return Floors(
        vector=np.empty((n, n_types)),
        category=np.empty(n, np.int32),
        after=np.empty((n, 2), np.int32),
        form=np.empty(n, np.int8),
        newer=np.full(n, -1, np.int32),
        node=np.full(n, -1, np.int32),
        columns=np.empty((n_types, n)),
        owner=np.empty(n, np.int32),
        zeros=np.zeros(n),
    )


def _room(n: int, n_types: int, step_key: npt.NDArray[np.uint64]) -> kernels.Room:
    return kernels.Room(
        table=key_table(n),
        step_key=step_key,
        reached=np.empty(n, np.int32),
        starts=np.empty(n + 2, np.int64),
        heap_key=np.empty(n),
        heap_node=np.empty(n, np.int32),
        one=np.empty(n_types),
        two=np.empty(n_types),
    )


def _bench(n_types: int, points: int, vectors: int, seen: Array | None = None) -> Bench:
    stamps = np.zeros(points, np.int64)
    if seen is not None:
        stamps[: len(seen)] = seen
    return Bench(
        inverse=np.empty((n_types, n_types)),
        price=np.empty(n_types),
        level=np.empty(n_types),
        column=np.empty(n_types),
        cost=np.empty(n_types),
        basis=np.empty(n_types, np.int64),
        kept=np.empty(n_types, np.int64),
        buffer=np.empty(max(points, vectors, POOL)),
        found=np.empty(RANGES, np.int64),
        reduced=np.empty(RANGES),
        short=np.empty(SHORT, np.int64),
        pool=np.empty(POOL, np.int64),
        columns=np.empty((n_types, POOL)),
        values=np.empty(POOL),
        seen=stamps,
        chosen=np.empty(n_types, np.int64),
        multiplier=np.empty(n_types),
        row=np.empty(n_types),
    )


def edge_grid() -> Floats:
    """Beliefs on an edge, closer together at the ends."""
    grid = 0.5 * (1 - np.cos(np.pi * np.arange(GRID + 1) / GRID))
    grid[-1] = 1.0
    return np.asarray(grid)


Edge = tuple[int, int, Floats, Floats, npt.NDArray[np.bool_]]


def _solve_edges(problem: Problem, clock: Clock) -> list[Edge]:
    """Pairs of types: ceilings on the grid, ceilings by category, and which points to keep.

    The most likely pairs come first, and at most half of the time is spent.
    """
    grid, found = edge_grid(), []
    rates = (problem.reward, problem.click, problem.stay, problem.best)
    likely = [x for x in np.argsort(-problem.prior, kind="stable").tolist() if problem.prior[x] > 0]
    pairs = [sorted((x, y)) for j, y in enumerate(likely) for x in likely[:j]]
    for x, y in pairs:
        value, by_category = np.empty(len(grid)), np.empty((len(grid), len(problem.categories)))
        keep = np.empty(len(grid), np.bool_)
        edge(*rates, x, y, grid, EDGE_TOLERANCE * problem.known, value, by_category, keep)
        found.append((x, y, value, by_category, keep))
        if clock.passed > clock.seconds / 2:
            break
    return found
