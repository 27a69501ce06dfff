"""Reading of a log in two passes over its partitions: a profile of all rows, then the histories of all users.

The engine is one DuckDB database, or many of them in the workers of Spark. This module merges the results of
partitions; a single machine has one partition.
"""

from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from departing.data import rules
from departing.data.quality import MAX_EXAMPLES, Irregularity, LogReport, quality_notes
from departing.data.rules import REJECTION_REASONS, HistoryEnd, Profile, Rules, TimeColumn
from departing.data.sources import Arrays, DuckDBEngine
from departing.data.spec import MAX_CATEGORIES, LogSpec, LogSummary, sort_categories
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY

if TYPE_CHECKING:
    from departing.data.spark import SparkEngine

EXPECTED = {  # accepted values, for the error if no row can be used
    "time cannot be parsed": "; expected timestamps, dates or numbers",
    "clicked cannot be parsed": "; expected true or false, 0 or 1, yes or no, or click or no click",
}
OUTCOME_BY_CLICK = [STAY, CLICK]  # of a step after which the user does not depart


class LogReader:
    """The reading of one open source: `read` it for the first time, or its `episodes` once the profile is known."""

    def __init__(self, engine: "DuckDBEngine | SparkEngine", spec: LogSpec) -> None:
        self.engine, self.spec = engine, spec
        self.rules = Rules(spec, engine.columns, engine.name)
        self.irregularities: list[Irregularity] = []

    def read(self, max_bytes: int) -> tuple[Profile, LogSummary]:
        """Read all rows into a table of counts of at most `max_bytes`."""
        profile, events = self._profile()
        self.engine.by_user(self.rules.fields["user"])
        self.engine.define(*self.rules.users(profile))
        k = len(profile.categories)
        max_rows = max_bytes // (32 * k)
        histories, users, totals = None, np.zeros(len(HistoryEnd), np.int64), defaultdict[str, int](int)
        for counts, rows, cells in self.engine.arrays(*self.rules.histories(profile, max_rows)):
            for name, values in counts.items():
                totals[name] += int(values[0])
            if 0 < counts["rows"][0] <= max_rows:
                histories = _merge(histories, _histories(profile.categories, rows, cells))
                users += np.bincount(rows["history_end"], rows["users"], len(HistoryEnd)).astype(np.int64)
        if histories is None or len(histories) > max_rows:
            raise InputError(
                f"The log has {totals['rows']:,} distinct counts in {k:,} categories, a table of "
                f"{totals['rows'] * k * 32 / 1e9:.3g} GB, but memory_limit is {max_bytes / 1e9:.3g} GB; list fewer "
                "categories by `categories`, group them, or raise `memory_limit`."
            )
        notes = [
            (reason, "rejected", n, self.rules.examples("corrected", rules.is_rejected_as(reason)))
            for reason, n in ((rules.DUPLICATE, totals["duplicates"]), (rules.LATE, totals["late"]))
        ]
        notes.append((*rules.TIES, totals["ties"], rules.TIES_EXAMPLES))
        notes.append((*rules.SEEN_LATER, totals["seen_later"], rules.SEEN_LATER_EXAMPLES))
        ends = dict(zip(HistoryEnd, users.tolist(), strict=True))
        self._note(notes, profile.time)
        report = LogReport(
            source=self.engine.name,
            events=events,
            used=events - sum(each.count for each in self.irregularities if each.rejected),
            users=histories.users,
            departed=ends[HistoryEnd.DEPARTED_LOGGED] + ends[HistoryEnd.DEPARTED_INACTIVE],
            inactive=ends[HistoryEnd.DEPARTED_INACTIVE],
            censored=ends[HistoryEnd.CENSORED] + ends[HistoryEnd.CENSORED_PENDING],
            pending=ends[HistoryEnd.CENSORED_PENDING],
            first=profile.time.format(profile.first),
            last=profile.time.format(profile.last),
            irregularities=tuple(self.irregularities),
            notes=(),
        )
        report = replace(report, notes=quality_notes(histories, report))
        return profile, LogSummary(histories, report, totals["digest"] % rules.DIGEST_MODULUS)

    def episodes(self, profile: Profile, digest: int, users: int) -> Generator[Arrays]:
        """Yield the steps of all users in order, `users` users at a time; raise at the end if the log has changed."""
        self.engine.by_user(self.rules.fields["user"], in_order=True)
        self.engine.define(self.rules.raw(), *self.rules.checked(profile.time, profile.categories))
        self.engine.define(*self.rules.users(profile), self.rules.episodes(profile))
        total = yield from self.engine.steps("episodes", users, rules.DIGEST)
        if total % rules.DIGEST_MODULUS != digest:
            raise InputError(f"Rows of {self.engine.name} changed since they were read; call read_log again.")

    def _profile(self) -> tuple[Profile, int]:
        """Read all rows once: the profile and the number of rows. Irregularities of single rows are noted."""
        time, without_zone = self._time_column()
        inactive = self.rules.inactivity(time)
        self.engine.define(*self.rules.checked(time, self.spec.categories))
        rows, malformed = self.engine.rows(self.rules.profile(), "SELECT count(*) FROM malformed")
        if not rows:
            raise InputError(f"There are no events in {self.engine.name}.")
        total, names = _totals(rows), {row[1] for row in rows if row[0] is None}
        used, events = _totals(row for row in rows if row[0] is None), total["n"] + sum(n for (n,) in malformed)
        self._check_values(total, names)
        codes = range(1, len(REJECTION_REASONS) + 1)
        rejected = {code: _totals(row for row in rows if row[0] == code)["n"] for code in codes}
        examples = self.rules.examples
        notes = [(*rules.NO_ZONE, without_zone, examples("raw", rules.WITHOUT_ZONE))]
        notes += [
            (REJECTION_REASONS[code - 1], "rejected", n, examples("checked", f"rejection_code = {code}"))
            for code, n in rejected.items()
        ]
        notes.append((rules.MALFORMED, "rejected", events - total["n"], rules.MALFORMED_EXAMPLES))
        relation = "(FROM checked WHERE rejection_code IS NULL)"
        for field, missing, unreadable, is_unknown in (
            ("departed", rules.NO_DEPARTED, rules.BAD_DEPARTED, "d = 1"),
            ("propensity", rules.NO_PROPENSITY, rules.BAD_PROPENSITY, "p IS NULL"),
        ):
            if field in self.rules.fields:
                n, unknown = used[f"{field}_missing"], used[f"{field}_unknown"]
                notes.append((*missing, n, examples(relation, f"{field}_missing")))
                notes.append((*unreadable, unknown - n, examples(relation, f"{is_unknown} AND NOT {field}_missing")))
        self._note(notes, time)
        self._check_used(used, events, inactive)
        categories = self.spec.categories
        if categories is None:
            categories = sort_categories(names)
            self.engine.define(rules.category_type(categories))
        has_rejected = any(n for code, n in rejected.items() if code >= rules.USER_AND_TIME_KNOWN)
        return Profile(time, total["first"], total["last"], categories, inactive, has_rejected), events

    def _time_column(self) -> tuple[TimeColumn, int]:
        """The time column, and the number of its timestamps that lack the zone that others have."""
        self.engine.define(self.rules.raw())
        if self.rules.kinds["time"] != "text":
            return self.rules.time_column(), 0
        (rows,) = self.engine.rows(self.rules.time_counts())
        n, numbers, integers, timestamps, zoned = map(sum, zip((0,) * 5, *rows, strict=True))
        if not n:
            raise InputError(f"There are no events in {self.engine.name}.")
        time = self.rules.time_column(numbers, integers, timestamps)
        return time, timestamps - zoned if time.is_clock and zoned else 0

    def _check_values(self, total: dict[str, Any], names: set[str]) -> None:
        fields = self.rules.fields
        for field in ("clicked", "departed"):
            if (number := total[f"{field}_number"]) is not None:
                raise InputError(
                    f"Column {fields[field]!r} for {field} holds {number}; expected 0 or 1, true or false, or yes or "
                    f"no: derive such a column first, for instance {fields[field]} >= {number}."
                )
        if self.spec.categories is None and len(names) > MAX_CATEGORIES:
            raise InputError(
                f"Column {fields['category']!r} holds more than {MAX_CATEGORIES:,} categories, the maximum; list "
                "those that matter by `categories`, or group them."
            )

    def _check_used(self, used: dict[str, Any], events: int, inactive: int | None) -> None:
        if used["n"] == 0:
            worst = max((each for each in self.irregularities if each.rejected), key=lambda each: each.count)
            raise InputError(
                f"None of the {events:,} events in {self.engine.name} can be used: {worst.kind} in {worst.count:,} "
                f"of them, such as {worst.examples[0]!r}{EXPECTED.get(worst.kind, '')}."
            )
        if "departed" in self.rules.fields and used["departed_unknown"] == used["n"] and inactive is None:
            raise InputError(
                f"No value of column {self.rules.fields['departed']!r} can be parsed as departed or stayed; name "
                "another column as `departed`, or give an inactivity period such as `inactive_after`='30 days'."
            )

    def _note(self, notes: Iterable[tuple[str, str, int, str]], time: TimeColumn) -> None:
        """Note irregularities, each given as kind, decision, count and query for examples.

        A row of examples is one text, or a user, a time and what happened.
        """
        notes = [note for note in notes if note[2]]
        results = self.engine.rows(*(query for *_, query in notes))
        for (kind, decision, count, _), rows in zip(notes, results, strict=True):
            examples = (
                row[0] if len(row) == 1 else f"user {row[0]}, {row[2]} at {time.format(row[1])}"
                for row in sorted(rows)
            )
            shown = tuple(islice(examples, MAX_EXAMPLES))
            self.irregularities.append(Irregularity(kind, decision, count, shown, decision == "rejected"))


def _totals(rows: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    """Rows of a profile merged into one."""
    columns = list(zip(*rows, strict=True))[2:] or [()] * len(rules.PROFILE_COLUMNS)
    totals: dict[str, Any] = {}
    for name, column in zip(rules.PROFILE_COLUMNS, columns, strict=True):
        values = [value for value in column if value is not None]
        if name in ("first", "clicked_number", "departed_number"):
            totals[name] = min(values, default=None)
        else:
            totals[name] = max(values, default=None) if name == "last" else sum(values)
    return totals


def _histories(categories: tuple[str, ...], rows: Arrays, cells: Arrays) -> Histories:
    """Distinct histories `[N]` from their last steps and ends, and the cells of their counts.

    A step's code is 2 × category + click, and 2 K more for a recent step; `last_step` is 2 × category + click.
    """
    n, k = len(rows["history_end"]), len(categories)
    flat = np.zeros((n, 4 * k), np.int64)
    flat[cells["history"], cells["code"]] = cells["n"]
    steps = flat.reshape(n, 2, k, 2)
    counts = np.zeros((n, k, 4), np.int64)
    counts[..., OUTCOME_BY_CLICK] = steps.sum(axis=1)
    category, clicked = rows["last_step"] // 2, rows["last_step"] % 2
    gone = np.flatnonzero(rows["history_end"] >= HistoryEnd.DEPARTED_LOGGED)
    counts[gone, category[gone], np.where(clicked[gone], CLICK, STAY)] -= 1
    counts[gone, category[gone], np.where(clicked[gone], CLICK_DEPART, DEPART)] += 1
    is_pending = rows["history_end"] == HistoryEnd.CENSORED_PENDING
    pending = np.zeros((n, k, 2), np.int64)
    pending[..., OUTCOME_BY_CLICK] = steps[:, 1] * is_pending[:, None, None]
    last_only = np.flatnonzero(is_pending & ~pending.any(axis=(1, 2)))  # no step is recent
    pending[last_only, category[last_only], np.where(clicked[last_only], CLICK, STAY)] = 1
    return Histories(counts, rows["users"], pending=pending, categories=categories).distinct


def _merge(one: Histories | None, two: Histories) -> Histories:
    """The distinct histories of both."""
    if one is None:
        return two
    names = ("counts", "multiplicity", "pending")
    counts, multiplicity, pending = (np.concatenate([getattr(one, name), getattr(two, name)]) for name in names)
    return Histories(counts, multiplicity, pending=pending, categories=two.categories).distinct
