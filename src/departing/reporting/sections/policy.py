"""Sections about the recommended policy: what to show, and what it is expected to gain."""

import html
import math
from typing import TYPE_CHECKING

from departing.decision.claims import PolicyValue
from departing.decision.decision import IGNORING
from departing.formatting import first_few, format_limit, format_share, shorten_name
from departing.model.instance import Instance
from departing.offpolicy.limits import MAX_TAIL_SHARE, MIN_LEFT_OUT, left_out_share
from departing.reporting.charts import Interval, interval_chart
from departing.reporting.page import collapsed, name_html, paragraphs, scroll_table
from departing.reporting.policy_text import policy_sentences, policy_tree_html
from departing.reporting.sections.users import category_ranks
from departing.reporting.verdict import beyond_log, clicks

if TYPE_CHECKING:
    from departing.decision.decision import Decision
    from departing.reporting.report import Report

NO_POLICY = "No policy is recommended; the top of this page says why."
LABELS = {
    "recommended policy": "recommended",
    "policy of the log": "today (the log)",
    "greedy": "greedy",
    IGNORING: "ignoring segments",
}
BY_SEGMENT_NOTE = (
    "Policies by segment know the segment of a user on arrival. “Ignoring segments” is the best policy that does not."
)
BY_SEGMENT = {"recommended policy": "recommended (by segment)", "greedy": "greedy (by segment)"}
MAX_FIRST = 5  # categories in the list of first categories
MAX_OPEN, MAX_TREES = 3, 12  # segments whose policies are open, and that have a tree: the others have sentences
MAX_NAMES = 3  # segments in a title


def policy_section(report: "Report") -> str:
    """The recommended policy in words and as a tree; with segments for the largest ones."""
    decision, fit = report.decision, report.fit
    if decision is None or fit is None or not report.verdict.shows_policy:
        return paragraphs(NO_POLICY)
    gap = f"{format_limit(100 * decision.plan.gap / max(decision.plan.value, 1e-12))}%"
    fixed = f"Always showing {shorten_name(report.best_fixed)} is nearly as good as this policy:"
    of_users = "users of the segment" if decision.by_segment else "all users"
    return (
        paragraphs(fixed if report.is_fixed and not fit.one_type else "")
        + (_by_segment(report) if decision.by_segment else _policy(report, decision, fit.instance))
        + "<p class='legend'>Each line is one recommendation: what the user did before, what to show next, and the "
        f"share of {of_users} who get there. The rest have left, or are in branches of less than 1% of users. "
        "After these steps the policy continues in the same way; the saved policy contains all of it.</p>"
        + paragraphs(f"Under the fitted model, the best possible policy is at most {gap} better than the plan.")
    )


def _by_segment(report: "Report") -> str:
    """The policies of the segments, those of the largest ones in full; segments with the same one are together."""
    decision, fit = report.decision, report.fit
    assert decision is not None
    assert fit is not None
    groups: dict[str, list[tuple[str, float, Decision]]] = {}
    for row in decision.segments:
        groups.setdefault(_policy(report, row[2], fit.instance.in_segment(row[0])), []).append(row)
    if len(groups) == 1:
        return next(iter(groups))
    parts = []
    for i, (content, rows) in enumerate(groups.items()):
        names = first_few([shorten_name(name) for name, *_ in rows], MAX_NAMES)
        title = f"{names} ({format_share(sum(share for _, share, _ in rows))} of users)"
        if i < MAX_OPEN:
            parts.append(f"<h3>{html.escape(title)}</h3>{content}")
        elif i < MAX_TREES:
            parts.append(collapsed(title, content))
        else:
            parts.append(collapsed(title, _sentences(rows[0][2], fit.instance.in_segment(rows[0][0]))))
    unknown = report.log.report.unknown_segment
    of_log = f"{unknown:,}" if unknown else "none"
    first = shorten_name(decision.first_if_unknown)
    return "".join(parts) + paragraphs(
        f"Users whose segment is unknown ({of_log} in this log) start with {first}; they have a policy of their own."
    )


def _policy(report: "Report", decision: "Decision", instance: Instance) -> str:
    """A policy in words and as a tree, and the probabilities of its first category."""
    tree = policy_tree_html(decision.policy, instance, category_ranks(report))
    return f"{_sentences(decision, instance)}<div class='scroll tree-box'>{tree}</div>{_first_categories(decision)}"


def _sentences(decision: "Decision", instance: Instance) -> str:
    """A policy in words."""
    words = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in policy_sentences(decision.policy, instance))
    return f"<ul class='words'>{words}</ul>"


def _first_categories(decision: "Decision") -> str:
    """Probability that each first category is optimal."""
    ranked = [each for each in decision.first if each.probability >= 0.005][:MAX_FIRST]
    if len(ranked) < 2:
        return ""
    rows = [
        Interval(name_html(each.category), each.probability, math.nan, math.nan, f"{each.probability:.0%}", is_chosen)
        for each in ranked
        for is_chosen in [each.category == decision.candidates[0].first]
    ]
    chart = interval_chart(rows, "probability that each first category is the best", top=1.0)
    return f"<h4>Probability that this category is the best start</h4>{chart}"


def gain_section(report: "Report") -> str:
    """Values of the recommended policy and its alternatives, the gains, and how each was estimated."""
    decision = report.decision
    if decision is None or not report.verdict.shows_policy:
        return paragraphs(NO_POLICY)
    values = [report.value, *decision.values[1:]]
    rows = [
        Interval(_label(report, each.name), each.value, each.lower, each.upper, clicks(each.value), i == 0)
        for i, each in enumerate(values)
    ]
    unit = html.escape(report.unit)
    chart = interval_chart(rows, f"expected {unit} per user, with 95% intervals")
    return (
        f"<h3>Expected {unit} per user</h3>{chart}{_gain_table(report, values)}"
        + _rewards_table(report)
        + paragraphs(*_estimation(report))
        + paragraphs(beyond_log(report) if report.extrapolation.share > MAX_TAIL_SHARE else "")
        + paragraphs(BY_SEGMENT_NOTE if decision.by_segment else "")
        + paragraphs(
            "Today is what the log did. “Always” shows the best single category to everyone. Greedy shows the "
            "category with the highest expected reward of the next step and does not plan ahead."
            if report.log.rewards is not None
            else "Today is what the log did. “Always” shows the best single category to everyone. Greedy shows the "
            "category with the highest click rate for the next step and does not plan ahead."
        )
    )


def _label(report: "Report", name: str) -> str:
    assert report.decision is not None
    labels = LABELS | BY_SEGMENT if report.decision.by_segment else LABELS
    return f"<bdi>{html.escape(labels.get(name, name))}</bdi>"


def _gain_table(report: "Report", values: list[PolicyValue]) -> str:
    decision = report.decision
    assert decision is not None
    gains = {gain.name: gain for gain in decision.gains}
    if (over_log := report.gain_over_log) is not None:
        gains[over_log.name] = over_log
    rows = []
    for i, each in enumerate(values):
        gain = gains.get(each.name)
        method = "the log itself" if each.name == "policy of the log" else "model, corrected for optimism"
        if i == 0 and report.uses_ope:
            method = "the log (OPE), corrected for optimism"
        rows.append(
            [
                _label(report, each.name),
                *_cells(each),
                *(["", ""] if gain is None else _cells(gain, signed=True)),
                method,
            ]
        )
    gain_head = "gain of the recommended policy"
    head = ["", f"{report.unit} per user", "95% interval", gain_head, "95% interval", "estimated from"]
    return scroll_table(head, rows, kind="labelled")


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
    if "propensity" not in report.log.report.columns:
        return [
            "The log does not say with which probability each recommendation was made (no propensity column), so the "
            "values rest on the model. Log these probabilities to have them estimated from the log.",
            model,
        ]
    if report.fit is not None and report.fit.half_life is not None:
        return [
            "Values are those of users at the end of the log, under the model: off-policy evaluation is left out, "
            "because it averages over all users of the log.",
            model,
        ]
    if (share := left_out_share(report.log)) >= MIN_LEFT_OUT:
        return [
            f"{share:.1%} of the events show categories that were left out, which the propensities of the other "
            "recommendations count, so the values rest on the model instead of off-policy evaluation.",
            model,
        ]
    if ope is None:
        return ["The log has propensities, but too few users departed for off-policy evaluation.", model]
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
            "best on a log looks better than it is. Gains over other policies than today's are differences of values "
            "under the model.",
        ]
    return [
        f"The log is randomised, but users who happened to get what the policy would show cover only its first "
        f"{ope.horizon} recommendations, {1 - ope.tail_share:.0%} of its value. So the value above is the "
        f"model's. Off-policy evaluation (doubly robust), which uses the log for these recommendations, gives {dr}.",
        model,
    ]
