"""The command quickstart."""

from pathlib import Path
from typing import Annotated

from departing.cli.common import Json, check_files, new_console, output_option, print_json, progress


def quickstart(
    output: Annotated[Path, output_option("HTML page to write.")] = Path("departing-quickstart.html"),
    as_json: Json = False,
) -> None:
    """Demonstrate fitting, planning and online learning on a self-contained HTML page."""
    from departing.cli.tables.quickstart import quickstart_tables, quickstart_values
    from departing.quickstart_demo import PARTS, run_demo
    from departing.report.quickstart import write_page

    check_files(output, suffixes=(".html", ".htm"))
    with progress("computing", PARTS, as_json) as advance:
        demo = run_demo(advance)
    write_page(demo, output)
    if as_json:
        print_json(quickstart_values(demo), output=output)
        return
    new_console().print(quickstart_tables(demo))
    print(f"Page with plots: {output}")
