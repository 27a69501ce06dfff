"""What every policy promises; every kind that can be saved is held to it."""

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
]


def counts(*shape):
    seen = np.zeros((*shape, 3, 4), np.int64)
    seen[..., :2] = RNG.integers(0, 3, (*shape, 3, 2))
    return seen


def test_every_kind_has_an_example():
    assert {policy.kind for policy in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize("policy", EXAMPLES, ids=repr)
class TestPolicy:
    def test_it_is_a_policy(self, policy):
        assert isinstance(policy, dp.Policy)

    @pytest.mark.parametrize("shape", [(), (1,), (7,), (0,), (2, 3)])
    def test_a_batch_is_answered_in_its_shape(self, policy, shape):
        answer = policy.recommend(counts(*shape))
        assert isinstance(answer, np.ndarray)
        assert answer.shape == shape
        assert answer.dtype.kind == "i"
        assert ((answer >= 0) & (answer < 3)).all()

    def test_a_batch_is_answered_like_single_users(self, policy):
        seen = counts(200)
        assert policy.recommend(seen).tolist() == [int(policy.recommend(row)) for row in seen]

    def test_the_same_counts_always_get_the_same_answer_and_stay_as_they_are(self, policy):
        seen = counts(50)
        before = seen.copy()
        assert (policy.recommend(seen) == policy.recommend(seen[::-1])[::-1]).all()
        assert (seen == before).all()

    @pytest.mark.parametrize("ending", [".toml", ".json"])
    def test_it_comes_back_from_a_file(self, policy, tmp_path, ending):
        policy.save(tmp_path / f"policy{ending}")
        again = dp.load_policy(tmp_path / f"policy{ending}")
        assert again == policy
        assert hash(again) == hash(policy)
        seen = counts(100)
        assert (again.recommend(seen) == policy.recommend(seen)).all()

    def test_wrong_counts_are_refused(self, policy):
        for wrong in (np.full((3, 4), -1), np.full((3, 4), 0.5), np.zeros((3, 3))):
            with pytest.raises(dp.InputError, match="counts"):
                policy.recommend(wrong)

    def test_where_it_says_it_has_settled_it_has(self, policy):
        instance = magazine()
        seen = counts(300)
        bounds = policy.switch_probability_bounds(seen, instance)
        assert bounds.shape == (300, 3)
        assert ((bounds >= 0) & (bounds <= 1)).all()
        settled = (bounds == 0).all(axis=1)
        later = seen[settled] + counts(int(settled.sum()))
        assert (policy.recommend(later) == policy.recommend(seen[settled])).all()

    @pytest.mark.parametrize("shape", [(), (7,), (0,), (2, 3)])
    def test_it_keeps_to_allowed_categories(self, policy, shape):
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

    def test_forbidding_everything_is_refused(self, policy):
        with pytest.raises(dp.InputError, match="allowed forbids every category"):
            policy.recommend(counts(2), allowed=[])

    def test_it_has_words(self, policy):
        assert policy.words(["news", "sport", "music"])


def test_words_of_schedules():
    names = blog().categories
    assert dp.Fixed(1).words(names) == "always sports"
    assert dp.Threshold(first=1, steps=6, then=0).describe(names) == "sports × 6, then economics"
    assert dp.Threshold(first=1, steps=0, then=0).describe(names) == "always economics"
