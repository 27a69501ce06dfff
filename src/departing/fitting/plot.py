"""Plot of a fit: click and departure probabilities by type, and observed against fitted survival."""

from datetime import timedelta

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from departing.data.log import Log
from departing.fitting.fit import Fit
from departing.fitting.goodness_of_fit import FitCheck
from departing.model.instance import Floats
from departing.plotting.figures import BLUE, GREY, INK, ORANGE, panels, shorten, tidy

MAX_CATEGORIES = 30  # rows of a heat map that stay readable on one page
CALIBRATION_TITLES = {
    "click": "clicks",
    "depart": "departures after a no-click",
    "depart_on_click": "departures after a click",
}
COUNTS = ("n", "observed", "expected")
Z95 = 1.96  # standard errors of a 95% interval


def draw_fit(fit: Fit, check: FitCheck | None = None) -> Figure:
    """Draw heat maps of click and departure probabilities and, with a `check`, observed and expected survival."""
    instance = fit.instance
    rows = min(instance.n_categories, MAX_CATEGORIES)
    maps = (("click", "click probability", BLUE), ("departure_probabilities", "departure probability", ORANGE))
    n_panels = len(maps) + (check is not None)
    figure = Figure(figsize=(1.2 + 3.4 * n_panels, 1.6 + 0.42 * max(rows, 4)), layout="constrained")
    panels = figure.subplots(1, n_panels, squeeze=False)[0]
    for axes, (field, title, colour) in zip(panels, maps, strict=False):
        _heat_map(axes, getattr(instance, field)[:rows], fit, title, colour)
    if check is not None:
        _survival(panels[-1], check)
    return figure


def draw_rates_over_time(log: Log, buckets: int | float | str | timedelta, check: FitCheck | None) -> Figure:
    """Draw rates over time, and the start of the drift that a `check` finds."""
    from departing.data.over_time_plot import draw_over_time

    rates = log.over_time(buckets)
    figure = draw_over_time(rates)
    if check is not None and check.drift is not None:
        first, length = rates.start[0], rates.start[-1] - rates.start[0]
        main = check.drift
        start, *ends = (first + fraction * length for fraction in (main.start, *main.interval))
        for axes in figure.axes:
            axes.axvspan(*ends, color=GREY, alpha=0.15, linewidth=0)
            axes.axvline(start, color=INK, linewidth=1, linestyle="--")
    return figure


def draw_calibration(check: FitCheck) -> Figure:
    """Draw observed against forecast probabilities, one panel for each response, with 95% intervals."""
    shown = [name for name in CALIBRATION_TITLES if any(cell.response == name for cell in check.calibration)]
    figure = Figure(figsize=(0.6 + 3.2 * max(len(shown), 1), 3.4), layout="constrained")
    for axes, name in zip(panels(figure, max(len(shown), 1)), shown, strict=False):
        cells = [cell for cell in check.calibration if cell.response == name and cell.testable]
        n, observed, expected = (np.array([getattr(cell, field) for cell in cells], float) for field in COUNTS)
        top = min(1.0, 1.15 * float(np.max([0.1, *(observed / n), *(expected / n)])))
        errors = Z95 * np.sqrt([cell.variance for cell in cells]) / n
        axes.plot([0, top], [0, top], color=GREY, linewidth=1, linestyle="--")
        axes.errorbar(expected / n, observed / n, errors, fmt="o", color=BLUE, capsize=3, markersize=4)
        axes.set_xlim(0, top)
        axes.set_ylim(0, top)
        axes.set_xlabel("forecast probability")
        axes.set_title(CALIBRATION_TITLES[name], fontsize=10, loc="left")
    figure.supylabel("observed rate", fontsize=10)
    return figure


def _heat_map(axes: Axes, values: Floats, fit: Fit, title: str, colour: str) -> None:
    instance = fit.instance
    colours = LinearSegmentedColormap.from_list("white to colour", ["white", colour])
    top = max(1.3 * float(values.max()), 0.2)
    edges = [np.arange(n + 1) - 0.5 for n in values.shape[::-1]]
    axes.pcolormesh(*edges, values, cmap=colours, vmin=0, vmax=top)
    axes.invert_yaxis()
    for (a, x), value in np.ndenumerate(values):
        ink = "white" if value > 0.6 * top else INK
        axes.text(x, a, f"{value:.2f}", ha="center", va="center", color=ink, fontsize=9)
    types = [
        f"{shorten(name, 0.9, 8)}\n{share:.0%}" for name, share in zip(instance.types, instance.prior, strict=True)
    ]
    categories = [shorten(name, 1.1, 9) for name in instance.categories[: len(values)]]
    axes.set_xticks(range(instance.n_types), types, fontsize=8)
    axes.set_yticks(range(len(values)), categories, fontsize=9)
    axes.set_title(title, fontsize=10, loc="left")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _survival(axes: Axes, check: FitCheck) -> None:
    shown = int((check.survival > 0.005).sum()) + 1
    observed, fitted = check.survival[:shown], check.expected_survival[:shown]
    steps = np.arange(len(observed))
    axes.step(steps, observed, where="post", color=INK, label="observed")
    axes.step(steps, fitted, where="post", color=ORANGE, linestyle="--", label="fitted")
    axes.set_xlabel("steps")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("share of active users", fontsize=10, loc="left")
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False, fontsize=9)
    tidy(axes)
