"""The end of a user's history, and the grouping of users with equal counts, as SQL.

The columns are those of `rules.py`.
"""

from dataclasses import dataclass
from enum import IntEnum

from departing.data.segments import SegmentCodes
from departing.data.times import TimeColumn

WEIGHT = 2**30  # of a user who arrives at the end of the log; squares fit into 64 bits


class HistoryEnd(IntEnum):
    """End of the history of a user; the values are those in SQL."""

    CENSORED = 0
    CENSORED_PENDING = 1  # unknown whether the user stayed after the last step
    DEPARTED_LOGGED = 2
    DEPARTED_INACTIVE = 3
    DEPARTED_RECENT = 4  # logged in the last inactivity period or at the horizon: known, but no evidence


@dataclass(frozen=True)
class Profile:
    """Facts about all rows that reading a single user depends on.

    `inactive` is the inactivity period in units of the time column. `has_rejected` is true if there are rejected rows
    with a known user and time. `segments`, `reward_scale` and `half_life`, in units of the time column, are None if
    segments, rewards and weights of users are not read. `horizon` is the largest number of recommendations to a user.
    """

    time: TimeColumn
    first: int
    last: int
    categories: tuple[str, ...]
    inactive: int | None
    has_rejected: bool
    segments: SegmentCodes | None = None
    reward_scale: float | None = None
    half_life: float | None = None
    horizon: int | None = None

    @property
    def event_columns(self) -> str:
        """Columns of an event."""
        return f"u, t, k, y, d, p{self.extra_columns}"

    @property
    def extra_columns(self) -> str:
        """Columns `s` of segments and `r` of rewards, after a comma, if these are read."""
        return (", s" if self.segments else "") + (", r" if self.reward_scale else "")

    @property
    def history_columns(self) -> str:
        """Columns of users that are equal within a distinct history."""
        return "counts_hash, n_events, history_end, last_step" + (", segment" if self.segments else "")

    @property
    def history_sums(self) -> dict[str, str]:
        """Columns of histories that are sums over their users, with the SQL of each."""
        sums = {"changed": "count(*) FILTER (changed)"} if self.segments else {}
        if self.half_life is not None:
            age = f"({self.last} - arrival)::DOUBLE"
            weight = f"round({WEIGHT} * pow(2.0::DOUBLE, -({age} / '{self.half_life!r}'::DOUBLE)))::BIGINT"
            sums |= {"weight": f"sum({weight})", "weight_squares": f"sum({weight} * {weight})"}
        return sums


def since_first(profile: Profile, base: int) -> str:
    """SQL of the time since the start of the log, as an integer that can be multiplied by `base`."""
    is_small = (profile.last - profile.first + 1) * base < 2**63
    return f"(t - ({profile.first}))::BIGINT" if is_small else f"(t::HUGEINT - ({profile.first}))"


def first_segment(profile: Profile) -> tuple[str, int]:
    """SQL of an event's key, the smallest of which of a user is that of the segment; and the modulus of its code."""
    base = profile.segments.unknown + 1 if profile.segments else 1
    return f"({since_first(profile, base)} * {base} + s)", base


def is_recent(profile: Profile) -> str:
    """Condition for a step less than the inactivity period before the end of the log."""
    return "false" if profile.inactive is None else f"t > {profile.last - profile.inactive}"


def step(profile: Profile) -> str:
    """SQL of a step's code: 2 × category + click, and 2 K more if the step is recent."""
    step = "k * 2 + y::INTEGER"
    if profile.inactive is None:
        return step
    return f"{step} + {2 * len(profile.categories)} * ({is_recent(profile)})::INTEGER"


def counted(profile: Profile, relation: str) -> str:
    """The events of `relation` with the number `n_events` of those of their user, if there is a horizon."""
    return (
        f"(SELECT *, count(*) OVER (PARTITION BY u) AS n_events FROM ({relation}))" if profile.horizon else relation
    )


def history_end(profile: Profile, d: str) -> str:
    """SQL of the `HistoryEnd` of a user whose last step has the departure flag `d` and the time `t`.

    With a horizon, `n_events` is the number of events of the user: after the last one nobody returns.
    """
    end = HistoryEnd
    # Whether a recent step, or that at the horizon, is evidence must not depend on its outcome. Others who departed
    # there cannot be recognised, and those who stayed are pending: logged departures alone would bias departures
    # upwards, and `departed` false at the horizon, where nobody can return, downwards.
    is_open = is_recent(profile)
    if profile.horizon is not None:
        is_open = f"({is_open} OR n_events >= {profile.horizon})"
    known = f"WHEN t < until THEN {end.CENSORED}"
    if profile.inactive is None:
        known += f" WHEN {d} = 1 THEN {end.CENSORED_PENDING} ELSE {end.CENSORED}"
    else:
        known += f" ELSE {end.DEPARTED_INACTIVE}"
    return (
        f"CASE WHEN {d} = 2 THEN CASE WHEN {is_open} THEN {end.DEPARTED_RECENT} ELSE {end.DEPARTED_LOGGED} END "
        f"WHEN {is_open} THEN {end.CENSORED_PENDING} {known} END"
    )


def placed(profile: Profile, relation: str) -> str:
    """SQL of the events of `relation` with `place`, the number of an event among those of its user in order.

    Events at the same time are in a pseudo-random order, which is independent of category and click: that of the MD5
    hashes of user, category, click, and a number that distinguishes equal events. There are two exceptions: a logged
    departure is last, and a user who counts as departed by inactivity departs after a no-click if there is one at the
    last time. Without an inactivity period, an event after which a departure is unknown follows those after
    which the user stayed.
    """
    known = "d" if profile.inactive is None else "d = 2"
    is_end = f"nth_from_end = 1 AND {history_end(profile, 'd')} = {HistoryEnd.DEPARTED_INACTIVE}"
    number = f"row_number() OVER (PARTITION BY u, k, y ORDER BY t, d, p{profile.extra_columns})"
    return f"""
        SELECT {profile.event_columns},
            row_number() OVER (PARTITION BY u ORDER BY t, {known}, {is_end}, h, k, y, d, p) AS place
        FROM (
            SELECT *,
                row_number() OVER (PARTITION BY u ORDER BY t DESC, {known} DESC, y, h DESC, k DESC) AS nth_from_end
            FROM (
                SELECT *, md5_number_lower(concat_ws(' ', {number}, k, y, u)) AS h
                FROM ({counted(profile, relation)})
            )
        ) LEFT JOIN rejected_users USING (u)"""


def grouped(profile: Profile, relation: str, irregular_user: str, is_placed: bool = False) -> str:
    """SQL of the users of `relation` grouped by equal histories, `irregular_user` kept apart."""
    sums = "".join(f", {sql} AS {name}" for name, sql in profile.history_sums.items())
    return f"""
        SELECT {irregular_user} AS irregular_user, {profile.history_columns}, count(*) AS users{sums},
            min(u) AS sample_user
        FROM ({user_keys(profile, relation, is_placed)})
        GROUP BY ALL"""


def user_keys(profile: Profile, relation: str, is_placed: bool = False, arrivals: bool = False) -> str:
    """SQL of the users of `relation`: time of the last step, key of the history, and false if the user is regular.

    With segments there are their `segment`, and `changed` if the user has events in another one; with a half-life or
    `arrivals` there is `arrival`, the time of the first step.

    `counts_hash` and `n_events` represent the counts. A user is irregular if two events have the same time, or a
    departure is not the last event. Times are distinct if they set distinct bits of `bits61` (modulo 61) or of
    `bits59` (modulo 59); users whose times collide in both, by coincidence or not, are tested again. `last_key`
    encodes time, departure flag, category and click of the last step: the last by `place` if `is_placed`.
    """
    codes = 2 * len(profile.categories)
    base = 3 * codes  # flags × categories × clicks
    since = since_first(profile, base)
    code = f"(d * {codes} + k * 2 + y::INTEGER)"
    last_key = f"max({since} * {base} + {code})"
    if is_placed:
        last_key = f"max({since}) * {base} + arg_max({code}, place)"
    others, of_user = "", ""
    if profile.segments:
        key, modulus = first_segment(profile)
        known = f"FILTER (s < {profile.segments.unknown})"
        others += f", (min({key}) % {modulus})::USMALLINT AS segment"
        others += f", coalesce(min(s) {known} < max(s) {known}, false) AS changed"
        of_user += ", segment, changed"
    if arrivals or profile.half_life is not None:
        others, of_user = f"{others}, min(t) AS arrival", f"{of_user}, arrival"
    return f"""
        SELECT u, t, counts_hash, n_events, history_end, may_be_irregular{of_user},
            CASE WHEN history_end > {HistoryEnd.CENSORED} THEN code % {codes} END AS last_step
        FROM (
            SELECT u, t, counts_hash, n_events, code{of_user},
                {history_end(profile, f"(code // {codes})")} AS history_end,
                (bit_count(bits61) < n_events AND bit_count(bits59) < n_events) OR departures > 1
                    OR (departures = 1 AND code < {2 * codes}) AS may_be_irregular
            FROM (
                SELECT *, last_key // {base} + ({profile.first}) AS t, (last_key % {base})::INTEGER AS code
                FROM (
                    SELECT u, count(*) AS n_events, sum(hash({step(profile)} + 1)) AS counts_hash,
                        count(*) FILTER (d = 2) AS departures,
                        {last_key} AS last_key,
                        bit_or(1::BIGINT << (abs(t) % 61)::INTEGER) AS bits61,
                        bit_or(1::BIGINT << (abs(t) % 59)::INTEGER) AS bits59{others}
                    FROM {relation} GROUP BY u
                ) LEFT JOIN rejected_users USING (u)
            )
        )"""
