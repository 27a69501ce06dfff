"""The lower bound on regret: its certificate, closed cases, and learners that do not beat it."""

from functools import cache
from itertools import product
from math import log

import numpy as np
import pytest
from matplotlib.figure import Figure

import departing as dp
from departing.learning.library import learner_from_dict
from departing.learning.lower_bound.alternative import Alternative
from departing.learning.lower_bound.count_lattice import CountLattice
from departing.learning.lower_bound.separation import Claim, Separation, binary_divergence
from departing.learning.registry import LEARNERS
from departing.studies.sampler import InstanceSampler

SURE = dp.Instance([0.4, 0.6], [[0.5, 0.28], [0.35, 0.42]])
UNSURE = dp.Instance([0.4, 0.6], [[0.5, 0.2], [0.3, 0.45]], [[0.7, 0.5], [0.6, 0.9]])
LAST = dp.Instance(
    [0.4, 0.6], [[0.5, 0.2], [0.3, 0.45]], [[0.7, 0.5], [0.6, 0.9]], depart_on_click=[[0.1, 0.3], [0.2, 0]]
)
ONE = dp.Instance([1.0], [[0.5], [0.4]])
RIVAL = dp.Instance([1.0], [[0.5], [0.6]])
STEP_COST = 0.2  # of category 1 instead of 0, with the value 1 of category 0: 1 - (0.4 + 0.4 × 1)
STEP_NATS = binary_divergence(0.4, 0.6)


def follow(instance, others, policy, steps):
    """Value of a policy (counts -> category) and its divergence from each instance, by all counts to `steps`."""
    priors = [each.prior for each in (instance, *others)]
    probabilities = [each.outcome_probabilities for each in (instance, *others)]
    level = {(0,) * (2 * instance.n_categories): [prior.copy() for prior in priors]}
    value, nats = 0.0, np.zeros(len(others))
    for _ in range(steps):
        following = {}
        for counts, weights in level.items():
            a = policy(counts)
            for outcome in range(4):
                flows = [w * p[a, outcome] for w, p in zip(weights, probabilities, strict=True)]
                total = flows[0].sum()
                if total == 0:
                    continue
                value += total if outcome in (0, 3) else 0.0
                if outcome >= 2:  # the history ends: its probability under every instance
                    nats += [total * log(total / flow.sum()) for flow in flows[1:]]
                    continue
                after = list(counts)
                after[2 * a + outcome] += 1
                here = following.setdefault(tuple(after), [np.zeros_like(prior) for prior in priors])
                for into, flow in zip(here, flows, strict=True):
                    into += flow
        level = {counts: weights for counts, weights in following.items() if weights[0].sum() > 1e-13}
    return value, nats


def all_policies(instance, depth):
    """Policies that decide by counts for some steps, and then stay with a category."""
    k = instance.n_categories
    outcomes = range(1 if instance.sure_departure and not instance.depart_on_click.any() else 2)
    counts = [(0,) * (2 * k)]
    every = list(counts)
    for _ in range(depth - 1):
        later = set()
        for here in counts:
            for a, outcome in product(range(k), outcomes):
                after = list(here)
                after[2 * a + outcome] += 1
                later.add(tuple(after))
        counts = sorted(later)
        every += counts
    for choice in product(range(k), repeat=len(every)):
        table = dict(zip(every, choice, strict=True))
        for then in range(k):
            yield lambda counts, table=table, then=then: table.get(counts, then)


def check_certificate(bound, depth, steps):
    """Check every inequality of the proof on all policies that decide for `depth` steps."""
    proof, instances = bound.certificate, [each.instance for each in bound.alternatives]
    optima = [dp.plan(each, gap=1e-10).value for each in (bound.instance, *instances)]
    assert proof.optimum.lower <= optima[0] + 1e-12
    multipliers = np.array([each.multiplier for each in bound.alternatives])
    highest, closest = -np.inf, np.full(len(instances), np.inf)
    for policy in all_policies(bound.instance, depth):
        value, nats = follow(bound.instance, instances, policy, steps)
        highest = max(highest, value + multipliers @ nats)
        for j, each in enumerate(bound.alternatives):
            gap = optima[j + 1] - follow(each.instance, [], policy, steps)[0]
            closest[j] = min(closest[j], each.weight * (optima[0] - value) + (1 - each.weight) * gap)
    assert highest <= proof.priced + 1e-10
    for least, each in zip(closest, bound.alternatives, strict=True):
        assert each.separation <= least + 1e-9
    # The claim, with these separations, requires these nats, and they cost at least the bound.
    claim, dual = Claim(proof.users, bound.share, bound.budget), -proof.users * (proof.priced - proof.optimum.lower)
    for each in bound.alternatives:
        nats = claim.nats([Separation(each.weight, each.separation)], bound.value)
        assert nats == pytest.approx(each.nats)
        dual += each.multiplier * nats
    assert dual >= bound.value * (1 - 1e-9)
    assert dual == pytest.approx(proof.dual_value)
    return highest, closest


@pytest.mark.parametrize("share", [None, 0.95])
def test_the_certificate_holds_for_all_policies_with_sure_departure(share):
    bound = dp.regret_bound(SURE, 10**4, share=share)
    assert bound.value > 1
    highest, closest = check_certificate(bound, 3, 60)
    # Nearly tight: the price is that of some policy, and the separations those of some compromise.
    assert bound.certificate.users * (bound.certificate.priced - highest) < 0.2 * bound.value
    assert (closest < 1.2 * np.array([each.separation for each in bound.alternatives]) + 1e-6).all()


@pytest.mark.parametrize("instance", [UNSURE, pytest.param(LAST, marks=pytest.mark.slow)])
def test_the_certificate_holds_for_all_policies_with_uncertain_departure(instance):
    bound = dp.regret_bound(instance, 1000)
    assert bound.value > 1
    check_certificate(bound, 2, 40)


def test_prices_are_upper_bounds_at_every_depth_of_the_lattice():
    other = dp.Instance([0.5, 0.5], [[0.45, 0.3], [0.4, 0.5]], [[0.6, 0.5], [0.6, 0.7]])
    alternative, exact = Alternative(UNSURE, other), -np.inf
    for policy in all_policies(UNSURE, 2):
        value, nats = follow(UNSURE, [other], policy, 40)
        exact = max(exact, value + 3 * nats[0])
    prices = []
    for nodes in (10, 100, 1000, 20_000):
        lattice = CountLattice(UNSURE, nodes, certified=True)
        prices.append(lattice.price([alternative], np.array([3.0]), 1e-9, 200).value)
    assert prices == sorted(prices, reverse=True)
    assert exact <= prices[-1] < prices[0]
    assert prices[-1] - exact < 0.1  # policies that decide for two steps only are close to the best


def test_divergences_of_policies_equal_those_of_their_histories():
    other = dp.Instance([0.5, 0.5], [[0.45, 0.3], [0.4, 0.5]], [[0.6, 0.5], [0.6, 0.7]])
    lattice = CountLattice(UNSURE, 100_000, certified=True)
    pricing = lattice.price([Alternative(UNSURE, other)], np.array([3.0]), 1e-10, 400)
    graph = lattice.graph(pricing.category)
    table = {tuple(lattice._counts[node]): int(a) for node, a in zip(graph.nodes, graph.category, strict=True)}
    value, nats = follow(UNSURE, [other], lambda counts: table.get(counts, 0), 60)
    assert lattice.clicks_of(graph, pricing.leaf_category) == pytest.approx(value, abs=1e-8)
    found = lattice.divergences(graph, pricing.leaf_category, [Alternative(UNSURE, other)])
    assert found[0] == pytest.approx(nats[0], abs=1e-8)
    assert pricing.value == pytest.approx(value + 3 * nats[0], abs=1e-8)


def one_type_separation(weight):
    """Least weighted loss for the one type: category 1 for n steps tells ONE from RIVAL."""
    n = np.arange(200)
    own = 2 / 3 * (1 - 0.4**n) + 0.4**n  # n times category 1 (value 2/3), then category 0 (value 1)
    other = 1.5 * (1 - 0.6**n) + 0.6**n  # under RIVAL category 1 has the value 1.5
    own, other = np.append(own, 2 / 3), np.append(other, 1.5)
    return (weight * (1 - own) + (1 - weight) * (1.5 - other)).min()


def test_one_type_gives_the_bound_of_lai_and_robbins():
    users = 10**6
    bound = dp.regret_bound(ONE, users, alternatives=[RIVAL])

    def required(b):
        best = 0.0
        for weight in np.linspace(0.01, 0.99, 99):
            total = users * one_type_separation(weight)
            missed, wrong = weight * b / total, (1 - weight) * b / total
            best = max(best, binary_divergence(1 - missed, wrong) if missed + wrong < 1 else 0.0)
        return best

    closed = 10.0
    for _ in range(60):  # the fixed point b = cost per nat × nats(b)
        closed = STEP_COST / STEP_NATS * required(closed)
    assert 0.97 * closed < bound.value <= closed * (1 + 1e-6)
    (rival,) = bound.alternatives
    assert rival.multiplier == pytest.approx(STEP_COST / STEP_NATS, rel=0.01)
    # As Lai and Robbins: users that play category 1 cost 0.2 clicks per step, log T / kl of them per alternative.
    assert 0.3 < bound.value / (STEP_COST / STEP_NATS * log(users)) < 1
    assert sum(each.cost for each in bound.policies) == pytest.approx(bound.value, rel=0.02)


@pytest.mark.parametrize("share", [0.9, 0.99])
def test_two_instances_give_the_bound_of_the_sequential_test(share):
    expected = STEP_COST / STEP_NATS * binary_divergence(share, 1 - share)
    assert dp.regret_bound(ONE, 10**6, share=share, alternatives=[RIVAL]).value == pytest.approx(expected, rel=1e-3)
    # With few users the separation is the limit: no learner loses more than these users can.
    few = dp.regret_bound(ONE, 4, share=share, alternatives=[RIVAL])
    limit = 4 * max(one_type_separation(weight) for weight in np.linspace(0.01, 0.99, 99))
    assert 0.97 * limit < few.value <= limit * (1 + 1e-3)


def test_a_budget_bounds_the_instance_alone():
    free = dp.regret_bound(ONE, 10**5, alternatives=[RIVAL])
    tight, loose = (dp.regret_bound(ONE, 10**5, budget=b, alternatives=[RIVAL]) for b in (free.value / 100, 10**4))
    assert tight.value > free.value > loose.value
    same = dp.regret_bound(ONE, 10**5, budget=free.value, alternatives=[RIVAL])
    assert same.value == pytest.approx(free.value, rel=0.02)
    assert "A learner with at most" in tight.describe()
    runs = dp.regret_bound(ONE, 10**5, share=0.9, budget=50.0, alternatives=[RIVAL])
    assert runs.value == pytest.approx(STEP_COST / STEP_NATS * binary_divergence(0.9, 0.1), rel=0.01)
    assert "A learner that keeps 90% of its runs at" in runs.describe()


def test_the_bound_grows_with_users_and_is_reproducible():
    bounds = [dp.regret_bound(SURE, users, seed=3) for users in (10, 100, 1000, 10**4)]
    values = [bound.value for bound in bounds]
    assert values == sorted(values)
    assert bounds[-1].curve.tolist() == values
    assert bounds[-1].at([5, 10, 99, 1000, 5000]).tolist() == [0.0, values[0], values[0], values[2], values[2]]
    again = dp.regret_bound(SURE, 10**4, seed=3)
    assert again.value == values[-1]
    assert again.alternatives[0].instance == bounds[-1].alternatives[0].instance


def test_the_bound_does_not_depend_on_labels():
    moved = SURE.relabel(categories=[1, 0], types=[1, 0])
    others = [each.instance for each in dp.regret_bound(SURE, 10**4).alternatives]
    first = dp.regret_bound(SURE, 10**4, alternatives=others)
    second = dp.regret_bound(
        moved, 10**4, alternatives=[each.relabel(categories=[1, 0], types=[1, 0]) for each in others]
    )
    assert first.value == pytest.approx(second.value, rel=0.02)


@pytest.mark.parametrize(
    "instance",
    [
        dp.Instance([0.4, 0.6], [[0.5, 0.28]]),
        dp.Instance([0.4, 0.6], [[0.5, 0.28], [0.5, 0.28]]),
        dp.Instance([1.0], [[0.3]], 0.5),
    ],
)
def test_without_a_choice_nothing_is_lost(instance):
    bound = dp.regret_bound(instance, 10**4)
    assert bound.value == 0
    assert bound.alternatives == bound.policies == ()
    assert "No lower bound above 0" in bound.summary()
    assert isinstance(bound.plot(), Figure)
    assert bound.to_frame().shape[0] == 0


def test_more_alternatives_make_the_bound_larger():
    found = [each.instance for each in dp.regret_bound(SURE, 10**5).alternatives]
    assert len(found) > 1
    fewer = dp.regret_bound(SURE, 10**5, alternatives=found[:1]).value
    assert fewer <= dp.regret_bound(SURE, 10**5, alternatives=found).value * 1.01


def test_the_result_describes_itself(tmp_path):
    bound = dp.regret_bound(SURE, 10**4, share=0.99)
    assert bound.describe().startswith("No learner keeps 99% of its runs below")
    text = bound.summary()
    assert "Proved by duality for all policies" in text
    assert "local search" in text
    assert "nats" in text
    assert "<table>" in bound._repr_html_()
    assert len(bound.to_frame()) == len(bound.policies) > 0
    bound.plot(tmp_path / "bound.svg")
    assert (tmp_path / "bound.svg").stat().st_size > 5000
    assert bound.to_dict()["curve"][-1] == [10**4, bound.value]
    values = [dp.evaluate(SURE, each.policy).value for each in bound.policies]
    gaps = [dp.plan(SURE).value - value for value in values]
    assert gaps == pytest.approx([each.gap for each in bound.policies], abs=2e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"users": 0}, "users is 0; expected an integer ≥ 1"),
        ({"users": 100, "share": 0.5}, "share is 0.5; expected a number above 0.5 and below 1"),
        ({"users": 100, "share": 1.5}, "share is 1.5"),
        ({"users": 100, "budget": 0}, "budget is 0; expected a number above 0"),
        ({"users": 100, "seed": -1}, "seed is -1"),
        ({"users": 100, "alternatives": []}, r"alternatives is \[\]; expected a list of at least one Instance"),
        ({"users": 100, "alternatives": [ONE, 3]}, r"alternatives\[1\] is 3; expected an Instance"),
        (
            {"users": 100, "alternatives": [dp.Instance([1.0], [[0.5]])]},
            r"alternatives\[0\] has 1 categories; expected 2",
        ),
        ({"users": 100, "alternatives": [dp.Instance([1.0], [[0.5], [0.0]])]}, "'click' of category 'category 1'"),
    ],
)
def test_invalid_arguments_are_explained(arguments, message):
    with pytest.raises(dp.InputError, match=message):
        dp.regret_bound(ONE, **arguments)
    with pytest.raises(dp.InputError, match="expected an Instance"):
        dp.regret_bound("blog", 100)


FAST = ("explore-then-commit", "frozen", "ucb-hybrid")
# Longer blocks than by default are as valid, and faster. One type is the strongest form of the Bayesian learners.
OPTIONS = {
    "bayes": {"types": 1, "growth": 0.4},
    "frozen": {"category": 0},
    "lattice": {"growth": 0.1},
    "refitted-greedy": {"growth": 0.4},
    "sliding-window": {"types": 1, "growth": 0.4},
    "ucb-hybrid": {"policies": "fixed", "scale": "estimated"},
}


@cache
def bounds_of_one(users):
    """Lower bounds on the expected regret, and for 90 % of the runs."""
    bound = dp.regret_bound(ONE, users)
    return bound, dp.regret_bound(ONE, users, share=0.9, alternatives=[each.instance for each in bound.alternatives])


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in FAST else pytest.mark.slow) for kind in LEARNERS if kind != "oracle"],
)
def test_no_learner_beats_the_bound_over_200_runs(kind):
    users, runs, spec = 100, 200, {"kind": kind} | OPTIONS.get(kind, {})
    bound, share = bounds_of_one(users)
    others = [each.instance for each in bound.alternatives]
    regret = np.array(
        [
            [
                dp.simulate(instance, learner_from_dict(spec, instance, users, seed), users, seed).regret[-1]
                for seed in range(runs)
            ]
            for instance in (ONE, *others)
        ]
    )
    assert (regret.mean(axis=1) + 3 * regret.std(axis=1) / np.sqrt(runs)).max() >= bound.value > 1
    assert (regret < share.value).mean(axis=1).min() < 0.9 + 3 * np.sqrt(0.09 / runs)
    assert share.value > 1


@pytest.mark.slow
def test_policies_are_reported_where_single_nodes_are_rare_but_their_child_is_not():
    """With many users who stay, the nodes of a step may all be rare although a later node is not."""
    ((_, instance),) = InstanceSampler(2, 2, 3.0, (0.1, 0.9), (0.3, 0.9), 1, 30000, 0.0, 0.0).sample()
    bound = dp.regret_bound(instance, 10**7)
    assert bound.policies
    assert all(dp.evaluate(instance, each.policy).value <= dp.plan(instance).upper for each in bound.policies)
