"""Numbers written for people, and for JSON."""

import math


def number(value: float, digits: int = 6) -> str:
    """A number with so many decimals, or significant digits where it is large or tiny.

    >>> number(0.65029058), number(12345678.9), number(0.0)
    ('0.650291', '1.23457e+07', '0.000000')
    """
    if math.isnan(value):
        return "–"
    return f"{value:.{digits}f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.{digits}g}"


def significant(value: float) -> str:
    """Three significant digits.

    >>> significant(0.00103725)
    '0.00104'
    """
    return "–" if math.isnan(value) else f"{value:.3g}"


def bracket(lower: float, upper: float, digits: int = 10) -> str:
    """A bracket as the decimals (so many at most) both ends share in rounding, or as both ends.

    >>> bracket(0.65029058440749, 0.65029058440750), bracket(1.25, 1.5)
    ('0.6502905844', '1.25 to 1.5')
    """
    for shared in range(digits, 2, -1):
        if f"{lower:.{shared}f}" == f"{upper:.{shared}f}" and abs(upper) < 1e6:
            return f"{lower:.{shared}f}"
    return f"{lower:.6g} to {upper:.6g}"


def clicks(value: float) -> str:
    """A number of clicks: whole where it is large.

    >>> clicks(2.5e7), clicks(1234.5), clicks(99.7), clicks(0.0123), clicks(-1e-13)
    ('2.5e+07', '1,234', '100', '0.012', '0')
    """
    if math.isnan(value):
        return "–"
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}" if abs(value) > 1e-6 else "0"


def share(value: float | None) -> str:
    """A share as a percentage; a multiple where it is large."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:,.0f} ×" if value >= 10 else f"{value:.1%}" if abs(value) >= 1e-5 else "0.0%"


def finite(value: float) -> float | None:
    """`value`, or None where it is not a number, which JSON does not know."""
    return value if math.isfinite(value) else None
