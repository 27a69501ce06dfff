"""Plans agree with recorded bounds of other solvers, and with simulation."""

import numpy as np
import pytest
from benchmarks.recorded import SARSOP, overlaps, recorded, sure

import departing as dp

FINAL = {  # values known from long runs, to the digits given
    "e0": 8.280073,
    "e1": 4.179637,
    "e2": 5.187125,
    "f0": 10.322438,
    "f1": 13.683582,
    "f2": 5.855119,
    "h0": 39.568433,
    "h1": 81.870038,
    "h2": 110.789290,
    "c1": 11.386025,
    "d2": 10.973386,
}


@pytest.mark.parametrize("name", sorted(set(SARSOP) | set(FINAL)))
def test_bounds_overlap_with_the_recorded_ones(name):
    gap = 0.05 if name[0] == "g" else 1e-5
    plan = dp.plan(recorded(name), gap=gap)
    assert plan.gap <= gap
    if name in SARSOP:
        assert overlaps(name, plan)
    if name in FINAL:
        assert plan.lower - 5e-7 <= FINAL[name] <= plan.upper + 5e-7
    assert plan.verify()


EXAMPLES = {name: recorded(name) for name in ("a0", "b1", "c1", "d2", "e1", "f2", "g1", "h2")} | {
    "specialists": dp.random_instance("specialists", 4, 4, seed=0),
    "sure departure": sure(10, 100, 1),
    "long stays": dp.random_instance("sticky", 5, 5, seed=1),
    "departing after clicks": dp.Instance(
        [0.3, 0.7], [[0.8, 0.3], [0.4, 0.7]], [[0.3, 0.5], [0.4, 0.2]], [[0.1, 0.0], [0.05, 0.2]]
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_simulating_the_plan_agrees_with_its_bounds(name):
    instance = EXAMPLES[name]
    plan = dp.plan(instance, gap=1e-3 * dp.plan(instance, gap=1.0).upper)
    users = 10**5 if name == "long stays" else 10**8  # too many distinct counts to aggregate
    run = dp.simulate(instance, plan.policy, users=users, seed=3, engine="aggregate")
    # The value of the policy may exceed the lower bound, but not the upper one.
    assert plan.lower - 4 * run.stderr <= run.mean <= plan.upper + 4 * run.stderr
    value = dp.evaluate(instance, plan.policy, gap=1e-3 * plan.upper, max_nodes=10**5)
    assert value.upper >= plan.lower
    assert value.lower <= plan.upper


def test_no_policy_exceeds_the_upper_bound():
    rng = np.random.default_rng(4)
    for seed in range(6):
        instance = dp.random_instance("specialists", 3, 3, seed=seed)
        plan = dp.plan(instance, gap=1e-5)
        policies = [dp.Greedy(instance), dp.Walk(rng.integers(0, 3, 8), then=int(rng.integers(3)))]
        policies += [dp.Fixed(a) for a in range(3)]
        for policy in policies:
            assert dp.evaluate(instance, policy, gap=1e-6).lower <= plan.upper
