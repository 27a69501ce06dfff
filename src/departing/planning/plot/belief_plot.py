"""Plots of the best first category and the value at every belief: an interval for two types, a triangle for three."""

from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Polygon, Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from departing.model.counts import Integers
from departing.model.instance import Floats, Instance
from departing.planning.belief_map import BeliefMap, fine_grid
from departing.planning.plan import Plan
from departing.planning.plot.layout import MARGIN, CategoryStyle, clicks, inches, legend, percent, write
from departing.planning.problem import PlanningProblem
from departing.plotting.figures import FAINT, GREY, INK, shorten, tidy, tint

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])  # of the belief simplex
HALO = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}


def draw_interval(axes: Axes, plan: Plan, beliefs: BeliefMap, style: CategoryStyle) -> None:
    """Plot the value against the belief in the first of two types, on the colours of the best first category."""
    tidy(axes)
    fine = fine_grid(2)
    problem = PlanningProblem(plan.instance, plan.allowed)
    prior, fixed, known = problem.prior, (fine @ problem.fixed_values.T).max(axis=1), fine @ problem.type_values
    _regions(axes, fine[:, 0], beliefs.first(fine), style)
    entries: list[tuple[Any, str]] = []
    for label, values, at_prior, line_style, width in (
        ("optimal policy", beliefs.values(fine), plan.lower, "-", 2.2),
        ("best fixed policy", fixed, problem.best_fixed[1], "--", 1.1),
        ("known type", known, float(problem.type_values @ prior), ":", 1.1),
    ):
        (line,) = axes.plot(fine[:, 0], values, line_style, color=INK, linewidth=width)
        entries.append((line, f"{label}: {clicks(at_prior)}"))
    axes.axvline(prior[0], color=INK, linewidth=0.9)
    axes.plot(prior[0], plan.lower, "o", color=INK, markersize=6)
    _label_interval(axes, plan, float(prior[0]))
    legend(axes, entries, loc="lower left", bbox_to_anchor=(-0.01, 0.99))


def _label_interval(axes: Axes, plan: Plan, prior: float) -> None:
    """Labels and ticks of the plot for two types."""
    low, high = axes.get_ylim()
    axes.set_yticks([tick for tick in axes.get_yticks() if max(low, 0) <= tick <= high])
    axes.set_ylim(low - 0.12 * (high - low), high + 0.06 * (high - low))
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(f"belief in {_type(plan.instance, 0)}", fontsize=9.5, parse_math=False)
    axes.set_ylabel(f"expected {plan.instance.unit} per user", fontsize=9.5, parse_math=False)
    axes.tick_params(labelsize=9)
    shift, side = (-0.008, "right") if prior > 0.5 else (0.008, "left")
    write(axes, prior + shift, 0.95, f"prior {percent(prior)}", transform=axes.get_xaxis_transform(), ha=side)
    heading = "Best first category at every belief (colours) and value (lines; numbers: at the prior)"
    axes.set_title(heading, fontsize=10, loc="left", x=-0.08, pad=28, color=INK)


def _type(instance: Instance, x: int) -> str:
    """Name of a type, after the word type unless it starts with it."""
    name = shorten(instance.types[x], 3.5, 9.5)
    return name if name.startswith("type") else f"type {name}"


def _regions(axes: Axes, xs: Floats, first: Integers, style: CategoryStyle) -> None:
    """Colour the background by category, with names where they fit."""
    start = 0
    for category, run in groupby(first.tolist()):
        end = start + len(list(run))
        left, right = (xs[start] + xs[max(start - 1, 0)]) / 2, (xs[end - 1] + xs[min(end, len(xs) - 1)]) / 2
        axes.axvspan(left, right, color=tint(style.colours[category], 0.35), linewidth=0, zorder=0)
        room = (right - left) * 7.5 - 0.1
        if room > 0.35:
            place = {"transform": axes.get_xaxis_transform(), "color": FAINT}
            write(axes, (left + right) / 2, 0.06, style.name(category, room, 9, "normal"), 9, **place)
        start = end


def simplex_heading(axes: Axes, unit: str) -> None:
    """Heading of the plot for three types."""
    inches(axes)
    heading = f"Best first category at every belief (colours) and expected {unit} per user (lines)"
    write(axes, MARGIN, 0.48, heading, 10, ha="left")
    note = "Each corner is a known type; points between are beliefs."
    write(axes, MARGIN, 0.26, note, 9, ha="left", color=FAINT)


def draw_simplex(axes: Axes, plan: Plan, beliefs: BeliefMap, style: CategoryStyle) -> None:
    """Plot the belief simplex of three types, coloured by best first category, with contours of the value."""
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_xlim(-0.3, 1.3)
    axes.set_ylim(-0.13, 0.98)
    _colour_simplex(axes, beliefs, style)
    fine = fine_grid(3)
    values = beliefs.values(fine)
    if np.ptp(values) > 1e-6 * values.max():
        places = fine @ CORNERS
        lowest = values.min() + 0.04 * np.ptp(values)
        levels = MaxNLocator(7, steps=[1, 2, 5, 10]).tick_values(lowest, values.max())[1:-1]
        lines = axes.tricontour(places[:, 0], places[:, 1], values, levels, colors=INK, linewidths=0.7)
        longest = [max(parts, key=len) for parts in lines.allsegs if parts]
        longest = [part for part in longest if np.ptp(part, axis=0).max() > 0.1]
        axes.clabel(lines, fontsize=7.5, fmt="%.3g", manual=[part[len(part) // 2] for part in longest])
    axes.add_patch(Polygon(CORNERS, fill=False, edgecolor=INK, linewidth=1.2))
    names = [shorten(name, 1.5, 9, "bold") for name in plan.instance.types]
    for (x, y), (dx, dy), name in zip(CORNERS, ((0, -0.06), (0, -0.06), (0, 0.05)), names, strict=True):
        write(axes, x + dx, y + dy, name, 9, weight="bold")
    x, y = plan.instance.normalised_prior @ CORNERS
    axes.plot(x, y, "o", color=INK, markersize=7, markeredgecolor="white", zorder=5)
    shift, side = (-0.035, "right") if x > 0.6 else (0.035, "left")
    write(axes, x + shift, y, "prior", 9, ha=side, weight="bold", zorder=5, bbox=HALO)


def _colour_simplex(axes: Axes, beliefs: BeliefMap, style: CategoryStyle) -> None:
    """Fill the triangle pixel by pixel with the colour of the best first category."""
    xs, ys = np.meshgrid((np.arange(500) + 0.5) / 500, (np.arange(440) + 0.5) / 440 * CORNERS[2, 1])
    third = ys / CORNERS[2, 1]
    second = xs - third / 2
    weights = np.stack([1 - second - third, second, third], axis=-1)
    pixels = np.ones((*xs.shape, 3))
    first = beliefs.first(weights)
    for category in np.unique(first):
        pixels[first == category] = tint(style.colours[category], 0.55)
    image = axes.imshow(pixels, extent=(0, 1, 0, CORNERS[2, 1]), origin="lower", interpolation="nearest")
    image.set_clip_path(Polygon(CORNERS, transform=axes.transData))


def draw_baselines(axes: Axes, plan: Plan) -> None:
    """Bars of the values of the best fixed policy, the plan, and the optimal policy for known types."""
    problem = PlanningProblem(plan.instance, plan.allowed)
    category, value = problem.best_fixed
    bars = [
        (f"always {shorten(plan.instance.categories[category], 1.2, 9)}", value, GREY),
        ("this plan", plan.lower, INK),
        ("known type", float(problem.type_values @ problem.prior), "#c4c4c4"),
    ]
    width, _ = inches(axes)
    most = max(value for _, value, _ in bars) or 1.0
    write(axes, 0, 1.6, f"expected {plan.instance.unit} per user", 9.5, ha="left", weight="bold")
    for i, (label, value, colour) in enumerate(bars):
        y = 1.02 - 0.48 * i
        axes.add_patch(Rectangle((0, y), (width - 0.6) * value / most, 0.17, color=colour, linewidth=0))
        write(axes, 0, y + 0.28, label, 9, ha="left")
        write(axes, (width - 0.6) * value / most + 0.06, y + 0.08, f"{value:.4g}", 9, ha="left")
