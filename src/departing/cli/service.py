"""The commands serve, backup and crowd."""

import asyncio
import logging
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from departing.cli.common import (
    InstanceArgument,
    Json,
    load_instance,
    new_console,
    print_json,
    progress,
    whole,
)
from departing.model.errors import InputError, MissingExtraError


def serve(
    instance: Annotated[str | None, typer.Option(help="Begin with the best policy of this instance.")] = None,
    learn: Annotated[bool, typer.Option("--learn", help="Learn from what users do.")] = False,
    categories: Annotated[str | None, typer.Option(metavar="C,C,…", help="The categories of a new store.")] = None,
    types: Annotated[int, typer.Option(help="How many types of users there may be.", min=1, max=64)] = 3,
    store: Annotated[
        str,
        typer.Option(
            help="What keeps everything: a file, or postgresql://… for several workers.",
            envvar="DEPARTING_STORE",
            show_envvar=True,
        ),
    ] = "departing.sqlite",
    workers: Annotated[
        int, typer.Option(help="Processes that serve; more than one need PostgreSQL.", min=1, max=256)
    ] = 1,
    host: Annotated[str, typer.Option(help="Where to listen; others than 127.0.0.1 need a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.", min=1, max=65535)] = 8080,
    inactive_after: Annotated[
        str | None, typer.Option(help="Silence after which a user has departed, such as '14 days' or '30 minutes'.")
    ] = None,
    explore: Annotated[float, typer.Option(help="Share of recommendations that are drawn.", min=0, max=1)] = 0.01,
    unanswered: Annotated[str, typer.Option(help="What no answer means: no-click or not-seen.")] = "no-click",
    shadow: Annotated[bool, typer.Option("--shadow", help="The caller decides, we only watch.")] = False,
    rate: Annotated[float, typer.Option(help="Requests a second for each key; 0 for no limit.", min=0)] = 0.0,
    most_users: Annotated[int, typer.Option(help="Users who may be here at once.", min=1)] = 10_000_000,
    seed: Annotated[int | None, typer.Option(help="What is drawn is fixed by it; any unless told.")] = None,
) -> None:
    """Serve recommendations over HTTP, and learn from what users do.

    Keys come from the environment: DEPARTING_CLIENT_KEY for recommending and feedback, DEPARTING_ADMIN_KEY for all.
    """
    try:
        from departing.service.service import Settings
        from departing.service.user import UNANSWERED
        from departing.service.workers.supervisor import WORKER, check_place, open_service, supervise
        from departing.service.workers.supervisor import serve as run
    except ImportError as error:
        raise MissingExtraError(f"Serving needs {error.name}; install it with: pip install '.[serve]'") from error
    from departing.data.columns import as_span
    from departing.service.api.auth import ApiKeys
    from departing.service.store.connection import is_postgres

    if unanswered not in UNANSWERED:
        raise InputError(f"unanswered is {unanswered!r}; allowed are {', '.join(UNANSWERED)}.")
    if workers > 1 and not is_postgres(store):
        raise InputError(f"workers is {workers}; a file is served by one, several need --store postgresql://….")
    found = None if instance is None else load_instance(instance)
    given = (name.strip() for name in (categories or "").split(","))
    names = [name for name in given if name]
    if len(set(names)) < len(names):
        raise InputError(f"categories is {categories!r:.80}; names must differ.")
    if found is None and not learn and not is_postgres(store) and not Path(store).exists():
        raise InputError("There is nothing to serve; give --instance FILE, or --learn with --categories.")
    silence = float("inf") if inactive_after is None else as_span(inactive_after, True, "time")
    client, admin = (os.environ.get(f"DEPARTING_{right}_KEY") for right in ("CLIENT", "ADMIN"))
    keys = ApiKeys((client,) if client else (), (admin,) if admin else (), rate / workers)
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
    number, _, one_of = os.environ.get(WORKER, "").partition("/")
    if not one_of:
        host = check_place(host, port, keys)
    settings = Settings(silence, explore, unanswered, shadow, most_users=most_users)
    if workers > 1 and not one_of:
        open_service(store, names, found, settings, seed).store.close()  # what is wrong is told here, and once
        print(f"Serving on http://{host}:{port}/ with {workers} workers (Ctrl-C stops them).", flush=True)
        asyncio.run(supervise(workers))
        return
    drawn = None if seed is None else seed + int(number or 0)
    service = open_service(store, names, found, settings, drawn)
    if found is None and not learn and service.catalogue.current.about.get("uniform"):
        service.store.close()
        raise InputError("There is nothing to serve by; give --instance FILE, or --learn.")
    if not one_of:
        print(f"Serving on http://{f'[{host}]' if ':' in host else host}:{port}/ (Ctrl-C stops it).", flush=True)
    train = (types, seed or 0) if learn and number in ("", "0") else None
    asyncio.run(run(service, host, port, keys, train, learn))


def backup(
    store: Annotated[
        Path, typer.Argument(help="The file of a service, which may be running.", exists=True, dir_okay=False)
    ],
    target: Annotated[Path, typer.Argument(help="The file to copy it to, which must not exist.")],
) -> None:
    """Copy the file of a running service; to restore, serve from the copy."""
    from departing.service.store.connection import SqliteDatabase

    if target.exists():
        raise InputError(f"{str(target)!r} exists; a copy goes to a new file.")
    if not store.stat().st_size:
        raise InputError(f"The store {str(store)!r} cannot be copied: it is empty.")
    with closing(SqliteDatabase(store)) as database:
        database.copy(target)
    print(f"Saved to {target}")


def loadtest(
    file: InstanceArgument,
    url: Annotated[str, typer.Option(help="Where the service is.")] = "http://127.0.0.1:8080",
    users: Annotated[str, typer.Option(metavar="N", help="How many users come.")] = "10000",
    pace: Annotated[float, typer.Option(help="New users a second at most; 0 for no limit.", min=0)] = 200.0,
    open_users: Annotated[int, typer.Option("--open", help="How many users are open at once.", min=1, max=1000)] = 64,
    seed: Annotated[int, typer.Option(help="The types and the luck of users are fixed by it.")] = 0,
    key: Annotated[
        str | None, typer.Option(envvar="DEPARTING_CLIENT_KEY", help="The key of the service.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Let simulated users of an instance visit a running service, and tell what they lose there."""
    from departing.loadtest.simulated_users import visit
    from departing.model.validation import check_int, check_seed

    found, n_users = load_instance(file), check_int("users", whole("users", users), most=10**8)
    seed = check_seed(seed)
    with progress("users", n_users, as_json) as advance:
        came = visit(found, url, n_users, pace, open_users, seed, key or None, advance)
    if as_json:
        print_json(came.to_dict())
        return
    console = new_console()
    for table in came.tables():
        console.print(table)
    for note in came.notes():
        console.print(note, markup=False)
