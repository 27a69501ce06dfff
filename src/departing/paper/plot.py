"""Pictures of the report."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from departing.evaluation.evaluate import evaluate
from departing.model.instance import Floats, Instance
from departing.plotting.figures import BLUE, GREY, INK, ORANGE, PALE_BLUE, PALETTE, panels
from departing.policy.schedule import Threshold


def draw_walks(instance: Instance, first: int, then: int, most: int) -> Figure:
    """What switching from one category to the other after n steps gains over never switching."""
    steps = np.arange(most + 1)
    values = [evaluate(instance, Threshold(first=first, steps=int(n), then=then)).value for n in steps]
    gains = (np.array(values) - evaluate(instance, Threshold(first=then, steps=0, then=first)).value) * 1e6
    figure = Figure(figsize=(7.5, 2.8), layout="constrained")
    (axes,) = panels(figure, 1)
    shown = gains > -abs(gains.max())
    best = int(gains.argmax())
    axes.bar(steps[shown], gains[shown], color=[BLUE if n == best else PALE_BLUE for n in steps[shown]])
    axes.axhline(0, color=ORANGE, linewidth=1)
    axes.set_xticks(steps[shown])
    axes.set_xlabel("recommendations of category 2 before switching")
    axes.set_ylabel("gain, clicks per\nmillion users")
    return figure


def draw_bound(title: str, users: Floats, regret: Floats, bound: Floats, linear: Floats) -> Figure:
    """Measured regret `[runs, t]` beside a proven bound and what playing all policies in turn loses."""
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    (axes,) = panels(figure, 1)
    axes.plot(users, bound, color=ORANGE, linestyle="--", label="proven bound")
    axes.plot(users, linear, color=GREY, linestyle=":", label="all policies in turn")
    axes.plot(users, regret.mean(axis=0), color=BLUE, label=f"UCB-Hybrid, mean of {len(regret)} runs")
    axes.fill_between(users, regret.min(axis=0), regret.max(axis=0), color=BLUE, alpha=0.2, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("users")
    axes.set_ylabel("clicks lost")
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.legend(frameon=False)
    return figure


def draw_shares(title: str, label: str, curves: Sequence[tuple[str, Floats]]) -> Figure:
    """The share of instances with at least so much of something, one line each."""
    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    (axes,) = panels(figure, 1)
    for (name, amounts), colour in zip(curves, PALETTE, strict=False):
        ordered = np.sort(np.maximum(amounts, 1e-9))[::-1]
        axes.plot(ordered * 100, np.arange(1, len(ordered) + 1) / len(ordered), label=name, color=colour)
    axes.set_xscale("log")
    axes.set_xlim(1e-3, 100)
    axes.set_ylim(0, 1)
    axes.set_xlabel(label)
    axes.set_ylabel("share of instances\nwith at least that")
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.legend(frameon=False)
    return figure
