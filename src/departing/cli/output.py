"""Terminal and JSON output, and progress bars."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


def new_console() -> "Console":
    """Console on stdout."""
    from rich.console import Console

    return Console()


def print_json(values: dict[str, Any], **files: Path | None) -> None:
    """Print one JSON object, with the paths of the files that were written."""
    print(json.dumps(values | {name: str(path) for name, path in files.items() if path is not None}, allow_nan=False))


def print_saved(*paths: Path | None) -> None:
    """Print the paths of the files that were written."""
    for path in filter(None, paths):
        print(f"Saved to {path}")


class ProgressBar:
    """Progress of a computation on a terminal; without `bars`, no output."""

    def __init__(self, bars: "Bars | None" = None, task: "TaskID | None" = None) -> None:
        self._bars, self._task = bars, task

    def advance(self, steps: int) -> None:
        """Add finished steps."""
        if self._bars is not None and self._task is not None:
            self._bars.advance(self._task, steps)

    def update(self, done: int, total: int) -> None:
        """Set the number of finished steps and the total."""
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=done, total=total)


@contextmanager
def progress(label: str, quiet: bool, total: int | None = None) -> Iterator[ProgressBar]:
    """Progress bar on stderr if it is a terminal and the command is not `quiet`."""
    if quiet or not sys.stderr.isatty():
        yield ProgressBar()
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        yield ProgressBar(bars, bars.add_task(label, total=total))
