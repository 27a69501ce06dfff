"""Commands about instances and policies: instance, evaluate, simulate and plan."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from departing.cli.common import (
    INSTANCE_HELP,
    POLICY_HELP,
    InstanceArgument,
    Json,
    Seed,
    labelled,
    load_instance,
    new_console,
    print_json,
    progress,
    whole,
)
from departing.model.errors import InputError


def instance(
    file: Annotated[str | None, typer.Argument(metavar="[INSTANCE]", help=INSTANCE_HELP)] = None,
    random: Annotated[
        str | None,
        typer.Option(help="Draw one instead: uniform, specialists, sticky, row, column or diagonal."),
    ] = None,
    types: Annotated[int | None, typer.Option(help="Types of a random instance; 2 unless told.")] = None,
    categories: Annotated[int | None, typer.Option(help="Categories of a random instance; 2 unless told.")] = None,
    depart: Annotated[
        float | None, typer.Option(help="The chance of departing after a no-click, for a random instance.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a random instance; 0 unless told.")] = None,
    save: Annotated[Path | None, typer.Option("--save", "-o", help="Write it to this file (.toml or .json).")] = None,
    as_json: Json = False,
) -> None:
    """Show an instance, draw a random one, or turn one file format into the other."""
    from departing.model.families import random_instance

    if (file is None) == (random is None):
        raise InputError("Give either the file of an instance, or --random with a family.")
    drawn: dict[str, Any] = {"types": types, "categories": categories, "seed": seed, "depart": depart}
    given = {name: value for name, value in drawn.items() if value is not None}
    if file is not None and given:
        raise InputError(f"--{next(iter(given))} is for random instances; change the file instead.")
    found = load_instance(file) if file is not None else random_instance(str(random), **given)
    if save is not None:
        found.save(save)
    if as_json:
        print_json(found.to_dict() | ({"saved": str(save)} if save else {}))
    else:
        new_console().print(found)
        if save is not None:
            print(f"Saved to {save}")


def evaluate(
    file: InstanceArgument,
    policies: Annotated[
        list[str] | None, typer.Argument(metavar="[POLICY]…", help=f"{POLICY_HELP} All fixed and greedy by default.")
    ] = None,
    tolerance: Annotated[float, typer.Option(help="How far apart the bounds may be.")] = 1e-9,
    nodes: Annotated[
        str | None, typer.Option(metavar="N", help="About how many counts may be expanded for each policy.")
    ] = None,
    distribution: Annotated[bool, typer.Option(help="Show the distribution of clicks and steps too.")] = False,
    as_json: Json = False,
) -> None:
    """Tell exactly what policies are worth: expected clicks of one user."""
    from departing.cli.tables.evaluation import (
        EvaluationTable,
        distribution_table,
        evaluation_notes,
        evaluation_values,
    )
    from departing.evaluation.evaluate import evaluate as evaluate_policy
    from departing.policy.library import describe, parse_policy

    found = load_instance(file)
    texts = policies or [*(f"fixed:{a}" for a in range(found.n_categories)), "greedy"]
    chosen = [parse_policy(text, found) for text in texts]
    most = None if nodes is None else whole("nodes", nodes)
    with progress("evaluating", None, as_json):
        rows = [
            (labelled(text, describe(policy, found)), evaluate_policy(found, policy, tolerance, most))
            for text, policy in zip(texts, chosen, strict=True)
        ]
    if as_json:
        print_json({"policies": [evaluation_values(*row, distribution) for row in rows]})
        return
    console = new_console()
    console.print(EvaluationTable(found, rows))
    for note in evaluation_notes(rows, tolerance):
        console.print(note, markup=False)
    if distribution:
        for row in rows:
            console.print(distribution_table(*row))


def simulate(
    file: InstanceArgument,
    policy: Annotated[str, typer.Argument(metavar="POLICY", help=POLICY_HELP)],
    users: Annotated[str, typer.Option(metavar="N", help="How many users; 1e12 is fine.")] = "1e6",
    seed: Seed = 0,
    engine: Annotated[str, typer.Option(help="auto, aggregate, lanes or step.")] = "auto",
    against: Annotated[
        str | None, typer.Option(metavar="POLICY", help="Compare with this policy on the same users.")
    ] = None,
    open_users: Annotated[int | None, typer.Option(help="How many users are open at once.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Stop looking at a user after so many steps.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the lanes engine; all cores by default.")] = None,
    log: Annotated[Path | None, typer.Option(help="Write every event to this file (.parquet or .csv).")] = None,
    confidence: Annotated[float, typer.Option(help="Of the confidence interval.")] = 0.95,
    as_json: Json = False,
) -> None:
    """Simulate many users under a policy."""
    from departing.cli.tables import evaluation as tables
    from departing.policy.library import describe, parse_policy
    from departing.simulation.compare import compare
    from departing.simulation.run import normal_interval
    from departing.simulation.simulate import simulate as simulate_policy

    found, n_users = load_instance(file), whole("users", users)
    chosen = parse_policy(policy, found)
    words = labelled(policy, describe(chosen, found))
    normal_interval(0.0, 0.0, confidence)  # so that a wrong one is told before the work, not after
    if against is not None:
        for option, given in (
            ("--log", log is not None),
            ("--engine", engine != "auto"),
            ("--threads", threads is not None),
            ("--open-users", open_users is not None),
        ):
            if given:
                raise InputError(f"{option} and --against do not go together: a comparison has its own way.")
        rival = parse_policy(against, found)
        with progress("comparing", n_users, as_json) as advance:
            result = compare(found, chosen, rival, n_users, seed, max_steps=max_steps, progress=advance)
        names = (words, labelled(against, describe(rival, found)))
        if as_json:
            print_json(tables.comparison_values(*names, result, confidence))
        else:
            new_console().print(tables.comparison_table(*names, result, confidence))
        return
    started = time.perf_counter()
    with progress("simulating", n_users, as_json) as advance:
        run = simulate_policy(
            found,
            chosen,
            n_users,
            seed,
            engine,
            open_users=open_users,
            max_steps=max_steps,
            threads=threads,
            log=log,
            progress=advance,
        )
    seconds = time.perf_counter() - started
    if as_json:
        print_json(tables.run_values(words, run, confidence, seconds) | ({"log": str(log)} if log else {}))
        return
    new_console().print(tables.run_table(words, run, confidence, seconds))
    if log is not None:
        print(f"{run.steps:,} events written to {log}")


def plan(
    file: InstanceArgument,
    gap: Annotated[float, typer.Option(help="How far the policy may be from the best possible one.")] = 1e-6,
    seconds: Annotated[float, typer.Option(help="Stop after so long, with the best bracket so far.")] = 60.0,
    method: Annotated[str, typer.Option(help="auto, closed-form, lattice or search.")] = "auto",
    allowed: Annotated[
        str | None, typer.Option(metavar="C,C,…", help="Recommend these categories only, by name or index.")
    ] = None,
    depth: Annotated[int, typer.Option(help="How many of the first steps the tree shows.")] = 4,
    sensitivity: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Tell what happens if every entry is off by such a share.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check the proof of the bracket.")] = False,
    save: Annotated[
        Path | None, typer.Option("--save", "-o", help="Write the policy to this file (.toml or .json).")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the plan to this file (.svg, .png or .pdf).")] = None,
    as_json: Json = False,
) -> None:
    """Find the best policy, with a proof of how good it is."""
    from departing.cli.tables import plan as plans
    from departing.model.files import DOCUMENT_SUFFIXES, check_writable
    from departing.model.validation import check_fraction, check_int
    from departing.planning.baselines import rivals
    from departing.planning.plan import plan as plan_policy
    from departing.planning.policy_text import is_plain

    found = load_instance(file)
    names = [] if allowed is None else [allowed] if allowed in found.categories else allowed.split(",")
    only = None if allowed is None else [found.category_index(name.strip()) for name in names]
    depth = check_int("depth", depth, 1, 10)
    if sensitivity is not None:
        sensitivity = check_fraction("sensitivity", sensitivity)
    if save is not None:  # a wrong ending is told before the work, not after
        check_writable(save, DOCUMENT_SUFFIXES)
    if picture is not None:
        from departing.plotting import figures

        check_writable(picture, figures.FIGURE_SUFFIXES)
    with _bracket_progress(as_json) as progress:
        made = plan_policy(found, gap, seconds, method, allowed=only, progress=progress)
        held = rivals(made)
        checked = made.verify() if verify else None
        shifted = None if sensitivity is None else made.sensitivity(sensitivity)
    if save is not None:
        made.save(save)
    if picture is not None:
        made.picture(picture)
    if as_json:
        values = plans.plan_values(made, held, depth)
        if checked is not None:
            values["verified"] = checked.holds
        if shifted is not None:
            values["sensitivity"] = plans.sensitivity_values(shifted, made)
        files = {"saved": save, "picture": picture}
        print_json(values | {name: str(path) for name, path in files.items() if path is not None})
    else:
        console = new_console()
        if is_plain(made):
            console.print(made.words(), style="bold", markup=False)
        else:
            console.print(plans.plan_tree(made, depth))
        console.print(made.reason, markup=False)
        console.print(plans.plan_table(made, held))
        if made.gap > gap:
            console.print(
                f"The gap of {gap:g} was not reached in the time given, or is finer than rounding allows.",
                markup=False,
            )
        if shifted is not None:
            console.print(plans.sensitivity_table(shifted, made))
        if checked is not None:
            console.print(plans.verification_table(checked))
        for path in filter(None, (save, picture)):
            print(f"Saved to {path}")
    if checked is not None and not checked.holds:
        raise InputError("The proof does not hold; please report this instance.")


@contextmanager
def _bracket_progress(quiet: bool) -> Iterator["Callable[[float, float], None] | None"]:
    """The bracket so far on a terminal; nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("planning") as status:
        yield lambda lower, upper: status.update(f"planning: {lower:.8g} to {upper:.8g}")
