"""Plot of runs of a learner: regret over users with its lower bound, and the policies over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

from departing.formatting import format_clicks, format_percent, format_significant
from departing.learning.lower_bound.result import RegretBound
from departing.model.counts import Integers
from departing.model.instance import CLICKS, Floats
from departing.plotting.figures import FAINT, INK, PALETTE, shorten, tidy, tint
from departing.simulation.policy_use import OTHER, PolicyUse, main_uses, policy_uses
from departing.simulation.regret_curve import fixed_name
from departing.simulation.run import Run

MAX_POLICIES = 6  # with a colour of their own, and a row each
COLOURS = [colour for colour in PALETTE if colour != "#a6a6a6"]
REST = tint(FAINT, 0.25)
SIZE, NOTE_SIZE = 9.5, 8.5  # points
MAX_CHANGES = 12  # of a site that are marked; more are a slow change
MIN_USERS = 10  # of an interval: the shares of fewer users are noise
# Layout in inches. The figure is narrow and tall, so that its text stays legible at the width of a phone.
WIDTH, LEFT, RIGHT = 5.5, 0.82, 0.2
REGRET, POLICIES, ROW = 2.4, 1.6, 0.21
LEGEND, BETWEEN, BELOW, BOTTOM = 0.2, 0.25, 0.6, 0.1  # a line of the legend, and the margins below each part
TITLE, NOTE = 0.32, 0.42
NAME, SHARE, LOSS = 0.38, WIDTH - RIGHT - 1.0, WIDTH - RIGHT  # left end of the names, right ends of the numbers
NEGLIGIBLE = 0.5  # clicks: final loss of the best fixed category below which it is not drawn
LOWEST = 1.0  # click: lower end of the regret axis
BOUND_NOTE = (
    "The lower bound holds for the expected regret on the instance and its alternatives;\n"
    "single runs may stay below it."
)


@dataclass(frozen=True, eq=False)
class LearningCurves:
    """Contents of the plot.

    Attributes
    ----------
    users : array [C]
        Checkpoints.
    regret : array [R, C]
        Cumulative regret of every run in `unit`.
    expected : bool
        True for expected regret, False for realised regret.
    fixed_regret : array [C]
        Cumulative regret of the best fixed category; of that of every piece if the site changed.
    uses : sequence of PolicyUse
        Policies of the users of all runs; empty if the learner does not report them.
    bound : RegretBound, optional
    title : str
    changes : sequence of int, optional
        Numbers of users at which the site changed; None for a stationary site. Axes are linear if it changed.
    unit : str, default "clicks"
    """

    users: Integers
    regret: Floats
    expected: bool
    fixed_regret: Floats
    uses: Sequence[PolicyUse]
    bound: RegretBound | None = None
    title: str = ""
    changes: Sequence[int] | None = None
    unit: str = CLICKS

    @classmethod
    def of_run(cls, run: Run, bound: RegretBound | None) -> "LearningCurves":
        """Contents of the plot of a single run."""
        curve = run.regret_curve
        expected = curve.policy_segments is not None
        regret = run.regret if expected else run.realised_regret
        fixed, uses, changes = curve.fixed_regret, policy_uses(curve), getattr(curve, "changes", None)
        return cls(run.checkpoints, regret[None], expected, fixed, uses, bound, changes=changes, unit=run.unit)


def draw_learning(curves: LearningCurves) -> Figure:
    """Draw the regret of the runs, and below it the shares of the main policies."""
    uses = main_uses(curves.uses, MAX_POLICIES) if curves.uses else []
    bottom = BOTTOM + (NOTE if curves.bound is not None else 0.0)
    above = 0.12 + LEGEND * (1 if curves.bound is None else 2) + (TITLE if curves.title else 0.0)
    below = bottom + BELOW + (BETWEEN + POLICIES + ROW * (len(uses) + 1) if uses else 0.0)
    height = above + REGRET + below
    figure = Figure(figsize=(WIDTH, height))

    def panel(bottom: float, tall: float) -> Axes:
        axes = figure.add_axes((LEFT / WIDTH, bottom / height, (WIDTH - LEFT - RIGHT) / WIDTH, tall / height))
        tidy(axes)
        axes.tick_params(labelsize=SIZE)
        if curves.changes is None:
            axes.set_xscale("log")
        else:
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            axes.xaxis.set_major_locator(MaxNLocator(5, prune="upper"))  # the last label would be cut off
            for change in curves.changes if len(curves.changes) <= MAX_CHANGES else ():
                axes.axvline(change, color=FAINT, linewidth=0.8, linestyle=":")
        axes.set_xlim(0 if curves.changes is not None else 1, max(float(curves.users[-1]), 10.0))
        return axes

    regret = panel(below, REGRET)
    _draw_regret(regret, curves)
    last = regret
    if uses:
        last = panel(below - BETWEEN - POLICIES, POLICIES)
        _draw_policies(last, curves.users, uses)
        regret.tick_params(labelbottom=False)
        _list_policies(figure, bottom, uses, len(curves.uses))
    if curves.bound is not None:
        figure.text(0.12 / WIDTH, BOTTOM / height, BOUND_NOTE, size=NOTE_SIZE, color=FAINT, va="bottom")
    last.set_xlabel("users", size=SIZE)
    if curves.title:
        title = shorten(curves.title, WIDTH - 0.3, 11, "bold")
        figure.text(0.12 / WIDTH, 1 - 0.1 / height, title, size=11, weight="bold", va="top")
    return figure


def _draw_regret(axes: Axes, curves: LearningCurves) -> None:
    users, fixed = curves.users, curves.fixed_regret
    middle = np.asarray(np.median(curves.regret, axis=0), np.float64)
    runs = len(curves.regret)
    name = "learner" if runs == 1 else f"median of {runs} runs"
    for regret in curves.regret if runs > 1 else ():
        axes.plot(users, _positive(regret), color=INK, linewidth=0.7, alpha=max(0.2, 0.9 / runs**0.5))
    axes.plot(users, _positive(middle), color=INK, linewidth=1.8, label=_label(name, middle))
    if fixed[-1] > NEGLIGIBLE:
        axes.plot(
            users,
            _positive(fixed),
            color=FAINT,
            linewidth=1.1,
            linestyle=(0, (4, 2.5)),
            label=_label(fixed_name(curves.changes is not None), fixed),
        )
    tops = [float(curves.regret.max()), float(fixed[-1]), 10 * LOWEST]
    if curves.bound is not None:
        bound = curves.bound.at(users)
        tops.append(float(bound[-1]))
        label = _label("lower bound", bound)
        axes.step(users, _positive(bound), where="post", color=INK, linewidth=1.3, linestyle=":", label=label)
    if curves.changes is None:
        axes.set_yscale("log")
        axes.set_ylim(LOWEST, 1.6 * max(tops))
    else:
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_ylim(0, 1.1 * max(float(curves.regret.max()), 10 * LOWEST))
    axes.set_ylabel(f"{'expected' if curves.expected else 'realised'} regret ({curves.unit})", size=SIZE)
    options: dict[str, Any] = {"frameon": False, "fontsize": SIZE, "borderaxespad": 0.0, "handlelength": 1.6}
    axes.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.02), ncols=2, columnspacing=1.2, labelspacing=0.25, **options
    )


def _label(name: str, regret: Floats) -> str:
    return f"{name}: {format_clicks(max(float(regret[-1]), 0.0))}"


def _positive(regret: Floats) -> Floats:
    """Regret without the values that a log axis does not have."""
    return np.where(regret > 0, regret, np.nan)


def _draw_policies(axes: Axes, users: Integers, uses: Sequence[PolicyUse]) -> None:
    """Draw the share of the users between two checkpoints who were assigned each policy, stacked."""
    ends = wide_intervals(users)
    counts = np.add.reduceat([use.users for use in uses], np.append(0, ends[:-1] + 1), axis=1)
    edges = np.append(1.0, users[ends])
    tops = (counts / counts.sum(axis=0)).cumsum(axis=0)
    for use, colour, low, high in zip(uses, _colours(uses), [np.zeros(len(tops[0])), *tops], tops, strict=False):
        axes.stairs(high, edges, baseline=low, fill=True, color=colour, linewidth=0, label=use.text)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("share of users", size=SIZE)
    axes.grid(visible=False)


def wide_intervals(users: Integers) -> Integers:
    """Indices of the checkpoints that end intervals of at least MIN_USERS users; the last checkpoint is one.

    >>> users = np.array([1, 2, 5, 10, 16, 20, 25, 32, 35])
    >>> users[wide_intervals(users)]
    array([10, 20, 35])
    >>> users[wide_intervals(users[:3])]
    array([5])
    """
    ends, before = [], 0
    for i, n in enumerate(users.tolist()):
        if n - before >= MIN_USERS:
            ends.append(i)
            before = n
    return np.array([*ends[:-1], len(users) - 1])


def _colours(uses: Sequence[PolicyUse]) -> list[Any]:
    return [REST if use.text == OTHER else colour for use, colour in zip(uses, COLOURS, strict=False)]


def _list_policies(figure: Figure, bottom: float, uses: Sequence[PolicyUse], n: int) -> None:
    """List the policies below the axes, the topmost of the stack first, with their users and losses."""
    width, height = figure.get_size_inches()
    total = sum(float(use.users.sum()) for use in uses)

    def text(x: float, y: float, content: str, align: str, colour: str = INK) -> None:
        figure.text(x / width, y / height, content, size=SIZE, color=colour, ha=align, va="center")

    y = bottom + ROW * (len(uses) + 0.5)
    for x, heading, align in ((NAME, "policy", "left"), (SHARE, "users", "right"), (LOSS, "loss per user", "right")):
        text(x, y, heading, align, FAINT)
    for use, colour in reversed(list(zip(uses, _colours(uses), strict=True))):
        y -= ROW
        name = f"{n - len(uses) + 1} {OTHER}" if use.text == OTHER else use.text
        figure.add_artist(_swatch(colour, 0.14 / width, (y - 0.06) / height, 0.15 / width, 0.12 / height))
        text(NAME, y, shorten(name, SHARE - NAME - 0.65, SIZE), "left")
        text(SHARE, y, format_percent(float(use.users.sum()) / total, 1e-4), "right")
        text(LOSS, y, _loss(use.loss), "right")


def _swatch(colour: Any, x: float, y: float, width: float, height: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor=colour, edgecolor="none")


def _loss(loss: float) -> str:
    return "0" if loss < 1e-9 else format_significant(loss) if log10(loss) > -6 else f"{loss:.0e}"
