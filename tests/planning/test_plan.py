import json
import logging

import numpy as np
import pytest

import departing as dp
from departing.kernels import compiling
from departing.model.examples import blog, magazine
from departing.planning.baselines import rivals
from departing.planning.policy_text import outline
from departing.planning.sensitivity import worth

COUNTER = dp.Instance([0.73, 0.27], [[0.52, 0.73], [0.35, 0.82], [0.42, 0.80]])


class TestBadInput:
    @pytest.mark.parametrize("gap", [0, -1e-3, float("nan"), "small", None])
    def test_gap(self, gap):
        with pytest.raises(dp.InputError, match="gap is"):
            dp.plan(blog(), gap=gap)

    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), "long"])
    def test_seconds(self, seconds):
        with pytest.raises(dp.InputError, match="seconds is"):
            dp.plan(blog(), seconds=seconds)

    def test_unknown_method(self):
        with pytest.raises(dp.InputError, match="method is 'magic'; allowed are auto, closed-form, lattice, search"):
            dp.plan(blog(), method="magic")

    def test_unfit_methods_tell_which_fit(self):
        with pytest.raises(
            dp.InputError, match=r"'lattice' does not fit: it is for sure departure.*Fit are auto, search"
        ):
            dp.plan(magazine(), method="lattice")
        with pytest.raises(dp.InputError, match=r"'closed-form' does not fit.*Fit are auto, lattice, search"):
            dp.plan(COUNTER, method="closed-form")

    def test_instance(self):
        with pytest.raises(dp.InputError, match="instance is 3"):
            dp.plan(3)

    def test_infinite_value(self):
        with pytest.raises(dp.InputError, match=r"never departs.*infinite"):
            dp.plan(dp.Instance([1.0], [[0.5]], depart=0.0))

    @pytest.mark.parametrize(
        ("allowed", "match"),
        [
            ([], "forbids every category"),
            ([False, False, False], "forbids every category"),
            ([3], "holds 3; categories are 0 to 2"),
            ([-1], "holds -1"),
            ([True, False], "True or False for each of 3"),
            ([0.5], "expected indices of categories"),
            ([[0], [1, 2]], "expected indices of categories"),
            (2, "expected indices of categories"),
        ],
    )
    def test_allowed(self, allowed, match):
        with pytest.raises(dp.InputError, match=match):
            dp.plan(magazine(), allowed=allowed)
        with pytest.raises(dp.InputError, match=match):
            dp.Greedy(magazine()).recommend(np.zeros((3, 4), int), allowed=allowed)

    def test_sensitivity(self):
        for by in (0, -0.1, 1.5, "much"):
            with pytest.raises(dp.InputError, match="by is"):
                dp.plan(blog()).sensitivity(by)


class TestMasks:
    def test_a_plan_with_forbidden_categories_is_the_plan_without_them(self):
        rng = np.random.default_rng(2)
        for seed in range(12):
            depart = 1.0 if seed % 2 else None
            instance = dp.random_instance("uniform", 3, 4, seed=seed, depart=depart)
            allowed = sorted(rng.choice(4, rng.integers(1, 4), replace=False).tolist())
            fields = (instance.click[allowed], instance.depart[allowed])
            alone = dp.plan(dp.Instance(instance.prior, *fields), gap=1e-7)
            masked = dp.plan(instance, gap=1e-7, allowed=allowed)
            assert masked.allowed == tuple(allowed)
            assert masked.lower <= alone.upper
            assert alone.lower <= masked.upper
            assert masked.verify()
            counts = rng.integers(0, 3, (200, 4, 4)) * [1, 1, 0, 0]
            assert np.isin(masked.policy.recommend(counts), allowed).all()
            assert dp.evaluate(instance, masked.policy, tolerance=1e-8).upper >= masked.lower
            as_mask = dp.plan(instance, gap=1e-7, allowed=np.isin(np.arange(4), allowed))
            assert (as_mask.lower, as_mask.upper) == (masked.lower, masked.upper)

    def test_a_mask_for_every_user(self):
        policy = dp.plan(magazine(), gap=1e-3).policy
        counts = np.zeros((4, 3, 4), int)
        mask = np.array([[1, 1, 1], [1, 1, 0], [0, 1, 0], [0, 1, 1]], bool)
        shown = policy.recommend(counts, allowed=mask)
        assert mask[np.arange(4), shown].all()
        assert shown[0] == policy.recommend(counts[0])

    def test_a_forbidden_best_category_is_replaced_by_the_best_other_one(self):
        """One step of each allowed category, then the plan: the larger value, worked out by evaluation."""
        instance = magazine()
        plan = dp.plan(instance, gap=1e-6)
        values = {}
        for a in (0, 1):
            rows = np.zeros((1, 3, 4), int)
            values[a] = dp.evaluate(instance, dp.Table(rows, [a], fallback=plan.policy), tolerance=1e-7).value
        expected = max(values, key=values.get)
        assert abs(values[0] - values[1]) > 1e-4
        assert plan.policy.recommend(np.zeros((3, 4), int), allowed=[0, 1]) == expected

    def test_a_policy_that_knows_no_masks_says_so(self):
        class Mine:
            def recommend(self, counts):
                return np.zeros(np.shape(counts)[:-2], int)

        table = dp.Table(np.zeros((1, 3, 4), int), [0], fallback=Mine())
        with pytest.raises(dp.InputError, match=r"Mine\.recommend does not take allowed"):
            table.recommend(np.zeros((2, 3, 4), int), allowed=[1])


class TestPlans:
    def test_auto_takes_the_first_method_that_fits(self):
        assert dp.plan(blog()).method == "closed-form"
        assert dp.plan(COUNTER).method == "lattice"
        assert dp.plan(magazine(), gap=1e-2).method == "search"

    def test_a_policy_comes_back_from_a_file(self, tmp_path):
        for instance in (blog(), COUNTER, magazine()):
            plan = dp.plan(instance, gap=1e-3)
            for ending in (".toml", ".json"):
                plan.save(tmp_path / f"policy{ending}")
                assert dp.load_policy(tmp_path / f"policy{ending}") == plan.policy

    def test_policies_are_compact(self, tmp_path):
        for seed in range(3):
            plan = dp.plan(dp.random_instance("uniform", 5, 5, seed=4000 + seed))
            plan.save(tmp_path / "policy.json")
            assert (tmp_path / "policy.json").stat().st_size < 1_000_000

    def test_progress_brackets_the_value(self):
        seen = []
        plan = dp.plan(magazine(), progress=lambda lower, upper: seen.append((lower, upper)))
        assert len(seen) > 1
        assert all(lower <= plan.upper and plan.lower <= upper + 1e-9 for lower, upper in seen)

    def test_the_plan_is_the_same_every_time(self):
        first, second = (dp.plan(magazine()) for _ in range(2))
        assert (first.lower, first.upper) == (second.lower, second.upper)
        assert first.policy == second.policy

    def test_a_gap_below_rounding_stops(self):
        plan = dp.plan(dp.random_instance("uniform", 2, 2, seed=1001), gap=1e-300, seconds=30)
        assert plan.seconds < 20
        assert plan.gap < 1e-8
        assert plan.verify()

    def test_words(self):
        assert dp.plan(blog()).words() == "sports × 6, then economics"
        assert dp.plan(magazine(), gap=1e-2).words().startswith("start with music, then go by what the user does")


class TestUnderstanding:
    def test_the_cost_of_myopia(self):
        plan = dp.plan(magazine())
        greedy, fixed = rivals(plan)
        for rival in (greedy, fixed):
            value = dp.evaluate(magazine(), rival.policy).value
            assert plan.value - value in dp.Bounds(rival.loss.lower - 1e-6, rival.loss.upper + 1e-6)
        assert fixed.policy == dp.Fixed(0)
        masked = dp.plan(magazine(), allowed=["sport", "music"])
        assert rivals(masked)[1].policy == dp.Fixed(2)
        assert rivals(masked)[0].loss.lower > 0

    def test_the_outline_follows_the_policy_with_the_right_shares(self):
        plan = dp.plan(magazine(), gap=1e-3)
        instance, first = plan.instance, outline(plan.policy, plan.instance, depth=3, least=0.0)

        def check(branch, counts, weights):
            assert branch.category == plan.policy.recommend(counts)
            assert branch.share == pytest.approx(weights.sum())
            for then in branch.then:
                after = counts.copy()
                after[branch.category, then.outcome] += 1
                check(then, after, weights * instance.outcome_probabilities[branch.category, then.outcome])

        check(first, np.zeros((3, 4), int), instance.prior)
        assert [len(then.then) for then in first.then] == [2, 2]

    def test_sensitivity_tells_what_happens_under_each_changed_instance(self):
        for instance in (COUNTER, magazine()):
            plan = dp.plan(instance)
            found = plan.sensitivity(0.1)
            assert {shift.field for shift in found.shifts} == {"click", "depart", "prior"}
            lower = next(shift for shift in found.of("click") if shift.how == "all lower")
            changed = dp.Instance(instance.prior, instance.click * 0.9, instance.depart)
            again = dp.plan(changed)
            assert lower.value == pytest.approx(again.value, rel=1e-3)
            assert lower.keeps <= again.upper
            assert lower.keeps == pytest.approx(worth(plan, changed))
            assert all(shift.loss >= 0 for shift in found.shifts)
            start = np.zeros((instance.n_categories, 4), int)
            assert found.first[0] == plan.policy.recommend(start)

    def test_what_a_plan_is_worth_elsewhere_is_what_evaluate_says_of_a_schedule(self):
        plan = dp.plan(COUNTER)
        other = dp.random_instance("uniform", 2, 3, seed=9)
        assert worth(plan, other) == dp.evaluate(other, plan.policy).value
        plan = dp.plan(magazine())
        assert worth(plan, magazine()) == pytest.approx(plan.lower, abs=1e-9)


def test_compiling_is_announced_once(caplog):
    fresh = compiling.kernel(eval("lambda x: x + 1"))  # of no file, so that it is not found on disk either
    with caplog.at_level(logging.WARNING, logger="departing"):
        compiling.log_compilation(fresh, "a test", 1)
        assert "Compiling a test" in caplog.text
        fresh(1)
        caplog.clear()
        compiling.log_compilation(fresh, "a test", 1)
        assert caplog.text == ""


def test_a_saved_plan_is_plain_json(tmp_path):
    dp.plan(magazine(), gap=1e-2).save(tmp_path / "policy.json")
    document = json.loads((tmp_path / "policy.json").read_text())
    assert document["kind"] == "alpha"
    assert len(document["vectors"]) == len(document["categories"])
