"""A claim, and what checking it found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

HOLDS, FAILS, SEEN, SKIPPED = "holds", "does not hold", "measured", "skipped"


@dataclass(frozen=True)
class Scale:
    """How much to do: a `quick` look or all of it, and where film ratings are, if anywhere."""

    quick: bool = False
    movielens: Path | None = None

    def of(self, whole: int, quick: int) -> int:
        """How many of something."""
        return quick if self.quick else whole


@dataclass(frozen=True)
class Finding:
    """What a check found: a `verdict` (HOLDS, FAILS, SEEN or SKIPPED), a `result` in words, and more to look at.

    `table` has the names of its columns in the first row. `picture` is an SVG with its `caption`.
    """

    verdict: str
    result: str
    table: list[list[str]] = field(default_factory=list)
    picture: str = ""
    caption: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, holds: bool, result: str, table: Sequence[Sequence[object]] = ()) -> "Finding":
        """A claim that holds or does not."""
        return cls(HOLDS if holds else FAILS, result, as_text(table))

    @classmethod
    def seen(cls, result: str, table: Sequence[Sequence[object]] = ()) -> "Finding":
        """Something that was measured and is no claim."""
        return cls(SEEN, result, as_text(table))

    def with_picture(self, picture: str, caption: str) -> "Finding":
        """The same, with an SVG to look at."""
        return replace(self, picture=picture, caption=caption)

    def values(self) -> dict[str, Any]:
        """All of it as plain values, but the picture."""
        return {"verdict": self.verdict, "result": self.result, "table": self.table, "seconds": self.seconds}


@dataclass(frozen=True)
class Claim:
    """A claim: a short `key`, `where` it stands, the `claim` itself, and `how` it is checked, by `check`."""

    key: str
    where: str
    claim: str
    how: str
    check: Callable[[Scale], Finding]


def as_text(table: Sequence[Sequence[object]]) -> list[list[str]]:
    """A table with all of its cells as text."""
    return [[str(cell) for cell in row] for row in table]
