"""The command paper."""

from pathlib import Path
from typing import Annotated, Any

from typer import Exit, Option

from departing.cli import options as opt
from departing.cli.errors import on_interrupt
from departing.cli.inputs import check_files
from departing.cli.output import present, progress

PAGE = Path("departing-paper.html")
DEFAULT = f"{PAGE}; none with --only or --json"


def paper(
    output: Annotated[Path | None, opt.output_option("HTML page to write.", default=DEFAULT)] = None,
    quick: Annotated[bool, Option("--quick", help="Use fewer instances and users; about a minute.")] = False,
    movielens: Annotated[Path | None, Option(metavar="PATH", help="Folder or zip of a MovieLens release.")] = None,
    only: Annotated[
        list[str] | None, Option(metavar="KEY,KEY,…", help="Check these items.", show_default="all")
    ] = None,
    list_items: Annotated[bool, Option("--list", help="List all items, verdicts and code; check nothing.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Check every statement of the paper that can be computed, and the extensions of it.

    Exits with 1 if a verdict differs from the one that `--list` shows.
    """
    from departing.cli.tables.paper import item_values, items_table, paper_table, paper_values
    from departing.data.movielens import MovieLens
    from departing.model.files import atomic_write
    from departing.paper.item import SKIPPED, Scale
    from departing.paper.items import choose_items
    from departing.paper.runner import check_all
    from departing.reporting.paper import count_verdicts, paper_page, summary

    items = choose_items(None if only is None else ",".join(only))
    if list_items:
        counts = count_verdicts([(item, item.verdict) for item in items])
        present(as_json, {"items": [item_values(item) for item in items]}, [items_table(items), counts])
        return
    check_files(output, suffixes=(".html",))
    page = output or PAGE
    checkpoint = page.with_name(f".{page.stem}-unfinished.json")
    written = page if output is not None or not (only or as_json) else None
    if movielens is not None:
        MovieLens.read(movielens)  # rejects an invalid path before the checks
    message = "Interrupted. Finished checks are kept; run the same command to resume."
    with on_interrupt(message), progress("checking", as_json) as bar:
        findings = check_all(items, Scale(quick, movielens), checkpoint, bar.update)
    if written is not None:
        with atomic_write(written) as part:
            part.write_text(paper_page(findings, quick), encoding="utf-8")
    checkpoint.unlink(missing_ok=True)
    contents: list[Any] = [paper_table(findings), summary(findings, quick)]
    changed = [item.key for item, finding in findings if finding.verdict not in (item.verdict, SKIPPED)]
    if changed:
        contents.append(f"Verdicts that differ from the recorded ones: {', '.join(changed)}.")
    present(as_json, {"items": paper_values(findings), "changed": changed}, contents, output=written)
    if changed:
        raise Exit(1)
