import numpy as np
import pytest

import departing as dp
from departing.model.examples import blog, magazine


def test_a_policy_does_not_differ_from_itself():
    result = dp.compare(magazine(), dp.Greedy(magazine()), dp.Greedy(magazine()), users=1000)
    assert result.difference == result.stderr == 0
    assert result.first == result.second


def test_exchanging_the_policies_exchanges_the_result():
    pair = (dp.Fixed(0), dp.Greedy(magazine()))
    one, two = dp.compare(magazine(), *pair, users=5000), dp.compare(magazine(), *pair[::-1], users=5000)
    assert one.difference == -two.difference
    assert one.stderr == two.stderr
    assert (one.first, one.second) == (two.second, two.first)


@pytest.mark.parametrize("seed", range(5))
def test_the_difference_is_right_and_sharper_than_on_different_users(seed):
    pair = (dp.Fixed(1), dp.Threshold(first=1, steps=2, then=0))
    result = dp.compare(blog(), *pair, users=150_000, seed=seed)
    exact = dp.evaluate(blog(), pair[0]).value - dp.evaluate(blog(), pair[1]).value
    assert abs(result.difference - exact) < 4 * result.stderr
    assert result.stderr < result.unpaired_stderr / 3
    low, high = result.interval(0.9999)
    assert low < exact < high


def test_steps_can_be_limited_and_progress_followed():
    seen = []
    result = dp.compare(magazine(), dp.Fixed(0), dp.Fixed(1), users=70_000, max_steps=1, progress=seen.append)
    assert sum(seen) == 70_000
    for mean, a in ((result.first, 0), (result.second, 1)):
        assert abs(mean - magazine().click[a] @ magazine().prior) < 0.01


def test_invalid_arguments_raise_clear_errors():
    with pytest.raises(dp.InputError, match="users is 0"):
        dp.compare(blog(), dp.Fixed(0), dp.Fixed(1), users=0)
    with pytest.raises(dp.InputError, match="policy is None"):
        dp.compare(blog(), dp.Fixed(0), None)
    with pytest.raises(dp.InputError, match="confidence is 0"):
        dp.compare(blog(), dp.Fixed(0), dp.Fixed(1), users=10).interval(0)
    assert np.isnan(dp.compare(blog(), dp.Fixed(0), dp.Fixed(1), users=1).stderr)
