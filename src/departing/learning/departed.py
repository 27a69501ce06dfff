"""IDs of departed users, in bounded memory for consecutive integers."""

from bisect import bisect_right
from collections.abc import Iterable


class DepartedUsers:
    """A set of user IDs that stores runs of consecutive integers as intervals, and strings one by one.

    Users of a simulation have consecutive integer IDs, so the number of intervals is at most the number of active
    users plus one, however many users have departed.

    >>> departed = DepartedUsers()
    >>> for user in (0, 2, 1, "ann"):
    ...     departed.add(user)
    >>> departed.intervals, 2 in departed, 3 in departed, "ann" in departed
    ([[0, 2]], True, False, True)
    """

    def __init__(self, intervals: Iterable[tuple[int, int]] = (), names: Iterable[str] = ()) -> None:
        pairs = list(intervals)
        self._first, self._last = [first for first, _ in pairs], [last for _, last in pairs]
        self._names = set(names)

    def __contains__(self, user: int | str) -> bool:
        if isinstance(user, str):
            return user in self._names
        i = bisect_right(self._first, user)
        return i > 0 and user <= self._last[i - 1]

    def add(self, user: int | str) -> None:
        """Add an ID that is not in the set."""
        if isinstance(user, str):
            self._names.add(user)
            return
        i = bisect_right(self._first, user)
        follows = i > 0 and self._last[i - 1] == user - 1
        precedes = i < len(self._first) and self._first[i] == user + 1
        if follows and precedes:
            self._last[i - 1] = self._last.pop(i)
            del self._first[i]
        elif follows:
            self._last[i - 1] = user
        elif precedes:
            self._first[i] = user
        else:
            self._first.insert(i, user)
            self._last.insert(i, user)

    @property
    def intervals(self) -> list[list[int]]:
        """First and last ID of each run of consecutive integers, in order."""
        return [list(pair) for pair in zip(self._first, self._last, strict=True)]

    @property
    def names(self) -> list[str]:
        """String IDs, sorted."""
        return sorted(self._names)
