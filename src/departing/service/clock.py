"""The time, by a clock that may be set while we run."""

import time
from collections.abc import Callable


def passed() -> float:
    """Seconds since the machine was started, those in which it slept too where that is known."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Clock:
    """The time of day at the start, and then as much later as has passed.

    A clock that is set meanwhile is not followed, for then people would seem silent who are not.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = passed) -> None:
        self._wall, self._steady = wall, steady
        self._offset = wall() - steady()

    def __call__(self) -> float:
        """The time in seconds."""
        return self._steady() + self._offset

    @property
    def ahead(self) -> float:
        """By how many seconds the machine's clock has been set since the start."""
        return self._wall() - self()
