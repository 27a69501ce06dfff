"""The command paper."""

from pathlib import Path
from typing import Annotated

import typer

from departing.cli.common import Json, interrupted, new_console, print_json, progress, stop


def paper(
    out: Annotated[Path, typer.Option("--save", "-o", help="The page to write.")] = Path("departing-paper.html"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer instances and users: under a minute.")] = False,
    movielens: Annotated[
        Path | None, typer.Option(help="The folder or zip of a MovieLens release, for the paper's scheme.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every statement of the paper that can be computed, and show what was found beyond it."""
    from departing.cli.tables.paper import paper_table, paper_values
    from departing.data.movielens import MovieLens
    from departing.model.files import atomic_write, check_writable
    from departing.paper.claim import Scale
    from departing.paper.claims import CLAIMS
    from departing.paper.runner import check_all
    from departing.report.paper import paper_page, summary

    check_writable(out, (".html",))
    kept = out.with_name(f".{out.stem}-unfinished.json")
    if movielens is not None:
        MovieLens.read(movielens)  # a wrong path is told before the work, not after
    try:
        with progress("checking", len(CLAIMS), as_json) as advance:
            found = check_all(CLAIMS, Scale(quick, movielens), kept, lambda _: advance(1))
    except (KeyboardInterrupt, SystemError) as error:
        if not interrupted(error):
            raise
        stop("Interrupted; what was checked is kept, and the same command goes on from there.")
    with atomic_write(out) as part:
        part.write_text(paper_page(found, quick), encoding="utf-8")
    kept.unlink(missing_ok=True)
    if as_json:
        print_json({"claims": paper_values(found), "page": str(out)})
        return
    new_console().print(paper_table(found))
    print(summary(found, quick))
    print(f"The report, with tables and pictures: {out}")
