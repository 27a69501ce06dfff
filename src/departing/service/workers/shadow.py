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

from departing.data.log import read_log
from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART
from departing.offpolicy.estimators import off_policy_value
from departing.policy.files import policy_to_dict
from departing.policy.library import policy_from_dict
from departing.service import messages as m
from departing.service.export import write_log
from departing.service.service import Service
from departing.service.store import queries
from departing.service.store.connection import read_snapshot
from departing.service.workers.process import Helper, answer_requests

MIN_DEPARTED = 200  # departed users of the caller; with fewer the interval of the gain says nothing
GROWTH = 1.2  # factor by which their number grows before the gain is estimated again
TYPES, RESAMPLES = range(1, 4), 40  # of the fit: an estimate within a minute
ESTIMATING = "The gain is being estimated; try again in a minute."
FAILED = "The gain could not be estimated; see the log of the service."


class GainRequest(msgspec.Struct):
    """Input of the process that estimates a gain; `folder` is for the exported log."""

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
        if departed < MIN_DEPARTED:
            note = f"The gain is estimated once {MIN_DEPARTED} users of the caller have departed; so far {departed}."
        elif self._task is not None and not self._task.done():
            note = ESTIMATING
        elif departed >= GROWTH * self._departed:
            self._departed, note = departed, ESTIMATING
            self._task = asyncio.create_task(self._update())
        rate = matches / n if n else None
        return m.ShadowReport(self._service.rollout.state.shadow, n, matches, rate, self._estimate.gain, note)

    def _counts(self) -> tuple[int, int, int]:
        with self._service.store.read() as snapshot:
            ((n, matches),) = snapshot.execute(queries.SHADOW_MATCHES)
            ((departed,),) = snapshot.execute(queries.SHADOW_DEPARTURES)
        return n, matches, departed

    async def _update(self) -> None:
        service, state = self._service, self._service.rollout.state
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
    target = Path(request.folder) / "log.parquet"
    write_log(partial(read_snapshot, request.store), request.missing_feedback, "parquet", target, shadow=True)
    log = read_log(target, categories=request.categories, max_rejected=1)  # a category may not have been shown yet
    policy = policy_from_dict(request.policy, "the policy")
    value = off_policy_value(log, policy, types=TYPES, bootstrap=RESAMPLES)
    check = value.fit.check()
    if check.truncated:
        raise InputError("too many users of the caller are still active.")
    clicks = log.counts[:, :, [CLICK, CLICK_DEPART]].sum(axis=(1, 2))
    variance = float(np.cov(clicks, fweights=log.multiplicity)) / log.users
    gain, margin = value.best.value - check.clicks_per_user, 1.96 * sqrt(value.best.stderr**2 + variance)
    estimate = m.Gain(value.best.value, check.clicks_per_user, gain, gain - margin, gain + margin, log.users)
    return GainEstimate(estimate, " ".join(value.warnings))


def main() -> None:
    """Estimate the gain of each request on standard input."""
    os.nice(10)  # the service has priority
    answer_requests(estimate_gain, GainRequest)


if __name__ == "__main__":
    main()
