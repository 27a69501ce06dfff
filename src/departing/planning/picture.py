"""A plan as a picture: who is recommended what in the first steps, and what is best at every belief."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Patch, PathPatch, Polygon, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator, PercentFormatter

from departing.evaluation.evaluate import evaluate
from departing.evaluation.push import Booleans, Frontier
from departing.figures import ENDINGS, FAINT, GREY, INK, PALETTE, ink_on, save, shorten, tidy, tint
from departing.model.counts import Integers
from departing.model.files import suffix_of
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.planning.outline import SETTLED
from departing.planning.plan import Plan, plan
from departing.planning.problem import Clock, Problem
from departing.policy.alpha import Alpha
from departing.policy.protocol import recommended, unsettled
from departing.policy.schedule import Schedule

COLUMNS = 5
ROWS = 8  # nodes in a column at most
SMALL = 0.01  # of all users: nodes with fewer are not drawn

COARSE = 2e-4  # of the value: the gap of plans at other beliefs
TINY = 5e-4  # of all users: fewer are not worth a word

WIDTH, MARGIN = 9.0, 0.35  # inches, as all lengths below
PITCH, BOX_HEIGHT, WIDEST = 0.62, 0.46, 1.75
TITLE, HEADER, STRIP, LEGEND, PANEL = 1.05, 0.34, 0.55, 0.66, 4.05
STROKES: dict[int, dict[str, Any]] = {
    CLICK: {"color": "#4d4d4d", "linestyle": "-"},
    STAY: {"color": "#8c8c8c", "linestyle": (0, (2.2, 1.1))},
}
MEANING = {CLICK: "after a click", STAY: "after no click, for those who stay"}
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])  # of the triangle of beliefs
HALO = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}


def write_picture(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Draw `plan` to a file that ends in .svg, .png or .pdf."""
    suffix_of(path, ENDINGS)  # a wrong ending is told before the work
    save(draw(plan), path)


@dataclass(frozen=True)
class Node:
    """Users with the same counts, who are recommended the same category for `steps` steps.

    `share` is how many of all arriving users get here; `settled` whether they see this category from here on, all
    but very few of them. The last run of a schedule has no end, and 0 steps.
    """

    category: int
    share: float
    settled: bool
    steps: int = 1


@dataclass(frozen=True)
class Edge:
    """Users who go on from node `start` to node `end` of the next column, after this outcome."""

    start: int
    end: int
    outcome: int
    share: float
    note: str = ""


@dataclass(frozen=True)
class Column:
    """All users who are still here after `step` steps.

    `here` is their share of all arriving users: those at the nodes, those at nodes too small to draw (`hidden`) and
    those who went through a settled node (`ended`). The edges lead on to the next column.
    """

    step: int
    here: float
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    hidden: float = 0.0
    ended: float = 0.0


def first_steps(plan: Plan, columns: int = COLUMNS) -> list[Column]:
    """What `plan` recommends in its first steps, and to how many of all arriving users."""
    if isinstance(plan.policy, Schedule):
        return _segments(plan.instance, plan.policy, columns)
    return _graph(plan, columns)


def _shares(instance: Instance) -> Floats:
    return np.asarray(instance.prior / instance.prior.sum())


def _segments(instance: Instance, policy: Schedule, columns: int) -> list[Column]:
    """A column for every run of one category: a schedule looks at the number of steps alone."""
    found: list[Column] = []
    weights, step = _shares(instance), 0
    go = instance.chances[:, CLICK] + instance.chances[:, STAY]
    segments = [*policy.segments, (policy.then, 0)]
    for category, steps in segments[:columns]:
        here = float(weights.sum())
        weights = weights * go[category] ** float(steps)
        more = len(found) + 1 < min(columns, len(segments))
        note = f"{_number(steps)} {'click' if instance.sure_departure else 'step'}{'s' if steps != 1 else ''}"
        edges = (Edge(0, 0, CLICK, float(weights.sum()), note),) if more else ()
        found.append(Column(step, here, (Node(category, here, steps == 0, steps),), edges))
        step += steps
    return found


@dataclass(frozen=True)
class _Level:
    """All counts after some steps: what they are shown, how many users are there and where these go.

    Users who went through settled counts are not among the shares and flows but in `ended`.
    """

    categories: Integers
    shares: Floats
    settled: Booleans
    child: Integers  # [n, 2], after a click and after a stay
    flows: Floats  # [n, 2]
    ended: float


def _levels(plan: Plan, columns: int) -> list[_Level]:
    """The graph of counts, whole, as deep as there are columns."""
    instance, n_types = plan.instance, plan.instance.n_types
    go = instance.chances[:, [CLICK, STAY]]
    frontier = Frontier(instance, np.concatenate([_shares(instance), np.zeros(n_types)]))  # the second half has ended
    levels: list[_Level] = []
    while len(levels) < columns and len(frontier):
        live, ended = np.split(frontier.weights, 2, axis=1)
        categories = recommended(plan.policy, frontier.counts)
        moving = ((live + ended) * unsettled(plan.policy, frontier.counts, instance)).sum(axis=1)
        settled = moving <= SETTLED * (live + ended).sum(axis=1)
        shares, gone_by = live.sum(axis=1), float(ended.sum())
        ended, live = np.where(settled[:, None], live + ended, ended), np.where(settled[:, None], 0.0, live)
        flows = np.concatenate([live[:, None] * go[categories], ended[:, None] * go[categories]], axis=2)
        child = frontier.advance(categories, flows)
        levels.append(_Level(categories, shares, settled, child, flows[:, :, :n_types].sum(axis=2), gone_by))
    return levels


def _graph(plan: Plan, columns: int) -> list[Column]:
    """A column for every step, with nodes merged by counts; the small ones are followed but not drawn."""
    found: list[Column] = []
    heights, before = np.zeros(1), np.zeros(0, np.int64)  # heights are nan where no drawn node leads
    levels = _levels(plan, columns)
    for step, level in enumerate(levels):
        drawn = _drawn(level.shares, heights)
        if not len(drawn):
            break
        if found:
            found[-1] = replace(found[-1], edges=_edges(levels[step - 1], before, drawn))
        nodes = tuple(Node(int(level.categories[i]), float(level.shares[i]), bool(level.settled[i])) for i in drawn)
        hidden = float(np.delete(level.shares, drawn).sum())
        found.append(Column(step, float(level.shares.sum()) + level.ended, nodes, (), hidden, level.ended))
        heights, before = _descend(level, drawn), drawn
    return found


def _drawn(shares: Floats, heights: Floats) -> Integers:
    """The rows to draw, from top to bottom: not too small and not too many."""
    rows = np.flatnonzero((shares > 0) & ~np.isnan(heights))
    if len(rows) > 1:
        rows = rows[shares[rows] >= SMALL]
    rows = rows[np.argsort(-shares[rows], kind="stable")[:ROWS]]
    return np.asarray(rows[np.argsort(-heights[rows], kind="stable")])


def _descend(level: _Level, drawn: Integers) -> Floats:
    """The heights of the children: means over drawn parents, after a click higher, after a stay lower."""
    n_children = int(level.child.max(initial=-1)) + 1
    sums, flows = np.zeros(n_children), np.zeros(n_children)
    heights = (len(drawn) - 1) / 2 - np.arange(len(drawn))
    for outcome, shift in ((CLICK, 0.5), (STAY, -0.5)):
        open_to = level.child[drawn, outcome] >= 0
        child, flow = level.child[drawn[open_to], outcome], level.flows[drawn[open_to], outcome]
        np.add.at(flows, child, flow)
        np.add.at(sums, child, flow * (heights[open_to] + shift))
    return np.asarray(np.divide(sums, flows, out=np.full(n_children, np.nan), where=flows > 0))


def _edges(level: _Level, rows: Integers, next_rows: Integers) -> tuple[Edge, ...]:
    """The ways from nodes that are not settled to nodes of the next column."""
    ends = {int(row): end for end, row in enumerate(next_rows)}
    return tuple(
        Edge(start, ends[int(level.child[row, outcome])], outcome, float(level.flows[row, outcome]))
        for start, row in enumerate(rows)
        for outcome in (CLICK, STAY)
        if level.flows[row, outcome] > 0 and int(level.child[row, outcome]) in ends
    )


@dataclass(frozen=True)
class BeliefMap:
    """What is best at every belief: ways of going on, what each brings each type, and how it starts.

    `vectors[n, M]` are expected clicks and `categories[n]` the first category. At a belief the best of them counts.
    """

    vectors: Floats
    categories: Integers

    def values(self, beliefs: Floats) -> Floats:
        """What the best way brings at `beliefs[..., M]`."""
        return np.asarray((beliefs @ self.vectors.T).max(axis=-1))

    def first(self, beliefs: Floats) -> Integers:
        """The category the best way starts with at `beliefs[..., M]`."""
        return np.asarray(self.categories[(beliefs @ self.vectors.T).argmax(axis=-1)])


def belief_map(found: Plan, seconds: float | None = None) -> BeliefMap:
    """Plan again at beliefs all over, for at most about this many seconds (1.5, or 4 for three types)."""
    instance = found.instance
    clock = Clock(seconds or (1.5 if instance.n_types == 2 else 4.0))
    beliefs = _grid(instance.n_types)
    gap = max(found.gap, COARSE * found.value, 1e-9)
    ways = [_way(found)]
    for weights in beliefs:
        if clock.over:
            break
        again = plan(_with_prior(instance, weights), gap, clock.seconds / len(beliefs), allowed=found.allowed)
        ways.append(_way(again))
    problem = Problem.of(instance, found.allowed)
    vectors = np.vstack([*(vector for vector, _ in ways), problem.fixed])
    return BeliefMap(vectors, np.concatenate([[category for _, category in ways], problem.categories]))


def _grid(n_types: int) -> Floats:
    """Beliefs that leave no type out, evenly spread, in an order that soon gets everywhere."""
    if n_types == 2:
        first = np.arange(1, 42) / 42
        beliefs = np.stack([first, 1 - first], axis=1)
    else:
        parts = [(i, j, 24 - i - j) for i in range(1, 23) for j in range(1, 24 - i)]
        beliefs = np.array(parts) / 24
    return np.asarray(np.random.default_rng(0).permutation(beliefs))


def _with_prior(instance: Instance, prior: Floats) -> Instance:
    return Instance(
        prior, instance.click, instance.depart, instance.depart_on_click, instance.categories, instance.types
    )


def _way(found: Plan) -> tuple[Floats, int]:
    """What the plan's policy brings each type, and the category it starts with."""
    policy, instance = found.policy, found.instance
    if isinstance(policy, Alpha):
        best = int((policy.vectors @ instance.prior).argmax())
        return policy.vectors[best], int(policy.categories[best])
    by_type = np.array([bracket.lower for bracket in evaluate(instance, policy).by_type])
    return by_type, int(recommended(policy, np.zeros((1, instance.n_categories, 4), np.int64))[0])


def draw(plan: Plan) -> Figure:
    """The picture of a plan."""
    columns = first_steps(plan)
    beliefs = belief_map(plan) if plan.instance.n_types in (2, 3) else None
    brush = Brush(plan.instance, _shown(columns, beliefs, plan.instance.n_types))
    graph = HEADER + sum(_reach(columns)) + STRIP
    panel = PANEL if beliefs else 0.0
    legend = LEGEND if len(columns) > 1 else 0.4
    height = TITLE + graph + legend + panel
    figure = Figure(figsize=(WIDTH, height))
    _title(figure, plan, columns)
    _draw_graph(_area(figure, 0, height - TITLE - graph, WIDTH, graph), columns, brush)
    _legends(_area(figure, 0, panel, WIDTH, legend), columns, brush)
    if beliefs and plan.instance.n_types == 2:
        _draw_line(_area(figure, 0.95, 0.6, WIDTH - 1.3, panel - 1.2), plan, beliefs, brush)
    elif beliefs:
        _head_triangle(_area(figure, 0, panel - 0.6, WIDTH, 0.6))
        _draw_triangle(_area(figure, 0.2, 0.1, 5.4, panel - 0.65), plan, beliefs, brush)
        _draw_gain(_area(figure, 6.0, 1.0, 2.65, 1.7), plan)
    return figure


def _shown(columns: Sequence[Column], beliefs: BeliefMap | None, n_types: int) -> list[int]:
    """All categories in the picture, in the order of their indices."""
    shown = {node.category for column in columns for node in column.nodes}
    if beliefs:
        shown |= set(beliefs.first(_fine(n_types)).tolist())
    return sorted(shown)


def _fine(n_types: int) -> Floats:
    """Many beliefs, corners and edges included: `[n, M]`."""
    if n_types == 2:
        first = np.linspace(0, 1, 1001)
        return np.stack([first, 1 - first], axis=1)
    parts = [(i, j, 80 - i - j) for i in range(81) for j in range(81 - i)]
    return np.array(parts) / 80


class Brush:
    """The colours and the names of the categories in a picture."""

    def __init__(self, instance: Instance, shown: Sequence[int]) -> None:
        self.names, self.shown = instance.categories, shown
        places = list(range(instance.n_categories))
        if len(places) > len(PALETTE):
            places.sort(key=lambda category: category not in shown)
        self.colours = {category: PALETTE[i % len(PALETTE)] for i, category in enumerate(places)}

    def name(self, category: int, width: float, size: float = 9.5, weight: str = "bold") -> str:
        """The name, shortened to a width in inches."""
        return shorten(self.names[category], width, size, weight)


def percent(share: float) -> str:
    """A share for people.

    >>> percent(0.4321), percent(0.0123), percent(0.0041), percent(1e-6)
    ('43 %', '1.2 %', '0.4 %', '< 0.1 %')
    """
    if share < TINY:
        return "< 0.1 %"
    return f"{share:.1%}".replace("%", " %") if share < 0.0995 else f"{share:.0%}".replace("%", " %")


def _area(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes at a place given in inches."""
    whole = figure.get_figheight()
    return figure.add_axes((left / WIDTH, bottom / whole, width / WIDTH, height / whole))


def _inches(axes: Axes) -> tuple[float, float]:
    """Make the axes an empty sheet measured in inches, and tell its width and height."""
    width, height = axes.bbox.width / axes.figure.dpi, axes.bbox.height / axes.figure.dpi
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.set_axis_off()
    return width, height


def _text(axes: Axes, x: float, y: float, text: str, size: float = 9.0, **style: Any) -> None:
    """Text as it is: a dollar is a dollar."""
    axes.text(x, y, text, fontsize=size, parse_math=False, **{"color": INK, "ha": "center", "va": "center"} | style)


def _title(figure: Figure, found: Plan, columns: Sequence[Column]) -> None:
    """The policy in words, the bracket around its value, and how to read the boxes."""
    sheet = _area(figure, 0, figure.get_figheight() - TITLE, WIDTH, TITLE)
    width = _inches(sheet)[0] - 2 * MARGIN
    _text(sheet, MARGIN, 0.78, shorten(_in_words(found), width, 12, "bold"), 12, ha="left", weight="bold")
    lower, upper = _clicks(found.lower), _clicks(found.upper)
    value = f"{lower} (best possible)" if lower == upper else f"at least {lower} (best possible: at most {upper})"
    _text(sheet, MARGIN, 0.5, f"expected clicks per user: {value}", 10, ha="left")
    note = "Boxes: what is recommended, and the share of all users who get there."
    if not isinstance(found.policy, Schedule) and any(node.settled for column in columns for node in column.nodes):
        note += f" From here on: at least {percent(1 - SETTLED)} of them see nothing else."
    _text(sheet, MARGIN, 0.2, note, 9, ha="left", color=FAINT)


def _clicks(value: float) -> str:
    return f"{value:.5f}" if value < 1 else f"{value:.4f}" if value < 1000 else f"{value:.7g}"


def _in_words(found: Plan) -> str:
    if not isinstance(found.policy, Alpha):
        return f"Plan: {found.words()}"
    name = found.instance.categories[_way(found)[1]]
    return f"Plan: start with {shorten(name, 3.0, 12, 'bold')}, then go by what the user clicks"


def _reach(columns: Sequence[Column]) -> tuple[float, float]:
    """How far boxes and words reach below and above the middle of the graph."""
    below = max(len(column.nodes) * PITCH / 2 + 0.18 * (column.hidden >= TINY) for column in columns)
    return below + 0.06, max(len(column.nodes) for column in columns) * PITCH / 2


def _draw_graph(sheet: Axes, columns: Sequence[Column], brush: Brush) -> None:
    """Columns of boxes from left to right, ways between them, and who is still here below."""
    width, height = _inches(sheet)
    pitch = min((width - 2 * MARGIN) / len(columns), 1.5 * WIDEST)
    box = min(0.68 * pitch, WIDEST)
    middle = STRIP + _reach(columns)[0]
    xs = [MARGIN + box / 2 + i * pitch for i in range(len(columns))]
    ys = [[middle + ((len(c.nodes) - 1) / 2 - i) * PITCH for i in range(len(c.nodes))] for c in columns]
    for i, column in enumerate(columns):
        _text(sheet, xs[i], height - 0.16, _when(column), 9, color=FAINT)
        for edge in sorted(column.edges, key=lambda edge: -edge.share):
            _way_on(sheet, (xs[i] + box / 2, ys[i][edge.start]), (xs[i + 1] - box / 2, ys[i + 1][edge.end]), edge)
    for i, column in enumerate(columns):
        for y, node in zip(ys[i], column.nodes, strict=True):
            _box(sheet, xs[i], y, box, node, brush)
            if i == len(columns) - 1 and not node.settled:
                _text(sheet, xs[i] + box / 2 + 0.14, y, "…", 12)
        if column.hidden >= TINY:
            _text(sheet, xs[i], ys[i][-1] - 0.38, f"and {percent(column.hidden)} elsewhere", 8, color=FAINT)
        _strip(sheet, xs[i], box, column.here)


def _when(column: Column) -> str:
    """The step or the steps of a column, counted from 1."""
    node, first = column.nodes[0], column.step + 1
    if node.steps == 0:
        return f"from step {_number(first)} on"
    return (
        f"step {_number(first)}" if node.steps <= 1 else f"steps {_number(first)}–{_number(first + node.steps - 1)}"
    )


def _number(n: int) -> str:
    return str(n) if n < 10**5 else f"{n:.1e}"


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
    times = f" × {_number(node.steps)}" if node.steps > 1 else ""
    room = width - 0.14 - 0.09 * len(times)
    lines = [brush.name(node.category, room) + times, percent(node.share)]
    if node.settled:
        lines.insert(1, "from here on")
    for i, line in enumerate(lines):
        at = y + ((len(lines) - 1) / 2 - i) * 0.17
        _text(sheet, x, at, line, 9.5 if i == 0 else 8.5, color=ink, weight="bold" if i == 0 else "normal", zorder=4)


def _way_on(sheet: Axes, start: tuple[float, float], end: tuple[float, float], edge: Edge) -> None:
    """A curve from box to box, as wide as many users take it: solid after a click, dashed after none."""
    bend = (end[0] - start[0]) / 2
    points = [start, (start[0] + bend, start[1]), (end[0] - bend, end[1]), end]
    curve = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    width = 1 + 6 * edge.share
    sheet.add_patch(PathPatch(curve, fill=False, linewidth=width, capstyle="butt", zorder=2, **STROKES[edge.outcome]))
    if edge.note:
        _text(sheet, start[0] + bend, start[1] + 0.13, edge.note, 8.5, color=FAINT)


def _strip(sheet: Axes, x: float, width: float, here: float) -> None:
    """A bar for all arriving users, filled as far as they are still here."""
    for share, colour in ((1.0, "#e4e4e4"), (here, "#6b6b6b")):
        sheet.add_patch(Rectangle((x - width / 2, 0.34), width * share, 0.09, color=colour, linewidth=0))
    _text(sheet, x, 0.2, f"{percent(here)} still here", 8.5)


def _legends(sheet: Axes, columns: Sequence[Column], brush: Brush) -> None:
    """Which colour is which category, and below that what the lines mean."""
    width, height = _inches(sheet)
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
            _legend(sheet, entries, loc="center left", bbox_to_anchor=place, borderpad=0, borderaxespad=0)


def _legend(axes: Axes, entries: Sequence[tuple[Any, str]], **options: Any) -> None:
    """A legend whose texts are taken as they are, whatever they start with."""
    handles = [handle for handle, _ in entries]
    legend = Legend(axes, handles, ["-"] * len(handles), frameon=False, fontsize=9, ncols=len(entries), **options)
    for text, (_, label) in zip(legend.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(label)
    axes.add_artist(legend)


def _draw_line(axes: Axes, found: Plan, beliefs: BeliefMap, brush: Brush) -> None:
    """For two types: the value against the belief in the first, on the colours of the first category."""
    tidy(axes)
    fine = _fine(2)
    xs, values = fine[:, 0], beliefs.values(fine)
    problem = Problem.of(found.instance, found.allowed)
    fixed, known = (fine @ problem.fixed.T).max(axis=1), fine @ problem.best
    _regions(axes, xs, beliefs.first(fine), brush)
    prior = problem.prior
    here = (found.lower, float((problem.fixed @ prior).max()), float(problem.best @ prior))
    looks: tuple[dict[str, Any], ...] = (
        {"linewidth": 2.2},
        {"linewidth": 1.1, "linestyle": "--"},
        {"linewidth": 1.1, "linestyle": ":"},
    )
    labels = ("best plan", "best category for ever", "if the type were known")
    entries: list[tuple[Any, str]] = []
    for ys, look, label, value in zip((values, fixed, known), looks, labels, here, strict=True):
        (line,) = axes.plot(xs, ys, color=INK, **look)
        entries.append((line, f"{label}: {_clicks(value)}"))
    axes.axvline(prior[0], color=INK, linewidth=0.9)
    axes.plot(prior[0], found.lower, "o", color=INK, markersize=6)
    _label_line(axes, found, float(prior[0]))
    _legend(axes, entries, loc="lower left", bbox_to_anchor=(-0.01, 0.99))


def _label_line(axes: Axes, found: Plan, prior: float) -> None:
    """Words and numbers around the panel for two types."""
    low, high = axes.get_ylim()
    axes.set_yticks([tick for tick in axes.get_yticks() if max(low, 0) <= tick <= high])
    axes.set_ylim(low - 0.12 * (high - low), high + 0.06 * (high - low))
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_xlabel(f"belief in {_type(found.instance, 0)}", fontsize=9.5, parse_math=False)
    axes.set_ylabel("expected clicks per user", fontsize=9.5)
    axes.tick_params(labelsize=9)
    place: dict[str, Any] = {"ha": "right"} if prior > 0.5 else {"ha": "left"}
    shift = -0.008 if prior > 0.5 else 0.008
    _text(axes, prior + shift, 0.95, f"prior {percent(prior)}", transform=axes.get_xaxis_transform(), **place)
    heading = "What to recommend first at every belief (colours), and what it brings (numbers: at the prior)"
    axes.set_title(heading, fontsize=10, loc="left", x=-0.08, pad=28, color=INK)


def _type(instance: Instance, x: int) -> str:
    """The name of a type, with the word type before it unless it is there already."""
    name = shorten(instance.types[x], 3.5, 9.5)
    return name if name.startswith("type") else f"type {name}"


def _regions(axes: Axes, xs: Floats, first: Integers, brush: Brush) -> None:
    """Colour the background by the category, with its name where there is room."""
    start = 0
    for category, run in groupby(first.tolist()):
        end = start + len(list(run))
        left, right = (xs[start] + xs[max(start - 1, 0)]) / 2, (xs[end - 1] + xs[min(end, len(xs) - 1)]) / 2
        axes.axvspan(left, right, color=tint(brush.colours[category], 0.35), linewidth=0, zorder=0)
        room = (right - left) * 7.5 - 0.1
        if room > 0.35:
            place = {"transform": axes.get_xaxis_transform(), "color": FAINT}
            _text(axes, (left + right) / 2, 0.06, brush.name(category, room, 9, "normal"), 9, **place)
        start = end


def _head_triangle(sheet: Axes) -> None:
    """How to read the triangle."""
    _inches(sheet)
    heading = "What to recommend first at every belief (colours), and the clicks to expect there (lines)"
    _text(sheet, MARGIN, 0.48, heading, 10, ha="left")
    _text(
        sheet,
        MARGIN,
        0.26,
        "The nearer to a corner, the surer that the user is of that type.",
        9,
        ha="left",
        color=FAINT,
    )


def _draw_triangle(axes: Axes, found: Plan, beliefs: BeliefMap, brush: Brush) -> None:
    """For three types: the triangle of beliefs in the colours of the first category, with lines of equal value."""
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_xlim(-0.3, 1.3)
    axes.set_ylim(-0.13, 0.98)
    _colour_triangle(axes, beliefs, brush)
    fine = _fine(3)
    values = beliefs.values(fine)
    if np.ptp(values) > 1e-6 * values.max():
        places = fine @ CORNERS
        levels = MaxNLocator(7, steps=[1, 2, 5, 10]).tick_values(values.min() + 0.04 * np.ptp(values), values.max())[
            1:-1
        ]
        lines = axes.tricontour(places[:, 0], places[:, 1], values, levels, colors=INK, linewidths=0.7)
        longest = [max(parts, key=len) for parts in lines.allsegs if parts]
        longest = [part for part in longest if np.ptp(part, axis=0).max() > 0.1]
        axes.clabel(lines, fontsize=7.5, fmt="%.3g", manual=[part[len(part) // 2] for part in longest])
    axes.add_patch(Polygon(CORNERS, fill=False, edgecolor=INK, linewidth=1.2))
    names = [shorten(name, 1.5, 9, "bold") for name in found.instance.types]
    for (x, y), (dx, dy), name in zip(CORNERS, ((0, -0.06), (0, -0.06), (0, 0.05)), names, strict=True):
        _text(axes, x + dx, y + dy, name, 9, weight="bold")
    x, y = _shares(found.instance) @ CORNERS
    axes.plot(x, y, "o", color=INK, markersize=7, markeredgecolor="white", zorder=5)
    shift, side = (-0.035, "right") if x > 0.6 else (0.035, "left")
    _text(axes, x + shift, y, "prior", 9, ha=side, weight="bold", zorder=5, bbox=HALO)


def _colour_triangle(axes: Axes, beliefs: BeliefMap, brush: Brush) -> None:
    """Fill the triangle pixel by pixel with the colour of the best first category."""
    xs, ys = np.meshgrid((np.arange(500) + 0.5) / 500, (np.arange(440) + 0.5) / 440 * CORNERS[2, 1])
    third = ys / CORNERS[2, 1]
    second = xs - third / 2
    weights = np.stack([1 - second - third, second, third], axis=-1)
    pixels = np.ones((*xs.shape, 3))
    first = beliefs.first(weights)
    for category in np.unique(first):
        pixels[first == category] = tint(brush.colours[category], 0.55)
    image = axes.imshow(pixels, extent=(0, 1, 0, CORNERS[2, 1]), origin="lower", interpolation="nearest")
    image.set_clip_path(Polygon(CORNERS, transform=axes.transData))


def _draw_gain(axes: Axes, found: Plan) -> None:
    """Bars: what the best category for ever, the plan, and knowing the type bring."""
    problem = Problem.of(found.instance, found.allowed)
    always = problem.fixed @ problem.prior
    best = found.instance.categories[problem.categories[always.argmax()]]
    bars = [
        (f"always {shorten(best, 1.2, 9)}", float(always.max()), GREY),
        ("this plan", found.lower, INK),
        ("if the type were known", float(problem.best @ problem.prior), "#c4c4c4"),
    ]
    width, _ = _inches(axes)
    most = max(value for _, value, _ in bars) or 1.0
    _text(axes, 0, 1.6, "expected clicks per user", 9.5, ha="left", weight="bold")
    for i, (label, value, colour) in enumerate(bars):
        y = 1.02 - 0.48 * i
        axes.add_patch(Rectangle((0, y), (width - 0.6) * value / most, 0.17, color=colour, linewidth=0))
        _text(axes, 0, y + 0.28, label, 9, ha="left")
        _text(axes, (width - 0.6) * value / most + 0.06, y + 0.08, f"{value:.4g}", 9, ha="left")
