import json
import logging
import subprocess
import sys

import numpy as np
import pytest

import departing as dp
from departing.kernels import compiling
from departing.model.examples import blog, magazine
from departing.planning.baselines import evaluate_baselines
from departing.planning.policy_tree import policy_tree

COUNTER = dp.Instance([0.73, 0.27], [[0.52, 0.73], [0.35, 0.82], [0.42, 0.80]])


class TestBadInput:
    @pytest.mark.parametrize("gap", [0, -1e-3, float("nan"), "small"])
    def test_gap(self, gap):
        with pytest.raises(dp.InputError, match="gap is"):
            dp.plan(blog(), gap=gap)

    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), "long"])
    def test_seconds(self, seconds):
        with pytest.raises(dp.InputError, match="seconds is"):
            dp.plan(blog(), seconds=seconds)

    def test_unknown_method(self):
        with pytest.raises(dp.InputError, match="method is 'magic'; expected one of auto, closed-form, lattice"):
            dp.plan(blog(), method="magic")

    def test_a_method_that_does_not_apply_raises_an_error_that_lists_the_applicable_ones(self):
        with pytest.raises(
            dp.InputError,
            match=r"'lattice' does not apply: it requires sure departure.*Applicable methods: auto, search\.",
        ):
            dp.plan(magazine(), method="lattice")
        with pytest.raises(
            dp.InputError, match=r"'closed-form' does not apply.*Applicable methods: auto, lattice, search\."
        ):
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
            ("category 1", "allowed is 'category 1'; expected a list"),
            ([0, 1, 0], "expected each category once"),
            ([False, False, False], "forbids every category"),
            ([3], "contains 3; categories are 0 to 2"),
            ([-1], "contains -1"),
            ([True, False], "True or False for each of 3"),
            ([0.5], "expected names or indices of categories"),
            ([[0], [1, 2]], "expected names or indices of categories"),
            (["golf"], "There is no category 'golf'"),
            (2, "expected names or indices of categories"),
        ],
    )
    def test_allowed(self, allowed, match):
        with pytest.raises(dp.InputError, match=match):
            dp.plan(magazine(), allowed=allowed)
        with pytest.raises(dp.InputError, match=match):
            dp.Greedy(magazine()).recommend(np.zeros((3, 4), int), allowed=allowed)

    def test_allowed_without_a_reward(self):
        site = dp.Instance([0.5, 0.5], [[0.5, 0.2], [0.3, 0.4], [0.4, 0.4]], 0.5, reward=[1, 0, 0])
        with pytest.raises(dp.InputError, match="allowed has 'category 1', 'category 2' only, whose reward is"):
            dp.plan(site, allowed=[1, 2])

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
            assert dp.evaluate(instance, masked.policy, gap=1e-8).upper >= masked.lower
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
            values[a] = dp.evaluate(instance, dp.Table(rows, [a], fallback=plan.policy), gap=1e-7).value
        expected = max(values, key=values.get)
        assert abs(values[0] - values[1]) > 1e-4
        assert plan.policy.recommend(np.zeros((3, 4), int), allowed=[0, 1]) == expected

    def test_a_fallback_without_masks_raises_a_clear_error(self):
        class Mine:
            def recommend(self, counts):
                return np.zeros(np.shape(counts)[:-2], int)

        table = dp.Table(np.zeros((1, 3, 4), int), [0], fallback=Mine())
        with pytest.raises(dp.InputError, match=r"Mine\.recommend has no parameter allowed"):
            table.recommend(np.zeros((2, 3, 4), int), allowed=[1])


class TestPlans:
    def test_auto_selects_the_first_applicable_method(self):
        assert dp.plan(blog()).method == "closed-form"
        assert dp.plan(COUNTER).method == "lattice"
        assert dp.plan(magazine(), gap=1e-2).method == "search"

    def test_a_saved_policy_is_loaded_unchanged(self, tmp_path):
        for instance in (blog(), COUNTER, magazine()):
            plan = dp.plan(instance, gap=1e-3)
            for suffix in (".toml", ".json"):
                plan.save(tmp_path / f"policy{suffix}")
                assert dp.load_policy(tmp_path / f"policy{suffix}") == plan.policy

    def test_policies_are_compact(self, tmp_path):
        for seed in range(3):
            plan = dp.plan(dp.random_instance("uniform", 5, 5, seed=4000 + seed))
            plan.save(tmp_path / "policy.json")
            assert (tmp_path / "policy.json").stat().st_size < 1_000_000

    def test_progress_bounds_the_value(self):
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

    def test_descriptions(self):
        assert dp.plan(blog()).describe() == "sports × 6, then economics"
        assert (
            dp.plan(magazine(), gap=1e-2).describe().startswith("start with music, then adapt to the user's clicks (")
        )

    def test_the_summary_has_value_method_and_baselines(self):
        lines = dp.plan(magazine(), gap=1e-2).summary().splitlines()
        assert lines[0].startswith("Policy: start with music")
        assert lines[1].startswith("Expected clicks per user: 7.07")
        assert lines[2].startswith("Method: search. Heuristic search expanded ")
        assert [line.split(":")[0] for line in lines[3:]] == [
            "Loss compared with the optimal policy",
            "  greedy",
            "  always news",
        ]


class TestExplanations:
    def test_losses_of_baselines(self):
        plan = dp.plan(magazine())
        greedy, fixed = evaluate_baselines(plan)
        for baseline in (greedy, fixed):
            value = dp.evaluate(magazine(), baseline.policy).value
            assert plan.value - value in dp.Bounds(baseline.loss.lower - 1e-6, baseline.loss.upper + 1e-6)
        assert fixed.policy == dp.Fixed(0)
        masked = dp.plan(magazine(), allowed=["sport", "music"])
        assert evaluate_baselines(masked)[1].policy == dp.Fixed(2)
        assert evaluate_baselines(masked)[0].loss.lower > 0

    def test_the_policy_tree_follows_the_policy_with_the_right_shares(self):
        plan = dp.plan(magazine(), gap=1e-3)
        instance, first = plan.instance, policy_tree(plan.policy, plan.instance, depth=3, min_share=0.0)

        def check(branch, counts, weights):
            assert branch.category == plan.policy.recommend(counts)
            assert branch.share == pytest.approx(weights.sum())
            for then in branch.children:
                after = counts.copy()
                after[branch.category, then.outcome] += 1
                check(then, after, weights * instance.outcome_probabilities[branch.category, then.outcome])

        check(first, np.zeros((3, 4), int), instance.prior)
        assert [len(child.children) for child in first.children] == [2, 2]

    def test_sensitivity_plans_under_perturbed_instances(self):
        for instance in (COUNTER, magazine()):
            plan = dp.plan(instance)
            result = plan.sensitivity(0.1)
            assert {each.field for each in result.perturbations} == {"click", "depart", "prior"}
            lower = next(each for each in result.of("click") if each.change == "all lower")
            changed = dp.Instance(instance.prior, instance.click * 0.9, instance.depart)
            again = dp.plan(changed)
            assert lower.optimal_value == pytest.approx(again.value, rel=1e-3)
            assert lower.plan_value <= again.upper
            assert lower.plan_value == pytest.approx(plan.value_under(changed))
            assert all(each.loss >= 0 for each in result.perturbations)
            start = np.zeros((instance.n_categories, 4), int)
            assert result.first[0] == plan.policy.recommend(start)

    def test_the_value_of_a_plan_under_another_instance(self):
        plan = dp.plan(COUNTER)
        other = dp.random_instance("uniform", 2, 3, seed=9)
        assert plan.value_under(other) == dp.evaluate(other, plan.policy).value
        plan = dp.plan(magazine())
        assert plan.value_under(magazine()) == pytest.approx(plan.lower, abs=1e-9)


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


@pytest.mark.parametrize(
    "code",
    [
        "import departing as dp; from departing.model.examples import blog; dp.plan(blog()).describe()",
        "from departing.cli import app; app(['plan', 'blog', '--json'], standalone_mode=False)",
    ],
)
def test_a_closed_form_does_not_import_numba(code):
    code = f"import sys\n{code}\nsys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0
