"""The command quickstart."""

from pathlib import Path
from typing import Annotated

from departing.cli import options as opt
from departing.cli.inputs import check_files
from departing.cli.output import present, progress


def quickstart(
    output: Annotated[Path, opt.output_option("HTML page to write.")] = Path("departing-quickstart.html"),
    as_json: opt.Json = False,
) -> None:
    """Demonstrate fitting, planning and online learning on a self-contained HTML page."""
    from departing.cli.tables.quickstart import quickstart_tables, quickstart_values
    from departing.quickstart_demo import run_demo
    from departing.reporting.quickstart import write_page

    check_files(output, suffixes=(".html", ".htm"))
    with progress("computing", as_json) as bar:
        demo = run_demo(bar.update)
    write_page(demo, output)
    present(as_json, quickstart_values(demo), [quickstart_tables(demo)], output=output)
