"""Numbers as text for tables, plots and pages, and as JSON values."""

import math
from collections.abc import Sequence
from decimal import ROUND_UP, Context
from typing import Any

import numpy as np

MISSING = "–"


def format_number(value: float, digits: int = 6) -> str:
    """Format with fixed decimals, or with significant digits if the number is large or tiny.

    >>> format_number(0.65029058), format_number(12345678.9), format_number(0.0)
    ('0.650291', '1.23457e+07', '0.000000')
    """
    if math.isnan(value):
        return MISSING
    return f"{value:.{digits}f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.{digits}g}"


def format_significant(value: float) -> str:
    """Format with three significant digits.

    >>> format_significant(0.00103725)
    '0.00104'
    """
    return MISSING if math.isnan(value) else f"{value:.3g}"


def format_limit(value: float) -> str:
    """Format the upper limit of a positive number with two significant digits, rounded up.

    >>> format_limit(0.02018), format_limit(0.02), format_limit(6.66e-15), format_limit(0.0)
    ('0.021', '0.02', '6.7e-15', '0')
    """
    return f"{float(Context(2, ROUND_UP).create_decimal(repr(float(value)))):.2g}"


def format_bounds(lower: float, upper: float, digits: int = 10) -> str:
    """Format an interval as the decimals on which both ends agree (at most `digits`), or as both ends.

    >>> format_bounds(0.65029058440749, 0.65029058440750), format_bounds(1.25, 1.5)
    ('0.6502905844', '1.25 to 1.5')
    """
    for shared in range(digits, 2, -1):
        if f"{lower:.{shared}f}" == f"{upper:.{shared}f}" and abs(upper) < 1e6:
            return f"{lower:.{shared}f}"
    return f"{lower:.6g} to {upper:.6g}"


def format_p_value(p: float) -> str:
    """Format a p-value as an equation, never as exactly 0 or 1.

    >>> format_p_value(0.0), format_p_value(0.00321), format_p_value(0.5), format_p_value(1.0)
    ('p < 1e-15', 'p = 0.0032', 'p = 0.5', 'p > 0.99')
    """
    if p > 0.99:
        return "p > 0.99"
    return f"p = {p:.2g}" if p >= 1e-15 else "p < 1e-15"


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number of things, with the noun in the singular for one.

    >>> format_count(1, "node"), format_count(1200, "node"), format_count(2, "category", "categories")
    ('1 node', '1,200 nodes', '2 categories')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def format_clicks(value: float) -> str:
    """Format a total number of clicks: an integer if it is large.

    >>> format_clicks(2.5e7), format_clicks(1234.5), format_clicks(99.7), format_clicks(0.0123), format_clicks(-1e-13)
    ('2.5e+07', '1,234', '100', '0.012', '0')
    """
    if math.isnan(value):
        return MISSING
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}" if abs(value) > 1e-6 else "0"


def format_time(seconds: float) -> str:
    """Format a duration as minutes and seconds, with hours if there are any.

    >>> format_time(4.2), format_time(75), format_time(3725), format_time(2e5)
    ('0:04', '1:15', '1:02:05', '55:33:20')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def format_clicks_per_user(value: float) -> str:
    """Format expected clicks per user, with fewer decimals if they are many.

    >>> format_clicks_per_user(0.65029058), format_clicks_per_user(12.3), format_clicks_per_user(1234.56)
    ('0.650', '12.300', '1,234.6')
    """
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.1f}"


def format_percent(share: float | None, smallest: float = 1e-9) -> str:
    """Format a share as a percentage with two significant digits, or as a multiple from ten times upwards.

    Shares below `smallest` are only said to be below it.

    >>> [format_percent(share) for share in (0.95, 1.0, 0.4321, 0.0123, 0.00041, 8e-6, 0.0, 12.3)]
    ['95%', '100%', '43%', '1.2%', '0.041%', '0.0008%', '0%', '12 ×']
    >>> format_percent(1e-6, smallest=0.001), format_percent(None)
    ('< 0.1%', '–')
    """
    if share is None or math.isnan(share):
        return MISSING
    size = abs(share)
    if size >= 10:
        return f"{share:,.0f} ×"
    if size < smallest:
        return "0%" if share <= 0 or smallest < 1e-6 else f"< {format_percent(smallest, 0.0)}"
    digits = max(0, 1 - math.floor(math.log10(size * 100)))
    text = f"{share:.{digits}%}"
    return text.rstrip("%").rstrip("0").rstrip(".") + "%" if "." in text else text


def shorten_name(name: str, letters: int = 40) -> str:
    """Put a name on one line of at most `letters` characters.

    >>> shorten_name("a category with a long name", 12)
    'a category …'
    """
    line = " ".join(name.split())
    return line if len(line) <= letters else line[: letters - 1] + "…"


def format_share(share: float) -> str:
    """Format a share of users as a whole percentage; small ones are only said to be below 1%.

    >>> format_share(0.402), format_share(0.003), format_share(0.0)
    ('40%', '<1%', '0%')
    """
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Table of aligned columns, the first to the left and the others to the right.

    >>> print(text_table(["category", "clicks"], [["news", "12"], ["music", "3"]]))
    category  clicks
    news          12
    music          3
    """
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    pad = [str.ljust, *[str.rjust] * (len(head) - 1)]
    return "\n".join(
        "  ".join(align(cell, width) for align, cell, width in zip(pad, line, widths, strict=True)).rstrip()
        for line in lines
    )


def first_few(names: Sequence[str], n: int) -> str:
    """List the first n names and the number of the others.

    >>> first_few(["news", "sport", "music"], 2)
    'news, sport and 1 more'
    """
    return ", ".join(names[:n]) + (f" and {len(names) - n} more" if len(names) > n else "")


def finite_or_none(value: float) -> float | None:
    """Replace NaN and infinities, which JSON lacks, by None."""
    return value if math.isfinite(value) else None


def json_fields(result: Any, *names: str) -> dict[str, Any]:
    """Attributes of `result`, all fields by default, as JSON values; NaN and infinities become None, arrays lists.

    >>> from departing.simulation.regret_curve import Slope
    >>> json_fields(Slope(0.5, math.nan))
    {'value': 0.5, 'stderr': None}
    """
    values = {name: getattr(result, name) for name in names or vars(result)}
    return {name: _json_value(value) for name, value in values.items()}


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return finite_or_none(value)
    if isinstance(value, np.ndarray):
        return _json_value(value.tolist())
    return [_json_value(each) for each in value] if isinstance(value, list) else value
