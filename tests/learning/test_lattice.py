"""LatticeUCB: coverage of its intervals, optimism of its values, and regret."""

import numpy as np
import pytest

import departing as dp
from departing.learning.lattice import PRACTICAL_RADIUS, LatticeUCB
from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY

UNSURE = dp.Instance([0.3, 0.7], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.9], [0.8, 0.4]], [[0.05, 0.1], [0.1, 0.02]])


def learned(instance, users, seed, **options):
    learner = LatticeUCB(
        instance.n_categories, users, seed, epsilon=float(instance.departure_probabilities.min()), **options
    )
    run = dp.simulate(instance, learner, users=users, seed=seed)
    return learner, run


def true_probabilities(instance, nodes):
    """Probabilities of a click, of departure after a no-click and after a click, by node and category."""
    counts = np.zeros((len(nodes), instance.n_categories, 4), np.int64)
    counts[..., :2] = nodes
    belief = dp.belief(instance, counts)
    probabilities = np.einsum("kox,nx->nko", instance.outcome_probabilities, belief)
    click = probabilities[..., CLICK] + probabilities[..., CLICK_DEPART]
    return click, probabilities[..., DEPART] / (1 - click), probabilities[..., CLICK_DEPART] / click


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "allowed"), [("practical", 0.07), ("proved", 0.0)])
def test_the_intervals_cover_the_true_probabilities(scale, allowed):
    missed = asked = 0
    for seed in range(3):
        learner, _ = learned(UNSURE, 10000, seed, scale=scale)
        least, most, depart, last = learner.bounds()
        click, departing, leaving = true_probabilities(UNSURE, learner.transitions.nodes)
        seen = learner.transitions.outcomes.sum(axis=2) >= 20
        for low, high, true in ((least, most, click), (depart, 1.0, departing), (last, 1.0, leaving)):
            missed += int((((low > true + 1e-12) | (high < true - 1e-12)) & seen).sum())
            asked += int(seen.sum())
    assert asked > 500
    assert missed <= allowed * asked
    # Chernoff: a bound is crossed with probability at most exp(-radius) at any fixed number of users.
    assert allowed <= 2 * np.exp(-PRACTICAL_RADIUS)


def test_the_bounds_agree_with_a_grid_search():
    learner, _ = learned(UNSURE, 3000, 1)
    least, most, depart, _ = learner.bounds()
    grid = np.linspace(1e-6, 1 - 1e-6, 4001)
    seen = learner.transitions.outcomes
    for node in range(0, learner.transitions.size, 7):
        for a in range(2):
            n = seen[node, a].sum()
            if not n:
                assert (least[node, a], most[node, a], depart[node, a]) == (0.0, 1.0, 0.0)
                continue
            p = (seen[node, a, CLICK] + seen[node, a, CLICK_DEPART]) / n
            with np.errstate(divide="ignore", invalid="ignore"):
                kl = np.where(p > 0, p * np.log(p / grid), 0) + np.where(
                    p < 1, (1 - p) * np.log((1 - p) / (1 - grid)), 0
                )
            inside = grid[n * kl <= learner.confidence_radius]
            assert most[node, a] == pytest.approx(max(inside.max(), p), abs=6e-4)
            assert least[node, a] == pytest.approx(min(inside.min(), p), abs=6e-4)


def slow_values(learner):
    """Optimistic values and categories by plain recursion."""
    transitions = learner.transitions
    bounds = learner.bounds()
    go = 1 - learner.epsilon
    known = {tuple(row.reshape(-1).tolist()): i for i, row in enumerate(transitions.nodes)}
    memory = {}

    def value(counts):
        if counts in memory:
            return memory[counts][0]
        depth = sum(counts)
        limit = go * (1 - go ** (learner.horizon - depth)) / learner.epsilon
        if counts not in known:
            return limit
        i, best, chosen = known[counts], -1.0, 0
        for a in range(learner.n_categories):
            after = []
            for o in (CLICK, STAY):
                child = list(counts)
                child[2 * a + o] += 1
                went = transitions.child[i, a, o] >= 0
                below = (
                    go * (1 - go ** (learner.horizon - depth - 1)) / learner.epsilon
                    if depth < learner.horizon
                    else 0.0
                )
                after.append(value(tuple(child)) if went else below)
            least, most, depart, last = (bound[i, a] for bound in bounds)
            clicked, stayed = 1 + (1 - last) * after[0], (1 - depart) * after[1]
            values_of_a = [p * clicked + (1 - p) * stayed for p in (least, min(most, go))]
            optimistic = min(max(values_of_a), limit)
            if optimistic > best:
                best, chosen = optimistic, a
        memory[counts] = best, chosen
        return best

    for counts in sorted(known, key=sum, reverse=True):
        value(counts)
    return memory, known


def test_optimistic_values_agree_with_plain_recursion():
    learner, _ = learned(UNSURE, 500, 2, horizon=20)
    memory, _ = slow_values(learner)
    policy, _ = learner._block()[0]
    start = np.zeros((1, 2, 4), np.int64)
    values, chosen = zip(*[memory[(0, 0, 0, 0)]], strict=True)
    assert policy.recommend(start)[0] == chosen[0]
    assert values[0] >= dp.plan(UNSURE).lower  # optimism


def test_it_learns_where_fixed_categories_cannot():
    hard = dp.Instance([0.0842, 0.9158], [[0.7846, 0.0541], [0.5867, 0.1994]], 1.0)
    _, run = learned(hard, 10**5, 3)
    loss = dp.plan(hard).value - float((hard.prior @ hard.fixed_values.T).max())
    assert run.regret[-1] < 0.5 * loss * 10**5
    assert run.slope(1e3, 1e5).value < 0.8


def test_invalid_arguments_are_rejected():
    for options, message in (
        ({"users": None}, "users is missing"),
        ({"users": 0}, "users is 0"),
        ({"users": 10, "scale": "bold"}, "scale is 'bold'; expected one of practical, proved"),
        ({"users": 10, "epsilon": 2.0}, "epsilon is 2.0"),
        ({"users": 10, "horizon": 0}, "horizon is 0"),
    ):
        with pytest.raises(InputError, match=message):
            LatticeUCB(2, **options)
