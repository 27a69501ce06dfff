"""`solve_search`: plan by heuristic search, where users stay long with the faces of the belief simplex first."""

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.formatting import format_count
from departing.planning.controller import Controller
from departing.planning.faces import Faces
from departing.planning.problem import Deadline, Limits, PlanningProblem, Solution
from departing.planning.search import MAX_EDGE_TYPES, UNREACHED_VALUE, Search
from departing.policy.alpha import Alpha
from departing.policy.schedule import Fixed

# The search aims at 85 % of the gap, because pruning the controller loses up to a tenth of it. Where that is not
# enough, it aims lower by TIGHTEN and goes on.
AIM, TIGHTEN = 0.85, 0.7
# If the gap is out of reach, pruning the controller may lose this fraction of the gap reached.
UNREACHED_GAP = 0.05
SEARCH_TIME = 0.95  # fraction of the time limit after which the search ends, for the controller
# Faces are searched where users click this often if their types are known, and where this fraction of the time or
# nodes does not close the gap: a plan that takes less time is made as if there were no faces.
LONG_STAY, MIN_TYPES, FIRST_PART = 30.0, 4, 0.1


def solve_search(problem: PlanningProblem, limits: Limits) -> Solution:
    """Plan by `Search`, until the controller extracted from it is within the gap of the upper bound.

    The search aims at a smaller gap, which pruning the controller may use up. The best fixed policy replaces the
    controller where its certified value is at least as large.
    """
    gap, deadline, aim = limits.gap, limits.deadline, AIM * limits.gap
    search_deadline = deadline.until(SEARCH_TIME * deadline.seconds)
    search = Search(problem, search_deadline, limits.progress)
    faces = Faces(search) if limits.faces and _has_long_stays(problem) else None
    while True:
        if faces is None:
            search.run(aim, search_deadline, limits.max_nodes)
        else:
            search = _search_with_faces(search, faces, aim, search_deadline, limits.max_nodes)
        done = search_deadline.expired or not search.can_continue(aim)
        reached, min_value = search.upper - search.lower, search.upper + 2 * search.tolerance - gap
        if done:
            unreached = search.lower - min(UNREACHED_GAP * reached, UNREACHED_VALUE * search.lower)
            min_value = min(min_value, unreached)
        controller = search.controller(max(gap, reached) if done else gap, min_value, deadline)
        lower = max(controller.value(problem.prior) - search.tolerance, 0.0)
        upper = min(search.upper + search.tolerance, problem.known_type_bound)
        if upper - lower <= gap or done:
            break
        aim *= TIGHTEN
    category, _ = problem.best_fixed
    fixed = evaluate(problem.instance, Fixed(category)).lower
    if fixed >= lower:  # also where the allowance for rounding exceeds the gain of the controller
        vectors = problem.instance.fixed_values[[category]]
        controller, lower = Controller(vectors, np.array([category]), np.zeros((1, 2), np.int64), 0), fixed
    n = len(controller.vectors)
    expanded, kept = format_count(search.n_expanded, "node"), format_count(n, "alpha vector")
    claims = [] if faces is None else faces.claims
    n_faces = sum(len(face.types) < problem.instance.n_types for face in claims)
    on_faces = f" and searched {format_count(n_faces, 'face')} of the belief simplex" if claims else ""
    reason = f"Heuristic search expanded {expanded}{on_faces}; the policy has {kept}."
    rest = (lower, max(upper, lower), reason, search.certificate(controller, claims))
    if n == 1:
        fixed_policy = Fixed(int(controller.categories[0]))
        return Solution(fixed_policy, fixed_policy, *rest)
    policy = Alpha(problem.instance, controller.vectors, controller.categories, controller.successor, upper)
    return Solution(policy, controller, *rest)


def _search_with_faces(search: Search, faces: Faces, aim: float, deadline: Deadline, max_nodes: int | None) -> Search:
    """Run a search of all types, then restart it with points of faces unless the gap is reached; return the last."""
    if not faces.expanded:
        nodes = None if max_nodes is None else int(FIRST_PART * max_nodes)
        search.run(aim, deadline.until(FIRST_PART * deadline.seconds), nodes)
        if search.upper - search.lower <= aim or deadline.expired:
            return search
        search = faces.solve(search, deadline, None if max_nodes is None else max_nodes - search.n_expanded)
    search.run(aim, deadline, None if max_nodes is None else max_nodes - faces.expanded)
    return search


def _has_long_stays(problem: PlanningProblem) -> bool:
    """True if users of known types would click often, and there are faces between the edges and all types."""
    few = MIN_TYPES <= problem.instance.n_types <= MAX_EDGE_TYPES
    return few and problem.known_type_bound > LONG_STAY and bool((problem.prior > 0).all())
