"""Users in experiments: who enters one, and who decides for them."""

from departing.service.experiments.experiment import CONTROL, TREATMENT, Experiment, State
from departing.service.rollout import RolloutState
from departing.service.store.base import Transaction
from departing.service.user import User


def enter(tx: Transaction, state: RolloutState, experiment: Experiment, user: User, previous: User | None) -> None:
    """Assign a new user to an arm; one who returns to the experiment keeps the arm."""
    if previous is not None and previous.experiment == experiment.id and previous.arm is not None:
        user.arm, user.entry = previous.arm, previous.entry
    else:
        user.arm, user.entry = experiment.arm(user.name), user.number
    user.experiment = experiment.id
    user.version = state.version_in(experiment, user.arm, user.number)
    tx.record_assignment(user, experiment.stage)


def participate(state: RolloutState, user: User) -> tuple[bool, str | None]:
    """Return whether the caller decides for a user who entered an experiment, and the arm while it runs.

    After a rollback the user gets the policy of the control. After a stop users of the treatment keep theirs.
    """
    experiment = None if user.experiment is None else state.experiments.get(user.experiment)
    if experiment is not None and experiment.running:
        return state.shadow and user.arm != TREATMENT, user.arm
    if experiment is not None and user.arm == TREATMENT:
        if experiment.state is State.STOPPED:
            return False, None
        if experiment.state is State.ROLLED_BACK:
            user.version = state.version_in(experiment, CONTROL, user.number)
    user.experiment, user.arm, user.entry = None, None, -1
    return state.shadow, None
