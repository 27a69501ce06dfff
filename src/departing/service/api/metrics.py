"""Counters in the text format of Prometheus."""

from collections.abc import Mapping

from departing.service.user import RejectionCode

HELP = {
    "new_users": "New users.",
    "recommendations": "Recommendations.",
    "feedback": "Accepted feedback.",
    "clicks": "Clicks.",
    "departures": "Departures, reported or inferred from inactivity.",
    "returned_users": "Users who returned after they counted as departed.",
    "repeated_feedback": "Repeated feedback.",
    "forgotten_users": "Anonymised users.",
    **{f"rejected_feedback_{code}": f"Rejected feedback: {code.reason}" for code in RejectionCode},
}


def metrics_text(totals: Mapping[str, int], version: int, failing: bool) -> str:
    """Return counters since the store was created, the current policy version, and the state of the store."""
    texts = {name: f"Requests rejected with status {name[-3:]}." for name in totals} | HELP
    counters = [(f"{name}_total", "counter", texts[name], totals.get(name, 0)) for name in sorted(texts)]
    gauges = [
        ("policy_version", "gauge", "Policy version of new users.", version),
        ("store_failing", "gauge", "1 if the store cannot be written.", int(failing)),
    ]
    lines = [
        f"# HELP departing_{name} {text}\n# TYPE departing_{name} {kind}\ndeparting_{name} {value}\n"
        for name, kind, text, value in (*counters, *gauges)
    ]
    return "".join(lines)
