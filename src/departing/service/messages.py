"""Request and response bodies of the HTTP API, version 1.

Requests with unknown fields or values out of range are rejected with status 422.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from departing.model.errors import InputError
from departing.service.user import RejectionCode

Name = Annotated[str, Meta(min_length=1, max_length=200, description="At most 200 characters.")]
Allowed = Annotated[
    list[Name], Meta(min_length=1, max_length=1000, description="Categories to choose from; all by default.")
]
SegmentName = Annotated[str, Meta(max_length=200, description="At most 200 characters.")]
Features = Annotated[dict[str, SegmentName | None], Meta(max_length=20)]
Segment = Annotated[
    SegmentName | Features,
    Meta(
        description="Name of the user's segment, or its features by the columns of --segment. A feature that is "
        "null, blank or left out is missing: the segment is unknown then."
    ),
]
MAX_REWARD = 1e12  # sums of rewards and of their squares stay exact enough
EventId = Annotated[str, Meta(min_length=1, max_length=100)]
UnixTime = Annotated[float, Meta(description="Unix time in seconds.")]
Explain = Annotated[bool, Meta(description="Include `belief` and `expected_remaining_clicks` in the response.")]


class NestingError(InputError):
    """A document in a request that is nested too deeply."""

    def __init__(self) -> None:
        super().__init__("The body is nested too deeply.")


class RecommendRequest(Struct, forbid_unknown_fields=True):
    """A request for one recommendation to one user.

    `event` makes the request idempotent. `shown` and `propensity` are the caller's own choice in shadow mode. The
    `segment` of the first request is that of the user until departure.
    """

    user: Name
    allowed: Allowed | None = None
    event: EventId | None = None
    shown: Name | None = None
    propensity: Annotated[float, Meta(gt=0, le=1)] | None = None
    explain: Explain = False
    segment: Segment | None = None


class Recommendation(Struct, omit_defaults=True):
    """A category to show, with the event ID to send with the feedback.

    `propensity` is the probability with which the category was drawn. `shadow_category` is present in shadow mode:
    the category that the policy would have shown. `experiment` and `arm` are present in a running experiment. `code`
    is `segment_kept` if the request has another segment than the user's first one, which is then in `segment`.
    `segment_known` is false if the request has a segment, the policy depends on segments, and that of the user is
    unknown or not one of the policy: the user gets the common prior.
    """

    event: str
    category: str
    propensity: float | None
    version: int
    belief: dict[str, float] | UnsetType = UNSET
    expected_remaining_clicks: float | UnsetType = UNSET
    shadow_category: str | UnsetType = UNSET
    experiment: int | UnsetType = UNSET
    arm: str | UnsetType = UNSET
    segment: str | UnsetType | None = UNSET
    code: Literal["segment_kept"] | UnsetType = UNSET
    segment_known: bool | UnsetType = UNSET


class Feedback(Struct, forbid_unknown_fields=True):
    """The outcome of an event; `departed` and, of a click, the `reward` in the unit of the service are optional."""

    event: EventId
    clicked: bool
    departed: bool | None = None
    reward: Annotated[float, Meta(ge=0, le=MAX_REWARD)] | None = None


FeedbackBatch = Annotated[list[Feedback], Meta(min_length=1, max_length=1000)]


class FeedbackResult(Struct, omit_defaults=True):
    """Result of one feedback: accepted or not; if not, a machine-readable `code` and the `reason`."""

    event: str
    accepted: bool
    code: RejectionCode | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class DepartRequest(Struct, forbid_unknown_fields=True):
    """A user who has departed."""

    user: Name


class Status(Struct, omit_defaults=True):
    """Status of a call or a check: `ok` if it changed something or passed; if not, possibly the `reason`."""

    ok: bool
    reason: str | UnsetType = UNSET


class Health(Struct):
    """State of the service for monitoring; `ok` is false while the store fails, and `reason` then says why.

    `oldest_unwritten_seconds` is the age of the oldest of the `unwritten` records that are not on disk yet.
    """

    ok: bool
    reason: str | None
    oldest_unwritten_seconds: float
    unwritten: int
    warnings: list[str]


class HistoryEvent(Struct):
    """A past recommendation and its outcome, null where there is no feedback; `reward` only if it was sent."""

    event: str
    time: UnixTime
    category: str
    clicked: bool | None
    departed: bool | None
    reward: float | None


class OutcomeCounts(Struct):
    """Number of times that each outcome followed one category."""

    click: int
    stay: int
    depart: int
    click_and_depart: int


class UserState(Struct):
    """The state of a user: segment, counts by category, belief over types, and the latest 100 events."""

    user: str
    version: int
    departed: bool
    segment: str | None
    counts: dict[str, OutcomeCounts]
    belief: dict[str, float] | None
    expected_remaining_clicks: float | None
    history: list[HistoryEvent]


class PolicyVersionInfo(Struct):
    """A published policy version; `lower` and `upper` bound its value per user in the `unit`, "clicks" by default.

    With a `half_life` (seconds) older users count less; the fit is then worth `effective_users` users.
    """

    version: int
    published_at: UnixTime
    description: str
    lower: float | None
    upper: float | None
    unit: str
    source: str
    current: bool
    pinned: bool
    half_life: float | None
    effective_users: float | None


class PolicyList(Struct):
    """All policy versions, the latest first."""

    versions: list[PolicyVersionInfo]


class PolicySwitch(Struct, forbid_unknown_fields=True):
    """The policy version to pin for new users; null follows the latest version."""

    version: Annotated[int, Meta(ge=0, le=2**53)] | None


class ShadowMode(Struct, forbid_unknown_fields=True):
    """Shadow mode setting: if enabled, the caller chooses the category and the policy only records its own choice."""

    enabled: bool


class Gain(Struct):
    """Off-policy estimate of the policy's gain over the caller, in clicks per user, with a 95 % interval."""

    policy_value: float
    caller_value: float
    gain: float
    lower: float
    upper: float
    users: int


class ShadowReport(Struct):
    """Agreement between the caller and the policy in shadow mode, and the estimated gain.

    While `gain` is null, `note` gives the reason.
    """

    enabled: bool
    decisions: int
    matches: int
    match_rate: float | None
    gain: Gain | None
    note: str


class ClicksEstimate(Struct):
    """Mean clicks per user within the window after the arrival, with a 95 % confidence interval.

    Once feedback has rewards, these are their mean sums in the unit of the follow-up.

    `version` is the policy version of the users, `caller` if the caller decided, null if they have several.
    """

    version: int | Literal["caller"] | None
    users: int
    clicks_per_user: float
    lower: float
    upper: float


class ClicksBin(ClicksEstimate):
    """Clicks per user of users who arrived about the same time."""

    time: UnixTime


class SurvivalPoint(Struct):
    """Share of users with at least `recommendations` recommendations in the window, with a 95 % interval."""

    recommendations: int
    share: float
    lower: float
    upper: float


class FollowUp(Struct):
    """Users who arrived in the last 90 days, or every n-th of them, each followed for `window` seconds.

    Estimates use the `users` whose window is over; that of `waiting` users is not. Intervals need groups of at least
    `min_users` persons (a user who returns counts once), which is 0 while all users have equally many clicks. `ended`
    is the share of visits that end within the window, null while it is not known. `unit` is "clicks" or that of
    rewards.
    """

    window: float
    every: int
    users: int
    waiting: int
    min_users: int
    ended: float | None
    over_time: list[ClicksBin]
    latest: ClicksEstimate | None
    survival: list[SurvivalPoint]
    unit: str


class SegmentActivity(Struct):
    """A segment: its users in the last 90 days, their share, their clicks, and the prior over types of the policy.

    `clicks` is null while the segment has too few users, and `prior` while the policy does not know the segment.
    """

    name: str
    users: int
    share: float
    clicks: ClicksEstimate | None
    prior: dict[str, float] | None


class Drift(Struct):
    """A change over time, detected at `time`: rate of the outcome of a category at first recommendations.

    The rate was `before` until about the time `since` and `after` from then on.
    """

    time: UnixTime
    category: str
    outcome: Literal["click", "departure"]
    before: float
    after: float
    since: UnixTime


class LearningPoint(Struct):
    """Bounds on the value of a version when it was published, after `users` users.

    `expected_regret` is the regret per user against the optimal policy, averaged over the posterior.
    """

    version: int
    time: UnixTime
    users: int
    lower: float | None
    upper: float | None
    expected_regret: float | None


class BeliefStep(Struct):
    """A step of a belief path: the category shown, the belief before it, and the share of users who reach it."""

    category: str
    belief: dict[str, float]
    share: float


class Branch(BeliefStep, omit_defaults=True):
    """A node of the policy tree: the category shown after a click or a stay, to a share of all users."""

    committed: bool
    after: str | None = None
    children: list["Branch"] = []


class CategoryState(Struct):
    """A category; a retired one is not shown any more."""

    name: str
    retired: bool


class CategoryActivity(CategoryState):
    """Known outcomes of a category, and departures among them.

    They are those of users who arrived `settled_after` seconds ago or more. `shown` is false if the category was
    never shown, null if it was not shown recently.
    """

    outcomes: int
    departures: int
    shown: bool | None


class TypeShare(Struct):
    """A type of the fitted instance: its share of users and its preferences in one sentence."""

    name: str
    share: float
    description: str


class Dashboard(Struct):
    """The figures of the dashboard page."""

    time: UnixTime
    users: int
    active_users: int
    counters: dict[str, int]
    categories: list[CategoryActivity]
    types: list[TypeShare]
    segments: list[SegmentActivity]
    drift: list[Drift]
    learning: bool
    shadow: bool
    experiment: int | None
    policy: PolicyVersionInfo
    tree: Branch | None
    follow_up: FollowUp
    settled_after: float
    learning_curve: list[LearningPoint]
    recent_events: list[HistoryEvent]
    warnings: list[str]


class ExploreRequest(Struct, forbid_unknown_fields=True):
    """An instance to plan for, as a JSON document or as TOML text, and a time limit in seconds."""

    instance: dict[str, Any] | None = None
    toml: Annotated[str, Meta(max_length=20_000)] | None = None
    seconds: Annotated[float, Meta(gt=0, le=2)] = 1.0


class BaselineValue(Struct):
    """A baseline policy: its value, and bounds on its loss compared with the optimal policy."""

    policy: str
    value: float
    loss_lower: float
    loss_upper: float


class ExploreResult(Struct):
    """The plan of an instance: description, bounds, policy tree, baselines and belief paths.

    `belief_paths` holds the belief before every step of a user who never clicks and stays (`stay`), and of one who
    always clicks (`click`). `converged` is false while more planning time would narrow the bounds noticeably.
    """

    instance: dict[str, Any]
    toml: str
    description: str
    lower: float
    upper: float
    method: str
    seconds: float
    converged: bool
    tree: Branch
    baselines: list[BaselineValue]
    belief_paths: dict[str, list[BeliefStep]]


class CategoryInfo(CategoryState):
    """A category and the mean reward of its clicks that was assumed when it was added; null if none was given."""

    reward: float | None


class CategoryList(Struct):
    """All categories, in the order of counts."""

    categories: list[CategoryInfo]


class CategoryRequest(Struct, forbid_unknown_fields=True):
    """A category to retire."""

    name: Annotated[str, Meta(min_length=1, max_length=200, pattern=r"\S")]


class NewCategory(CategoryRequest, forbid_unknown_fields=True):
    """A category to add, or a retired one to restore.

    `reward` is the assumed mean reward of a click until clicks of the category have rewards, in the unit of the
    service. Without it, the reward is that of the given instance, else the mean of the other categories. It has no
    effect while no click of any category has a reward and there is no instance with rewards.
    """

    reward: Annotated[float, Meta(ge=0, le=MAX_REWARD)] | None = None
