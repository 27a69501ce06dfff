"""Baseline learners against slow reference implementations and values computed by hand."""

from fractions import Fraction
from math import inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import departing as dp
from departing.learning.baselines import KLULCB, ULCB, Thompson, Uniform
from departing.learning.frozen import Frozen
from departing.learning.last_outcome import LastOutcomePolicy
from departing.model.errors import InputError
from departing.model.examples import blog
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY
from departing.model.sampling import sample_type_counts
from departing.simulation.aggregate import aggregate
from departing.simulation.last_outcome import first_last_outcome_level
from departing.simulation.reference import no_progress
from departing.simulation.regret_curve import RegretCurve
from departing.simulation.run import run_from_histories
from helpers.exact import outcome_probabilities
from helpers.strategies import ORDINARY, instances

SOFT = dp.Instance([0.4, 0.6], [[0.5, 0.28], [0.4, 0.39]], depart=[[0.5, 0.6], [0.7, 0.3]], depart_on_click=0.1)


def after(learner, outcomes):
    """The learner after `outcomes[K, 4]` users per category and outcome."""
    seen = np.array(outcomes)
    learner.learn(np.zeros((len(seen), len(seen), 4), np.int64), np.arange(len(seen)), seen)
    return learner


def simulate_last_outcome(policy, max_nodes, observe):
    rng = np.random.default_rng(1)
    first = first_last_outcome_level(SOFT, policy, sample_type_counts(SOFT, 10**6, rng))
    return aggregate(first, rng, None, max_nodes, np.inf, no_progress, observe)


class TestLastOutcomePolicy:
    def test_its_value_computed_by_hand(self):
        # One type. After a click: click 1/2, depart 1/2. After a no-click: click 1/4, sure departure.
        # w = 1/4 (1 + v) and v = 1/2 (1 + v) + 1/4 w, so 7 v = 9 and w = 4/7.
        instance = dp.Instance([1.0], [[0.5], [0.25]], depart=[[0.5], [1.0]])
        assert LastOutcomePolicy(0, 1).value(instance) == pytest.approx(9 / 7, rel=1e-14)

    @given(instance=instances(ORDINARY, most=3), data=st.data())
    @settings(max_examples=50, deadline=None)
    def test_its_value_in_exact_fractions(self, instance, data):
        a, b = (data.draw(st.integers(0, instance.n_categories - 1)) for _ in range(2))
        total = Fraction(0)
        for x, share in enumerate(instance.prior):
            click, stay, _, last = outcome_probabilities(instance, a, x)
            click_b, stay_b, _, last_b = outcome_probabilities(instance, b, x)
            # (1 - click) v - stay w = gain, -click_b v + (1 - stay_b) w = gain_b, by Cramer's rule
            determinant = (1 - click) * (1 - stay_b) - stay * click_b
            total += (
                Fraction(float(share)) * ((click + last) * (1 - stay_b) + stay * (click_b + last_b)) / determinant
            )
        assert LastOutcomePolicy(a, b).value(instance) == pytest.approx(float(total), rel=1e-12)

    def test_with_one_category_it_equals_the_fixed_policy(self):
        for a in range(2):
            assert LastOutcomePolicy(a, a).value(SOFT) == pytest.approx(
                dp.evaluate(SOFT, dp.Fixed(a)).value, rel=1e-12
            )

    @pytest.mark.parametrize("pair", [LastOutcomePolicy(0, 1), LastOutcomePolicy(1, 0), LastOutcomePolicy(1, 1)])
    def test_the_aggregate_engine_agrees_with_the_value(self, pair):
        seen = np.zeros((2, 4), np.int64)

        def tell(counts, categories, outcomes):
            np.add.at(seen, categories, outcomes)

        histories = simulate_last_outcome(pair, 10**6, tell)
        clicks = int(histories.clicks @ histories.multiplicity)
        curve = RegretCurve.of_policy(SOFT, pair, histories.users, clicks)
        run = run_from_histories(histories, "blocks", 1, curve)
        assert run.users == 10**6
        assert run.truncated == 0
        assert abs(run.mean - pair.value(SOFT)) < 4 * run.stderr
        assert (seen == (histories.counts * histories.multiplicity[:, None, None]).sum(axis=0)).all()
        # After a stay comes the other category: stays of the first minus clicks of the second are 0 or 1.
        if pair.after_click != pair.after_no_click:
            turns = histories.counts[:, pair.after_click, STAY] - histories.counts[:, pair.after_no_click, CLICK]
            assert set(turns.tolist()) <= {0, 1}

    def test_too_many_counts_give_none(self):
        assert simulate_last_outcome(LastOutcomePolicy(0, 1), 50, lambda *_: None) is None

    def test_errors(self):
        with pytest.raises(InputError, match="after_click is -1; expected a category name or an integer ≥ 0"):
            LastOutcomePolicy(-1, 0)
        with pytest.raises(InputError, match="LastOutcomePolicy recommends category 2, but the instance has 2"):
            LastOutcomePolicy(0, 2).value(SOFT)
        assert not isinstance(LastOutcomePolicy(0, 1), dp.Policy)

    def test_it_describes_itself(self):
        assert LastOutcomePolicy(1, 0).describe(["a", "b"]) == "b first and after a click, a after a no-click"


class TestUniform:
    def test_categories_are_equally_frequent(self):
        shown = Uniform(4, seed=3).recommend(range(4000))
        assert chisquare(np.bincount(shown, minlength=4)).pvalue > 1e-3

    def test_categories_are_equally_frequent_in_a_block_cut_short(self):
        shares = []
        for seed in range(300):
            learner = Uniform(2, seed, growth=1.0)
            learner.arrived = 1000
            policy, _ = learner.admit(1)
            shares.append(policy == dp.Fixed(0))
        assert abs(np.mean(shares) - 0.5) < 4 * sqrt(0.25 / 300)

    def test_every_user_of_a_block_is_assigned(self):
        for seed in range(50):
            learner = Uniform(3, seed)
            learner.arrived = 10**5
            assigned = learner._block()
            assert sum(n for _, n in assigned) == 1000
            assert len(assigned) <= 4


class TestThompson:
    SEEN = np.array([[5, 3, 2, 1], [0, 0, 0, 0], [40, 10, 9, 0]])

    def test_posterior_samples_agree_with_a_slow_implementation(self):
        learner = after(Thompson(3, seed=5), self.SEEN)
        rng = np.random.default_rng(5)
        probability = []
        for wins, losses in (
            ((CLICK, CLICK_DEPART), (STAY, DEPART)),
            ((DEPART,), (STAY,)),
            ((CLICK_DEPART,), (CLICK,)),
        ):
            probability.append(
                [
                    [rng.beta(1 + sum(row[o] for o in wins), 1 + sum(row[o] for o in losses)) for row in self.SEEN]
                    for _ in range(6)
                ]
            )
        click, depart, last = np.array(probability)
        assert learner.sample_values(6) == pytest.approx(click / ((1 - click) * depart + click * last), rel=1e-14)

    def test_users_get_the_category_that_is_best_in_a_posterior_sample(self):
        seen = [[60, 20, 20, 0], [55, 20, 25, 0]]

        def block(users):
            learner = after(Thompson(2, seed=9, growth=1.0), seen)
            learner.arrived = users
            return learner._block()

        best = after(Thompson(2, seed=9), seen).sample_values(500).argmax(axis=1)
        assigned = block(500)
        for a in range(2):
            assert sum(n for policy, n in assigned if policy == dp.Fixed(a)) == (best == a).sum()
        large = block(10**9)
        assert sum(n for _, n in large) == 10**9
        first = sum(n for policy, n in large if policy == dp.Fixed(0))
        assert first / 10**9 == pytest.approx((best == 0).mean(), abs=0.12)

    def test_it_finds_the_best_fixed_category_for_one_type(self):
        instance = dp.Instance([1.0], [[0.5], [0.45], [0.3]], depart=[[0.6], [0.4], [0.5]], depart_on_click=0.05)
        fixed = max(dp.evaluate(instance, dp.Fixed(a)).value for a in range(3))
        run = dp.simulate(instance, Thompson(3, seed=2), users=10**6, seed=2)
        assert run.regret_curve.optimum.value == pytest.approx(fixed)
        assert 0 < run.regret[-1] < 400


class TestULCB:
    def test_bounds_computed_by_hand(self):
        # ln t = ln 8 = 2.079442 for the eighth user; means 3/4 of 8 and 1/2 of 2.
        learner = after(ULCB(3), [[5, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
        learner.arrived = 7
        lower, upper = learner.bounds()
        # sqrt(2.079442 / 16) = 0.360507 and sqrt(2.079442 / 4) = 0.721014
        assert lower == pytest.approx([0.75 - 0.360507, 0.5 - 0.721014, -inf], abs=1e-6)
        assert upper == pytest.approx([0.75 + 0.360507, 0.5 + 0.721014, inf], abs=1e-6)
        # The last category has no data: first after a click, never after a no-click.
        assert learner._block() == [(LastOutcomePolicy(2, 0), 1)]

    @given(
        clicks=st.lists(st.integers(0, 30), min_size=1, max_size=4),
        stays=st.lists(st.integers(0, 30), min_size=4, max_size=4),
        arrived=st.integers(0, 10**6),
    )
    @settings(max_examples=60, deadline=None)
    def test_kl_bounds_agree_with_a_slow_implementation(self, clicks, stays, arrived):
        learner = after(KLULCB(len(clicks)), [[c, s, 0, 0] for c, s in zip(clicks, stays, strict=False)])
        learner.arrived = arrived

        def divergence(p, q):
            parts = ((p, q), (1 - p, 1 - q))
            return sum(u * log(u / v) if v > 0 else inf for u, v in parts if u > 0)

        for c, s, lower, upper in zip(clicks, stays, *learner.bounds(), strict=False):
            n = c + s
            if not n:
                assert (lower, upper) == (-inf, inf)
                continue
            p, room = c / n, log(arrived + 1) / n
            assert 0 <= lower <= p <= upper <= 1
            for bound, beyond in ((lower, lower - 1e-6), (upper, upper + 1e-6)):
                assert divergence(p, bound) <= room + 1e-9
                assert not 0 <= beyond <= 1 or divergence(p, beyond) >= room - 1e-9

    def test_kl_intervals_are_inside_those_of_ulcb(self):
        seen = [[5, 15, 0, 0], [300, 10, 0, 0]]
        one, other = after(ULCB(2), seen), after(KLULCB(2), seen)
        one.arrived = other.arrived = 1000
        (low, high), (kl_low, kl_high) = one.bounds(), other.bounds()
        assert (low < kl_low).all()
        assert (kl_high < high).all()

    def test_recommendations_depend_on_the_last_outcome(self):
        learner = after(ULCB(2, growth=1.0), [[50, 50, 0, 0], [1, 1, 0, 0]])
        learner.arrived = 10
        assert learner.recommend(["a", "b"]).tolist() == [1, 1]  # the second has the larger upper bound
        learner.observe(["a", "b"], [1, 1], [STAY, CLICK])
        assert learner.recommend(["b", "a"]).tolist() == [1, 0]  # and the smaller lower bound
        learner.observe(["a", "b"], [0, 1], [CLICK, STAY])
        assert learner.recommend(["a", "b", "c"]).tolist() == [1, 0, 1]
        learner.observe(["b"], [0], [DEPART])
        assert learner.recommend(["d"]).tolist() == [1]  # the user in the row of b is new
        learner.observe(["a"], [1], [STAY])
        assert learner.recommend(["a"]).tolist() == [0]

    def test_step_and_block_engines_agree(self):
        pair = ULCB(2, growth=1.0)
        run = {}
        for engine in ("blocks", "step"):
            pair = after(ULCB(2, growth=1.0), [[5000, 5000, 0, 0], [1, 1, 0, 0]])
            pair.arrived = 3000
            run[engine] = dp.simulate(SOFT, pair, users=3000, seed=1, engine=engine)
            assert {piece.policy for piece in run[engine].regret_curve.policy_segments} == {LastOutcomePolicy(1, 0)}
            assert abs(run[engine].mean - LastOutcomePolicy(1, 0).value(SOFT)) < 4 * run[engine].stderr
        assert run["blocks"].regret[-1] == pytest.approx(run["step"].regret[-1])


@pytest.mark.parametrize("kind", [Uniform, Thompson, ULCB, KLULCB])
class TestBlocks:
    def test_a_billion_users_take_few_blocks(self, kind):
        learner = kind(2, seed=1)
        run = dp.simulate(blog(), learner, users=10**9, seed=1)
        assert 100 < learner._next_version < 6000  # one version for each policy of a block
        assert run.users == 10**9

    def test_with_growth_0_every_user_is_a_block(self, kind):
        learner = kind(2, growth=0.0)
        learner.arrived = 10**6
        assert sum(n for _, n in learner._block()) == 1
        learner.growth = 0.01
        assert sum(n for _, n in learner._block()) == 10**4

    def test_errors(self, kind):
        with pytest.raises(InputError, match="growth is 2; expected a number from 0 to 1"):
            kind(2, growth=2)
        with pytest.raises(InputError, match="seed is -1; expected an integer ≥ 0"):
            kind(2, seed=-1)
        with pytest.raises(InputError, match="categories is 0; expected an integer ≥ 1"):
            kind(0)


@pytest.mark.slow
def test_learning_beats_uniform_choice():
    instance = dp.Instance([1.0], [[0.6], [0.3]], depart=0.8)
    regret = [
        dp.simulate(instance, learner, users=10**5, seed=1).regret[-1]
        for learner in (Frozen(dp.Fixed(0), 2), Thompson(2), KLULCB(2), ULCB(2), Uniform(2))
    ]
    assert regret[0] == pytest.approx(0, abs=1e-3)
    assert max(regret[:4]) < regret[4] / 20
