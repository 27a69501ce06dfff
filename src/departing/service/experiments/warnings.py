"""Warnings and gauges about the latest experiment."""

import datetime as dt

from departing.service.experiments.experiment import GUARDRAIL, Experiment, State
from departing.service.rollout import RolloutState

ROLLBACK_SECONDS = 7 * 86400.0  # for which an automatic rollback is worth a warning: longer than a weekend


def experiment_warnings(state: RolloutState, mismatched: int | None, now: float) -> dict[str, str]:
    """Return warnings by their keys; `mismatched` is an experiment with a sample ratio mismatch."""
    warnings = {}
    if state.running is not None and state.running.id == mismatched:
        warnings[f"sample_ratio_mismatch_{mismatched}"] = (
            f"Experiment {mismatched} has a sample ratio mismatch: the users per arm do not match the shares, so its "
            "readout cannot be trusted. Find out where users are lost or filtered, stop it, and start another."
        )
    ended = _rolled_back(state, now)
    if ended is not None:
        time = dt.datetime.fromtimestamp(ended.changes[-1].time, dt.UTC).isoformat(" ", "seconds")
        warnings[f"rolled_back_{ended.id}"] = (
            f"Experiment {ended.id} was rolled back automatically at {time}, because its treatment is worse; see the "
            "readout on /experiments. This warning ends with the next experiment or after 7 days."
        )
    return warnings


def experiment_gauges(state: RolloutState, mismatched: int | None, now: float) -> dict[str, tuple[str, float]]:
    """Return description and value of each gauge."""
    running = state.running
    return {
        "experiment_running": (
            "Number of the running experiment, 0 if none runs.",
            0 if running is None else running.id,
        ),
        "experiment_share": (
            "Share of new users in the treatment of the running experiment.",
            0 if running is None else running.share,
        ),
        "experiment_sample_ratio_mismatch": (
            "1 if the users per arm of the running experiment do not match its shares.",
            int(running is not None and running.id == mismatched),
        ),
        "experiment_rolled_back": (
            "1 if the latest experiment was rolled back automatically within 7 days.",
            int(_rolled_back(state, now) is not None),
        ),
    }


def _rolled_back(state: RolloutState, now: float) -> Experiment | None:
    """Return the latest experiment if the guardrail ended it within 7 days."""
    latest = state.experiments[max(state.experiments)] if state.experiments else None
    if latest is None or latest.state is not State.ROLLED_BACK:
        return None
    change = latest.changes[-1]
    return latest if change.actor == GUARDRAIL and now - change.time < ROLLBACK_SECONDS else None
