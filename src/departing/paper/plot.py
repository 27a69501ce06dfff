"""Plots of the checks."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from departing.model.instance import Floats
from departing.plotting.figures import BLUE, GREY, INK, ORANGE, PALETTE, panels


def draw_bound(title: str, label: str, users: Floats, regret: Floats, bound: Floats, trivial: Floats) -> Figure:
    """Measured regret `[runs, t]` beside its upper bound, named by `label`, and the trivial upper bound."""
    figure, axes = _axes(title, 3.6, "users", "cumulative regret (clicks)")
    axes.plot(users, bound, color=ORANGE, linestyle="--", label=label)
    axes.plot(users, trivial, color=GREY, linestyle=":", label="trivial bound: largest loss × users")
    axes.plot(users, regret.mean(axis=0), color=BLUE, label=f"UCB-Hybrid, mean of {len(regret)} runs")
    axes.fill_between(users, regret.min(axis=0), regret.max(axis=0), color=BLUE, alpha=0.2, linewidth=0)
    axes.set_yscale("log")
    axes.legend(frameon=False)
    return figure


def draw_survival(title: str, label: str, curves: Sequence[tuple[str, Floats]]) -> Figure:
    """Share of instances on which a quantity is at least x, one curve per family of instances."""
    figure, axes = _axes(title, 3.2, label, "share of instances\nwith at least that")
    for (name, amounts), colour in zip(curves, PALETTE, strict=False):
        ordered = np.sort(np.maximum(amounts, 1e-9))[::-1]
        axes.plot(ordered * 100, np.arange(1, len(ordered) + 1) / len(ordered), label=name, color=colour)
    axes.set_xlim(1e-3, 100)
    axes.set_ylim(0, 1)
    axes.legend(frameon=False)
    return figure


def _axes(title: str, height: float, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """Figure of one panel with a logarithmic x-axis."""
    figure = Figure(figsize=(7.5, height), layout="constrained")
    (axes,) = panels(figure, 1)
    axes.set_xscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    return figure, axes
