"""Shadow mode: how often the caller's decisions match the policy's, and the policy's estimated gain.

The gain takes a fit of the log, which a process of its own computes while the service keeps serving.
"""

import asyncio
import os
import tempfile
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from departing.data.log import Log, read_log
from departing.formatting import first_few
from departing.model.errors import InputError
from departing.offpolicy.estimators import off_policy_value
from departing.offpolicy.limits import rare_categories
from departing.policy.files import policy_to_dict
from departing.policy.library import policy_from_dict
from departing.policy.protocol import Policy, policy_in_segment
from departing.service import messages as m
from departing.service.event_log import json_lines
from departing.service.export import write_log
from departing.service.service import Service
from departing.service.store import queries
from departing.service.store.connection import read_snapshot
from departing.service.workers.process import Helper, answer_requests

MIN_DEPARTED = 200  # departed users of the caller; with fewer the interval of the gain says nothing
GROWTH = 1.2  # factor by which their number grows before the gain is estimated again
TYPES, RESAMPLES = range(1, 4), 40  # of the fit: an estimate within a minute
# Least share of the caller's recommendations for each category of the policy, relative to a uniform choice. With less
# the fit does not see what types of users do after several such categories: in simulated logs of 500 to 3,000 users
# the interval missed the gain over callers at 0.15 and 0.24 in 9 of 10 logs, and at 0.54 and 0.6 in none of 22.
MIN_SHARE = 0.5
ESTIMATING = "The gain is being estimated; try again in a minute."
AGAIN = "The gain is being estimated again, with more users."
NO_OVERLAP = (
    "No gain: the policy recommends {}, which the caller never or rarely shows, so the log does not tell how users "
    "would react. Give the policy to 10 % of the users in an experiment, which rolls it back if it is worse, or let "
    "the caller choose categories at random for some users."
)
BY_SEGMENT = (
    "No gain: the policy depends on the segment. Download the log and run `departing ope LOG POLICY --segment "
    "segment`, or give the policy to 10 % of the users in an experiment."
)
REWARDED = (
    "No gain: clicks have rewards. Download the log and run `departing ope LOG POLICY --reward reward`, or give the "
    "policy to 10 % of the users in an experiment."
)
OFF = "Shadow mode is off; the figures are those of the time in which the caller decided."
FAILED = "The gain could not be estimated; see the log of the service."


class GainRequest(msgspec.Struct):
    """Input of the process that estimates a gain; the name of the exported log is in `folder`."""

    store: str
    categories: list[str]
    missing_feedback: str
    policy: dict[str, Any]
    folder: str


class GainEstimate(msgspec.Struct):
    """An estimated gain with its warnings, or a note why there is none."""

    gain: m.Gain | None = None
    note: str = ""


class ShadowReporter:
    """Reports on the decisions of the caller."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._estimate, self._departed = GainEstimate(), 0  # and the departed users it is based on
        self._task: asyncio.Task[None] | None = None

    async def report(self) -> m.ShadowReport:
        """Compare the caller's decisions with the policy's."""
        await self._service.flush()
        n, matches, departed = await asyncio.to_thread(self._counts)
        note = self._estimate.note
        if not self._service.rollout.state.shadow:
            note = OFF
        elif departed < MIN_DEPARTED:
            note = f"The gain is estimated once {MIN_DEPARTED} users of the caller have departed; so far {departed}."
        else:
            if (self._task is None or self._task.done()) and departed >= GROWTH * self._departed:
                self._departed, self._task = departed, asyncio.create_task(self._update())
            if self._task is not None and not self._task.done():
                note = f"{note} {AGAIN}".lstrip() if note or self._estimate.gain else ESTIMATING
        rate = matches / n if n else None
        return m.ShadowReport(self._service.rollout.state.shadow, n, matches, rate, self._estimate.gain, note)

    def _counts(self) -> tuple[int, int, int]:
        with self._service.store.read() as snapshot:
            ((n, matches),) = snapshot.execute(queries.SHADOW_MATCHES)
            ((departed,),) = snapshot.execute(queries.SHADOW_DEPARTURES)
        return n, matches, departed

    async def _update(self) -> None:
        service, state = self._service, self._service.rollout.state
        instance = state.current.instance
        if await service.has_rewards() or (instance is not None and "reward" in instance.extensions):
            self._estimate = GainEstimate(note=REWARDED)
            return
        helper = Helper(("-m", __name__), GainEstimate)
        with tempfile.TemporaryDirectory(prefix="departing-") as folder:
            request = GainRequest(
                str(service.store.address),
                state.names,
                service.settings.missing_feedback,
                policy_to_dict(state.current.policy),
                folder,
            )
            try:
                self._estimate = await helper.request(request) or GainEstimate(note=FAILED)
            except InputError as error:
                self._estimate = GainEstimate(note=f"The gain cannot be estimated: {error}")
            finally:
                await helper.close()

    async def close(self) -> None:
        """Cancel the estimation."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def estimate_gain(request: GainRequest) -> GainEstimate:
    """Estimate the gain of a policy over the caller, from the users for whom the caller decided."""
    name, policy = Path(request.folder) / "log.parquet", policy_from_dict(request.policy, "the policy")
    if policy_in_segment(policy, None) is not policy:
        return GainEstimate(note=BY_SEGMENT)
    with tempfile.TemporaryFile() as file:  # has no name of its own: nothing remains of it if this process is killed
        write_log(partial(read_snapshot, request.store), request.missing_feedback, "parquet", file, shadow=True)
        name.unlink(missing_ok=True)
        name.symlink_to(f"/dev/fd/{file.fileno()}")  # `read_log` knows formats by their extensions
        log = read_log(name, categories=request.categories, max_rejected=1)  # a category may not have been shown yet
        return _gain(log, policy)


def _gain(log: Log, policy: Policy) -> GainEstimate:
    value = off_policy_value(log, policy, types=TYPES, bootstrap=RESAMPLES)
    check = value.fit.check()
    if check.truncated:
        raise InputError("too many users of the caller are still active.")
    rare = rare_categories(log, value, MIN_SHARE / log.counts.shape[1])
    if rare:
        return GainEstimate(note=NO_OVERLAP.format(first_few(rare, 3)))
    variance = float(np.cov(log.clicks, fweights=log.multiplicity)) / log.users
    gain, margin = value.best.value - check.clicks_per_user, 1.96 * sqrt(value.best.stderr**2 + variance)
    estimate = m.Gain(value.best.value, check.clicks_per_user, gain, gain - margin, gain + margin, log.users)
    return GainEstimate(estimate, " ".join(value.warnings))


def main() -> None:
    """Estimate the gain of each request on standard input."""
    os.nice(10)  # the service has priority
    with json_lines("shadow"):
        answer_requests(estimate_gain, GainRequest)


if __name__ == "__main__":
    main()
