"""What a plan recommends in its first steps, and to how many users."""

from dataclasses import dataclass, replace

import numpy as np

from departing.evaluation.forward import Booleans, Frontier
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.planning.plan import Plan
from departing.planning.policy_text import SETTLED
from departing.planning.problem import Problem
from departing.policy.protocol import recommended, switch_probability_bounds
from departing.policy.schedule import Schedule

COLUMNS = 5
ROWS = 8  # nodes in a column at most
SMALL = 0.01  # of all users: nodes with fewer are not shown


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


def _segments(instance: Instance, policy: Schedule, columns: int) -> list[Column]:
    """A column for every run of one category: a schedule looks at the number of steps alone."""
    found: list[Column] = []
    weights, step = Problem.of(instance).prior, 0
    go = instance.outcome_probabilities[:, CLICK] + instance.outcome_probabilities[:, STAY]
    segments = [*policy.phases, (policy.final_category, 0)]
    for category, steps in segments[:columns]:
        here = float(weights.sum())
        weights = weights * go[category] ** float(steps)
        more = len(found) + 1 < min(columns, len(segments))
        note = f"{short(steps)} {'click' if instance.sure_departure else 'step'}{'s' if steps != 1 else ''}"
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
    go = instance.outcome_probabilities[:, [CLICK, STAY]]
    start = np.concatenate([Problem.of(instance).prior, np.zeros(n_types)])  # the second half has ended
    frontier = Frontier(instance, start)
    levels: list[_Level] = []
    while len(levels) < columns and len(frontier):
        live, ended = np.split(frontier.weights, 2, axis=1)
        categories = recommended(plan.policy, frontier.counts)
        moving = ((live + ended) * switch_probability_bounds(plan.policy, frontier.counts, instance)).sum(axis=1)
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


def short(n: int) -> str:
    """A whole number, with two digits and a power of ten where it is long.

    >>> short(99_999), short(123_456)
    ('99999', '1.2e+05')
    """
    return str(n) if n < 10**5 else f"{n:.1e}"
