"""UCBHybrid: Algorithm 2 of the paper, exactly."""

from math import inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import departing as dp
from departing.evaluation.sub_exponential import sub_exponential
from departing.learning.base import min_departure
from departing.learning.ucb import UCBHybrid, proved_tau
from departing.learning.ucb_bound import truncation_bound
from departing.model.errors import InputError
from departing.model.examples import blog
from departing.model.instance import CLICK, DEPART
from helpers.strategies import Opaque, instances, schedules

TWO = [dp.Fixed(0), dp.Fixed(1)]


def serve(learner, user, clicks):
    """Serve one user who clicks so often and departs; the category recommended first."""
    first = None
    for outcome in [CLICK] * clicks + [DEPART]:
        (shown,) = learner.recommend([user])
        first = shown if first is None else first
        learner.observe([user], [shown], [outcome])
    return int(first)


def test_algorithm_2_computed_by_hand():
    # T = 100, tau = 0.5, eta = 0.1: ln T = 4.60517, and 8 eta ln T = 3.684.
    # So the radius is 8 sqrt(0.1) 0.5 ln T / n = 5.825131 / n for n = 1, 2, 3: 5.825131, 2.912565, 1.941710,
    # and then sqrt(8 0.25 ln T / n) = sqrt(9.210340 / n): 1.517427 for n = 4, 1.357228 for n = 5.
    learner = UCBHybrid(TWO, users=100, tau=0.5, eta=0.1)
    assert learner.bounds.tolist() == [inf, inf]
    steps = [
        # policy, clicks, U of both afterwards
        (0, 2, 2 + 5.825131, inf),  # a tie of infinities: the first
        (1, 1, 7.825131, 1 + 5.825131),
        (0, 0, 1 + 2.912565, 6.825131),  # mean of 2 and 0
        (1, 3, 3.912565, 2 + 2.912565),
        (1, 0, 3.912565, 1.333333 + 1.941710),
        (0, 4, 2 + 1.941710, 3.275043),
        (0, 1, 1.75 + 1.517427, 3.275043),  # n = 4: the second radius, mean 7 / 4
        (1, 0, 3.267427, 1 + 1.517427),
        (0, 0, 1.4 + 1.357228, 2.517427),  # 7 / 5
        (0, 0, 7 / 6 + 1.238974, 2.517427),  # sqrt(9.210340 / 6)
        (1, 0, 2.405641, 0.8 + 1.357228),
    ]
    for user, (policy, clicks, *bounds) in enumerate(steps):
        assert serve(learner, user, clicks) == policy
        assert learner.bounds == pytest.approx(bounds, abs=2e-6)
    assert learner.pulls.tolist() == [6, 5]


def test_the_tau_of_the_paper():
    # 8 e / ln 2 = 21.746255 / 0.693147 = 31.373214
    assert UCBHybrid(TWO, users=10, epsilon=0.5).tau == pytest.approx(31.373214, abs=1e-6)


def test_the_estimated_tau_computed_by_hand():
    learner = UCBHybrid([dp.Fixed(0)], users=100, scale="estimated")
    assert learner.tau == 0.5  # half of sqrt(1)
    serve(learner, "a", 2)
    assert learner.tau == pytest.approx(0.5 * sqrt(1 / 2))  # one return does not vary
    serve(learner, "b", 0)
    assert learner.tau == pytest.approx(0.5)  # sum of squares about the mean 1 is 2: half of sqrt((1 + 2) / 3)
    serve(learner, "c", 4)
    assert learner.tau == pytest.approx(0.75)  # 4 + 0 + 16 - 3 2^2 = 8: half of sqrt((1 + 8) / 4)
    # 8 ln 100 = 36.8 > 3, so U = 2 + 8 0.75 ln(100) / 3 = 2 + 9.210340
    assert learner.bounds == pytest.approx([11.210340], abs=1e-6)


@given(
    users=st.integers(1, 1000),
    constants=st.lists(st.tuples(st.floats(0.01, 50), st.floats(0.01, 4)), min_size=1, max_size=5),
    each=st.booleans(),
    returns=st.lists(st.integers(0, 4), min_size=1, max_size=60),
)
@settings(max_examples=60, deadline=None)
def test_it_agrees_with_a_plain_implementation(users, constants, each, returns):
    n_policies = len(constants)
    taus, etas = zip(*(constants if each else [constants[0]] * n_policies), strict=True)
    given_tau, given_eta = (taus, etas) if each else (taus[0], etas[0])
    learner = UCBHybrid.fixed(n_policies, users=users, tau=given_tau, eta=given_eta)
    seen = [[] for _ in range(n_policies)]
    bounds = [inf] * n_policies
    for user, clicks in enumerate(returns):
        p = bounds.index(max(bounds))
        assert serve(learner, user, clicks) == p
        seen[p].append(clicks)
        n, tau, eta = len(seen[p]), taus[p], etas[p]
        if n < 8 * eta * log(users):
            bounds[p] = sum(seen[p]) / n + tau * (8 * sqrt(eta) * log(users) / n)
        else:
            bounds[p] = sum(seen[p]) / n + tau * sqrt(8 * log(users) / n)
        assert learner.bounds.tolist() == bounds


def test_ties_go_to_the_first_policy():
    learner = UCBHybrid.fixed(3, users=50, tau=1.0)
    assert [serve(learner, user, 1) for user in range(9)] == [0, 1, 2] * 3


class TestInterleaved:
    def test_simultaneous_users_are_spread_over_the_policies(self):
        learner = UCBHybrid.fixed(3, users=100, epsilon=0.5)
        assert learner.recommend(range(7)).tolist() == [0, 1, 2, 0, 1, 2, 0]

    def test_active_users_count_in_the_radius_and_not_in_the_mean(self):
        learner = UCBHybrid(TWO, users=100, tau=0.5, eta=0.1)
        learner.recommend(["a", "b", "c"])  # 0, 1, 0
        learner.observe(["a"], [0], [CLICK])
        learner.recommend(["a"])
        learner.observe(["a"], [0], [DEPART])
        # One departed with one click and one active; the other policy has the largest mean, 1, and one active user.
        assert learner.bounds == pytest.approx([1 + 5.825131 / 2, 1 + 5.825131], abs=1e-5)

    def test_missing_feedback_does_not_block_a_policy(self):
        learner = UCBHybrid(TWO, users=100, tau=0.5)
        learner.recommend(["silent"])
        learner.recommend(["too"])
        for user in range(200):
            serve(learner, user, 1)
        assert learner.pulls.min() >= 80


class TestPolicies:
    def test_threshold_policies(self):
        learner = UCBHybrid.thresholds(users=10**6, epsilon=0.5)
        policies = learner.policies
        assert len(policies) == len(set(policies)) == 2 * 20 + 2  # ln 10^6 / ln 2 = 19.9
        assert dp.Threshold(first=0, steps=0, then=1) in policies
        assert dp.Threshold(first=1, steps=20, then=0) in policies
        assert len(UCBHybrid.thresholds(users=100, epsilon=0.5, horizon=3).policies) == 8
        assert learner.n_categories == 2

    def test_the_horizon_of_the_paper(self):
        assert (
            len(UCBHybrid.thresholds(users=10**6, tau=1.0, horizon="paper").policies) == 2 * 14 + 2
        )  # ln 10^6 = 13.8

    @pytest.mark.parametrize(
        "options", [{"tau": 2.0}, {"scale": "estimated"}, {"scale": "exact", "instance": blog()}]
    )
    def test_epsilon_may_set_the_horizon_only(self, options):
        learner = UCBHybrid.thresholds(users=1000, epsilon=0.3, **options)
        assert len(learner.policies) == 2 * 20 + 2  # ln 1000 / ln(1 / 0.7) = 19.4
        assert learner.tau != UCBHybrid.thresholds(users=1000, epsilon=0.3).tau

    def test_exact_constants_are_those_of_each_policy(self):
        learner = UCBHybrid.thresholds(users=1000, horizon=2, scale="exact", instance=blog())
        constants = [sub_exponential(blog(), policy, 1000, 6) for policy in learner.policies]
        assert learner.tau == tuple(each.tau for each in constants)
        assert learner.eta == tuple(each.eta for each in constants)
        fixed = UCBHybrid.fixed(2, users=1000, scale="exact", instance=blog())
        assert fixed.tau == tuple(sub_exponential(blog(), dp.Fixed(a), 1000, 2).tau for a in (0, 1))

    def test_the_number_of_categories(self):
        assert UCBHybrid([dp.Walk([0, 4], then=1)], users=9, tau=1).n_categories == 5
        assert UCBHybrid([dp.Fixed(0)], users=9, tau=1, categories=3).n_categories == 3
        assert UCBHybrid([Opaque(dp.Fixed(0))], users=9, tau=1, categories=3).recommend([1]) == [0]


class TestDeparturesAtClicks:
    def test_epsilon_leaves_them_out(self):
        often = dp.Instance([1.0], [[0.5]], depart=0.98, depart_on_click=0.98)
        options = {"policies": "fixed", "scale": "sharp"}
        assert UCBHybrid.from_options(options, often, 1000, 0).tau == pytest.approx(1.5 / -log(0.51))  # 1 - 0.98 / 2
        many = dp.Instance([1.0], [[0.98], [0.5]], depart_on_click=0.9)
        # ε is 0.02: the whole departure probability, 0.902, would give 3 steps, and a loss of 0 clicks with H = 0
        assert len(UCBHybrid.from_options({}, many, 1000, 0).policies) == 2 * 342 + 2
        assert truncation_bound(1, min_departure(many, at_clicks=False), 0) > dp.evaluate(many, dp.Fixed(0)).value
        assert truncation_bound(1, min_departure(many), 0) < dp.evaluate(many, dp.Fixed(0)).value

    @given(data=st.data(), often=st.sampled_from([0.0, 0.1, 0.6, 0.98, 1.0]))
    @settings(max_examples=60, deadline=None)
    def test_the_sharp_constants_hold_with_them(self, data, often):
        base = data.draw(instances(st.floats(0.02, 0.98), most=3, depart_on_click=False))
        instance = dp.Instance(base.prior, base.click, base.depart, depart_on_click=often)
        policy = data.draw(schedules(instance.n_categories))
        tau = proved_tau(min_departure(instance, at_clicks=False), "sharp")
        law = dp.evaluate(instance, policy, 1e-17).distribution.returns
        clicks = np.arange(len(law)) - law @ np.arange(len(law))
        assert law @ clicks**2 <= tau**2
        gammas = np.concatenate([np.linspace(-1, -0.05, 20), np.linspace(0.05, 0.9, 18)]) / tau
        assert (np.log(np.exp(np.outer(gammas, clicks)) @ law) <= gammas**2 * tau**2 / 2 + 1e-9).all()


def test_the_scale_is_saved_with_its_tau():
    learner = UCBHybrid.thresholds(users=1000, epsilon=0.5, horizon="paper", scale="sharp")
    assert learner.tau == pytest.approx(1.5 / np.log(2))
    exact = UCBHybrid.fixed(2, users=1000, scale="exact", instance=blog(), tau=None)
    estimated = UCBHybrid(TWO, users=1000, scale="estimated")
    for each, scale in ((learner, "sharp"), (exact, "exact"), (estimated, "estimated")):
        other = UCBHybrid.from_state(UCBHybrid.from_state(each.state()).state())
        assert (other.scale, other.tau) == (each.scale, each.tau) == (scale, each.tau)
    state = learner.state()
    del state["scale"]  # as earlier versions saved it
    assert (UCBHybrid.from_state(state).scale, UCBHybrid.from_state(state).tau) == ("proved", learner.tau)
    with pytest.raises(InputError, match="scale is 'sharp', but tau is set; expected epsilon alone"):
        UCBHybrid.fixed(2, users=1000, tau=1.0, scale="sharp")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: UCBHybrid(TWO, tau=1),
            "users is missing; expected the (approximate) total number of users.",
        ),
        (
            lambda: UCBHybrid.thresholds(tau=1),
            "users is missing; expected the (approximate) total number of users.",
        ),
        (lambda: UCBHybrid(TWO, users=0, tau=1), "users is 0; expected an integer ≥ 1."),
        (lambda: UCBHybrid([], users=9, tau=1), "policies is []; expected a list of at least one policy."),
        (
            lambda: UCBHybrid(dp.Fixed(0), users=9, tau=1),
            "policies is Fixed(category=0); expected a list of at least one policy.",
        ),
        (lambda: UCBHybrid([1], users=9, tau=1), "policy is 1; expected an object with a method recommend(counts)."),
        (
            lambda: UCBHybrid(TWO, users=9),
            "scale is 'proved', but neither tau nor epsilon is set; expected one of them.",
        ),
        (
            lambda: UCBHybrid(TWO, users=9, tau=1, epsilon=0.5),
            "scale is 'proved', but tau and epsilon are set; expected one of them.",
        ),
        (
            lambda: UCBHybrid(TWO, users=9, tau=1, scale="estimated"),
            "scale is 'estimated', but tau or epsilon is set; expected neither.",
        ),
        (lambda: UCBHybrid(TWO, users=9, scale="mine"), "scale is 'mine'; expected one of proved, sharp, estimated."),
        (
            lambda: UCBHybrid(TWO, users=9, tau=[1, 2, 3]),
            "tau has 3 values; expected one, or one for each of 2 policies.",
        ),
        (
            lambda: UCBHybrid(TWO, users=9, tau=1, eta=[1, 0]),
            "eta[1] is 0; expected a number above 0 and at most 1e+100.",
        ),
        (
            lambda: UCBHybrid.thresholds(users=9, tau=1),
            "epsilon is missing; set it to a lower bound of the departure probability per step, or set horizon, and "
            "tau or scale='estimated'.",
        ),
        (
            lambda: UCBHybrid.thresholds(users=10**6, epsilon=0.001),
            "epsilon is 0.001; with 1000000 users the horizon is 13809, expected at most 1024. "
            "Set a larger epsilon, or a shorter horizon, which adds up to "
            "users · (1 - epsilon)^(horizon + 1) / epsilon clicks to the regret.",
        ),
        (
            lambda: UCBHybrid.thresholds(users=9, epsilon=0.6, scale="exact", instance=blog()),
            "epsilon is 0.6; expected at most 0.5, that of the instance.",
        ),
        (
            lambda: UCBHybrid.thresholds(users=9, epsilon=0.5, scale="blunt"),
            "scale is 'blunt'; expected one of proved, sharp, estimated, exact.",
        ),
        (
            lambda: UCBHybrid.thresholds(users=9, tau=1, horizon="long"),
            "horizon is 'long'; expected an integer ≥ 0 or 'paper'.",
        ),
        (
            lambda: UCBHybrid.fixed(2, users=9, scale="exact"),
            "scale is 'exact', but instance is missing; expected the instance of the users.",
        ),
        (
            lambda: UCBHybrid.fixed(2, users=9, scale="exact", instance=blog(), tau=1),
            "scale is 'exact', but tau, eta or epsilon is set; expected none of them.",
        ),
        (
            lambda: UCBHybrid.fixed(2, users=9, tau=1, instance=blog()),
            "instance is set, but scale is 'proved'; expected scale 'exact', or no instance.",
        ),
        (
            lambda: UCBHybrid([dp.Fixed(3)], users=9, tau=1, categories=2),
            "categories is 2; the policies recommend up to category 3.",
        ),
        (lambda: UCBHybrid(TWO, users=9, tau=0), "tau is 0; expected a number above 0 and at most 1e+100."),
        (lambda: UCBHybrid(TWO, users=9, tau=1, eta=-1), "eta is -1; expected a number above 0 and at most 1e+100."),
        (lambda: UCBHybrid(TWO, users=9, epsilon=1), "epsilon is 1; expected a number above 0 and below 1."),
        (
            lambda: UCBHybrid([Opaque(dp.Fixed(0))], users=9, tau=1),
            "categories is missing; it cannot be derived from a policy of type Opaque.",
        ),
    ],
)
def test_invalid_arguments_are_rejected(make, sentence):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    "options", [{"epsilon": 0.4, "eta": 0.3}, {"scale": "estimated"}, {"scale": "exact", "instance": blog()}]
)
def test_a_saved_learner_continues_bit_for_bit(tmp_path, options):
    rng = np.random.default_rng(5)
    learner = UCBHybrid.thresholds(users=200, horizon=2, **options)
    for user in range(50):
        serve(learner, user, int(rng.geometric(0.5)))
    learner.recommend(["active", "too"])
    learner.save(tmp_path / "ucb.json")
    other = UCBHybrid.load(tmp_path / "ucb.json")
    for user in range(100, 160):
        clicks = int(rng.geometric(0.5))
        assert serve(other, user, clicks) == serve(learner, user, clicks)
        assert other.bounds.tolist() == learner.bounds.tolist()
    assert other.tau == learner.tau
