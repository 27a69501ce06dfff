"""Single steps at full speed: the policy's graph, followed by many users in flight at once."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from departing.kernels.simulation.lanes import LOW, enqueue, run_lanes, tally_clicks
from departing.model.counts import Integers, merge, steps
from departing.model.histories import Histories
from departing.model.instance import CLICK_DEPART, DEPART, Instance
from departing.policy.protocol import Policy
from departing.simulation.automaton import Automaton, automaton, counts_like
from departing.simulation.reference import Finished, Users, deal_types, play
from departing.simulation.run import Progress, Run, add_up, quiet, run_from_histories, total

BLOCK = 2**18  # users a block: fixed, so that the number of threads does not change what happens
CAP = 2**10
PARKED = 2**15
Words = npt.NDArray[np.uint64]
T = TypeVar("T")


@dataclass(frozen=True)
class Block:
    """What became of the users of one block.

    Those who left inside the graph: `returns_users[c]` of them with c clicks, and `many` with more than fit
    there. Those who came to an exit: `types` and `counts`. `steps` are those of all up to there. With
    `final`, the counts of those who left inside the graph.
    """

    returns_users: Integers
    many: Integers
    types: Integers
    counts: Integers
    steps: int
    users: int
    final: Integers | None


class Lanes:
    """A run of the lanes engine: every block of it can be played on any thread, any number of times."""

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
        self.shown = np.repeat(self.graph.category, instance.n_types)  # by state
        self.root = np.random.SeedSequence([seed, 2]).generate_state(1, np.uint64)[0]
        # Users do not influence each other, so the order of types is free: all of one type, then the next.
        self.type_ends = deal_types(instance, users, np.random.default_rng([seed, 2])).cumsum()
        self.blocks = -(-users // BLOCK)
        self._local = threading.local()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _local=threading.local())

    def run(self, threads: int, progress: Progress) -> Run:
        """The run; its histories are counted when they are asked for."""
        histogram, made, before, parked = np.zeros(CAP, np.int64), 0, 0, Finished()
        many, many_users = np.empty(0, np.int64), np.empty(0, np.int64)
        for block in self.finish(self.run_blocks(threads, False, progress), parked, progress):
            histogram += block.returns_users
            made += block.steps
            if len(block.many):
                many, many_users = add_up([many, block.many], [many_users, np.ones_like(block.many)])
            if len(block.types):
                before += int(steps(block.counts).sum())
        rest = run_from_histories(parked.histories(self.instance.n_categories), "lanes", self.seed)
        returns, users = add_up([np.arange(CAP), many, rest.returns], [histogram, many_users, rest.returns_users])
        return Run(
            users=self.users,
            clicks=total(returns, users),
            steps=made + rest.steps - before,
            truncated=rest.truncated,
            engine="lanes",
            seed=self.seed,
            returns=returns,
            returns_users=users,
            _replay=partial(self.histories, threads),
        )

    def histories(self, threads: int) -> Histories:
        """The histories of the run, by playing it again and counting."""
        finished = Finished()
        for block in self.finish(self.run_blocks(threads, True, quiet), finished, quiet):
            if block.final is not None:
                finished.add(*merge(block.final, np.ones(len(block.final), np.int64)))
        return finished.histories(self.instance.n_categories)

    def play(self, index: int, keep_counts: bool) -> Block:
        """Play block `index`."""
        share = np.diff(np.clip(self.type_ends, index * BLOCK, (index + 1) * BLOCK), prepend=index * BLOCK)
        users = int(share.sum())
        lanes = np.empty(min(self.open_users, users), np.uint64)
        order = np.empty(users if keep_counts else 0, np.int64)
        tally = np.zeros((len(order), self.instance.n_categories, 4), np.int64)
        seats = np.arange(len(lanes))
        words, aside, histogram = self._memory()
        enqueue(share, words, lanes)
        made = run_lanes(
            self.root, np.uint64(index), self.table, users, words, lanes, self.shown, seats, order, tally
        )
        words = words[:users]
        last = self._last_clicks(words, index)
        if last is not None:
            words += last.astype(np.uint64) << np.uint64(32)
        aside = aside[: tally_clicks(words, self.shown, histogram, aside)]
        returns_users = histogram.reshape(4, CAP).sum(axis=0)
        if not len(aside) and not keep_counts:
            none = np.empty(0, np.int64)
            return Block(returns_users, none, none, self.graph.counts[:0], int(made), users, None)
        state = (words[aside] & np.uint64(LOW)).astype(np.int64) >> 2
        exits = self.shown[state] < 0
        parked, state = aside[exits], state[exits]
        final = None
        if keep_counts:
            counts = tally[order[parked]]
            final = self._final_counts(words, order, tally, last)
        else:
            clicked = (words[parked] >> np.uint64(32)).astype(np.int64)
            counts = counts_like(self.graph.counts[state // self.instance.n_types], clicked)
        many = (words[aside[~exits]] >> np.uint64(32)).astype(np.int64)
        types = state % self.instance.n_types
        # An exit is a state in which everybody leaves at once: its one step did not happen.
        return Block(returns_users, many, types, counts, int(made) - len(parked), users, final)

    def _memory(self) -> tuple[Words, Integers, Integers]:
        """Arrays of this thread for one block; getting them fresh for each block costs as much as the steps."""
        if not hasattr(self._local, "arrays"):
            histogram = np.empty(4 * CAP, np.int64)
            self._local.arrays = (np.empty(BLOCK + 2, np.uint64), np.empty(BLOCK, np.int64), histogram)
        words, aside, histogram = self._local.arrays
        histogram[:] = 0
        return words, aside, histogram

    def _last_clicks(self, words: Words, index: int) -> npt.NDArray[np.bool_] | None:
        """Who clicked when leaving; the lanes do not tell, as it changes nothing before."""
        if not self.instance.depart_on_click.any():
            return None
        chance = (
            self.instance.outcome_probabilities[:, CLICK_DEPART] / self.instance.departure_probabilities
        )  # [K, M]
        by_state = np.where(self.shown < 0, 0.0, chance[self.graph.category].reshape(-1))
        state = (words & np.uint64(LOW)).astype(np.int64) >> 2
        return np.asarray(np.random.default_rng([self.seed, 3, index]).random(len(words)) < by_state[state])

    def _final_counts(
        self, words: Words, order: Integers, tally: Integers, last: npt.NDArray[np.bool_] | None
    ) -> Integers:
        """The counts of the users who left inside the graph, their departures added."""
        category = self.shown[(words & np.uint64(LOW)).astype(np.int64) >> 2]
        left = category >= 0
        outcome = np.full(len(words), DEPART) if last is None else np.where(last, CLICK_DEPART, DEPART)
        tally[order[left], category[left], outcome[left]] += 1
        return np.asarray(tally[order[left]])

    def run_blocks(self, threads: int, keep_counts: bool, progress: Progress) -> Iterator[Block]:
        """All blocks in order, some of them played ahead."""
        for block in in_order(lambda index: self.play(index, keep_counts), self.blocks, threads):
            yield block
            progress(block.users - len(block.types))

    def finish(self, blocks: Iterator[Block], finished: Finished, progress: Progress) -> Iterator[Block]:
        """Pass the blocks on, playing the users in exits to the end in the way of the reference loop."""
        types: list[Integers] = []
        counts: list[Integers] = []
        batch = 0
        for block in blocks:
            yield block
            if len(block.types):
                types.append(block.types)
                counts.append(block.counts)
            if sum(map(len, types)) >= PARKED:
                self._play_parked(np.concatenate(types), np.concatenate(counts), batch, finished, progress)
                types, counts, batch = [], [], batch + 1
        if types:
            self._play_parked(np.concatenate(types), np.concatenate(counts), batch, finished, progress)

    def _play_parked(
        self, types: Integers, counts: Integers, batch: int, finished: Finished, progress: Progress
    ) -> None:
        if self.max_steps is not None:
            over = steps(counts) >= self.max_steps
            finished.add(counts[over])
            progress(int(over.sum()))
            types, counts = types[~over], counts[~over]
        coming = [Users(np.arange(len(types)), types, counts)]

        def arrive(most: int) -> Users:
            if coming:
                return coming.pop()
            progress(most)
            return Users(types[:0], types[:0], counts[:0])

        rng = np.random.default_rng([self.seed, 4, batch])
        play(self.instance, self.policy, arrive, rng, len(types), self.max_steps, finished)


def in_order(function: Callable[[int], T], n: int, threads: int) -> Iterator[T]:
    """`function(0)`, `function(1)`, … in this order, computed by `threads` threads a little ahead."""
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
