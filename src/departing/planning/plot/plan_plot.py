"""Plot of a plan: its policy graph, and the best first category at every belief."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Patch, PathPatch, Rectangle
from matplotlib.path import Path

from departing.model.instance import CLICK, STAY
from departing.planning.belief_map import BeliefMap, belief_map, fine_grid
from departing.planning.plan import Plan
from departing.planning.plot.belief_plot import draw_baselines, draw_interval, draw_simplex, simplex_heading
from departing.planning.plot.layout import (
    MARGIN,
    TINY_SHARE,
    WIDTH,
    CategoryStyle,
    area,
    clicks,
    inches,
    legend,
    percent,
    write,
)
from departing.planning.plot.policy_graph import Column, Edge, Node, policy_graph, short
from departing.planning.policy_tree import COMMITTED
from departing.plotting.figures import FAINT, ink_on, shorten
from departing.policy.alpha import Alpha
from departing.policy.schedule import Schedule

PITCH, BOX_HEIGHT, MAX_BOX_WIDTH = 0.62, 0.46, 1.75  # inches, as all lengths below
TITLE, HEADER, STRIP, LEGEND, PANEL = 1.05, 0.34, 0.55, 0.66, 4.05
LINE_STYLES: dict[int, dict[str, Any]] = {
    CLICK: {"color": "#4d4d4d", "linestyle": "-"},
    STAY: {"color": "#8c8c8c", "linestyle": (0, (2.2, 1.1))},
}
LINE_LABELS = {CLICK: "after a click", STAY: "after no click, if the user stays"}


def draw_plan(plan: Plan) -> Figure:
    """Draw the policy graph and, for two or three types, the best first category at every belief."""
    columns = policy_graph(plan)
    beliefs = belief_map(plan) if plan.instance.n_types in (2, 3) else None
    style = CategoryStyle(plan.instance, _plotted(columns, beliefs, plan.instance.n_types))
    graph = HEADER + sum(_extent(columns)) + STRIP
    panel = PANEL if beliefs else 0.0
    key = LEGEND if len(columns) > 1 else 0.4
    height = TITLE + graph + key + panel
    figure = Figure(figsize=(WIDTH, height))
    _title(figure, plan, columns)
    _draw_graph(area(figure, 0, height - TITLE - graph, WIDTH, graph), columns, style)
    _legends(area(figure, 0, panel, WIDTH, key), columns, style)
    if beliefs and plan.instance.n_types == 2:
        draw_interval(area(figure, 0.95, 0.6, WIDTH - 1.3, panel - 1.2), plan, beliefs, style)
    elif beliefs:
        simplex_heading(area(figure, 0, panel - 0.6, WIDTH, 0.6), plan.instance.unit)
        draw_simplex(area(figure, 0.2, 0.1, 5.4, panel - 0.65), plan, beliefs, style)
        draw_baselines(area(figure, 6.0, 1.0, 2.65, 1.7), plan)
    return figure


def _plotted(columns: Sequence[Column], beliefs: BeliefMap | None, n_types: int) -> list[int]:
    """Categories that occur in the plot, sorted."""
    plotted = {node.category for column in columns for node in column.nodes}
    if beliefs:
        plotted |= set(beliefs.first(fine_grid(n_types)).tolist())
    return sorted(plotted)


def _title(figure: Figure, plan: Plan, columns: Sequence[Column]) -> None:
    """Description of the policy, bounds on its value, and a note on the boxes."""
    axes = area(figure, 0, figure.get_figheight() - TITLE, WIDTH, TITLE)
    width = inches(axes)[0] - 2 * MARGIN
    write(axes, MARGIN, 0.78, shorten(_describe(plan), width, 12, "bold"), 12, ha="left", weight="bold")
    lower, upper = clicks(plan.lower), clicks(plan.upper)
    value = f"{lower} (optimal)" if lower == upper else f"at least {lower} (optimum: at most {upper})"
    write(axes, MARGIN, 0.5, f"expected {plan.instance.unit} per user: {value}", 10, ha="left")
    note = "Boxes: recommended category, and fraction of all users who get there."
    if not isinstance(plan.policy, Schedule) and any(node.committed for column in columns for node in column.nodes):
        note += f" From then on: at least {percent(1 - COMMITTED)} of them get no other category."
    write(axes, MARGIN, 0.2, note, 9, ha="left", color=FAINT)


def _describe(plan: Plan) -> str:
    if not isinstance(plan.policy, Alpha):
        return f"Plan: {plan.describe()}"
    start = np.zeros((plan.instance.n_categories, 4), np.int64)
    name = plan.instance.categories[int(plan.policy.recommend(start))]
    return f"Plan: start with {shorten(name, 3.0, 12, 'bold')}, then adapt to the user's clicks"


def _extent(columns: Sequence[Column]) -> tuple[float, float]:
    """Extent of boxes and texts below and above the middle of the graph, in inches."""
    below = max(len(column.nodes) * PITCH / 2 + 0.18 * (column.hidden >= TINY_SHARE) for column in columns)
    return below + 0.06, max(len(column.nodes) for column in columns) * PITCH / 2


def _draw_graph(axes: Axes, columns: Sequence[Column], style: CategoryStyle) -> None:
    """Columns of boxes from left to right, curves between them, and bars of active users below."""
    width, height = inches(axes)
    pitch = min((width - 2 * MARGIN) / len(columns), 1.5 * MAX_BOX_WIDTH)
    box = min(0.68 * pitch, MAX_BOX_WIDTH)
    middle = STRIP + _extent(columns)[0]
    xs = [MARGIN + box / 2 + i * pitch for i in range(len(columns))]
    ys = [[middle + ((len(c.nodes) - 1) / 2 - i) * PITCH for i in range(len(c.nodes))] for c in columns]
    for i, column in enumerate(columns):
        write(axes, xs[i], height - 0.16, _when(column), 9, color=FAINT)
        for edge in sorted(column.edges, key=lambda edge: -edge.share):
            _curve(axes, (xs[i] + box / 2, ys[i][edge.start]), (xs[i + 1] - box / 2, ys[i + 1][edge.end]), edge)
    for i, column in enumerate(columns):
        for y, node in zip(ys[i], column.nodes, strict=True):
            _box(axes, xs[i], y, box, node, style)
            if i == len(columns) - 1 and not node.committed:
                write(axes, xs[i] + box / 2 + 0.14, y, "…", 12)
        if column.hidden >= TINY_SHARE:
            write(axes, xs[i], ys[i][-1] - 0.38, f"and {percent(column.hidden)} elsewhere", 8, color=FAINT)
        _strip(axes, xs[i], box, column.active)


def _when(column: Column) -> str:
    """Step or steps of a column, counted from 1."""
    node, first = column.nodes[0], column.step + 1
    if node.steps == 0:
        return f"from step {short(first)} on"
    return f"step {short(first)}" if node.steps <= 1 else f"steps {short(first)}–{short(first + node.steps - 1)}"


def _box(axes: Axes, x: float, y: float, width: float, node: Node, style: CategoryStyle) -> None:
    """Rounded box in the colour of the category, with its name and the share of users."""
    height = BOX_HEIGHT + (0.1 if node.committed else 0)
    colour = style.colours[node.category]
    shape, corner = f"round,pad=0,rounding_size={height / 4}", (x - width / 2, y - height / 2)
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=shape, fc=colour, ec="none", zorder=3))
    ink = ink_on(colour)
    times = f" × {short(node.steps)}" if node.steps > 1 else ""
    room = width - 0.14 - 0.09 * len(times)
    lines = [style.name(node.category, room) + times, percent(node.share)]
    if node.committed:
        lines.insert(1, "from then on")
    for i, line in enumerate(lines):
        at = y + ((len(lines) - 1) / 2 - i) * 0.17
        write(axes, x, at, line, 9.5 if i == 0 else 8.5, color=ink, weight="bold" if i == 0 else "normal", zorder=4)


def _curve(axes: Axes, start: tuple[float, float], end: tuple[float, float], edge: Edge) -> None:
    """Curve between boxes, as wide as its share of users: solid after a click, dashed after a stay."""
    bend = (end[0] - start[0]) / 2
    points = [start, (start[0] + bend, start[1]), (end[0] - bend, end[1]), end]
    curve = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    width = 1 + 6 * edge.share
    look = LINE_STYLES[edge.outcome]
    axes.add_patch(PathPatch(curve, fill=False, linewidth=width, capstyle="butt", zorder=2, **look))
    if edge.note:
        write(axes, start[0] + bend, start[1] + 0.13, edge.note, 8.5, color=FAINT)


def _strip(axes: Axes, x: float, width: float, active: float) -> None:
    """Bar of all users, filled by the fraction that is active."""
    for share, colour in ((1.0, "#e4e4e4"), (active, "#6b6b6b")):
        axes.add_patch(Rectangle((x - width / 2, 0.34), width * share, 0.09, color=colour, linewidth=0))
    write(axes, x, 0.2, f"{percent(active)} active", 8.5)


def _legends(axes: Axes, columns: Sequence[Column], style: CategoryStyle) -> None:
    """Colours of the categories, and below them the line styles."""
    width, height = inches(axes)
    named = style.plotted if len(style.plotted) <= 6 else style.plotted[:5]
    room = (width - 2 * MARGIN) / max(len(named), 3) - 0.6
    patches: list[tuple[Any, str]] = [
        (Patch(color=style.colours[a]), style.name(a, room, 9, "normal")) for a in named
    ]
    if len(named) < len(style.plotted):
        patches.append((Patch(color="none"), f"and {len(style.plotted) - len(named)} more"))
    outcomes = {edge.outcome for column in columns for edge in column.edges}
    lines: list[tuple[Any, str]] = [
        (Line2D([], [], linewidth=2.5, **LINE_STYLES[o]), LINE_LABELS[o]) for o in sorted(outcomes)
    ]
    for y, entries in ((height - 0.16, patches), (height - 0.42, lines)):
        if entries:
            place = (MARGIN / width, y / height)
            legend(axes, entries, loc="center left", bbox_to_anchor=place, borderpad=0, borderaxespad=0)
