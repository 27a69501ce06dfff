"""Plots of sample sizes and of readouts."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from departing.abtest.sample_size import SampleSize
from departing.plotting.figures import BLUE, GREY, INK, ORANGE, panels, shorten

TAIL = 1e-3  # probability of the long tail that the axes leave out
CURVE_POINTS = 120
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
