"""The command quickstart."""

from pathlib import Path
from typing import Annotated

import typer

from departing.cli.common import Json, new_console, print_json, progress


def quickstart(
    out: Annotated[Path, typer.Option("--save", "-o", help="The page to write.")] = Path("departing-quickstart.html"),
    as_json: Json = False,
) -> None:
    """Go from a log to a policy and a learner with real numbers, on a page that opens without a network."""
    from departing.cli.tables.quickstart import quickstart_tables, quickstart_values
    from departing.model.files import check_writable
    from departing.quickstart_demo import PARTS, run_demo
    from departing.report.quickstart import write_page

    check_writable(out, (".html", ".htm"))
    with progress("computing", PARTS, as_json) as advance:
        demo = run_demo(advance)
    write_page(demo, out)
    if as_json:
        print_json(quickstart_values(demo) | {"page": str(out)})
    else:
        new_console().print(quickstart_tables(demo))
        print(f"Full page with plots: {out}")
