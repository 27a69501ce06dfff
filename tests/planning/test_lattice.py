from fractions import Fraction

import numpy as np
import pytest
from benchmarks.recorded import sure
from hypothesis import assume, given

import departing as dp
from departing.planning.lattice import LatticeSearch
from departing.planning.problem import Deadline, PlanningProblem
from helpers import exact
from helpers.strategies import PROBABILITIES, instances

PRIOR = [Fraction(73, 100), Fraction(27, 100)]
CLICK = [[Fraction(n, 100) for n in row] for row in ([52, 73], [35, 82], [42, 80])]


def test_the_two_category_conjecture_is_false_in_exact_fractions():
    """No policy of two categories attains the value of the best of three: theory, section 3.2."""
    walk = [0, 2]
    value, weights = Fraction(0), list(PRIOR)
    for a in walk:
        weights = [w * CLICK[a][x] for x, w in enumerate(weights)]
        value += sum(weights)
    value += sum(w * CLICK[1][x] / (1 - CLICK[1][x]) for x, w in enumerate(weights))
    assert float(value) == pytest.approx(1.69798, abs=5e-6)
    uppers = []
    for pair in ([0, 1], [0, 2], [1, 2]):
        lower, upper = exact.walk_bounds(PRIOR, [CLICK[a] for a in pair], depth=60)
        assert upper - lower < Fraction(1, 10**4)
        uppers.append(upper)
    assert value - max(uppers) > Fraction(1717, 100_000)


def test_the_counter_example_is_planned_as_a_walk_of_three_categories():
    instance = dp.Instance([0.73, 0.27], [[0.52, 0.73], [0.35, 0.82], [0.42, 0.80]])
    plan = dp.plan(instance)
    assert plan.method == "lattice"
    assert plan.policy == dp.Walk([0, 2], then=1)
    lower, upper = exact.walk_bounds(PRIOR, CLICK, depth=25)
    assert plan.lower <= upper
    assert lower <= plan.upper
    assert plan.verify()


@given(instances(PROBABILITIES, depart=1.0))
def test_bounds_overlap_with_those_of_brute_force(instance):
    assume(instance.sure_departure)
    plan = dp.plan(instance, gap=1e-7, seconds=0.1, method="lattice")
    lower, upper = exact.BruteForce(instance.n_categories, 5).bounds(instance)
    assert plan.lower <= upper * (1 + 1e-12)
    assert lower * (1 - 1e-12) <= plan.upper
    assert dp.evaluate(instance, plan.policy).upper >= plan.lower
    assert plan.verify()


def sure_departure(n, smallest):
    """Random instances with `smallest` to 5 types and categories; every second one has departures at clicks."""
    rng = np.random.default_rng(5)
    for i in range(n):
        types, categories = rng.integers(smallest, 6, 2)
        click, last = rng.uniform(0.05, 0.9, (2, categories, types))
        yield dp.Instance(rng.dirichlet(np.ones(types)), click, 1.0, last * (i % 2))


def test_random_instances_reach_the_gap_and_agree_with_the_search():
    for instance in sure_departure(60, 1):
        lattice = dp.plan(instance, gap=1e-8, method="lattice")
        search = dp.plan(instance, gap=1e-6, method="search")
        assert lattice.gap <= 1e-8
        assert search.gap <= 1e-6
        assert lattice.lower <= search.upper
        assert search.lower <= lattice.upper


def test_small_gaps_are_reached_rounding_included():
    for instance in sure_departure(100, 2):
        plan = dp.plan(instance, gap=1e-12, method="lattice")
        assert plan.gap <= max(1e-12, 1.2e-13 * plan.upper + 2 * plan.certificate.rounding_error)
        assert plan.verify()


def exact_frontier(instance, certificate):
    """The largest exact bound of a child that was not created, over all paths through created nodes, in fractions."""
    types, categories = range(instance.n_types), certificate.problem.categories.tolist()
    outcomes = {a: [exact.outcome_probabilities(instance, a, x) for x in types] for a in range(instance.n_categories)}
    click = {a: [each[0] + each[3] for each in rows] for a, rows in outcomes.items()}
    best = [max(click[a][x] / (outcomes[a][x][2] + outcomes[a][x][3]) for a in outcomes) for x in types]
    counts = [(0,) * len(categories)]
    for parent, k in zip(certificate.parent[1:].tolist(), certificate.category[1:].tolist(), strict=True):
        counts.append(tuple(n + (i == k) for i, n in enumerate(counts[parent])))
    gained, frontier = dict.fromkeys(counts, Fraction(0)), Fraction(0)
    for node in sorted(gained, key=sum):
        weights = [Fraction(float(q)) for q in instance.prior]
        weights = [w / sum(weights) for w in weights]
        for k, n in enumerate(node):
            weights = [w * outcomes[categories[k]][x][0] ** n for x, w in enumerate(weights)]
        for k, a in enumerate(categories):
            child = tuple(n + (i == k) for i, n in enumerate(node))
            clicks = gained[node] + sum(w * click[a][x] for x, w in enumerate(weights))
            if child in gained:
                gained[child] = max(gained[child], clicks)
            else:
                later = sum(w * outcomes[a][x][0] * best[x] for x, w in enumerate(weights))
                frontier = max(frontier, clicks + later)
    return frontier


@pytest.mark.parametrize("seed", range(12))
def test_bounds_contain_the_exact_fractions_of_all_open_children(seed):
    rng = np.random.default_rng(seed)
    types, categories = int(rng.integers(1, 9)), int(rng.integers(2, 4))
    click, on_click = rng.uniform(0.2, 0.99, (categories, types)), rng.uniform(0, 0.2, (categories, types))
    instance = dp.Instance(rng.dirichlet(np.ones(types)), click, 1.0, on_click * (seed % 2))
    search = LatticeSearch(PlanningProblem(instance))
    search.run(1e-15, Deadline(60.0), max_nodes=150)
    frontier = exact_frontier(instance, search.certificate())
    assert frontier <= Fraction(search.upper)
    assert Fraction(search.upper) - frontier <= 2 * Fraction(search.rounding_error)
    plan = dp.plan(instance, gap=1e-9, seconds=10, method="lattice")
    value = exact.total(instance, [exact.schedule_value(instance, plan.policy, x) for x in range(types)])
    assert Fraction(plan.lower) <= value <= Fraction(plan.upper)
    assert value <= frontier
    assert plan.verify()


def test_a_large_lattice_grows_its_arrays():
    instance = sure(60, 60, seed=1)
    plan = dp.plan(instance, gap=1e-7)
    assert len(plan.certificate.reward) > 1024
    assert plan.gap <= 1e-7
    assert plan.verify()


def test_dominated_categories_are_dropped_and_equal_ones_kept_once():
    click = [[0.5, 0.2], [0.4, 0.2], [0.3, 0.6], [0.5, 0.2], [0.3, 0.6]]
    assert PlanningProblem(dp.Instance([0.5, 0.5], click)).categories.tolist() == [0, 2]
    assert PlanningProblem(dp.Instance([0.5, 0.5], click), [1, 4]).categories.tolist() == [1, 4]


def test_a_wrong_lattice_fails_verification():
    instance = dp.Instance([0.73, 0.27], [[0.52, 0.73], [0.35, 0.82], [0.42, 0.80]])
    plan = dp.plan(instance)
    assert not plan.certificate.verify(plan.policy, plan.lower + 1e-3, plan.upper).holds
    assert not plan.certificate.verify(plan.policy, plan.lower, plan.lower - 1e-3).holds
    plan.certificate.reward[3] -= 0.01
    assert not plan.verify()
