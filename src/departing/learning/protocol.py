"""What a learner is."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from departing.model.counts import Integers

Users = Sequence[Any] | npt.NDArray[Any]  # ids: whole numbers or strings


@runtime_checkable
class Learner(Protocol):
    """Anything that recommends to users it can tell apart, and is told what they did.

    Users come in any order and may interleave; what they did may be told late, or never. A user who is not known yet
    is a new one. One who is asked for again before it was told what came of the last recommendation gets the same
    category again.
    """

    def recommend(self, users: Users) -> Integers:
        """A category for each of `users[n]`, who are named by whole numbers or strings."""
        ...

    def observe(self, users: Users, categories: npt.ArrayLike, outcomes: npt.ArrayLike) -> None:
        """Be told that each of `users[n]` was shown `categories[n]` and what came of it: CLICK, STAY, DEPART, …"""
        ...
