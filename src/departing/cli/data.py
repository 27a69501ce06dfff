"""Commands about data: sample-log, return-times, fit, ope and movielens."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from departing.cli import options as opt
from departing.cli.errors import output_errors
from departing.cli.inputs import (
    check_files,
    check_resamples,
    exclusive,
    load_instance,
    load_policy,
    parse_half_life,
    parse_int,
    parse_types,
    split_names,
)
from departing.cli.output import present, progress, save_files
from departing.model.errors import InputError

DEPART_HELP = "Departure probability after a no-click: one, or one per genre (0.5,0.3)."
CLICK_HELP = "Click probability from the normalised rating r: stars (r) or paper (1 - r)."
POLICY_FILE_HELP = "Recommended policy to write (.toml or .json)."
RESAMPLES_HELP = "Bootstrap resamples, at least 20"


def sample_log(
    file: opt.InstanceArgument,
    output: Annotated[Path, opt.output_option("Event log to write (.parquet or .csv).")],
    users: opt.Users = "1e5",
    days: Annotated[float, Option(help="Length of the log in days.")] = 90.0,
    step_days: Annotated[float, Option(help="Mean time between two steps of a user, in days.")] = 1.0,
    seed: opt.Seed = 0,
    as_json: opt.Json = False,
) -> None:
    """Write a simulated event log of a site that recommends categories uniformly at random."""
    from departing.model.examples import LOG_COLUMNS
    from departing.model.tables import TABLE_SUFFIXES
    from departing.simulation.sample_log import sample_log as sample

    check_files(output, suffixes=TABLE_SUFFIXES)
    with progress("sampling", as_json):
        options: dict[str, Any] = {"days": days, "step_days": step_days, **LOG_COLUMNS.get(file, {})}
        log = sample(load_instance(file), parse_int("users", users), seed, **options)
        log.save(output)
    n_users, n_events = log.histories.users, len(log.user)
    contents = [f"{n_events:,} events of {n_users:,} users"]
    present(as_json, {"users": n_users, "events": n_events}, contents, output=output)


@opt.with_log_options
def return_times(log: opt.LogOptions, plot: opt.Plot = None, as_json: opt.Json = False) -> None:
    """Suggest an inactivity period from the times after which the users of a log return."""
    check_files(plot=plot)
    exclusive("return-times", rejects=log.rejects, inactive_after=log.inactive_after)
    times = log.return_times(as_json)
    save_files((plot, times.plot))
    present(as_json, times.to_dict(), [times.summary()], plot=plot)


@opt.with_log_options
def fit(
    log: opt.LogOptions,
    output: opt.InstanceOutput = None,
    types: opt.Types = "1-5",
    criterion: Annotated[str, Option(help="Selection of the number of types: sabic, bic or held-out.")] = "sabic",
    depart: Annotated[bool, Option("--sure-departure", help="Assume every no-click ends the visit.")] = False,
    half_life: opt.HalfLife = None,
    bootstrap: Annotated[int, Option(metavar="N", help=f"{RESAMPLES_HELP}; 0 skips the decision.")] = 100,
    policy: Annotated[Path | None, Option(metavar="FILE", help=POLICY_FILE_HELP)] = None,
    plot: opt.Plot = None,
    seed: opt.Seed = 0,
    as_json: opt.Json = False,
) -> None:
    """Infer the types of users from an event log, and recommend a policy."""
    from departing.cli.tables import fit as tables
    from departing.decision.plan import plan
    from departing.fitting.fit import fit as fit_log

    numbers, bootstrap = parse_types(types), check_resamples(bootstrap, optional=True)
    if policy is not None and not bootstrap:
        raise InputError("--policy needs a decision; --bootstrap 0 skips it.")
    check_files(output, plot)
    check_files(policy)
    data = log.read(as_json)
    with progress("fitting", as_json) as bar:
        options: dict[str, Any] = {"criterion": criterion, "depart": 1.0 if depart else None, "seed": seed}
        options["half_life"] = parse_half_life(half_life)
        model = fit_log(data, numbers, **options, progress=bar.update)
    with progress("checking", as_json):
        check = model.check()
    save_files((output, model.save), (plot, partial(model.plot, check=check)))
    if not as_json:
        with output_errors():
            tables.print_fit(data, model, check)
    decision, contents = None, []
    if bootstrap:
        try:
            with progress("planning", as_json) as bar:
                decision = plan(model, bootstrap=bootstrap, seed=seed, progress=bar.update)
            contents = tables.decision_contents(decision)
            save_files((policy, decision.save))
        except InputError as error:
            if policy is not None or decision is not None or not model.instance.extensions:
                raise
            contents = [f"No policy is recommended: {error}"]
    values = tables.fit_values(model, check, decision) | {"log": tables.log_values(data.report)}
    present(as_json, values, contents, output=output, plot=plot, policy=policy, rejects=log.rejects)


@opt.with_log_options
def ope(
    log: opt.LogOptions,
    policies: Annotated[list[str], Argument(metavar="POLICY", help=opt.POLICY_HELP)],
    propensity: Annotated[str, Option(metavar="COLUMN", help="Propensity column, if there is one.")] = "propensity",
    types: opt.Types = "1-5",
    confidence: opt.Confidence = 0.95,
    bootstrap: Annotated[int, Option(metavar="N", help=f"{RESAMPLES_HELP}.")] = 200,
    seed: opt.Seed = 0,
    as_json: opt.Json = False,
) -> None:
    """Estimate the value of policies from an event log (off-policy evaluation)."""
    from departing.cli.tables import ope as tables
    from departing.cli.tables.fit import log_values
    from departing.decision.log_value import LogValue
    from departing.fitting.fit import fit as fit_log
    from departing.model.validation import check_confidence
    from departing.offpolicy.estimators import off_policy_value

    numbers, bootstrap = parse_types(types), check_resamples(bootstrap)
    confidence = check_confidence(confidence)
    data = replace(log, horizon=None).read(as_json, propensity=propensity)
    if log.horizon is not None and data.steps.max() <= log.horizon:  # visits may have ended there
        data = log.read(as_json, propensity=propensity)
    with progress("fitting", as_json) as bar:
        model = fit_log(data, numbers, seed=seed, progress=bar.update)
    parsed, labels = zip(*(load_policy(text, model.instance) for text in policies), strict=True)
    options: dict[str, Any] = {"fit": model, "confidence": confidence, "bootstrap": bootstrap, "seed": seed}
    options["horizon"] = log.horizon
    with progress("estimating", as_json, bootstrap) as bar:  # all policies share the resamples
        values = [off_policy_value(data, policy, **options, progress=lambda *_: bar.advance(1)) for policy in parsed]
    with progress("checking", as_json):
        check = model.check()
    log_value = check.log_value
    if log_value is not None and "reward" in model.instance.extensions:
        log_value = LogValue.of(model.histories, model.instance).value(model.likelihood.users)
    if log.horizon not in (None, data.horizon):  # the policies are cut, and the log is not
        log_value = None
    rows = [tables.ope_values(*pair) for pair in zip(labels, values, strict=True)]
    clicks = {"log_clicks": check.log_value, "log_value": log_value}
    document = {"policies": rows, **clicks, "log": log_values(data.report)}
    if not as_json:
        with output_errors():
            print(data.report)
    contents = tables.ope_contents(labels, values, log_value)
    present(as_json, document, contents, rejects=log.rejects)


def movielens(
    path: Annotated[Path, Argument(metavar="PATH", help="Folder or zip file of a MovieLens release.")],
    genres: Annotated[
        list[str] | None, Option(metavar="G,G,…", help="Genres.", show_default="three most rated")
    ] = None,
    types: Annotated[int | None, Option(help="Number of types.", show_default="3")] = None,
    depart: Annotated[str, Option(metavar="PROBABILITY", help=DEPART_HELP)] = "1",
    click: Annotated[str, Option(help=CLICK_HELP)] = "stars",
    replay: Annotated[bool, Option("--replay", help="Make every user a type instead of clustering.")] = False,
    seed: Annotated[int | None, Option(help="Seed of the split and the clustering.", show_default="0")] = None,
    output: opt.InstanceOutput = None,
    plot: opt.Plot = None,
    as_json: opt.Json = False,
) -> None:
    """Build an instance from MovieLens ratings: clustered types, or a replay of the users."""
    from departing.cli.tables import movielens as tables
    from departing.data.movielens import MovieLens

    if replay:
        exclusive("--replay", types=types, seed=seed)
    check_files(output, plot)
    probabilities = _parse_probabilities(depart)
    chosen = split_names(genres)
    with progress("reading", as_json):
        ratings = MovieLens.read(path)
        if replay:
            data = ratings.replay(chosen, depart=probabilities, click=click)
        else:
            n_types = 3 if types is None else types
            data = ratings.semi_synthetic(chosen, n_types, depart=probabilities, seed=seed or 0, click=click)
    save_files((output, data.instance.save), (plot, data.plot))
    contents: list[Any] = [tables.genre_table(ratings, data), *tables.movielens_notes(data)]
    present(as_json, tables.movielens_values(ratings, data), contents, output=output, plot=plot)


def _parse_probabilities(text: str) -> float | list[float]:
    """Parse one probability, or several separated by commas."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        expected = "a probability, or one per genre such as 0.5,0.3"
        raise InputError(f"depart is {text!r:.40}; expected {expected}.", "depart") from None
    return values[0] if len(values) == 1 else values
