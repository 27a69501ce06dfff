"""What became of a study: a file for every finished run, one table of all of them, and a summary."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from departing.model.errors import InputError
from departing.model.files import atomic_write, write_document
from departing.model.instance import Floats
from departing.simulation.regret_curve import Slope, slope
from departing.studies.definition import Job, Study, load_study

Record = dict[str, Any]  # what a run or an instance came to, as JSON has it

RESULTS = {
    "study": "VARCHAR",
    "instance": "VARCHAR",
    "group": "VARCHAR",
    "learner": "VARCHAR",
    "seed": "BIGINT",
    "users": "BIGINT",
    "regret": "DOUBLE",
    "realised": "DOUBLE",
    "clicks": "BIGINT",
    "optimum": "DOUBLE",
    "fixed_value": "DOUBLE",
    "final": "BOOLEAN",
}
TIMINGS = {
    "instance": "VARCHAR",
    "group": "VARCHAR",
    "learner": "VARCHAR",
    "seed": "BIGINT",
    "engine": "VARCHAR",
    "seconds": "DOUBLE",
}
FORMAT = "FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false"
NOTHING = 0.5  # clicks: regret below this, of all users together, has no slope and is no yardstick


class Store:
    """The folder of a study: `study.json`, `parts/` with a file for every finished run, and what is made of them."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.parts, self.optima = self.folder / "parts", self.folder / "optima"

    def open(self, study: Study) -> None:
        """Make the folder ready for `study`; one that holds something else is refused."""
        definition = self.folder / "study.json"
        try:
            held = (
                [name for name in os.listdir(self.folder) if not name.startswith(".")] if self.folder.exists() else []
            )
            if held and not definition.exists():
                raise InputError(f"{str(self.folder)!r} is not empty and holds no study; choose another folder.")
            if definition.exists():
                self._check_same(load_study(definition), study)
            for folder in (self.parts, self.optima):
                folder.mkdir(parents=True, exist_ok=True)
                for left in folder.glob(".*.json"):  # half written when a run was killed
                    left.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"Cannot write {str(self.folder)!r}: {error.strerror or error}.") from error
        write_document(definition, "study", study.to_dict())

    def _check_same(self, held: Study, study: Study) -> None:
        """Raise unless the two have a run in common, so that one is the other with more or less of something."""
        if not {job.key for job in held.jobs} & {job.key for job in study.jobs}:
            raise InputError(
                f"{str(self.folder)!r} holds another study, {held.title!r}, with no run in common; "
                "choose another folder."
            )

    def done(self, folder: Path) -> set[str]:
        """The keys of what is finished in `parts` or `optima`."""
        return {path.stem for path in folder.glob("[!.]*.json")}

    def keep(self, folder: Path, key: str, record: Record) -> None:
        """Write a record, whole or not at all."""
        with atomic_write(folder / f"{key}.json") as part:
            part.write_text(json.dumps(record), encoding="utf-8")

    def record(self, folder: Path, key: str) -> Record:
        """The record of a run or an instance."""
        path = folder / f"{key}.json"
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"Cannot read {str(path)!r}: {error}; remove it and start the study again.") from error
        assert isinstance(record, dict)
        return record

    def gather(self, study: Study) -> "Results":
        """Write `results.parquet` and `timings.parquet` from all finished runs of `study`, in its order."""
        done = self.done(self.parts)
        runs = [(job, self.record(self.parts, job.key)) for job in study.jobs if job.key in done]
        _write(
            self.folder / "results.parquet",
            RESULTS,
            [row for job, record in runs for row in _rows(study, job, record)],
        )
        _write(
            self.folder / "timings.parquet",
            TIMINGS,
            [
                (job.case.name, job.case.group, job.learner.name, job.seed, record["engine"], record["seconds"])
                for job, record in runs
            ],
        )
        return Results(study, tuple(runs))


def _rows(study: Study, job: Job, record: Record) -> Iterable[tuple[Any, ...]]:
    head = (study.title, job.case.name, job.case.group, job.learner.name, job.seed)
    regret = record["regret"] or [None] * len(record["users"])
    for users, lost, realised, clicks in zip(
        record["users"], regret, record["realised"], record["clicks"], strict=True
    ):
        yield (*head, users, lost, realised, clicks, record["optimum"], record["fixed_value"], users == study.users)


def _write(path: Path, columns: dict[str, str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Write rows to a Parquet file, the same bytes for the same rows."""
    table = {name: np.array([row[i] for row in rows], _dtype(form)) for i, (name, form) in enumerate(columns.items())}
    chosen = ", ".join(f'"{name}"::{form} AS "{name}"' for name, form in columns.items())
    with atomic_write(path) as part, duckdb.connect() as database:
        database.execute("SET threads = 1")
        database.register("gathered", table)
        target = str(part).replace("'", "''")
        try:
            database.execute(f"COPY (SELECT {chosen} FROM gathered) TO '{target}' ({FORMAT})")
        except duckdb.Error as error:
            raise InputError(f"Cannot write {str(path)!r}: {_reason(error)}.") from error


def _reason(error: duckdb.Error) -> str:
    """What went wrong with a file, in the words of the system where the database tells its number."""
    number = re.search(r'"errno":"(\d+)"', str(error))
    return os.strerror(int(number[1])) if number else str(error).splitlines()[0]


def _dtype(form: str) -> Any:
    return {"VARCHAR": object, "BIGINT": np.int64, "DOUBLE": np.float64, "BOOLEAN": np.bool_}[form]


@dataclass(frozen=True, eq=False)
class Curves:
    """Regret of the runs of one learner in one group: `regret[n, t]` at `users[t]`.

    `instance[n]` tells which runs are of the same instance; `fixed_loss` is what the best fixed category loses with
    one user, on average over the runs.
    """

    learner: str
    users: Floats
    regret: Floats
    instance: tuple[str, ...]
    fixed_loss: float
    seconds: float

    @property
    def final(self) -> Floats:
        """The regret of every run at its end."""
        return np.asarray(self.regret[:, -1])

    @property
    def share(self) -> float:
        """Regret at the end as a share of what the best fixed category loses; not a number if that is nothing."""
        lost = self.fixed_loss * float(self.users[-1])
        return float(self.final.mean()) / lost if lost > NOTHING else nan

    @property
    def slope(self) -> Slope:
        """How regret grows over the last two decades of users, on log-log axes, in the runs that have any."""
        last, grown = float(self.users[-1]), self.regret[self.final > NOTHING]
        if not len(grown) or (self.users >= last / 100).sum() < 2:
            return Slope(nan, nan)
        return slope(self.users, grown, last / 100, last)


@dataclass(frozen=True, eq=False)
class Results:
    """All finished runs of a study."""

    study: Study
    runs: tuple[tuple[Job, Record], ...]

    def curves(self, group: str) -> list[Curves]:
        """The curves of a group, one for every learner, in the order of the study."""
        found = []
        for learner in self.study.learners:
            runs = [(job, record) for job, record in self.runs if job.learner == learner and job.case.group == group]
            if runs:
                found.append(
                    curves_of(learner.name, [record for _, record in runs], [job.case.name for job, _ in runs])
                )
        return found

    def summary(self) -> list[dict[str, Any]]:
        """For every group and learner what its runs came to, as plain values."""
        return [{"group": group} | summed_up(curves) for group in self.study.groups for curves in self.curves(group)]


def curves_of(learner: str, records: Sequence[Record], instances: Sequence[str]) -> Curves:
    """The curves of these runs of a learner; realised regret where the learner does not tell its policies."""
    return Curves(
        learner,
        np.array(records[0]["users"], np.float64),
        np.array([record["regret"] or record["realised"] for record in records], np.float64),
        tuple(instances),
        float(np.mean([record["optimum"] - record["fixed_value"] for record in records])),
        float(np.mean([record["seconds"] for record in records])),
    )


def summed_up(curves: Curves) -> dict[str, Any]:
    """What the runs of a learner came to, as plain values; None where there is nothing to tell."""
    steep = curves.slope
    return {
        "learner": curves.learner,
        "runs": len(curves.final),
        "median": float(np.median(curves.final)),
        "mean": float(curves.final.mean()),
        "max": float(curves.final.max()),
        "share_of_fixed_loss": None if np.isnan(curves.share) else curves.share,
        "slope": None if np.isnan(steep.value) else steep.value,
        "slope_stderr": None if np.isnan(steep.stderr) else steep.stderr,
        "seconds": curves.seconds,
    }
