"""Results of an experiment in words."""

from collections.abc import Sequence

from departing.abtest.sequence import MIN_USERS
from departing.service.experiments import messages as m
from departing.service.experiments.experiment import GUARDRAIL, Experiment
from departing.service.experiments.outcomes import CLICKS, RETENTION, Outcomes

NOUNS = {CLICKS: "clicks per user", RETENTION: "retention"}
ACTORS = {GUARDRAIL: "by the guardrail", "api": "through the API", "page": "on the page"}
GUARDRAIL_CONFIDENCE = "99 % confidence over both outcomes"


def _noun(metric: str, unit: str | None) -> str:
    return NOUNS.get(metric, f"{unit} per user")


def describe_worse(outcomes: Outcomes, significance: float, unit: str) -> str:
    """Describe the difference at which the guardrail was crossed."""
    difference = outcomes.worse
    assert difference is not None
    bounds = difference.interval(outcomes.experiment.planned_users, significance)
    interval = _interval(outcomes.metric, *bounds)
    noun = _noun(outcomes.metric, unit)
    return (
        f"The treatment is worse in {noun}: {interval} with {GUARDRAIL_CONFIDENCE}, after {difference.users:,} users."
    )


def summarise(experiment: Experiment, metrics: Sequence[m.MetricReadout], mismatch: bool) -> str:
    """Describe the state and the results of an experiment."""
    sentences, undecided = [], "not decided yet" if experiment.running else "not decided"
    if not experiment.running:
        change = experiment.changes[-1]
        state = str(experiment.state).replace("_", " ").capitalize()
        by = ACTORS[change.actor]
        sentences.append(f"{state} {by}. {change.reason}".strip())
    if mismatch:
        sentences.append("Sample ratio mismatch: the users per arm do not match the shares; do not trust the result.")
    for each in metrics:
        noun = _noun(each.metric, each.unit)
        noun = noun[0].upper() + noun[1:]
        if each.lower is None or each.upper is None:
            sentences.append(f"{noun}: {_waiting(experiment, each.stage_users)}.")
            continue
        verdict = "better" if each.lower > 0 else "worse" if each.upper < 0 else undecided
        interval = _interval(each.metric, each.lower, each.upper)
        sentences.append(f"{noun}: {verdict}, {interval} with 95 % confidence.")
    return " ".join([*sentences, *filter(None, [experiment.note])])


def _waiting(experiment: Experiment, users: int) -> str:
    """Describe how many users an interval needs; `users` are those of the smaller arm in the largest stage."""
    needed, arm = f"{MIN_USERS} users per arm whose outcome is final", "the smaller arm"
    if experiment.stage > 0:
        needed, arm = f"{needed}, within one stage (a ramp begins a new one)", f"{arm} of the largest stage"
    if experiment.running:
        return f"waiting for {needed}; {arm} has {users:,}"
    return f"no result, which takes {needed}; {arm} had {users:,}"


def _interval(metric: str, lower: float, upper: float) -> str:
    if metric != RETENTION:
        return f"{lower:+.3f} to {upper:+.3f}"
    return f"{100 * lower:+.1f} to {100 * upper:+.1f} percentage points"
