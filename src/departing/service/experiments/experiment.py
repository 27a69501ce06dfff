"""An experiment: two policies, the share of users that gets each, and its changes over time.

Nothing here depends on stores, clocks or HTTP.
"""

import hashlib
from enum import StrEnum
from typing import Literal

from msgspec import Struct, structs

from departing.model.errors import InputError

TREATMENT, CONTROL, HOLDOUT = ARMS = ("treatment", "control", "holdout")
CALLER, LATEST = "caller", "latest"
GUARDRAIL = "guardrail"  # actor of an automatic rollback
ROUNDING = 1e-9  # of sums of shares
BUCKET_BITS = 53  # of the hash of a user: as many as a float holds exactly


class State(StrEnum):
    """States of an experiment; it leaves `running` once, and only `stopped` can still become `rolled_back`."""

    RUNNING = "running"
    STOPPED = "stopped"
    ROLLED_BACK = "rolled_back"
    COMPLETED = "completed"


class Change(Struct, frozen=True):
    """An entry of the audit trail: what was done, the share from then on, and by whom."""

    time: float
    action: Literal["start", "ramp", "stop", "rollback", "complete"]
    share: float
    actor: str
    reason: str = ""


ENDS = {"stop": State.STOPPED, "rollback": State.ROLLED_BACK, "complete": State.COMPLETED}


class Experiment(Struct, frozen=True):
    """An experiment as the store keeps it.

    Users are in the *treatment* if their bucket is below `share`, and in the *holdout* if it is at least
    1 - `holdout`; the others are in the *control*. Control and holdout get the same policy; a ramp never reaches the
    holdout.
    """

    id: int
    name: str
    treatment: int | Literal["latest"]  # a policy version, or the latest one that the trainer published
    control: int | Literal["latest", "caller"]
    share: float
    holdout: float
    window: float  # seconds after a user's first recommendation in which clicks count
    return_period: float  # seconds after the window in which a user who is retained requests a recommendation
    planned_users: int  # at which the confidence sequences are narrowest
    guardrail: bool  # whether a treatment that is worse is rolled back automatically
    salt: str
    changes: tuple[Change, ...]
    state: State = State.RUNNING

    @property
    def running(self) -> bool:
        """True until the experiment ends."""
        return self.state is State.RUNNING

    @property
    def started(self) -> float:
        """Time of the start."""
        return self.changes[0].time

    @property
    def ended(self) -> float | None:
        """Time of the end; None while it runs."""
        return next((change.time for change in self.changes if change.action in ENDS), None)

    @property
    def failed(self) -> bool:
        """True if the guardrail rolled the treatment back."""
        return self.state is State.ROLLED_BACK and self.changes[-1].actor == GUARDRAIL

    @property
    def stage(self) -> int:
        """Number of ramps so far; the share is constant within a stage."""
        return len(self.stage_shares) - 1

    @property
    def stage_shares(self) -> list[float]:
        """Share of the treatment in every stage."""
        return [change.share for change in self.changes if change.action in ("start", "ramp")]

    @property
    def note(self) -> str:
        """Reason why the readout and the guardrail do not work at the present share; empty if they do."""
        if not self.running or self.share + ROUNDING < 1:
            return ""
        return (
            "The share is 100 %, so no new user is in the control: users who arrive from now on count neither in the "
            "readout nor for the guardrail. Ramp to a lower share, such as 0.95, or complete the experiment."
        )

    def arm(self, user: str) -> str:
        """Return the arm of a new user."""
        place = bucket(self.salt, user)
        if place < self.share:
            return TREATMENT
        return HOLDOUT if place >= 1 - self.holdout else CONTROL

    def arm_shares(self, stage: int) -> dict[str, float]:
        """Return the share of every arm in a stage."""
        share = self.stage_shares[stage]
        control = 1 - share - self.holdout
        return {TREATMENT: share, CONTROL: control if control > ROUNDING else 0.0, HOLDOUT: self.holdout}

    def ramped(self, share: float, time: float, actor: str, reason: str = "") -> "Experiment":
        """Return the experiment with another share; itself if that is its share already."""
        self._check_running("ramped")
        check_shares(share, self.holdout)
        if share == self.share:
            return self
        return structs.replace(self, share=share, changes=(*self.changes, Change(time, "ramp", share, actor, reason)))

    def finished(
        self, action: Literal["stop", "rollback", "complete"], time: float, actor: str, reason: str = ""
    ) -> "Experiment":
        """Return the experiment after its end; itself if it ended in the same way before.

        A stopped experiment can still be rolled back, which moves the active users of the treatment.
        """
        if self.state is ENDS[action]:
            return self
        if (self.state, action) != (State.STOPPED, "rollback"):
            self._check_running({"stop": "stopped", "rollback": "rolled back", "complete": "completed"}[action])
        change = Change(time, action, self.share, actor, reason)
        return structs.replace(self, state=ENDS[action], changes=(*self.changes, change))

    def _check_running(self, done: str) -> None:
        if not self.running:
            state, needed, step = self.state.replace("_", " "), "running", ""
            if done == "rolled back":
                needed = "running or stopped"
                version = "null" if self.control == LATEST else self.control
                call = (
                    'shadow with {"enabled": true}' if version == CALLER else f'policy with {{"version": {version}}}'
                )
                step = f" To return new users to the earlier policy, send POST /v1/{call}."
            raise InputError(f"Experiment {self.id} is {state}; only a {needed} experiment can be {done}.{step}")


def bucket(salt: str, user: str) -> float:
    """Return the place of a user in [0, 1): the first 53 bits of the SHA-256 hash of "SALT:USER".

    >>> bucket("spring", "ann"), bucket("autumn", "ann")
    (0.8991985192894316, 0.467880458953262)
    """
    digest = hashlib.sha256(f"{salt}:{user}".encode()).digest()
    return (int.from_bytes(digest[:8]) >> (64 - BUCKET_BITS)) / (1 << BUCKET_BITS)


def check_shares(share: float, holdout: float) -> None:
    """Raise unless the share of the treatment and the holdout fit together."""
    if not 0 < share <= 1:
        raise InputError(f"share is {share:g}; expected a share above 0 and at most 1, such as 0.1 for 10 %.")
    if not 0 <= holdout < 1:
        raise InputError(f"holdout is {holdout:g}; expected a share from 0 to below 1, such as 0.05 for 5 %.")
    if share + holdout > 1 + ROUNDING:
        raise InputError(
            f"share is {share:g} and holdout {holdout:g}; expected a share of at most {1 - holdout:g}, because a "
            "ramp never reaches the holdout. Complete the experiment to end the holdout."
        )
