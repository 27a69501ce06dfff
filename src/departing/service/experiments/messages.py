"""Request and response bodies of the calls about experiments, and the upload of policies."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from departing.service.experiments.experiment import State
from departing.service.messages import UnixTime

Version = Annotated[int, Meta(ge=0, le=2**53)]
# Bounds that `check_shares` checks, with a message that names the unit.
Share = Annotated[
    float,
    Meta(
        description="Share of all users in the treatment.",
        extra_json_schema={"exclusiveMinimum": 0, "maximum": 1},
    ),
]
Holdout = Annotated[float, Meta(extra_json_schema={"minimum": 0, "exclusiveMaximum": 1})]
Seconds = Annotated[float, Meta(ge=1, le=1e9, extra={"unit": "seconds"})]
Actor = Annotated[Literal["api", "page"], Meta(description="Recorded in the audit trail.")]


class ExperimentStart(Struct, forbid_unknown_fields=True):
    """An experiment to start.

    `treatment` is a policy version, or "latest" to follow the trainer. `control` is what new users get at present by
    default; a version is pinned, "latest" unpins it, "caller" requires shadow mode. `holdout` is the share of users
    that no ramp reaches. Clicks count within `window` seconds of a user's first recommendation (default: the
    inactivity period, at most one day). A user who requests a recommendation within `return_period` seconds after the
    window counts as retained (default: the inactivity period). `salt` makes the assignment of users reproducible.
    `force` is required for a version that the guardrail rolled back before.
    """

    treatment: Version | Literal["latest"]
    control: Version | Literal["latest", "caller"] | None = None
    share: Share = 0.1
    holdout: Holdout = 0.0
    window: Seconds | None = None
    return_period: Seconds | None = None
    planned_users: Annotated[int, Meta(ge=100, le=10**12)] = 10_000
    guardrail: bool = True
    name: Annotated[str, Meta(max_length=200)] = ""
    salt: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    force: bool = False
    actor: Actor = "api"


class ExperimentAction(Struct, forbid_unknown_fields=True):
    """A change of a running experiment.

    `ramp` sets the `share` of the treatment for new users. `stop` ends the experiment: new users get the control's
    policy, active users keep theirs. `rollback` also returns active users of the treatment to the control's policy,
    also after a stop. `complete` makes the treatment the policy of all new users.
    """

    action: Literal["ramp", "stop", "rollback", "complete"]
    share: Share | None = None
    reason: Annotated[str, Meta(max_length=500)] = ""
    actor: Actor = "api"


class ExperimentChange(Struct):
    """An entry of the audit trail; `actor` is "api", "page" or "guardrail"."""

    time: UnixTime
    action: Literal["start", "ramp", "stop", "rollback", "complete"]
    share: float
    actor: str
    reason: str


class ExperimentInfo(Struct):
    """An experiment: its policies, shares, state and audit trail.

    `note` states why the readout and the guardrail do not work at the present share; it is empty if they do.
    """

    experiment: int
    name: str
    state: State
    treatment: int | Literal["latest"]
    control: int | Literal["latest", "caller"]
    share: float
    holdout: float
    window: float
    return_period: float
    planned_users: int
    guardrail: bool
    salt: str
    started_at: UnixTime
    ended_at: UnixTime | None
    changes: list[ExperimentChange]
    note: str


class ExperimentList(Struct):
    """All experiments, the latest first."""

    experiments: list[ExperimentInfo]


class ArmUsers(Struct):
    """Users who entered the experiment in one arm, and the arm's present share."""

    arm: str
    share: float
    users: int


class ReadoutPoint(Struct):
    """Difference treatment minus control after `users` users, with its 95 % confidence sequence."""

    users: int
    difference: float
    lower: float
    upper: float


class MetricReadout(Struct):
    """One outcome: means of both arms, and the difference with its intervals.

    The outcomes are "clicks_per_user", "retention" and, once feedback has rewards, "reward_per_user" in the `unit`,
    to which the guardrail then applies instead of the clicks.

    `treatment_users` and `control_users` have a final outcome; holdout users count as control. `stage_users` are
    those of the smaller arm in the stage with the most of them; the intervals appear when they are 100. `users` are
    those of stages with at least 100 users per arm, on which the means and the difference are based. `lower` and
    `upper` have 95 % confidence, `guardrail_upper` is the upper end with 99 % confidence over both outcomes together;
    they are null while there are too few users.
    """

    metric: str
    treatment_users: int
    control_users: int
    stage_users: int
    users: int = 0
    treatment: float | None = None
    control: float | None = None
    difference: float | None = None
    lower: float | None = None
    upper: float | None = None
    guardrail_upper: float | None = None
    unit: str | None = None
    points: list[ReadoutPoint] = []


class ExperimentReadout(Struct):
    """The readout of an experiment.

    `sample_ratio_p_value` tests the users per arm against the shares and stays valid however often it is read; below
    0.001 `sample_ratio_mismatch` is true and the readout cannot be trusted. `summary` states the result in words.
    """

    experiment: ExperimentInfo
    arms: list[ArmUsers]
    metrics: list[MetricReadout]
    sample_ratio_p_value: float
    sample_ratio_mismatch: bool
    summary: str
