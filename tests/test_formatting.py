from departing.formatting import format_bounds, format_number, format_percent, format_significant


def test_missing_values_are_a_dash():
    nan = float("nan")
    assert format_number(nan) == format_significant(nan) == format_percent(nan) == format_percent(None) == "–"


def test_tiny_and_large_numbers_have_an_exponent():
    assert format_number(1e-9) == "1e-09"
    assert format_bounds(2e7, 2e7) == "2e+07 to 2e+07"


def test_percentages_have_two_significant_digits():
    assert [format_percent(share) for share in (0.5, 0.094, -0.012, 1e-12)] == ["50%", "9.4%", "-1.2%", "0%"]
