"""Plot of a lower bound: its growth with the users, and the cost of the policies that pay."""

import numpy as np
from matplotlib.figure import Figure

from departing.formatting import format_clicks, format_percent
from departing.learning.lower_bound.result import RegretBound
from departing.plotting.figures import BLUE, FAINT, ORANGE, panels, shorten
from departing.policy.library import describe

MAX_BARS = 6  # policies drawn; the others cost little
LABEL_SIZE = 8.0


def draw_bound(bound: RegretBound) -> Figure:
    """Draw the bound against the number of users, and the cost of every policy that pays."""
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    curve, bars = panels(figure, 2, (1.0, 1.0))
    first = max(int(bound.curve_users[0]) / 10, 1.0)
    users = np.append(first, bound.curve_users)
    curve.step(users, np.append(np.nan, bound.curve), where="post", color=BLUE)
    curve.plot(bound.curve_users, np.where(bound.curve > 0, bound.curve, np.nan), "o", color=BLUE, markersize=4)
    curve.set_xscale("log")
    if bound.value > 0:
        curve.set_yscale("log")
    runs = "expected regret" if bound.share is None else f"regret, {format_percent(bound.share)} of runs"
    curve.set_xlabel("users")
    curve.set_ylabel(f"bound on {runs} (clicks)")
    paying = bound.policies[:MAX_BARS]
    places = list(range(len(paying)))
    bars.barh(places, [each.cost for each in paying], color=ORANGE, height=0.45)
    for place, each in zip(places, paying, strict=True):
        name = shorten(describe(each.policy, bound.instance), 3.6, LABEL_SIZE)
        bars.text(0, place - 0.27, name, size=LABEL_SIZE, va="bottom", clip_on=False)
        amount = f" {format_clicks(each.cost)} ({format_clicks(each.users)} users)"
        bars.text(each.cost, place, amount, size=LABEL_SIZE, va="center", color=FAINT)
    bars.set_ylim(max(len(paying), 4) - 0.5, -0.7)  # a single bar is not taller than one of four
    bars.set_xlim(0, 1.55 * max([each.cost for each in paying], default=1.0))
    bars.set_yticks([])
    bars.grid(visible=False)
    bars.set_xlabel("cost of telling the alternatives apart (clicks)")
    return figure
