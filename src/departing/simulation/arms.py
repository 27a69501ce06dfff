"""UCB-Hybrid at full speed: users one after the other, each walked through the graph of the policy chosen."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from departing.kernels.learning.arms import LOW, learn, run_arms
from departing.kernels.random import stream
from departing.learning.ucb import Knowledge, UCBHybrid
from departing.model.counts import Integers, clicks, merge, steps
from departing.model.histories import Histories
from departing.model.instance import CLICK_DEPART, Floats, Instance
from departing.simulation.automaton import automaton, counts_like
from departing.simulation.reference import FinishedUsers, Users, play
from departing.simulation.regret_curve import PolicySegment, RegretCurve, log_checkpoints
from departing.simulation.run import Run, UsersProgress, exact_total, merge_values

BLOCK = 2**16  # users at a time
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Block:
    """Users who came one after the other up to checkpoint `stretch`: their policies, their clicks and all steps.

    `counts` are their final counts, if they were kept.
    """

    stretch: int
    chosen: Integers
    returns: Integers
    steps: int
    counts: Integers


class Graphs:
    """The graphs of all policies of a learner, one after the other."""

    def __init__(self, instance: Instance, learner: UCBHybrid, users: int) -> None:
        share = -(-users // len(learner.policies))
        parts = [automaton(instance, policy, share, None) for policy in learner.policies]
        lengths = np.array([len(part.category) for part in parts])
        m, category = instance.n_types, np.concatenate([part.category for part in parts])
        self.table = np.concatenate([part.table(instance) for part in parts])
        self.shown = np.repeat(category, m)  # by state
        self.starts = 4 * m * (lengths.cumsum() - lengths)
        chance = instance.outcome_probabilities[:, CLICK_DEPART] / instance.departure_probabilities
        self.last: Floats = np.where(category[:, None] < 0, 0.0, chance[category]).reshape(-1)
        self.counts = np.concatenate([part.counts for part in parts])  # by node
        order = np.argsort(instance.prior)  # the last takes what is left, so it must not be a rare one
        self.types = 4 * order
        shares = instance.prior[order].cumsum()
        self.shares = np.minimum(shares / shares[-1] * 2.0**64, 2.0**64 - 2.0**11).astype(np.uint64)[:-1]


class Arms:
    """A run of the arms engine: it can be played again from what the learner knew before."""

    def __init__(self, instance: Instance, learner: UCBHybrid, users: int, seed: int) -> None:
        self.instance, self.users, self.seed = instance, users, seed
        self.policies = learner.policies
        self.marks = log_checkpoints(users)
        self.graphs = Graphs(instance, learner, users)
        self.root = np.random.SeedSequence([seed, 5]).generate_state(1, np.uint64)[0]
        self.knowledge = learner.knowledge()
        self.before = self.knowledge.copy()

    def run(self, progress: UsersProgress) -> Run:
        """The run; the learner knows more afterwards. Its histories are counted when they are asked for."""
        gained = np.zeros(len(self.marks), np.int64)
        pulled = np.zeros((len(self.marks), len(self.policies)), np.int64)
        values, often, made = np.empty(0, np.int64), np.empty(0, np.int64), 0
        for block in self._blocks(self.knowledge, False):
            gained[block.stretch] += block.returns.sum()
            pulled[block.stretch] += np.bincount(block.chosen, minlength=len(self.policies))
            found, times = _tally(block.returns)
            values, often = merge_values([values, found], [often, times])
            made += block.steps
            progress(len(block.chosen))
        segments = [
            PolicySegment(i, self.policies[p], int(pulled[i, p])) for i, p in zip(*np.nonzero(pulled), strict=True)
        ]
        return Run(
            users=self.users,
            clicks=exact_total(values, often),
            steps=made,
            truncated=0,
            engine="arms",
            seed=self.seed,
            returns=values,
            returns_users=often,
            regret_curve=RegretCurve(self.instance, self.marks, gained.cumsum(), segments),
            _count_histories=self.histories,
        )

    def histories(self) -> Histories:
        """The histories of the run, by playing it again and counting."""
        finished = FinishedUsers()
        for block in self._blocks(self.before.copy(), True):
            finished.add(*merge(block.counts, np.ones(len(block.counts), np.int64)))
        return finished.histories(self.instance.n_categories)

    def _blocks(self, knowledge: Knowledge, keep_counts: bool) -> Iterator[Block]:
        words, come = stream(self.root, np.uint64(0)), 0
        for stretch, mark in enumerate(self.marks.tolist()):
            while come < mark:
                n = min(mark - come, BLOCK)
                yield self._play(knowledge, words, stretch, come, n, keep_counts)
                come += n

    def _play(self, knowledge: Knowledge, words: Words, stretch: int, come: int, n: int, keep_counts: bool) -> Block:
        """Play the n users who come after `come` others."""
        graphs, known = self.graphs, knowledge
        chosen, returns = np.empty(n, np.int64), np.empty(n, np.int64)
        tally = np.zeros((n if keep_counts else 0, self.instance.n_categories, 4), np.int64)
        done, made = 0, 0
        while done < n:
            now, steps_made, word = run_arms(
                words,
                graphs.table,
                graphs.shown,
                graphs.starts,
                graphs.types,
                graphs.shares,
                graphs.last,
                known.pulls,
                known.sums,
                known.totals,
                known.log_users,
                known.eta,
                known.scale,
                chosen[done:],
                returns[done:],
                tally[done:],
            )
            done, made = done + now, made + steps_made
            if word >= 0:
                kept = tally[done : done + 1]
                final, more = self._finish(int(chosen[done]), int(word), kept, come + done)
                returns[done] = clicks(final)[0]
                kept[:] = final if keep_counts else kept
                learn(known.pulls, known.sums, known.totals, chosen[done], returns[done])
                done, made = done + 1, made + more
        return Block(stretch, chosen, returns, made, tally)

    def _finish(self, arm: int, word: int, counts: Integers, user: int) -> tuple[Integers, int]:
        """Play a user at an exit of a graph to the end in the way of the reference loop: final counts and steps."""
        node, x = divmod((word & LOW) >> 2, self.instance.n_types)
        if not len(counts):
            counts = counts_like(self.graphs.counts[[node]], np.array([word >> 32]))
        coming = [Users(np.array([user]), np.array([x]), counts.copy())]
        nobody = Users(np.empty(0, np.int64), np.empty(0, np.int64), counts[:0])
        finished, rng = FinishedUsers(), np.random.default_rng([self.seed, 6, user])
        play(self.instance, self.policies[arm], lambda _: coming.pop() if coming else nobody, rng, 1, None, finished)
        final = finished.rows[0]
        return final, int(steps(final)[0] - steps(counts)[0])


def _tally(returns: Integers) -> tuple[Integers, Integers]:
    """The returns that occur, and how often each does."""
    if returns.max() >= BLOCK:
        return np.unique(returns, return_counts=True)
    often = np.bincount(returns)
    values = np.flatnonzero(often)
    return values, often[values]
