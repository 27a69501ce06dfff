"""The command serve."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from departing.cli.shared import load_instance
from departing.model.errors import InputError, MissingExtraError


def serve(
    instance: Annotated[str | None, typer.Option(help="Begin with the best policy of this instance.")] = None,
    learn: Annotated[bool, typer.Option("--learn", help="Learn from what users do.")] = False,
    categories: Annotated[str | None, typer.Option(metavar="C,C,…", help="The categories of a new store.")] = None,
    types: Annotated[int, typer.Option(help="How many types of users there may be.", min=1, max=64)] = 3,
    store: Annotated[Path, typer.Option(help="The file that keeps everything.")] = Path("departing.sqlite"),
    host: Annotated[str, typer.Option(help="Where to listen; others than 127.0.0.1 need a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.", min=1, max=65535)] = 8080,
    inactive_after: Annotated[
        str | None, typer.Option(help="Silence after which a user has departed, such as '14 days' or '30 minutes'.")
    ] = None,
    explore: Annotated[float, typer.Option(help="Share of recommendations that are drawn.", min=0, max=1)] = 0.05,
    unanswered: Annotated[str, typer.Option(help="What no answer means: no-click or not-seen.")] = "no-click",
    shadow: Annotated[bool, typer.Option("--shadow", help="The caller decides, we only watch.")] = False,
    rate: Annotated[float, typer.Option(help="Requests a second for each key; 0 for no limit.", min=0)] = 0.0,
    seed: Annotated[int | None, typer.Option(help="What is drawn is fixed by it; any unless told.")] = None,
) -> None:
    """Serve recommendations over HTTP, and learn from what users do.

    Keys come from the environment: DEPARTING_CLIENT_KEY for recommending and feedback, DEPARTING_ADMIN_KEY for all.
    """
    try:
        from departing.serving.people import UNANSWERED
        from departing.serving.run import open_service
        from departing.serving.run import serve as run
        from departing.serving.service import Settings
    except ImportError as error:
        raise MissingExtraError(f"Serving needs {error.name}; install it with: pip install '.[serve]'") from error
    from departing.data.columns import as_span
    from departing.serving.http import Keys

    if unanswered not in UNANSWERED:
        raise InputError(f"unanswered is {unanswered!r}; allowed are {', '.join(UNANSWERED)}.")
    found = None if instance is None else load_instance(instance)
    given = (name.strip() for name in (categories or "").split(","))
    names = [name for name in given if name]
    if len(set(names)) < len(names):
        raise InputError(f"categories is {categories!r:.80}; names must differ.")
    if found is None and not learn and not store.exists():
        raise InputError("There is nothing to serve; give --instance FILE, or --learn with --categories.")
    silence = float("inf") if inactive_after is None else as_span(inactive_after, True, "time")
    client, admin = (os.environ.get(f"DEPARTING_{right}_KEY") for right in ("CLIENT", "ADMIN"))
    keys = Keys((client,) if client else (), (admin,) if admin else (), rate)
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
    service = open_service(store, names, found, Settings(silence, explore, unanswered, shadow), seed)
    asyncio.run(run(service, host, port, keys, (types, seed or 0) if learn else None))
