"""Plans as tables for a person and as plain values for a program."""

from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable
from rich.tree import Tree as RichTree

from departing.cli.tables.evaluation import pairs
from departing.formatting import format_bounds, format_number, format_significant
from departing.model.instance import CLICK, STAY
from departing.planning.baselines import Baseline
from departing.planning.certificate import Verification
from departing.planning.plan import Plan
from departing.planning.policy_text import Branch, outline
from departing.planning.sensitivity import FIELDS, Sensitivity, Shift
from departing.policy.library import describe


def plan_table(plan: Plan, held: tuple[Baseline, ...]) -> RichTable:
    """A plan, line by line, and what simpler policies lose against it."""
    table = pairs("Plan")
    table.add_row("clicks per user", format_bounds(plan.lower, plan.upper))
    table.add_row("guaranteed by this policy", f"{plan.lower:.12g}")
    table.add_row("no policy brings more than", f"{plan.upper:.12g}")
    table.add_row("gap", format_significant(plan.gap) if plan.gap >= 1e-12 else "below 1e-12")
    table.add_row("method", plan.method)
    if plan.seconds >= 0.1:
        table.add_row("time", f"{plan.seconds:.3g} s")
    table.add_section()
    table.add_row("[bold]cost of myopia", "[bold]loses")
    for rival in held:
        table.add_row(escape(describe(rival.policy, plan.instance)), _loss(rival, plan))
    return table


def _loss(rival: Baseline, plan: Plan) -> str:
    """A loss with its share of the plan's value, as far as the bounds tell."""
    loss = rival.loss
    if rival.found.lower > plan.lower + 1e-9 * plan.upper:
        return f"nothing: it brings {format_significant(rival.found.lower - plan.lower)} more than is guaranteed"
    if loss.upper <= max(plan.gap, 1e-12 * plan.upper):
        return "nothing" if plan.gap < 1e-6 * plan.upper else f"nothing, or up to {format_significant(loss.upper)}"
    whole = max(plan.upper, 1e-300)
    if loss.gap <= 0.02 * loss.upper:
        return f"{format_significant(loss.value)} ({loss.value / whole:{_percent(loss.value / whole)}})"
    form = _percent(loss.upper / whole)
    shares = f"{loss.lower / whole:{form}} to {loss.upper / whole:{form}}"
    return f"{format_significant(loss.lower)} to {format_significant(loss.upper)} ({shares})"


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

    first = outline(plan.policy, plan.instance, depth)
    tree = RichTree(label(first))
    grow(tree, first)
    return tree


def plan_values(plan: Plan, held: tuple[Baseline, ...], depth: int) -> dict[str, Any]:
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
        "first": outline(plan.policy, plan.instance, depth).to_dict(plan.instance),
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


def verification_table(found: Verification) -> RichTable:
    """Every kind of claim that was checked."""
    table = RichTable(title="Checked again, without searching", title_justify="left")
    table.add_column("claims", overflow="fold")
    table.add_column("how many", justify="right")
    table.add_column("worst, of the tolerance", justify="right")
    table.add_column("")
    for check in found.checks:
        mark = "[green]hold" if check.holds else "[red]do not hold"
        table.add_row(check.what, f"{check.count:,}", format_significant(check.worst), mark)
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
            cells = [
                field if i == 0 else "",
                escape(shift.how),
                format_number(shift.value, 4),
                format_significant(shift.loss),
            ]
            table.add_row(*cells, _first([shift], found, plan))
        if drawn:
            values, losses = [shift.value for shift in drawn], [shift.loss for shift in drawn]
            table.add_row(
                "",
                f"{len(drawn)} times at random",
                f"{format_number(min(values), 4)} to {format_number(max(values), 4)}",
                f"mean {format_significant(sum(losses) / len(losses))}, maximum {format_significant(max(losses))}",
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
