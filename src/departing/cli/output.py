"""Terminal and JSON output, and progress bars."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from departing.cli.errors import output_errors

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


def present(
    as_json: bool, values: dict[str, Any], contents: "Iterable[RenderableType]", **files: Path | None
) -> None:
    """Print `values` as one JSON object or `contents` for a reader, with the paths of the files that were written."""
    paths = {name: str(path) for name, path in files.items() if path is not None}
    with output_errors():
        if as_json:
            print(json.dumps(values | paths, allow_nan=False))
            return
        show(*contents)
        for path in paths.values():
            print(f"Saved to {path}")


def show(*contents: "RenderableType") -> None:
    """Print tables, and sentences without markup."""
    from rich.console import Console

    console = Console()
    for content in contents:
        console.print(content, markup=not isinstance(content, str))


def save_files(*files: tuple[Path | None, Callable[[Path], object]]) -> None:
    """Call the function of every file whose path is given."""
    for path, save in files:
        if path is not None:
            save(path)


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

    def show_bounds(self, lower: float, upper: float) -> None:
        """Show the bounds reached so far."""
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, description=f"planning: {lower:.8g} to {upper:.8g}")

    def show_stage(self, stage: str, done: int, total: int) -> None:
        """Set the name of the current stage, its finished steps and their total."""
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, description=stage, completed=done, total=total)


@contextmanager
def progress(label: str, quiet: bool, total: int | None = None) -> Iterator[ProgressBar]:
    """Progress bar on stderr if it is a terminal and the command is not `quiet`."""
    with progress_bars(quiet) as bars:
        yield ProgressBar() if bars is None else ProgressBar(bars, bars.add_task(label, total=total))


@contextmanager
def progress_bars(quiet: bool, with_status: bool = False) -> "Iterator[Bars | None]":
    """Progress bars on stderr, removed at the end; None if it is not a terminal or the command is `quiet`.

    With a status, every task has a field `status`, a function that returns the text beside its bar.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
    from rich.progress import Progress as Bars
    from rich.text import Text

    class StatusColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(task.fields["status"]())

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(console.width // 8), StatusColumn())
    with Bars(*(columns if with_status else ()), console=console, transient=True) as bars:
        yield bars
