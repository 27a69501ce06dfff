"""Commands about A/B tests: power and ab."""

from typing import Annotated, Any

from typer import Argument, Option

from departing.cli import options as opt
from departing.cli.inputs import check_files, load_instance, parse_int
from departing.cli.output import present, progress, save_files

FIT_HELP = "File that fit -o wrote, any instance file, or a built-in example: blog, hard or magazine."
AGAINST_HELP = "Policy of the control arm, or log: the frequencies at which the log showed each category."
SHARE_HELP = "Share of the users in the treatment arm."


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
    plot: opt.Plot = None,
    as_json: opt.Json = False,
) -> None:
    """Compute the users that an A/B test of a policy needs."""
    from departing.abtest.sample_size import power as compute_power
    from departing.cli.tables import abtest as tables
    from departing.model.examples import EXAMPLES

    check_files(plot=plot)
    options: dict[str, Any] = {"power": power, "significance": significance, "share": share, "max_nodes": max_nodes}
    number = None if users is None else parse_int("users", users)
    model: Any = load_instance(source) if source in EXAMPLES or "." not in source else source
    with progress("computing distributions", as_json):
        size = compute_power(model, policy, against, users=number, **options)
    save_files((plot, size.plot))
    present(as_json, tables.power_values(size), tables.power_contents(size), plot=plot)
