"""Commands `serve`, `backup` and `loadtest`."""

import asyncio
import logging
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from departing.cli import options as opt
from departing.cli.inputs import load_instance, parse_int, split_names
from departing.cli.output import present, progress
from departing.model.errors import InputError, MissingExtraError


def serve(
    instance: Annotated[str | None, typer.Option(help="Serve the optimal policy of this instance.")] = None,
    learn: Annotated[bool, typer.Option("--learn", help="Learn online from feedback.")] = False,
    categories: Annotated[str | None, typer.Option(metavar="C,C,…", help="Categories of a new store.")] = None,
    types: Annotated[int, typer.Option(help="Number of types to learn.")] = 3,
    store: Annotated[
        str, typer.Option(help="SQLite file, or postgresql://… for several workers.", envvar="DEPARTING_STORE")
    ] = "departing.sqlite",
    workers: Annotated[int, typer.Option(help="Server processes; several need PostgreSQL.", min=1, max=256)] = 1,
    host: Annotated[str, typer.Option(help="Address to listen on; requires an API key if not local.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8080,
    inactive_after: Annotated[
        str | None,
        typer.Option(
            help="Inactivity period after which a user counts as departed, such as '14 days' or '30 minutes'.",
            show_default="never",
        ),
    ] = None,
    explore: Annotated[float, typer.Option(help="Share of uniformly random recommendations.", min=0, max=1)] = 0.01,
    missing_feedback: Annotated[str, typer.Option(help="Missing feedback means no-click or not-seen.")] = "no-click",
    shadow: Annotated[bool, typer.Option("--shadow", help="Shadow mode: the caller decides.")] = False,
    rate: Annotated[float, typer.Option("--rate-limit", help="Requests per second and key; 0: no limit.", min=0)] = 0,
    max_users: Annotated[int, typer.Option(help="Maximum number of active users.", min=1)] = 10_000_000,
    seed: Annotated[int | None, typer.Option(help="Seed of random recommendations.", show_default="random")] = None,
) -> None:
    """Serve recommendations over HTTP.

    API keys come from the environment: DEPARTING_CLIENT_KEY for recommendations and feedback, DEPARTING_ADMIN_KEY for
    all calls.
    """
    try:
        from departing.service.server import check_address
        from departing.service.server import serve as run
        from departing.service.service import Settings
        from departing.service.startup import open_service
        from departing.service.user import MISSING_FEEDBACK
        from departing.service.workers.supervisor import WORKER, supervise
    except ImportError as error:
        raise MissingExtraError(f"Serving needs {error.name}; install it with: pip install '.[serve]'") from error
    from departing.data.spec import parse_inactivity
    from departing.model.names import check_names
    from departing.model.validation import MAX_TYPES, check_int
    from departing.service.api.auth import ApiKeys
    from departing.service.store.connection import is_postgres

    types = check_int("types", types, 1, MAX_TYPES)
    if missing_feedback not in MISSING_FEEDBACK:
        accepted = ", ".join(MISSING_FEEDBACK)
        raise InputError(f"--missing-feedback is {missing_feedback!r}; expected one of {accepted}.")
    if workers > 1 and not is_postgres(store):
        raise InputError(f"--workers is {workers}; SQLite supports one worker. Use --store postgresql://… for more.")
    model = None if instance is None else load_instance(instance)
    names = check_names("categories", split_names(categories)) if categories else ()
    if model is None and not learn and not is_postgres(store) and not Path(store).exists():
        raise InputError("There is no policy to serve; use --instance FILE, or --learn with --categories.")
    inactivity = float("inf") if inactive_after is None else parse_inactivity(inactive_after)
    client, admin = (os.environ.get(f"DEPARTING_{access}_KEY") for access in ("CLIENT", "ADMIN"))
    keys = ApiKeys((client,) if client else (), (admin,) if admin else (), rate / workers)
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
    number, _, total = os.environ.get(WORKER, "").partition("/")
    if not total:
        host = check_address(host, port, keys)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    settings = Settings(inactivity, explore, missing_feedback, shadow, max_users=max_users)
    if workers > 1 and not total:
        open_service(store, names, model, settings, seed).store.close()  # reports errors once, not in each worker
        print(f"Serving on {url} with {workers} workers (Ctrl-C to stop).", flush=True)
        asyncio.run(supervise(workers))
        return
    worker_seed = None if seed is None else seed + int(number or 0)
    service = open_service(store, names, model, settings, worker_seed)
    if model is None and not learn and service.rollout.state.current.uniform:
        service.store.close()
        raise InputError("The store has no policy to serve; use --instance FILE, or --learn.")
    if not total:
        print(f"Serving on {url} (Ctrl-C to stop).", flush=True)
    train = (types, seed or 0) if learn and number in ("", "0") else None
    asyncio.run(run(service, host, port, keys, train, learn))


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
    as_json: opt.Json = False,
) -> None:
    """Send simulated users of an instance to a running service; report their regret and the latencies."""
    from departing.cli.tables.loadtest import loadtest_tables
    from departing.loadtest.run import run_loadtest
    from departing.model.validation import check_int, check_seed

    model, n_users = load_instance(file), check_int("users", parse_int("users", users), most=10**8)
    with progress("users", as_json, n_users) as bar:
        result = run_loadtest(model, url, n_users, pace, open_users, check_seed(seed), key or None, bar.advance)
    present(as_json, result.to_dict(), [*loadtest_tables(result), result.summary()])
