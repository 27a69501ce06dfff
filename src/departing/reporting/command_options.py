"""Names and options in the commands of a report."""

import os
import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

from departing.data.log import Log


def command_options(
    types: list[int] | None,
    bootstrap: int | None,
    seed: int,
    half_life: str | float | timedelta | None = None,
) -> tuple[str, ...]:
    """Options of the command that are not the defaults."""
    options = [] if types is None else [f"--types {','.join(map(str, types))}"]
    options += [] if bootstrap is None else [f"--bootstrap {bootstrap}"]
    if half_life is not None:
        text = f"{half_life.total_seconds():.15g} seconds" if isinstance(half_life, timedelta) else str(half_life)
        options.append(f"--half-life {shlex.quote(text)}")
    return (*options, f"--seed {seed}") if seed else tuple(options)


def log_names(log: Log) -> dict[str, Any]:
    """Names of the log: in commands its path, or a placeholder for a frame; for readers that of the file."""
    source = log.source.source
    if isinstance(source, str | os.PathLike):
        return {"log_name": os.fspath(source), "source_name": Path(source).name or os.fspath(source)}
    return {"log_name": "events.csv", "source_name": log.report.source}
