"""Counters for Prometheus."""

from collections.abc import Mapping

HELP = {
    "arrived": "New users.",
    "recommended": "Recommendations made.",
    "answered": "Answers taken.",
    "clicked": "Answers that were clicks.",
    "departed": "Users who departed, told or by silence.",
    "returned": "Users who came back after they were taken for departed.",
    "repeated": "Answers that were told again.",
    "forgotten": "Users who were forgotten on request.",
    "refused_unknown": "Answers to events that nobody made.",
    "refused_contradiction": "Answers that contradict what was told before.",
    "refused_came_back": "Departures of users who came back after that event.",
    "refused_closed": "Clicks on events that were closed since.",
}


def metrics_text(totals: Mapping[str, int], version: int, failing: bool) -> str:
    """All counters since the store was made, the current version, and whether the store fails, for Prometheus."""
    lines = []
    for name in sorted({*HELP, *totals}):
        lines += [
            f"# HELP departing_{name}_total {HELP.get(name, 'Requests answered with status ' + name[-3:] + '.')}",
            f"# TYPE departing_{name}_total counter",
            f"departing_{name}_total {totals.get(name, 0)}",
        ]
    gauges = (
        ("policy_version", "The version of the policy that new users get.", version),
        ("store_failing", "Whether nothing can be written at present.", int(failing)),
    )
    for name, words, value in gauges:
        lines += [f"# HELP departing_{name} {words}", f"# TYPE departing_{name} gauge", f"departing_{name} {value}"]
    return "\n".join(lines) + "\n"
