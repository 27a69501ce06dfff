"""Batches of feedback, which do not delay other calls."""

import asyncio
import time
from collections.abc import Callable, Sequence

from departing.service import messages as m
from departing.service.recording import record_feedback
from departing.service.settings import Settings
from departing.service.store.base import RETRY_AFTER, OverloadedError, Prefetch, Store, Transaction

MAX_UNLOADED = 4  # rows of feedback that are read one by one: takes less time than a thread
# Batches at once: one is loaded, one runs, two are committed. With more, records would be evicted before their use.
MAX_LOADED = 4
# Rows of batches that wait or run, 240 bytes each at most: beyond it batches are refused rather than kept in memory.
MAX_ROWS = 100_000
OTHERS_SECONDS = 0.1  # after another call in which slices are still paused
MIN_PAUSE, MAX_PAUSE = 0.005, 0.05  # seconds between slices of 50 rows: at most 9,000, at least 1,000 rows per second
LATER = "Send fewer at once, or try again later."
MAX_DELAY = 0.002  # seconds by which a pause may be longer than it should; timers are accurate to 1 ms


class FeedbackRecorder:
    """Records feedback: a few rows in one transaction, a batch in slices after everything it needs was loaded.

    Rows are idempotent, so a batch of which a part was recorded can be sent again.
    """

    def __init__(self, store: Store, settings: Settings, now: Callable[[], float]) -> None:
        self._store, self._settings, self._now = store, settings, now
        self._loop: asyncio.AbstractEventLoop | None = None
        self.others = self._others_seen = 0  # number of calls that are no batches, now and at the latest slice
        self._others_at = -OTHERS_SECONDS  # time of the latest slice before which there were some
        self._pause, self._rows = MIN_PAUSE, 0

    async def record(self, rows: Sequence[m.Feedback]) -> list[m.FeedbackResult]:
        """Record feedback; what is accepted is on disk when this returns."""
        if len(rows) <= MAX_UNLOADED:
            self.others += 1
            return await self._store.transaction(*self._call(rows))
        if self._rows + len(rows) > MAX_ROWS:
            raise OverloadedError(f"{self._rows:,} rows of feedback in batches are waiting. {LATER}", RETRY_AFTER)
        self._rows += len(rows)
        try:
            return await self._record_batch(rows)
        finally:
            self._rows -= len(rows)

    async def _record_batch(self, rows: Sequence[m.Feedback]) -> list[m.FeedbackResult]:
        results: list[m.FeedbackResult] = []
        size = self._store.batch_rows
        slots, turn = self._limits()
        async with slots, self._store.batch([row.event for row in rows]) as run_slice, turn:
            for start in range(0, len(rows), size):
                await self._yield()
                results += await run_slice(*self._call(rows[start : start + size]))
        return results

    async def _yield(self) -> None:
        """Let other calls run before the next slice: not at all while none arrive, else for as long as they need.

        While the event loop is busy, the thread that delivers requests gets the interpreter lock only every few
        milliseconds, for one request each time. The pause is therefore doubled whenever it takes longer than it
        should, and otherwise shortened, so that batches get what other calls leave.
        """
        now = time.monotonic()
        if self.others != self._others_seen:
            self._others_seen, self._others_at = self.others, now
        if now - self._others_at > OTHERS_SECONDS:
            await asyncio.sleep(0)
            return
        await asyncio.sleep(self._pause)
        is_late = time.monotonic() - now - self._pause > MAX_DELAY
        self._pause = min(2 * self._pause, MAX_PAUSE) if is_late else max(0.9 * self._pause, MIN_PAUSE)

    def _limits(self) -> tuple[asyncio.Semaphore, asyncio.Lock]:
        """Return the limits of the running event loop: batches that are loaded at once, and that run at once."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._slots, self._turn = loop, asyncio.Semaphore(MAX_LOADED), asyncio.Lock()
        return self._slots, self._turn

    def _call(self, rows: Sequence[m.Feedback]) -> tuple[Callable[[Transaction], list[m.FeedbackResult]], Prefetch]:
        def record(tx: Transaction) -> list[m.FeedbackResult]:
            settings, now = self._settings, self._now()
            return [record_feedback(tx, row, settings, now) for row in rows]

        return record, Prefetch((), tuple([row.event for row in rows]))
