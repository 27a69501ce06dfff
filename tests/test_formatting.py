from types import SimpleNamespace

import numpy as np

from departing.formatting import format_bounds, format_number, format_percent, format_significant, json_fields


def test_missing_values_are_a_dash():
    nan = float("nan")
    assert format_number(nan) == format_significant(nan) == format_percent(nan) == format_percent(None) == "–"


def test_tiny_and_large_numbers_have_an_exponent():
    assert format_number(1e-9) == "1e-09"
    assert format_bounds(2e7, 2e7) == "2e+07 to 2e+07"


def test_percentages_have_two_significant_digits():
    assert [format_percent(share) for share in (0.5, 0.094, -0.012, 1e-12)] == ["50%", "9.4%", "-1.2%", "0%"]


def test_values_that_json_lacks_become_none_inside_arrays_too():
    values = np.array([[0.5, np.nan], [np.inf, 1.0]])
    fields = SimpleNamespace(matrix=values, listed=[-np.inf, 2.0], whole=np.arange(2), scalar=np.array(np.nan))
    assert json_fields(fields) == {
        "matrix": [[0.5, None], [None, 1.0]],
        "listed": [None, 2.0],
        "whole": [0, 1],
        "scalar": None,
    }
