"""Reports as JSON values."""

from typing import Any

from departing.cli.tables.fit import decision_values, fit_values, log_values
from departing.cli.tables.ope import ope_values
from departing.decision.decision import Decision
from departing.formatting import json_fields
from departing.model.instance import Instance
from departing.reporting.policy_text import policy_sentences
from departing.reporting.report import Report


def report_values(report: Report) -> dict[str, Any]:
    """Verdict, types, fit, decision, off-policy value and data quality as JSON values."""
    values: dict[str, Any] = {
        "verdict": json_fields(report.verdict, "kind", "headline") | {"sentences": list(report.verdict.sentences)},
        "log": log_values(report.log.report),
        "type_names": list(report.type_names),
        "rare_categories": [(report.log.categories or ())[a] for a in report.rare_categories],
    }
    if report.fit is not None and report.check is not None:
        values["fit"] = fit_values(report.fit, report.check, None)
    if report.decision is not None and report.fit is not None and report.verdict.shows_policy:
        values["policy"] = _policy_values(report.decision, report.fit.instance)
        values["decision"] = decision_values(report.decision)
        values["value"] = json_fields(report.value) | {"estimated_from": "log" if report.uses_ope else "model"}
        gain = report.gain_over_log
        values["gain_over_log"] = None if gain is None else json_fields(gain)
    if report.ope is not None:
        values["ope"] = ope_values("recommended policy", report.ope)
    return values


def _policy_values(decision: Decision, instance: Instance) -> Any:
    """The recommended policy in words; with segments by their name, the largest first."""
    if not decision.by_segment:
        return policy_sentences(decision.policy, instance)
    return {name: policy_sentences(each.policy, instance.in_segment(name)) for name, _, each in decision.segments}
