"""Sections about the recommended policy: what to show, and what it is expected to gain."""

import html
import math
from typing import TYPE_CHECKING

from departing.decision.claims import PolicyValue
from departing.fitting.type_names import shorten_name
from departing.offpolicy.limits import MAX_TAIL_SHARE
from departing.reporting.charts import Interval, interval_chart
from departing.reporting.page import name_html, paragraphs, scroll_table
from departing.reporting.policy_text import policy_sentences, policy_tree_html
from departing.reporting.sections.users import category_ranks
from departing.reporting.verdict import beyond_log, clicks

if TYPE_CHECKING:
    from departing.reporting.report import Report

NO_POLICY = "No policy is recommended; the top of this page says why."
LABELS = {"recommended policy": "recommended", "policy of the log": "today (the log)", "greedy": "greedy"}
MAX_FIRST = 5  # categories in the list of first categories


def policy_section(report: "Report") -> str:
    """The recommended policy in words and as a tree."""
    decision, fit = report.decision, report.fit
    if decision is None or fit is None or not report.verdict.shows_policy:
        return paragraphs(NO_POLICY)
    policy, instance = decision.policy, fit.instance
    words = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in policy_sentences(policy, instance))
    tree = policy_tree_html(policy, instance, category_ranks(report))
    gap = f"{100 * decision.plan.gap / max(decision.plan.value, 1e-12):.2g}%"
    fixed = f"Always showing {shorten_name(report.best_fixed)} is nearly as good as this policy:"
    return (
        paragraphs(fixed if report.is_fixed and not fit.one_type else "")
        + f"<ul class='words'>{words}</ul><div class='scroll tree-box'>{tree}</div>"
        "<p class='legend'>Each line is one recommendation: what the user did before, what to show next, and the "
        "share of all users who get there. The rest have left, or are in branches of less than 1% of users. "
        "After these steps the policy continues in the same way; the saved policy contains all of it.</p>"
        + _first_categories(report)
        + paragraphs(f"Under the fitted model, the best possible policy is at most {gap} better than the plan.")
    )


def _first_categories(report: "Report") -> str:
    """Probability that each first category is optimal."""
    decision = report.decision
    assert decision is not None
    ranked = [each for each in decision.first if each.probability >= 0.005][:MAX_FIRST]
    if len(ranked) < 2:
        return ""
    rows = [
        Interval(name_html(each.category), each.probability, math.nan, math.nan, f"{each.probability:.0%}", is_chosen)
        for each in ranked
        for is_chosen in [each.category == decision.candidates[0].first]
    ]
    chart = interval_chart(rows, "probability that each first category is the best", top=1.0)
    return f"<h3>Probability that this category is the best start</h3>{chart}"


def gain_section(report: "Report") -> str:
    """Values of the recommended policy and its alternatives, the gains, and how each was estimated."""
    decision = report.decision
    if decision is None or not report.verdict.shows_policy:
        return paragraphs(NO_POLICY)
    values = [report.value, *decision.values[1:]]
    rows = [
        Interval(_label(each.name), each.value, each.lower, each.upper, clicks(each.value), i == 0)
        for i, each in enumerate(values)
    ]
    unit = html.escape(report.unit)
    chart = interval_chart(rows, f"expected {unit} per user, with 95% intervals")
    return (
        f"<h3>Expected {unit} per user</h3>{chart}{_gain_table(report, values)}"
        + _rewards_table(report)
        + paragraphs(*_estimation(report))
        + paragraphs(beyond_log(report) if report.extrapolation.share > MAX_TAIL_SHARE else "")
        + paragraphs(
            "Today is what the log did. “Always” shows the best single category to everyone. Greedy shows the "
            "category with the highest expected reward of the next step and does not plan ahead."
            if report.log.rewards is not None
            else "Today is what the log did. “Always” shows the best single category to everyone. Greedy shows the "
            "category with the highest click rate for the next step and does not plan ahead."
        )
    )


def _label(name: str) -> str:
    return f"<bdi>{html.escape(LABELS.get(name, name))}</bdi>"


def _gain_table(report: "Report", values: list[PolicyValue]) -> str:
    decision = report.decision
    assert decision is not None
    gains = {gain.name: gain for gain in decision.gains}
    if (over_log := report.gain_over_log) is not None:
        gains[over_log.name] = over_log
    rows = []
    for i, each in enumerate(values):
        gain = gains.get(each.name)
        method = "the log itself" if each.name == "policy of the log" else "model"
        if i == 0 and report.uses_ope:
            method = "the log (OPE)"
        rows.append(
            [
                _label(each.name),
                *_cells(each),
                *(["", ""] if gain is None else _cells(gain, signed=True)),
                method,
            ]
        )
    gain_head = "gain of the recommended policy"
    head = ["", f"{report.unit} per user", "95% interval", gain_head, "95% interval", "estimated from"]
    return scroll_table(head, rows)


def _rewards_table(report: "Report") -> str:
    """Mean reward of a click by category, if the log has rewards."""
    stats = report.log.rewards if report.fit is None else report.fit.rewards
    if stats is None:
        return ""
    rows = [
        [name_html(name), f"{mean:.4g}", _defined(stderr), _defined(sd), f"{n:,}"]
        for name, mean, stderr, sd, n in zip(*stats.columns().values(), strict=True)
    ]
    head = ["category", f"mean {report.unit} of a click", "standard error", "standard deviation", "clicks"]
    return f"<h3>What a click is worth</h3>{scroll_table(head, rows)}"


def _defined(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2g}"


def _cells(value: PolicyValue, signed: bool = False) -> list[str]:
    def text(number: float) -> str:
        return ("+" if signed and number >= 0.005 else "") + clicks(number).replace("-", "−")

    interval = "" if math.isnan(value.lower) else f"{text(value.lower)} to {text(value.upper)}"
    return [text(value.value), interval]


def _estimation(report: "Report") -> list[str]:
    """Sentences about the estimation of the value of the recommended policy, with its reasons."""
    ope, decision = report.ope, report.decision
    assert decision is not None
    model = (
        "Values estimated from the model are corrected for optimism: the policy that looks best on a log looks "
        "better than it is. Intervals come from refitting the model to resampled users."
    )
    if ope is None:
        return [
            "The log does not say with which probability each recommendation was made (no propensity column), so the "
            "values rest on the model. Log these probabilities to have them estimated from the log.",
            model,
        ]
    if ope.dr is None:
        return ["The log has propensities, but too few users happened to get what the policy would show.", model]
    estimate = report.value if report.uses_ope else ope.dr
    interval = f"95% interval {clicks(estimate.lower)} to {clicks(estimate.upper)}"
    dr = f"{clicks(estimate.value)} {report.unit} per user ({interval})"
    if report.uses_ope:
        return [
            "The log is randomised and its propensities are known, so the value of the recommended policy is "
            f"estimated from the log by off-policy evaluation (doubly robust): {dr}. {1 - ope.tail_share:.0%} of it "
            f"comes from the first {ope.horizon} recommendations in the log, the rest from the model, which alone "
            f"gives {clicks(decision.value.value)}.",
            "All values of policies that were chosen on this log are corrected for optimism: the policy that looks "
            "best on a log looks better than it is.",
        ]
    return [
        f"The log is randomised, but users who happened to get what the policy would show cover only its first "
        f"{ope.horizon} recommendations, {1 - ope.tail_share:.0%} of its {report.unit}. So the value above is the "
        f"model's. Off-policy evaluation (doubly robust), which uses the log for these recommendations, gives {dr}.",
        model,
    ]
