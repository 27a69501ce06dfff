"""The report of reading a log: what was in it, and what was decided about everything irregular."""

from dataclasses import dataclass

import numpy as np

from departing.model.counts import Integers
from departing.model.instance import CLICK, CLICK_DEPART

EXAMPLES = 3

CENSORED = 0.85  # share of users above which it is said


@dataclass(frozen=True)
class Irregularity:
    """One kind of irregular event: what it is, what was decided, how many there are, and a few of them."""

    kind: str
    decision: str
    count: int
    examples: tuple[str, ...] = ()
    rejected: bool = False


@dataclass(frozen=True)
class LogReport:
    """What reading a log found: how many `events` were read and `used`, whose they are, and all `irregularities`.

    `departed` users left, as logged or by being `silent` for long; `censored` ones did not, and of these `pending`
    is the number of whom it is not known whether they stayed after the last step. `first` and `last` are the times
    between which the log reaches. `notes` are sentences about what to mind.
    """

    source: str
    events: int
    used: int
    users: int
    departed: int
    silent: int
    censored: int
    pending: int
    first: str
    last: str
    irregularities: tuple[Irregularity, ...]
    notes: tuple[str, ...]

    @property
    def rejected(self) -> int:
        """The number of events that were not used."""
        return self.events - self.used

    def __str__(self) -> str:
        lines = [
            f"{self.events:,} events from {self.source}, {self.first} to {self.last}",
            f"{self.used:,} used, {self.rejected:,} rejected",
            f"{self.users:,} users: {self.departed:,} departed ({self.silent:,} of them by silence), "
            f"{self.censored:,} censored ({self.pending:,} of them with the answer to the last step not known)",
        ]
        for each in self.irregularities:
            lines.append(f"  {each.count:,} × {each.kind}: {each.decision}")
            lines += [f"      {example}" for example in each.examples]
        return "\n".join([*lines, *self.notes])


def notes_on(counts: Integers, multiplicity: Integers, names: tuple[str, ...], report: LogReport) -> tuple[str, ...]:
    """Sentences about what to mind in a log that was read."""
    found = []
    if report.rejected > report.used:
        found.append(f"More events were rejected ({report.rejected:,}) than used ({report.used:,}).")
    if report.users == 1:
        found.append("There is only one user.")
    if report.censored == report.users:
        found.append("All users are censored: nobody departed, so nothing tells what makes users leave.")
    elif report.censored > CENSORED * report.users:
        found.append(
            f"{report.censored / report.users:.0%} of users are censored, so little is known of what makes users "
            "leave; a shorter silence (inactive_after) or a longer log would tell more."
        )
    if len(names) == 1:
        found.append("There is only one category.")
    total = np.tensordot(multiplicity, counts, axes=1)
    clicks = total[:, CLICK] + total[:, CLICK_DEPART]
    for what, which in (
        ("never shown", total.sum(axis=1) == 0),
        ("never clicked", (clicks == 0) & (total.sum(axis=1) > 0)),
        ("always clicked", (clicks == total.sum(axis=1)) & (clicks > 0)),
    ):
        mine = [repr(name) for name, is_so in zip(names, which, strict=True) if is_so]
        if mine:
            shown = ", ".join(mine[:5]) + (f" and {len(mine) - 5} more" if len(mine) > 5 else "")
            found.append(f"{what.capitalize()}: {shown}.")
    return tuple(found)
