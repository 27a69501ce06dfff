"""The same reading of a log as one Ibis expression, run by Spark or by any database that Ibis knows."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import ibis
import numpy as np

from departing.data.columns import CLICKED, DEPARTED, as_span, check_number_of_categories, in_order
from departing.data.quality import EXAMPLES, Irregularity
from departing.data.sources import described
from departing.data.spec import (
    BAD_DEPARTED,
    BAD_PROPENSITY,
    DUPLICATE,
    KNOWN,
    LATE,
    LOGGED,
    NO_DEPARTED,
    NO_PROPENSITY,
    PENDING,
    PRESENT,
    PROBLEMS,
    SEEN_LATER,
    SILENT,
    TIES,
    LogSpec,
    LogSummary,
    check_size,
    check_something_is_used,
    nobody_flagged,
    not_a_flag,
)
from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY


class Warehouse:
    """A log in a database: the expressions of its checked rows, its steps in order and its histogram."""

    def __init__(self, table: Any, asked: LogSpec) -> None:
        self.asked, self.name = asked, described(table)
        self.types = dict(table.schema().items())
        self.fields = asked.fields(self.types, self.name)
        self.irregularities: list[Irregularity] = []
        kind = self.types[self.fields["time"]]
        self.clock = bool(kind.is_timestamp() or kind.is_date())
        if not (self.clock or kind.is_numeric()):
            raise InputError(
                f"Column {self.fields['time']!r} for time is of type {kind}; expected times, dates or numbers: cast "
                "it first."
            )
        self.span = None
        if asked.inactive_after is not None:
            self.span = as_span(asked.inactive_after, self.clock, self.fields["time"])
        self.checked = self._checked(table.rename("source_{name}"))
        self._read_through()
        self.used_rows = self.checked.filter(self.checked.problem == 0)
        rejected = self.checked.filter(self.checked.problem >= PRESENT)
        self.present = rejected.group_by("u").aggregate(until=rejected.t.max())
        self._look_closer()

    def _missing(self, table: Any, field: str) -> Any:
        name = self.fields[field]
        column, kind = table[f"source_{name}"], self.types[name]
        if kind.is_string():
            return column.isnull() | (column.strip() == "")
        if kind.is_floating():
            return column.isnull() | column.isnan()
        return column.isnull()

    def _flag(self, table: Any, field: str, words: tuple[tuple[str, ...], tuple[str, ...]]) -> tuple[Any, Any]:
        """A field as true, false or nothing, and a number in it that is neither 0 nor 1."""
        name = self.fields[field]
        column, kind = table[f"source_{name}"], self.types[name]
        nothing = ibis.null("float64")
        if kind.is_boolean():
            return column, nothing
        if kind.is_numeric():
            value = ibis.cases((column == 1, True), (column == 0, False))
            odd = ~column.isin([0, 1]) & ~self._missing(table, field)
            return value, ibis.cases((odd, column.cast("float64")))
        if kind.is_string():
            word = column.strip().lower()
            return ibis.cases((word.isin([*words[0], "1.0"]), True), (word.isin([*words[1], "0.0"]), False)), nothing
        raise InputError(
            f"Column {name!r} for {field} is of type {kind}; expected true or false, 0 or 1, or yes or no."
        )

    def _checked(self, table: Any) -> Any:
        """Every row as it is read, with the number of its problem, or 0."""
        column = {field: table[f"source_{name}"] for field, name in self.fields.items()}
        time, name = column["time"], column["category"].cast("string")
        if time.type().is_date():
            time = time.cast("timestamp")
        clicked, click_number = self._flag(table, "clicked", CLICKED)
        departed, departed_number = ibis.null("boolean"), ibis.null("float64")
        departed_missing = chance_missing = ibis.literal(False)
        chance = ibis.null("float64")
        if "departed" in self.fields:
            departed, departed_number = self._flag(table, "departed", DEPARTED)
            departed_missing = self._missing(table, "departed")
        if "propensity" in self.fields:
            kind = self.types[self.fields["propensity"]]
            if not kind.is_numeric():
                raise InputError(
                    f"Column {self.fields['propensity']!r} for propensity is of type {kind}; expected numbers: cast "
                    "it first."
                )
            chance = column["propensity"].cast("float64")
            chance_missing = self._missing(table, "propensity")
            chance = ibis.cases((~chance_missing & (chance > 0) & (chance <= 1), chance))
        unknown = unreadable = ibis.literal(False)
        if self.asked.categories is not None:
            unknown = ~name.isin(self.asked.categories)
        if time.type().is_floating():
            unreadable = time.isinf()
        tests = (
            self._missing(table, "user"),
            self._missing(table, "time"),
            unreadable,
            self._missing(table, "category"),
            unknown,
            self._missing(table, "clicked"),
            clicked.isnull(),
        )
        return table.mutate(
            u=column["user"],
            t=time,
            c=name,
            y=clicked,
            d=ibis.cases((departed.isnull(), 1), (departed, 2), else_=0),
            p=chance,
            click_number=click_number,
            departed_number=departed_number,
            departed_missing=departed_missing,
            chance_missing=chance_missing,
            problem=ibis.cases(*((test, i) for i, test in enumerate(tests, 1)), else_=0),
        )

    def _decide(self, kind: str, decision: str, count: int, events: Any, rejected: bool = False) -> None:
        """Note an irregularity with so many `events`, and the first few of them."""
        if count:
            names = [f"source_{name}" for name in dict.fromkeys(self.fields.values())]
            first = events.select(names).order_by(names).limit(EXAMPLES).to_pyarrow().to_pylist()
            examples = tuple(
                ", ".join(
                    f"{name.removeprefix('source_')} {'missing' if value is None else value}"
                    for name, value in row.items()
                )
                for row in first
            )
            self.irregularities.append(Irregularity(kind, decision, count, examples, rejected))

    def _read_through(self) -> None:
        """Read all rows once: how many have which problem; and again for the categories."""
        rows = self.checked
        profile = (
            rows.group_by("problem")
            .aggregate(
                n=rows.count(),
                first=rows.t.min(),
                last=rows.t.max(),
                click_number=rows.click_number.min(),
                departed_number=rows.departed_number.min(),
                departed_missing=rows.departed_missing.sum(),
                departed_unknown=(rows.d == 1).sum(),
                chance_missing=rows.chance_missing.sum(),
                chance_unknown=rows.p.isnull().sum(),
            )
            .order_by("problem")
            .to_pyarrow()
            .to_pylist()
        )
        self.events = sum(row["n"] for row in profile)
        times = [row[end] for row in profile for end in ("first", "last") if row[end] is not None]
        self.first: Any = min(times, default=None)
        self.last: Any = max(times, default=None)
        for field, column in (("clicked", "click_number"), ("departed", "departed_number")):
            for row in profile:
                if row[column] is not None:
                    raise not_a_flag(self.fields[field], field, f"{row[column]:g}")
        for row in profile:
            if row["problem"]:
                kind, events = PROBLEMS[row["problem"] - 1], rows.filter(rows.problem == row["problem"])
                self._decide(kind, "rejected", row["n"], events, True)
        used = next((row for row in profile if row["problem"] == 0), {"n": 0})
        self.used = used["n"]
        check_something_is_used(self.used, self.events, self.name, self.irregularities)
        rows = rows.filter(rows.problem == 0)
        if "departed" in self.fields:
            missing, unknown = used["departed_missing"], used["departed_unknown"]
            if unknown == self.used and self.span is None:
                raise nobody_flagged(self.fields["departed"])
            self._decide(*NO_DEPARTED, missing, rows.filter(rows.departed_missing))
            self._decide(*BAD_DEPARTED, unknown - missing, rows.filter((rows.d == 1) & ~rows.departed_missing))
        if "propensity" in self.fields:
            missing, unknown = used["chance_missing"], used["chance_unknown"]
            self._decide(*NO_PROPENSITY, missing, rows.filter(rows.chance_missing))
            self._decide(*BAD_PROPENSITY, unknown - missing, rows.filter(rows.p.isnull() & ~rows.chance_missing))
        self.names = self.asked.categories or self._found_names(rows)

    def _found_names(self, rows: Any) -> tuple[str, ...]:
        check_number_of_categories(int(rows.c.nunique().execute()), self.fields["category"])
        return in_order(rows.select("c").distinct().to_pyarrow()["c"].to_pylist())

    def _ordered(self, rows: Any) -> Any:
        """The steps of every user in order, those after a departure too, without rows that come again."""
        if not self.asked.keep_duplicates:
            rows = rows.distinct()
        rows = rows.mutate(k=rows.c.cases(*((name, i) for i, name in enumerate(self.names))))
        order = ibis.window(group_by="u", order_by=["t", "d", "k", "y", "p"])
        rows = rows.mutate(place=ibis.row_number().over(order))
        left = ibis.cases((rows.d == 2, rows.place)).min().over(ibis.window(group_by="u"))
        return rows.mutate(late=(rows.place > left).fill_null(False))

    def _recent(self, time: Any) -> Any:
        """Whether a time is too near the end of the log for a silence after it."""
        if self.span is None:
            return ibis.literal(False)
        until = self.last - (timedelta(seconds=self.span) if self.clock else self.span)
        return time > ibis.literal(until, type=time.type())

    def _standing(self, rows: Any) -> Any:
        """The steps that stand, in order: whether each is the last or recent, its number, and how its user ends."""
        steps = self._ordered(rows)
        steps = steps.filter(~steps.late)
        whole = ibis.window(group_by="u")
        steps = steps.mutate(final=steps.place == steps.place.max().over(whole))
        steps = steps.left_join(self.present, "u")
        recent = self._recent(steps.t)
        flagged, seen_later = (steps.d == 2, LOGGED), (steps.t < steps.until, KNOWN)
        ends = ibis.cases(flagged, seen_later, (steps.d == 1, PENDING), else_=KNOWN)
        if self.span is not None:
            ends = ibis.cases(flagged, (recent, PENDING), seen_later, else_=SILENT)
        return steps.mutate(
            recent=recent,
            ends=ibis.cases((steps.final, ends)).max().over(whole),
            code=2 * (steps.k + len(self.names) * recent.cast("int64")) + steps.y.cast("int64"),
        )

    def _look_closer(self) -> None:
        """Count the events that come twice, late or at the same time."""
        rows, steps = self.used_rows, self._ordered(self.used_rows)
        kept = steps.filter(~steps.late)
        n, late = (steps.aggregate(n=steps.count(), late=steps.late.sum()).to_pyarrow().to_pylist()[0]).values()
        if self.used > n:
            same = rows.group_by([f"source_{name}" for name in self.types]).aggregate(n=rows.count())
            self._decide(DUPLICATE, "rejected", self.used - n, same.filter(same.n > 1), True)
        self._decide(LATE, "rejected", late, steps.filter(steps.late), True)
        together = kept.group_by(["u", "t"]).aggregate(n=kept.count())
        together = together.filter(together.n > 1)
        ties = together.aggregate(n=together.n.sum()).to_pyarrow().to_pylist()[0]["n"]
        if ties:
            first = together.order_by(["u", "t"]).limit(EXAMPLES).to_pyarrow().to_pylist()
            examples = tuple(f"user {row['u']}, {row['n']} events at {_shown(row['t'])}" for row in first)
            self.irregularities.append(Irregularity(*TIES, ties, examples))
        people = rows.group_by("u").aggregate(t=rows.t.max(), d=rows.d.max())
        people = people.join(self.present, "u")
        later = people.filter((people.d < 2) & (people.t < people.until) & ~self._recent(people.t))
        count = int(later.count().execute())
        if count:
            first = later.order_by("u").limit(EXAMPLES).to_pyarrow().to_pylist()
            examples = tuple(f"user {row['u']}, at {_shown(row['until'])}" for row in first)
            self.irregularities.append(Irregularity(*SEEN_LATER, count, examples))

    def expression(self) -> Any:
        """The histogram: a row for all users with the same counts, the same end and the same last step."""
        steps = self._standing(self.used_rows)
        codes = 2 * len(self.names)
        columns = range(codes if self.span is None else 2 * codes)
        counts = {f"n{code}": (steps.code == code).cast("int64").sum() for code in columns}
        last = ibis.cases((steps.final & (steps.ends > KNOWN), steps.code % codes))
        people = steps.group_by("u").aggregate(**counts, ends=steps.ends.max(), last=last.max())
        return people.group_by([*counts, "ends", "last"]).aggregate(users=people.count())

    def histogram(self, most_bytes: int) -> LogSummary:
        """The distinct histories of the log, in a table of at most so many bytes."""
        expression, k = self.expression(), len(self.names)
        rows = expression.to_pyarrow()
        check_size(rows.num_rows, k, most_bytes)
        steps = np.zeros((rows.num_rows, 4 * k), np.int64)
        for code in range(2 * k if self.span is None else 4 * k):
            steps[:, code] = rows[f"n{code}"].to_numpy()
        return LogSummary(
            names=self.names,
            steps=steps.reshape(-1, 2, k, 2),
            ends=rows["ends"].to_numpy().astype(np.int64),
            last=rows["last"].fill_null(0).to_numpy().astype(np.int64),
            users=rows["users"].to_numpy().astype(np.int64),
            events=self.events,
            first=_shown(self.first),
            final=_shown(self.last),
            irregularities=tuple(self.irregularities),
        )

    def write_rejects(self, path: Path) -> None:
        """Refused: what is rejected stays in the database."""
        raise InputError(f"rejects is given, but it is for files and frames; {self.name} can be asked for its rows.")

    def episodes(self, users: int) -> Iterator[dict[str, Any]]:
        """All steps in order, of so many users at a time."""
        people = self.used_rows.select("u").distinct()
        people = people.mutate(number=ibis.row_number().over(ibis.window(order_by="u")))
        people = people.filter(people.number % users == 0).order_by("u")
        starts = [ibis.literal(u, type=people.u.type()) for u in people.to_pyarrow()["u"].to_pylist()]
        for i, start in enumerate(starts):
            rows = self.used_rows
            inside = rows.u >= start if i == len(starts) - 1 else (rows.u >= start) & (rows.u < starts[i + 1])
            part = self._steps_in_order(rows.filter(inside)).to_pyarrow()
            arrays = {name: part[name].to_numpy() for name in part.column_names}
            yield arrays | {"user": i * users + np.cumsum(arrays["step"] == 0) - 1}

    def _steps_in_order(self, rows: Any) -> Any:
        steps = self._standing(rows)
        gone = steps.final & (steps.ends >= LOGGED)
        outcome = ibis.cases((steps.y & gone, CLICK_DEPART), (steps.y, CLICK), (gone, DEPART), else_=STAY)
        steps = steps.mutate(
            step=steps.place.cast("int64"),
            category=steps.k,
            outcome=outcome,
            propensity=steps.p.fill_null(float("nan")),
            pending=(steps.ends == PENDING) & (steps.final | steps.recent),
        )
        return steps.order_by(["u", "step"]).select("step", "category", "outcome", "propensity", "pending")


def _shown(moment: Any) -> str:
    """A moment as text, in UTC."""
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return f"{moment:.15g}" if isinstance(moment, float) else str(moment)
