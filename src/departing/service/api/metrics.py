"""Counters, gauges and latency histograms in the text format of Prometheus."""

from collections.abc import Mapping, Sequence

from departing import __version__
from departing.service.api.latency import Latency
from departing.service.experiments.warnings import experiment_gauges
from departing.service.service import Service
from departing.service.user import RejectionCode

HELP = {
    "new_users": "New users.",
    "recommendations": "Recommendations.",
    "feedback": "Accepted feedback.",
    "clicks": "Clicks.",
    "departures": "Departures, reported or inferred from inactivity.",
    "reported_departures": "Departures that were reported.",
    "reopened_users": "Users who were active again because feedback arrived after an inferred departure.",
    "returned_users": "Users who returned after they counted as departed.",
    "drift_detections": "Changes of click and departure rates that were detected.",
    "finished_users": "Users whose visit ended after the last recommendation of the horizon.",
    "kept_segments": "Requests with another segment than the user's first one.",
    "unknown_segments": "Requests of users in a segment that the policy does not know.",
    "missing_segments": "Requests with a missing feature of the segment, on which the policy depends.",
    "repeated_feedback": "Repeated feedback.",
    "completed_feedback": "Feedback that added the departure or the reward to earlier feedback.",
    "rewarded_clicks": "Clicks with a reward above 0.",
    "late_rewards": "Rewards above 0 that followed the feedback of their click.",
    "forgotten_users": "Anonymised users.",
}
# Counters of the store that are one metric with a label each: name, label and help by the prefix of their names.
LABELLED = {
    "rejected_feedback_": ("rejected_feedback", "code", "Rejected rows of feedback, by code."),
    "problems_": ("problems", "status", "Rejected requests, by HTTP status."),
}


Line = tuple[str, str, str, int]  # name, kind, text and value


def metrics_text(totals: Mapping[str, int], service: Service, latency: Latency, more: Sequence[Line] = ()) -> str:
    """Return counters since the store was created, the state of this process, and the latencies of its command."""
    store, state = service.store, service.rollout.state
    counters = [(f"{name}_total", "counter", HELP[name], totals.get(name, 0)) for name in sorted(HELP)]
    gauges = [
        ("policy_version", "gauge", "Policy version of new users.", state.current.number),
        ("store_failing", "gauge", "1 if the store cannot be written.", int(store.failure is not None)),
        ("unwritten", "gauge", "Rows not on disk yet; with PostgreSQL, calls that wait.", store.unwritten),
        ("oldest_unwritten_seconds", "gauge", "Age of the oldest of them.", round(store.oldest_unwritten, 3)),
    ]
    latest = round(service.drift[-1].time, 3) if service.drift else 0
    text = "Time of the latest change of rates that was detected, 0 if there is none."
    gauges.append(("drift_latest_detection_timestamp_seconds", "gauge", text, latest))
    of_experiment = experiment_gauges(state, service.mismatched, service.now())
    gauges += [(name, "gauge", text, value) for name, (text, value) in of_experiment.items()]
    text = "Transactions that the database refused, since this process started."
    counters.append(("lost_transactions_total", "counter", text, store.lost_transactions))
    lines = [
        f"# HELP departing_{name} {text}\n# TYPE departing_{name} {kind}\ndeparting_{name} {value}\n"
        for name, kind, text, value in (*counters, *gauges, *more)
    ]
    lines += [_labelled(totals, prefix) for prefix in LABELLED]
    info = (
        f'# HELP departing_info Version.\n# TYPE departing_info gauge\ndeparting_info{{version="{__version__}"}} 1\n'
    )
    return "".join([*lines, info, *(f"{line}\n" for line in latency.lines())])


def _labelled(totals: Mapping[str, int], prefix: str) -> str:
    """Return the counters with a prefix as one metric; every code of feedback is there from the start."""
    name, label, text = LABELLED[prefix]
    known = {f"{prefix}{code}": 0 for code in RejectionCode} if label == "code" else {}
    counts = known | {key: count for key, count in totals.items() if key.startswith(prefix)}
    head = f"# HELP departing_{name}_total {text}\n# TYPE departing_{name}_total counter\n"
    rows = (
        f'departing_{name}_total{{{label}="{key.removeprefix(prefix)}"}} {counts[key]}\n' for key in sorted(counts)
    )
    return head + "".join(rows)
