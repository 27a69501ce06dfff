"""Regret against users: a line for every learner, with a band, beside the best fixed category."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from departing.model.files import check_suffix
from departing.model.instance import Floats
from departing.plotting.figures import FAINT, FIGURE_SUFFIXES, INK, PALETTE, save, shorten, tidy
from departing.studies.results import NOTHING, Curves, Results

COLOURS = [
    colour for colour in PALETTE if colour not in ("#f0e442", "#a6a6a6")
]  # yellow and grey are for other things
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
Dash = str | tuple[int, tuple[float, ...]]
RESAMPLES, LEVEL = 1000, 0.95
WIDTH, PLOT, LEFT = 9.6, 5.4, 0.75  # inches, as all lengths below
KEY, NAME, AMOUNT, SLOPE = 0.3, 0.62, 2.65, 3.2  # from the right end of the axes: where the parts of labels stand
LINE = 0.19  # from one label to the next
SMALL = 8.5  # points
TINY = 1e-300  # in place of zeros, which have no logarithm


@dataclass(frozen=True)
class Label:
    """What stands at the right of a line that ends at `end`."""

    name: str
    amount: str
    slope: str
    colour: str
    dash: Dash
    end: float


def write_plots(results: Results, folder: str | os.PathLike[str]) -> list[str]:
    """Draw every group, as SVG and as PNG; the names of the files."""
    names = []
    for group in results.study.groups:
        curves = results.curves(group)
        if not curves:
            continue
        figure = draw_regret(f"{results.study.title}: {group}", curves)
        for ending in (".svg", ".png"):
            names.append(f"regret-{group}{ending}")
            save(figure, os.path.join(folder, names[-1]))
    return names


def write_plot(title: str, curves: Sequence[Curves], path: str | os.PathLike[str]) -> None:
    """Draw the curves of learners on one instance to a file that ends in .svg, .png or .pdf."""
    check_suffix(path, FIGURE_SUFFIXES)  # a wrong ending is told before the work
    save(draw_regret(title, curves), path)


def draw_regret(title: str, curves: Sequence[Curves]) -> Figure:
    """Mean regret against users on log-log axes, with the best fixed category dashed for comparison."""
    height = max(4.6, 1.75 + LINE * (len(curves) + 1))
    tall = height - 1.6
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((LEFT / WIDTH, 0.9 / height, PLOT / WIDTH, tall / height))
    tidy(axes)
    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = _limits(curves)
    labels = [_draw_fixed(axes, curves[0], low)]
    for i, learner in enumerate(curves):
        colour, dash = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % 4]
        labels.append(_draw_learner(axes, learner, colour, dash, low, 0.16 if len(curves) <= len(COLOURS) else 0.07))
    axes.set_ylim(low, high)
    first, last = _first(curves, low), float(curves[0].users[-1])
    axes.set_xlim(first, last if last > first else 10 * first)
    _place(axes, labels, tall)
    axes.set_xlabel("users")
    axes.set_ylabel("regret so far, in clicks")
    bold: dict[str, Any] = {"size": 12, "weight": "bold"}
    figure.text(0.12 / WIDTH, 1 - 0.12 / height, shorten(title, WIDTH - 0.3, 12, "bold"), va="top", **bold)
    figure.text(0.12 / WIDTH, 0.1 / height, _caption(curves), size=SMALL, color=FAINT, va="bottom")
    return figure


def _limits(curves: Sequence[Curves]) -> tuple[float, float]:
    """The range of the regret axis: from a click to just above the largest regret."""
    tops = [float(learner.regret.mean(axis=0).max()) for learner in curves]
    return 1.0, 1.6 * max(*tops, curves[0].fixed_loss * float(curves[0].users[-1]), 10.0)


def _first(curves: Sequence[Curves], low: float) -> float:
    """The power of ten from which on there is something to see, at least two decades before the end."""
    users = curves[0].users
    seen = np.max([learner.regret.mean(axis=0) for learner in curves], axis=0) > low
    first = min(float(users[seen.argmax()]), float(users[-1]) / 100) if seen.any() else 1.0
    return float(10.0 ** max(floor(log10(max(first, 1.0))), 0))


def _draw_fixed(axes: Axes, curves: Curves, low: float) -> Label:
    lost = curves.fixed_loss * curves.users
    dash: Dash = (0, (4, 2.5))
    axes.plot(curves.users, np.maximum(lost, TINY), color=FAINT, linewidth=1.1, linestyle=dash, zorder=3)
    return Label("best fixed category", _amount(float(lost[-1])), "1.00", FAINT, dash, max(float(lost[-1]), low))


def _draw_learner(axes: Axes, curves: Curves, colour: str, dash: Dash, low: float, strength: float) -> Label:
    mean, steep = curves.regret.mean(axis=0), curves.slope.value
    below, above = (np.maximum(end, TINY) for end in band(curves))
    axes.fill_between(curves.users, below, above, color=colour, alpha=strength, linewidth=0)
    axes.plot(curves.users, np.maximum(mean, TINY), color=colour, linestyle=dash, linewidth=1.7)
    slope = "–" if np.isnan(steep) else f"{steep:.2f}"
    name = shorten(curves.learner, AMOUNT - NAME - 0.55, SMALL)
    return Label(name, _amount(float(mean[-1])), slope, colour, dash, max(float(mean[-1]), low))


def _amount(clicks: float) -> str:
    return "none" if clicks <= NOTHING else f"{clicks:,.0f}" if clicks < 1e6 else f"{clicks:.2g}"


def _place(axes: Axes, labels: list[Label], height: float) -> None:
    """Put the labels beside the ends of their lines, moved apart where they would be on top of each other."""
    low, high = axes.get_ylim()
    ordered = sorted(labels, key=lambda label: label.end)
    ends = [log10(label.end / low) / log10(high / low) * height for label in ordered]
    outside: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}

    def text(x: float, y: float, words: str, align: str, colour: str = INK) -> None:
        axes.text(1 + x / PLOT, y / height, words, color=colour, size=SMALL, va="center", ha=align, **outside)

    def line(x: tuple[float, float], y: tuple[float, float], **style: Any) -> None:
        axes.plot(1 + np.array(x) / PLOT, np.array(y) / height, **style, **outside)

    for x, words, align in ((NAME, "learner", "left"), (AMOUNT, "regret", "right"), (SLOPE, "slope", "right")):
        text(x, height + 0.2, words, align, FAINT)
    for label, end, place in zip(ordered, ends, spread(ends, LINE, height), strict=True):
        line((0.03, KEY - 0.06), (end, place), color=label.colour, linewidth=0.7, alpha=0.7)
        line((KEY, NAME - 0.07), (place, place), color=label.colour, linestyle=label.dash, linewidth=1.9)
        text(NAME, place, label.name, "left")
        text(AMOUNT, place, label.amount, "right")
        text(SLOPE, place, label.slope, "right")


def spread(wanted: Sequence[float], apart: float, most: float) -> list[float]:
    """Places in order, near those wanted, at least so far apart, from 0 to `most` as far as there is room.

    >>> spread([1.0, 1.0, 5.0], 0.5, 10.0)
    [0.75, 1.25, 5.0]
    """
    blocks: list[tuple[float, int]] = []  # the middle of labels that touch, and how many they are

    def inside(middle: float, n: int) -> float:
        half = (n - 1) * apart / 2
        return max(min(middle, most - half), half)

    for place in wanted:
        middle, n = inside(place, 1), 1
        while blocks and middle - n * apart / 2 < blocks[-1][0] + blocks[-1][1] * apart / 2:
            before, m = blocks.pop()
            middle, n = inside((before * m + middle * n) / (m + n), m + n), m + n
        blocks.append((middle, n))
    return [middle + (i - (n - 1) / 2) * apart for middle, n in blocks for i in range(n)]


def band(curves: Curves) -> tuple[Floats, Floats]:
    """The confidence band of the mean: quantiles of the means of samples drawn with replacement.

    Instances are drawn where there are several, with all their runs, else runs.
    """
    names = sorted(set(curves.instance))
    of = np.array([names.index(name) for name in curves.instance])
    units = (
        curves.regret
        if len(names) == 1
        else np.stack([curves.regret[of == i].mean(axis=0) for i in range(len(names))])
    )
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(len(units), np.full(len(units), 1 / len(units)), RESAMPLES) / len(units)
    low, high = np.quantile(drawn @ units, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return np.asarray(low), np.asarray(high)


def _caption(curves: Sequence[Curves]) -> str:
    runs, instances = len(curves[0].instance), len(set(curves[0].instance))
    if runs == 1:
        what = "One run."
    elif instances == 1:
        what = f"Mean of {runs} runs; bands are 95 % confidence for the mean, by bootstrap over runs."
    else:
        what = (
            f"Mean of {runs} runs on {instances} instances; bands are 95 % confidence for the mean, "
            "by bootstrap over instances."
        )
    return what + "\nAt the right: regret at the end, and the slope over the last two decades of users."
