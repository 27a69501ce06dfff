"""What is said of histories that do not tell all."""

import numpy as np
import pytest

import departing as dp


def shown(*categories):
    """A user of four steps in each of these categories, of four that there are, who clicks on every other."""
    counts = np.zeros((4, 4), np.int64)
    counts[list(categories), :2] = 2
    return counts


@pytest.mark.parametrize(
    ("users", "named"),
    [
        ([(0, 1), (1, 3)], None),  # one user of two links 0 and 3; 2 is never shown
        ([(0, 1), (3,)], "'category 0' and 'category 3'"),
        ([(0,), (1,), (3,)], "'category 0' and 'category 1'"),
    ],
)
def test_categories_that_no_user_links_are_named(users, named):
    histories = dp.Histories(np.array([shown(*each) for each in users]), [400] + [300] * (len(users) - 1))
    said = [line for line in dp.fit(histories, types=2, starts=2).warnings if "links" in line]
    assert len(said) == (named is not None)
    assert all(f"such as {named}:" in line for line in said)
    assert not [line for line in dp.fit(histories, types=1).warnings if "links" in line]
