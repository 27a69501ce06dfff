"""The command paper."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from departing.cli import options as opt
from departing.cli.errors import on_interrupt
from departing.cli.inputs import check_files
from departing.cli.output import present, progress


def paper(
    output: Annotated[Path, opt.output_option("HTML page to write.")] = Path("departing-paper.html"),
    quick: Annotated[bool, Option("--quick", help="Use fewer instances and users; less than a minute.")] = False,
    movielens: Annotated[Path | None, Option(metavar="PATH", help="Folder or zip of a MovieLens release.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Check every claim of the paper that can be computed, and the extensions of it."""
    from departing.cli.tables.paper import paper_table, paper_values
    from departing.data.movielens import MovieLens
    from departing.model.files import atomic_write
    from departing.paper.claim import Scale
    from departing.paper.claims import CLAIMS
    from departing.paper.runner import check_all
    from departing.report.paper import paper_page, summary

    check_files(output, suffixes=(".html",))
    checkpoint = output.with_name(f".{output.stem}-unfinished.json")
    if movielens is not None:
        MovieLens.read(movielens)  # rejects an invalid path before the checks
    message = "Interrupted. Finished checks are kept; run the same command to resume."
    with on_interrupt(message), progress("checking", as_json) as bar:
        findings = check_all(CLAIMS, Scale(quick, movielens), checkpoint, bar.update)
    with atomic_write(output) as part:
        part.write_text(paper_page(findings, quick), encoding="utf-8")
    checkpoint.unlink(missing_ok=True)
    contents: list[Any] = [paper_table(findings), summary(findings, quick)]
    present(as_json, {"claims": paper_values(findings)}, contents, output=output)
