"""Items of the paper (statements, definitions, algorithms, …), and findings: the results of checking them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HOLDS, REPAIRED, REFUTED, MEASURED = "holds", "repaired", "refuted", "measured"
IMPLEMENTED, NOT_COMPUTABLE, SKIPPED = "implemented", "not computable", "skipped"
VERDICTS = (HOLDS, REPAIRED, REFUTED, MEASURED, IMPLEMENTED, NOT_COMPUTABLE, SKIPPED)
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
    """Result of a check: a `verdict`, the evidence in a sentence or more, and a table or plot.

    The first row of `table` holds the names of its columns. `plot` is an SVG.
    """

    verdict: str
    evidence: str
    table: list[list[str]] = field(default_factory=list)
    plot: str = ""
    caption: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, holds: bool, evidence: str, table: Table = (), plot: str = "", caption: str = "") -> "Finding":
        """Finding about a statement that holds or is refuted."""
        return cls(HOLDS if holds else REFUTED, evidence, _as_text(table), plot, caption)

    @classmethod
    def repaired(cls, printed: bool, repair: bool, evidence: str, table: Table = ()) -> "Finding":
        """Finding about a slip: the statement does not hold as printed, but does with a small correction."""
        return cls(HOLDS if printed else REPAIRED if repair else REFUTED, evidence, _as_text(table))

    @classmethod
    def measured(cls, evidence: str, table: Table, plot: str = "", caption: str = "") -> "Finding":
        """Finding that answers a question, where there is no statement to check."""
        return cls(MEASURED, evidence, _as_text(table), plot, caption)


Check = Callable[[Scale], Finding]


@dataclass(frozen=True)
class Item:
    """Item of the paper.

    `key` is a short name, `source` the place in the paper, `kind` one of statement, definition, algorithm, … The
    recorded `verdict` is the one that the check gives; items without a check have the verdict "implemented" or "not
    computable". `code` lists the functions or classes that implement or check the item (`module:name`), and `note`
    gives the repair of a statement that does not hold, or the reason why nothing can be computed.
    """

    key: str
    source: str
    kind: str
    statement: str
    verdict: str
    code: tuple[str, ...] = ()
    note: str = ""
    method: str = ""
    check: Check | None = None


Findings = Sequence[tuple[Item, Finding]]
CHECKS: dict[str, Check] = {}


def check(key: str) -> Callable[[Check], Check]:
    """Register a function as the check of an item in `items.toml`; its docstring describes the method."""

    def register(function: Check) -> Check:
        CHECKS[key] = function
        return function

    return register


def _as_text(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in row] for row in table]
