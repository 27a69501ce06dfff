"""Results as tables for a person and as plain values for a program."""

import math
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.tree import Tree as RichTree

from departing.evaluation.bracket import Bracket
from departing.evaluation.evaluate import Evaluation
from departing.model.instance import CLICK, STAY, Instance
from departing.planning.myopia import Rival
from departing.planning.outline import Branch, outline
from departing.planning.plan import Plan
from departing.planning.proof import Verification
from departing.planning.sensitivity import FIELDS, Sensitivity, Shift
from departing.policy.library import describe
from departing.simulation.compare import Comparison
from departing.simulation.run import Run

BY_TYPE = 5  # decimals of values by type
Rows = list[tuple[str, Evaluation]]


def number(value: float, digits: int = 6) -> str:
    """A number with so many decimals, or significant digits where it is large or tiny.

    >>> number(0.65029058), number(12345678.9), number(0.0)
    ('0.650291', '1.23457e+07', '0.000000')
    """
    if math.isnan(value):
        return "–"
    return f"{value:.{digits}f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.{digits}g}"


def significant(value: float) -> str:
    """Three significant digits.

    >>> significant(0.00103725)
    '0.00104'
    """
    return "–" if math.isnan(value) else f"{value:.3g}"


def bracket(lower: float, upper: float, digits: int = 10) -> str:
    """A bracket as the decimals (so many at most) both ends share in rounding, or as both ends.

    >>> bracket(0.65029058440749, 0.65029058440750), bracket(1.25, 1.5)
    ('0.6502905844', '1.25 to 1.5')
    """
    for shared in range(digits, 2, -1):
        if f"{lower:.{shared}f}" == f"{upper:.{shared}f}" and abs(upper) < 1e6:
            return f"{lower:.{shared}f}"
    return f"{lower:.6g} to {upper:.6g}"


def ranked(rows: Rows) -> Rows:
    """The policies, the one with the largest guaranteed value first."""
    return sorted(rows, key=lambda row: -row[1].lower)


def behind(found: Bracket, others: list[Bracket], best: Bracket | None) -> str:
    """How far a policy is behind the best of the `others`, as far as the bounds tell; None for the best itself.

    >>> one, two, wide = Bracket(1.0, 1.0), Bracket(1.5, 1.5), Bracket(1.2, 1.6)
    >>> behind(one, [two], two), behind(two, [one], None), behind(two, [wide], None), behind(wide, [two], two)
    ('-0.500000', 'best', 'undecided', 'undecided')
    """
    if best is None:
        return "best" if all(other.upper < found.lower for other in others) else "undecided"
    if found.upper >= best.lower:
        return "undecided"
    least, most = found.lower - best.upper, found.upper - best.lower
    return number(found.value - best.value) if most - least < 1e-6 else f"{least:.6g} to {most:.6g}"


class EvaluationTable:
    """Policies with what they are worth, best first; by type in columns where these fit, else in rows."""

    def __init__(self, instance: Instance, rows: Rows) -> None:
        self.instance, self.rows = instance, ranked(rows)

    def _table(self, *columns: str) -> RichTable:
        table = RichTable(title="Expected clicks per user", title_justify="left")
        table.add_column("policy", overflow="fold", min_width=12)
        for name in columns:
            table.add_column(escape(name), justify="right", no_wrap=True)
        return table

    def _lines(self) -> list[list[str]]:
        best = self.rows[0][1]
        return [
            [
                escape(words),
                bracket(found.lower, found.upper),
                behind(found, [other for _, other in self.rows[:i] + self.rows[i + 1 :]], best if i else None),
            ]
            for i, (words, found) in enumerate(self.rows)
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = self._table("clicks", "to the best", *self.instance.types)
        for line, (_, found) in zip(self._lines(), self.rows, strict=True):
            wide.add_row(*line, *(bracket(by.lower, by.upper, BY_TYPE) for by in found.by_type))
        if Measurement.get(console, options.update(max_width=10_000), wide).maximum <= options.max_width:
            yield wide
            return
        table = self._table("clicks", "to the best")
        for line in self._lines():
            table.add_row(*line)
        yield table
        table = self._table("type", "clicks")
        table.title = "By type"
        for words, found in self.rows:
            table.add_section()
            for i, (name, by) in enumerate(zip(self.instance.types, found.by_type, strict=True)):
                table.add_row("" if i else escape(words), escape(name), bracket(by.lower, by.upper, BY_TYPE))
        yield table


def evaluation_notes(rows: Rows, tolerance: float) -> list[str]:
    """A sentence for every policy whose bounds are further apart than was asked for."""
    wide = [(words, found) for words, found in rows if found.gap > max(tolerance, 1e-9 * found.upper)]
    return [
        f"The bounds of {words} are {significant(found.gap)} apart: more --nodes would bring them closer."
        for words, found in wide
    ]


def evaluation_values(words: str, found: Evaluation, distribution: bool) -> dict[str, Any]:
    """An evaluation as plain values."""
    values: dict[str, Any] = {
        "policy": words,
        "lower": found.lower,
        "upper": found.upper,
        "by_type": [{"lower": by.lower, "upper": by.upper} for by in found.by_type],
    }
    if distribution:
        values |= {
            "returns": found.distribution.returns.tolist(),
            "steps": found.distribution.steps.tolist(),
            "survival": found.distribution.survival.tolist(),
            "left": found.distribution.left,
        }
    return values


def distribution_table(words: str, found: Evaluation, most: int = 20) -> RichTable:
    """The chance of every number of clicks and of steps, and of being still here."""
    seen = found.distribution
    columns = (seen.returns, seen.steps, seen.survival)
    longest = max(map(len, columns))
    table = RichTable(title=escape(words), title_justify="left", caption_justify="left")
    for name in ("n", "exactly n clicks", "exactly n steps", "still here after n"):
        table.add_column(name, justify="right", no_wrap=True)
    for n in range(min(most, longest)):
        table.add_row(
            str(n), *(number(float(c[n])) if n < len(c) else f"≤ {significant(seen.left)}" for c in columns)
        )
    captions = [f"{longest - most} more rows with --json."] if longest > most else []
    if seen.left > 1e-6:
        captions.append(f"{significant(seen.left)} of the users were not followed to the end; more --nodes would.")
    table.caption = " ".join(captions) or None
    return table


def _pairs(title: str) -> RichTable:
    table = RichTable(title=escape(title), title_justify="left", show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    return table


def run_table(words: str, run: Run, confidence: float, seconds: float) -> RichTable:
    """A run, line by line."""
    table = _pairs(words)
    low, high = run.interval(confidence)
    table.add_row("users", f"{run.users:,}")
    table.add_row("clicks", f"{run.clicks:,}")
    table.add_row("steps", f"{run.steps:,}")
    if run.truncated:
        table.add_row("truncated users", f"{run.truncated:,}")
    table.add_row("clicks per user", number(run.mean, 8))
    table.add_row("standard error", significant(run.stderr))
    table.add_row(f"{confidence:.4g} confidence", f"{number(low, 8)} to {number(high, 8)}")
    table.add_row("engine", run.engine)
    table.add_row("time", f"{seconds:.3g} s, {run.steps / max(seconds, 1e-9):.3g} steps/s")
    return table


def run_values(words: str, run: Run, confidence: float, seconds: float) -> dict[str, Any]:
    """A run as plain values."""
    return {
        "policy": words,
        "users": run.users,
        "clicks": run.clicks,
        "steps": run.steps,
        "truncated": run.truncated,
        "mean": run.mean,
        "stderr": finite(run.stderr),
        "confidence": confidence,
        "interval": [finite(end) for end in run.interval(confidence)],
        "engine": run.engine,
        "seed": run.seed,
        "seconds": seconds,
    }


def comparison_table(first: str, second: str, result: Comparison, confidence: float) -> RichTable:
    """Two policies on the same users."""
    table = _pairs(f"The same {result.users:,} users under both policies")
    low, high = result.interval(confidence)
    table.add_row(escape(first), number(result.first))
    table.add_row(escape(second), number(result.second))
    table.add_row("difference", number(result.difference))
    table.add_row(f"{confidence:.4g} confidence", f"{number(low)} to {number(high)}")
    table.add_row("standard error", significant(result.stderr))
    table.add_row("on different users", significant(result.unpaired_stderr))
    return table


def comparison_values(first: str, second: str, result: Comparison, confidence: float) -> dict[str, Any]:
    """A comparison as plain values."""
    return {
        "policies": [first, second],
        "users": result.users,
        "means": [result.first, result.second],
        "difference": result.difference,
        "stderr": finite(result.stderr),
        "unpaired_stderr": finite(result.unpaired_stderr),
        "confidence": confidence,
        "interval": [finite(end) for end in result.interval(confidence)],
    }


def plan_table(plan: Plan, held: tuple[Rival, ...]) -> RichTable:
    """A plan, line by line, and what simpler policies lose against it."""
    table = _pairs("Plan")
    table.add_row("clicks per user", bracket(plan.lower, plan.upper))
    table.add_row("guaranteed by this policy", f"{plan.lower:.12g}")
    table.add_row("no policy brings more than", f"{plan.upper:.12g}")
    table.add_row("gap", significant(plan.gap) if plan.gap >= 1e-12 else "below 1e-12")
    table.add_row("method", plan.method)
    if plan.seconds >= 0.1:
        table.add_row("time", f"{plan.seconds:.3g} s")
    table.add_section()
    table.add_row("[bold]cost of myopia", "[bold]loses")
    for rival in held:
        table.add_row(escape(describe(rival.policy, plan.instance)), _loss(rival, plan))
    return table


def _loss(rival: Rival, plan: Plan) -> str:
    """A loss with its share of the plan's value, as far as the bounds tell."""
    loss = rival.loss
    if rival.found.lower > plan.lower + 1e-9 * plan.upper:
        return f"nothing: it brings {significant(rival.found.lower - plan.lower)} more than is guaranteed"
    if loss.upper <= max(plan.gap, 1e-12 * plan.upper):
        return "nothing" if plan.gap < 1e-6 * plan.upper else f"nothing, or up to {significant(loss.upper)}"
    whole = max(plan.upper, 1e-300)
    if loss.gap <= 0.02 * loss.upper:
        return f"{significant(loss.value)} ({loss.value / whole:{_percent(loss.value / whole)}})"
    form = _percent(loss.upper / whole)
    shares = f"{loss.lower / whole:{form}} to {loss.upper / whole:{form}}"
    return f"{significant(loss.lower)} to {significant(loss.upper)} ({shares})"


def _percent(share: float) -> str:
    """A format for percentages of about this size."""
    return ".1%" if share > 0.01 else ".3%" if share > 1e-4 else ".5%"


def plan_tree(plan: Plan, depth: int = 4) -> RichTree:
    """The first recommendations as a tree, with the share of all users on each branch."""
    names = plan.instance.categories

    def label(branch: Branch) -> str:
        word = {None: "first", CLICK: "click", STAY: "no click, stays"}[branch.outcome]
        end = ", from here on" if branch.for_good else ""
        return f"{word} → [bold]{escape(names[branch.category])}[/bold]{end}  [dim]{branch.share:.0%} of users[/dim]"

    def grow(tree: RichTree, branch: Branch) -> None:
        for then in branch.then:
            grow(tree.add(label(then)), then)

    first = outline(plan, depth)
    tree = RichTree(label(first))
    grow(tree, first)
    return tree


def plan_values(plan: Plan, held: tuple[Rival, ...], depth: int) -> dict[str, Any]:
    """A plan as plain values."""
    return {
        "policy": plan.words(),
        "lower": plan.lower,
        "upper": plan.upper,
        "gap": plan.gap,
        "method": plan.method,
        "reason": plan.reason,
        "seconds": plan.seconds,
        "allowed": [plan.instance.categories[a] for a in plan.allowed],
        "first": _branch_values(outline(plan, depth), plan),
        "myopia": [
            {
                "policy": describe(rival.policy, plan.instance),
                "lower": rival.found.lower,
                "upper": rival.found.upper,
                "loses_at_least": rival.loss.lower,
                "loses_at_most": rival.loss.upper,
            }
            for rival in held
        ],
    }


def _branch_values(branch: Branch, plan: Plan) -> dict[str, Any]:
    after = {None: None, CLICK: "click", STAY: "stay"}[branch.outcome]
    values: dict[str, Any] = {"category": plan.instance.categories[branch.category], "share": branch.share}
    if after is not None:
        values["after"] = after
    if branch.then:
        values["then"] = [_branch_values(then, plan) for then in branch.then]
    return values


def verification_table(found: Verification) -> RichTable:
    """Every kind of claim that was checked."""
    table = RichTable(title="Checked again, without searching", title_justify="left")
    table.add_column("claims", overflow="fold")
    table.add_column("how many", justify="right")
    table.add_column("worst, of the tolerance", justify="right")
    table.add_column("")
    for check in found.checks:
        mark = "[green]hold" if check.holds else "[red]do not hold"
        table.add_row(check.what, f"{check.count:,}", significant(check.worst), mark)
    table.caption, table.caption_justify = f"The bracket includes a tolerance of {found.tolerance:.2g}.", "left"
    return table


def sensitivity_table(found: Sensitivity, plan: Plan) -> RichTable:
    """For every field: what the best policy would be worth, what keeping to the plan loses, and the first choices."""
    table = RichTable(title=f"If every entry is off by up to {found.by:.0%} of itself", title_justify="left")
    table.add_column("off", overflow="fold")
    table.add_column("how", overflow="fold")
    table.add_column("best possible", justify="right")
    table.add_column("lost by keeping the plan", justify="right")
    table.add_column("first choice", overflow="fold")
    for field in FIELDS:
        table.add_section()
        shifts = found.of(field)
        drawn = [shift for shift in shifts if shift.how.startswith("at random")]
        for i, shift in enumerate(shift for shift in shifts if shift not in drawn):
            cells = [field if i == 0 else "", escape(shift.how), number(shift.value, 4), significant(shift.loss)]
            table.add_row(*cells, _first([shift], found, plan))
        if drawn:
            values, losses = [shift.value for shift in drawn], [shift.loss for shift in drawn]
            table.add_row(
                "",
                f"{len(drawn)} times at random",
                f"{number(min(values), 4)} to {number(max(values), 4)}",
                f"{significant(sum(losses) / len(losses))} on average, {significant(max(losses))} at most",
                _first(drawn, found, plan),
            )
    return table


def _first(shifts: list[Shift], found: Sensitivity, plan: Plan) -> str:
    same = sum(shift.first[0] == found.first[0] for shift in shifts)
    if same == len(shifts):
        return "the same"
    names = sorted({plan.instance.categories[shift.first[0]] for shift in shifts if shift.first[0] != found.first[0]})
    return escape(", ".join(names)) + (f" in {len(shifts) - same} of {len(shifts)}" if len(shifts) > 1 else "")


def sensitivity_values(found: Sensitivity, plan: Plan) -> dict[str, Any]:
    """A sensitivity as plain values."""
    names = plan.instance.categories
    return {
        "by": found.by,
        "first": [names[a] for a in found.first],
        "shifts": [
            {
                "field": shift.field,
                "how": shift.how,
                "value": shift.value,
                "keeps": shift.keeps,
                "loss": shift.loss,
                "first": [names[a] for a in shift.first],
            }
            for shift in found.shifts
        ],
    }


def finite(value: float) -> float | None:
    """`value`, or None where it is not a number, which JSON does not know."""
    return value if math.isfinite(value) else None
