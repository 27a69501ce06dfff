"""Options of a service."""

from dataclasses import dataclass
from math import inf

from departing.service.departures import DepartureRule
from departing.service.limits import MAX_USERS
from departing.service.segment_names import MAX_SEGMENTS

DEFAULT_UNIT = "reward"  # of rewards whose unit nobody named


@dataclass(frozen=True)
class Settings:
    """Options of a service."""

    inactive_after: float = inf  # seconds of inactivity after which a user counts as departed
    explore: float = 0.01  # probability of a category drawn uniformly
    missing_feedback: str = "no-click"  # meaning of a recommendation without feedback
    shadow: bool = False  # True if a store without a record of it starts in shadow mode: the caller decides
    max_categories: int = 1000
    max_users: int = MAX_USERS  # active at once
    departures_reported: bool = False  # True if the caller has agreed to report departures
    learn: bool = False  # True if a trainer learns from the store; requires a definition of departure
    segment_columns: tuple[str, ...] = ()  # features of which the name of a segment is composed
    max_segments: int = MAX_SEGMENTS  # distinct names
    half_life: float | None = None  # of the weight of users in training, in seconds; inf for none
    unit: str = ""  # of rewards; that of the served instance, or "reward", if empty
    grace_period: float | None = None  # seconds after an inferred departure; as long as `inactive_after` if None

    @property
    def late_limit(self) -> float:
        """Seconds after an inferred departure in which feedback can reopen the user."""
        return self.inactive_after if self.grace_period is None else self.grace_period

    @property
    def rule(self) -> DepartureRule:
        """Definition of departure."""
        return DepartureRule(self.inactive_after, self.departures_reported)
