"""A plan as a picture: who is recommended what in the first steps, and what is best at every belief."""

import os
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Patch, PathPatch, Rectangle
from matplotlib.path import Path

from departing.model.files import check_suffix
from departing.model.instance import CLICK, STAY
from departing.planning.belief_map import BeliefMap, belief_map, fine_grid, way
from departing.planning.plan import Plan
from departing.planning.plot.belief_plot import draw_gain, draw_line, draw_triangle, head_triangle
from departing.planning.plot.layout import MARGIN, TINY, WIDTH, Brush, area, clicks, inches, legend, percent, write
from departing.planning.plot.policy_tree import Column, Edge, Node, first_steps, short
from departing.planning.policy_text import SETTLED
from departing.plotting.figures import FAINT, FIGURE_SUFFIXES, ink_on, save, shorten
from departing.policy.alpha import Alpha
from departing.policy.schedule import Schedule

PITCH, BOX_HEIGHT, WIDEST = 0.62, 0.46, 1.75  # inches, as all lengths below
TITLE, HEADER, STRIP, LEGEND, PANEL = 1.05, 0.34, 0.55, 0.66, 4.05
STROKES: dict[int, dict[str, Any]] = {
    CLICK: {"color": "#4d4d4d", "linestyle": "-"},
    STAY: {"color": "#8c8c8c", "linestyle": (0, (2.2, 1.1))},
}
MEANING = {CLICK: "after a click", STAY: "after no click, for those who stay"}


def write_plot(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Draw `plan` to a file that ends in .svg, .png or .pdf."""
    check_suffix(path, FIGURE_SUFFIXES)  # a wrong ending is told before the work
    save(draw(plan), path)


def draw(plan: Plan) -> Figure:
    """The picture of a plan."""
    columns = first_steps(plan)
    beliefs = belief_map(plan) if plan.instance.n_types in (2, 3) else None
    brush = Brush(plan.instance, _shown(columns, beliefs, plan.instance.n_types))
    graph = HEADER + sum(_reach(columns)) + STRIP
    panel = PANEL if beliefs else 0.0
    key = LEGEND if len(columns) > 1 else 0.4
    height = TITLE + graph + key + panel
    figure = Figure(figsize=(WIDTH, height))
    _title(figure, plan, columns)
    _draw_graph(area(figure, 0, height - TITLE - graph, WIDTH, graph), columns, brush)
    _legends(area(figure, 0, panel, WIDTH, key), columns, brush)
    if beliefs and plan.instance.n_types == 2:
        draw_line(area(figure, 0.95, 0.6, WIDTH - 1.3, panel - 1.2), plan, beliefs, brush)
    elif beliefs:
        head_triangle(area(figure, 0, panel - 0.6, WIDTH, 0.6))
        draw_triangle(area(figure, 0.2, 0.1, 5.4, panel - 0.65), plan, beliefs, brush)
        draw_gain(area(figure, 6.0, 1.0, 2.65, 1.7), plan)
    return figure


def _shown(columns: Sequence[Column], beliefs: BeliefMap | None, n_types: int) -> list[int]:
    """All categories in the picture, in the order of their indices."""
    shown = {node.category for column in columns for node in column.nodes}
    if beliefs:
        shown |= set(beliefs.first(fine_grid(n_types)).tolist())
    return sorted(shown)


def _title(figure: Figure, found: Plan, columns: Sequence[Column]) -> None:
    """The policy in words, the bracket around its value, and how to read the boxes."""
    sheet = area(figure, 0, figure.get_figheight() - TITLE, WIDTH, TITLE)
    width = inches(sheet)[0] - 2 * MARGIN
    write(sheet, MARGIN, 0.78, shorten(_in_words(found), width, 12, "bold"), 12, ha="left", weight="bold")
    lower, upper = clicks(found.lower), clicks(found.upper)
    value = f"{lower} (best possible)" if lower == upper else f"at least {lower} (best possible: at most {upper})"
    write(sheet, MARGIN, 0.5, f"expected clicks per user: {value}", 10, ha="left")
    note = "Boxes: what is recommended, and the share of all users who get there."
    if not isinstance(found.policy, Schedule) and any(node.settled for column in columns for node in column.nodes):
        note += f" From here on: at least {percent(1 - SETTLED)} of them see nothing else."
    write(sheet, MARGIN, 0.2, note, 9, ha="left", color=FAINT)


def _in_words(found: Plan) -> str:
    if not isinstance(found.policy, Alpha):
        return f"Plan: {found.words()}"
    name = found.instance.categories[way(found)[1]]
    return f"Plan: start with {shorten(name, 3.0, 12, 'bold')}, then go by what the user clicks"


def _reach(columns: Sequence[Column]) -> tuple[float, float]:
    """How far boxes and words reach below and above the middle of the graph."""
    below = max(len(column.nodes) * PITCH / 2 + 0.18 * (column.hidden >= TINY) for column in columns)
    return below + 0.06, max(len(column.nodes) for column in columns) * PITCH / 2


def _draw_graph(sheet: Axes, columns: Sequence[Column], brush: Brush) -> None:
    """Columns of boxes from left to right, ways between them, and who is still here below."""
    width, height = inches(sheet)
    pitch = min((width - 2 * MARGIN) / len(columns), 1.5 * WIDEST)
    box = min(0.68 * pitch, WIDEST)
    middle = STRIP + _reach(columns)[0]
    xs = [MARGIN + box / 2 + i * pitch for i in range(len(columns))]
    ys = [[middle + ((len(c.nodes) - 1) / 2 - i) * PITCH for i in range(len(c.nodes))] for c in columns]
    for i, column in enumerate(columns):
        write(sheet, xs[i], height - 0.16, _when(column), 9, color=FAINT)
        for edge in sorted(column.edges, key=lambda edge: -edge.share):
            _way_on(sheet, (xs[i] + box / 2, ys[i][edge.start]), (xs[i + 1] - box / 2, ys[i + 1][edge.end]), edge)
    for i, column in enumerate(columns):
        for y, node in zip(ys[i], column.nodes, strict=True):
            _box(sheet, xs[i], y, box, node, brush)
            if i == len(columns) - 1 and not node.settled:
                write(sheet, xs[i] + box / 2 + 0.14, y, "…", 12)
        if column.hidden >= TINY:
            write(sheet, xs[i], ys[i][-1] - 0.38, f"and {percent(column.hidden)} elsewhere", 8, color=FAINT)
        _strip(sheet, xs[i], box, column.here)


def _when(column: Column) -> str:
    """The step or the steps of a column, counted from 1."""
    node, first = column.nodes[0], column.step + 1
    if node.steps == 0:
        return f"from step {short(first)} on"
    return f"step {short(first)}" if node.steps <= 1 else f"steps {short(first)}–{short(first + node.steps - 1)}"


def _box(sheet: Axes, x: float, y: float, width: float, node: Node, brush: Brush) -> None:
    """A rounded box in the category's colour with its name and the share of users."""
    height = BOX_HEIGHT + (0.1 if node.settled else 0)
    colour = brush.colours[node.category]
    style = f"round,pad=0,rounding_size={height / 4}"
    corner = (x - width / 2, y - height / 2)
    sheet.add_patch(
        FancyBboxPatch(corner, width, height, boxstyle=style, facecolor=colour, edgecolor="none", zorder=3)
    )
    ink = ink_on(colour)
    times = f" × {short(node.steps)}" if node.steps > 1 else ""
    room = width - 0.14 - 0.09 * len(times)
    lines = [brush.name(node.category, room) + times, percent(node.share)]
    if node.settled:
        lines.insert(1, "from here on")
    for i, line in enumerate(lines):
        at = y + ((len(lines) - 1) / 2 - i) * 0.17
        write(sheet, x, at, line, 9.5 if i == 0 else 8.5, color=ink, weight="bold" if i == 0 else "normal", zorder=4)


def _way_on(sheet: Axes, start: tuple[float, float], end: tuple[float, float], edge: Edge) -> None:
    """A curve from box to box, as wide as many users take it: solid after a click, dashed after none."""
    bend = (end[0] - start[0]) / 2
    points = [start, (start[0] + bend, start[1]), (end[0] - bend, end[1]), end]
    curve = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    width = 1 + 6 * edge.share
    sheet.add_patch(PathPatch(curve, fill=False, linewidth=width, capstyle="butt", zorder=2, **STROKES[edge.outcome]))
    if edge.note:
        write(sheet, start[0] + bend, start[1] + 0.13, edge.note, 8.5, color=FAINT)


def _strip(sheet: Axes, x: float, width: float, here: float) -> None:
    """A bar for all arriving users, filled as far as they are still here."""
    for share, colour in ((1.0, "#e4e4e4"), (here, "#6b6b6b")):
        sheet.add_patch(Rectangle((x - width / 2, 0.34), width * share, 0.09, color=colour, linewidth=0))
    write(sheet, x, 0.2, f"{percent(here)} still here", 8.5)


def _legends(sheet: Axes, columns: Sequence[Column], brush: Brush) -> None:
    """Which colour is which category, and below that what the lines mean."""
    width, height = inches(sheet)
    shown = brush.shown if len(brush.shown) <= 6 else brush.shown[:5]
    room = (width - 2 * MARGIN) / max(len(shown), 3) - 0.6
    patches: list[tuple[Any, str]] = [
        (Patch(color=brush.colours[a]), brush.name(a, room, 9, "normal")) for a in shown
    ]
    if len(shown) < len(brush.shown):
        patches.append((Patch(color="none"), f"and {len(brush.shown) - len(shown)} more"))
    outcomes = {edge.outcome for column in columns for edge in column.edges}
    lines: list[tuple[Any, str]] = [
        (Line2D([], [], linewidth=2.5, **STROKES[o]), MEANING[o]) for o in sorted(outcomes)
    ]
    for y, entries in ((height - 0.16, patches), (height - 0.42, lines)):
        if entries:
            place = (MARGIN / width, y / height)
            legend(sheet, entries, loc="center left", bbox_to_anchor=place, borderpad=0, borderaxespad=0)
