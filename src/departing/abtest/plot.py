"""Plots of sample sizes and of readouts."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from departing.abtest.readout import ABTest, ArmComparison
from departing.abtest.sample_size import SampleSize
from departing.plotting.figures import BLUE, GREY, INK, ORANGE, PALE_BLUE, panels, shorten, tidy

TAIL = 1e-3  # probability of the long tail that the axes leave out
CURVE_POINTS = 120
MAX_PANELS = 6  # comparisons drawn; a page holds no more
THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.0f}")


def draw_sample_size(size: SampleSize) -> Figure:
    """Draw the probability of at least n clicks under both policies, and the power over the number of users."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    returns, curve = panels(figure, 2)
    for arm, colour, label in ((size.treatment, BLUE, "treatment"), (size.control, ORANGE, "control")):
        at_least = arm.probabilities[::-1].cumsum()[::-1]
        shown = max(int((at_least > TAIL).sum()), 2)
        name = shorten(f"{label}: {arm.name}", 2.9, 8)
        returns.step(np.arange(shown), at_least[:shown], where="mid", color=colour, label=name)
    returns.set_xlabel("clicks of a user")
    returns.set_ylabel("probability of at least as many")
    returns.set_ylim(0, 1)
    returns.yaxis.set_major_formatter(PercentFormatter(1))
    returns.legend(frameon=False, fontsize=8)
    users = np.unique(np.geomspace(max(size.users / 30, 8), size.users * 3, CURVE_POINTS).round().astype(np.int64))
    curve.plot(users, [size.power_at(int(n)) for n in users], color=INK)
    curve.axhline(size.requested_power, color=GREY, linestyle="--", linewidth=1)
    curve.axvline(size.users, color=GREY, linestyle="--", linewidth=1)
    curve.plot([size.users], [size.power], color=BLUE, marker="o")
    text = f"{size.users:,} users, power {size.power:.0%}"
    curve.annotate(text, (size.users, size.power), (-6, 5), textcoords="offset points", fontsize=8, ha="right")
    curve.set_xscale("log")
    curve.xaxis.set_major_formatter(THOUSANDS)
    curve.set_ylim(0, 1)
    curve.yaxis.set_major_formatter(PercentFormatter(1))
    curve.set_xlabel("users of both arms")
    curve.set_ylabel("power")
    return figure


def draw_readout(test: ABTest) -> Figure:
    """Draw the confidence sequence of every comparison over the users; without times, the final intervals."""
    drawn = test.comparisons[:MAX_PANELS]
    if all(len(each.sequence.users) == 1 for each in drawn):
        return _draw_intervals(drawn)
    figure = Figure(figsize=(8, 0.8 + 2.8 * len(drawn)), layout="constrained")
    rows = figure.subplots(len(drawn), 1, squeeze=False)[:, 0]
    for axes, comparison in zip(rows, drawn, strict=True):
        tidy(axes)
        _draw_sequence(axes, comparison)
    rows[-1].set_xlabel("users of both arms, in order of arrival")
    handles, labels = rows[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=8, ncols=4, loc="outside upper right")
    return figure


def _draw_sequence(axes: Axes, comparison: ArmComparison) -> None:
    """Draw the sequence over the users, and the fixed-sample interval after the last of them."""
    sequence = comparison.sequence
    last, known = int(sequence.users[-1]), np.isfinite(sequence.lower)
    axes.axhline(0, color=INK, linewidth=1)
    if known.any():
        users, lower, upper = (each[known] for each in (sequence.users, sequence.lower, sequence.upper))
        axes.fill_between(users, lower, upper, color=PALE_BLUE, alpha=0.6, linewidth=0, label="confidence sequence")
        axes.plot(users, sequence.difference[known], color=BLUE, label="difference")
        # Early bounds are very wide; the axis shows those after the first tenth of the users.
        shown = users >= last / 10
        low, high = min(float(lower[shown].min()), 0.0), max(float(upper[shown].max()), 0.0)
        axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    if sequence.decided_at is not None:
        axes.axvline(sequence.decided_at, color=GREY, linestyle="--", linewidth=1, label="first exclusion of 0")
    axes.errorbar(
        last * 1.025,
        comparison.difference,
        [[comparison.difference - comparison.lower], [comparison.upper - comparison.difference]],
        color=ORANGE,
        marker="o",
        capsize=4,
        label="fixed-sample interval",
    )
    axes.set_xlim(0, last * 1.05)
    axes.xaxis.set_major_formatter(THOUSANDS)
    axes.set_title(f"{_names(comparison)}, clicks per user", fontsize=10, loc="left")


def _draw_intervals(drawn: Sequence[ArmComparison]) -> Figure:
    """Draw the final intervals of all comparisons, one below the other."""
    figure = Figure(figsize=(8, 1.4 + 0.7 * len(drawn)), layout="constrained")
    (axes,) = panels(figure, 1)
    axes.grid(visible=False, axis="y")
    axes.axvline(0, color=INK, linewidth=1)
    for shift, colour, label in ((-0.12, BLUE, "confidence sequence"), (0.12, ORANGE, "fixed-sample interval")):
        for y, each in enumerate(drawn):
            low, high = each.sequence.final if colour == BLUE else (each.lower, each.upper)
            if np.isfinite(low):
                errors = [[each.difference - low], [high - each.difference]]
                axes.errorbar(
                    each.difference,
                    y + shift,
                    xerr=errors,
                    color=colour,
                    marker="o",
                    capsize=4,
                    label=label if y == 0 else None,
                )
    axes.set_yticks(range(len(drawn)), [_names(each) for each in drawn])
    axes.set_ylim(len(drawn) - 0.5, -0.5)
    axes.set_xlabel("difference in clicks per user")
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, fontsize=8, ncols=2, loc="outside upper right")
    return figure


def _names(comparison: ArmComparison) -> str:
    return shorten(f"{comparison.treatment.name} − {comparison.control.name}", 3.2, 10)
