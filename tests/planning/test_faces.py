"""Faces of the belief simplex: tighter bounds for long stays, with the same proof."""

from fractions import Fraction
from unittest.mock import patch

import numpy as np
import pytest

import departing as dp
from departing.planning import solve_search
from departing.planning.faces import Faces, likeliest_faces
from departing.planning.plan import _run, plan_within
from departing.planning.problem import Deadline, Limits, PlanningProblem
from departing.planning.search import Search
from helpers import exact

STICKY = dp.random_instance("sticky", 5, 5, seed=1)


def plan_with_faces(nodes):
    """Plan with faces, limited by nodes and therefore the same on every machine."""
    return _run(PlanningProblem(STICKY), "search", Limits(1e-6, Deadline(np.inf), nodes))


@pytest.fixture(scope="module")
def plan():
    return plan_with_faces(8000)


def test_bounds_from_faces_are_verified_and_agree_with_those_without(plan):
    without = plan_within(PlanningProblem(STICKY), 1e-6, 8000)
    assert without.certificate.faces == []
    assert {len(face.types) for face in plan.certificate.faces} == {3, 4, 5}
    assert max(plan.lower, without.lower) <= min(plan.upper, without.upper)
    assert plan.verify(), plan.verify()


def test_points_on_faces_are_not_below_the_value_of_a_policy(plan):
    """Another plan of the users of a face has a lower bound that no point of the face undercuts."""
    face = plan.certificate.faces[0]
    for p in face.kept[:3]:
        belief = np.zeros(5)
        belief[face.types] = face.points.belief[p]
        other = plan_within(PlanningProblem(STICKY.replace(prior=belief)), 1e-3, 300)
        assert other.lower <= face.points.value[p] + 1e-9


@pytest.mark.parametrize("seed", range(12))
def test_bounds_and_points_of_faces_agree_with_exact_fractions(seed):
    rng = np.random.default_rng(seed)
    last = rng.uniform(0, 0.3, (2, 4)) * (seed % 2)
    favourite = np.array([[1, 1, 0, 0], [0, 0, 1, 1]], bool)
    click = np.where(favourite, rng.uniform(0.5, 0.8, (2, 4)), rng.uniform(0.05, 0.45, (2, 4)))
    instance = dp.Instance(rng.dirichlet(np.ones(4)), click, rng.uniform(0.2, 0.6, (2, 4)), last)
    with patch.multiple(solve_search, LONG_STAY=0.0, FIRST_PART=0.02):
        plan = _run(PlanningProblem(instance), "search", Limits(1e-13, Deadline(np.inf), 600))
    lower, upper = (
        bound / sum(map(Fraction, instance.prior)) for bound in exact.value_bounds(instance, instance.prior, 7)
    )
    assert plan.lower <= upper
    assert lower <= plan.upper
    assert plan.certificate.faces
    assert plan.verify(), plan.verify()
    tolerance = plan.verify().tolerance
    for face in plan.certificate.faces:
        points = face.kept_points(4)
        for belief, value in list(zip(points.belief, points.value, strict=True))[:3]:
            lower, _ = exact.value_bounds(instance, belief, 5)
            assert lower <= value + 100 * tolerance  # beliefs that are unlikely at the prior have larger errors


def test_the_number_of_threads_does_not_change_the_points():
    problem = PlanningProblem(dp.random_instance("sticky", 6, 4, seed=2))
    results = []
    for threads in (1, 3):
        search = Search(problem, Deadline(np.inf))
        search.run(1e-6, Deadline(np.inf), 300)
        faces = Faces(search, threads)
        search = faces.solve(search, Deadline(np.inf), 6000)
        search.run(1e-6, Deadline(np.inf), 500)
        results.append((faces, search))
    (one, first), (three, second) = results
    assert one.expanded == three.expanded
    assert (first.lower, first.upper) == (second.lower, second.upper)
    assert len(one.points.value) > sum(int(edge.keep.sum()) for edge in first.edges)
    for a, b in zip(one.points, three.points, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("types", "categories", "seed"), [(4, 3, 2), (4, 4, 4)])
def test_a_restarted_search_goes_on_after_rounds_that_change_leaves_only(types, categories, seed):
    problem, forever = PlanningProblem(dp.random_instance("sticky", types, categories, seed=seed)), Deadline(np.inf)
    search = Search(problem, forever)
    search.run(1e-6, forever, 4000)
    gap = search.upper - search.lower
    search = Faces(search, 1).solve(search, forever, 0)
    search.run(1e-6, forever, 300)
    assert search.n_expanded >= 300
    assert search.upper - search.lower < gap


def test_the_likeliest_faces_come_first():
    faces = likeliest_faces(np.array([0.1, 0.4, 0.0, 0.3, 0.2]), 3)
    assert [face.tolist() for face in faces] == [[1, 3, 4], [0, 1, 3], [0, 1, 4], [0, 3, 4]]
    many = likeliest_faces(np.arange(1, 41) / 820, 7)
    assert len(many) <= 20_000
    assert many[0].tolist() == list(range(33, 40))


TAMPER = {
    "covers": lambda face: face.nodes.multiplier.__imul__(0.999),
    "leaves": lambda face: face.nodes.upper.__imul__(1 - 1e-6),
    "known types": lambda face: face.points.value[:1].__imul__(1 - 1e-6),
    "categories of expanded nodes": lambda face: face.nodes.q_upper.__imul__(1 - 1e-6),
    "points of nodes": lambda face: face.points.value[-5:].__imul__(1 - 1e-6),
    "weights of children": lambda face: face.nodes.weights[3:].__imul__(1 + 1e-6),
    "points on faces": lambda face: face.points.value[len(face.types) :].__imul__(1 - 1e-9),
}


@pytest.mark.parametrize("claim", TAMPER)
@pytest.mark.parametrize("which", [0, -1])
def test_a_wrong_claim_about_a_face_fails_verification(claim, which):
    plan = plan_with_faces(6000)
    assert plan.verify()
    TAMPER[claim](plan.certificate.faces[which])
    assert not {check.claim: check.holds for check in plan.verify().checks}[claim]


def test_a_point_of_the_search_that_no_face_justifies_fails_verification(plan):
    certificate = plan.certificate
    faces = certificate.faces.copy()
    certificate.faces.pop()
    assert not plan.verify()
    certificate.faces[:] = faces
    assert plan.verify()
