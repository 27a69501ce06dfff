"""Rewards, horizon and segments of an instance."""

import numpy as np
import pytest

import departing as dp
from departing.model.validation import check_instance

CLICK = [[0.5, 0.28], [0.4, 0.39]]
DEVICES = dp.Segments(["mobile", "desktop"], share=[0.75, 0.25], prior=[[0.8, 0.2], [0.4, 0.6]], columns=["device"])


def shop(**fields):
    return dp.Instance(None, CLICK, 0.5, segments=DEVICES, reward=[1.0, 10.0], unit="euro", horizon=7, **fields)


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_extensions_are_saved_and_loaded(tmp_path, suffix):
    shop().save(tmp_path / f"shop.{suffix}")
    assert dp.Instance.load(tmp_path / f"shop.{suffix}") == shop()


def test_the_prior_of_an_instance_with_segments_may_be_omitted_from_its_file():
    document = shop().to_dict()
    del document["prior"]
    assert dp.Instance.from_dict(document) == shop()
    del document["segments"]
    with pytest.raises(dp.InputError, match="lacks the field 'prior'"):
        dp.Instance.from_dict(document)


def test_an_instance_without_extensions_has_none_in_its_file():
    plain = dp.Instance([0.4, 0.6], CLICK)
    assert plain.extensions == ()
    assert set(plain.to_dict()) == {"prior", "click", "depart", "categories", "types"}


def test_the_values_of_fixed_policies_include_rewards_and_horizon():
    instance = dp.Instance([1.0], [[0.5], [0.4]], 0.5, reward=[1.0, 10.0], horizon=3)
    expected = [sum(0.5 * 0.75**n for n in range(3)), sum(4.0 * 0.7**n for n in range(3))]
    np.testing.assert_allclose(instance.fixed_values[:, 0], expected, rtol=1e-14)


def test_the_data_frame_has_rewards():
    frame = shop().to_frame()
    assert frame["reward"].tolist() == [1.0, 10.0, 1.0, 10.0]
    assert frame["category"].tolist()[:2] == ["category 0", "category 1"]
    assert "reward" not in dp.Instance([0.4, 0.6], CLICK).to_frame()


def test_new_segments_replace_the_prior():
    others = dp.Segments(["all"], [1.0], [[0.3, 0.7]])
    assert shop().replace(segments=others).prior.tolist() == [0.3, 0.7]
    assert shop().replace(segments=None).prior.tolist() == shop().prior.tolist()
    assert shop().replace(prior=[0.1, 0.9], segments=None).prior.tolist() == [0.1, 0.9]
    with pytest.raises(dp.InputError, match="omit the prior, or set `segments` to None"):
        shop().replace(prior=[0.1, 0.9])


def test_the_representation_can_be_evaluated():
    for instance in (shop(), shop().replace(segments=None), shop(depart_on_click=0.1)):
        assert eval(repr(instance), {"Instance": dp.Instance, "Segments": dp.Segments}) == instance
    many = dp.Segments([str(i) for i in range(60)], np.full(60, 1 / 60), np.full((60, 2), 0.5))
    assert repr(shop().replace(segments=many)).startswith("<Instance with 2 categories")


def test_relabelling_moves_rewards_and_priors_of_segments():
    other = shop(categories=["a", "b"]).relabel(categories=[1, 0], types=[1, 0])
    assert other.reward.tolist() == [10.0, 1.0]
    assert other.segments.prior.tolist() == [[0.2, 0.8], [0.6, 0.4]]
    assert other.relabel([1, 0], [1, 0]) == shop(categories=["a", "b"])


def test_unknown_segments_have_the_common_prior():
    for unknown in ("tablet", None):
        np.testing.assert_allclose(shop().in_segment(unknown).prior, [0.7, 0.3], rtol=1e-15)
    assert shop().in_segment("desktop").prior.tolist() == [0.4, 0.6]
    assert shop().in_segment("desktop").segments is None


def test_the_structure_of_the_paper_requires_equal_rewards_and_no_horizon():
    plain = dp.Instance([0.4, 0.6], CLICK)
    assert plain.structure == plain.replace(reward=[3, 3]).structure == "column"
    assert plain.replace(reward=[1, 2]).structure is plain.replace(horizon=4).structure is None


def test_functions_refuse_extensions_that_they_do_not_support():
    check_instance(shop(), ("reward", "horizon", "segments"))
    with pytest.raises(dp.InputError, match=r"instance\.horizon is set.*replace\(horizon=None\)"):
        check_instance(shop(), ("reward", "segments"))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"reward": [1.0]}, "reward is .* expected 2 numbers ≥ 0"),
        ({"reward": [1.0, -1.0]}, "reward is"),
        ({"reward": [0.0, 0.0]}, "not all 0"),
        ({"reward": [1.0, float("inf")]}, "reward is"),
        ({"unit": " "}, "unit is ' '"),
        ({"horizon": 0}, "horizon is 0; expected an integer from 1"),
        ({"horizon": True}, "horizon is True"),
        ({"segments": DEVICES}, "the segments have the mean prior"),
        ({"segments": {"names": []}}, "expected a Segments object"),
    ],
)
def test_invalid_extensions_raise(fields, sentence):
    with pytest.raises(dp.InputError, match=sentence):
        dp.Instance([0.4, 0.6], CLICK, **fields)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"names": ["a", "a"]}, "'a' twice"),
        ({"share": [0.5, 0.6]}, "sum of 1.1; expected 1"),
        ({"share": [1.0]}, "share has 1 entries; expected 2, one per segment"),
        ({"prior": [[0.5, 0.5], [0.5, 0.4]]}, "sum of 0.9"),
        ({"prior": [0.5, 0.5]}, "expected one row of probabilities"),
    ],
)
def test_invalid_segments_raise(fields, sentence):
    valid = {"names": ["a", "b"], "share": [0.5, 0.5], "prior": [[1.0, 0.0], [0.0, 1.0]]}
    with pytest.raises(dp.InputError, match=sentence):
        dp.Segments(**(valid | fields))


def test_an_instance_without_rewards_can_be_replaced_by_one_with_more_categories():
    one = dp.Instance([1.0], [[0.5]], 0.5, horizon=3)
    more = one.replace(click=[[0.5], [0.2]], depart=0.5, depart_on_click=0.0, categories=None)
    assert more.reward.tolist() == [1, 1]
    with pytest.raises(dp.InputError, match="reward"):
        one.replace(reward=[2.0]).replace(click=[[0.5], [0.2]], depart=0.5, depart_on_click=0.0, categories=None)


def test_a_policy_by_segment_recommends_to_users_of_several_segments():
    policy = dp.BySegment({"mobile": dp.Fixed(1), "desktop": dp.Greedy(shop())}, default=dp.Fixed(0))
    counts = np.zeros((3, 2, 4), np.int64)
    assert policy.recommend(counts, segment=["mobile", "tablet", None]).tolist() == [1, 0, 0]
    assert policy.recommend(counts, [0], segment=["mobile", "tablet", None]).tolist() == [0, 0, 0]
    with pytest.raises(dp.InputError, match=r"segment has shape \(2,\)"):
        policy.recommend(counts, segment=["mobile", "mobile"])


def test_greedy_maximises_the_expected_reward_from_the_prior_of_the_segment():
    greedy = dp.Greedy(dp.Instance(None, [[0.9, 0.1], [0.1, 0.8]], segments=DEVICES))
    start = np.zeros((2, 4), np.int64)
    assert [int(greedy.in_segment(name).recommend(start)) for name in (*DEVICES.names, None)] == [0, 1, 0]
    assert int(dp.Greedy(greedy.instance.replace(reward=[1, 10])).recommend(start)) == 1


def test_the_common_prior_of_rounded_shares_is_a_probability():
    thirds = dp.Segments(["a", "b", "c"], [0.1, 0.2, 0.7], [[1.0], [1.0], [1.0]])
    sevenths = dp.Segments(list("abcdefg"), [1 / 7] * 7, [[1.0]] * 7)
    many = dp.Segments([str(i) for i in range(49)], [1 / 49] * 49, [[1.0]] * 49)
    for segments in (thirds, sevenths, many):
        assert dp.Instance(None, [[0.5]], segments=segments).prior == pytest.approx(1)


def test_types_that_never_depart_are_refused_with_a_horizon_for_another_reason():
    with pytest.raises(dp.InputError, match=r"never departs .* so its value is infinite; every type needs"):
        dp.Instance([1.0], [[0.5]], 0.0)
    with pytest.raises(dp.InputError, match=r"not supported, with a horizon either; .* such as depart=1e-6\.$"):
        dp.Instance([1.0], [[0.5]], 0.0, horizon=5)
    assert dp.evaluate(dp.Instance([1.0], [[0.5]], 1e-6, horizon=5), dp.Fixed(0)).value == pytest.approx(
        2.5, rel=1e-5
    )
