"""The sample of users whose steps a `Log` keeps in order, and the steps themselves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from departing.data.sources import Arrays
from departing.model.counts import Booleans, Integers
from departing.model.instance import Floats

# A check of 200,000 users detects errors far below those that matter; 2 million events take up to 40 MB.
SAMPLE_USERS = 200_000
SAMPLE_EVENTS = 2_000_000  # expected, because users are sampled as a whole
PENDING, KNOWN, CLICK_ONLY = 0, 1, 2  # evidence of a step, as in departing.kernels.fitting.forecasts


@dataclass(frozen=True)
class Episodes:
    """Steps of whole users in order, one entry per step.

    Attributes
    ----------
    user : int array [S]
        Number of the user in the log or in the sample, from 0.
    step : int array [S]
        Number of the step within the user's episode, from 0.
    category : int array [S]
        Index of the recommended category.
    outcome : int array [S]
        0 click, 1 stay, 2 depart, 3 click and depart.
    propensity : float array [S]
        Probability with which the category was recommended; NaN where it is unknown.
    pending : bool array [S]
        True if it is unknown whether the user stayed after this step.
    time : float array [S]
        Time of the step, from 0 at the first event of the log to 1 at the last.
    segment : int array [S] or None
        Index of the user's segment, -1 if it is unknown; None for a log without segments.
    reward : float array [S] or None
        Reward of a click, NaN if it is unknown, and 0 for a no-click; None for a log without rewards.
    """

    user: Integers
    step: Integers
    category: Integers
    outcome: Integers
    propensity: Floats
    pending: Booleans
    time: Floats
    segment: Integers | None = None
    reward: Floats | None = None

    def __len__(self) -> int:
        return len(self.user)


def step_evidence(user: Integers, pending: Booleans, horizon: int | None) -> npt.NDArray[np.int8]:
    """Evidence `[S]` of the steps of whole users in order: `KNOWN`, `PENDING`, or `CLICK_ONLY`.

    The last is a pending step at the horizon that is the only pending one of its user; see `Histories.confirmed`.
    """
    evidence = np.where(pending, PENDING, KNOWN).astype(np.int8)
    if horizon is None or not len(user):
        return evidence
    first = np.flatnonzero(np.append(True, np.diff(user) != 0))
    end = np.append(first[1:], len(user))
    single = np.add.reduceat(pending.astype(np.int64), first) == 1
    last = end[(end - first == horizon) & single] - 1
    evidence[last[pending[last]]] = CLICK_ONLY
    return evidence


@dataclass(frozen=True, eq=False)
class Sample:
    """Steps of a random sample of users, in the order of the hashes of their IDs, as small integers.

    Attributes
    ----------
    lengths : int array [U]
        Number of steps of each user.
    category, outcome, propensity, pending, time : arrays [S]
        As in `Episodes`.
    segment : int array [U] or None
        Index of the segment of each user, -1 if it is unknown.
    reward : float array [S] or None
        As in `Episodes`.
    """

    lengths: Integers
    category: Integers
    outcome: Integers
    propensity: Floats
    pending: Booleans
    time: Floats
    segment: Integers | None = None
    reward: Floats | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def merge(cls, parts: Sequence[Arrays], most: int = SAMPLE_USERS) -> "Sample":
        """The `most` users with the smallest hashes `h`, from the rows of every partition."""
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if len(parts) > 1:  # the users of a partition are in order
            order = np.argsort(columns["h"], kind="stable")
            columns = {name: values[order] for name, values in columns.items()}
        first = np.flatnonzero(columns["step"] == 0)
        ends = np.append(first, len(columns["step"]))[1 : most + 1]
        stop = int(ends[-1]) if len(ends) else 0
        names = ("category", "outcome", "propensity", "pending", "time")
        category, outcome, propensity, pending, time = (columns[name][:stop].copy() for name in names)
        return cls(
            np.diff(ends, prepend=0),
            category,
            outcome,
            propensity,
            pending,
            time,
            columns["segment"][first[:most]] if "segment" in columns else None,
            columns["reward"][:stop].copy() if "reward" in columns else None,
        )

    def episodes(self, users: int, chunk: int) -> Iterator[Episodes]:
        """Yield the steps of the first `users` users, `chunk` users at a time."""
        bounds = np.append(0, np.cumsum(self.lengths))
        users = min(users, len(self))
        for start in range(0, users, chunk):
            stop = min(start + chunk, users)
            part = slice(int(bounds[start]), int(bounds[stop]))
            user = np.repeat(np.arange(start, stop), self.lengths[start:stop])
            yield Episodes(
                user,
                np.arange(part.start, part.stop) - bounds[user],
                self.category[part].astype(np.int64),
                self.outcome[part].astype(np.int64),
                self.propensity[part],
                self.pending[part],
                self.time[part],
                None if self.segment is None else self.segment[user].astype(np.int64),
                None if self.reward is None else self.reward[part],
            )
