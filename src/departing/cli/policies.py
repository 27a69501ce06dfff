"""Commands about instances and policies: instance, evaluate, simulate and plan."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from departing.cli import options as opt
from departing.cli.errors import fail
from departing.cli.inputs import check_files, exclusive, load_instance, load_policy, parse_int, split_names
from departing.cli.output import present, progress, save_files
from departing.model.errors import InputError

if TYPE_CHECKING:
    from departing.model.instance import Instance

POLICIES_HELP = f"{opt.POLICY_HELP} By default all fixed policies and greedy."
FAMILY_HELP = "Draw a random instance: uniform, specialists, sticky, row, column or diagonal."
NODES_HELP = "Maximum number of nodes (counts) to expand for each policy."
GAP_HELP = "Optimality gap at which to stop, in the unit of the value (clicks per user by default)."
SENSITIVITY_HELP = "Report the effect of changing every probability by up to this fraction of it."


def instance(
    file: Annotated[str | None, Argument(metavar="INSTANCE", help=opt.INSTANCE_HELP)] = None,
    family: Annotated[str | None, Option("--random", metavar="FAMILY", help=FAMILY_HELP)] = None,
    types: Annotated[int | None, Option(help="Types of a random instance.", show_default="2")] = None,
    categories: Annotated[int | None, Option(help="Categories of a random instance.", show_default="2")] = None,
    depart: Annotated[float | None, Option(help="P(departure | no-click) of a random instance.")] = None,
    seed: Annotated[int | None, Option(help="Seed of a random instance.", show_default="0")] = None,
    output: opt.InstanceOutput = None,
    as_json: opt.Json = False,
) -> None:
    """Show an instance, draw a random one, or convert between TOML and JSON."""
    from departing.cli.tables.instance import instance_tables
    from departing.model.families import random_instance

    if (file is None) == (family is None):
        raise InputError("Expected either INSTANCE or --random FAMILY.")
    options: dict[str, Any] = {"types": types, "categories": categories, "seed": seed, "depart": depart}
    given = {name: value for name, value in options.items() if value is not None}
    if file is not None and given:
        raise InputError(f"--{next(iter(given))} requires --random; to change a saved instance, edit its file.")
    chosen = load_instance(file) if file is not None else random_instance(str(family), **given)
    save_files((output, chosen.save))
    present(as_json, chosen.to_dict(), instance_tables(chosen), output=output)


def evaluate(
    file: opt.InstanceArgument,
    policies: Annotated[list[str] | None, Argument(metavar="POLICY", help=POLICIES_HELP)] = None,
    gap: Annotated[float, Option(help="Gap at which to stop: upper minus lower bound.")] = 1e-9,
    max_nodes: Annotated[
        str | None, Option("--nodes", metavar="N", help=NODES_HELP, show_default="10^7 / categories")
    ] = None,
    distribution: Annotated[bool, Option("--distribution", help="Show distributions of clicks and steps.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Compute the exact value of policies: expected clicks per user."""
    from departing.cli.tables.evaluation import evaluation_contents, evaluation_values
    from departing.evaluation.evaluate import evaluate as evaluate_policy

    chosen = load_instance(file)
    texts = policies or [*(f"fixed:{a}" for a in range(chosen.n_categories)), "greedy"]
    parsed = [load_policy(text, chosen) for text in texts]
    limit = None if max_nodes is None else parse_int("max_nodes", max_nodes)
    with progress("evaluating", as_json):
        rows = [(label, evaluate_policy(chosen, policy, gap, limit)) for policy, label in parsed]
    values = {"policies": [evaluation_values(*row, distribution) for row in rows]}
    present(as_json, values, evaluation_contents(chosen, rows, gap, distribution))


def simulate(
    file: opt.InstanceArgument,
    policy: Annotated[str, Argument(metavar="POLICY", help=opt.POLICY_HELP)],
    users: opt.Users = "1e6",
    seed: opt.Seed = 0,
    engine: Annotated[str, Option(help="auto, aggregate, lanes or step.")] = "auto",
    against: Annotated[str | None, Option(metavar="POLICY", help="Compare with it on the same users.")] = None,
    open_users: Annotated[int | None, Option(help="Concurrent users of engine step.", show_default="4096")] = None,
    max_steps: Annotated[int | None, Option(help="Truncate users after this many steps.")] = None,
    threads: Annotated[int | None, Option(help="Threads of engine lanes.", show_default="all cores")] = None,
    log: Annotated[Path | None, Option(metavar="FILE", help="Write an event log (.parquet or .csv).")] = None,
    confidence: opt.Confidence = 0.95,
    as_json: opt.Json = False,
) -> None:
    """Simulate users under a policy, or compare two policies on the same users."""
    from departing.cli.tables import simulation as tables
    from departing.model.validation import check_confidence
    from departing.simulation.compare import compare
    from departing.simulation.simulate import simulate as simulate_policy

    chosen, n_users = load_instance(file), parse_int("users", users)
    parsed, label = load_policy(policy, chosen)
    check_confidence(confidence)  # before the simulation
    if against is not None:
        chosen_engine = None if engine == "auto" else engine
        exclusive("--against", log=log, engine=chosen_engine, threads=threads, open_users=open_users)
        other, other_label = load_policy(against, chosen)
        with progress("comparing", as_json, n_users) as bar:
            comparison = compare(chosen, parsed, other, n_users, seed, max_steps=max_steps, progress=bar.advance)
        result = (label, other_label, comparison, confidence)
        present(as_json, tables.comparison_values(*result), [tables.comparison_table(*result)])
        return
    started = time.perf_counter()
    with progress("simulating", as_json, n_users) as bar:
        options: dict[str, Any] = {"open_users": open_users, "max_steps": max_steps, "threads": threads, "log": log}
        run = simulate_policy(chosen, parsed, n_users, seed, engine, **options, progress=bar.advance)
    seconds = time.perf_counter() - started
    timed = (label, run, confidence, seconds)
    present(as_json, tables.run_values(*timed), [tables.run_table(*timed)], log=log)


def _allowed_names(given: list[str], instance: "Instance") -> list[str]:
    """Names of categories in the values of `--allowed`, in which commas separate names unless a name has one."""
    return [name for text in given for name in ([text] if text in instance.categories else split_names([text]) or ())]


def plan(
    file: opt.InstanceArgument,
    gap: Annotated[float | None, Option(help=GAP_HELP, show_default="1e-6 of the largest reward")] = None,
    seconds: Annotated[float, Option(help="Time limit; the bounds reached until then are returned.")] = 60.0,
    method: Annotated[str, Option(help="auto, closed-form, lattice, search or finite-horizon.")] = "auto",
    allowed: Annotated[
        list[str] | None, Option(metavar="C,C,…", help="Allowed categories.", show_default="all")
    ] = None,
    depth: Annotated[int, Option(help="Number of steps that the policy tree shows.")] = 4,
    sensitivity: Annotated[float | None, Option(metavar="FRACTION", help=SENSITIVITY_HELP)] = None,
    verify: Annotated[bool, Option("--verify", help="Verify the certificate of the bounds.")] = False,
    output: Annotated[Path | None, opt.output_option("Write the policy (.toml or .json).")] = None,
    plot: opt.Plot = None,
    as_json: opt.Json = False,
) -> None:
    """Compute the optimal policy with a certified optimality gap."""
    from departing.cli.tables import plan as tables
    from departing.model.validation import check_fraction, check_int
    from departing.planning.plan import plan as plan_policy

    chosen = load_instance(file)
    indices = None if allowed is None else [chosen.category_index(name) for name in _allowed_names(allowed, chosen)]
    depth = check_int("depth", depth, 1, 10)
    if sensitivity is not None:
        sensitivity = check_fraction("sensitivity", sensitivity)
    check_files(output, plot)
    with progress("planning", as_json) as bar:
        planned = plan_policy(chosen, gap, seconds, method, allowed=indices, progress=bar.show_bounds)
        baselines = planned.baselines()
        verification = planned.verify() if verify else None
        shifts = None if sensitivity is None else planned.sensitivity(sensitivity)
    save_files((output, planned.save), (plot, planned.plot))
    values = tables.plan_values(planned, baselines, depth)
    contents: list[Any] = [
        tables.policy_outline(planned, depth),
        planned.reason,
        tables.plan_table(planned, baselines),
        *([tables.segments_table(planned)] if planned.by_segment else []),
    ]
    if planned.gap > planned.target_gap:
        contents.append(
            f"The gap of {planned.target_gap:g} was not reached within {seconds:g} s, or is below the rounding error."
        )
    if shifts is not None:
        values["sensitivity"] = tables.sensitivity_values(shifts, planned)
        contents.append(tables.sensitivity_table(shifts, planned))
    if verification is not None:
        values["verified"] = verification.holds
        contents.append(tables.verification_table(verification))
    present(as_json, values, contents, output=output, plot=plot)
    if verification is not None and not verification.holds:
        violated = sum(not check.holds for check in verification.checks)
        fail(f"Error: The certificate is invalid: {violated} checks failed. Please report this instance.", code=1)
