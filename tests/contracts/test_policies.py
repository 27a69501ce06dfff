"""Promises of every policy, checked for every kind."""

import numpy as np
import pytest

import departing as dp
from departing.model.examples import blog, magazine
from departing.policy.library import KINDS

RNG = np.random.default_rng(0)


def some_table():
    rows = np.zeros((300, 3, 4), np.int64)
    rows[..., :2] = RNG.integers(0, 3, (300, 3, 2))
    rows = np.unique(rows, axis=0)
    return dp.Table(rows, RNG.integers(0, 3, len(rows)), fallback=dp.Walk([0, 1], then=2))


NAMES = magazine().categories
SEGMENTED = magazine().replace(
    prior=None, segments=dp.Segments(["mobile", "desktop"], [0.5, 0.5], [[0.9, 0.1, 0], [0, 0.1, 0.9]])
)
EXAMPLES = [
    dp.Fixed(2),
    dp.Threshold(first=1, steps=3, then=0),
    dp.Threshold(first=1, steps=0, then=2),
    dp.Threshold(first=1, steps=2**62 - 1, then=2),
    dp.Walk([0, 2, 2, 1], then=1),
    dp.Walk([], then=1),
    dp.Greedy(magazine()),
    dp.Alpha(magazine(), magazine().fixed_values, [0, 1, 2]),
    dp.plan(magazine(), gap=1e-2).policy,
    some_table(),
    dp.Table(np.zeros((0, 3, 4), np.int64), [], fallback=dp.Greedy(magazine())),
    dp.Table(np.zeros((1, 3, 4), np.int64), [1], fallback=some_table()),
    dp.BySegment({"mobile": dp.Greedy(magazine()), "desktop": dp.Fixed(1)}, default=dp.Threshold(1, 2, 0)),
    dp.Greedy(SEGMENTED),
    dp.Alpha(SEGMENTED, SEGMENTED.fixed_values, [0, 1, 2]),
    dp.Table(np.zeros((1, 3, 4), np.int64), [1], fallback=dp.Greedy(SEGMENTED)),
]
NAMED = [
    (dp.Fixed("music"), dp.Fixed(2)),
    (dp.Threshold("sport", 3, 0), dp.Threshold(1, 3, 0)),
    (dp.Walk(["news", 2, "music", 1], then="sport"), dp.Walk([0, 2, 2, 1], then=1)),
    (dp.Greedy(magazine()), dp.Greedy(magazine())),
    (dp.Alpha(magazine(), magazine().fixed_values, NAMES), dp.Alpha(magazine(), magazine().fixed_values, [0, 1, 2])),
    (
        dp.Table(np.zeros((1, 3, 4), np.int64), ["sport"], fallback=dp.Fixed("music")),
        dp.Table(np.zeros((1, 3, 4), np.int64), [1], fallback=dp.Fixed(2)),
    ),
    (
        dp.BySegment({"mobile": dp.Fixed("music")}, default=dp.Fixed("sport")),
        dp.BySegment({"mobile": dp.Fixed(2)}, default=dp.Fixed(1)),
    ),
]


def counts(*shape):
    seen = np.zeros((*shape, 3, 4), np.int64)
    seen[..., :2] = RNG.integers(0, 3, (*shape, 3, 2))
    return seen


def test_every_kind_has_an_example():
    assert {policy.kind for policy in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize("policy", EXAMPLES, ids=repr)
class TestPolicy:
    def test_it_satisfies_the_protocol(self, policy):
        assert isinstance(policy, dp.Policy)

    @pytest.mark.parametrize("shape", [(), (1,), (7,), (0,), (2, 3)])
    def test_recommendations_have_the_shape_of_the_batch(self, policy, shape):
        answer = policy.recommend(counts(*shape))
        assert isinstance(answer, np.ndarray)
        assert answer.shape == shape
        assert answer.dtype.kind == "i"
        assert ((answer >= 0) & (answer < 3)).all()

    def test_a_batch_gets_the_recommendations_of_single_users(self, policy):
        seen = counts(200)
        assert policy.recommend(seen).tolist() == [int(policy.recommend(row)) for row in seen]

    def test_equal_counts_get_equal_categories_and_are_not_modified(self, policy):
        seen = counts(50)
        before = seen.copy()
        assert (policy.recommend(seen) == policy.recommend(seen[::-1])[::-1]).all()
        assert (seen == before).all()

    @pytest.mark.parametrize("suffix", [".toml", ".json"])
    def test_saving_and_loading_preserves_it(self, policy, tmp_path, suffix):
        policy.save(tmp_path / f"policy{suffix}")
        again = dp.load_policy(tmp_path / f"policy{suffix}")
        assert again == policy
        assert hash(again) == hash(policy)
        seen = counts(100)
        assert (again.recommend(seen) == policy.recommend(seen)).all()

    def test_invalid_counts_are_refused(self, policy):
        for wrong in (np.full((3, 4), -1), np.full((3, 4), 0.5), np.zeros((3, 3))):
            with pytest.raises(dp.InputError, match="counts"):
                policy.recommend(wrong)

    def test_it_never_switches_where_the_switch_bound_is_zero(self, policy):
        instance = magazine()
        seen = counts(300)
        bounds = policy.switch_probability_bounds(seen, instance)
        assert bounds.shape == (300, 3)
        assert ((bounds >= 0) & (bounds <= 1)).all()
        committed = (bounds == 0).all(axis=1)
        later = seen[committed] + counts(int(committed.sum()))
        assert (policy.recommend(later) == policy.recommend(seen[committed])).all()

    @pytest.mark.parametrize("shape", [(), (7,), (0,), (2, 3)])
    def test_it_recommends_allowed_categories_only(self, policy, shape):
        seen = counts(*shape)
        free = policy.recommend(seen)
        assert (policy.recommend(seen, allowed=[0, 1, 2]) == free).all()
        for allowed in ([0], [2, 1], [True, False, True]):
            mask = np.array(allowed) if allowed[0] is True else np.isin(np.arange(3), allowed)
            shown = policy.recommend(seen, allowed=allowed)
            assert shown.shape == shape
            assert mask[shown].all()
            assert (shown[mask[free]] == free[mask[free]]).all()
        each = RNG.random((*shape, 3)) < 0.5
        each[..., 1] |= ~each.any(axis=-1)
        shown = policy.recommend(seen, allowed=each)
        assert np.take_along_axis(each, shown[..., None], axis=-1).all()

    @pytest.mark.parametrize("shape", [(), (7,), (0,), (2, 3)])
    def test_users_of_a_segment_get_its_policy(self, policy, shape):
        seen, names = counts(*shape), RNG.choice(np.array(["mobile", "tablet", None]), shape)
        mask = RNG.random((*shape, 3)) < 0.5
        mask[..., 1] |= ~mask.any(axis=-1)
        for allowed in (None, mask):
            restricted = {} if allowed is None else {"allowed": allowed}
            answer = policy.recommend(seen, segment=names.tolist(), **restricted)
            assert answer.shape == shape
            for name in ("mobile", "tablet", None):
                own = policy.in_segment(name).recommend(seen, **restricted)
                assert (answer == own)[np.asarray(names) == name].all()
                assert (policy.recommend(seen, segment=name, **restricted) == own).all()
        assert policy.in_segment(None).recommend(seen).tolist() == policy.recommend(seen).tolist()

    def test_events_and_a_segment_give_the_name_of_a_category(self, policy):
        named = policy.resolve(NAMES)
        first = named.in_segment("mobile").recommend(np.zeros((3, 4), int))
        assert named.recommend(events=[], segment="mobile") == NAMES[int(first)]

    def test_invalid_segments_are_refused(self, policy):
        with pytest.raises(dp.InputError, match="one for each user"):
            policy.recommend(counts(2), segment=["mobile"])
        with pytest.raises(dp.InputError, match="segment contains 3; expected names"):
            policy.recommend(counts(2), segment=["mobile", 3])

    def test_forbidding_everything_is_refused(self, policy):
        with pytest.raises(dp.InputError, match="allowed forbids every category"):
            policy.recommend(counts(2), allowed=[])

    def test_it_describes_itself(self, policy):
        assert policy.describe(NAMES)

    def test_resolving_indices_changes_nothing(self, policy):
        resolved = policy.resolve(NAMES)
        assert resolved == policy
        assert hash(resolved) == hash(policy)
        seen = counts(50)
        assert (resolved.recommend(seen) == policy.recommend(seen)).all()

    def test_allowed_categories_can_be_named(self, policy):
        resolved, seen = policy.resolve(NAMES), counts(50)
        by_name = resolved.recommend(seen, allowed=["music", "news"])
        assert (by_name == policy.recommend(seen, allowed=[0, 2])).all()
        with pytest.raises(dp.InputError, match="There is no category 'golf'"):
            resolved.recommend(seen, allowed=["golf"])


def test_every_kind_has_a_named_example():
    assert {policy.kind for policy, _ in NAMED} == set(KINDS)


@pytest.mark.parametrize(("named", "indexed"), NAMED, ids=repr)
class TestNamedCategories:
    def test_names_resolve_to_indices(self, named, indexed):
        resolved = named.resolve(NAMES)
        assert resolved == indexed
        assert hash(resolved) == hash(indexed)
        seen = counts(50)
        assert (resolved.recommend(seen) == indexed.recommend(seen)).all()
        assert dp.evaluate(magazine(), named, 1e-3).value == dp.evaluate(magazine(), indexed, 1e-3).value

    @pytest.mark.parametrize("suffix", [".toml", ".json"])
    def test_saving_and_loading_preserves_names(self, named, indexed, tmp_path, suffix):
        named.save(tmp_path / f"policy{suffix}")
        again = dp.load_policy(tmp_path / f"policy{suffix}")
        assert again == named
        assert hash(again) == hash(named)
        assert dp.load_policy(tmp_path / f"policy{suffix}", NAMES) == indexed

    def test_the_description_uses_names(self, named, indexed):
        assert named.describe(NAMES)
        assert named.resolve(NAMES).describe(NAMES) == indexed.describe(NAMES)


def test_descriptions_of_schedules():
    names = blog().categories
    assert dp.Fixed(1).describe(names) == dp.Fixed("sports").describe(names) == "always sports"
    assert dp.Threshold(first=1, steps=6, then=0).describe(names) == "sports × 6, then economics"
    assert dp.Threshold(first=1, steps=0, then=0).describe(names) == "always economics"
