"""Plans for the terminal and as JSON values."""

from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text
from rich.tree import Tree as RichTree

from departing.cli.tables.layout import key_value_table, new_table
from departing.formatting import (
    first_few,
    format_bounds,
    format_count,
    format_number,
    format_percent,
    format_significant,
    json_fields,
)
from departing.model.instance import CLICK, STAY
from departing.planning.baselines import Baseline
from departing.planning.certificate import Verification
from departing.planning.plan import Plan
from departing.planning.policy_tree import Branch, policy_tree
from departing.planning.segment_tables import segment_columns
from departing.planning.sensitivity import FIELDS, Perturbation, Sensitivity
from departing.policy.library import describe
from departing.policy.schedule import Schedule

MAX_SEGMENTS = 3  # named in a cell


def plan_table(plan: Plan, baselines: tuple[Baseline, ...]) -> RichTable:
    """Bounds and method of a plan, and the losses of simpler policies compared with it."""
    table = key_value_table(
        "Plan",
        (f"{plan.instance.unit} per user", format_bounds(plan.lower, plan.upper)),
        ("lower bound", f"{plan.lower:.12g}"),
        ("upper bound", f"{plan.upper:.12g}"),
        ("gap", format_significant(plan.gap) if plan.gap >= 1e-12 else "below 1e-12"),
        *([("horizon", format_count(plan.instance.horizon, "recommendation"))] if plan.instance.horizon else []),
        ("method", plan.method),
        *([("time", f"{plan.seconds:.3g} s")] if plan.seconds >= 0.1 else []),
    )
    table.add_section()
    table.add_row("[bold]baseline", "[bold]loss compared with the optimal policy")
    for baseline in baselines:
        table.add_row(escape(describe(baseline.policy, plan.instance)), _loss(baseline, plan))
    return table


def segments_table(plan: Plan) -> RichTable:
    """Bounds on the value in each segment, and its first category."""
    unit, columns = plan.instance.unit, segment_columns(plan)
    head = ("segment", "share", f"{unit} per user", "best fixed policy")
    table = new_table("Segments", *head)
    table.add_column("first recommendation", overflow="fold")
    rows = (columns[name] for name in ("segment", "share", "lower", "upper", "best_fixed_value", "first"))
    for name, share, lower, upper, fixed, first in zip(*rows, strict=True):
        cells = (format_percent(share), format_bounds(lower, upper), format_number(fixed, 4), escape(first))
        table.add_row(escape(name), *cells)
    return table


def _loss(baseline: Baseline, plan: Plan) -> str:
    """Loss of a baseline in the unit of the value and as a share of the value, as far as the bounds decide it."""
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


def policy_outline(plan: Plan, depth: int = 4) -> Text | RichTree:
    """A schedule in one sentence; of other policies the first recommendations as a tree, with shares of all users.

    With segments, one sentence: each segment has a tree of its own.
    """
    if isinstance(plan.policy, Schedule) or plan.by_segment:
        return Text(plan.describe(), "bold")
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
        **json_fields(plan, "lower", "upper", "gap", "method", "reason", "seconds"),
        "unit": plan.instance.unit,
        "horizon": plan.instance.horizon,
        **({"segments": _segment_values(plan)} if plan.by_segment else {}),
        "allowed": [plan.instance.categories[a] for a in plan.allowed],
        "tree": policy_tree(plan.policy, plan.instance, depth).to_dict(plan.instance),
        "baselines": [
            {
                "policy": describe(baseline.policy, plan.instance),
                **json_fields(baseline.evaluation, "lower", "upper"),
                "loss_lower": baseline.loss.lower,
                "loss_upper": baseline.loss.upper,
            }
            for baseline in baselines
        ],
    }


def _segment_values(plan: Plan) -> list[dict[str, Any]]:
    """A row for each segment as JSON values."""
    columns = segment_columns(plan)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def verification_table(verification: Verification) -> RichTable:
    """One row for every condition of the certificate."""
    columns = ("condition", "checked", "largest violation / tolerance")
    table = new_table("Verification of the certificate", *columns, wrap=True)
    table.add_column("")
    for check in verification.checks:
        mark = "[green]holds" if check.holds else "[red]violated"
        table.add_row(check.claim, f"{check.count:,}", format_significant(check.worst), mark)
    table.caption = f"The bounds include a rounding tolerance of {verification.tolerance:.2g}."
    return table


def sensitivity_table(sensitivity: Sensitivity, plan: Plan) -> RichTable:
    """By changed field: the optimal value, the loss of keeping the plan, and the first recommendation."""
    title = f"Sensitivity to changes of up to {format_percent(sensitivity.by)} of each entry"
    table = new_table(title, "field", "change", "optimum", "loss of keeping the plan", labels=2, wrap=True)
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
    """New first categories, each with the segments in which it is new, or "unchanged"."""
    changed = [new for shift in shifts if (new := sensitivity.changed(shift))]
    if not changed:
        return "unchanged"
    segments: dict[str, dict[str, None]] = {}  # of each category; ordered sets
    for segment, category in (pair for new in changed for pair in new.items()):
        own = segments.setdefault(plan.instance.categories[category], {})
        own.update({} if segment is None else {segment: None})
    names = [
        f"{name} in {first_few(list(segments[name]), MAX_SEGMENTS)}" if segments[name] else name
        for name in sorted(segments)
    ]
    count = f" in {len(changed)} of {len(shifts)}" if len(shifts) > 1 else ""
    return escape(", ".join(names)) + count


def sensitivity_values(sensitivity: Sensitivity, plan: Plan) -> dict[str, Any]:
    """A sensitivity analysis as JSON values."""
    names = plan.instance.categories
    return {
        "by": sensitivity.by,
        "first": [names[a] for a in sensitivity.first],
        "shifts": [
            json_fields(shift, "field", "change", "plan_value", "loss")
            | {"optimum": shift.optimal_value, "first": [names[a] for a in shift.first]}
            | _segment_starts(shift, plan)
            for shift in sensitivity.perturbations
        ],
    } | _segment_starts(sensitivity, plan)


def _segment_starts(source: Sensitivity | Perturbation, plan: Plan) -> dict[str, Any]:
    """First categories of each segment as JSON values; nothing without segments."""
    names = plan.instance.categories
    starts = {name: [names[a] for a in first] for name, first in source.by_segment.items()}
    return {"by_segment": starts} if starts else {}
