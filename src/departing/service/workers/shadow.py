"""Shadow mode: how often the caller decides as we would have, and what we would have gained.

The gain takes a fit of the log, which a process of its own makes: nobody waits for it.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from math import sqrt
from pathlib import Path

import msgspec
import numpy as np

from departing.data.log import read_log
from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART
from departing.offpolicy.estimators import off_policy_value
from departing.policy.files import policy_to_dict
from departing.policy.library import policy_from_dict
from departing.service.api import messages as m
from departing.service.export import write_log
from departing.service.service import Service
from departing.service.store.connection import connect

ENOUGH = 200  # users of the caller who departed, before anything is said of a gain
MORE = 1.2  # times as many, before it is worked out anew
TYPES, TIMES = range(1, 4), 40  # of the fit
COUNTS = "SELECT count(*), count(*) FILTER (WHERE category = ours) FROM decisions WHERE shadow = 1"
GONE = "SELECT count(*) FROM departures WHERE number IN (SELECT number FROM decisions WHERE shadow = 1)"
UNDER_WAY = "What we would have gained is being worked out; ask again in a minute."


class Told(msgspec.Struct):
    """What the process that works out a gain says."""

    gain: m.Gain | None = None
    note: str = ""


class Shadow:
    """Reports on what the caller decided."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._told, self._at = Told(), 0.0  # of how many users it was
        self._task: asyncio.Task[None] | None = None

    async def report(self) -> m.ShadowReport:
        """How the caller's decisions compare with ours."""
        await self._service.settled()
        n, matches, gone = await asyncio.to_thread(self._counts)
        note = self._told.note
        if gone < ENOUGH:
            note = f"What we would have gained is told when {ENOUGH} users of the caller have departed; {gone} have."
        elif self._task is not None and not self._task.done():
            note = UNDER_WAY
        elif gone >= MORE * self._at:
            self._at, note = gone, UNDER_WAY
            self._task = asyncio.create_task(self._work_out())
        rate = matches / n if n else None
        return m.ShadowReport(self._service.catalogue.shadow, n, matches, rate, self._told.gain, note)

    def _counts(self) -> tuple[int, int, int]:
        with closing(connect(self._service.store.address)) as database:
            ((n, matches),), ((gone,),) = database.rows(COUNTS), database.rows(GONE)
        return n, matches, gone

    async def _work_out(self) -> None:
        service, version = self._service, self._service.catalogue.current
        ask = {
            "store": str(service.store.address),
            "names": service.catalogue.names,
            "unanswered": service.settings.unanswered,
            "policy": policy_to_dict(version.policy),
        }
        with tempfile.TemporaryDirectory(prefix="departing-") as folder:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "departing.service.workers.shadow"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            )
            try:
                text, _ = await process.communicate(json.dumps(ask | {"folder": folder}).encode())
                self._told = msgspec.json.decode(text, type=Told)
            except msgspec.DecodeError:
                self._told = Told(note="What we would have gained could not be worked out; the log says why.")
            except asyncio.CancelledError:
                process.kill()
                await process.wait()
                raise

    async def close(self) -> None:
        """Give up what is being worked out."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def gained(store: str, names: list[str], unanswered: str, policy: dict[str, object], folder: str) -> Told:
    """What a policy would have gained with the users for whom the caller decided; `folder` is for the log."""
    target = Path(folder) / "log.parquet"
    write_log(store, unanswered, "parquet", target, shadow=True)
    try:
        log = read_log(target, categories=names)
        ours = off_policy_value(log, policy_from_dict(policy, "the policy"), types=TYPES, bootstrap=TIMES)
    except InputError as error:
        return Told(note=f"What we would have gained cannot be told: {error}")
    checked = ours.fit.check()
    if checked.truncated:
        return Told(note="Too many users of the caller are still here to tell what they bring.")
    clicks = log.counts[:, :, [CLICK, CLICK_DEPART]].sum(axis=(1, 2))
    variance = float(np.cov(clicks, fweights=log.multiplicity)) / log.users
    gain, spread = ours.best.value - checked.clicks_per_user, 1.96 * sqrt(ours.best.stderr**2 + variance)
    told = m.Gain(ours.best.value, checked.clicks_per_user, gain, gain - spread, gain + spread, log.users)
    return Told(told, " ".join(ours.warnings))


if __name__ == "__main__":
    os.nice(10)
    sys.stdout.buffer.write(msgspec.json.encode(gained(**json.load(sys.stdin))))
