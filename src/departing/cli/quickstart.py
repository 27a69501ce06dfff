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
    from departing.model.files import check_writable
    from departing.report.quickstart import write_page
    from departing.report.quickstart_demo import tell

    check_writable(out, (".html", ".htm"))
    with progress("working it out", 5, as_json) as advance:
        story = tell(advance)
    write_page(story, out)
    if as_json:
        print_json(story.values() | {"page": str(out)})
    else:
        new_console().print(story)
        print(f"The whole story, with pictures: {out}")
