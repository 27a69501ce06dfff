"""Data quality of a log: which rows were used, which were irregular, and how each irregularity was handled."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from departing.formatting import first_few
from departing.html_tables import html_repr
from departing.model.frames import to_frame
from departing.model.histories import Histories
from departing.model.instance import CLICK, CLICK_DEPART

MAX_EXAMPLES = 3  # rows shown per irregularity: enough to recognise a pattern, short enough to print
MAX_SEGMENTS_SHOWN = 5  # in a printed overview
OTHER_CATEGORY = "category is not in `categories`"  # kind of irregularity
TIED = "same time as another event of the user"  # kind of irregularity
TIED_NOTE = 0.05  # a note appears above this share of such events; below it, their order hardly changes any forecast
CENSORED_NOTE = 0.85  # a note appears above this share of censored users; a rule of thumb, it changes no result


@dataclass(frozen=True)
class Irregularity:
    """One kind of irregular row.

    Attributes
    ----------
    kind : str
        What is irregular, such as "clicked is missing".
    decision : str
        How such rows are handled.
    count : int
        Number of rows.
    examples : tuple of str
        Up to three of the rows, in alphabetical order.
    rejected : bool
        True if these rows are left out of the histories.
    """

    kind: str
    decision: str
    count: int
    examples: tuple[str, ...] = ()
    rejected: bool = False


@dataclass(frozen=True)
class LogReport:
    """Data quality report of a log.

    Attributes
    ----------
    source : str
        Name of the source.
    events, used : int
        Number of rows read, and of those that count in the histories.
    users : int
        Number of users with at least one used row.
    departed, inactive : int
        Number of departed users, and of those among them who count as departed because of inactivity.
    censored, pending : int
        Number of users who were not seen to depart, and of those among them of whom it is unknown whether they
        stayed after their last step.
    first, last : str
        Earliest and latest time in the log (UTC for timestamps).
    irregularities : tuple of Irregularity
        All kinds of irregular rows with counts and examples.
    notes : tuple of str
        Sentences about properties of the log that limit inference.
    columns : mapping of str to str
        Column that was used for every field.
    guessed : tuple of str
        Sentences on what was inferred instead of named: columns under their usual names, units and orders of times.
    segments : mapping of str to int
        Number of users of every segment; empty for a log without segments.
    unknown_segment : int
        Number of users whose segment is unknown.
    """

    source: str
    events: int
    used: int
    users: int
    departed: int
    inactive: int
    censored: int
    pending: int
    first: str
    last: str
    irregularities: tuple[Irregularity, ...]
    notes: tuple[str, ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    guessed: tuple[str, ...] = ()
    segments: Mapping[str, int] = field(default_factory=dict)
    unknown_segment: int = 0

    @property
    def rejected(self) -> int:
        """Number of rows that are not used."""
        return self.events - self.used

    @property
    def tied(self) -> float:
        """Share of used events at the same time as another event of the user."""
        return sum(each.count for each in self.irregularities if each.kind == TIED) / max(self.used, 1)

    def summary(self) -> str:
        """Printed overview: rows, users, irregularities with examples, and notes."""
        lines = [
            f"{self.events:,} events from {self.source}, {self.first} to {self.last}",
            f"{self.used:,} used, {self.rejected:,} rejected",
            f"{self.users:,} users: {self.departed:,} departed ({self.inactive:,} by inactivity), "
            f"{self.censored:,} censored ({self.pending:,} with a pending last step)",
        ]
        lines += self._segment_lines()
        for each in self.irregularities:
            lines.append(f"  {each.count:,} × {each.kind}: {each.decision}")
            lines += [f"      {example}" for example in each.examples]
        return "\n".join([*lines, *self.guessed, *self.notes])

    __str__ = summary

    def _segment_lines(self) -> list[str]:
        """One line about segments, if there are any."""
        if not self.segments:
            return []
        n, column = len(self.segments), self.columns.get("segment", "segment")
        largest = sorted(self.segments.items(), key=lambda pair: (-pair[1], pair[0]))
        listed = first_few([f"{name} ({users / self.users:.1%})" for name, users in largest], MAX_SEGMENTS_SHOWN)
        unknown = f"; unknown for {self.unknown_segment:,} users" if self.unknown_segment else ""
        return [f"{n:,} {'segment' if n == 1 else 'segments'} by {column}: {listed}{unknown}"]

    def to_frame(self) -> Any:
        """Return the irregularities as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each kind: kind, decision, count, rejected, example.
        """
        names = ("kind", "decision", "count", "rejected")
        columns = {name: [getattr(each, name) for each in self.irregularities] for name in names}
        return to_frame(columns | {"example": [next(iter(each.examples), "") for each in self.irregularities]})

    def _repr_html_(self) -> str:
        title = f"{self.events:,} events from {self.source}, {self.used:,} used, {self.rejected:,} rejected"
        rows = [
            [each.kind, f"{each.count:,}", each.decision, next(iter(each.examples), "")]
            for each in self.irregularities
        ]
        return html_repr(title, ["irregularity", "rows", "decision", "example"], rows, [*self.guessed, *self.notes])


def quality_notes(histories: Histories, report: LogReport) -> tuple[str, ...]:
    """Sentences about properties of the log that limit inference."""
    notes, names = [], histories.categories or ()
    if report.rejected > report.used:
        notes.append(f"More events were rejected ({report.rejected:,}) than used ({report.used:,}).")
    if report.tied > TIED_NOTE:
        notes.append(
            f"{report.tied:.0%} of events share their time with another event of the same user; their order is "
            "unknown."
        )
    if report.users == 1:
        notes.append("There is only one user.")
    if report.censored == report.users:
        notes.append("All users are censored: departure probabilities cannot be estimated from this log.")
    elif report.censored > CENSORED_NOTE * report.users:
        notes.append(
            f"{report.censored / report.users:.0%} of users are censored, so departure probabilities are uncertain; "
            "a shorter inactivity period (inactive_after) or a longer log helps."
        )
    if len(names) == 1:
        notes.append("There is only one category.")
    total = histories.totals
    shown, clicks = total.sum(axis=1), total[:, CLICK] + total[:, CLICK_DEPART]
    for label, selected in (
        ("Never shown", shown == 0),
        ("Never clicked", (clicks == 0) & (shown > 0)),
        ("Always clicked", (clicks == shown) & (clicks > 0)),
    ):
        chosen = [repr(name) for name, is_so in zip(names, selected, strict=True) if is_so]
        if chosen:
            notes.append(f"{label}: {first_few(chosen, 5)}.")
    return tuple(notes)
