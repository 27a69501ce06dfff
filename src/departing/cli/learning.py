"""Commands about learners: learn and study."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from departing.cli.common import (
    InstanceArgument,
    Json,
    Seed,
    interrupted,
    load_instance,
    new_console,
    print_json,
    progress,
    stop,
    whole,
)
from departing.model.errors import InputError

if TYPE_CHECKING:
    from departing.simulation.run import Progress

LEARNER_HELP = "bayes, ucb-hybrid, lattice, thompson, …; options after a colon, as in bayes:types=3,explore=none."


def learn(
    file: InstanceArgument,
    learner: Annotated[
        str | None, typer.Argument(metavar="[LEARNER]", help=f"{LEARNER_HELP} Not with --load.", show_default=False)
    ] = None,
    users: Annotated[str, typer.Option(metavar="N", help="How many users come.")] = "1e6",
    seed: Seed = 0,
    runs: Annotated[int, typer.Option(help="So many runs, with one seed after the other.")] = 1,
    open_users: Annotated[int | None, typer.Option(help="How many users are open at once.")] = None,
    delay: Annotated[str, typer.Option(metavar="N", help="Tell what users did when so many more have come.")] = "0",
    picture: Annotated[Path | None, typer.Option(help="Draw regret to this file (.svg, .png or .pdf).")] = None,
    save: Annotated[
        Path | None, typer.Option("--save", "-o", help="Write what was learnt to this file (.json).")
    ] = None,
    load: Annotated[Path | None, typer.Option(help="Go on from what was learnt before.")] = None,
    as_json: Json = False,
) -> None:
    """Let a learner recommend to users of whom it knows nothing, and tell what that costs."""
    from departing.cli.tables import learning as report
    from departing.learning.base import LearnerBase
    from departing.learning.library import learner_from_dict, load_learner, parse_learner
    from departing.model.files import check_writable
    from departing.model.validation import MAX_USERS, check_int, check_seed
    from departing.plotting.figures import FIGURE_SUFFIXES
    from departing.studies.plot import write_plot
    from departing.studies.results import curves_of
    from departing.studies.runner import most_played, optimum_record, play

    if (learner is None) == (load is None):
        raise InputError("Give either a learner, or --load with the file of one.")
    found, n_users = load_instance(file), check_int("users", whole("users", users), most=MAX_USERS)
    seed, runs, late = check_seed(seed), check_int("runs", runs, 1, 10**5), whole("delay", delay)
    if runs > 1 and (save is not None or load is not None):
        raise InputError(f"runs is {runs}; a learner is saved and loaded for one run only.")
    if save is not None:
        check_writable(save, (".json",))
    if picture is not None:
        check_writable(picture, FIGURE_SUFFIXES)
    spec = None if learner is None else parse_learner(learner)
    records = []
    with progress("learning", n_users * runs, as_json) as advance:
        optimum = optimum_record(found, n_users)
        for number in range(seed, seed + runs):
            student: LearnerBase = (
                load_learner(load) if load else learner_from_dict(spec or {}, found, n_users, number)
            )
            run, record = play(student, found, n_users, number, optimum, open_users, late, advance)
            records.append(record)
    curves = curves_of(learner or str(load), records, [file] * runs)
    policy = most_played(run)
    if save is not None:
        student.save(save)
    if picture is not None:
        write_plot(f"{curves.learner} on {Path(file).stem}", [curves], picture)
    rows = report.course_rows(records)
    files = {"saved": save, "picture": picture}
    if as_json:
        values = report.learnt_values(curves, rows, policy) | {"optimum": [optimum["lower"], optimum["upper"]]}
        print_json(values | {name: str(path) for name, path in files.items() if path is not None})
        return
    title = curves.learner + ("" if runs == 1 else f", mean of {runs} runs")
    console = new_console()
    console.print(report.course_table(title, rows))
    for note in report.course_notes(curves, policy) + report.optimum_notes(optimum, rows[-1]):
        console.print(note, markup=False)
    for path in filter(None, files.values()):
        print(f"Saved to {path}")


def study(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="A TOML or JSON file: instances, learners, seeds.")],
    out: Annotated[
        Path | None,
        typer.Option("--save", "-o", help="The folder of the results; the study's name and -results unless told."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="How many runs at once; as many as there are cores.")] = None,
    backend: Annotated[str, typer.Option(help="loky, threading, dask or ray.")] = "loky",
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Of a Dask cluster; one of this machine unless told.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run every learner of a study on every instance with every seed; go on where it was left."""
    from departing.cli.tables.learning import study_tables
    from departing.studies.definition import load_study
    from departing.studies.plot import write_plots
    from departing.studies.runner import run_study

    found = load_study(file)
    folder = out or Path(f"{file.stem}-results")
    try:
        with _study_progress(as_json) as (started, advance):
            results = run_study(
                found,
                folder,
                jobs=jobs,
                backend=backend,
                scheduler=scheduler,
                started=started,
                progress=advance,
            )
    except (KeyboardInterrupt, SystemError) as error:
        if not interrupted(error):
            raise
        stop(f"Interrupted; finished runs are kept in {str(folder)!r}, and the same command goes on from there.")
    pictures = write_plots(results, folder)
    rows = results.summary()
    if as_json:
        print_json({"title": found.title, "folder": str(folder), "summary": rows, "pictures": pictures})
        return
    console = new_console()
    for table in study_tables(found.title, rows):
        console.print(table)
    print(f"Saved to {folder}: results.parquet, timings.parquet, {', '.join(pictures)}")


@contextmanager
def _study_progress(quiet: bool) -> Iterator[tuple[Callable[[int, int], None], "Progress"]]:
    """A bar that learns its length when the runs that are missing are known."""
    if quiet or not sys.stderr.isatty():
        yield lambda missing, runs: None, lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left"))
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("runs", total=None)

        def started(missing: int, runs: int) -> None:
            bars.update(task, total=missing)

        yield started, lambda runs: bars.advance(task, runs)
