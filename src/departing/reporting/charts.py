"""Charts as HTML and inline SVG: text keeps its size on phones, and colours come from CSS variables (light and dark).

Every text argument that ends in `_html` is inserted as it is; all others are escaped.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from departing.model.instance import Floats

N_COLOURS = 8  # colours of the palette in the style sheet; later categories are grey
MAX_POINTS = 400  # vertices of a line: more are not visible on a screen


@dataclass(frozen=True)
class Interval:
    """Row of an interval chart: a value with an interval (NaN ends if unknown)."""

    label_html: str
    value: float
    lower: float
    upper: float
    text: str
    strong: bool = False


def interval_chart(rows: Sequence[Interval], description: str, top: float | None = None) -> str:
    """Horizontal chart of values with intervals on a scale from 0 to `top` [default: the largest end]."""
    ends = [end for row in rows for end in (row.value, row.upper) if math.isfinite(end)]
    top = top or 1.04 * max(ends, default=1.0) or 1.0

    def place(value: float) -> str:
        return f"{100 * min(max(value, 0.0), top) / top:.2f}%"

    parts = []
    for row in rows:
        band = ""
        if math.isfinite(row.lower) and math.isfinite(row.upper):
            width = 100 * (min(row.upper, top) - min(max(row.lower, 0.0), top)) / top
            band = f"<i class='band' style='left:{place(row.lower)};width:{max(width, 0.0):.2f}%'></i>"
        strong = " strong" if row.strong else ""
        parts.append(
            f"<div class='interval{strong}'><span class='label'>{row.label_html}</span><span class='track'>"
            f"<i class='fill' style='width:{place(row.value)}'></i>{band}"
            f"<i class='dot' style='left:{place(row.value)}'></i></span>"
            f"<span class='number'>{html.escape(row.text)}</span></div>"
        )
    return f"<div class='intervals' role='img' aria-label='{html.escape(description)}'>{''.join(parts)}</div>"


@dataclass(frozen=True)
class Line:
    """Line of a line chart; `style` is a class of the style sheet: "observed" or "fitted"."""

    label: str
    x: Floats
    y: Floats
    style: str
    stepped: bool = False


def line_chart(lines: Sequence[Line], x_label: str, y_label: str, marks: Sequence[tuple[float, str]] = ()) -> str:
    """Lines of shares (0 to 1) on a linear x axis from 0; `marks` are vertical lines with a label."""
    x_top = max((float(line.x[-1]) for line in lines if len(line.x)), default=1.0) or 1.0
    drawn = "".join(
        f"<polyline class='{line.style}' points='{_points(line, x_top)}' vector-effect='non-scaling-stroke'/>"
        for line in lines
    )
    drawn += "".join(
        f"<line class='mark' x1='{100 * x / x_top:.2f}' x2='{100 * x / x_top:.2f}' y1='0' y2='100' "
        "vector-effect='non-scaling-stroke'/>"
        for x, _ in marks
    )
    keys = "".join(f"<span class='key {line.style}'>{html.escape(line.label)}</span>" for line in lines)
    keys += "".join(f"<span class='key mark'>{html.escape(label)}</span>" for _, label in marks)
    x_ticks = [(100 * tick / x_top, f"{tick:,g}") for tick in nice_ticks(x_top)]
    description = f"{y_label} by {x_label}"
    svg = f"<svg viewBox='0 0 100 100' preserveAspectRatio='none' aria-hidden='true'>{drawn}</svg>"
    return f"<div class='keys'>{keys}</div>{_frame(svg, x_ticks, _share_ticks(), x_label, y_label, description)}"


def _points(line: Line, x_top: float) -> str:
    x, y = np.asarray(line.x, float), np.clip(np.asarray(line.y, float), 0.0, 1.0)
    if len(x) > MAX_POINTS:
        kept = np.unique(np.linspace(0, len(x) - 1, MAX_POINTS).round().astype(int))
        x, y = x[kept], y[kept]
    if line.stepped:
        x, y = np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]
    return " ".join(f"{100 * a / x_top:.2f},{100 * (1 - b):.2f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))


@dataclass(frozen=True)
class Point:
    """Point of a calibration chart: forecast and observed rates of a group of `n` steps."""

    forecast: float
    observed: float
    n: int
    unusual: bool
    description: str


def calibration_chart(points: Sequence[Point], x_label: str, y_label: str) -> str:
    """Observed against forecast rates; points of a fitting model lie on the diagonal."""
    rates = [rate for point in points for rate in (point.forecast, point.observed)]
    ticks = _tick_range(min(rates, default=0.0), max(rates, default=1.0))
    start, span, largest = ticks[0], ticks[-1] - ticks[0], max((point.n for point in points), default=1)

    def place(rate: float) -> str:
        return f"{100 * (rate - start) / span:.2f}%"

    dots = "".join(
        f"<i class='point{' unusual' if point.unusual else ''}' title='{html.escape(point.description)}' "
        f"style='left:{place(point.forecast)};bottom:{place(point.observed)};"
        f"--size:{5 + 9 * math.sqrt(point.n / largest):.1f}px'></i>"
        for point in sorted(points, key=lambda point: (point.unusual, -point.n))
    )
    svg = (
        "<svg viewBox='0 0 100 100' preserveAspectRatio='none' aria-hidden='true'>"
        "<line class='diagonal' x1='0' y1='100' x2='100' y2='0' vector-effect='non-scaling-stroke'/></svg>"
    )
    labels = [(100 * (tick - start) / span, f"{100 * tick:,g}%") for tick in ticks]
    description = f"{y_label} against {x_label}"
    return _frame(svg + dots, labels, labels, x_label, y_label, description, " square")


def _frame(
    inside: str,
    x_ticks: Sequence[tuple[float, str]],
    y_ticks: Sequence[tuple[float, str]],
    x_label: str,
    y_label: str,
    description: str,
    shape: str = "",
) -> str:
    """Axes around a chart; positions of ticks in percent."""
    grid = "".join(f"<i class='grid' style='bottom:{at:.2f}%'></i>" for at, _ in y_ticks)
    y_texts = "".join(f"<span style='bottom:{at:.2f}%'>{text}</span>" for at, text in y_ticks)
    x_texts = "".join(f"<span style='left:{at:.2f}%'>{text}</span>" for at, text in x_ticks)
    return (
        f"<div class='chart{shape}' role='img' aria-label='{html.escape(description)}'>"
        f"<div class='y-label'>{html.escape(y_label)}</div><div class='y-ticks'>{y_texts}</div>"
        f"<div class='area'>{grid}{inside}</div><div class='x-ticks'>{x_texts}</div>"
        f"<div class='x-label'>{html.escape(x_label)}</div></div>"
    )


def _share_ticks() -> list[tuple[float, str]]:
    return [(at, f"{at}%") for at in (0, 25, 50, 75, 100)]


def nice_ticks(top: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from 0 to `top`, at most `most`.

    >>> nice_ticks(23.0), nice_ticks(0.31)
    ([0.0, 5.0, 10.0, 15.0, 20.0], [0.0, 0.1, 0.2, 0.3])
    """
    base = 10.0 ** math.floor(math.log10(top / (most - 1)))
    step = next(factor * base for factor in (1, 2, 5, 10) if top / (factor * base) < most)
    return [round(step * i, 12) for i in range(int(top / step + 1e-9) + 1)]


def _tick_range(low: float, high: float) -> list[float]:
    """Ticks around rates from `low` to `high`, within 0 and 1.

    >>> _tick_range(0.42, 0.55), _tick_range(0.0, 0.004)
    ([0.4, 0.45, 0.5, 0.55], [0.0, 0.001, 0.002, 0.003, 0.004])
    """
    steps = nice_ticks(max(high - low, 0.005))
    step = steps[1] if len(steps) > 1 else 0.001
    first, last = math.floor(low / step + 1e-9), min(math.ceil(high / step - 1e-9), round(1 / step))
    return [round(step * i, 12) for i in range(first, max(last, first + 1) + 1)]


def bar_list(rows: Sequence[tuple[str, float, str, int]]) -> str:
    """Small bars of shares (0 to 1): label as HTML, value, text, and index of the colour."""
    bars = "".join(
        f"<div class='bar'><span class='label'>{label_html}</span><span class='track'>"
        f"<i class='{colour_class(colour)}' style='width:{100 * min(max(value, 0.0), 1.0):.1f}%'></i></span>"
        f"<span class='number'>{html.escape(text)}</span></div>"
        for label_html, value, text, colour in rows
    )
    return f"<div class='bars'>{bars}</div>"


def colour_class(index: int) -> str:
    """Class of the style sheet for the colour of a category by its rank."""
    return f"c{index}" if index < N_COLOURS else "c-other"
