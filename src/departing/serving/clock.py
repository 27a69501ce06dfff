"""The time, by a clock that may be set while we run."""

import time
from collections.abc import Callable

JUMP = 60.0  # seconds: a clock that is further ahead than has passed was set, and is not believed


def passed() -> float:
    """Seconds since the machine was started, those in which it slept too where that is known."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Clock:
    """The time of day at the start, and then as much later as has passed.

    It follows the machine's clock within a minute, so that slow corrections are taken over; one that is set back or
    far ahead is not followed, for then people would seem silent who are not. `ahead` is by how much that is off now.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = passed) -> None:
        self._wall, self._steady = wall, steady
        self._time, self._at = wall(), steady()
        self.ahead = 0.0

    def __call__(self) -> float:
        """The time in seconds, which never goes back."""
        wall, at = self._wall(), self._steady()
        expected = self._time + max(at - self._at, 0.0)
        followed = expected <= wall <= expected + JUMP
        self._time, self._at = (wall if followed else expected), at
        self.ahead = 0.0 if followed or abs(wall - expected) < JUMP else wall - expected
        return self._time
