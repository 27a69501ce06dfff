"""Commands `serve`, `backup` and `loadtest`."""

import asyncio
import logging
import os
import shlex
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from departing.cli import options as opt
from departing.cli.inputs import exclusive, load_instance, parse_half_life, parse_int, parse_share, split_names
from departing.cli.output import present, progress
from departing.model.errors import InputError, MissingExtraError
from departing.service.event_log import LEVEL, LEVELS, json_lines, log_event
from departing.service.limits import MAX_USERS

MAX_DRAIN_DELAY = 600  # seconds; longer than the endpoints of any load balancer live


def serve(
    instance: Annotated[str | None, typer.Option(help="Serve the optimal policy of this instance.")] = None,
    learn: Annotated[bool, typer.Option("--learn", help="Learn online from feedback.")] = False,
    categories: Annotated[list[str] | None, typer.Option(metavar="C,C,…", help="Categories of a new store.")] = None,
    types: Annotated[str, typer.Option(help="Number of types to learn, or auto.")] = "auto",
    store: Annotated[
        str, typer.Option(help="SQLite file, or postgresql://… for several workers.", envvar="DEPARTING_STORE")
    ] = "departing.sqlite",
    workers: Annotated[int, typer.Option(help="Server processes; several need PostgreSQL.", min=1, max=256)] = 1,
    host: Annotated[str, typer.Option(help="Address to listen on; requires an API key if not local.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535, envvar="DEPARTING_PORT")] = 8080,
    inactive_after: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Inactivity period after which a user counts as departed, such as '14 days' or '30 minutes'.",
            show_default="as stored",
        ),
    ] = None,
    departures: Annotated[
        str | None,
        typer.Option(
            metavar="reported",
            help="Your site reports departures; users also depart by inactivity if --inactive-after is given.",
            show_default="as stored",
        ),
    ] = None,
    grace_period: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Period after a departure by inactivity in which a late click makes the user active again.",
            show_default="as --inactive-after",
        ),
    ] = None,
    explore: Annotated[
        str, typer.Option(metavar="SHARE", help="Share of uniformly random recommendations.")
    ] = "0.01",
    segment: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN,…",
            help="Features of which the segment in a request is composed, such as country,device.",
            show_default="as stored",
        ),
    ] = None,
    half_life: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Period after which a user counts half in the training of --learn, such as '30 days'; none: never.",
            show_default="as stored",
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Unit of rewards, such as euro.", show_default="that of the instance"),
    ] = None,
    missing_feedback: Annotated[str, typer.Option(help="Missing feedback means no-click or not-seen.")] = "no-click",
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Start in shadow mode: the caller decides. The store remembers it.")
    ] = False,
    rate: Annotated[float, typer.Option("--rate-limit", help="Requests per second and key; 0: no limit.", min=0)] = 0,
    max_users: Annotated[int, typer.Option(help="Maximum number of active users.", min=1)] = MAX_USERS,
    drain_delay: Annotated[
        float,
        typer.Option(help="Seconds to keep serving after SIGTERM while /ready fails.", min=0, max=MAX_DRAIN_DELAY),
    ] = 0,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log every request.")] = False,
    log_level: Annotated[
        str, typer.Option(help=f"Lowest level that is logged: {', '.join(LEVELS)}.", envvar=LEVEL)
    ] = "info",
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Serve a SQLite file although it is missing, emptied, replaced or lacks acknowledged feedback.",
        ),
    ] = False,
    accept_clock: Annotated[
        bool,
        typer.Option(
            "--accept-clock",
            help="Start although the clock is behind the store: it was ahead before, and is right now.",
        ),
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of random recommendations.", show_default="random")] = None,
) -> None:
    """Serve recommendations over HTTP.

    --learn needs a definition of departure: --inactive-after DURATION, --departures reported, or both. The store
    remembers it.

    API keys come from the environment: DEPARTING_CLIENT_KEY for recommendations and feedback, DEPARTING_ADMIN_KEY for
    all calls.
    """
    try:
        from departing.service.api.latency import shared_file
        from departing.service.runtime import run as run_loop
        from departing.service.server import check_address
        from departing.service.server import serve as run
        from departing.service.settings import Settings
        from departing.service.startup import open_service
        from departing.service.user import MISSING_FEEDBACK
        from departing.service.workers.supervisor import WORKER, supervise
    except ImportError as error:
        if (error.name or "").startswith("departing"):
            raise
        raise MissingExtraError(f"Serving needs {error.name}; install it with: pip install '.[serve]'") from error
    from departing.data.spec import parse_duration
    from departing.learning.bayes import parse_types
    from departing.model.instance_fields import check_unit
    from departing.model.names import check_names
    from departing.service.api.auth import ApiKeys, weak_keys
    from departing.service.departures import REPORTED, REQUIRED
    from departing.service.store.connection import is_postgres

    n_types = parse_types(types)
    if n_types != "auto" and not learn:
        raise InputError(f"--types is {types!r:.40}, the number of types in training; add --learn, or omit it.")
    if missing_feedback not in MISSING_FEEDBACK:
        accepted = ", ".join(MISSING_FEEDBACK)
        raise InputError(f"--missing-feedback is {missing_feedback!r}; expected one of {accepted}.")
    if log_level not in LEVELS:
        raise InputError(f"--log-level is {log_level!r}; expected one of {', '.join(LEVELS)}.")
    if workers > 1 and not is_postgres(store):
        raise InputError(f"--workers is {workers}; SQLite supports one worker. Use --store postgresql://… for more.")
    explored = parse_share("explore", explore)
    if instance is not None:
        exclusive("--instance", categories=categories)
    model = None if instance is None else load_instance(instance)
    names = check_names("categories", split_names(categories) or ()) if categories else ()
    if len(names) == 1:
        raise InputError(f"--categories is {names[0]!r:.40}; expected at least two names, such as news,sport.")
    columns = check_names("segment", split_names(segment) or ()) if segment else ()
    is_new = not is_postgres(store) and not Path(store).exists()
    if model is None and not learn and is_new:
        raise InputError("There is no policy to serve; use --instance FILE, or --learn with --categories.")
    if departures not in (None, REPORTED):
        raise InputError(f"--departures is {departures!r:.40}; expected 'reported', or --inactive-after DURATION.")
    inactivity = float("inf") if inactive_after is None else parse_duration("inactive_after", inactive_after)
    weight_period = None
    if half_life is not None:
        if not learn:
            raise InputError("--half-life weighs users in training; add --learn, or omit it.")
        is_none = parse_half_life(half_life) is None
        weight_period = float("inf") if is_none else parse_duration("half_life", half_life)
    grace = None if grace_period is None else parse_duration("grace_period", grace_period)
    if learn and is_new and departures is None and inactive_after is None:
        source = (
            ("--categories", ",".join(categories or ("news", "sport", "music")))
            if instance is None
            else ("--instance", instance)
        )
        command = ("departing", "serve", "--learn", *source, "--store", store, "--inactive-after", "14 days")
        raise InputError(f"{REQUIRED}\nFor example:\n\n    {shlex.join(command)}\n")
    client, admin = (os.environ.get(f"DEPARTING_{access}_KEY") for access in ("CLIENT", "ADMIN"))
    keys = ApiKeys((client,) if client else (), (admin,) if admin else (), rate / workers)
    number, _, total = os.environ.get(WORKER, "").partition("/")
    with json_lines("supervisor" if workers > 1 and not total else "server", log_level):
        if not total:
            host = check_address(host, port, keys)
            for text in weak_keys(client, admin):
                log_event("warning", logging.WARNING, text=text)
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        settings = Settings(
            inactivity,
            explored,
            missing_feedback,
            shadow,
            max_users=max_users,
            departures_reported=departures is not None,
            learn=learn,
            grace_period=grace,
            segment_columns=tuple(columns),
            half_life=weight_period,
            unit=check_unit(unit) if unit is not None else "",
        )
        if workers > 1 and not total:
            # Errors are reported once here, not in each worker.
            open_service(store, names, model, settings, seed, accept_clock=accept_clock).store.close()
            _announce(f"Serving on {url}, where the dashboard is, with {workers} workers (Ctrl-C to stop).")
            asyncio.run(supervise(workers, shared_file(workers), drain_delay))
            return
        worker_seed = None if seed is None else seed + int(number or 0)
        service = open_service(
            store, names, model, settings, worker_seed, accept_loss=accept_loss, accept_clock=accept_clock
        )
        if model is None and not learn and service.rollout.state.current.uniform:
            service.store.close()
            raise InputError("The store has no policy to serve; use --instance FILE, or --learn.")
        if not total:
            _announce(f"Serving on {url}, where the dashboard is (Ctrl-C to stop).")
        train = (n_types, seed or 0) if learn and number in ("", "0") else None
        run_loop(run(service, host, port, keys, train, learn, access_log, drain_delay))


def _announce(text: str) -> None:
    """Print a line for a person; elsewhere, as in a container, the log says the same."""
    if sys.stdout.isatty():
        print(text, flush=True)


def backup(
    store: Annotated[Path, typer.Argument(help="SQLite file of a service.", exists=True, dir_okay=False)],
    target: Annotated[Path, typer.Argument(help="File to create.")],
) -> None:
    """Copy the SQLite file of a service while it runs. To restore, serve the copy."""
    from departing.service.store.connection import SqliteDatabase

    if target.exists():
        raise InputError(f"{str(target)!r} exists; expected the name of a new file.")
    if not store.stat().st_size:
        raise InputError(f"The store {str(store)!r} cannot be copied: it is empty.")
    with closing(SqliteDatabase(store)) as database:
        database.copy(target)
    print(f"Saved to {target}")


def loadtest(
    file: opt.InstanceArgument,
    url: Annotated[str, typer.Option(help="URL of the service.")] = "http://127.0.0.1:8080",
    users: Annotated[str, typer.Option(metavar="N", help="Number of simulated users.")] = "10000",
    pace: Annotated[float, typer.Option(help="Maximum arrivals of users per second; 0 for no limit.", min=0)] = 200.0,
    open_users: Annotated[int, typer.Option(help="Maximum number of concurrent users.", min=1, max=1000)] = 64,
    seed: Annotated[int, typer.Option(help="Seed of types and outcomes.")] = 0,
    key: Annotated[
        str | None, typer.Option(envvar="DEPARTING_CLIENT_KEY", help="API key of the service.", show_default=False)
    ] = None,
    shown: Annotated[
        str | None, typer.Option(metavar="CATEGORY", help="Category of the caller, in shadow mode.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Send simulated users of an instance to a running service; report their regret and the latencies."""
    from departing.cli.tables.loadtest import loadtest_tables
    from departing.loadtest.run import run_loadtest
    from departing.model.validation import check_int, check_seed

    model, n_users = load_instance(file), check_int("users", parse_int("users", users), most=10**8)
    with progress("users", as_json, n_users) as bar:
        try:
            result = run_loadtest(
                model, url, n_users, pace, open_users, check_seed(seed), key or None, bar.advance, shown
            )
        except InputError as error:
            if getattr(error, "code", None) == "key_required":
                problem = "requires a key" if not key else "does not accept this key"
                raise InputError(f"{url} {problem}; pass --key or set DEPARTING_CLIENT_KEY.") from error
            if "shown is missing" in str(error):
                raise InputError(f"{error} Pass --shown CATEGORY.") from error
            raise
    present(as_json, result.to_dict(), [*loadtest_tables(result), result.summary()])
