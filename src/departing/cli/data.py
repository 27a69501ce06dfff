"""Commands about data: visits, fit, value and movielens."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from departing.cli.common import (
    POLICY_HELP,
    InstanceArgument,
    Json,
    Seed,
    load_instance,
    new_console,
    parse_int,
    policy_label,
    print_json,
    progress,
)
from departing.model.errors import InputError

if TYPE_CHECKING:
    from departing.data.log import Log
    from departing.fitting.fit import Fit
    from departing.fitting.goodness_of_fit import FitCheck

LogArgument = Annotated[
    str,
    typer.Argument(metavar="LOG", help="CSV, Parquet, JSON lines, a folder or glob, DuckDB, SQLite, or oulad."),
]
User = Annotated[str, typer.Option(metavar="COLUMN", help="Who it was.")]
Time = Annotated[str, typer.Option(metavar="COLUMN", help="When it was.")]
Category = Annotated[str, typer.Option(metavar="COLUMN", help="What was recommended.")]
Clicked = Annotated[str, typer.Option(metavar="COLUMN", help="Whether it was clicked.")]
Departed = Annotated[str, typer.Option(metavar="COLUMN", help="Whether the user left then, if the log tells.")]
InactiveAfter = Annotated[
    str | None, typer.Option(metavar="SPAN", help="Silence after which a user has left, such as '30 days'.")
]
Categories = Annotated[
    str | None, typer.Option(metavar="C,C,…", help="The categories and their order; all in the log unless told.")
]
Table = Annotated[str | None, typer.Option(help="The table of a DuckDB or SQLite file.")]
MemoryLimit = Annotated[str, typer.Option(metavar="SIZE", help="Beyond it the work goes on on disk.")]
Types = Annotated[str, typer.Option(metavar="M", help="How many types, or numbers to choose from.")]
Rejects = Annotated[
    Path | None, typer.Option(help="Write the rows that were rejected to this file (.csv or .parquet).")
]


def sample_log(
    file: InstanceArgument,
    out: Annotated[Path, typer.Option("--save", "-o", help="The log to write (.parquet or .csv).")],
    users: Annotated[str, typer.Option(metavar="N", help="How many users come.")] = "1e5",
    days: Annotated[float, typer.Option(help="How many days the log lasts.")] = 90.0,
    gap: Annotated[float, typer.Option(help="Days between the steps of a user, on average.")] = 1.0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Write the log of a site that shows categories at random, to fit and to learn from."""
    from departing.simulation.event_log import format_of
    from departing.simulation.sample_log import sample_log as draw

    format_of(out)
    with progress("visiting", None, as_json):
        log = draw(load_instance(file), parse_int("users", users), seed, days=days, gap=gap)
        log.save(out)
    if as_json:
        print_json({"users": log.histories.users, "events": len(log.user), "saved": str(out)})
        return
    print(f"{len(log.user):,} events of {log.histories.users:,} users\nSaved to {out}")


def fit(
    log: LogArgument,
    save: Annotated[
        Path | None, typer.Option("--save", "-o", help="Write the instance to this file (.toml or .json).")
    ] = None,
    user: User = "user",
    time: Time = "time",
    category: Category = "category",
    clicked: Clicked = "clicked",
    departed: Departed = "departed",
    inactive_after: InactiveAfter = None,
    categories: Categories = None,
    table: Table = None,
    memory_limit: MemoryLimit = "1 GB",
    types: Types = "1-5",
    criterion: Annotated[str, typer.Option(help="How to choose: bic or held-out.")] = "bic",
    depart: Annotated[bool, typer.Option("--sure", help="Take departure after a no-click for sure.")] = False,
    times: Annotated[int, typer.Option("--bootstrap", help="Draws for the uncertainty of gains; 0 for none.")] = 50,
    rejects: Rejects = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the fit to this file (.svg, .png or .pdf).")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Find the types of users in an event log, what makes each leave, and what the best policy would gain."""
    from departing.cli.tables import fit as report
    from departing.fitting.fit import fit as estimate
    from departing.model.files import DOCUMENT_SUFFIXES, check_writable
    from departing.model.validation import check_int
    from departing.offpolicy.gains import policy_gains
    from departing.plotting import figures

    numbers, times = _numbers("types", types), check_int("bootstrap", times, 0, 10**5)
    if 0 < times < report.FEWEST:
        raise InputError(f"bootstrap is {times}; expected at least {report.FEWEST} draws, or 0 for none.")
    for path, endings in ((save, DOCUMENT_SUFFIXES), (picture, figures.FIGURE_SUFFIXES)):
        if path is not None:
            check_writable(path, endings)
    columns = {"user": user, "time": time, "category": category, "clicked": clicked, "departed": departed}
    read = _read(log, columns, inactive_after, categories, table, memory_limit, rejects, as_json)
    with progress("fitting", len(numbers), as_json) as advance:
        found = estimate(
            read,
            numbers,
            criterion=criterion,
            depart=1.0 if depart else None,
            seed=seed,
            progress=lambda *_: advance(1),
        )
    with progress("checking", None, as_json):
        checked = found.check()
    if save is not None:
        found.instance.save(save)
    if picture is not None:
        found.plot(picture, check=checked)
    if not as_json:
        _print_fit(read, found, checked)
    worth = None
    if times:
        with progress("planning", times, as_json) as advance:
            seen = None if checked.truncated else checked.clicks_per_user
            worth = policy_gains(found, seen, times, seed, lambda *_: advance(1))
    files = {"saved": save, "picture": picture, "rejects": rejects}
    if as_json:
        values = report.fit_values(found, checked, worth) | {"log": report.log_values(read.report)}
        print_json(values | {name: str(path) for name, path in files.items() if path is not None})
        return
    if worth is not None:
        print(f"The best policy: {worth.plan.words()}")
        new_console().print(report.gains_table(worth))
    for path in filter(None, files.values()):
        print(f"Saved to {path}")


def ope(
    log: LogArgument,
    policies: Annotated[list[str], typer.Argument(metavar="POLICY…", help=POLICY_HELP)],
    user: User = "user",
    time: Time = "time",
    category: Category = "category",
    clicked: Clicked = "clicked",
    departed: Departed = "departed",
    propensity: Annotated[
        str, typer.Option(metavar="COLUMN", help="The chance the recommendation had, if the log tells.")
    ] = "propensity",
    inactive_after: InactiveAfter = None,
    categories: Categories = None,
    table: Table = None,
    memory_limit: MemoryLimit = "1 GB",
    types: Types = "1-5",
    confidence: Annotated[float, typer.Option(help="Of the confidence intervals.")] = 0.95,
    times: Annotated[int, typer.Option("--bootstrap", help="Draws for the interval of the model.")] = 200,
    rejects: Rejects = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Tell what policies would have earned with the users of an event log: expected clicks of one user."""
    from departing.cli.tables import ope as report
    from departing.cli.tables.fit import log_values
    from departing.fitting.fit import fit as estimate
    from departing.model.validation import check_float, check_int
    from departing.offpolicy.estimators import off_policy_value
    from departing.policy.library import describe, parse_policy

    numbers, times = _numbers("types", types), check_int("bootstrap", times, 2, 10**5)
    confidence = check_float("confidence", confidence, 0.0, 1 - 1e-9)
    columns = {"user": user, "time": time, "category": category, "clicked": clicked, "departed": departed}
    columns["propensity"] = propensity
    read = _read(log, columns, inactive_after, categories, table, memory_limit, rejects, as_json)
    with progress("fitting", len(numbers), as_json) as advance:
        model = estimate(read, numbers, seed=seed, progress=lambda *_: advance(1))
    chosen = [parse_policy(text, model.instance) for text in policies]
    words = [
        policy_label(text, describe(policy, model.instance)) for text, policy in zip(policies, chosen, strict=True)
    ]
    with progress("weighing", times * len(chosen), as_json) as advance:
        found = [
            off_policy_value(
                read,
                policy,
                fit=model,
                confidence=confidence,
                bootstrap=times,
                seed=seed,
                progress=lambda *_: advance(1),
            )
            for policy in chosen
        ]
    with progress("checking", None, as_json):
        checked = model.check()
    seen = None if checked.truncated else checked.clicks_per_user
    if as_json:
        values = [report.ope_values(*each) for each in zip(words, found, strict=True)]
        written = {} if rejects is None else {"rejects": str(rejects)}
        print_json({"policies": values, "log_clicks": seen, "log": log_values(read.report)} | written)
        return
    console = new_console()
    print(read.report)
    for name, each in zip(words, found, strict=True):
        console.print(report.value_table(name, each))
        if each.overlap:
            console.print(report.overlap_table(each))
        for warning in each.warnings:
            console.print(warning, markup=False)
    console.print(report.ranking_table(words, found, seen))
    if rejects is not None:
        print(f"Saved to {rejects}")


def _read(
    log: str,
    columns: dict[str, str],
    inactive_after: str | None,
    categories: str | None,
    table: str | None,
    memory_limit: str,
    rejects: Path | None,
    quiet: bool,
) -> "Log":
    """The log that the options tell of."""
    from departing.data.log import read_log
    from departing.data.sources import OULAD

    with progress("reading", None, quiet):
        return read_log(
            OULAD if log == "oulad" else log,
            **columns,
            inactive_after=_span(inactive_after),
            categories=None if categories is None else [name.strip() for name in categories.split(",")],
            table=table,
            rejects=rejects,
            memory_limit=memory_limit,
        )


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


def _print_fit(read: "Log", found: "Fit", checked: "FitCheck") -> None:
    from departing.cli.tables import fit as report
    from departing.fitting.type_description import describe_types

    console = new_console()
    print(read.report)
    if len(found.criteria) > 1:
        console.print(report.criteria_table(found))
    print("\n".join(describe_types(found.instance)))
    console.print(report.type_table(found))
    print("\n".join([*found.warnings, str(checked)]), flush=True)


def _span(text: str | None) -> str | float | None:
    """A silence: a number as one, anything else as it is."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


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
    from departing.cli.tables import movielens as report
    from departing.data.movielens import MovieLens
    from departing.data.plot import draw_replay, draw_types
    from departing.model.files import DOCUMENT_SUFFIXES, check_writable
    from departing.plotting import figures

    if replay and (types is not None or seed is not None):
        raise InputError(
            f"--{'seed' if types is None else 'types'} and --replay do not go together: users stay apart."
        )
    if save is not None:
        check_writable(save, DOCUMENT_SUFFIXES)
    if picture is not None:
        check_writable(picture, figures.FIGURE_SUFFIXES)
    chances = [_chance("depart", part) for part in depart.split(",")]
    leave = chances[0] if len(chances) == 1 else chances
    chosen = None if genres is None else [name.strip() for name in genres.split(",")]
    with progress("reading", None, as_json):
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
        figures.save(draw_replay(made) if replay else draw_types(made), picture, 130)
    files = {"saved": save, "picture": picture}
    if as_json:
        values = report.movielens_values(read, made, replay)
        print_json(values | {name: str(file) for name, file in files.items() if file is not None})
        return
    console = new_console()
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
