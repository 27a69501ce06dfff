"""The command quickstart."""

from pathlib import Path
from typing import Annotated

from departing.cli import options as opt
from departing.cli.inputs import check_files
from departing.cli.output import present, progress

NEXT = (
    "Next, with your own log (CSV, Parquet, JSON lines, a folder or a database):\n"
    "  departing report YOUR_LOG.csv -o report.html"
)


def quickstart(
    output: Annotated[Path, opt.output_option("HTML page to write.")] = Path("departing-quickstart.html"),
    as_json: opt.Json = False,
) -> None:
    """Write the report on a sample log: a page from the log to the decision."""
    from departing.cli.tables.report import report_values
    from departing.reporting.quickstart import quickstart_report
    from departing.reporting.report import PAGE_SUFFIXES, STAGES

    check_files(output, suffixes=PAGE_SUFFIXES)
    with progress(STAGES[0], as_json) as bar:
        result = quickstart_report(bar.show_stage)
        result.save(output)
    present(as_json, report_values(result), [result.summary(), result.note, NEXT], output=output)
