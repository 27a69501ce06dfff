import json

import numpy as np
import pytest

import departing as dp
from departing.model.examples import blog, magazine, shop
from departing.model.files import write_document
from departing.policy.files import policy_to_dict
from departing.policy.library import describe, to_policy
from departing.policy.protocol import Reordered, policy_in_segment, recommended, resolve_policy
from helpers.strategies import Opaque


def at(*pairs):
    return np.array([[*pair, 0, 0] for pair in pairs])


def test_schedules_depend_on_the_number_of_steps():
    walk = dp.Walk([0, 2, 2], then=1)
    shown = [int(walk.recommend(at((n, 0), (0, 0), (0, 0)))) for n in range(6)]
    assert shown == [0, 2, 2, 1, 1, 1]
    assert int(dp.Threshold(first=1, steps=2, then=0).recommend(at((0, 1), (0, 1)))) == 0


def test_greedy_answers_impossible_counts_from_the_prior():
    greedy = dp.Greedy(blog())  # nobody stays without a click there
    assert int(greedy.recommend(at((0, 5), (0, 0)))) == int(greedy.recommend(at((0, 0), (0, 0)))) == 1


def test_greedy_takes_the_first_of_tied_categories():
    tied = dp.Instance([0.5, 0.5], [[0.2, 0.6], [0.6, 0.2], [0.4, 0.4]], 0.5)
    assert int(dp.Greedy(tied).recommend(np.zeros((3, 4), int))) == 0


def test_a_table_looks_counts_up_and_uses_the_fallback_for_others():
    rng = np.random.default_rng(1)
    rows = np.zeros((5000, 4, 4), np.int64)
    rows[..., :2] = rng.integers(0, 4, (5000, 4, 2))
    rows = np.unique(rows, axis=0)
    chosen = rng.integers(0, 4, len(rows))
    table = dp.Table(rows[::2], chosen[::2], fallback=dp.Fixed(3))
    assert (table.recommend(rows[::2]) == chosen[::2]).all()
    assert (table.recommend(rows[1::2]) == 3).all()
    assert repr(table).startswith("<Table of")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: dp.Fixed(-1), "category is -1; expected a category name or an integer ≥ 0"),
        (lambda: dp.Fixed(True), "category is True"),
        (lambda: dp.Fixed(" "), "category is ' '; expected a category name"),
        (
            lambda: dp.Fixed("golf").resolve(["news", "sport"]),
            "no category 'golf'; expected one of 'news', 'sport'",
        ),
        (lambda: dp.evaluate(blog(), dp.Fixed("golf")), "There is no category 'golf'"),
        (lambda: dp.Threshold(first=0, steps=-1, then=1), "steps is -1; expected an integer ≥ 0"),
        (lambda: dp.Threshold(first=0, steps=2.5, then=1), "steps is 2.5"),
        (lambda: dp.Threshold(first=0, steps=2**62, then=1), "at most"),
        (lambda: dp.Walk([0, -2], then=1), r"categories\[1\] is -2"),
        (lambda: dp.Table([[[0, 0, 1, 0]]], [0], dp.Fixed(0)), "for users who have not departed"),
        (lambda: dp.Table([[0, 0, 0, 0]], [0], dp.Fixed(0)), "expected \\[entries, categories, 4\\]"),
        (lambda: dp.Table([[[0, 0, 0, 0]]], [0, 1], dp.Fixed(0)), "categories has 2 entries; expected 1"),
        (lambda: dp.Table([[[1, 0, 0, 0]]] * 2, [0, 1], dp.Fixed(0)), "the same counts twice"),
        (lambda: dp.Table([[[1, 0, 0, 0]]], [0], 7), "fallback is 7; expected a policy"),
        (lambda: dp.Table([[[1, 0, 0, 0]]], [0], dp.Fixed(0)).recommend(np.zeros((2, 4))), "the table has 1"),
        (lambda: Opaque(dp.Fixed(0)).policy.save("policy.txt"), "expected one of"),
        (lambda: dp.Table([[[1, 0, 0, 0]]], [0], Opaque(dp.Fixed(0))).save("a.json"), "Opaque cannot be saved"),
        (lambda: dp.evaluate(blog(), dp.Fixed(2)), r"Fixed recommends category 2, but the instance has 2 \(0 to 1\)"),
        (lambda: dp.evaluate(blog(), 3), "policy is 3; expected an object with a method recommend"),
        (lambda: dp.evaluate(blog(), dp.Greedy), "policy is the class Greedy; expected an object"),
        (lambda: dp.Frozen("greedy", 2), "'greedy' requires an instance, which is not given here"),
        (lambda: dp.evaluate(blog(), "gready"), "There is no policy 'gready'; write fixed:C, threshold"),
        (lambda: dp.evaluate(blog(), "fixed:sprots"), "There is no category 'sprots'; did you mean 'sports'?"),
        (lambda: dp.simulate(blog(), "fixed:sprots", 10), "There is no category 'sprots'; did you mean 'sports'?"),
        (lambda: dp.compare(blog(), "greedy", "fixed:sprots", 10), "did you mean 'sports'?"),
        (lambda: dp.evaluate(blog(), dp.Fixed(0), gap=-1), "gap is -1"),
        (lambda: dp.evaluate(blog(), dp.Fixed(0), max_nodes=0), "max_nodes is 0"),
    ],
)
def test_invalid_policies_raise_a_clear_error(make, sentence):
    with pytest.raises(dp.InputError, match=sentence):
        make()


@pytest.mark.parametrize("answer", [np.zeros(3), np.zeros((2, 2), int), np.array(1), ["a", "b"]])
def test_invalid_recommendations_of_a_policy_are_refused(answer):
    class Wrong:
        def recommend(self, counts):
            return answer

    with pytest.raises(dp.InputError, match=r"Wrong.recommend returned .* expected integers of shape"):
        recommended(Wrong(), np.zeros((2, 2, 4), np.int64))


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("fixed:sports", dp.Fixed(1)),
        ("fixed:0", dp.Fixed(0)),
        ("threshold:sports, 6, economics", dp.Threshold(first=1, steps=6, then=0)),
        ("walk:0,1,sports,0", dp.Walk([0, 1, 1], then=0)),
        ("walk:1", dp.Walk([], then=1)),
        ("greedy", dp.Greedy(blog())),
    ],
)
def test_short_forms_are_parsed(text, policy):
    assert to_policy(text, blog().categories, blog()) == policy


@pytest.mark.parametrize("text", ["", "fixed", "fixed:", "fixed:0,1", "threshold:0,1", "walk:", "greedy:1", "best"])
def test_an_unknown_short_form_raises_an_error_that_lists_the_known_ones(text):
    with pytest.raises(dp.InputError, match=r"There is no policy .*write fixed:C"):
        to_policy(text, blog().categories, blog())
    with pytest.raises(dp.InputError, match="steps is 'x'"):
        to_policy("threshold:0,x,1", blog().categories)


def test_the_path_of_a_saved_policy_is_a_short_form(tmp_path):
    dp.Fixed(1).save(tmp_path / "p.toml")
    assert to_policy(str(tmp_path / "p.toml"), blog().categories) == dp.Fixed(1)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"kind": "odd"}, "policy kind 'odd'; expected one of alpha, by-segment, fixed, greedy"),
        ({}, "policy kind None"),
        ({"kind": "fixed"}, "lacks the field 'category'"),
        ({"kind": "fixed", "category": 1, "steps": 2}, "unknown field 'steps'"),
        ({"kind": "fixed", "category": -1}, "category is -1"),
        ({"kind": "walk", "categories": 3, "then": 0}, "categories is 3; expected a list of categories"),
        ({"kind": "walk", "categories": "ab", "then": 0}, "categories is 'ab'; expected a list"),
        ({"kind": "fixed", "category": 10**30}, "category is 1000000000000000000000000000000; expected a category"),
        (
            {
                "kind": "table",
                "counts": [[[0, 0, 0, 0]]],
                "categories": 5,
                "fallback": {"kind": "fixed", "category": 0},
            },
            "is 5",
        ),
        (
            {
                "kind": "table",
                "counts": [[[0, 0, 0, 0], [0]]],
                "categories": [5],
                "fallback": {"kind": "fixed", "category": 0},
            },
            "rows of different lengths",
        ),
        ({"kind": "greedy", "instance": 3}, "instance is 3; expected named fields"),
        ({"kind": "greedy", "instance": {"prior": [1.0]}}, "instance lacks the field 'click'"),
        ({"kind": "table", "counts": [[[0, 0, 0, 0]]], "categories": [0], "fallback": 1}, "fallback is 1"),
        ({"kind": "fixed", "category": 1, "version": 2}, "has version 2"),
    ],
)
def test_invalid_policy_files_raise_a_clear_error(tmp_path, document, sentence):
    (tmp_path / "policy.json").write_text(json.dumps(document))
    with pytest.raises(dp.InputError, match=sentence):
        dp.load_policy(tmp_path / "policy.json")


def test_policies_without_describe_are_described_by_their_type():
    assert describe(Opaque(dp.Fixed(0)), blog()) == "Opaque"
    assert describe(dp.Fixed(7), blog()) == "Fixed(category=7)"
    table = dp.Table(np.zeros((1, 2, 4), int), [0], fallback=Opaque(dp.Fixed(0)))
    assert describe(table, blog()) == "a table of 1 counts of up to 0 steps, else Opaque"


def test_a_table_checks_the_recommendations_of_its_fallback():
    class Wrong:
        def recommend(self, counts):
            return np.full(len(counts), 0.9)

    table = dp.Table(np.zeros((1, 2, 4), int), [0], fallback=Wrong())
    with pytest.raises(dp.InputError, match=r"Wrong.recommend returned float64"):
        table.recommend(at((1, 0), (0, 0)))
    assert table == dp.Table(np.zeros((1, 2, 4), int), [0], fallback=table.fallback)


@pytest.mark.parametrize("wrong", ["blog", None, 3])
def test_objects_other_than_instances_are_refused(wrong):
    for use in (
        lambda: dp.evaluate(wrong, dp.Fixed(0)),
        lambda: dp.simulate(wrong, dp.Fixed(0)),
        lambda: dp.compare(wrong, dp.Fixed(0), dp.Fixed(1)),
        lambda: dp.Greedy(wrong),
    ):
        with pytest.raises(dp.InputError, match="expected an Instance"):
            use()


def test_a_policy_for_another_number_of_categories_is_refused():
    with pytest.raises(dp.InputError, match="counts have 2 categories; the policy's instance has 3"):
        dp.evaluate(blog(), dp.Greedy(dp.random_instance("uniform", 2, 3)))


@pytest.mark.parametrize(
    ("vectors", "categories", "match"),
    [
        ([[1, 2, 3], [1, 2]], [0, 1], "expected numbers in rows of equal length"),
        ([[1, 2]], [0], "expected rows of 3 values, one for each type"),
        ([], [], "expected rows of 3"),
        ([[1, 2, float("nan")]], [0], r"vectors\[0, 2\] is nan; expected finite numbers"),
        ([[1, 2, 3]], [0, 1], "categories has 2 entries; expected 1"),
        ([[1, 2, 3]], [3], "recommends category 3, but the instance has 3"),
    ],
)
def test_invalid_alpha_vectors_are_refused(vectors, categories, match):
    with pytest.raises(dp.InputError, match=match):
        dp.Alpha(magazine(), vectors, categories)


def test_masks_of_another_shape_are_refused():
    with pytest.raises(dp.InputError, match="expected one that fits"):
        dp.Greedy(magazine()).recommend(np.zeros((2, 3, 4), int), allowed=np.ones((5, 3), bool))


def test_policies_made_for_other_categories_are_refused(tmp_path):
    site = dp.Instance([0.5, 0.5], [[0.5, 0.2], [0.3, 0.6]], 0.5, categories=["news", "sport"])
    other = site.replace(categories=["news", "weather"])
    plan = dp.plan(site)
    plan.save(tmp_path / "policy.json")
    assert dp.load_policy(tmp_path / "policy.json", site.categories) == plan.policy
    unnamed = dp.Instance(site.prior, site.click, site.depart)
    assert abs(dp.evaluate(unnamed, dp.Greedy(site)).value - dp.evaluate(site, dp.Greedy(site)).value) < 1e-8
    fixed = dp.Fixed(0).resolve(site.categories)
    for asked in (
        lambda: dp.load_policy(tmp_path / "policy.json", other.categories),
        lambda: to_policy(str(tmp_path / "policy.json"), other.categories),
        lambda: dp.evaluate(other, dp.Greedy(site)),
        lambda: dp.evaluate(other, fixed),
        lambda: dp.simulate(other, dp.Greedy(site), users=10),
        lambda: dp.compare(other, dp.Greedy(other), dp.Greedy(site), users=10),
    ):
        with pytest.raises(dp.InputError, match="made for the categories news, sport, not for news, weather"):
            asked()


class Custom:
    """A policy of another package, which knows its instance."""

    def __init__(self, instance):
        self.instance = instance

    def recommend(self, counts, allowed=None):
        return dp.Alpha(self.instance, self.instance.fixed_values, range(3)).recommend(counts, allowed)


@pytest.mark.parametrize(
    "policy",
    [
        dp.Fixed(1).resolve(magazine().categories),
        dp.Walk([0, 2, 1, 1], then=2).resolve(magazine().categories),
        dp.Threshold("sport", 2, "music").resolve(magazine().categories),
        dp.Greedy(magazine()),
        dp.plan(magazine(), gap=1e-2).policy,
        dp.Table(np.zeros((1, 3, 4), int), [2], dp.Greedy(magazine())),
        dp.Table([[[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]], [1], dp.Fixed(0)).resolve(magazine().categories),
        Custom(magazine()),
    ],
    ids=lambda policy: type(policy).__name__,
)
@pytest.mark.parametrize("order", [[2, 0, 1], [1, 2, 0], [0, 2, 1]])
def test_a_policy_for_the_same_categories_in_another_order_is_permuted_by_name(policy, order, tmp_path):
    site, other = magazine(), magazine().relabel(order)
    rng = np.random.default_rng(3)
    seen = np.zeros((300, 3, 4), int)
    seen[..., :2] = rng.integers(0, 3, (300, 3, 2))
    mask = rng.random((300, 3)) < 0.6
    mask[~mask.any(axis=1)] = True
    moved = resolve_policy(policy, other.categories)
    shown = moved.recommend(seen[:, order])
    assert [site.categories[a] for a in policy.recommend(seen)] == [other.categories[a] for a in shown]
    if hasattr(policy, "instance"):  # a schedule falls back to the first category that is allowed
        one, two = policy.recommend(seen, allowed=mask), moved.recommend(seen[:, order], allowed=mask[:, order])
        assert [site.categories[a] for a in one] == [other.categories[a] for a in two]
    one, two = dp.evaluate(site, policy), dp.evaluate(other, policy)
    assert one.lower <= two.upper
    assert two.lower <= one.upper
    back = resolve_policy(moved, site.categories)
    assert (back.recommend(seen) == policy.recommend(seen)).all()
    if not isinstance(policy, Custom):
        write_document(tmp_path / "policy.json", "policy", policy_to_dict(policy) | {"names": list(site.categories)})
        loaded = dp.load_policy(tmp_path / "policy.json", other.categories)
        assert (loaded.recommend(seen) == moved.recommend(seen)).all()


def test_a_plan_is_chained_with_categories_in_another_order(tmp_path):
    site = magazine()
    other = site.relabel([1, 2, 0])
    plan = dp.plan(site, gap=1e-3)
    plan.save(tmp_path / "policy.json")
    for policy in (plan, str(tmp_path / "policy.json")):
        assert abs(dp.evaluate(other, policy).value - plan.value) < 1e-2
        run = dp.simulate(other, policy, users=2000, seed=1)
        assert abs(run.clicks / 2000 - plan.value) < 1.0


def test_names_work_wherever_a_policy_is_evaluated():
    site = magazine()
    walk = dp.Walk(["news", 1], then="music")
    assert dp.evaluate(site, walk).value == dp.evaluate(site, dp.Walk([0, 1], then=2)).value
    run = dp.simulate(site, dp.Threshold("sport", 2, "news"), users=1000, seed=1)
    assert run.clicks == dp.simulate(site, dp.Threshold(1, 2, 0), users=1000, seed=1).clicks
    named = dp.compare(site, dp.Fixed("news"), walk, users=1000, seed=1)
    assert named.difference == dp.compare(site, dp.Fixed(0), dp.Walk([0, 1], then=2), users=1000, seed=1).difference


def test_a_policy_with_names_says_how_to_resolve_them():
    with pytest.raises(dp.InputError, match=r"names the category 'music'.*call policy.resolve"):
        dp.Fixed("music").recommend(np.zeros((3, 4), int))
    with pytest.raises(dp.InputError, match=r"does not know the names.*give indices, or call policy.resolve"):
        dp.Fixed(1).recommend(np.zeros((3, 4), int), allowed=["news"])


def test_the_policy_of_a_plan_knows_the_names_of_the_categories(tmp_path):
    plan = dp.plan(blog())
    start = np.zeros((2, 4), int)
    assert int(plan.policy.recommend(start, allowed=["economics"])) == 0
    plan.save(tmp_path / "policy.toml")
    assert int(dp.load_policy(tmp_path / "policy.toml").recommend(start, allowed=["economics"])) == 0


def test_texts_and_plans_stand_for_policies():
    site, plan = blog(), dp.plan(blog())
    for given, policy in (
        ("greedy", dp.Greedy(site)),
        ("fixed:sports", dp.Fixed(1)),
        ("threshold:sports,6,economics", dp.Threshold(1, 6, 0)),
        (plan, plan.policy),
    ):
        assert dp.evaluate(site, given).value == dp.evaluate(site, policy).value
        assert dp.simulate(site, given, 500, seed=1).clicks == dp.simulate(site, policy, 500, seed=1).clicks
        assert dp.compare(site, given, "greedy", 500) == dp.compare(site, policy, dp.Greedy(site), 500)


def test_schedules_replace_a_category_by_that_of_the_next_phase_that_is_allowed():
    rng = np.random.default_rng(0)
    for n_phases in (1, 2, 5, 40):
        walk = dp.Walk(rng.integers(0, 4, n_phases).tolist(), then=int(rng.integers(0, 4)))
        counts = np.zeros((60, 5, 4), np.int64)
        counts[:, 4, 0] = np.arange(60)
        mask = rng.random((60, 5)) < 0.4
        mask[~mask.any(axis=1), 2] = True
        sequence = [*walk.categories, *[walk.then] * 60]
        for step, (category, row) in enumerate(zip(walk.recommend(counts, allowed=mask), mask, strict=True)):
            assert category == next((a for a in sequence[step:] if row[a]), row.argmax())


class NotIterable(np.ndarray):
    """An array over which no Python loop is possible."""

    def __iter__(self):
        raise AssertionError


def test_a_long_walk_has_a_short_description_and_no_loop_over_its_phases():
    walk = dp.Walk([0, 1] * 1000, then=2)
    assert walk.describe(["a", "b", "c"]) == "a × 1, b × 1, " * 10 + "…, then c"
    walk.__dict__["phase_categories"] = walk.phase_categories.view(NotIterable)
    assert walk.recommend(np.zeros((3, 4), np.int64), allowed=[2]) == 2


USES = {
    "evaluate": dp.evaluate,
    "simulate": lambda site, policy: dp.simulate(site, policy, users=10),
    "compare": lambda site, policy: dp.compare(site, "greedy", policy, users=10),
    "power": lambda site, policy: dp.power(site, policy, against="greedy", clicks_only=True),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("by_name", [True, False])
def test_policies_for_other_segments_only_are_refused(use, by_name):
    site = shop()
    own = site.segments
    other = site.replace(prior=None, segments=dp.Segments(["a", "b", "c", "d"], own.share, own.prior))
    policy = dp.Greedy(other)
    if by_name:
        policy = dp.BySegment({"a": dp.Fixed("fashion")}, default=dp.Fixed("electronics"))
    with pytest.raises(dp.InputError, match=r"is for the segments 'a'.*, but the instance has 'de/mobile'"):
        use(site, policy)
    use(site, policy.in_segment(None) if by_name else dp.Fixed("offers"))
    use(site, dp.BySegment({"a": dp.Fixed(0), "de/mobile": dp.Fixed(1)}, default=dp.Fixed(2)))  # one is known


def test_policies_that_contain_a_policy_by_segment_depend_on_the_segment():
    by_segment = dp.BySegment({"de": Opaque(dp.Fixed(1))}, default=dp.Fixed(0))
    table = dp.Table(np.zeros((0, 3, 4), int), [], fallback=by_segment)
    start = np.zeros((3, 4), int)
    assert table.segment_names == ("de",)
    assert int(table.recommend(start, segment="de")) == 1
    turned = Reordered(by_segment, [1, 0, 2])
    assert turned.segment_names == ("de",)
    assert int(policy_in_segment(turned, "de").recommend(start)) == 0
    assert int(policy_in_segment(turned, "fr").recommend(start)) == 1


def test_plans_of_all_methods_recommend_by_segment():
    for site in (shop(), shop().replace(horizon=3)):
        plan = dp.plan(site, gap=0.01)
        for name in (*site.segments.names, "tablet"):
            own = plan.by_segment.get(name, plan.common).policy
            assert plan.policy.recommend(events=[], segment=name) == own.recommend(events=[])
