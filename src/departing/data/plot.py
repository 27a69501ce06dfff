"""Plots of return times, and of the instances built from MovieLens ratings."""

import numpy as np
from matplotlib.figure import Figure

from departing.data.inactivity import LATER, ReturnTimes
from departing.data.movielens import SemiSynthetic
from departing.data.spec import parse_inactivity
from departing.plotting.figures import BLUE, GREY, ORANGE, PALETTE, panels


def draw_types(data: SemiSynthetic) -> Figure:
    """By genre and type: the click probability, and the value of the fixed policy."""
    instance = data.instance
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    positions = np.arange(instance.n_categories)
    for axes, values, label in zip(
        panels(figure, 2),
        (instance.click, instance.fixed_values),
        ("click probability", "value of the fixed policy"),
        strict=True,
    ):
        for x, name in enumerate(instance.types):
            colour, width = PALETTE[x % len(PALETTE)], 1 + 4 * float(instance.prior[x])
            entry = f"{name}, {instance.prior[x]:.0%} of users"
            axes.plot(positions, values[:, x], "o-", color=colour, linewidth=width, label=entry)
        axes.set_xticks(positions, instance.categories)
        axes.set_xlim(-0.4, len(positions) - 0.6)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    figure.axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def draw_replay(data: SemiSynthetic) -> Figure:
    """Distribution of the users' click probabilities by genre, and the share of users for whom each genre is best."""
    instance = data.instance
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    spread, best = panels(figure, 2)
    edges = np.linspace(0, 1, 11).tolist()
    colours = [PALETTE[a % len(PALETTE)] for a in range(instance.n_categories)]
    for a, name in enumerate(instance.categories):
        spread.hist(instance.click[a], edges, histtype="step", color=colours[a], label=name, linewidth=1.6)
    spread.set_xlabel("click probability of a user")
    spread.set_ylabel("users")
    spread.legend(frameon=False, fontsize=8, loc="upper left")
    shares = data.best_genre_shares
    best.bar(list(shares), [100 * share for share in shares.values()], 0.5, color=colours)
    best.set_ylabel("best genre, % of users")
    return figure


def draw_return_times(times: ReturnTimes) -> Figure:
    """By the time since an event: the probability of no return, and the share of inactive users who return later."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    shown = times.times >= 1.0 if times.is_clock else times.times > 0
    shown[-1] = True
    period = parse_inactivity(times.value, times.is_clock)
    for axes, values, label in zip(
        panels(figure, 2),
        (times.no_return, times.later),
        ("no return within, % of events", "return later, % of inactive users"),
        strict=True,
    ):
        axes.plot(times.times[shown], 100 * values[shown], color=BLUE)
        axes.set_xscale("log")
        axes.set_ylim(0, 100)
        axes.axvline(period, color=ORANGE, linewidth=1.2)
        axes.set_ylabel(label)
        axes.set_xlabel("inactive for" if times.is_clock else "inactive for, in the unit of the time column")
        if times.is_clock:
            ticks = {"1 s": 1, "1 min": 60, "1 h": 3600, "1 d": 86400, "1 w": 7 * 86400, "30 d": 30 * 86400}
            ticks["1 y"] = 365 * 86400
            start, end = times.times[shown][0], times.times[-1]
            inside = {name: tick for name, tick in ticks.items() if start <= tick <= end}
            axes.set_xticks(list(inside.values()), list(inside))
            axes.minorticks_off()
    axes = figure.axes[1]
    axes.axhline(100 * LATER, color=GREY, linewidth=0.8, linestyle=":")
    axes.annotate(times.period, (period, 100), xytext=(4, -10), textcoords="offset points", color=ORANGE, fontsize=9)
    return figure
