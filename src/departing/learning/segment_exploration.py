"""Exploration by the value of information where users come in segments that share what is learned.

A *trial* is a policy for each segment, None where the greedy one is kept. All numbers are per user of the site: what
concerns the users of one segment is multiplied by its share.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from departing.learning.exploration import (
    BUDGET_CLICKS,
    BUDGET_SHARE,
    MAX_ALTERNATIVES,
    MAX_TRIALS,
    TINY,
    BlockAllocation,
    ExplorationBudget,
    GainModel,
    positive_part,
)
from departing.learning.information_gain import MAX_STEPS, InformationGain
from departing.learning.segment_candidates import Policies, SegmentCandidates, values_in_segments
from departing.learning.segment_information import SegmentedMode, SegmentInformation
from departing.learning.segment_likelihood import Arrow
from departing.model.instance import Floats
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed, Schedule, simplest_schedule

Trial = tuple[Policy | None, ...]  # policy of each segment, None for the greedy one
# Alternatives whose gain is modelled: six for each segment as without segments, but of many segments only so many in
# all, and at least two for each. Set by hand (docs/limitations/learner-benchmarks.md, segments).
ALTERNATIVES, MIN_ALTERNATIVES = 24, 2


class SegmentBudget:
    """Expected reward spent on exploration, and for each segment the advantages seen in earlier blocks."""

    def __init__(self, n_segments: int, scale: float) -> None:
        self.spent, self.scale = 0.0, scale
        self.parts = [ExplorationBudget(scale=scale) for _ in range(n_segments)]

    def reset(self) -> None:
        """Forget what was spent and seen, because users have changed."""
        self.spent = 0.0
        for part in self.parts:
            part.spent, part.advantages = 0.0, {}

    def rescale(self, scale: float) -> None:
        """Express everything in rewards whose mean is `scale`."""
        self.spent, self.scale = scale / self.scale * self.spent, scale
        for part in self.parts:
            part.rescale(scale)

    @property
    def available(self) -> float:
        """Expected reward that the next block may spend."""
        return BUDGET_CLICKS * self.scale + BUDGET_SHARE * self.spent

    @property
    def greedy(self) -> list[Schedule | None]:
        """Greedy policy of each segment in the previous block."""
        return [part.greedy for part in self.parts]

    def record(self, candidates: SegmentCandidates, cost: float) -> None:
        """Add the advantages seen in a block, and its cost."""
        self.spent += cost
        for part, each in zip(self.parts, candidates.segments, strict=True):
            part.record(each, cost)

    def state(self) -> dict[str, Any]:
        """Return everything needed to resume."""
        return {"spent": self.spent, "scale": self.scale, "parts": [part.state() for part in self.parts]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.spent, self.scale = state["spent"], state["scale"]
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.restore(saved)


class SegmentGainModel(GainModel):
    """The expected gain per user of alternatives in segments: `alternatives[c]` is a policy for `segment[c]`."""

    def __init__(self, candidates: SegmentCandidates, budget: SegmentBudget) -> None:
        samples, shares = candidates.samples, candidates.shares
        self.segmented = [SegmentedMode(mode) for mode in samples.modes]
        self.modes = samples.modes
        weight = (samples.owner == np.arange(len(self.modes))[:, None]) * samples.weights
        self.share = np.maximum(weight.sum(axis=1), TINY)
        s, c, j = candidates.advantages.shape
        advantages = candidates.advantages.reshape(s * c, j)
        mean = weight @ advantages.T / self.share[:, None]
        spread = np.sqrt(np.maximum(weight @ (advantages**2).T / self.share[:, None] - mean**2, 0.0))
        expected = (self.share @ positive_part(mean, spread)).reshape(s, c)
        expected[np.arange(s), candidates.greedy_indices] = -1.0
        most = min(MAX_ALTERNATIVES, max(ALTERNATIVES // int((shares > 0).sum()), MIN_ALTERNATIVES), c - 1)
        best = np.argsort(-expected, axis=1, kind="stable")[:, :most]
        best = best[shares > 0]
        self.segment = np.repeat(np.flatnonzero(shares > 0), most)
        self.alternatives = best.reshape(-1)
        chosen = self.segment * c + self.alternatives
        self.mean, self.spread = mean[:, chosen], spread[:, chosen]
        self._set_slopes(candidates)
        earlier = [self._earlier(budget, candidates, i) for i in range(len(chosen))]
        self._calibrate(weight, advantages[chosen], *np.array(earlier).reshape(-1, 2).T)

    def _earlier(self, budget: SegmentBudget, candidates: SegmentCandidates, i: int) -> tuple[float, float]:
        """Samples of alternative i in earlier blocks, and the mean of the positive part of its advantage."""
        segment, policy = int(self.segment[i]), candidates.policies[self.alternatives[i]]
        n, mean = budget.parts[segment].advantages.get(policy, (0.0, 0.0))
        return n, mean * float(candidates.shares[segment])

    def _set_slopes(self, candidates: SegmentCandidates) -> None:  # type: ignore[override]
        """Set the precision of the modes, and the slopes and variances of the advantages."""
        used = np.unique([*candidates.greedy_indices, *self.alternatives]).tolist()
        greedy, shares = candidates.greedy_indices[self.segment], candidates.shares[self.segment]
        shared: list[Floats] = []
        ratios: list[Floats] = []
        for mode in self.segmented:
            slopes = {
                c: mode.value_slopes(candidates.policies[c], candidates.controllers, candidates.objective)
                for c in used
            }
            for part, all_slopes in ((shared, 0), (ratios, 1)):
                of = [
                    slopes[c][all_slopes][s] - slopes[g][all_slopes][s]
                    for s, c, g in zip(
                        self.segment.tolist(), self.alternatives.tolist(), greedy.tolist(), strict=True
                    )
                ]
                part.append(shares[:, None] * np.array(of))
        self.shared, self.ratios = np.array(shared), np.array(ratios)
        arrows = [mode.precision for mode in self.segmented]
        self.information = Arrow(*(np.array(part) for part in zip(*(vars_of(a) for a in arrows), strict=True)))
        self.variance = np.maximum(self.information.variances(self.shared, self.ratios, self.segment), TINY)

    def _remaining(self, fisher: Arrow) -> Floats:  # type: ignore[override]
        """Return the variance of the advantages after more information, `[G, k, c]`."""
        return (self.information + fisher).variances(self.shared, self.ratios, self.segment)


def vars_of(arrow: Arrow) -> tuple[Floats, Floats, Floats]:
    """The three parts of an arrowhead matrix."""
    return arrow.centre, arrow.cross, arrow.own


class SegmentAllocation(BlockAllocation):
    """Numbers of users of the next block who explore, by trial."""

    def __init__(
        self, candidates: SegmentCandidates, n: int, arrived: int, ahead: float, budget: SegmentBudget
    ) -> None:
        self.model: SegmentGainModel = SegmentGainModel(candidates, budget)
        steps = min(MAX_STEPS, candidates.objective.horizon or MAX_STEPS)
        self.source = SegmentInformation(self.model.segmented, candidates.shares, steps)
        losses: Any = trial_losses(candidates, self.model)
        self._start(candidates.greedy, losses, n, arrived, ahead, budget.available)

    def _information(self, policy: Any) -> InformationGain:
        return self.source.of(policy)

    def _best(self, total: Floats) -> Floats:
        """The gain of the best alternative of every segment, together."""
        first = np.flatnonzero(np.diff(self.model.segment, prepend=-1))
        return np.asarray(np.maximum.reduceat(total, first, axis=1).sum(axis=1))


@dataclass
class _Losses:
    """Losses of policies in segments against the greedy ones, in posterior mean value."""

    candidates: SegmentCandidates

    def __post_init__(self) -> None:
        means = self.candidates.values @ self.candidates.weights
        self.best = means[np.arange(len(means)), self.candidates.greedy_indices]
        self._known: dict[Policy, Floats] = {
            policy: np.maximum(self.best - means[:, c], 0.0) for c, policy in enumerate(self.candidates.policies)
        }

    def of(self, policy: Policy) -> Floats:
        """Loss of a policy for a user of each segment, `[S]`."""
        if policy not in self._known:
            given = self.candidates
            values = values_in_segments(given.samples.batch, policy, given.controllers, given.objective)
            self._known[policy] = np.maximum(self.best - given.weights @ values, 0.0)
        return self._known[policy]


def trial_losses(candidates: SegmentCandidates, model: SegmentGainModel) -> dict[Trial, float]:
    """Return the trials, with the loss per user of each.

    Tried are, in all segments, every fixed category, the greedy schedules with one category inserted at their start,
    and the best alternatives; and in single segments these policies where they are cheapest and where most users are,
    and every alternative in its own segment.
    """
    greedy, losses, shares = candidates.greedy, _Losses(candidates), candidates.shares
    known = np.flatnonzero(shares > 0).tolist()
    categories = candidates.allowed or range(candidates.samples.batch.click.shape[1])
    trials: dict[Trial, None] = {}

    def single(segment: int, policy: Policy) -> None:
        if policy != greedy[segment]:
            trials[tuple(policy if s == segment else None for s in range(len(greedy)))] = None

    def everywhere(policies: list[Policy | None]) -> None:
        trial = tuple(p if s in known and p != greedy[s] else None for s, p in enumerate(policies))
        if any(policy is not None for policy in trial):
            trials[trial] = None

    for category in categories:
        fixed, inserted = Fixed(category), [_inserted(policy, category) for policy in greedy]
        everywhere([fixed] * len(greedy))
        everywhere(list(inserted))
        for policy in dict.fromkeys([fixed, *(inserted[s] for s in known)]):
            if policy is not None:
                cost = losses.of(policy)
                single(min(known, key=lambda s, cost=cost: (cost[s], s)), policy)  # type: ignore[misc]
                single(int(shares.argmax()), policy)
    best: list[Policy | None] = [None] * len(greedy)
    for segment, c in zip(model.segment.tolist(), model.alternatives.tolist(), strict=True):
        single(segment, candidates.policies[c])
        best[segment] = best[segment] or candidates.policies[c]
    everywhere(best)
    return {
        trial: sum(float(shares[s] * losses.of(policy)[s]) for s, policy in enumerate(trial) if policy is not None)
        for trial in trials
    }


def _inserted(policy: Policy, category: int) -> Policy | None:
    """A schedule with one category inserted at its start."""
    if not isinstance(policy, Schedule):
        return None
    steps = [each for each, times in policy.phases for _ in range(min(times, MAX_STEPS))]
    return simplest_schedule([category, *steps], policy.final_category)


def allocate_segment_block(
    candidates: SegmentCandidates, n: int, arrived: int, ahead: float, budget: SegmentBudget
) -> list[tuple[Policies, int]]:
    """Allocate a policy for each segment to the next `n` users after `arrived`, with at most `ahead` more to come.

    As `allocate_block` for users without segments. The gain of an alternative counts in its own segment; information
    counts in all, so that what users of one segment try is learned for the others.
    """
    greedy = candidates.greedy
    if len(candidates.policies) < 2:
        return [(greedy, n)]
    for part, policy in zip(budget.parts, greedy, strict=True):
        part.set_greedy(policy)
    block = SegmentAllocation(candidates, n, arrived, ahead, budget)
    while len(block.allocated) < MAX_TRIALS and block.add():
        pass
    budget.record(candidates, block.cost)
    allocated: list[tuple[Any, int]] = list(block.allocated)
    tried = [
        (tuple(own if each is None else each for each, own in zip(trial, greedy, strict=True)), users)
        for trial, users in allocated
    ]
    return [*tried, (greedy, n - sum(users for _, users in tried))]
