"""Lanes engine: single steps at full speed, many users in lockstep through the automaton of a policy.

A *lane* is a place for one user; a kernel advances all lanes by one step in turn, as in vector processors, and puts
the next user into a lane whose user has departed. Users whose counts are not in the automaton leave it at an *exit*
and are played to the end by the reference engine.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from departing.evaluation.traversal import Booleans
from departing.kernels.simulation.lanes import LOW, count_clicks, enqueue, run_lanes
from departing.model import random_streams
from departing.model.counts import Integers, merge, steps
from departing.model.histories import Histories
from departing.model.instance import CLICK_DEPART, DEPART, Instance
from departing.model.sampling import sample_type_counts
from departing.policy.protocol import Policy
from departing.simulation.automaton import Automaton, automaton, counts_like
from departing.simulation.reference import FinishedUsers, Users, UsersProgress, no_progress, once, play
from departing.simulation.regret_curve import RegretCurve
from departing.simulation.run import Run, exact_total, merge_values, run_from_histories, total_reward, truncates

# Users of a block: fixed, so that the number of threads does not change the result. Larger blocks need more memory
# (16 bytes a user and thread), smaller ones more calls.
BLOCK_USERS = 2**18
HISTOGRAM_SIZE = 2**10  # numbers of clicks counted in the kernel; users with more are counted one by one
EXIT_BATCH = 2**15  # users at exits who are played to the end together: amortises the cost of NumPy calls
PackedStates = npt.NDArray[np.uint64]
T = TypeVar("T")


@dataclass(frozen=True)
class LanesBlock:
    """Result of one block of users.

    Of the users who departed inside the automaton `returns_users[c]` had c clicks, and `many_clicks` are the clicks
    of those with more than fit there; `final` are their counts, if these are kept. `exit_types` and `exit_counts`
    describe the users at exits. `steps` are the steps of all up to there.
    """

    returns_users: Integers
    many_clicks: Integers
    exit_types: Integers
    exit_counts: Integers
    steps: int
    users: int
    final: Integers | None


class Lanes:
    """Run of the lanes engine; every block can be played on any thread, any number of times."""

    def __init__(
        self,
        instance: Instance,
        policy: Policy,
        users: int,
        seed: int,
        open_users: int,
        max_steps: int | None,
    ) -> None:
        self.instance, self.policy, self.users, self.seed = instance, policy, users, seed
        self.open_users, self.max_steps = open_users, max_steps
        self.graph: Automaton = automaton(instance, policy, users, max_steps)
        self.table = self.graph.table(instance)
        self.category = np.repeat(self.graph.category, instance.n_types)  # by state
        self.root = np.random.SeedSequence([seed, random_streams.LANES]).generate_state(1, np.uint64)[0]
        # Users do not influence each other, so the order of types is free: all of one type, then the next.
        rng = np.random.default_rng([seed, random_streams.LANES])
        self.type_ends = sample_type_counts(instance, users, rng).cumsum()
        self.blocks = -(-users // BLOCK_USERS)
        self._local = threading.local()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _local=threading.local())

    def run(self, threads: int, progress: UsersProgress) -> Run:
        """Play all blocks; histories are counted when they are first read, or now if rewards need them."""
        if not self.instance.equal_rewards:
            histories = self.histories(threads, progress)
            total = exact_total(histories.clicks, histories.multiplicity)
            reward = total_reward(self.instance, histories)
            curve = RegretCurve.of_policy(self.instance, self.policy, self.users, total, reward)
            return run_from_histories(histories, "lanes", self.seed, curve, self.max_steps)
        histogram, n_steps, finished = np.zeros(HISTOGRAM_SIZE, np.int64), 0, FinishedUsers()
        many, many_users = np.empty(0, np.int64), np.empty(0, np.int64)
        for block in self.finish(self.run_blocks(threads, False, progress), finished, progress):
            histogram += block.returns_users
            n_steps += block.steps
            if len(block.exit_types):
                n_steps -= int(steps(block.exit_counts).sum())
            if len(block.many_clicks):
                ones = np.ones_like(block.many_clicks)
                many, many_users = merge_values([many, block.many_clicks], [many_users, ones])
        late = finished.histories(self.instance.n_categories)  # of users who came to an exit
        returns, users = merge_values(
            [np.arange(HISTOGRAM_SIZE), many, late.clicks], [histogram, many_users, late.multiplicity]
        )
        n_steps += exact_total(late.steps, late.multiplicity)
        truncated = int(late.multiplicity[late.censored].sum()) if truncates(self.instance, self.max_steps) else 0
        total = exact_total(returns, users)
        curve = RegretCurve.of_policy(self.instance, self.policy, self.users, total, self.instance.reward[0] * total)
        count = partial(self.histories, threads)
        return Run(n_steps, truncated, "lanes", self.seed, returns, users, curve, count)

    def histories(self, threads: int, progress: UsersProgress = no_progress) -> Histories:
        """Histories of the run, by playing it again and counting."""
        finished = FinishedUsers()
        for block in self.finish(self.run_blocks(threads, True, progress), finished, progress):
            if block.final is not None:
                finished.add(*merge(block.final, np.ones(len(block.final), np.int64)))
        return finished.histories(self.instance.n_categories)

    def play(self, index: int, keep_counts: bool) -> LanesBlock:
        """Play block `index`."""
        start = index * BLOCK_USERS
        users_by_type = np.diff(np.clip(self.type_ends, start, start + BLOCK_USERS), prepend=start)
        users = int(users_by_type.sum())
        lanes = np.empty(min(self.open_users, users), np.uint64)
        order = np.empty(users if keep_counts else 0, np.int64)
        counts = np.zeros((len(order), self.instance.n_categories, 4), np.int64)
        packed, deferred, histogram = self._buffers()
        enqueue(users_by_type, packed, lanes)
        arrays = (self.table, users, packed, lanes, self.category, np.arange(len(lanes)), order, counts)
        n_steps = int(run_lanes(self.root, np.uint64(index), *arrays))
        packed = packed[:users]
        click_departed = self._sample_click_departures(packed, index)
        if click_departed is not None:
            packed += click_departed.astype(np.uint64) << np.uint64(32)
        deferred = deferred[: count_clicks(packed, self.category, histogram, deferred)]
        returns_users = histogram.reshape(4, HISTOGRAM_SIZE).sum(axis=0)
        if not len(deferred) and not keep_counts:  # the common case; what follows would cost up to 4 % of the time
            return LanesBlock(returns_users, deferred, deferred, self.graph.counts[:0], n_steps, users, None)
        state = _states(packed[deferred])
        exits = self.category[state] < 0
        at_exit, state = deferred[exits], state[exits]
        clicked = (packed[deferred] >> np.uint64(32)).astype(np.int64)
        if keep_counts:
            exit_counts = counts[order[at_exit]]
            final = self._final_counts(packed, order, counts, click_departed)
        else:
            exit_counts = counts_like(self.graph.counts[state // self.instance.n_types], clicked[exits])
            final = None
        types = state % self.instance.n_types
        # An exit is a state in which everybody departs at once: its one step did not happen.
        n_steps -= len(at_exit)
        return LanesBlock(returns_users, clicked[~exits], types, exit_counts, n_steps, users, final)

    def _buffers(self) -> tuple[PackedStates, Integers, Integers]:
        """Arrays of this thread for one block; allocating them for each block costs as much as the steps."""
        if not hasattr(self._local, "arrays"):
            histogram = np.empty(4 * HISTOGRAM_SIZE, np.int64)
            self._local.arrays = (np.empty(BLOCK_USERS + 2, np.uint64), np.empty(BLOCK_USERS, np.int64), histogram)
        packed, deferred, histogram = self._local.arrays
        histogram[:] = 0
        return packed, deferred, histogram

    def _sample_click_departures(self, packed: PackedStates, index: int) -> Booleans | None:
        """Sample who clicked when departing; it changes nothing before, so the kernel leaves it out."""
        if not self.instance.depart_on_click.any():
            return None
        probability = self.instance.outcome_probabilities[:, CLICK_DEPART] / self.instance.departure_probabilities
        by_state = np.where(self.category < 0, 0.0, probability[self.graph.category].reshape(-1))
        rng = np.random.default_rng([self.seed, random_streams.LANES_LAST_CLICK, index])
        return np.asarray(rng.random(len(packed)) < by_state[_states(packed)])

    def _final_counts(
        self, packed: PackedStates, order: Integers, counts: Integers, click_departed: Booleans | None
    ) -> Integers:
        """Counts of the users who departed inside the automaton, their departures added."""
        category = self.category[_states(packed)]
        departed = category >= 0
        outcome = np.where(False if click_departed is None else click_departed[departed], CLICK_DEPART, DEPART)
        counts[order[departed], category[departed], outcome] += 1
        return np.asarray(counts[order[departed]])

    def run_blocks(self, threads: int, keep_counts: bool, progress: UsersProgress) -> Iterator[LanesBlock]:
        """All blocks in order, some of them played ahead."""
        for block in in_order(lambda index: self.play(index, keep_counts), self.blocks, threads):
            yield block
            progress(block.users - len(block.exit_types))

    def finish(
        self, blocks: Iterator[LanesBlock], finished: FinishedUsers, progress: UsersProgress
    ) -> Iterator[LanesBlock]:
        """Pass the blocks on, and play the users at exits to the end with the reference engine."""
        types: list[Integers] = []
        counts: list[Integers] = []
        batch = 0
        for i, block in enumerate(blocks, 1):
            yield block
            if len(block.exit_types):
                types.append(block.exit_types)
                counts.append(block.exit_counts)
            if types and (i == self.blocks or sum(map(len, types)) >= EXIT_BATCH):
                self._play_exits(np.concatenate(types), np.concatenate(counts), batch, finished, progress)
                types, counts, batch = [], [], batch + 1

    def _play_exits(
        self, types: Integers, counts: Integers, batch: int, finished: FinishedUsers, progress: UsersProgress
    ) -> None:
        if self.max_steps is not None:
            over = steps(counts) >= self.max_steps
            finished.add(counts[over])
            progress(int(over.sum()))
            types, counts = types[~over], counts[~over]
        users = Users(np.arange(len(types)), types, counts)
        rng = np.random.default_rng([self.seed, random_streams.LANES_REMAINDER, batch])
        play(self.instance, self.policy, once(users), rng, len(types), self.max_steps, finished, progress)


def _states(packed: PackedStates) -> Integers:
    """Row of each packed state in `Lanes.category`."""
    return (packed & np.uint64(LOW)).astype(np.int64) >> 2


def in_order(function: Callable[[int], T], n: int, threads: int) -> Iterator[T]:
    """Yield `function(0)`, `function(1)`, … in this order, computed by `threads` threads a little ahead."""
    if threads == 1:
        yield from map(function, range(n))
        return
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[Future[T]] = deque()
        try:
            for index in range(n):
                pending.append(pool.submit(function, index))
                if len(pending) >= 4 * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
