"""Execution of the checks; an interrupted run resumes where it stopped."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from departing import __version__
from departing.model.files import atomic_write
from departing.model.progress import Progress
from departing.paper.item import Finding, Findings, Item, Scale


def check_all(items: Sequence[Item], scale: Scale, checkpoint: Path, progress: Progress) -> Findings:
    """Check all items; findings are saved to `checkpoint`, and reused if it is of the same release and scale.

    An item without a check has a finding with its recorded verdict and its note.
    """
    run = {"version": __version__, "quick": scale.quick, "movielens": str(scale.movielens)}
    known = _read(checkpoint, run)
    for done, item in enumerate(items, 1):
        if item.check is None:
            known[item.key] = Finding(item.verdict, item.note)
        elif item.key not in known:
            started = time.perf_counter()
            known[item.key] = replace(item.check(scale), seconds=time.perf_counter() - started)
            document = {"run": run, "findings": {key: asdict(finding) for key, finding in known.items()}}
            with atomic_write(checkpoint) as part:
                part.write_text(json.dumps(document), encoding="utf-8")
        progress(done, len(items))
    return [(item, known[item.key]) for item in items]


def _read(checkpoint: Path, run: dict[str, object]) -> dict[str, Finding]:
    """Findings of an earlier run of the same kind; none if the file is missing or damaged."""
    try:
        document = json.loads(checkpoint.read_text(encoding="utf-8"))
        if document["run"] != run:
            return {}
        return {key: Finding(**finding) for key, finding in document["findings"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
