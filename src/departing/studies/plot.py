"""Plot of regret against users: one curve per learner with a confidence band, the best fixed category, the bound."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from departing.formatting import MISSING
from departing.model.instance import Floats
from departing.plotting.figures import FAINT, INK, PALETTE, save, shorten, tidy
from departing.studies.results import NEGLIGIBLE_REGRET, Curves, StudyResults

# Yellow is too faint for a line, grey is close to the colour of the best fixed category.
COLOURS = [colour for colour in PALETTE if colour not in ("#f0e442", "#a6a6a6")]
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
Dash = str | tuple[int, tuple[float, ...]]
RESAMPLES, CONFIDENCE = 1000, 0.95  # of the bootstrap; 25 resamples lie beyond each end
# Layout in inches: the figure, the axes and their left margin; label columns, measured from the right end of the
# axes; and the distance of two labels.
WIDTH, PLOT, LEFT = 9.6, 5.4, 0.75
KEY, NAME, AMOUNT, SLOPE = 0.3, 0.62, 2.65, 3.2
LABEL_HEIGHT = 0.19
LABEL_SIZE = 8.5  # points
TINY = 1e-300  # replaces zeros, which have no logarithm


@dataclass(frozen=True)
class Label:
    """Label at the right of a curve that ends at `end`."""

    name: str
    amount: str
    slope: str
    colour: str
    dash: Dash
    end: float


def write_plots(results: StudyResults, folder: str | os.PathLike[str]) -> list[str]:
    """Plot every group as SVG and PNG; return the names of the files."""
    names = []
    for group in results.study.groups:
        if not results.curves(group):
            continue
        figure = results.plot(group)
        for suffix in (".svg", ".png"):
            names.append(f"regret-{group}{suffix}")
            save(figure, os.path.join(folder, names[-1]))
    return names


def draw_regret(title: str, curves: Sequence[Curves]) -> Figure:
    """Mean regret against users on log-log axes, with the best fixed category and the lower bound, if it is known."""
    height = max(4.6, 1.75 + LABEL_HEIGHT * (len(curves) + 2))
    tall = height - 1.6
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((LEFT / WIDTH, 0.9 / height, PLOT / WIDTH, tall / height))
    tidy(axes)
    axes.set_xscale("log")
    axes.set_yscale("log")
    low = 1.0  # click
    tops = [float(learner.regret.mean(axis=0).max()) for learner in curves]
    high = 1.6 * max(*tops, curves[0].fixed_loss * float(curves[0].users[-1]), 10.0)
    labels = [_draw_fixed(axes, curves[0], low)]
    if curves[0].bound is not None:
        labels.append(_draw_bound(axes, curves[0].users, curves[0].bound, low))
    for i, learner in enumerate(curves):
        colour, dash = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % 4]
        labels.append(_draw_learner(axes, learner, colour, dash, low, 0.16 if len(curves) <= len(COLOURS) else 0.07))
    axes.set_ylim(low, high)
    first, last = _first(curves, low), float(curves[0].users[-1])
    axes.set_xlim(first, last if last > first else 10 * first)
    _place(axes, labels, tall)
    axes.set_xlabel("users")
    axes.set_ylabel(f"cumulative regret ({curves[0].unit})")
    bold: dict[str, Any] = {"size": 12, "weight": "bold"}
    figure.text(0.12 / WIDTH, 1 - 0.12 / height, shorten(title, WIDTH - 0.3, 12, "bold"), va="top", **bold)
    figure.text(0.12 / WIDTH, 0.1 / height, _caption(curves), size=LABEL_SIZE, color=FAINT, va="bottom")
    return figure


def _first(curves: Sequence[Curves], low: float) -> float:
    """Power of ten at which the visible curves start, at least two decades before the end."""
    users = curves[0].users
    seen = np.max([learner.regret.mean(axis=0) for learner in curves], axis=0) > low
    first = min(float(users[seen.argmax()]), float(users[-1]) / 100) if seen.any() else 1.0
    return float(10.0 ** max(floor(log10(max(first, 1.0))), 0))


def _draw_fixed(axes: Axes, curves: Curves, low: float) -> Label:
    loss = curves.fixed_loss * curves.users
    dash: Dash = (0, (4, 2.5))
    axes.plot(curves.users, np.maximum(loss, TINY), color=FAINT, linewidth=1.1, linestyle=dash, zorder=3)
    return Label("best fixed category", _amount(float(loss[-1])), "1.00", FAINT, dash, max(float(loss[-1]), low))


def _draw_bound(axes: Axes, users: Floats, bound: Floats, low: float) -> Label:
    dash: Dash = (0, (1.2, 1.2))
    axes.step(users, np.maximum(bound, TINY), where="post", color=INK, linewidth=1.1, linestyle=dash, zorder=3)
    return Label("lower bound", _amount(float(bound[-1])), MISSING, INK, dash, max(float(bound[-1]), low))


def _draw_learner(axes: Axes, curves: Curves, colour: str, dash: Dash, low: float, strength: float) -> Label:
    mean, exponent = curves.regret.mean(axis=0), curves.slope.value
    below, above = (np.maximum(end, TINY) for end in band(curves))
    axes.fill_between(curves.users, below, above, color=colour, alpha=strength, linewidth=0)
    axes.plot(curves.users, np.maximum(mean, TINY), color=colour, linestyle=dash, linewidth=1.7)
    slope = MISSING if np.isnan(exponent) else f"{exponent:.2f}"
    name = shorten(curves.learner, AMOUNT - NAME - 0.55, LABEL_SIZE)
    return Label(name, _amount(float(mean[-1])), slope, colour, dash, max(float(mean[-1]), low))


def _amount(clicks: float) -> str:
    return "none" if clicks <= NEGLIGIBLE_REGRET else f"{clicks:,.0f}" if clicks < 1e6 else f"{clicks:.2g}"


def _place(axes: Axes, labels: list[Label], height: float) -> None:
    """Put the labels beside the ends of their curves, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    ordered = sorted(labels, key=lambda label: label.end)
    ends = [log10(label.end / low) / log10(high / low) * height for label in ordered]
    outside: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}

    def text(x: float, y: float, content: str, align: str, colour: str = INK) -> None:
        axes.text(1 + x / PLOT, y / height, content, color=colour, size=LABEL_SIZE, va="center", ha=align, **outside)

    def line(x: tuple[float, float], y: tuple[float, float], **style: Any) -> None:
        axes.plot(1 + np.array(x) / PLOT, np.array(y) / height, **style, **outside)

    for x, heading, align in ((NAME, "learner", "left"), (AMOUNT, "regret", "right"), (SLOPE, "slope", "right")):
        text(x, height + 0.2, heading, align, FAINT)
    for label, end, place in zip(ordered, ends, spread(ends, LABEL_HEIGHT, height), strict=True):
        line((0.03, KEY - 0.06), (end, place), color=label.colour, linewidth=0.7, alpha=0.7)
        line((KEY, NAME - 0.07), (place, place), color=label.colour, linestyle=label.dash, linewidth=1.9)
        text(NAME, place, label.name, "left")
        text(AMOUNT, place, label.amount, "right")
        text(SLOPE, place, label.slope, "right")


def spread(targets: Sequence[float], distance: float, upper: float) -> list[float]:
    """Positions near the sorted `targets`, at least `distance` apart and between 0 and `upper` as far as possible.

    >>> spread([1.0, 1.0, 5.0], 0.5, 10.0)
    [0.75, 1.25, 5.0]
    """
    blocks: list[tuple[float, int]] = []  # middle and size of groups of labels that touch

    def inside(middle: float, n: int) -> float:
        half = (n - 1) * distance / 2
        return max(min(middle, upper - half), half)

    for target in targets:
        middle, n = inside(target, 1), 1
        while blocks and middle - n * distance / 2 < blocks[-1][0] + blocks[-1][1] * distance / 2:
            before, m = blocks.pop()
            middle, n = inside((before * m + middle * n) / (m + n), m + n), m + n
        blocks.append((middle, n))
    return [middle + (i - (n - 1) / 2) * distance for middle, n in blocks for i in range(n)]


def band(curves: Curves) -> tuple[Floats, Floats]:
    """Bootstrap confidence band of the mean regret.

    Instances are resampled with all their runs if there are several, otherwise runs.
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
    low, high = np.quantile(drawn @ units, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return np.asarray(low), np.asarray(high)


def _caption(curves: Sequence[Curves]) -> str:
    runs, instances = len(curves[0].instance), len(set(curves[0].instance))
    if runs == 1:
        caption = "One run."
    elif instances == 1:
        caption = f"Mean of {runs} runs with 95% bands (bootstrap over runs)."
    else:
        caption = f"Mean of {runs} runs on {instances} instances with 95% bands (bootstrap over instances)."
    if curves[0].bound is not None:
        caption += " No learner stays below the bound on the instance and its alternatives."
    return caption + "\nRight: final regret, and log-log slope over the last two decades of users."
