"""Clock of the service, unaffected by changes of the system time."""

import time
from collections.abc import Callable


def _uptime() -> float:
    """Return seconds since the machine started, suspended time included where the platform reports it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Clock:
    """Wall-clock time at the start plus the monotonic time elapsed since.

    Later changes of the system time are not followed: they would make active users look inactive.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = _uptime) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._offset = wall() - monotonic()

    def __call__(self) -> float:
        """Return the time in seconds since the epoch."""
        return self._monotonic() + self._offset

    @property
    def adjustment(self) -> float:
        """Seconds by which the system time was changed since the start."""
        return self._wall() - self()
