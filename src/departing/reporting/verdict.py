"""Verdict of a report: what to do and how sure that is, or why the log gives no answer."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from departing.formatting import first_few, format_count, format_share, shorten_name
from departing.reporting.rare_categories import impressions

if TYPE_CHECKING:
    from departing.decision.decision import Decision
    from departing.reporting.report import Report

# Below 100 users a rate of 0.5 has a standard error above 0.05, and few types would get more than a handful of users.
MIN_USERS = 100
MIN_LONG_SHARE = 0.01  # share of users with two events below which nothing shows whether users differ
MIN_IDENTIFIED = 0.5  # share of the click probabilities, by impressions, below which most of the model is a guess
# Gains over the best single category below this share of its value are not worth the effort of adapting.
MIN_GAIN = 0.01
SURE, FAIRLY_SURE = 0.95, 0.8  # wording of the probability that the first category is optimal
MAX_UNSETTLED = 2  # segments in a sentence
MIN_UNSETTLED = 0.05  # share of users whose first category is uncertain from which the top of the page says so
MANY_EXTRAPOLATED = 0.25  # share of the clicks beyond the log that the top of the page states
UNANSWERED = "This log cannot tell what to show."
NO_GAIN = "This log does not show that a change would help."


@dataclass(frozen=True)
class Verdict:
    """Top of a report.

    Attributes
    ----------
    kind : {"recommend", "fixed", "unclear", "misfit", "insufficient"}
        A policy is recommended; one category for everybody; no clear gain; the model does not fit; the log cannot
        answer.
    headline : str
        One sentence.
    sentences : tuple of str
        Expected gain and uncertainty, or the reasons.
    """

    kind: str
    headline: str
    sentences: tuple[str, ...]

    @property
    def recommends(self) -> bool:
        """True if the report recommends a policy."""
        return self.kind in ("recommend", "fixed")

    @property
    def shows_policy(self) -> bool:
        """True if the page shows a policy: a recommended one, or the best candidate where no gain is clear."""
        return self.kind in ("recommend", "fixed", "unclear")

    def __str__(self) -> str:
        return "\n".join([self.headline, *self.sentences])


def clicks(value: float) -> str:
    """Format clicks per user for a sentence.

    >>> clicks(7.0712), clicks(12.34), clicks(1234.5)
    ('7.07', '12.3', '1,234')
    """
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def give_verdict(report: "Report") -> Verdict:
    """Verdict on the results of a report."""
    return refusal(report) or _recommendation(report)


def refusal(report: "Report") -> Verdict | None:
    """Verdict on a log or a fit that allows no recommendation, or None; it needs no decision."""
    if reasons := _unanswerable(report):
        return Verdict("insufficient", UNANSWERED, tuple(reasons))
    if report.check is not None and not report.check.fits:  # more users would not help
        return _misfit(report)
    if reasons := _guesses(report):
        return Verdict("insufficient", UNANSWERED, tuple(reasons))
    return None


def _unanswerable(report: "Report") -> list[str]:
    """Sentences about why the log cannot answer, or none."""
    log, facts = report.log, report.log.report
    names = log.categories or ()
    if len(names) == 1:
        return [
            f"It has only one category, {shorten_name(names[0])}, so there is nothing to choose.",
            "Log the category of every recommendation, and show at least two.",
        ]
    if facts.users < MIN_USERS:
        return [
            f"It has {format_count(facts.users, 'user')}; a first answer needs about {MIN_USERS}, a reliable one "
            "thousands.",
            "Collect more users, then run the report again.",
        ]
    if facts.departed == 0:
        return [
            f"None of its {facts.users:,} users is known to have left, so it does not show what makes users leave.",
            "Log for longer, or count users as departed after a shorter time without events.",
        ]
    if report.fit is None:
        return [report.failure, "Log for longer, then run the report again."]
    long = float(log.multiplicity[log.steps >= 2].sum()) / facts.users
    if long < MIN_LONG_SHARE:
        return [
            f"Only {long:.1%} of its users have two or more events, so it does not show whether users differ.",
            "Show several recommendations to the same users, then run the report again.",
        ]
    if not float(log.multiplicity @ log.clicks):
        return [
            f"None of its {facts.used:,} recommendations was clicked, so it does not show what users prefer.",
            "Check the column of clicks, or log for longer.",
        ]
    return []


def _guesses(report: "Report") -> list[str]:
    """Sentences if the log determines few of the click rates that matter, or none."""
    fit = report.fit
    if fit is None or fit.instance.n_types == 1:
        return []
    # By impressions: rates of categories that are hardly ever shown matter little.
    identified = float(np.average(fit.identified.click.mean(axis=1), weights=impressions(report.log)))
    if identified >= MIN_IDENTIFIED:
        return []
    return [
        f"It determines the click rates of the user types for only {identified:.0%} of its recommendations; the "
        "others are guesses.",
        "Collect more users or longer histories, or merge similar categories.",
    ]


def _misfit(report: "Report") -> Verdict:
    assert report.check is not None
    drift = report.check.drift
    found = report.check.reasons if drift is None else (drift.describe(), *report.check.reasons)
    reasons = map(report.with_type_names, [*dict.fromkeys(found)][:2])  # all are in the section about the fit
    advice = (
        "Use the numbers below as a description of the log, not as a forecast, and test any change on real users."
    )
    if drift is not None and drift.shape == "jump":
        advice = (
            "Run the report on the users who arrived after the change; the section on changes says how. " + advice
        )
    return Verdict(
        "misfit", "These users do not behave as the model assumes, so no policy is recommended.", (*reasons, advice)
    )


def _recommendation(report: "Report") -> Verdict:
    decision, fit = report.decision, report.fit
    assert decision is not None
    assert fit is not None
    first = report.start
    gain, sure = _gain_sentence(report), _sure_sentence(report, first)
    against = report.gain_over_log
    if fit.one_type or report.is_fixed:
        single = shorten_name(report.best_fixed)
        why = "Adapting to each user's clicks would gain less than 1%."
        if single != first:
            why = f"Starting with {first} and then following each user's clicks would gain less than 1%."
            sure = f"{_cost(report)[0].upper()}{_cost(report)[1:]}"
        if fit.one_type:
            why = "All users behave alike as far as this log shows, so adapting to their clicks has nothing to gain."
        if fit.hidden_types or (report.check is not None and report.check.more_types is not None):
            why = "Users differ, but this log has too few of them to tell their types apart; collect more users."
        headline = f"Show {single} to everyone."
        if against is not None and against.lower <= 0:
            headline = NO_GAIN
            gain = _gain_sentence(report, f"Always showing {single}")
        return Verdict("fixed", headline, (why, gain, sure))
    if against is not None and against.lower <= 0:
        change = " to ".join(f"{'−' if end < 0 else '+'}{clicks(abs(end))}" for end in (against.lower, against.upper))
        best = (
            f"The best candidate starts with {first} and then follows each user's clicks; compared with today it "
            f"changes the {report.unit} per user by {change} (95% interval).{_beyond_log(report)}"
        )
        advice = "Collect more users, or try the candidate in an A/B test."
        return Verdict("unclear", NO_GAIN, (best, sure, advice))
    by_segment = len(decision.starts) > 1
    shown = f"Start with {first}" if by_segment else f"Show {first} first"
    headline = f"{shown}, then follow each user's clicks."
    return Verdict("recommend", headline, (gain, _single_sentence(report), sure))


def _single_sentence(report: "Report") -> str:
    """Comparison with the best single category."""
    assert report.decision is not None
    single = next(each for each in report.decision.values if each.name.startswith("always "))
    return (
        f"The best single category, {shorten_name(report.best_fixed)}, is expected to bring {clicks(single.value)} "
        "if it is always shown."
    )


def _gain_sentence(report: "Report", subject: str = "This") -> str:
    """Expected clicks and gain over the log, and how much of it the log does not show."""
    return _expected_gain(report, subject) + _beyond_log(report)


def _beyond_log(report: "Report") -> str:
    """Sentence about clicks after the longest history, with a space before it, if they are many."""
    return f" {beyond_log(report)}" if report.extrapolation.share > MANY_EXTRAPOLATED else ""


def beyond_log(report: "Report") -> str:
    """Sentence about clicks after the longest history."""
    beyond = report.extrapolation
    return (
        f"{beyond.share:.0%} of the value of this policy comes after more than "
        f"{format_count(beyond.steps, 'recommendation')}, where no user of this log was observed, so it is "
        "extrapolated."
    )


def _expected_gain(report: "Report", subject: str) -> str:
    """Expected clicks, and the gain over the log if its value is known."""
    value, gain = report.value, report.gain_over_log
    interval = f"95% interval {clicks(value.lower)} to {clicks(value.upper)}"
    if gain is None:
        return f"{subject} is expected to bring {clicks(value.value)} {report.unit} per user ({interval})."
    today, expected = report.today, f"{subject} is expected to bring {clicks(value.value)} {report.unit} per user"
    if today <= 0:
        return f"{expected} instead of none ({interval})."
    return (
        f"{expected} instead of {clicks(today)} today (what the log shows): "
        f"{_relative([each / today for each in (gain.value, gain.lower, gain.upper)])}."
    )


def _relative(gains: list[float]) -> str:
    """A relative gain with its interval, as a factor if it is large.

    >>> _relative([2.1, 1.9, 2.4]), _relative([0.08, -0.01, 0.17]), _relative([-0.1, -0.2, 0.0])
    ('a factor of 3.1 (95% interval 2.9 to 3.4)', '8% higher (95% interval −1% to +17%)', '10% lower ...')
    """
    value, lower, upper = gains
    if value >= 1:
        return f"a factor of {1 + value:.1f} (95% interval {1 + lower:.1f} to {1 + upper:.1f})"
    digits = 1 if max(map(abs, gains)) < 0.1 else 0
    ends = " to ".join(f"{'−' if end < 0 else '+'}{abs(end):.{digits}%}" for end in (lower, upper))
    return f"{abs(value):.{digits}%} {'higher' if value >= 0 else 'lower'} (95% interval {ends})"


def _sure_sentence(report: "Report", first: str) -> str:
    """Probability that the first category is optimal, and the expected loss if it is not."""
    decision = report.decision
    assert decision is not None
    own, ranked, cost = decision.first_probability, decision.first, _cost(report)
    little = (
        ", but it matters little: " if decision.expected_loss < MIN_GAIN * max(report.value.value, 1e-9) else "; "
    )
    if decision.by_segment:
        return _sure_by_segment(decision) + (little if _unsettled(decision) else "; ") + cost
    share = ">99%" if own > 0.99 else f"{own:.0%}"
    if own >= FAIRLY_SURE:
        return f"It is {'very ' * (own >= SURE)}likely ({share}) that {first} is the best start; {cost}"
    unsettled = f"Which category to show first is not settled ({_alternatives(decision)})"
    if own < ranked[0].probability:
        unsettled += f"; {first} is recommended because it costs less where it is not the best"
    return f"{unsettled}{little}{cost}"


def _alternatives(decision: "Decision") -> str:
    """First categories that may be optimal, with their probabilities."""
    likely = [each for each in decision.first if each.probability >= 0.05]
    return first_few([f"{shorten_name(each.category)} {each.probability:.0%}" for each in likely], 3)


def _unsettled(decision: "Decision") -> list[tuple[str, float, "Decision"]]:
    """Segments whose first category may well not be optimal; none if they have few users."""
    rows = [row for row in decision.segments if row[2].first_probability < FAIRLY_SURE]
    return rows if sum(share for _, share, _ in rows) >= MIN_UNSETTLED else []


def _sure_by_segment(decision: "Decision") -> str:
    """Probability that the first category of each segment is optimal there, without the end of the sentence."""
    if rows := _unsettled(decision):
        names = [f"{shorten_name(name)}: {_alternatives(each)}" for name, _, each in rows]
        more = f"; and {len(names) - MAX_UNSETTLED} more" if len(names) > MAX_UNSETTLED else ""
        count = f"{len(rows)} of {format_count(len(decision.by_segment), 'segment')}"
        users = format_share(sum(share for _, share, _ in rows))
        listed = "; ".join(names[:MAX_UNSETTLED]) + more
        return f"Which category to show first is not settled in {count}, {users} of users ({listed})"
    sure = [row for row in decision.segments if row[2].first_probability >= FAIRLY_SURE]
    least, where = min(each.first_probability for _, _, each in sure), "In each segment"
    if len(sure) < len(decision.by_segment):
        where = f"In segments with at least {min(sum(share for _, share, _ in sure), 0.99):.0%} of users"
    share = ">99%" if least > 0.99 else f"at least {least:.0%}"
    return f"{where} it is {'very ' * (least >= SURE)}likely ({share}) that the first category is the best start"


def _cost(report: "Report") -> str:
    """Expected loss of the decision, as the end of a sentence."""
    assert report.decision is not None
    loss = report.decision.expected_loss
    cost = clicks(loss) if loss >= 0.005 else "less than 0.01"
    return f"the expected cost of being wrong is {cost} {report.unit} per user."


def is_negligible(gain: float, value: float) -> bool:
    """True if a gain is below one percent of a value."""
    return not np.isfinite(gain) or gain < MIN_GAIN * value
