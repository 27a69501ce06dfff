"""Commands about A/B tests: power and ab."""

from typing import Annotated, Any

from typer import Argument, Option

from departing.cli import options as opt
from departing.cli.inputs import check_files, load_instance, parse_int, split_names
from departing.cli.output import present, progress, save_files
from departing.model.errors import InputError

FIT_HELP = "File that fit -o wrote, any instance file, or a built-in example: blog, hard, magazine or shop."
AGAINST_HELP = "Policy of the control arm, or log: the frequencies at which the log showed each category."
SHARE_HELP = "Share of the users in the treatment arm."
RESULTS_HELP = (
    "CSV, Parquet, JSON-lines, DuckDB or SQLite file: one row per user (arm, clicks) or event (user, arm, clicked)."
)
PLANNED_HELP = "Users at which the confidence sequence is narrowest; fix it before the experiment."


def power(
    source: Annotated[str, Argument(metavar="FIT", help=FIT_HELP)],
    policy: Annotated[str, Argument(metavar="POLICY", help=f"Policy of the treatment arm: {opt.POLICY_HELP}")],
    against: Annotated[str, Option(metavar="POLICY", help=AGAINST_HELP)] = "log",
    power: Annotated[float, Option(help="Probability with which the test is to find the difference.")] = 0.8,
    significance: Annotated[float, Option(help="Significance level of the two-sided test.")] = 0.05,
    share: Annotated[float, Option(help=SHARE_HELP)] = 0.5,
    users: Annotated[
        str | None, Option(metavar="N", help="Users of both arms: print the power and the detectable effect.")
    ] = None,
    max_nodes: Annotated[
        int | None, Option("--nodes", metavar="N", help="Maximum number of nodes (counts) to expand for each policy.")
    ] = None,
    clicks_only: Annotated[
        bool, Option("--clicks-only", help="Compare clicks although the instance has rewards, which are ignored.")
    ] = False,
    plot: opt.Plot = None,
    as_json: opt.Json = False,
) -> None:
    """Compute the users that an A/B test of a policy needs."""
    from departing.abtest.power import power as compute_power
    from departing.cli.tables import abtest as tables
    from departing.model.examples import EXAMPLES

    check_files(plot=plot)
    options: dict[str, Any] = {"power": power, "significance": significance, "share": share, "max_nodes": max_nodes}
    options["clicks_only"] = clicks_only
    number = None if users is None else parse_int("users", users)
    model: Any = load_instance(source) if source in EXAMPLES or "." not in source else source
    with progress("computing distributions", as_json):
        size = compute_power(model, policy, against, users=number, **options)
    save_files((plot, size.plot))
    present(as_json, tables.power_values(size), tables.power_contents(size), plot=plot)


def ab(
    results: Annotated[str, Argument(metavar="RESULTS", help=RESULTS_HELP)],
    control: Annotated[str | None, Option(metavar="NAME", help="Control arm.", show_default="control")] = None,
    arm: Annotated[str, Option(metavar="COLUMN", help="Column of the arm.")] = "arm",
    clicks: Annotated[str, Option(metavar="COLUMN", help="Column with the clicks of a user.")] = "clicks",
    user: Annotated[str, Option(metavar="COLUMN", help="User ID column, if there is one.")] = "user",
    clicked: Annotated[str, Option(metavar="COLUMN", help="Column with the click of an event.")] = "clicked",
    time: Annotated[str, Option(metavar="COLUMN", help="Timestamp column, if there is one.")] = "time",
    departed: Annotated[str, Option(metavar="COLUMN", help="Departure column, if there is one.")] = "departed",
    share: Annotated[
        list[str] | None, Option(metavar="SHARE", help=f"{SHARE_HELP} Or ARM=SHARE,….", show_default="equal")
    ] = None,
    confidence: opt.Confidence = 0.95,
    planned_users: Annotated[str, Option(metavar="N", help=PLANNED_HELP)] = "10000",
    clicked_values: Annotated[
        list[str] | None, Option(metavar="V,V,…", help="Values that mean a click.", show_default="known words")
    ] = None,
    time_format: Annotated[str | None, Option(metavar="FORMAT", help=opt.FORMAT_HELP)] = None,
    max_rejected: Annotated[float, Option(metavar="SHARE", help=opt.REJECTED_HELP)] = 0.05,
    table: Annotated[str | None, Option(metavar="NAME", help="Table of a DuckDB or SQLite file.")] = None,
    memory_limit: Annotated[str, Option(metavar="SIZE", help="Spill to disk above this limit.")] = "1 GB",
    plot: opt.Plot = None,
    as_json: opt.Json = False,
) -> None:
    """Read the results of an A/B test: differences with intervals, and whether to stop."""
    from departing.abtest.analysis import ab_test
    from departing.cli.tables import abtest as tables

    check_files(plot=plot)
    with progress("reading", as_json):
        test = ab_test(
            results,
            control=control,
            arm=arm,
            clicks=clicks,
            user=user,
            clicked=clicked,
            time=time,
            departed=departed,
            share=_parse_share(None if share is None else ",".join(share)),
            confidence=confidence,
            planned_users=parse_int("planned_users", planned_users),
            clicked_values=split_names(clicked_values),
            time_format=time_format,
            max_rejected=max_rejected,
            table=table,
            memory_limit=memory_limit,
        )
    save_files((plot, test.plot))
    present(as_json, tables.readout_values(test), tables.readout_contents(test), plot=plot)


def _parse_share(text: str | None) -> float | dict[str, float] | None:
    """Parse one share, or a share for every arm such as control=0.5,new=0.5."""
    if text is None:
        return None
    try:
        if "=" not in text:
            return float(text)
        pairs = (part.rpartition("=") for part in text.split(","))
        return {name.strip(): float(share) for name, _, share in pairs}
    except ValueError:
        expected = "a number such as 0.2, or a share for every arm such as control=0.5,a=0.25,b=0.25"
        raise InputError(f"share is {text!r:.80}; expected {expected}.", "share") from None
