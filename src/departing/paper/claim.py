"""Claims of the paper, and findings: the results of checking them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HOLDS, REFUTED, MEASURED, SKIPPED = "holds", "refuted", "measured", "skipped"
VERDICTS = (HOLDS, REFUTED, MEASURED, SKIPPED)
Table = Sequence[Sequence[object]]


@dataclass(frozen=True)
class Scale:
    """Extent of the checks: `quick` or full, and the path of a MovieLens release, if there is one."""

    quick: bool = False
    movielens: Path | None = None

    def of(self, full: int, quick: int) -> int:
        """Choose a number of instances, users or runs."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Finding:
    """Result of a check: a `verdict`, a sentence or more (`result`), and a table or plot.

    The first row of `table` holds the names of its columns. `plot` is an SVG.
    """

    verdict: str
    result: str
    table: list[list[str]] = field(default_factory=list)
    plot: str = ""
    caption: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, holds: bool, result: str, table: Table = (), plot: str = "", caption: str = "") -> "Finding":
        """Finding about a claim that holds or is refuted."""
        return cls(HOLDS if holds else REFUTED, result, _as_text(table), plot, caption)

    @classmethod
    def measured(cls, result: str, table: Table, plot: str = "", caption: str = "") -> "Finding":
        """Finding that answers a question, where there is no claim to check."""
        return cls(MEASURED, result, _as_text(table), plot, caption)


Check = Callable[[Scale], Finding]


@dataclass(frozen=True)
class Claim:
    """Claim with a short `key`, its `source` in the paper, its `statement`, and the `method` of its `check`."""

    key: str
    source: str
    statement: str
    method: str
    check: Check


Findings = Sequence[tuple[Claim, Finding]]
CHECKS: dict[str, Check] = {}


def claim(key: str) -> Callable[[Check], Check]:
    """Register a function as the check of a claim in `claims.toml`; its docstring describes the method."""

    def register(check: Check) -> Check:
        CHECKS[key] = check
        return check

    return register


def _as_text(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in row] for row in table]
