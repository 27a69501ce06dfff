"""Fits for the terminal and as JSON values."""

from math import isfinite
from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from departing.cli.output import show
from departing.cli.tables.layout import new_table
from departing.data.log import Log
from departing.data.quality import LogReport
from departing.decision.decision import Decision
from departing.fitting.fit import Fit
from departing.fitting.goodness_of_fit import FitCheck
from departing.fitting.segment_estimates import SegmentEstimates
from departing.fitting.segment_test import SegmentTest
from departing.formatting import json_fields

MAX_SEGMENTS = 20
MAX_CATEGORIES = 30  # rows of a table that stay readable; all are in the JSON output


def print_fit(log: Log, fit: Fit, check: FitCheck) -> None:
    """Print the report of the log, the selection of the number of types, the types, and warnings."""
    print(log.report)
    if len(fit.criteria) > 1:
        show(criteria_table(fit))
    print("\n".join(fit.describe_types()))
    show(type_table(fit))
    lines = [*fit.warnings, fit.describe_evidence()]
    if fit.segments is not None:
        show(segment_table(fit.segments))
        lines.append(fit.segments.describe())
        if fit.segment_test is not None:
            lines.append(fit.segment_test.summary())
    if fit.rewards is not None:
        lines.append(fit.rewards.describe())
    print("\n".join([*lines, str(check)]), flush=True)


def criteria_table(fit: Fit) -> RichTable:
    """Selection criteria for each number of types."""
    columns = ("types", "parameters", "log-likelihood", "adjusted BIC", "held-out log-likelihood per user")
    table = new_table("Number of types", *columns, labels=0, wrap=True)
    for row in fit.criteria:
        mark = "bold" if row.types == fit.instance.n_types else None
        sabic = f"{row.sabic:,.1f}"
        table.add_row(
            str(row.types),
            str(row.parameters),
            f"{row.log_likelihood:,.1f}",
            sabic,
            f"{row.held_out:.5f}",
            style=mark,
        )
    return table


def type_table(fit: Fit) -> RichTable:
    """Probabilities of every category and type with standard errors; a question mark if not identifiable."""
    instance, errors, identified = fit.instance, fit.stderr, fit.identified
    table = new_table("Probabilities ± standard errors", "category")
    table.add_column("", no_wrap=True)
    for x, name in enumerate(instance.types):
        table.add_column(f"{escape(name)}\n{_with_error(instance.prior[x], errors.prior[x])}", justify="right")
    fields = ["click", "depart", *(["depart_on_click"] if len(fit.likelihood.depart_on_click_categories) else [])]
    for a, name in enumerate(instance.categories[:MAX_CATEGORIES]):
        for i, field in enumerate(fields):
            values, stderr, known = (getattr(part, field)[a] for part in (instance, errors, identified))
            row = [
                _with_error(*pair) if is_known else f"{pair[0]:.3f} ?"
                for *pair, is_known in zip(values, stderr, known, strict=True)
            ]
            table.add_row(escape(name) if i == 0 else "", field, *row, end_section=field == fields[-1])
    captions = []
    if not all(getattr(identified, field)[:MAX_CATEGORIES].all() for field in fields):
        captions.append("? Not identifiable: the log does not determine it; see the warnings.")
    if instance.n_categories > MAX_CATEGORIES:
        captions.append(f"{instance.n_categories - MAX_CATEGORIES} more categories are not shown.")
    table.caption = "\n".join(captions) or None
    return table


def segment_table(estimates: SegmentEstimates) -> RichTable:
    """Priors of the largest segments with standard errors."""
    segments = estimates.segments
    table = new_table("Priors of segments ± standard errors", "segment", "users")
    for x in range(segments.prior.shape[1]):
        table.add_column(f"type {x}", justify="right")
    order = estimates.users.argsort(kind="stable")[::-1][:MAX_SEGMENTS]
    for s in order.tolist():
        priors = map(_with_error, segments.prior[s], estimates.stderr[s])
        table.add_row(escape(segments.names[s]), f"{estimates.users[s]:,}", *priors)
    if len(segments.names) > MAX_SEGMENTS:
        table.caption = f"{len(segments.names) - MAX_SEGMENTS} more segments are not shown."
    return table


def _with_error(value: float, error: float) -> str:
    return f"{value:.3f} ± {error:.3f}" if error > 0 else f"{value:.3f}"


def decision_contents(decision: Decision) -> list[Any]:
    """Recommended policy, first categories, expected loss, and values and gains, for the terminal."""
    return [*decision.sentences, decision_table(decision)]


def decision_table(decision: Decision) -> RichTable:
    """Values of policies, and the gain of the recommended policy over each."""
    unit = decision.fit.instance.unit
    columns = ("policy", unit, "95% interval", "gain over it", "95% interval")
    table = new_table(f"{unit[:1].upper()}{unit[1:]} per user", *columns, min_width=16)
    for row in decision.rows():
        table.add_row(*map(escape, row))
    return table


def log_values(report: LogReport) -> dict[str, Any]:
    """The report of a log as JSON values."""
    return json_fields(report) | {
        "rejected": report.rejected,
        "irregularities": [*map(json_fields, report.irregularities)],
    }


def fit_values(fit: Fit, check: FitCheck, decision: Decision | None) -> dict[str, Any]:
    """A fit, its check and the decision as JSON values."""
    low, high = map(json_fields, fit.intervals())
    values: dict[str, Any] = {
        "users": fit.histories.users,
        "censored": int(fit.histories.multiplicity[fit.histories.censored].sum()),
        "types": fit.instance.n_types,
        "type_descriptions": fit.describe_types(),
        "one_type": fit.one_type,
        "instance": fit.instance.to_dict(),
        "stderr": json_fields(fit.stderr),
        "intervals": {name: [lower, high[name]] for name, lower in low.items()},
        "identified": json_fields(fit.identified),
        "log_likelihood": fit.log_likelihood,
        "criteria": [json_fields(row) for row in fit.criteria],
        "warnings": list(fit.warnings),
        "effective_users": fit.effective_users,
        "check": json_fields(check, "fits", "reasons", "p_value", "error", "clicks_per_user", "truncated")
        | {"worst": [json_fields(cell) | {"z": cell.z} for cell in check.worst(10)], "drift": drift_values(check)},
    }
    if fit.segments is not None:
        lower, upper = fit.segments.intervals()
        values["segments"] = {
            "concentration": fit.segments.concentration if isfinite(fit.segments.concentration) else None,
            "users": fit.segments.users.tolist(),
            "stderr": fit.segments.stderr.tolist(),
            "intervals": [lower.tolist(), upper.tolist()],
            "test": None if fit.segment_test is None else test_values(fit.segment_test),
        }
    if fit.rewards is not None:
        values["rewards"] = fit.rewards.to_dict()
    if decision is not None:
        values |= decision_values(decision)
    return values


def drift_values(check: FitCheck) -> dict[str, Any] | None:
    """The drift that a check finds as JSON values; None if there is none."""
    if check.drift is None:
        return None
    names = "response", "kind", "name", "shape", "before", "after", "p_value"
    return json_fields(check.drift, "p_value", "shape", "since", "earliest", "latest") | {
        "changes": [json_fields(change, *names) for change in check.drift.changes]
    }


def test_values(test: SegmentTest) -> dict[str, Any]:
    """A test of segments as JSON values."""
    return json_fields(test, "p_value", "gain", "explained") | {"columns": [*map(json_fields, test.columns)]}


def decision_values(decision: Decision) -> dict[str, Any]:
    """A decision as JSON values."""
    lists = {name: [*map(json_fields, getattr(decision, name))] for name in ("first", "values", "gains")}
    values = {
        "recommended_policy": decision.describe_policy(),
        **json_fields(decision, "expected_loss", "users_to_halve", "estimated_by"),
        **lists,
    }
    if decision.by_segment:
        values["by_segment"] = {
            name: {"share": share} | decision_values(each) for name, share, each in decision.segments
        }
    return values
