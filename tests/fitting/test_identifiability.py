"""Warnings about parameters and types that are not identifiable."""

import numpy as np
import pytest

import departing as dp


def shown(*categories):
    """A user of four steps in each of these categories, of four that there are, who clicks on every second."""
    counts = np.zeros((4, 4), np.int64)
    counts[list(categories), :2] = 2
    return counts


@pytest.mark.parametrize(
    ("users", "named"),
    [
        ([(0, 1), (1, 3)], None),  # users of category 1 connect 0 and 3; 2 is never shown
        ([(0, 1), (3,)], "'category 0' and 'category 3'"),
        ([(0,), (1,), (3,)], "'category 0' and 'category 1'"),
    ],
)
def test_categories_that_no_user_connects_are_named(users, named):
    histories = dp.Histories(np.array([shown(*each) for each in users]), [400] + [300] * (len(users) - 1))
    warnings = [line for line in dp.fit(histories, types=2, n_init=2).warnings if "connects" in line]
    assert len(warnings) == (named is not None)
    assert all(f"such as {named}:" in line for line in warnings)
    assert not [line for line in dp.fit(histories, types=1).warnings if "connects" in line]


def test_equal_types_are_not_identified():
    twins = dp.Instance([0.5, 0.5], [[0.5, 0.5], [0.4, 0.4]], 0.5)
    fit = dp.fit(dp.sample_log(twins, users=3000, seed=1).histories, types=2)
    assert any("not distinguishable" in sentence for sentence in fit.warnings) or not fit.identified.click.all()


def test_short_histories_and_departures_after_clicks_are_reported():
    short = dp.fit(dp.Histories([[[0, 0, 1, 0]], [[0, 0, 0, 1]]], [500, 500]), types=2)
    assert any("Histories are short" in sentence for sentence in short.warnings)
    assert any("departures follow a click" in sentence for sentence in short.warnings)


def test_categories_with_few_impressions_are_named():
    rare = np.zeros((2, 2, 4), int)
    rare[0, 0], rare[1, 1] = [5, 5, 1, 0], [1, 0, 1, 0]
    named = dp.fit(dp.Histories(rare, [1000, 3], categories=["news", "film"]), types=1)
    assert any("Little data for 'film' (6 impressions)" in sentence for sentence in named.warnings)
