"""Results of the quickstart demonstration for the terminal and as JSON values."""

from typing import Any

from rich.console import Group

from departing.cli.tables.evaluation import EvaluationTable, evaluation_values
from departing.cli.tables.fit import decision_table
from departing.cli.tables.simulation import run_values
from departing.fitting.type_description import describe_types
from departing.formatting import json_fields
from departing.policy.library import describe
from departing.quickstart_demo import CONFIDENCE, LEARNING_USERS, LOG_USERS, QuickstartDemo


def quickstart_tables(demo: QuickstartDemo) -> Group:
    """Summary of the demonstration."""
    log, optimal = demo.log, demo.log.decision.value
    return Group(
        f"Log of a magazine that recommended at random: {log.events:,} events.",
        *(f"  {sentence}" for sentence in describe_types(log.fit.instance)),
        f"Show {log.first_category} first, then adapt to the reader's clicks:",
        decision_table(log.decision),
        f"The log is simulated, so the truth is known: the policy has a value of {log.policy_value:.3f} clicks per "
        f"reader (95% interval from the log: {optimal.lower:.2f} to {optimal.upper:.2f}); the optimum is "
        f"{log.optimum:.3f}. A learner without a log reaches {log.learner_clicks:.3f} over its first {LOG_USERS:,} "
        "readers.",
        f"\nOnline learning on another site, {LEARNING_USERS:,} readers; regret against the optimal policy:",
        *(f"  {curve.learner}: {curve.final[0]:,.0f}" for curve in demo.regret),
        "\nThe paper's blog; a reader departs at the first article not clicked. Exact values:",
        EvaluationTable(demo.blog.instance, demo.blog.values),
    )


def quickstart_values(demo: QuickstartDemo) -> dict[str, Any]:
    """The same as JSON values."""
    log, best = demo.log, describe(demo.blog.best, demo.blog.instance)
    return {
        "blog": [evaluation_values(*row, distribution=False) for row in demo.blog.values],
        "best": best,
        "runs": [run_values(best, run, CONFIDENCE, seconds) for run, seconds in demo.blog.runs],
        "log": {
            **json_fields(log, "events", "policy_value", "optimum", "learner_clicks"),
            "types": describe_types(log.fit.instance),
            "clicks_per_user": log.check.clicks_per_user,
            "simulated": log.run.mean,
        },
        "learners": [{"learner": curve.learner, "regret": float(curve.final[0])} for curve in demo.regret],
    }
