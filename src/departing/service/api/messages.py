"""What clients send and get: the API, version 1. Unknown fields and values out of range are refused."""

from typing import Annotated, Any

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


class Done(Struct, omit_defaults=True):
    """Whether it was done, or is as it should be; if not, perhaps why."""

    done: bool
    why: str | UnsetType = UNSET


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
    pinned: bool


class Policies(Struct):
    """All versions, the latest first."""

    versions: list[Published]


class Switch(Struct, forbid_unknown_fields=True):
    """Give new users this version until told otherwise; null for the latest, as it comes."""

    version: Annotated[int, Meta(ge=0, le=2**53)] | None


class Shadow(Struct, forbid_unknown_fields=True):
    """Whether the caller decides."""

    shadow: bool


class Gain(Struct):
    """What our policy would have earned with the users of the caller, clicks per user, with a 95 % interval."""

    ours: float
    theirs: float
    gain: float
    low: float
    high: float
    users: int


class ShadowReport(Struct):
    """Whether the caller decides, how often it decided as we would have, and what we would have gained.

    While that is not known, `note` says why.
    """

    shadow: bool
    decisions: int
    matches: int
    rate: float | None
    gain: Gain | None
    note: str


class Moment(Struct):
    """Users of a version who departed within a span of time: clicks per user, with a 95 % interval."""

    time: float
    version: int
    users: int
    clicks: float
    low: float
    high: float


class Learned(Struct):
    """What a version was thought to be worth when it was published, after so many users.

    `loss` is what a user is expected to lose by it, averaged over all that may still be true.
    """

    version: int
    time: float
    users: int
    lower: float | None
    upper: float | None
    loss: float | None


class Branch(Struct, omit_defaults=True):
    """What is shown first, or after a click or a stay, to a share of the users, and what after that."""

    category: str
    share: float
    belief: dict[str, float]
    for_good: bool
    after: str | None = None
    then: list["Branch"] = []


class Live(Struct):
    """What is going on, for the page."""

    time: float
    users: int
    here: int
    counters: dict[str, int]
    categories: list[str]
    retired: list[str]
    learning: bool
    policy: Published
    graph: Branch | None
    moments: list[Moment]
    learned: list[Learned]
    survival: list[float]
    shown: list[int]
    left: list[int]
    types: dict[str, float] | None
    words: list[str]
    shadow: bool
    latest: list[Past]


class Explore(Struct, forbid_unknown_fields=True):
    """An instance to plan for, as a document or as the text of a TOML file, and about how long that may take."""

    instance: dict[str, Any] | None = None
    toml: Annotated[str, Meta(max_length=20_000)] | None = None
    seconds: Annotated[float, Meta(gt=0, le=2)] = 1.0


class Way(Struct):
    """A simpler way of recommending, its value, and what it loses against the plan, at least and at most."""

    policy: str
    value: float
    loses_at_least: float
    loses_at_most: float


class Place(Struct):
    """A step of a walk: what is shown, the belief before it, and the share of users who get so far."""

    category: str
    belief: dict[str, float]
    share: float


class Explored(Struct):
    """The best policy of an instance: in words, its bracket, first steps, and what simpler ways lose.

    `walk` has the belief before every step of a user who never clicks and stays (`stay`), and of one who always
    clicks (`click`). `narrow` tells that all brackets are as narrow as one may wish.
    """

    instance: dict[str, Any]
    toml: str
    words: str
    lower: float
    upper: float
    method: str
    seconds: float
    narrow: bool
    graph: Branch
    rivals: list[Way]
    walk: dict[str, list[Place]]


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
