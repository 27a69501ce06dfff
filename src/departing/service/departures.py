"""Definition of departure: which users of a service count as departed. The store remembers it."""

import json
from dataclasses import dataclass
from math import inf, isfinite

from departing.model.errors import InputError
from departing.service.store import queries
from departing.service.store.base import Transaction
from departing.service.store.connection import Rows

REPORTED, INACTIVE = "reported", "inactive"  # causes of departures in the store; the first is a value of --departures
EXAMPLES = (
    "'30 minutes' suits a site whose users come for a visit, '14 days' one whose users come regularly; "
    "`departing return-times LOG` suggests a period from a log"
)
REQUIRED = (
    "A service that learns needs a definition of departure. With --inactive-after DURATION a user who is inactive "
    f"for that long counts as departed: {EXAMPLES}. With --departures reported only users whose departure your site "
    "reports do, by `departed` in the feedback or POST /v1/depart."
)
UNDEFINED = (
    "No definition of departure is set: users never count as departed unless your site reports it, so they count "
    "towards --max-users and the length of visits is unknown. Restart with --inactive-after DURATION or --departures "
    "reported."
)
_UNITS = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))


@dataclass(frozen=True)
class DepartureRule:
    """Definition of departure; a departure that the caller reports counts under every definition.

    With both fields, reported departures count at once, and inactivity covers users whose departure is not reported.
    """

    inactive_after: float = inf  # seconds of inactivity after which a user counts as departed
    reported: bool = False  # True if the caller has agreed to report departures

    @property
    def is_defined(self) -> bool:
        """True if users can depart under the definition."""
        return self.reported or isfinite(self.inactive_after)

    def describe(self) -> str:
        """Return the definition in words."""
        parts = ["reported"] if self.reported else []
        if isfinite(self.inactive_after):
            parts.append(f"inactive for {duration(self.inactive_after)}")
        return " or ".join(parts) or "none"


def duration(seconds: float) -> str:
    """Return a duration in its largest unit.

    >>> duration(1209600.0), duration(5400.0), duration(1.5)
    ('14 days', '1.5 hours', '1.5 seconds')
    """
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    number = f"{seconds / size:.4g}"
    return f"{number} {unit}{'' if number == '1' else 's'}"


def read_rule(rows: Rows) -> DepartureRule:
    """Return the definition that a store remembers from the rows of its key; without rows an empty one."""
    fields = json.loads(rows[0][0]) if rows else {}
    period = fields.get("inactive_after")
    return DepartureRule(inf if period is None else float(period), bool(fields.get("reported")))


def adopt_rule(tx: Transaction, rule: DepartureRule, learn: bool) -> tuple[DepartureRule, DepartureRule]:
    """Store a definition, or read the stored one if none is given; return it and the one that was stored before.

    Raises `InputError` if there is neither and the service learns.
    """
    stored = read_rule(tx.rows(queries.SETTING, queries.DEPARTURES_KEY))
    if not rule.is_defined:
        if learn and not stored.is_defined:
            raise InputError(REQUIRED)
        return stored, stored
    period = rule.inactive_after if isfinite(rule.inactive_after) else None
    tx.write(queries.SET, queries.DEPARTURES_KEY, json.dumps({"inactive_after": period, "reported": rule.reported}))
    return rule, stored
