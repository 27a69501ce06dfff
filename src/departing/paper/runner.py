"""Checking claims one after the other, and going on where an earlier run was interrupted."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from departing import __version__
from departing.model.files import atomic_write
from departing.paper.claim import Claim, Finding, Scale

Progress = Callable[[str], None]  # called with the key of a claim that was checked


def check_all(claims: Sequence[Claim], scale: Scale, kept: Path, progress: Progress) -> list[tuple[Claim, Finding]]:
    """Check all claims; what is found is kept in a file on the way, and taken from there if it is of the same run."""
    run = {"version": __version__, "quick": scale.quick, "movielens": str(scale.movielens)}
    known = _read(kept, run)
    found = []
    for claim in claims:
        if claim.key not in known:
            started = time.perf_counter()
            known[claim.key] = replace(claim.check(scale), seconds=time.perf_counter() - started)
            document = {"run": run, "findings": {key: asdict(finding) for key, finding in known.items()}}
            with atomic_write(kept) as part:
                part.write_text(json.dumps(document), encoding="utf-8")
        found.append((claim, known[claim.key]))
        progress(claim.key)
    return found


def _read(kept: Path, run: dict[str, object]) -> dict[str, Finding]:
    """What an earlier run found, if it was the same and its file is whole."""
    try:
        document = json.loads(kept.read_text(encoding="utf-8"))
        if document["run"] != run:
            return {}
        return {key: Finding(**finding) for key, finding in document["findings"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
