"""What clients send and get: the API, version 1. Unknown fields and values out of range are refused."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

Name = Annotated[str, Meta(min_length=1, max_length=200, description="At most 200 characters.")]
Names = Annotated[list[Name], Meta(min_length=1, max_length=1000)]


class Ask(Struct, forbid_unknown_fields=True):
    """Whom to recommend something to."""

    user: Name
    allowed: Names | None = None
    event: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    shown: Name | None = None
    propensity: Annotated[float, Meta(gt=0, le=1)] | None = None
    explain: bool = False


class Recommendation(Struct, omit_defaults=True):
    """What to show, under which event, with which chance, by which version of the policy."""

    event: str
    category: str
    propensity: float | None
    version: int
    belief: dict[str, float] | UnsetType = UNSET
    further_clicks: float | UnsetType = UNSET
    would_show: str | UnsetType = UNSET


class Feedback(Struct, forbid_unknown_fields=True):
    """What came of an event."""

    event: Annotated[str, Meta(min_length=1, max_length=100)]
    clicked: bool
    departed: bool | None = None


Batch = Annotated[list[Feedback], Meta(min_length=1, max_length=1000)]


class Taken(Struct, omit_defaults=True):
    """Whether feedback was taken; if not, why."""

    event: str
    taken: bool
    why: str | UnsetType = UNSET


class Leave(Struct, forbid_unknown_fields=True):
    """A user who has gone for good."""

    user: Name


class Done(Struct):
    """It was done, or there was nothing to do."""

    done: bool


class Past(Struct):
    """A recommendation of the past."""

    event: str
    time: float
    category: str
    clicked: bool | None
    departed: bool | None


class Known(Struct):
    """What is known of a user."""

    user: str
    version: int
    departed: bool
    counts: dict[str, list[int]]
    belief: dict[str, float] | None
    further_clicks: float | None
    history: list[Past]


class Published(Struct):
    """A version of the policy."""

    version: int
    made: float
    words: str
    lower: float | None
    upper: float | None
    source: str
    current: bool


class Policies(Struct):
    """All versions, the latest first."""

    versions: list[Published]


class Switch(Struct, forbid_unknown_fields=True):
    """Give new users this version."""

    version: int


class Shadow(Struct, forbid_unknown_fields=True):
    """Whether the caller decides."""

    shadow: bool


class ShadowReport(Struct):
    """Whether the caller decides, and how often it decided as we would have."""

    shadow: bool
    decisions: int
    matches: int
    rate: float | None


class VersionLive(Struct):
    """What users of a version did: clicks per user who departed, with a 95 % interval."""

    version: int
    users: int
    clicks: float
    low: float
    high: float


class Live(Struct):
    """What is going on, for the page."""

    time: float
    users: int
    here: int
    counters: dict[str, int]
    categories: list[str]
    policy: Published
    versions: list[VersionLive]
    survival: list[float]
    shown: list[int]
    left: list[int]
    types: dict[str, float] | None
    latest: list[Past]


class CategoryState(Struct):
    """A category, and whether it is still shown."""

    name: str
    retired: bool


class Categories(Struct):
    """All categories, in the order of counts."""

    categories: list[CategoryState]


class Category(Struct, forbid_unknown_fields=True):
    """A category to add or to retire."""

    name: Annotated[str, Meta(min_length=1, max_length=200, pattern=r"\S")]


class Problem(Struct):
    """Why a request was refused, in one sentence."""

    error: str
