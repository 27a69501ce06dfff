"""Readout of an experiment as tables."""

from typing import Any

from rich.table import Table

from departing.cli.tables.layout import new_table
from departing.formatting import MISSING

NOUNS = {"clicks_per_user": "clicks per user", "retention": "retention"}


def readout_contents(readout: dict[str, Any]) -> list[Table | str]:
    """Users per arm, the outcomes with their intervals, and the summary."""
    experiment = readout["experiment"]
    state = str(experiment["state"]).replace("_", " ")
    title = f"Experiment {experiment['experiment']} ({experiment['name']}): {state}"
    arms = new_table(title, "arm", "policy", "share", "users", labels=2)
    for arm in readout["arms"]:
        policy = experiment["treatment" if arm["arm"] == "treatment" else "control"]
        policy = policy if isinstance(policy, str) else f"version {policy}"
        arms.add_row(arm["arm"], policy, f"{100 * arm['share']:g} %", f"{arm['users']:,}")
    columns = ("treatment", "control", "difference", "95 % interval", "users")
    outcomes = new_table("Outcomes", "outcome", *columns)
    for row in readout["metrics"]:
        text = _percent if row["metric"] == "retention" else _number
        interval = MISSING if row["lower"] is None else f"{text(row['lower'], '+')} to {text(row['upper'], '+')}"
        means = (text(row[name]) for name in ("treatment", "control"))
        outcomes.add_row(
            NOUNS.get(row["metric"], f"{row['unit']} per user"),
            *means,
            text(row["difference"], "+"),
            interval,
            f"{row['users']:,}",
        )
    return [arms, outcomes, readout["summary"]]


def _number(value: float | None, sign: str = "") -> str:
    return MISSING if value is None else f"{value:{sign}.3f}"


def _percent(value: float | None, sign: str = "") -> str:
    return MISSING if value is None else f"{100 * value:{sign}.1f} %"
