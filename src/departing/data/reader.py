"""Reading of a log in two passes over its partitions: a profile of all rows, then the histories of all users.

The engine is one DuckDB database, or many of them in the workers of Spark. This module merges the results of
partitions; a single machine has one partition.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from departing.data import checks, rules, times
from departing.data.flags import FLAG_WORDS, MISSING_WORDS
from departing.data.history_rows import log_histories
from departing.data.history_rules import HistoryEnd, Profile
from departing.data.inactivity import MAX_SAMPLE, ReturnTimes, gaps_query, return_times
from departing.data.quality import MAX_EXAMPLES, Irregularity, LogReport, quality_notes
from departing.data.rewards import (
    BAD_REWARD,
    NO_REWARD,
    UNCLICKED_REWARD,
    check_rewards,
    reward_scale,
    reward_stats,
    sums_by_category,
)
from departing.data.rules import CLICKED_MISSING, REJECTION_REASONS, Rules
from departing.data.sample import Sample
from departing.data.segments import SegmentCodes, find_segments, value_counts
from departing.data.sources import DuckDBEngine, HistoryTables
from departing.data.spec import AUTO, MAX_CATEGORIES, LogSpec, LogSummary, sort_categories
from departing.data.times import HAS_ZONE, TimeColumn
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.names import list_names
from departing.model.packing import is_large, small_type
from departing.model.segments import SEPARATOR

if TYPE_CHECKING:
    from departing.data.spark import SparkEngine

EXPECTED = {  # accepted values, for the error if no row can be used
    "time cannot be parsed": "; expected timestamps, dates or numbers",
    "clicked cannot be parsed": "; expected true or false, 0 or 1, yes or no, or click or no click",
}
DATE_ONLY_DUPLICATES = (
    "Times are dates without a time of day, and {:,} equal rows were rejected as duplicates; if they are separate "
    "events, use duplicates='keep' (--duplicates keep)."
)
CHANGED_SEGMENT = ("user with events in several segments", "the segment is that of the first used event")
NO_EXAMPLES = "SELECT '' LIMIT 0"
# Memory of a history by category: 64-bit counts; or counts and pending steps of one byte each, if all are below 128.
PLAIN_BYTES, PACKED_BYTES = 32, 6
CLICKED_UNKNOWN = REJECTION_REASONS.index("clicked cannot be parsed") + 1


class OneUserError(InputError):
    """The log has one user only."""


class LogReader:
    """The reading of one open source for the first time; see `KnownLogReader` for those that follow."""

    def __init__(self, engine: "DuckDBEngine | SparkEngine", spec: LogSpec) -> None:
        self.engine, self.spec = engine, spec
        self.rules = Rules(spec, engine.columns, engine.name)
        self.irregularities: list[Irregularity] = []
        self.guessed, self.notes = engine.guessed + self.rules.guessed, list[str]()
        self.is_date_only = False
        fields = list(dict.fromkeys(self.rules.fields.values()))
        engine.by_user(self.rules.fields["user"], fields, whole_rows=not spec.keep_duplicates)

    def read(self, max_bytes: int) -> tuple[Profile, LogSummary]:
        """Read all rows into a table of counts of at most `max_bytes`."""
        profile, events = self._profile()
        profile = replace(profile, inactive=self._inactivity(profile, events), horizon=self.spec.horizon)
        self.engine.define(*self.rules.users(profile))
        tables, notes, totals = self._tables(profile, events, max_bytes)
        histories, users = log_histories(profile, tables)
        self._add_irregularities(
            ((kind, decision, totals[name]) for kind, decision, name, _ in notes),
            tables.results[1 : len(notes) + 1],
            profile.time,
        )
        checks.check_horizon(self.spec.horizon, histories)
        ends = dict(zip(HistoryEnd, users.tolist(), strict=True))
        self._check_rejected(events)
        if self.is_date_only and totals["duplicates"]:
            self.notes.append(DATE_ONLY_DUPLICATES.format(totals["duplicates"]))
        sample = Sample.merge(tables.sample)
        if profile.segments is not None:
            profile, histories, sample = _without_unused_segments(profile, histories, sample)
        report = self._report(histories, ends, profile, events)
        rewards = None
        if profile.reward_scale is not None and self.spec.reward and self.spec.unit:
            scale, column = profile.reward_scale, self.spec.reward
            rewards = reward_stats(tables.results[-1], profile.categories, self.spec.unit, scale, column)
        return profile, LogSummary(histories, report, totals["digest"] % rules.DIGEST_MODULUS, sample, rewards)

    def _tables(
        self, profile: Profile, events: int, max_bytes: int
    ) -> tuple[HistoryTables, list[tuple[str, str, str, str]], dict[str, int]]:
        """Histories of all users, kinds of irregularities of several rows, and totals by name."""
        k = len(profile.categories)
        max_rows = max_bytes // ((PACKED_BYTES if self.engine.packs else PLAIN_BYTES) * k)
        notes = [
            (reason, "rejected", name, self.rules.examples("corrected", rules.is_rejected_as(reason)))
            for reason, name in ((rules.DUPLICATE, "duplicates"), (rules.LATE, "late"))
        ]
        notes.append((*rules.TIES, "ties", rules.TIES_EXAMPLES))
        notes.append((*rules.SEEN_LATER, "seen_later", rules.SEEN_LATER_EXAMPLES))
        queries = [self.rules.totals(profile), *(query for *_, query in notes)]
        if profile.segments is not None:
            notes.append((*CHANGED_SEGMENT, "changed", ""))
            queries.append(NO_EXAMPLES)
        if profile.reward_scale is not None:
            queries.append(sums_by_category(profile.reward_scale))
        tables = self.engine.histories(
            queries, *self.rules.histories(profile, max_rows), self.rules.sample(profile, events), max_rows
        )
        totals = dict(zip(rules.TOTALS, map(sum, zip(*tables.results[0], strict=True)), strict=True))
        # A partition with more than `max_rows` returns none of them, whatever the others return.
        is_incomplete = any(row[rules.TOTALS.index("rows")] > max_rows for row in tables.results[0])
        rows = totals["rows"] if is_incomplete else tables.n
        size = rows * k * PLAIN_BYTES
        if self.engine.packs and is_large((rows, k, 4)):
            size = rows * k * PACKED_BYTES * small_type(tables.most).itemsize
        if is_incomplete or not tables.n or size > max_bytes:
            raise InputError(
                f"The log has {rows:,} distinct counts in {k:,} categories, a table of "
                f"{size / 1e9:.3g} GB, but memory_limit is {max_bytes / 1e9:.3g} GB; list fewer "
                "categories by `categories`, group them, or raise `memory_limit`."
            )
        return tables, notes, totals

    def _report(self, histories: Histories, ends: dict[HistoryEnd, int], profile: Profile, events: int) -> LogReport:
        columns = {field: name for field, name in self.rules.fields.items() if not rules.is_segment(field)}
        segments = dict[str, int]()
        if profile.segments is not None:
            columns["segment"] = SEPARATOR.join(profile.segments.columns)
            segments = dict(zip(profile.segments.names, histories.segment_users.tolist(), strict=True))
        report = LogReport(
            source=self.engine.name,
            events=events,
            used=events - sum(each.count for each in self.irregularities if each.rejected),
            users=histories.users,
            departed=sum(users for end, users in ends.items() if end >= HistoryEnd.DEPARTED_LOGGED),
            inactive=ends[HistoryEnd.DEPARTED_INACTIVE],
            censored=ends[HistoryEnd.CENSORED] + ends[HistoryEnd.CENSORED_PENDING],
            pending=ends[HistoryEnd.CENSORED_PENDING],
            first=profile.time.format(profile.first),
            last=profile.time.format(profile.last),
            irregularities=tuple(self.irregularities),
            notes=(),
            columns=columns,
            guessed=self.guessed,
            segments=segments,
            unknown_segment=histories.users - sum(segments.values()) if segments else 0,
        )
        return replace(report, notes=(*self.notes, *quality_notes(histories, report)))

    def _check_rejected(self, events: int) -> None:
        """Raise if too many rows are rejected; the last one of a user without `clicked` counts as still open."""
        rejected = [each for each in self.irregularities if each.rejected]
        too_many = sum(each.count for each in rejected) > self.spec.max_rejected * events
        open_rows = 0
        if too_many and any(each.kind == CLICKED_MISSING for each in rejected):
            (counts,) = self.engine.rows(self.rules.open_rows(REJECTION_REASONS.index(CLICKED_MISSING) + 1))
            open_rows = sum(n for (n,) in counts)
        checks.check_rejected(
            self.engine.name, events, self.irregularities, self.spec.max_rejected, open_rows=open_rows
        )

    def _profile(self) -> tuple[Profile, int]:
        """Read all rows once: the profile and the number of rows. Irregularities of single rows are noted."""
        time, without_zone = self._time_column()
        self.engine.define(*self.rules.checked(time, self.spec.categories))
        rows, malformed = self.engine.rows(self.rules.profile(time), "SELECT count(*) FROM malformed")
        used_names = {row[1].strip() for row in rows if row[0] is None} if self.spec.categories is None else set()
        if words := [word for word in MISSING_WORDS if word in used_names]:
            self.rules.missing_words = tuple(words)
            self.engine.define(*self.rules.checked(time, self.spec.categories))
            (rows,) = self.engine.rows(self.rules.profile(time))
        if not rows:
            raise InputError(f"There are no events in {self.engine.name}.")
        total = _totals(rows, self.rules.profile_columns)
        inferred = time
        for count, convert in ((times.date_counts, times.as_date), (times.epoch_counts, times.as_epoch)):
            if (query := count(inferred, total["last"])) is not None:
                (numbers,) = self.engine.rows(query)
                summed = [*map(sum, zip(*numbers, strict=True))]
                inferred, sentences = convert(inferred, summed, self.rules.fields["time"])
                self.guessed += sentences
        if inferred.sql != time.sql:
            self.engine.define(*self.rules.checked(inferred, self.spec.categories))
            (rows,) = self.engine.rows(self.rules.profile(inferred))
            total = _totals(rows, self.rules.profile_columns)
        time = inferred
        bounded = self._without_stray_times(time, total)
        if bounded != time:
            time = bounded
            self.engine.define(*self.rules.checked(time, self.spec.categories))
            (rows,) = self.engine.rows(self.rules.profile(time))
        counts = _merged((row[1], row[2], None) for row in rows if row[0] is None)
        names = self.rules.profile_columns
        used, events = (
            _totals((row for row in rows if row[0] is None), names),
            total["n"] + sum(n for (n,) in malformed),
        )
        codes = range(1, len(REJECTION_REASONS) + 1)
        rejected = {code: _totals((row for row in rows if row[0] == code), names)["n"] for code in codes}
        self._check_flags(total, used, events, rejected[CLICKED_UNKNOWN])
        examples = self.rules.examples
        notes = [(*rules.NO_ZONE, without_zone, examples("raw", f"{time.sql} IS NOT NULL AND NOT {HAS_ZONE}"))]
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
        notes += self._reward_notes(used, relation)
        self._note(notes, time)
        categories = self._categories([(name, n) for name, n, _ in counts], used, events)
        self._check_rejected(events)
        self.notes += checks.similar_names({name: n for name, n, _ in counts})
        if self.spec.categories is None:
            self.notes += checks.rare_names({name: n for name, n, _ in counts})
        self.is_date_only = time.is_clock and used["midnights"] == used["n"]
        reward_scale = self._reward_scale(used)
        segments = self._segments(time, categories)
        has_rejected = any(n for code, n in rejected.items() if code >= rules.USER_AND_TIME_KNOWN)
        first = total["first"] if time.first is None else time.first
        last = total["last"] if time.last is None else time.last
        for code, where, t in ((rules.FAR_BEFORE, "before", first), (rules.FAR_AFTER, "after", last)):
            if n := rejected[code]:
                edge = f"the log {'starts' if where == 'before' else 'ends'} at {time.format(t)}"
                self.notes.append(f"Rows with a time far {where} all others ({n:,}) are rejected: {edge}.")
        return Profile(time, first, last, categories, None, has_rejected, segments, reward_scale), events

    def _reward_notes(self, used: dict[str, Any], relation: str) -> list[tuple[str, str, int, str]]:
        """Irregularities of rewards."""
        if self.spec.reward is None:
            return []
        missing, examples = used["reward_missing"], self.rules.examples
        return [
            (*NO_REWARD, missing, examples(relation, "reward_missing")),
            (
                *BAD_REWARD,
                used["reward_unknown"] - missing,
                examples(relation, "y AND r IS NULL AND NOT reward_missing"),
            ),
            (*UNCLICKED_REWARD, used["reward_unclicked"], examples(relation, "reward_unclicked")),
        ]

    def _reward_scale(self, used: dict[str, Any]) -> float | None:
        """Factor that makes integers of rewards, None if these are not read; raise if too few clicks have one."""
        if self.spec.reward is None:
            return None
        unknown = [each for each in self.irregularities if each.kind in (NO_REWARD[0], BAD_REWARD[0])]
        example = next(iter(unknown[-1].examples), None) if unknown else None
        check_rewards(
            used["reward_unknown"],
            used["reward_missing"],
            used["clicks"],
            self.spec.max_rejected,
            self.spec.reward,
            self.engine.name,
            example,
        )
        return reward_scale(used["reward_largest"] or 0.0)

    def _segments(self, time: TimeColumn, categories: tuple[str, ...]) -> SegmentCodes | None:
        """Segments of the log, whose codes become a column of the view `checked`."""
        if not self.spec.segments:
            return None
        (rows,) = self.engine.rows(value_counts(len(self.spec.segments)))
        segments, irregularities, sentences = find_segments(rows, self.spec, self.engine.name)
        self.notes += sentences
        self.irregularities += irregularities
        given = self.spec.categories and categories
        self.engine.define(*self.rules.checked(time, given or None, segments))
        return segments

    def _time_column(self) -> tuple[TimeColumn, int]:
        """The time column, and the number of its timestamps that lack the zone that others have."""
        self.engine.define(self.rules.raw())
        time, sentences, without_zone = times.find_time_column(
            lambda query: self.engine.rows(query)[0],
            self.rules.fields["time"],
            self.rules.types["time"],
            self.rules.kinds["time"],
            self.spec.time_format,
        )
        self.guessed += sentences
        return time, without_zone

    def _check_flags(self, total: dict[str, Any], used: dict[str, Any], events: int, unknown_clicks: int) -> None:
        """Raise if clicks or departures are not understood."""
        fields, spec = self.rules.fields, self.spec
        unknown = {
            "clicked": unknown_clicks,
            "departed": 0 if spec.inactive_after else used["departed_unknown"] - used["departed_missing"],
        }
        for field in FLAG_WORDS:
            if field not in fields:
                continue
            if (number := total[f"{field}_number"]) is not None:
                checks.check_numbers(field, fields[field], number)
            values = spec.values.get(field)
            if not unknown[field] and values is None:
                continue
            (labels,) = self.engine.rows(self.rules.labels(field))
            merged = _merged(labels)
            if values is None:
                checks.check_labels(field, fields[field], merged, unknown[field], events, spec)
            else:
                (named,) = self.engine.rows(self.rules.named_values(field))
                found = map(sum, zip(*named, strict=True))
                absent = [value for value, n in zip(values, found, strict=True) if not n]
                checks.check_values(field, fields[field], merged, absent)

    def return_times(self) -> ReturnTimes:
        """Read all rows once: the return times of users, and the inactivity period that they suggest."""
        profile, events = self._profile()
        return self._return_times(profile, events)

    def _inactivity(self, profile: Profile, events: int) -> int | None:
        """The inactivity period in units of the time column."""
        value, has_departures = self.spec.inactive_after, "departed" in self.rules.fields
        if has_departures and value in (None, AUTO):
            return None
        if value is not None and value != AUTO:
            return profile.time.period(value, self.rules.fields["time"])
        if value is None:
            proposal = self._proposal(profile, events)
            raise InputError(
                f"Departures are unknown: {self.engine.name} has no column for departed; name one as `departed`, "
                f"{proposal}"
            )
        times = self._return_times(profile, events)
        if not times.is_reliable:
            raise InputError(
                f"inactive_after is 'auto', but the log is too short to suggest a period: its users still return "
                f"after {times.period}; state a period, such as {times.period!r}, or read a longer log.",
                "inactive_after",
            )
        self.guessed += (f"The inactivity period is {times.period}. {times.describe()}",)
        return profile.time.period(times.value, self.rules.fields["time"])

    def _proposal(self, profile: Profile, events: int) -> str:
        """An inactivity period to use, as the end of a sentence."""
        try:
            times = self._return_times(profile, events)
        except OneUserError:
            raise
        except InputError:
            return "or give an inactivity period, such as `inactive_after`='30 days'."
        auto = "let the log suggest an inactivity period by `inactive_after`='auto', or state one"
        auto = auto if times.is_reliable else "or give an inactivity period"
        return f"{auto}, such as `inactive_after`={times.value!r}. {times.describe()}"

    def _return_times(self, profile: Profile, events: int) -> ReturnTimes:
        (rows,) = self.engine.rows(gaps_query(events, profile.last))
        if events <= MAX_SAMPLE and sum(row[3] for row in rows) == 1:
            raise OneUserError(
                f"There is only one user in {self.engine.name}, in column {self.rules.fields['user']!r}; types and "
                "inactivity periods are inferred from many users. Name another column as `user`, or read a log of "
                "more users."
            )
        return return_times(rows, profile.time, profile.first, profile.last, self.engine.name)

    def _without_stray_times(self, time: TimeColumn, total: dict[str, Any]) -> TimeColumn:
        """The time column with bounds, if a few times are far before or far after all others."""
        value = self.spec.inactive_after
        is_logged = "departed" in self.rules.fields and value in (None, AUTO)
        # Numbers may be relative to the user's first event, and then have long tails.
        if total["n"] * checks.STRAY_SHARE < 1 or total["last"] is None or (is_logged and not time.is_clock):
            return time

        def bins(first: int, last: int) -> dict[int, tuple[int, int, int]]:
            merged: dict[int, tuple[int, int, int]] = {}
            for number, n, least, most in self.engine.rows(self.rules.time_bins(time, first, last))[0]:
                before = merged.get(number, (0, least, most))
                merged[number] = (before[0] + n, min(before[1], least), max(before[2], most))
            return merged

        least_gap = 0 if value in (None, AUTO) else time.period(value, self.rules.fields["time"])
        first, last = checks.regular_times(bins, total["first"], total["last"], least_gap)
        return replace(
            time,
            first=first if first > total["first"] else None,
            last=last if last < total["last"] else None,
        )

    def _categories(self, counts: list[tuple[str, int]], used: dict[str, Any], events: int) -> tuple[str, ...]:
        """The categories in order; raise if there are too many, or no event has one that is listed."""
        categories, column = self.spec.categories, self.rules.fields["category"]
        if categories is None and len(counts) > MAX_CATEGORIES:
            raise InputError(
                f"Column {column!r} holds more than {MAX_CATEGORIES:,} categories, the maximum; list "
                "those that matter by `categories`, or group them."
            )
        if counts and all(name.startswith("[") and name.endswith("]") for name, _ in counts):
            raise InputError(
                f"Column {column!r} for category holds lists such as {counts[0][0]!r:.40}; expected one category per "
                "row: expand lists to one row per recommendation first."
            )
        if categories is not None and len(counts) < len(categories):
            (found,) = self.engine.rows(self.rules.category_counts())
            in_source = [(name, n) for name, n, _ in _merged((*row, None) for row in found)]
            checks.check_categories(self.engine.name, self.spec, in_source, events)
        if used["n"] == 0:
            worst = max((each for each in self.irregularities if each.rejected), key=lambda each: each.count)
            raise InputError(
                f"None of the {events:,} events in {self.engine.name} can be used: {worst.kind} in {worst.count:,} "
                f"of them, such as {worst.examples[0]!r}{EXPECTED.get(worst.kind, '')}."
            )
        if "departed" in self.rules.fields and used["departed_unknown"] == used["n"] and not self.spec.inactive_after:
            raise InputError(
                f"No value of column {self.rules.fields['departed']!r} can be parsed as departed or stayed; name "
                "another column as `departed`, or give an inactivity period such as `inactive_after`='30 days'."
            )
        if categories is None:
            categories = sort_categories(name for name, _ in counts)
            self.engine.define(rules.category_type(categories))
        return categories

    def _note(self, notes: Iterable[tuple[str, str, int, str]], time: TimeColumn) -> None:
        """Note irregularities, each given as kind, decision, count and query for examples.

        A row of examples is one text, or a user, a time and what happened.
        """
        notes = [note for note in notes if note[2]]
        results = self.engine.rows(*(query for *_, query in notes))
        self._add_irregularities((note[:3] for note in notes), results, time)

    def _add_irregularities(
        self, notes: Iterable[tuple[str, str, int]], results: Sequence[Sequence[tuple[Any, ...]]], time: TimeColumn
    ) -> None:
        """Add irregularities that occur, each given as kind, decision and count, with the rows of its examples."""
        for (kind, decision, count), rows in zip(notes, results, strict=True):
            examples = (
                row[0] if len(row) == 1 else f"user {row[0]}, {row[2]} at {time.format(row[1])}"
                for row in sorted(rows)
            )
            if count:
                shown = tuple(islice(examples, MAX_EXAMPLES))
                self.irregularities.append(Irregularity(kind, decision, count, shown, decision == "rejected"))


def _without_unused_segments(
    profile: Profile, histories: Histories, sample: Sample
) -> tuple[Profile, Histories, Sample]:
    """The same without segments of later events only, in which no user is."""
    is_used = (histories.segment_users > 0).tolist()
    if profile.segments is None or all(is_used):
        return profile, histories, sample
    if not any(is_used):
        raise InputError(
            f"The first event of every user has no value of {list_names(profile.segments.columns)}; omit `segment`, "
            "or name the missing value by `missing_segment`.",
            "segment",
        )
    kept = profile.segments.keep(is_used)
    if sample.segment is not None:
        sample = replace(sample, segment=kept.reindex(sample.segment))
    return replace(profile, segments=kept), histories.keep_segments(kept.names), sample


def _totals(rows: Iterable[tuple[Any, ...]], names: Sequence[str]) -> dict[str, Any]:
    """Rows of a profile with the columns `names` merged into one."""
    columns = list(zip(*rows, strict=True))[2:] or [()] * len(names)
    totals: dict[str, Any] = {}
    for name, column in zip(names, columns, strict=True):
        values = [value for value in column if value is not None]
        if name in ("first", "clicked_number", "departed_number"):
            totals[name] = min(values, default=None)
        else:
            totals[name] = max(values, default=None) if name in ("last", "reward_largest") else sum(values)
    return totals


def _merged(rows: Iterable[tuple[str, int, Any]]) -> list[tuple[str, int, Any]]:
    """Rows of several partitions with a name, a number and a value: numbers of equal names added, largest first."""
    numbers: defaultdict[str, int] = defaultdict(int)
    values: dict[str, Any] = {}
    for name, n, value in rows:
        numbers[name] += n
        values[name] = value if value is not None else values.get(name)
    return [(name, n, values[name]) for name, n in sorted(numbers.items(), key=lambda pair: (-pair[1], pair[0]))]
