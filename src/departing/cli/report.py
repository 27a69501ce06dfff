"""The command report."""

from pathlib import Path
from typing import Annotated

from typer import Option

from departing.cli import options as opt
from departing.cli.inputs import check_files, check_resamples, parse_half_life, parse_types
from departing.cli.output import present, progress, save_files
from departing.model.errors import InputError

BOOTSTRAP_HELP = "Bootstrap draws for the uncertainty, at least 20."
PAGE = Path("departing-report.html")


@opt.with_log_options
def report(
    log: opt.LogOptions,
    output: Annotated[Path, opt.output_option("HTML page to write.")] = PAGE,
    policy: Annotated[
        Path | None, Option(metavar="FILE", help="Write the recommended policy as well (.toml or .json).")
    ] = None,
    instance: Annotated[
        Path | None, Option(metavar="FILE", help="Write the fitted instance as well (.toml or .json).")
    ] = None,
    propensity: Annotated[str, Option(metavar="COLUMN", help="Propensity column, if there is one.")] = "propensity",
    types: Annotated[
        str | None, Option(metavar="M", help=opt.TYPES_HELP, show_default="1-5, fewer above 90 categories")
    ] = None,
    bootstrap: Annotated[
        int | None, Option(metavar="N", help=BOOTSTRAP_HELP, show_default="100, or 20 above 90 categories")
    ] = None,
    half_life: opt.HalfLife = None,
    seed: opt.Seed = 0,
    as_json: opt.Json = False,
) -> None:
    """Analyse an event log and recommend what to show, on one self-contained page."""
    from departing.cli.tables.report import report_values
    from departing.reporting.report import PAGE_SUFFIXES, STAGES
    from departing.reporting.report import report as analyse

    numbers = None if types is None else parse_types(types)
    bootstrap = None if bootstrap is None else check_resamples(bootstrap)
    check_files(output, suffixes=PAGE_SUFFIXES)
    check_files(policy)
    check_files(instance)
    with progress(STAGES[0], as_json) as bar:
        source, options = log.arguments()
        options["propensity"] = propensity
        result = analyse(
            source,
            types=numbers,
            bootstrap=bootstrap,
            seed=seed,
            half_life=parse_half_life(half_life),
            progress=bar.show_stage,
            **options,
        )
        result.save(output)
    if result.fit is not None:
        save_files((instance, result.fit.save))
    if policy is not None and not result.verdict.shows_policy:
        raise InputError(f"No policy was saved: {result.verdict.headline} The page {str(output)!r} says why.")
    if result.decision is not None:
        save_files((policy, result.decision.save))
    present(
        as_json,
        report_values(result),
        [result.summary()],
        output=output,
        policy=policy,
        instance=instance if result.fit else None,
        rejects=log.rejects,
    )
