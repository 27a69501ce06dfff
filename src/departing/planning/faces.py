"""Faces of the belief simplex: upper bounds for users of few types, which tighten those for users of all types.

A face is a set of types. A search from the prior restricted to it yields belief points with only these types, by
small linear programmes. The faces of three types use the edges, those of four types the faces of three, and so on.
Where users stay long, beliefs move slowly, and bounds interpolated between the corners and edges are loose.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations
from math import comb

import numpy as np

from departing.kernels.cores import available_cores
from departing.model.counts import Booleans, Integers
from departing.model.instance import Floats
from departing.planning.certificate import FaceClaims, PointClaims
from departing.planning.memory import MAX_BYTES, nbytes
from departing.planning.problem import Deadline, PlanningProblem
from departing.planning.search import Search

FACE_TIME = 0.6  # fraction of the time, or of the nodes, for faces; equal parts for each number of types
MAX_TYPES = 7  # types of a face: of larger faces, which take longer, too few can be searched in a minute
FACE_NODES = 1000  # nodes expanded on a face at most: another face is then worth more
MIN_FACE_NODES = 50  # least limit on the nodes of a face that tightens anything
UNLIMITED = 2**60
# Fractions of the gap at the root: gap that ends the search of a face, and what a point must gain over earlier ones.
FACE_GAP, POINT_GAIN = 0.035, 0.012
# With few types and much time all faces are searched long before it is up. Each is then searched further, by these
# factors of nodes and fractions of the gap: with 5 types and 10 categories half the gap after 60 s, but twice as much
# after 12 s.
FEW_TYPES, MUCH_TIME, MORE_NODES, FINER = 5, 30.0, 8, 0.28
MAX_FACES = 20_000  # faces of one size: more than a plan of an hour can search
BATCH = 8  # faces searched between two checks of the limits: a fixed number, whatever the number of threads


class Faces:
    """Belief points of a search and of faces, and the claims that justify them.

    `points` are those of the edges and of all faces so far, `claims` those faces; `expanded` counts nodes.
    """

    def __init__(self, search: Search, threads: int | None = None) -> None:
        self.problem, self.points, self.claims = search.problem, search.known, list[FaceClaims]()
        self.expanded, self._bytes, self._threads = 0, 0, threads or available_cores()
        self._face_nodes, self._scale = FACE_NODES, 1.0

    def solve(self, search: Search, deadline: Deadline, max_nodes: int | None = None) -> Search:
        """Search faces within shares of the time or nodes, and restart a search of all types with their points."""
        with deadline.paused():  # compilation
            Search(self.problem, deadline, known=self.points).root_cover()
        self.expanded += search.n_expanded
        n_types, known = self.problem.instance.n_types, np.arange(len(self.points.value))
        if n_types <= FEW_TYPES and max_nodes is None and deadline.seconds >= MUCH_TIME:
            self._face_nodes, self._scale = MORE_NODES * FACE_NODES, FINER
        sizes, started = range(3, min(n_types, MAX_TYPES + 1)), deadline.elapsed
        with ThreadPoolExecutor(self._threads) as pool:
            for i, size in enumerate(sizes):
                used = FACE_TIME * (i + 1) / len(sizes)
                part = deadline.until(started + used * (deadline.seconds - started))
                nodes = UNLIMITED if max_nodes is None else int(FACE_TIME * max_nodes / len(sizes))
                self._solve_size(size, search.lower, part, nodes, pool)
        self._keep([_claims(search, np.arange(n_types), known, self._scale * (search.upper - search.lower))])
        return search.restarted(self.points, max((face.depth for face in self.claims), default=0))

    def _solve_size(
        self, size: int, lower: float, deadline: Deadline, max_nodes: int, pool: ThreadPoolExecutor
    ) -> None:
        """Search the faces of `size` types, the most likely first; none uses the points of another."""
        gap = self._scale * (Search(self.problem, deadline, known=self.points).root_cover() - lower)
        known, support = self.points, self.points.belief > 0
        faces, found = likeliest_faces(self.problem.prior, size), list[FaceClaims]()
        for first in range(0, len(faces), BATCH):
            most = min(self._face_nodes, max_nodes // BATCH)
            if deadline.expired or most < MIN_FACE_NODES or self._bytes > MAX_BYTES / 2:
                break
            given = (self.problem, known, support, gap, deadline, most)
            for claims, expanded in pool.map(partial(solve_face, *given), faces[first : first + BATCH]):
                self.expanded, max_nodes = self.expanded + expanded, max_nodes - expanded
                found.append(claims)
                self._bytes += nbytes(claims.nodes, claims.points)
        self._keep(found)

    def _keep(self, found: list[FaceClaims]) -> None:
        """Add the faces with their points; those without points justify nothing."""
        found = [face for face in found if len(face.kept)]
        kept = [face.kept_points(self.problem.instance.n_types) for face in found]
        self.points = PointClaims(*(np.concatenate(arrays) for arrays in zip(self.points, *kept, strict=True)))
        self.claims += found


def likeliest_faces(prior: Floats, size: int) -> list[Integers]:
    """Sets of `size` types, those of largest prior probability first, among the likeliest types."""
    likely = [int(x) for x in np.argsort(-prior, kind="stable") if prior[x] > 0]
    while comb(len(likely), size) > MAX_FACES:
        likely.pop()
    faces = np.array(list(combinations(sorted(likely), size)), np.int64)
    return list(faces[np.argsort(-prior[faces].prod(axis=1), kind="stable")])


def solve_face(
    problem: PlanningProblem,
    known: PointClaims,
    support: Booleans,
    gap: float,
    deadline: Deadline,
    max_nodes: int,
    types: Integers,
) -> tuple[FaceClaims, int]:
    """Search from the prior restricted to `types`; return its claims, and the number of nodes expanded.

    `support[n, M]` marks the types of the known points; `gap` is that of the whole problem, or a fraction of it.
    """
    inside = np.flatnonzero(~np.delete(support, types, axis=1).any(axis=1))
    given = PointClaims(known.belief[inside][:, types], known.value[inside], known.q_upper[inside])
    search = Search(problem.face(types), deadline, known=given, trials=False)
    search.run(FACE_GAP * gap, deadline, max_nodes)
    return _claims(search, types, inside, gap), search.n_expanded


def _claims(search: Search, types: Integers, known: Integers, gap: float) -> FaceClaims:
    """Claims of a search of these types with the points `known`, and the points worth keeping."""
    return FaceClaims(types, *search.claims(), known, search.useful_points(POINT_GAIN * gap), search.depth)
