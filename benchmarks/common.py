"""Timing, and the table of results."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from rich.table import Table

REPEATS = 7


@dataclass(frozen=True)
class Row:
    """One measurement: its name, the value and the limit it must satisfy."""

    name: str
    value: float
    unit: str
    limit: float
    at_least: bool = True
    note: str = ""

    @property
    def passed(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def cpu_seconds(*works: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Median CPU time of each of `works`, run alternately after one warm-up."""
    for work in works:
        work()
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, mine in zip(works, times, strict=True):
            started = time.process_time()
            work()
            mine.append(time.process_time() - started)
    return [median(mine) for mine in times]


def wall_seconds(*works: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Smallest wall-clock time of each of `works`, run alternately: for threads."""
    best = [float("inf")] * len(works)
    for _ in range(repeats):
        for i, work in enumerate(works):
            started = time.perf_counter()
            work()
            best[i] = min(best[i], time.perf_counter() - started)
    return best


def table(title: str, rows: Sequence[Row]) -> Table:
    shown = Table(title=title, title_justify="left")
    for name, justify in (
        ("benchmark", "left"),
        ("measured", "right"),
        ("limit", "right"),
        ("", "left"),
        ("note", "left"),
    ):
        shown.add_column(name, justify=justify)  # type: ignore[arg-type]
    for row in rows:
        sign = "≥" if row.at_least else "≤"
        mark = "[green]passed" if row.passed else "[red]failed"
        shown.add_row(row.name, f"{row.value:.3g} {row.unit}", f"{sign} {row.limit:g}", mark, row.note)
    return shown
