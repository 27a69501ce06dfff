"""Plans for the terminal and as JSON values."""

from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable
from rich.tree import Tree as RichTree

from departing.cli.tables.simulation import key_value_table
from departing.formatting import format_bounds, format_number, format_percent, format_significant
from departing.model.instance import CLICK, STAY
from departing.planning.baselines import Baseline
from departing.planning.certificate import Verification
from departing.planning.plan import Plan
from departing.planning.policy_tree import Branch, policy_tree
from departing.planning.sensitivity import FIELDS, Perturbation, Sensitivity
from departing.policy.library import describe


def plan_table(plan: Plan, baselines: tuple[Baseline, ...]) -> RichTable:
    """Bounds and method of a plan, and the losses of simpler policies compared with it."""
    table = key_value_table("Plan")
    table.add_row("clicks per user", format_bounds(plan.lower, plan.upper))
    table.add_row("lower bound", f"{plan.lower:.12g}")
    table.add_row("upper bound", f"{plan.upper:.12g}")
    table.add_row("gap", format_significant(plan.gap) if plan.gap >= 1e-12 else "below 1e-12")
    table.add_row("method", plan.method)
    if plan.seconds >= 0.1:
        table.add_row("time", f"{plan.seconds:.3g} s")
    table.add_section()
    table.add_row("[bold]baseline", "[bold]loss compared with the optimal policy")
    for baseline in baselines:
        table.add_row(escape(describe(baseline.policy, plan.instance)), _loss(baseline, plan))
    return table


def _loss(baseline: Baseline, plan: Plan) -> str:
    """Loss of a baseline in clicks per user and as a share of the value, as far as the bounds decide it."""
    loss = baseline.loss
    if baseline.evaluation.lower > plan.lower + 1e-9 * plan.upper:
        return f"none: its lower bound is {format_significant(baseline.evaluation.lower - plan.lower)} higher"
    if loss.upper <= max(plan.gap, 1e-12 * plan.upper):
        return "none" if plan.gap < 1e-6 * plan.upper else f"at most {format_significant(loss.upper)}"
    optimum = max(plan.upper, 1e-300)
    if loss.gap <= 0.02 * loss.upper:
        return f"{format_significant(loss.value)} ({format_percent(loss.value / optimum)})"
    shares = f"{format_percent(loss.lower / optimum)} to {format_percent(loss.upper / optimum)}"
    return f"{format_significant(loss.lower)} to {format_significant(loss.upper)} ({shares})"


def tree_table(plan: Plan, depth: int = 4) -> RichTree:
    """First recommendations as a tree, with the share of all users on each branch."""
    names = plan.instance.categories

    def label(branch: Branch) -> str:
        outcome = {None: "first", CLICK: "click", STAY: "no click, stays"}[branch.outcome]
        last = ", from then on" if branch.committed else ""
        category, share = escape(names[branch.category]), format_percent(branch.share)
        return f"{outcome} → [bold]{category}[/bold]{last}  [dim]{share} of users[/dim]"

    def grow(tree: RichTree, branch: Branch) -> None:
        for following in branch.children:
            grow(tree.add(label(following)), following)

    first = policy_tree(plan.policy, plan.instance, depth)
    tree = RichTree(label(first))
    grow(tree, first)
    return tree


def plan_values(plan: Plan, baselines: tuple[Baseline, ...], depth: int) -> dict[str, Any]:
    """A plan as JSON values."""
    return {
        "policy": plan.describe(),
        "lower": plan.lower,
        "upper": plan.upper,
        "gap": plan.gap,
        "method": plan.method,
        "reason": plan.reason,
        "seconds": plan.seconds,
        "allowed": [plan.instance.categories[a] for a in plan.allowed],
        "first": policy_tree(plan.policy, plan.instance, depth).to_dict(plan.instance),
        "baselines": [
            {
                "policy": describe(baseline.policy, plan.instance),
                "lower": baseline.evaluation.lower,
                "upper": baseline.evaluation.upper,
                "loss_lower": baseline.loss.lower,
                "loss_upper": baseline.loss.upper,
            }
            for baseline in baselines
        ],
    }


def verification_table(verification: Verification) -> RichTable:
    """One row for every condition of the certificate."""
    table = RichTable(title="Verification of the certificate", title_justify="left")
    table.add_column("condition", overflow="fold")
    table.add_column("instances", justify="right")
    table.add_column("largest violation / tolerance", justify="right")
    table.add_column("")
    for check in verification.checks:
        mark = "[green]holds" if check.holds else "[red]violated"
        table.add_row(check.claim, f"{check.count:,}", format_significant(check.worst), mark)
    table.caption = f"The bounds include a rounding tolerance of {verification.tolerance:.2g}."
    table.caption_justify = "left"
    return table


def sensitivity_table(sensitivity: Sensitivity, plan: Plan) -> RichTable:
    """By changed field: the optimal value, the loss of keeping the plan, and the first recommendation."""
    title = f"Sensitivity to changes of up to {format_percent(sensitivity.by)} of each entry"
    table = RichTable(title=title, title_justify="left")
    table.add_column("field", overflow="fold")
    table.add_column("change", overflow="fold")
    table.add_column("optimum", justify="right")
    table.add_column("loss of keeping the plan", justify="right")
    table.add_column("first recommendation", overflow="fold")
    for field in FIELDS:
        table.add_section()
        shifts = sensitivity.of(field)
        random = [shift for shift in shifts if shift.change.startswith("random")]
        for i, shift in enumerate(shift for shift in shifts if shift not in random):
            value, loss = format_number(shift.optimal_value, 4), format_significant(shift.loss)
            table.add_row(
                field if i == 0 else "", escape(shift.change), value, loss, _first([shift], sensitivity, plan)
            )
        if random:
            values, losses = [shift.optimal_value for shift in random], [shift.loss for shift in random]
            mean = sum(losses) / len(losses)
            table.add_row(
                "",
                f"{len(random)} random changes",
                f"{format_number(min(values), 4)} to {format_number(max(values), 4)}",
                f"mean {format_significant(mean)}, maximum {format_significant(max(losses))}",
                _first(random, sensitivity, plan),
            )
    return table


def _first(shifts: list[Perturbation], sensitivity: Sensitivity, plan: Plan) -> str:
    changed = [shift.first[0] for shift in shifts if shift.first[0] != sensitivity.first[0]]
    if not changed:
        return "unchanged"
    names = sorted({plan.instance.categories[a] for a in changed})
    return escape(", ".join(names)) + (f" in {len(changed)} of {len(shifts)}" if len(shifts) > 1 else "")


def sensitivity_values(sensitivity: Sensitivity, plan: Plan) -> dict[str, Any]:
    """A sensitivity analysis as JSON values."""
    names = plan.instance.categories
    return {
        "by": sensitivity.by,
        "first": [names[a] for a in sensitivity.first],
        "shifts": [
            {
                "field": shift.field,
                "change": shift.change,
                "optimum": shift.optimal_value,
                "plan_value": shift.plan_value,
                "loss": shift.loss,
                "first": [names[a] for a in shift.first],
            }
            for shift in sensitivity.perturbations
        ],
    }
