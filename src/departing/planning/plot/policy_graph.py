"""Policy graph: the first recommendations of a plan with equal counts merged, and the shares of users."""

from dataclasses import dataclass, replace

import numpy as np

from departing.evaluation.traversal import Booleans, first_level, traverse
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.planning.plan import Plan
from departing.planning.policy_tree import COMMITTED
from departing.policy.schedule import Schedule

COLUMNS = 5  # steps that fit the width of the plot
ROWS = 8  # nodes that fit the height of a column
MIN_SHARE = 0.01  # of all users: smaller nodes are not drawn


@dataclass(frozen=True)
class Node:
    """Users with equal counts, who get the same category for `steps` steps.

    `share` is their fraction of all users; `committed` is True if at most 1 % of them ever get another category. The
    last phase of a schedule has no end, and 0 steps.
    """

    category: int
    share: float
    committed: bool
    steps: int = 1


@dataclass(frozen=True)
class Edge:
    """Users who move from node `start` to node `end` of the next column after an outcome."""

    start: int
    end: int
    outcome: int
    share: float
    note: str = ""


@dataclass(frozen=True)
class Column:
    """Users who are active after `step` steps.

    `active` is their fraction of all users: those at the nodes, those at nodes too small to draw (`hidden`) and those
    who went through a committed node (`committed`). The edges lead to the next column.
    """

    step: int
    active: float
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    hidden: float = 0.0
    committed: float = 0.0


def policy_graph(plan: Plan, columns: int = COLUMNS) -> list[Column]:
    """Columns of the first recommendations of `plan`."""
    if isinstance(plan.policy, Schedule):
        return _phases(plan.instance, plan.policy, columns)
    return _graph(plan, min(columns, plan.instance.horizon or columns))


def _phases(instance: Instance, policy: Schedule, max_columns: int) -> list[Column]:
    """A column for every phase of a schedule."""
    columns: list[Column] = []
    weights, step = instance.normalised_prior, 0
    survival = instance.outcome_probabilities[:, CLICK] + instance.outcome_probabilities[:, STAY]
    phases = _within([*policy.phases, (policy.final_category, 0)], instance.horizon)
    for category, steps in phases[:max_columns]:
        active = float(weights.sum())
        weights = weights * survival[category] ** float(steps)
        more = len(columns) + 1 < min(max_columns, len(phases))
        note = f"{short(steps)} {'click' if instance.sure_departure else 'step'}{'s' if steps != 1 else ''}"
        edges = (Edge(0, 0, CLICK, float(weights.sum()), note),) if more else ()
        columns.append(Column(step, active, (Node(category, active, steps == 0, steps),), edges))
        step += steps
    return columns


def _within(phases: list[tuple[int, int]], horizon: int | None) -> list[tuple[int, int]]:
    """The phases until the horizon; the last one of a schedule, which goes on, has 0 steps."""
    starts = np.cumsum([0, *(steps for _, steps in phases)])
    if horizon is None or not phases:
        return phases
    return [
        (a, min(steps or horizon, horizon - int(start)))
        for (a, steps), start in zip(phases, starts, strict=False)
        if start < horizon
    ]


@dataclass(frozen=True)
class _Level:
    """All counts after some steps: recommendations, shares of users and successors.

    Users who went through committed counts are not in `shares` and `flows` but in `committed_share`.
    """

    categories: Integers
    shares: Floats
    committed: Booleans
    child: Integers  # [n, 2], after a click and after a stay
    flows: Floats  # [n, 2]
    committed_share: float


def _levels(plan: Plan, columns: int) -> list[_Level]:
    """The complete count graph of the first steps."""
    instance, n_types = plan.instance, plan.instance.n_types
    transitions = instance.outcome_probabilities[:, [CLICK, STAY]]
    start = np.concatenate([instance.normalised_prior, np.zeros(n_types)])  # second half: after a committed node
    levels: list[_Level] = []
    for level in traverse(first_level(instance, plan.policy, start)):
        if len(levels) == columns:
            break
        before, after = np.split(level.weights, 2, axis=1)
        switching = ((before + after) * level.switch_bounds).sum(axis=1)
        committed = switching <= COMMITTED * (before + after).sum(axis=1)
        shares, committed_share = before.sum(axis=1), float(after.sum())
        after = np.where(committed[:, None], before + after, after)
        before = np.where(committed[:, None], 0.0, before)
        moves = transitions[level.categories]
        level.flows = np.concatenate([before[:, None] * moves, after[:, None] * moves], axis=2)
        moved = level.flows[:, :, :n_types].sum(axis=2)
        levels.append(_Level(level.categories, shares, committed, level.child, moved, committed_share))
    return levels


def _graph(plan: Plan, max_columns: int) -> list[Column]:
    """A column for every step; small nodes are followed but not drawn."""
    columns: list[Column] = []
    heights, before = np.zeros(1), np.zeros(0, np.int64)  # heights are nan where no drawn node leads
    levels = _levels(plan, max_columns)
    for step, level in enumerate(levels):
        drawn = _drawn(level.shares, heights)
        if not len(drawn):
            break
        if columns:
            columns[-1] = replace(columns[-1], edges=_edges(levels[step - 1], before, drawn))
        nodes = tuple(Node(int(level.categories[i]), float(level.shares[i]), bool(level.committed[i])) for i in drawn)
        hidden = float(np.delete(level.shares, drawn).sum())
        active = float(level.shares.sum()) + level.committed_share
        columns.append(Column(step, active, nodes, (), hidden, level.committed_share))
        heights, before = _descend(level, drawn), drawn
    return columns


def _drawn(shares: Floats, heights: Floats) -> Integers:
    """Rows to draw, from top to bottom: the largest ones."""
    rows = np.flatnonzero((shares > 0) & ~np.isnan(heights))
    if len(rows) > 1:
        rows = rows[shares[rows] >= MIN_SHARE]
    rows = rows[np.argsort(-shares[rows], kind="stable")[:ROWS]]
    return np.asarray(rows[np.argsort(-heights[rows], kind="stable")])


def _descend(level: _Level, drawn: Integers) -> Floats:
    """Heights of the children: means over drawn parents, higher after a click, lower after a stay."""
    n_children = int(level.child.max(initial=-1)) + 1
    sums, flows = np.zeros(n_children), np.zeros(n_children)
    heights = (len(drawn) - 1) / 2 - np.arange(len(drawn))
    for outcome, shift in ((CLICK, 0.5), (STAY, -0.5)):
        has_child = level.child[drawn, outcome] >= 0
        child, flow = level.child[drawn[has_child], outcome], level.flows[drawn[has_child], outcome]
        np.add.at(flows, child, flow)
        np.add.at(sums, child, flow * (heights[has_child] + shift))
    return np.asarray(np.divide(sums, flows, out=np.full(n_children, np.nan), where=flows > 0))


def _edges(level: _Level, rows: Integers, next_rows: Integers) -> tuple[Edge, ...]:
    """Edges from nodes that are not committed to nodes of the next column."""
    ends = {int(row): end for end, row in enumerate(next_rows)}
    return tuple(
        Edge(start, ends[int(level.child[row, outcome])], outcome, float(level.flows[row, outcome]))
        for start, row in enumerate(rows)
        for outcome in (CLICK, STAY)
        if level.flows[row, outcome] > 0 and int(level.child[row, outcome]) in ends
    )


def short(n: int) -> str:
    """Format an integer, with two digits and a power of ten if it is long.

    >>> short(99_999), short(123_456)
    ('99999', '1.2e+05')
    """
    return str(n) if n < 10**5 else f"{n:.1e}"
