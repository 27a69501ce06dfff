"""The command line: arguments in, calls of the library, tables or JSON out."""

import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from departing.model.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from departing.data.log import Log
    from departing.fitting.check import Check
    from departing.fitting.fit import Fit
    from departing.model.instance import Instance
    from departing.simulation.run import Progress

app = typer.Typer(
    name="departing",
    help="Recommend to people who leave when they are disappointed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

POLICY_HELP = "fixed:C, threshold:FIRST,STEPS,THEN, walk:C,C,…, greedy, or the path of a saved policy."
INSTANCE_HELP = "A TOML or JSON file, or 'blog' for the example of the paper; also 'hard' and 'magazine'."
LEARNER_HELP = "bayes, ucb-hybrid, lattice, thompson, …; options after a colon, as in bayes:types=3,explore=none."

InstanceArgument = Annotated[str, typer.Argument(metavar="INSTANCE", help=INSTANCE_HELP)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.")]


def _told(command: Callable[..., None]) -> Callable[..., None]:
    """`command`, with every error a user can make told in one sentence on stderr and by exit code 2."""

    @wraps(command)
    def told(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
            if sys.stdout is not None:
                sys.stdout.flush()
        except InputError as error:
            _stop(f"Error: {error}")
        except BrokenPipeError:  # the reader of our output has seen enough
            _drop_output()
        except OSError as error:
            _drop_output()
            _stop(f"Error: Cannot write the output: {error.strerror or error}.")
        except MemoryError:
            _stop("Error: There is not enough memory for this; try fewer users, types or nodes.")
        except (KeyboardInterrupt, SystemError) as error:
            # A compiled function interrupted on its way in tells so by a SystemError.
            if not _interrupted(error):
                raise
            _stop("Interrupted; no file was written.")

    return told


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is at the bottom of `error`."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _drop_output() -> None:
    """Let nothing more be written to a stdout that does not take it."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stop(sentence: str) -> NoReturn:
    print(sentence, file=sys.stderr)
    raise typer.Exit(2)


def _console() -> "Console":
    from rich.console import Console

    return Console()


def _load(name: str) -> "Instance":
    from departing.model.examples import EXAMPLES
    from departing.model.instance import Instance

    if name in EXAMPLES:
        return EXAMPLES[name]()
    if not Path(name).suffix:
        known = ", ".join(EXAMPLES)
        raise InputError(f"There is no instance {name!r}; give a file ending in .toml or .json, or one of {known}.")
    return Instance.load(name)


def _label(text: str, words: str) -> str:
    """A policy in words, with its file if it came from one."""
    return f"{text}: {words}" if Path(text).suffix.lower() in (".toml", ".json") else words


def _print_json(values: dict[str, Any]) -> None:
    print(json.dumps(values, allow_nan=False))


def _whole(field: str, text: str) -> int:
    """A whole number, also written like 1e12 or 1_000_000."""
    try:
        value = float(text)
    except ValueError:
        value = 0.5
    if not value.is_integer() or abs(value) > 1e18:
        raise InputError(f"{field} is {text!r:.40}; expected a whole number such as 1000000 or 1e6.")
    return int(value)


@contextmanager
def _progress(label: str, total: int | None, quiet: bool) -> Iterator["Progress"]:
    """A bar on a terminal, just a sign of life where the total is not known; nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=total)
        yield lambda users: bars.advance(task, users)


@contextmanager
def _bracket_progress(quiet: bool) -> Iterator["Callable[[float, float], None] | None"]:
    """The bracket so far on a terminal; nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("planning") as status:
        yield lambda lower, upper: status.update(f"planning: {lower:.8g} to {upper:.8g}")


def _version(show: bool) -> None:
    if show:
        from departing import __version__

        print(f"departing {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Recommend to people who leave when they are disappointed."""


@app.command()
@_told
def instance(
    file: Annotated[str | None, typer.Argument(metavar="[INSTANCE]", help=INSTANCE_HELP)] = None,
    random: Annotated[
        str | None,
        typer.Option(help="Draw one instead: uniform, specialists, sticky, row, column or diagonal."),
    ] = None,
    types: Annotated[int | None, typer.Option(help="Types of a random instance; 2 unless told.")] = None,
    categories: Annotated[int | None, typer.Option(help="Categories of a random instance; 2 unless told.")] = None,
    depart: Annotated[
        float | None, typer.Option(help="The chance of departing after a no-click, for a random instance.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a random instance; 0 unless told.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write it to this file (.toml or .json).")] = None,
    as_json: Json = False,
) -> None:
    """Show an instance, draw a random one, or turn one file format into the other."""
    from departing.model.families import random_instance

    if (file is None) == (random is None):
        raise InputError("Give either the file of an instance, or --random with a family.")
    drawn: dict[str, Any] = {"types": types, "categories": categories, "seed": seed, "depart": depart}
    given = {name: value for name, value in drawn.items() if value is not None}
    if file is not None and given:
        raise InputError(f"--{next(iter(given))} is for random instances; change the file instead.")
    found = _load(file) if file is not None else random_instance(str(random), **given)
    if save is not None:
        found.save(save)
    if as_json:
        _print_json(found.document() | ({"saved": str(save)} if save else {}))
    else:
        _console().print(found)
        if save is not None:
            print(f"Saved to {save}")


@app.command()
@_told
def evaluate(
    file: InstanceArgument,
    policies: Annotated[
        list[str] | None, typer.Argument(metavar="[POLICY]…", help=f"{POLICY_HELP} All fixed and greedy by default.")
    ] = None,
    tolerance: Annotated[float, typer.Option(help="How far apart the bounds may be.")] = 1e-9,
    nodes: Annotated[
        str | None, typer.Option(metavar="N", help="About how many counts may be expanded for each policy.")
    ] = None,
    distribution: Annotated[bool, typer.Option(help="Show the distribution of clicks and steps too.")] = False,
    as_json: Json = False,
) -> None:
    """Tell exactly what policies are worth: expected clicks of one user."""
    from departing.evaluation.evaluate import evaluate as evaluate_policy
    from departing.policy.library import describe, parse_policy
    from departing.report.tables import EvaluationTable, distribution_table, evaluation_notes, evaluation_values

    found = _load(file)
    texts = policies or [*(f"fixed:{a}" for a in range(found.n_categories)), "greedy"]
    chosen = [parse_policy(text, found) for text in texts]
    most = None if nodes is None else _whole("nodes", nodes)
    with _progress("evaluating", None, as_json):
        rows = [
            (_label(text, describe(policy, found)), evaluate_policy(found, policy, tolerance, most))
            for text, policy in zip(texts, chosen, strict=True)
        ]
    if as_json:
        _print_json({"policies": [evaluation_values(*row, distribution) for row in rows]})
        return
    console = _console()
    console.print(EvaluationTable(found, rows))
    for note in evaluation_notes(rows, tolerance):
        console.print(note, markup=False)
    if distribution:
        for row in rows:
            console.print(distribution_table(*row))


@app.command()
@_told
def simulate(
    file: InstanceArgument,
    policy: Annotated[str, typer.Argument(metavar="POLICY", help=POLICY_HELP)],
    users: Annotated[str, typer.Option(metavar="N", help="How many users; 1e12 is fine.")] = "1e6",
    seed: Seed = 0,
    engine: Annotated[str, typer.Option(help="auto, aggregate, lanes or step.")] = "auto",
    against: Annotated[
        str | None, typer.Option(metavar="POLICY", help="Compare with this policy on the same users.")
    ] = None,
    open_users: Annotated[int | None, typer.Option(help="How many users are open at once.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Stop looking at a user after so many steps.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the lanes engine; all cores by default.")] = None,
    log: Annotated[Path | None, typer.Option(help="Write every event to this file (.parquet or .csv).")] = None,
    confidence: Annotated[float, typer.Option(help="Of the confidence interval.")] = 0.95,
    as_json: Json = False,
) -> None:
    """Simulate many users under a policy."""
    from departing.policy.library import describe, parse_policy
    from departing.report import tables
    from departing.simulation.compare import compare
    from departing.simulation.run import normal_interval
    from departing.simulation.simulate import simulate as simulate_policy

    found, n_users = _load(file), _whole("users", users)
    chosen = parse_policy(policy, found)
    words = _label(policy, describe(chosen, found))
    normal_interval(0.0, 0.0, confidence)  # so that a wrong one is told before the work, not after
    if against is not None:
        for option, given in (
            ("--log", log is not None),
            ("--engine", engine != "auto"),
            ("--threads", threads is not None),
            ("--open-users", open_users is not None),
        ):
            if given:
                raise InputError(f"{option} and --against do not go together: a comparison has its own way.")
        rival = parse_policy(against, found)
        with _progress("comparing", n_users, as_json) as advance:
            result = compare(found, chosen, rival, n_users, seed, max_steps=max_steps, progress=advance)
        names = (words, _label(against, describe(rival, found)))
        if as_json:
            _print_json(tables.comparison_values(*names, result, confidence))
        else:
            _console().print(tables.comparison_table(*names, result, confidence))
        return
    started = time.perf_counter()
    with _progress("simulating", n_users, as_json) as advance:
        run = simulate_policy(
            found,
            chosen,
            n_users,
            seed,
            engine,
            open_users=open_users,
            max_steps=max_steps,
            threads=threads,
            log=log,
            progress=advance,
        )
    seconds = time.perf_counter() - started
    if as_json:
        _print_json(tables.run_values(words, run, confidence, seconds) | ({"log": str(log)} if log else {}))
        return
    _console().print(tables.run_table(words, run, confidence, seconds))
    if log is not None:
        print(f"{run.steps:,} events written to {log}")


@app.command()
@_told
def plan(
    file: InstanceArgument,
    gap: Annotated[float, typer.Option(help="How far the policy may be from the best possible one.")] = 1e-6,
    seconds: Annotated[float, typer.Option(help="Stop after so long, with the best bracket so far.")] = 60.0,
    method: Annotated[str, typer.Option(help="auto, closed-form, lattice or search.")] = "auto",
    allowed: Annotated[
        str | None, typer.Option(metavar="C,C,…", help="Recommend these categories only, by name or index.")
    ] = None,
    depth: Annotated[int, typer.Option(help="How many of the first steps the tree shows.")] = 4,
    sensitivity: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Tell what happens if every entry is off by such a share.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check the proof of the bracket.")] = False,
    save: Annotated[Path | None, typer.Option(help="Write the policy to this file (.toml or .json).")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the plan to this file (.svg, .png or .pdf).")] = None,
    as_json: Json = False,
) -> None:
    """Find the best policy, with a proof of how good it is."""
    from departing.model.arguments import as_whole
    from departing.model.files import ENDINGS, suffix_of
    from departing.planning.myopia import rivals
    from departing.planning.outline import is_plain
    from departing.planning.plan import plan as plan_policy
    from departing.report import tables

    found = _load(file)
    names = [] if allowed is None else [allowed] if allowed in found.categories else allowed.split(",")
    only = None if allowed is None else [found.category(name.strip()) for name in names]
    depth = as_whole("depth", depth, 1, 10)
    if save is not None:  # a wrong ending is told before the work, not after
        suffix_of(save, ENDINGS)
    if picture is not None:
        from departing.planning import picture as pictures

        suffix_of(picture, pictures.ENDINGS)
    with _bracket_progress(as_json) as progress:
        made = plan_policy(found, gap, seconds, method, allowed=only, progress=progress)
        held = rivals(made)
        checked = made.verify() if verify else None
        shifted = None if sensitivity is None else made.sensitivity(sensitivity)
    if save is not None:
        made.save(save)
    if picture is not None:
        made.picture(picture)
    if as_json:
        values = tables.plan_values(made, held, depth)
        if checked is not None:
            values["verified"] = checked.holds
        if shifted is not None:
            values["sensitivity"] = tables.sensitivity_values(shifted, made)
        files = {"saved": save, "picture": picture}
        _print_json(values | {name: str(path) for name, path in files.items() if path is not None})
    else:
        console = _console()
        if is_plain(made):
            console.print(made.words(), style="bold", markup=False)
        else:
            console.print(tables.plan_tree(made, depth))
        console.print(made.reason, markup=False)
        console.print(tables.plan_table(made, held))
        if made.gap > gap:
            console.print(
                f"The gap of {gap:g} was not reached in the time given, or is finer than rounding allows.",
                markup=False,
            )
        if shifted is not None:
            console.print(tables.sensitivity_table(shifted, made))
        if checked is not None:
            console.print(tables.verification_table(checked))
        for path in filter(None, (save, picture)):
            print(f"Saved to {path}")
    if checked is not None and not checked.holds:
        raise InputError("The proof does not hold; please report this instance.")


@app.command()
@_told
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
    save: Annotated[Path | None, typer.Option(help="Write what was learnt to this file (.json).")] = None,
    load: Annotated[Path | None, typer.Option(help="Go on from what was learnt before.")] = None,
    as_json: Json = False,
) -> None:
    """Let a learner recommend to users of whom it knows nothing, and tell what that costs."""
    from departing.learning.committed import Committed
    from departing.learning.library import learner_from, load_learner, parse_learner
    from departing.model.arguments import MOST_USERS, as_seed, as_whole
    from departing.model.files import suffix_of
    from departing.report import learning as report
    from departing.studies.picture import ENDINGS, write_picture
    from departing.studies.results import curves_of
    from departing.studies.runner import most_played, optimum_record, play

    if (learner is None) == (load is None):
        raise InputError("Give either a learner, or --load with the file of one.")
    found, n_users = _load(file), as_whole("users", _whole("users", users), most=MOST_USERS)
    seed, runs, late = as_seed(seed), as_whole("runs", runs, 1, 10**5), _whole("delay", delay)
    if runs > 1 and (save is not None or load is not None):
        raise InputError(f"runs is {runs}; a learner is saved and loaded for one run only.")
    if save is not None:
        suffix_of(save, (".json",))
    if picture is not None:
        suffix_of(picture, ENDINGS)
    spec = None if learner is None else parse_learner(learner)
    records = []
    with _progress("learning", n_users * runs, as_json) as advance:
        optimum = optimum_record(found, n_users)
        for number in range(seed, seed + runs):
            student: Committed = load_learner(load) if load else learner_from(spec or {}, found, n_users, number)
            run, record = play(student, found, n_users, number, optimum, open_users, late, advance)
            records.append(record)
    curves = curves_of(learner or str(load), records, [file] * runs)
    policy = most_played(run)
    if save is not None:
        student.save(save)
    if picture is not None:
        write_picture(f"{curves.learner} on {Path(file).stem}", [curves], picture)
    rows = report.course_rows(records)
    files = {"saved": save, "picture": picture}
    if as_json:
        values = report.learnt_values(curves, rows, policy) | {"optimum": [optimum["lower"], optimum["upper"]]}
        _print_json(values | {name: str(path) for name, path in files.items() if path is not None})
        return
    title = curves.learner + ("" if runs == 1 else f", mean of {runs} runs")
    console = _console()
    console.print(report.course_table(title, rows))
    for note in report.course_notes(curves, policy) + report.optimum_notes(optimum, rows[-1]):
        console.print(note, markup=False)
    for path in filter(None, files.values()):
        print(f"Saved to {path}")


@app.command()
@_told
def study(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="A TOML or JSON file: instances, learners, seeds.")],
    out: Annotated[
        Path | None, typer.Option(help="The folder of the results; the study's name and -results unless told.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="How many runs at once; as many as there are cores.")] = None,
    backend: Annotated[str, typer.Option(help="loky, threading, dask or ray.")] = "loky",
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Of a Dask cluster; one of this machine unless told.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run every learner of a study on every instance with every seed; go on where it was left."""
    from departing.report.learning import study_tables
    from departing.studies.definition import load_study
    from departing.studies.picture import write_pictures
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
        if not _interrupted(error):
            raise
        _stop(f"Interrupted; finished runs are kept in {str(folder)!r}, and the same command goes on from there.")
    pictures = write_pictures(results, folder)
    rows = results.summary()
    if as_json:
        _print_json({"title": found.title, "folder": str(folder), "summary": rows, "pictures": pictures})
        return
    console = _console()
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


@app.command()
@_told
def visits(
    file: InstanceArgument,
    out: Annotated[Path, typer.Option("--save", "-o", help="The log to write (.parquet or .csv).")],
    users: Annotated[str, typer.Option(metavar="N", help="How many users come.")] = "1e5",
    days: Annotated[float, typer.Option(help="How many days the log lasts.")] = 90.0,
    gap: Annotated[float, typer.Option(help="Days between the steps of a user, on average.")] = 1.0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Write the log of a site that shows categories at random, to fit and to learn from."""
    from departing.simulation.log import format_of
    from departing.simulation.visits import visits as draw

    format_of(out)
    with _progress("visiting", None, as_json):
        log = draw(_load(file), _whole("users", users), seed, days=days, gap=gap)
        log.save(out)
    if as_json:
        _print_json({"users": log.histories.users, "events": len(log.user), "saved": str(out)})
        return
    print(f"{len(log.user):,} events of {log.histories.users:,} users\nSaved to {out}")


def _numbers(field: str, text: str) -> list[int]:
    """Whole numbers, written as one, as 1-5 or as 1,2,4."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        ends = [int(end) if end.isdecimal() else 0 for end in ((first, last) if dash else (first, first))]
        if not 0 < ends[0] <= ends[1] <= 64:
            raise InputError(f"{field} is {text!r:.40}; expected numbers from 1 to 64, such as 3, 1-5 or 2,4.")
        found += range(ends[0], ends[1] + 1)
    return found


@app.command()
@_told
def fit(
    log: Annotated[
        str,
        typer.Argument(metavar="LOG", help="CSV, Parquet, JSON lines, a folder or glob, DuckDB, SQLite, or oulad."),
    ],
    save: Annotated[
        Path | None, typer.Option("--save", "-o", help="Write the instance to this file (.toml or .json).")
    ] = None,
    user: Annotated[str, typer.Option(metavar="COLUMN", help="Who it was.")] = "user",
    time: Annotated[str, typer.Option(metavar="COLUMN", help="When it was.")] = "time",
    category: Annotated[str, typer.Option(metavar="COLUMN", help="What was recommended.")] = "category",
    clicked: Annotated[str, typer.Option(metavar="COLUMN", help="Whether it was clicked.")] = "clicked",
    departed: Annotated[
        str, typer.Option(metavar="COLUMN", help="Whether the user left then, if the log tells.")
    ] = "departed",
    inactive_after: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Silence after which a user has left, such as '30 days'.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="The table of a DuckDB or SQLite file.")] = None,
    types: Annotated[str, typer.Option(metavar="M", help="How many types, or numbers to choose from.")] = "1-5",
    criterion: Annotated[str, typer.Option(help="How to choose: bic or held-out.")] = "bic",
    sure: Annotated[bool, typer.Option("--sure", help="Take departure after a no-click for sure.")] = False,
    times: Annotated[int, typer.Option("--bootstrap", help="Draws for the uncertainty of gains; 0 for none.")] = 50,
    rejects: Annotated[
        Path | None, typer.Option(help="Write the rows that were rejected to this file (.csv or .parquet).")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the fit to this file (.svg, .png or .pdf).")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Find the types of users in an event log, what makes each leave, and what the best policy would gain."""
    from departing.data.log import read_log
    from departing.data.sources import OULAD
    from departing.fitting.fit import fit as estimate
    from departing.model.arguments import as_whole
    from departing.model.files import ENDINGS, suffix_of
    from departing.report import fitting as report

    numbers, times = _numbers("types", types), as_whole("bootstrap", times, 0, 10**5)
    if 0 < times < report.FEWEST:
        raise InputError(f"bootstrap is {times}; expected at least {report.FEWEST} draws, or 0 for none.")
    for path, endings in ((save, ENDINGS), (picture, report.PICTURES)):
        if path is not None:
            suffix_of(path, endings)
    columns = {"user": user, "time": time, "category": category, "clicked": clicked, "departed": departed}
    with _progress("reading", None, as_json):
        source = OULAD if log == "oulad" else log
        read = read_log(source, **columns, inactive_after=_span(inactive_after), table=table, rejects=rejects)
    with _progress("fitting", len(numbers), as_json) as advance:
        found = estimate(
            read,
            numbers,
            criterion=criterion,
            depart=1.0 if sure else None,
            seed=seed,
            progress=lambda *_: advance(1),
        )
    with _progress("checking", None, as_json):
        checked = found.check()
    if save is not None:
        found.instance.save(save)
    if picture is not None:
        report.write_picture(found, checked, picture)
    if not as_json:
        _print_fit(read, found, checked)
    worth = None
    if times:
        with _progress("planning", times, as_json) as advance:
            seen = None if checked.cut_short else checked.clicks
            worth = report.gains(found, seen, times, lambda *_: advance(1))
    files = {"saved": save, "picture": picture, "rejects": rejects}
    if as_json:
        values = report.fit_values(found, checked, worth) | {"log": report.log_values(read.report)}
        _print_json(values | {name: str(path) for name, path in files.items() if path is not None})
        return
    if worth is not None:
        print(f"The best policy: {worth.plan.words()}")
        _console().print(report.gain_table(worth))
    for path in filter(None, files.values()):
        print(f"Saved to {path}")


def _print_fit(read: "Log", found: "Fit", checked: "Check") -> None:
    from departing.report import fitting as report

    console = _console()
    print(read.report)
    if len(found.criteria) > 1:
        console.print(report.criteria_table(found))
    print("\n".join(found.words()))
    console.print(report.type_table(found))
    print("\n".join([*found.warnings, str(checked)]), flush=True)


def _span(text: str | None) -> str | float | None:
    """A silence: a number as one, anything else as it is."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


@app.command()
@_told
def movielens(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The folder or zip of a MovieLens release.")],
    genres: Annotated[
        str | None, typer.Option(metavar="G,G,…", help="The categories; the three most rated unless told.")
    ] = None,
    types: Annotated[int | None, typer.Option(help="Types of users to find; 3 unless told.")] = None,
    depart: Annotated[
        str, typer.Option(metavar="CHANCE", help="Of departing after a no-click: one, or one for each genre.")
    ] = "1",
    click: Annotated[
        str, typer.Option(help="stars: the normalised rating r is the chance of a click; paper: 1 - r is.")
    ] = "stars",
    replay: Annotated[
        bool, typer.Option("--replay", help="Make every real user a type of its own instead of finding types.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Of the halves and the types; 0 unless told.")] = None,
    save: Annotated[Path | None, typer.Option("--save", "-o", help="Write the instance (.toml or .json).")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw it to this file (.svg, .png or .pdf).")] = None,
    as_json: Json = False,
) -> None:
    """Make an instance of film ratings: types of users, or a replay of the real ones."""
    from departing.data.movielens import MovieLens
    from departing.model.files import ENDINGS, suffix_of
    from departing.report import movielens as report

    if replay and (types is not None or seed is not None):
        raise InputError(
            f"--{'seed' if types is None else 'types'} and --replay do not go together: users stay apart."
        )
    if save is not None:
        suffix_of(save, ENDINGS)
    if picture is not None:
        suffix_of(picture, report.PICTURES)
    chances = [_chance("depart", part) for part in depart.split(",")]
    leave = chances[0] if len(chances) == 1 else chances
    chosen = None if genres is None else [name.strip() for name in genres.split(",")]
    with _progress("reading", None, as_json):
        read = MovieLens.read(path)
        if replay:
            made = read.replay(chosen, depart=leave, click=click)
        else:
            made = read.semi_synthetic(
                chosen, 3 if types is None else types, depart=leave, seed=seed or 0, click=click
            )
    if save is not None:
        made.instance.save(save)
    if picture is not None:
        report.write_picture(made, replay, picture)
    files = {"saved": save, "picture": picture}
    if as_json:
        values = report.movielens_values(read, made, replay)
        _print_json(values | {name: str(file) for name, file in files.items() if file is not None})
        return
    console = _console()
    console.print(report.genre_table(read, made))
    for note in report.notes(made, replay):
        console.print(note, markup=False)
    for file in filter(None, files.values()):
        print(f"Saved to {file}")


def _chance(field: str, text: str) -> float:
    """A chance written as a number."""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{field} is {text!r:.40}; expected a chance, or one for each genre: 0.5,0.3") from None


@app.command()
@_told
def quickstart(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("departing-quickstart.html"),
    as_json: Json = False,
) -> None:
    """Tell the story of the paper's blog with real numbers, on a page that opens without a network."""
    from departing.report.quickstart import tell, write_page

    with _progress("working it out", 7, as_json) as advance:
        story = tell(advance)
    write_page(story, out)
    if as_json:
        _print_json(story.values() | {"page": str(out)})
    else:
        _console().print(story)
        print(f"The whole story, with pictures: {out}")


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left behind then either
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    app()
