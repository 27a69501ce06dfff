"""Commands about learners: learn and study."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from departing.cli import options as opt
from departing.cli.errors import on_interrupt
from departing.cli.inputs import check_files, load_site, parse_int
from departing.cli.output import present, progress, save_files
from departing.learning.registry import LEARNERS
from departing.model.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from departing.learning.lower_bound.result import RegretBound
    from departing.simulation.policy_use import PolicyUse
    from departing.simulation.run import Run
    from departing.studies.results import Curves

LEARNER_HELP = (
    f"One of {', '.join(LEARNERS)}; options follow a colon, as in bayes:types=3,explore=none. Omit it with --load."
)
PLOT_HELP = "Write a plot (.svg, .png or .pdf) of the regret, the lower bound and the policies over time."
BOUND_HELP = "Compute a lower bound on the regret of every learner, and report it beside the regret."
STUDY_BOUND_HELP = "Compute the lower bound on regret of every instance, as does bound = true in the file."
SCHEDULER_HELP = "Scheduler of a Dask cluster."


def learn(
    file: opt.InstanceArgument,
    learner: Annotated[str | None, Argument(metavar="LEARNER", help=LEARNER_HELP)] = None,
    users: opt.Users = "1e6",
    seed: opt.Seed = 0,
    runs: Annotated[int, Option(help="Number of runs, with consecutive seeds.")] = 1,
    open_users: Annotated[int | None, Option(help="Concurrent users.", show_default="1; 1000 with --delay")] = None,
    delay: Annotated[str, Option(metavar="N", help="Delay feedback until N more users have arrived.")] = "0",
    plot: Annotated[Path | None, Option(metavar="FILE", help=PLOT_HELP)] = None,
    output: Annotated[Path | None, opt.output_option("Write the state of the learner (.json).")] = None,
    load: Annotated[Path | None, Option(metavar="FILE", help="Resume from a saved state.")] = None,
    bound: Annotated[bool, Option("--bound", help=BOUND_HELP)] = False,
    as_json: opt.Json = False,
) -> None:
    """Simulate an online learner and report its regret against the optimal policy."""
    from departing.cli.learning_progress import learning_progress
    from departing.cli.tables import learning as tables
    from departing.learning.library import learner_from_dict, load_learner, parse_learner
    from departing.learning.regret_bound import regret_bound
    from departing.model.non_stationary import NonStationaryInstance
    from departing.model.validation import MAX_USERS, check_int, check_seed
    from departing.plotting.figures import save
    from departing.simulation.policy_use import policy_uses
    from departing.simulation.regret_curve import fixed_name
    from departing.studies.results import learner_curves
    from departing.studies.runner import most_used_policy, optimum_record, run_learner

    if (learner is None) == (load is None):
        raise InputError("Expected either LEARNER or --load FILE.")
    chosen, n_users = load_site(file), check_int("users", parse_int("users", users), most=MAX_USERS)
    seed, runs, n_delay = check_seed(seed), check_int("runs", runs, 1, 10**5), parse_int("delay", delay)
    if runs > 1 and (output is not None or load is not None):
        raise InputError(f"runs is {runs}; --output and --load require a single run.", "runs")
    check_files(output, plot, (".json",))
    spec = None if learner is None else parse_learner(learner)
    if bound and isinstance(chosen, NonStationaryInstance):
        raise InputError("--bound applies to an instance, not to a site that changes; omit it.")
    first = chosen.at(0) if isinstance(chosen, NonStationaryInstance) else chosen
    records, uses, detected = [], [], []
    with learning_progress(as_json, n_users, runs) as bar:
        optimum = optimum_record(chosen, n_users)
        callbacks = {"progress": bar.advance, "regret_progress": bar.regret_progress}
        for number in range(seed, seed + runs):
            agent = load_learner(load) if load else learner_from_dict(spec or {}, first, n_users, number)
            bar.start()
            run, record = run_learner(agent, chosen, n_users, number, optimum, open_users, n_delay, **callbacks)
            bar.finish()
            records.append(record)
            detected.append(getattr(agent, "changes", []) if getattr(agent, "change_detection", False) else None)
            uses.append(policy_uses(run.regret_curve) if plot is not None else [])
    with progress("computing the lower bound", as_json or not bound):
        limit = regret_bound(first, n_users, seed=seed) if bound else None
    limits = None if limit is None else [limit.to_dict()] * runs
    curves = learner_curves(learner or str(load), records, [file] * runs, limits, first.unit)
    policy = most_used_policy(run)
    heading = f"{curves.learner} on {Path(file).stem}"
    save_files((output, agent.save), (plot, lambda path: save(_figure(heading, run, curves, uses, limit), path)))
    rows = tables.regret_rows(records, run.regret_curve.fixed_regret, curves.bound)
    changes = getattr(run.regret_curve, "changes", None)
    is_moving = isinstance(chosen, NonStationaryInstance)
    values = tables.learning_values(curves, rows, policy, is_moving) | {
        "unit": first.unit,
        "optimum": [optimum["lower"], optimum["upper"]],
    }
    if any(each is not None for each in detected):
        values["detected_changes"] = detected
    if limit is not None:
        values["bound"] = limit.to_dict()
    title = curves.learner + ("" if runs == 1 else f", mean of {runs} runs")
    notes = tables.learning_notes(curves, policy, is_moving) + tables.change_notes(changes, detected)
    notes += tables.optimum_notes(optimum, rows[-1], first.unit)
    notes += [] if limit is None else [limit.describe(), *limit.sentences()]
    table = tables.regret_table(title, rows, fixed_name(changes is not None), first.unit)
    present(as_json, values, [table, *notes], output=output, plot=plot)


def _figure(
    title: str,
    run: "Run",
    curves: "Curves",
    uses: "Sequence[Sequence[PolicyUse]]",
    bound: "RegretBound | None",
) -> "Figure":
    """Plot of all runs, of which `run` is the last; `uses` are the policies of each."""
    from departing.simulation.learning_plot import LearningCurves, draw_learning
    from departing.simulation.policy_use import merge_uses

    expected = run.regret_curve.policy_segments is not None
    fixed, changes = run.regret_curve.fixed_regret, getattr(run.regret_curve, "changes", None)
    contents = run.checkpoints, curves.regret, expected, fixed, merge_uses(uses), bound, title
    return draw_learning(LearningCurves(*contents, changes=changes, unit=curves.unit))


def study(
    file: Annotated[Path, Argument(metavar="STUDY", help="TOML or JSON file with instances, learners and seeds.")],
    output: Annotated[Path | None, opt.output_option("Folder of the results.", "FOLDER", "STUDY-results")] = None,
    jobs: Annotated[int | None, Option(help="Number of parallel runs.", show_default="all cores")] = None,
    backend: Annotated[str, Option(help="loky, threading, dask or ray.")] = "loky",
    scheduler: Annotated[str | None, Option(metavar="ADDRESS", help=SCHEDULER_HELP, show_default="local")] = None,
    bound: Annotated[bool, Option("--bound", help=STUDY_BOUND_HELP)] = False,
    as_json: opt.Json = False,
) -> None:
    """Run every learner of a study on every instance with every seed. A study resumes where it stopped."""
    from departing.cli.learning_progress import study_progress
    from departing.cli.tables.learning import study_tables
    from departing.studies.definition import load_study
    from departing.studies.plot import write_plots
    from departing.studies.runner import run_study

    definition = load_study(file)
    definition = replace(definition, bound=definition.bound or bound)
    folder = output or Path(f"{file.stem}-results")
    message = f"Interrupted. Finished runs are kept in {str(folder)!r}; run the same command to resume."
    options: dict[str, Any] = {"jobs": jobs, "backend": backend, "scheduler": scheduler}
    names = [each.name for each in definition.learners]
    with on_interrupt(message), study_progress(as_json, names, definition.bound) as monitor:
        results = run_study(definition, folder, **options, monitor=monitor)
    plots = write_plots(results, folder)
    rows = results.statistics()
    values = {"title": definition.title, "folder": str(folder), "summary": rows, "plots": plots}
    present(as_json, values, study_tables(definition.title, rows))
    if not as_json:
        print(f"Saved to {folder}: results.parquet, timings.parquet, {', '.join(plots)}")
