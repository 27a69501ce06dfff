"""Transactions on their way to a SQLite file, and calls that rely on them."""

from collections.abc import Collection, Sequence

import msgspec

from departing.service.store import queries
from departing.service.store.base import StoreError, Write


class LostError(StoreError):
    """A transaction that was dropped."""

    def __init__(self, batch: bool = False) -> None:
        change = "The store refused this change, or one that it builds on; nothing of it was kept. Send it again."
        part = "The store refused a part of this batch; the rest may have been kept. Send the whole batch again."
        super().__init__(part if batch else change)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One transaction: its writes, the counters it increases, and the change of active users."""

    writes: list[Write]
    counted: Sequence[str] = ()
    active_change: int = 0

    def users(self) -> set[int]:
        """Return the numbers of the users that the transaction changes."""
        return {values[0] for query, values in self.writes if query is queries.SAVE_USER}


class Claim(msgspec.Struct, gc=False):
    """A call's reliance on transactions: on its own, and on earlier ones of the users that it read."""

    position: int  # of the latest transaction when the call ended, in the order of commits
    own: bool  # whether that one is its own
    users: Collection[int]
    lost: bool = False  # whether one of them was dropped

    def note_drop(self, position: int, users: set[int]) -> None:
        """Note that the transaction at `position`, which changes `users`, was dropped."""
        is_own = self.own and position == self.position
        if is_own or (position <= self.position and not users.isdisjoint(self.users)):
            self.lost = True
