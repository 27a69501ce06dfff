"""Results of a study: one file per finished run, tables of all runs, and statistics by learner."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np

from departing.formatting import finite_or_none, format_clicks
from departing.model.errors import InputError
from departing.model.files import atomic_write, write_document
from departing.model.instance import CLICKS, Floats
from departing.model.tables import quoted, write_table
from departing.simulation.regret_curve import Slope, slope
from departing.simulation.run import Run
from departing.studies.definition import Job, Study, bound_key, load_study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]  # result of a run or optimum of an instance, as in its JSON file

RUN_COLUMNS = {"instance": "VARCHAR", "group": "VARCHAR", "learner": "VARCHAR", "seed": "BIGINT"}
RESULT_COLUMNS = {
    "study": "VARCHAR",
    **RUN_COLUMNS,
    "users": "BIGINT",
    "regret": "DOUBLE",
    "realised": "DOUBLE",
    "clicks": "BIGINT",
    "unit": "VARCHAR",
    "optimum": "DOUBLE",
    "fixed_value": "DOUBLE",
    "final": "BOOLEAN",
}
TIMING_COLUMNS = {**RUN_COLUMNS, "engine": "VARCHAR", "seconds": "DOUBLE"}
_DTYPES: dict[str, Any] = {"VARCHAR": object, "BIGINT": np.int64, "DOUBLE": np.float64, "BOOLEAN": np.bool_}
NEGLIGIBLE_REGRET = 0.5  # clicks of all users together: less than one click, so neither a slope nor a reference


class ResultStore:
    """Folder of a study: `study.json`, `parts/` with one file per finished run, and the tables made of them."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.parts, self.optima, self.bounds = (self.folder / name for name in ("parts", "optima", "bounds"))

    def open(self, study: Study) -> None:
        """Prepare the folder for `study`; a folder with other contents is rejected."""
        definition = self.folder / "study.json"
        try:
            occupied = self.folder.exists() and any(name[0] != "." for name in os.listdir(self.folder))
            if occupied and not definition.exists():
                raise InputError(f"{str(self.folder)!r} is not empty and holds no study; choose another folder.")
            if definition.exists():
                self._check_same(load_study(definition), study)
            for folder in (self.parts, self.optima, *([self.bounds] if study.bound else [])):
                folder.mkdir(parents=True, exist_ok=True)
                for partial in folder.glob(".*.json"):  # left by a process that was killed
                    partial.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"Cannot write {str(self.folder)!r}: {error.strerror or error}.") from error
        write_document(definition, "study", study.to_dict())

    def _check_same(self, stored: Study, study: Study) -> None:
        """Raise unless the studies share a run, which is so if one extends the other."""
        if not {job.key for job in stored.jobs} & {job.key for job in study.jobs}:
            raise InputError(
                f"{str(self.folder)!r} holds another study, {stored.title!r}, with no run in common; "
                "choose another folder."
            )

    def finished(self, folder: Path) -> set[str]:
        """Keys of the records in `parts`, `optima` or `bounds`."""
        return {path.stem for path in folder.glob("[!.]*.json")}

    def write(self, folder: Path, key: str, record: Record) -> None:
        """Write a record atomically."""
        with atomic_write(folder / f"{key}.json") as part:
            part.write_text(json.dumps(record), encoding="utf-8")

    def read(self, folder: Path, key: str) -> Record:
        """Read the record of a run or an instance."""
        path = folder / f"{key}.json"
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"Cannot read {str(path)!r}: {error}; remove it and start the study again.") from error
        assert isinstance(record, dict)
        return record

    def gather(self, study: Study) -> "StudyResults":
        """Write `results.parquet` and `timings.parquet` from all finished runs of `study`, in its order."""
        finished = self.finished(self.parts)
        runs = [(job, self.read(self.parts, job.key)) for job in study.jobs if job.key in finished]
        results = [row for job, record in runs for row in _result_rows(study, job, record)]
        timings = [(*_run_cells(job), record["engine"], record["seconds"]) for job, record in runs]
        _write_parquet(self.folder / "results.parquet", RESULT_COLUMNS, results)
        _write_parquet(self.folder / "timings.parquet", TIMING_COLUMNS, timings)
        return StudyResults(study, tuple(runs), self._bounds(study) if study.bound else {})

    def _bounds(self, study: Study) -> dict[str, Record]:
        """Lower bounds of the instances by name."""
        finished = self.finished(self.bounds)
        keys = {case.name: bound_key(case.instance, study.users) for case in study.cases}
        return {name: self.read(self.bounds, key) for name, key in keys.items() if key in finished}


def _run_cells(job: Job) -> tuple[str, str, str, int]:
    return job.case.name, job.case.group, job.learner.name, job.seed


def _result_rows(study: Study, job: Job, record: Record) -> Iterable[tuple[Any, ...]]:
    checkpoints = record["users"]
    columns = (checkpoints, record["regret"] or [None] * len(checkpoints), record["realised"], record["clicks"])
    for cells in zip(*columns, strict=True):
        final = cells[0] == study.users
        yield (
            study.title,
            *_run_cells(job),
            *cells,
            job.case.instance.unit,
            record["optimum"],
            record["fixed_value"],
            final,
        )


def _write_parquet(path: Path, columns: dict[str, str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Write rows to a Parquet file; equal rows give equal bytes."""
    table = {
        name: np.array([row[i] for row in rows], _DTYPES[form]) for i, (name, form) in enumerate(columns.items())
    }
    chosen = ", ".join(f"{quoted(name)}::{form} AS {quoted(name)}" for name, form in columns.items())
    with duckdb.connect(config={"threads": 1}) as database:
        database.register("gathered", table)
        write_table(database, f"SELECT {chosen} FROM gathered", path)


@dataclass(frozen=True, eq=False)
class Curves:
    """Regret of the runs of one learner in one group.

    Attributes
    ----------
    learner : str
        Name of the learner.
    users : ndarray of shape (T,)
        Checkpoints, in users.
    regret : ndarray of shape (N, T)
        Regret of every run at every checkpoint, in `unit`.
    instance : tuple of str
        Name of the instance of every run.
    fixed_loss : float
        Loss of the best fixed category per user, mean over runs.
    seconds : float
        Mean duration of a run.
    bound : ndarray of shape (T,), optional
        Lower bound on the expected regret of every learner at every checkpoint, mean over runs; None if it was not
        computed.
    unit : str, default "clicks"
        Unit of regret.
    """

    learner: str
    users: Floats
    regret: Floats
    instance: tuple[str, ...]
    fixed_loss: float
    seconds: float
    bound: Floats | None = None
    unit: str = CLICKS

    @classmethod
    def of_run(cls, learner: str, run: Run, instance: str, fixed_loss: float) -> "Curves":
        """Regret of a single run; its duration is not known."""
        users, unit = run.checkpoints.astype(np.float64), run.unit
        return cls(learner, users, run.regret[None], (instance,), fixed_loss, 0.0, unit=unit)

    @property
    def final(self) -> Floats:
        """Final regret of every run."""
        return np.asarray(self.regret[:, -1])

    @property
    def share(self) -> float:
        """Mean final regret as a share of the loss of the best fixed category; NaN if that is negligible."""
        fixed_loss = self.fixed_loss * float(self.users[-1])
        return float(self.final.mean()) / fixed_loss if fixed_loss > NEGLIGIBLE_REGRET else nan

    @property
    def slope(self) -> Slope:
        """Slope of regret on log-log axes over the last two decades of users, of runs with regret."""
        last, growing = float(self.users[-1]), self.regret[self.final > NEGLIGIBLE_REGRET]
        if not len(growing) or (self.users >= last / 100).sum() < 2:
            return Slope(nan, nan)
        return slope(self.users, growing, last / 100, last)

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of the runs as JSON values; None where undefined."""
        return {
            "learner": self.learner,
            "runs": len(self.final),
            "median": float(np.median(self.final)),
            "mean": float(self.final.mean()),
            "max": float(self.final.max()),
            "share_of_fixed_loss": finite_or_none(self.share),
            "slope": finite_or_none(self.slope.value),
            "slope_stderr": finite_or_none(self.slope.stderr),
            "bound": None if self.bound is None else float(self.bound[-1]),
            "seconds": self.seconds,
            "unit": self.unit,
        }


@dataclass(frozen=True, eq=False)
class StudyResults:
    """All finished runs of a study."""

    study: Study
    runs: tuple[tuple[Job, Record], ...]
    bounds: dict[str, Record] = field(default_factory=dict)  # of instances by name, if the study has them

    def curves(self, group: str) -> list[Curves]:
        """Regret in a group, for every learner in the order of the study."""
        curves = []
        for learner in self.study.learners:
            runs = [(job, record) for job, record in self.runs if job.learner == learner and job.case.group == group]
            if runs:
                instances, unit = [job.case.name for job, _ in runs], runs[0][0].case.instance.unit
                known = all(name in self.bounds for name in instances)
                bounds = [self.bounds[name] for name in instances] if known else None
                curves.append(learner_curves(learner.name, [record for _, record in runs], instances, bounds, unit))
        return curves

    def statistics(self) -> list[dict[str, Any]]:
        """Return the statistics of every group and learner as JSON values."""
        return [
            {"group": group} | curves.statistics() for group in self.study.groups for curves in self.curves(group)
        ]

    def summary(self) -> str:
        """Return an overview: for every group and learner, its mean final regret."""
        lines = [f"{self.study.title}: {len(self.runs)} of {len(self.study.jobs)} runs finished"]
        for row in self.statistics():
            regret = f"mean regret {format_clicks(row['mean'])} {row['unit']} in {row['runs']} runs"
            bound = "" if row["bound"] is None else f", lower bound {format_clicks(row['bound'])}"
            lines.append(f"{row['group']}, {row['learner']}: {regret}{bound}")
        return "\n".join(lines)

    def plot(self, group: str | None = None, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Plot the regret of all learners in a group, the first by default; write the figure to `path` if given."""
        from departing.plotting.figures import save
        from departing.studies.plot import draw_regret

        group = self.study.groups[0] if group is None else group
        if not (curves := self.curves(group)):
            raise InputError(
                f"group is {group!r}; expected one of {', '.join(self.study.groups)} with finished runs."
            )
        return save(draw_regret(f"{self.study.title}: {group}", curves), path)


def learner_curves(
    learner: str,
    records: Sequence[Record],
    instances: Sequence[str],
    bounds: Sequence[Record] | None = None,
    unit: str = CLICKS,
) -> Curves:
    """Regret of runs of one learner in a unit; realised regret for learners that do not expose their policies.

    `bounds` are the lower bounds of the instances of the runs, with a `curve` of users and clicks each.
    """
    users = np.array(records[0]["users"], np.float64)
    return Curves(
        learner,
        users,
        np.array([record["regret"] or record["realised"] for record in records], np.float64),
        tuple(instances),
        float(np.mean([record["optimum"] - record["fixed_value"] for record in records])),
        float(np.mean([record["seconds"] for record in records])),
        None if bounds is None else np.mean([bound_at(bound, users) for bound in bounds], axis=0),
        unit,
    )


def bound_at(bound: Record, users: Floats) -> Floats:
    """Lower bound at numbers of users: that of the largest number up to each for which it was computed.

    >>> bound_at({"curve": [[10, 1.5], [100, 4.0]]}, np.array([5, 10, 50, 200])).tolist()
    [0.0, 1.5, 1.5, 4.0]
    """
    computed, clicks = np.array(bound["curve"]).T
    return np.append(0.0, clicks)[np.searchsorted(computed, users, side="right")]
