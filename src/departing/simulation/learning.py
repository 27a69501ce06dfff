"""Learners meet users: whole blocks at a time, or step by step with late answers."""

from collections import deque

import numpy as np
import numpy.typing as npt

from departing.learning.protocol import AssignsPolicies, LastOutcomeRule, Learner, SupportsBlocks
from departing.model.counts import Integers, clicks
from departing.model.errors import InputError
from departing.model.instance import DEPART, Instance
from departing.simulation.aggregate import aggregate
from departing.simulation.last_outcome import aggregate_last_outcome
from departing.simulation.reference import Finished, Users, draw_outcomes, new_users
from departing.simulation.regret_curve import Piece, RegretCurve, checkpoints_of, split
from departing.simulation.run import Progress, Run, run_from_histories, total

MOST_COUNTS = 10**8


def run_blocks(
    instance: Instance, learner: SupportsBlocks, users: int, rng: np.random.Generator, progress: Progress, seed: int
) -> Run:
    """Send `users` users through the policies a learner holds, block after block."""
    marks, finished = checkpoints_of(users), Finished()
    gained, pieces = np.zeros(len(marks), np.int64), []
    come, stretch = 0, 0
    while come < users:
        policy, n = learner.admit(int(marks[stretch]) - come)
        if isinstance(policy, LastOutcomeRule):
            histories = aggregate_last_outcome(instance, policy, n, rng, MOST_COUNTS, progress, learner.learn)
        else:
            histories = aggregate(
                instance, policy, n, rng, None, MOST_COUNTS, np.inf, progress, learner.learn, learner.depth
            )
        if histories is None:
            raise InputError(f"These users meet more than {MOST_COUNTS:g} different counts; use fewer users.")
        finished.add(histories.counts, histories.multiplicity)
        gained[stretch] += total(histories.clicks, histories.multiplicity)
        pieces.append(Piece(stretch, policy, n))
        come += n
        stretch += int(come == marks[stretch])
    course = RegretCurve(instance, marks, gained.cumsum(), pieces)
    return run_from_histories(finished.histories(instance.n_categories), "blocks", seed, course)


def run_steps(
    instance: Instance,
    learner: Learner,
    users: int,
    rng: np.random.Generator,
    open_users: int,
    delay: int,
    progress: Progress,
    seed: int,
) -> Run:
    """Ask a learner for every single step, at most `open_users` users at once.

    With a `delay` a learner is told what a user did when so many more users have come, and as many as `open_users`
    come at a time; when nobody comes any more what is left is told in turn.
    """
    cumulative = instance.outcome_probabilities.cumsum(axis=1)[:, :3]
    arrive, finished = new_users(instance, users, rng), Finished()
    marks = checkpoints_of(users)
    first = learner.next_user_id if isinstance(learner, AssignsPolicies) else 0  # IDs of earlier runs are taken
    gained, played = np.zeros(len(marks), np.int64), _Played(learner, marks, first)
    ready, come, here = arrive(0), 0, 0
    untold: deque[tuple[int, Users, Integers, Integers]] = deque()
    while True:
        new = arrive(open_users if delay else open_users - here)
        come, here = come + len(new), here + len(new)
        asked = _join(ready, new)
        if len(asked):
            shown = np.asarray(learner.recommend(asked.ids + first))
            played.note(new.ids)
            came = draw_outcomes(cumulative, shown, asked.types, rng.random(len(asked)))
            asked.counts[np.arange(len(asked)), shown, came] += 1
            untold.append((come + delay, asked, shown, came))
        if not untold:
            break
        parts = [arrive(0)]
        while untold and (untold[0][0] <= come or come == users):
            _, told, shown, came = untold.popleft()
            learner.observe(told.ids + first, shown, came)
            over = came >= DEPART
            finished.add(told.counts[over])
            at = np.searchsorted(marks, told.ids[over] + 1)
            np.add.at(gained, at, clicks(told.counts[over]))
            here -= int(over.sum())
            progress(int(over.sum()))
            parts.append(_rows(told, ~over))
            if come == users and delay:
                break
        ready = _join(*parts)
    course = RegretCurve(instance, marks, gained.cumsum(), played.pieces)
    return run_from_histories(finished.histories(instance.n_categories), "step", seed, course)


class _Played:
    """Which policies users were given, if the learner tells."""

    def __init__(self, learner: Learner, marks: Integers, first: int) -> None:
        self._learner = learner if isinstance(learner, AssignsPolicies) else None  # checked once: protocols are slow
        self._marks, self._first = marks, first
        self.pieces: list[Piece] | None = None if self._learner is None else []

    def note(self, ids: Integers) -> None:
        """New users have come, in the order of their ids."""
        if self._learner is None or self.pieces is None or not len(ids):
            return
        versions = self._learner.versions(ids + self._first)
        starts = np.flatnonzero(np.diff(versions, prepend=-1))
        for first, after in zip(starts, [*starts[1:], len(ids)], strict=True):
            policy = self._learner.policy(int(versions[first]))
            for stretch, n in split(int(ids[first]), int(after - first), self._marks):
                self.pieces.append(Piece(stretch, policy, n))


def _rows(users: Users, rows: npt.NDArray[np.bool_]) -> Users:
    return Users(users.ids[rows], users.types[rows], users.counts[rows])


def _join(*parts: Users) -> Users:
    return Users(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.types for part in parts]),
        np.concatenate([part.counts for part in parts]),
    )
