"""Arms engine: learners with the index of UCB-Hybrid, one user after the other in compiled code."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from departing.kernels.learning.arms import LOW, record_return, run_arms
from departing.kernels.random import stream
from departing.learning.protocol import ArmStatistics, SupportsArms
from departing.model import random_streams
from departing.model.counts import Integers, clicks, merge, steps
from departing.model.histories import Histories
from departing.model.instance import CLICK_DEPART, Instance
from departing.simulation.automaton import automaton, counts_like
from departing.simulation.reference import FinishedUsers, Users, UsersProgress, once, play
from departing.simulation.regret_curve import log_checkpoints
from departing.simulation.run import Run, merge_values
from departing.simulation.run_record import RunRecord

BATCH = 2**16  # users per call of the kernel: bounds memory; the cost of a call is negligible beside it
Generator = npt.NDArray[np.uint64]  # state of a random number generator


@dataclass(frozen=True)
class Batch:
    """Consecutive users before checkpoint `interval`: policies, clicks, total steps, and final counts if kept."""

    interval: int
    chosen: Integers
    returns: Integers
    steps: int
    counts: Integers


class PolicyGraphs:
    """The count graphs of all policies of a learner, one after the other, as `arrays` for the kernel."""

    def __init__(self, instance: Instance, learner: SupportsArms, users: int) -> None:
        share = -(-users // len(learner.policies))
        parts = [automaton(instance, policy, share, None) for policy in learner.policies]
        lengths = np.array([len(part.category) for part in parts])
        m, category = instance.n_types, np.concatenate([part.category for part in parts])
        table = np.concatenate([part.table(instance) for part in parts])
        starts = 4 * m * (lengths.cumsum() - lengths)
        ratio = instance.outcome_probabilities[:, CLICK_DEPART] / instance.departure_probabilities
        click_on_departure = np.where(category[:, None] < 0, 0.0, ratio[category]).reshape(-1)
        order = np.argsort(instance.prior)  # the last type takes the rounding error, so it must not be a rare one
        cumulative = instance.prior[order].cumsum()
        bounds = np.minimum(cumulative / cumulative[-1] * 2.0**64, 2.0**64 - 2.0**11).astype(np.uint64)[:-1]
        self.shown = np.repeat(category, m)  # by state
        self.counts = np.concatenate([part.counts for part in parts])  # by node
        self.arrays = table, self.shown, starts, 4 * order, bounds, click_on_departure


class Arms:
    """A run of the arms engine, which can be repeated from the initial statistics of the learner."""

    def __init__(self, instance: Instance, learner: SupportsArms, users: int, seed: int) -> None:
        self.instance, self.users, self.seed = instance, users, seed
        self.policies = learner.policies
        self.checkpoints = log_checkpoints(users)
        self.graphs = PolicyGraphs(instance, learner, users)
        self.root = np.random.SeedSequence([seed, random_streams.ARMS]).generate_state(1, np.uint64)[0]
        self.statistics = learner.statistics()
        self.initial = self.statistics.copy()

    def run(self, record: RunRecord, progress: UsersProgress) -> Run:
        """Simulate all users and update the learner; histories are computed by a second run when requested."""
        values, users, made, arrived = np.empty(0, np.int64), np.empty(0, np.int64), 0, 0
        for batch in self._batches(self.statistics, False):
            pulled = np.bincount(batch.chosen)
            for p in np.flatnonzero(pulled).tolist():
                record.assign(arrived, self.policies[p], int(pulled[p]))  # a batch lies within one interval
            record.depart(batch.interval, int(batch.returns.sum()), len(batch.chosen))
            arrived += len(batch.chosen)
            distinct, multiplicity = _histogram(batch.returns)
            values, users = merge_values([values, distinct], [users, multiplicity])
            made += batch.steps
            progress(len(batch.chosen))
        return Run(made, 0, "arms", self.seed, values, users, record.curve(), self.histories)

    def histories(self) -> Histories:
        """Return the histories of the run, by repeating it."""
        finished = FinishedUsers()
        for batch in self._batches(self.initial.copy(), True):
            finished.add(*merge(batch.counts, np.ones(len(batch.counts), np.int64)))
        return finished.histories(self.instance.n_categories)

    def _batches(self, statistics: ArmStatistics, keep_counts: bool) -> Iterator[Batch]:
        generator, arrived = stream(self.root, np.uint64(0)), 0
        for interval, checkpoint in enumerate(self.checkpoints.tolist()):
            while arrived < checkpoint:
                n = min(checkpoint - arrived, BATCH)
                yield self._run_batch(statistics, generator, interval, arrived, n, keep_counts)
                arrived += n

    def _run_batch(
        self, learned: ArmStatistics, generator: Generator, interval: int, arrived: int, n: int, keep_counts: bool
    ) -> Batch:
        """Simulate the next n users after `arrived` others."""
        chosen, returns = np.empty(n, np.int64), np.empty(n, np.int64)
        counts = np.zeros((n if keep_counts else 0, self.instance.n_categories, 4), np.int64)
        done, made = 0, 0
        while done < n:
            rows = chosen[done:], returns[done:], counts[done:]
            now, steps_made, packed = run_arms(generator, self.graphs.arrays, tuple(learned), *rows)
            done, made = done + now, made + steps_made
            if packed >= 0:
                kept = counts[done : done + 1]
                final, more = self._finish(int(chosen[done]), int(packed), kept, arrived + done)
                returns[done] = clicks(final)[0]
                kept[:] = final if keep_counts else kept
                record_return(learned.pulls, learned.clicks, learned.totals, chosen[done], returns[done])
                done, made = done + 1, made + more
        return Batch(interval, chosen, returns, made, counts)

    def _finish(self, arm: int, packed: int, counts: Integers, user: int) -> tuple[Integers, int]:
        """Simulate a user at an exit of a graph to the end by the reference loop: final counts, and steps made."""
        node, x = divmod((packed & LOW) >> 2, self.instance.n_types)
        if not len(counts):
            counts = counts_like(self.graphs.counts[[node]], np.array([packed >> 32]))
        users = Users(np.array([user]), np.array([x]), counts.copy())
        finished, rng = FinishedUsers(), np.random.default_rng([self.seed, random_streams.ARMS_EXIT, user])
        play(self.instance, self.policies[arm], once(users), rng, 1, None, finished)
        final = finished.rows[0]
        return final, int(steps(final)[0] - steps(counts)[0])


def _histogram(returns: Integers) -> tuple[Integers, Integers]:
    """Return the distinct returns and the number of users with each."""
    if returns.max() >= BATCH:  # too sparse to count in an array
        return np.unique(returns, return_counts=True)
    users = np.bincount(returns)
    distinct = np.flatnonzero(users)
    return distinct, users[distinct]
