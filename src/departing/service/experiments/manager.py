"""Experiments of a service: start, change, read out, and roll back automatically."""

import asyncio
import json
import logging
import time
from collections import defaultdict
from math import isfinite
from typing import Any
from uuid import uuid4

import msgspec

from departing.abtest.sequence import MIN_USERS
from departing.abtest.stratified import sample_ratio_p_value
from departing.model.errors import InputError
from departing.service.event_log import log_event
from departing.service.experiments import messages as m
from departing.service.experiments.experiment import ARMS, CALLER, GUARDRAIL, LATEST, Change, Experiment, check_shares
from departing.service.experiments.outcomes import (
    GUARDRAIL_SIGNIFICANCE,
    REWARD,
    SIGNIFICANCE,
    Outcomes,
    first_worse,
    outcomes_of,
)
from departing.service.experiments.summary import describe_worse, summarise
from departing.service.experiments.upload import uploaded_version
from departing.service.messages import NestingError, PolicyVersionInfo
from departing.service.policy_version import UPLOADED, PolicyVersion
from departing.service.rollout import NotFoundError, RolloutState
from departing.service.service import Service
from departing.service.store import queries
from departing.service.store.base import Transaction
from departing.service.store.connection import Rows

MAX_WINDOW = 86_400.0  # seconds; default of the window where the inactivity period is longer
MISMATCH = 0.001  # p-value of the sample ratio below which a readout cannot be trusted: a usual, cautious threshold
CACHE_SECONDS = 1.0  # for which a readout is reused
CHECK_SECONDS = 2.0  # between checks of the guardrail
IDLE_FACTOR = 20  # pause after a check, as a multiple of its duration: 5 % load


class Experiments:
    """Starts and changes experiments, and reads their outcomes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._outcomes: dict[int, list[Outcomes]] = {}
        self._readouts: dict[int, tuple[float, m.ExperimentReadout]] = {}
        self._epoch = 0  # of the store when they were read; after another backup was restored they are others
        self._lock = asyncio.Lock()
        self._next_check = 0.0

    # Policies

    async def upload(self, document: dict[str, Any]) -> PolicyVersionInfo:
        """Publish a policy document as a version that no user gets yet; a repeated upload returns that version."""
        service = self._service
        await service.refresh()
        names, now = service.rollout.state.names, service.now()
        try:
            version, stored = await asyncio.to_thread(uploaded_version, document, names, now)
        except RecursionError as error:
            raise NestingError from error
        if (known := self._uploaded(version)) is not None:
            return known
        details = json.dumps(version.details)

        def publish(tx: Transaction) -> None:
            service.rollout.reload(tx)
            tx.write(queries.UPLOAD_POLICY, now, stored, details)

        await service.store.transaction(publish)
        await service.refresh({(stored, details): version})
        known = self._uploaded(version)
        assert known is not None
        log_event("policy_uploaded", version=known.version)
        return known

    def _uploaded(self, version: PolicyVersion) -> PolicyVersionInfo | None:
        """Return the published version with the same policy, None if there is none."""
        versions = self._service.rollout.state.versions.values()
        same = (each for each in versions if each.details.get("upload") == version.details["upload"])
        published = next(same, None)
        return None if published is None else self._service.version_info(published)

    # Changes

    async def start(self, request: m.ExperimentStart) -> m.ExperimentInfo:
        """Start an experiment; a repeated request returns the running one."""
        check_shares(request.share, request.holdout)
        experiment, is_new = await self._service.store.transaction(lambda tx: self._start(tx, request))
        if is_new:
            log_event("experiment_started", experiment=experiment.id, share=experiment.share, actor=request.actor)
        return _info(experiment)

    def _start(self, tx: Transaction, request: m.ExperimentStart) -> tuple[Experiment, bool]:
        """Start an experiment; return it, and whether it is new."""
        rollout = self._service.rollout
        rollout.reload(tx)
        experiment = self._planned(tx, request)
        running = rollout.state.running
        if running is not None:
            ignored = {"id", "changes", "salt"} if request.salt is None else {"id", "changes"}
            if _fields(running, ignored) == _fields(experiment, ignored):
                return running, False
            raise InputError(f"Experiment {running.id} is running; stop or complete it before you start another.")
        rollout.save_experiment(tx, experiment)
        if request.control is not None and experiment.control != CALLER:
            rollout.pin(tx, experiment.control if isinstance(experiment.control, int) else None)
        return experiment, True

    def _planned(self, tx: Transaction, request: m.ExperimentStart) -> Experiment:
        """Return the experiment of a request, with defaults."""
        rollout, inactive_after = self._service.rollout, self._service.settings.inactive_after
        state, control = rollout.state, request.control
        if control is None and state.shadow:
            control = "caller"
        elif control is None:  # a restart may publish another plan, so only a learning service has "latest"
            follows = self._service.settings.learn and state.pinned is None
            control = "latest" if follows else state.current.number
        if state.shadow != (control == CALLER):
            problem, other = ("on; expected 'caller'", "false") if state.shadow else ("off", "true")
            raise InputError(
                f"control is {control!r} and shadow mode is {problem}. To turn it {'off' if state.shadow else 'on'}, "
                f'send POST /v1/shadow with {{"enabled": {other}}}.'
            )
        for field, policy in (("treatment", request.treatment), ("control", control)):
            if isinstance(policy, int):
                rollout.check_version(tx, policy, field)
        state = rollout.state
        numbers = [state.latest if each == LATEST else each for each in (request.treatment, control)]
        if numbers[0] == numbers[1]:
            raise InputError(
                f"treatment and control are both version {numbers[0]}; expected two policies. "
                "Publish another with `departing publish POLICY` or POST /v1/policies."
            )
        failures = (each for each in state.experiments.values() if each.failed)
        failed = next((each for each in failures if numbers[0] in _treated(state, each)), None)
        if failed is not None and not request.force:
            raise InputError(
                f"treatment is {numbers[0]}, which the guardrail rolled back in experiment {failed.id}. Publish a "
                "better policy, or repeat the request with `force`."
            )
        window = request.window or min(inactive_after, MAX_WINDOW)
        returns = request.return_period or (inactive_after if isfinite(inactive_after) else window)
        start = Change(self._service.now(), "start", request.share, request.actor)
        return Experiment(
            max(state.experiments, default=0) + 1,
            request.name or f"version {request.treatment}",
            request.treatment,
            control,
            request.share,
            request.holdout,
            window,
            returns,
            request.planned_users,
            request.guardrail,
            request.salt or uuid4().hex,
            (start,),
        )

    async def change(self, number: str, request: m.ExperimentAction) -> m.ExperimentInfo:
        """Ramp or end an experiment; a repeated request changes nothing."""
        if (request.action == "ramp") != (request.share is not None):
            needed = "requires `share`" if request.action == "ramp" else "takes no `share`"
            raise InputError(f"action is {request.action!r}, which {needed}.")
        known = self._experiment(number)
        experiment = await self._change(known.id, request.action, request.share, request.actor, request.reason)
        if experiment is None:  # a backup was restored
            raise self._unknown(number)
        info = _info(experiment)
        outcomes = self._outcomes.get(experiment.id, [])  # of the latest look at the guardrail, a few seconds ago
        if request.action == "complete" and outcomes and all(each.difference is None for each in outcomes):
            info.note = f"Completed without a result: fewer than {MIN_USERS} users per arm had a final outcome."
        return info

    async def _change(
        self, number: int, action: Any, share: float | None, actor: str, reason: str = ""
    ) -> Experiment | None:
        """Ramp or end an experiment; return it, None if it does not exist any more.

        The guardrail changes nothing after the end: an operator may have ended the experiment meanwhile.
        """

        def change(tx: Transaction) -> tuple[Experiment | None, bool]:
            rollout = self._service.rollout
            rollout.reload(tx)
            before, now = rollout.state.experiments.get(number), self._service.now()
            if before is None or (actor == GUARDRAIL and not before.running):
                return before, False
            if share is None:
                after = before.finished(action, now, actor, reason)
            else:
                after = before.ramped(share, now, actor, reason)
            if after is not before:
                rollout.save_experiment(tx, after)
                control = after.control
                ended = before.running and action in ("stop", "rollback")
                if ended and isinstance(control, int) and control != rollout.state.current.number:
                    rollout.pin(tx, control)  # a restart has published another plan meanwhile
                if action == "complete":
                    rollout.pin(tx, after.treatment if isinstance(after.treatment, int) else None)
                    if after.control == CALLER:
                        rollout.set_shadow(tx, False)
            return after, after is not before

        experiment, changed = await self._service.store.transaction(change)
        self._readouts.pop(number, None)
        if experiment is not None and changed:
            level = logging.WARNING if actor == GUARDRAIL else logging.INFO
            event, share_now = f"experiment_{action}", experiment.share
            log_event(event, level, experiment=number, share=share_now, actor=actor, reason=reason)
        return experiment

    # Readout

    async def experiments(self) -> m.ExperimentList:
        """Return all experiments, the latest first."""
        experiments = self._service.rollout.state.experiments
        return m.ExperimentList([_info(experiments[number]) for number in sorted(experiments, reverse=True)])

    async def readout(self, number: str) -> m.ExperimentReadout:
        """Return the readout of an experiment."""
        return await self._read(self._experiment(number))

    def _experiment(self, number: str) -> Experiment:
        experiments = self._service.rollout.state.experiments
        is_number = number.isascii() and number.isdecimal() and len(number) <= 18  # as a 64-bit integer
        experiment = experiments.get(int(number)) if is_number else None
        if experiment is None:
            raise self._unknown(number)
        return experiment

    def _unknown(self, number: str) -> NotFoundError:
        known = ", ".join(map(str, self._service.rollout.state.experiments)) or "none was started yet"
        return NotFoundError(f"experiment is {number!r:.40}; expected the number of an experiment ({known}).")

    async def _read(self, experiment: Experiment) -> m.ExperimentReadout:
        async with self._lock:
            if self._epoch != self._service.store.epoch:
                self._epoch = self._service.store.epoch
                self._outcomes, self._readouts = {}, {}
            read_at, readout = self._readouts.get(experiment.id, (0.0, None))
            if readout is None or time.monotonic() - read_at > CACHE_SECONDS:
                await self._service.flush()
                totals = await self._service.totals()
                rewarded, late = (totals.get(name, 0) for name in ("rewarded_clicks", "late_rewards"))
                outcomes = outcomes_of(experiment, self._outcomes.get(experiment.id, []), rewarded > 0)
                self._outcomes[experiment.id] = outcomes
                readout = await asyncio.to_thread(self._read_store, experiment, outcomes, self._service.now(), late)
                self._readouts[experiment.id] = time.monotonic(), readout
        return readout

    def _read_store(
        self, experiment: Experiment, outcomes: list[Outcomes], now: float, late_rewards: int
    ) -> m.ExperimentReadout:
        with self._service.store.read() as snapshot:
            users = snapshot.execute(queries.ARM_USERS, experiment.id)
            for each in outcomes:
                each.experiment = experiment
                each.read(snapshot, now, late_rewards)
        p_value = _sample_ratio(experiment, users)
        by_arm = {arm: sum(int(row[2]) for row in users if row[1] == arm) for arm in ARMS}
        shares = experiment.arm_shares(experiment.stage)
        unit = self._service.unit
        metrics = [_metric(each, unit) for each in outcomes]
        return m.ExperimentReadout(
            _info(experiment),
            [m.ArmUsers(arm, shares[arm], by_arm[arm]) for arm in ARMS],
            metrics,
            p_value,
            p_value < MISMATCH,
            summarise(experiment, metrics, p_value < MISMATCH),
        )

    # Guardrail

    async def check(self) -> None:
        """Roll the running experiment back if its treatment is worse; reads the outcomes every few seconds."""
        experiment = self._service.rollout.state.running
        if experiment is None or time.monotonic() < self._next_check:
            return
        started = time.monotonic()
        try:
            readout = await self._read(experiment)
            self._service.mismatched = experiment.id if readout.sample_ratio_mismatch else None
            worse = first_worse(self._outcomes[experiment.id])
            if worse is not None and experiment.guardrail:
                reason = describe_worse(worse, GUARDRAIL_SIGNIFICANCE, self._service.unit)
                await self._change(experiment.id, "rollback", None, GUARDRAIL, reason)
        finally:
            now = time.monotonic()
            self._next_check = now + max(CHECK_SECONDS, IDLE_FACTOR * (now - started))


def _treated(state: RolloutState, experiment: Experiment) -> list[int]:
    """Return the versions that the treatment of an ended experiment may have given to users.

    For the latest version these are all that the trainer published until the end, from the one before the start on.
    """
    if experiment.treatment != LATEST:
        return [int(experiment.treatment)]
    ended = experiment.ended or experiment.started
    trained = [each for each in state.versions.values() if each.details.get("source") != UPLOADED]
    numbers = sorted(each.number for each in trained if each.created <= ended)
    earlier = sum(each.created <= experiment.started for each in trained)
    return numbers[max(earlier - 1, 0) :]


def _info(experiment: Experiment) -> m.ExperimentInfo:
    fields = _fields(experiment, {"id", "changes"})
    changes = [m.ExperimentChange(*msgspec.structs.astuple(change)) for change in experiment.changes]
    return m.ExperimentInfo(
        experiment=experiment.id,
        started_at=experiment.started,
        ended_at=experiment.ended,
        changes=changes,
        note=experiment.note,
        **fields,
    )


def _fields(experiment: Experiment, without: set[str]) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(experiment).items() if name not in without}


def _sample_ratio(experiment: Experiment, users: Rows) -> float:
    """Return the p-value of the users per arm, compared stage by stage."""
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    for stage, arm, n in users:
        counts[stage][arm] = int(n)
    stages = sorted(stage for stage in counts if stage <= experiment.stage)
    return sample_ratio_p_value([counts[each] for each in stages], [experiment.arm_shares(each) for each in stages])


def _metric(outcomes: Outcomes, unit: str) -> m.MetricReadout:
    difference, planned = outcomes.difference, outcomes.experiment.planned_users
    readout = m.MetricReadout(outcomes.metric, outcomes.users(True), outcomes.users(False), outcomes.stage_users)
    if outcomes.metric == REWARD:
        readout.unit = unit
    readout.points = [m.ReadoutPoint(*point) for point in outcomes.points]
    if difference is not None:
        readout.users, readout.difference = difference.users, difference.difference
        readout.control, readout.treatment = difference.means
        readout.lower, readout.upper = difference.interval(planned, SIGNIFICANCE)
        readout.guardrail_upper = difference.interval(planned, GUARDRAIL_SIGNIFICANCE)[1]
    return readout
