"""Plot of a log: retention, and click and departure rates by category."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from departing.data.log import Log
from departing.plotting.figures import BLUE, INK, ORANGE, panels, shorten

MAX_CATEGORIES = 20  # bars that stay readable on one page; the most shown ones
TAIL = 0.005  # share of active users below which the retention curve ends


def draw_log(log: Log) -> Figure:
    """Draw the share of users active after every number of steps, and rates by category, the most shown first."""
    columns = log.columns()
    order = np.argsort(-columns["shown"], kind="stable")[:MAX_CATEGORIES]
    figure = Figure(figsize=(9, 1.4 + max(0.34 * len(order), 2.0)), layout="constrained")
    curve, rates = panels(figure, 2)
    retention = log.retention[: int((log.retention > TAIL).sum()) + 1]
    curve.step(np.arange(len(retention)), retention, where="post", color=INK)
    curve.set_xlabel("steps")
    curve.set_title("share of active users (Kaplan-Meier)", fontsize=10, loc="left")
    curve.set_ylim(0, 1.02)
    curve.xaxis.set_major_locator(MaxNLocator(integer=True))
    curve.yaxis.set_major_formatter(PercentFormatter(1))
    shown = np.maximum(columns["shown"][order], 1)
    for offset, name, colour in ((-0.2, "clicks", BLUE), (0.2, "departures", ORANGE)):
        rates.barh(np.arange(len(order)) + offset, columns[name][order] / shown, 0.38, color=colour, label=name)
    rates.set_yticks(range(len(order)), [shorten(columns["category"][a], 1.4, 9) for a in order], fontsize=9)
    rates.invert_yaxis()
    rates.grid(axis="x", alpha=0.25)
    rates.grid(visible=False, axis="y")
    rates.xaxis.set_major_formatter(PercentFormatter(1))
    rates.set_title("clicks and departures by category, share of events", fontsize=10, loc="left")
    rates.legend(frameon=False, fontsize=9)
    return figure
