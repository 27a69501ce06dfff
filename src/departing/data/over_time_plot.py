"""Plot of the rates of a log over time."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from departing.data.over_time import OverTime
from departing.model.counts import Integers
from departing.model.instance import Floats
from departing.plotting.figures import PALETTE, shorten, tidy

MAX_LINES = len(PALETTE)  # categories or segments, the largest ones: more lines cannot be told apart
NARROW = 7.0  # inches, below which names stand below the lines
MIN_EVENTS = 20  # of a rate that is drawn: with fewer, its standard error is about 0.1


def draw_over_time(rates: OverTime, width: float = 9.0) -> Figure:
    """Click rates, departure rates, mean rewards and shares of segments, one panel each; `width` is in inches."""
    drawn: list[tuple[str, Floats, Integers, tuple[str, ...]]] = [
        ("click rate", rates.click_rate, rates.shown, rates.categories),
        ("departure rate", rates.departure_rate, rates.at_risk, rates.categories),
    ]
    if rates.mean_reward is not None:
        drawn.append((f"mean reward of a click ({rates.unit})", rates.mean_reward, rates.clicks, rates.categories))
    if rates.segments:
        arrived = np.repeat(rates.segment_users.sum(axis=1, keepdims=True), len(rates.segments), axis=1)
        drawn.append(("segments of arriving users", rates.segment_share, arrived, rates.segments))
    figure = Figure(figsize=(width, 2.3 * len(drawn)), layout="constrained")
    rows = figure.subplots(len(drawn), 1, squeeze=False)[:, 0]
    for axes, (title, values, numbers, names) in zip(rows, drawn, strict=True):
        is_segment = names is rates.segments
        order = np.argsort(-(rates.segment_users if is_segment else rates.shown).sum(axis=0), kind="stable")
        _panel(axes, rates.start, values[:, order], numbers[:, order], [names[i] for i in order], width < NARROW)
        axes.set_title(title, fontsize=10, loc="left")
        if values is not rates.mean_reward:
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure


def _panel(axes: Axes, start: Any, values: Floats, numbers: Integers, names: list[str], is_narrow: bool) -> None:
    """Lines of the first columns of `values[B, n]` in the middle of the periods, where the numbers suffice."""
    tidy(axes)
    middle = start[:-1] + (start[1:] - start[:-1]) / 2
    for i, name in enumerate(names[:MAX_LINES]):
        shown = np.where(numbers[:, i] >= MIN_EVENTS, values[:, i], np.nan)
        axes.plot(middle, shown, color=PALETTE[i], label=shorten(name, 1.6, 9), marker=".", linewidth=1.2)
    if np.issubdtype(start.dtype, np.datetime64):
        locator = AutoDateLocator(maxticks=8)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    else:
        axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.set_xlim(start[0], start[-1])
    axes.set_ylim(bottom=0)
    if is_narrow:
        columns = min(len(names), 3)
        axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=columns)
    else:
        axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
