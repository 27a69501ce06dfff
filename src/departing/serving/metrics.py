"""Counters for Prometheus."""

from departing.serving.service import Service

HELP = {
    "recommended": "Recommendations made.",
    "answered": "Answers taken.",
    "clicked": "Answers that were clicks.",
    "departed": "Users who departed, told or by silence.",
    "returned": "Users who came back after they were taken for departed.",
    "repeated": "Answers that were told again.",
}


def metrics_text(service: Service) -> str:
    """All counters since the start, and the current version, in Prometheus' format."""
    lines = []
    for name in sorted({*HELP, *service.counters}):
        lines += [
            f"# HELP departing_{name}_total {HELP.get(name, 'Events of this kind.')}",
            f"# TYPE departing_{name}_total counter",
            f"departing_{name}_total {service.counters[name]}",
        ]
    lines += [
        "# HELP departing_policy_version The version of the policy that new users get.",
        "# TYPE departing_policy_version gauge",
        f"departing_policy_version {service.versions.current}",
    ]
    return "\n".join(lines) + "\n"
