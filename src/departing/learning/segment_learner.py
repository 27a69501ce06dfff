"""SegmentLearner: learners that infer an instance whose prior over types depends on the segment of a user."""

from collections.abc import Sequence

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood
from departing.learning.model_learner import MAX_COUNTS, MAX_STEPS, ModelLearner
from departing.learning.posterior import Posterior, PosteriorSamples
from departing.learning.segment_candidates import Policies
from departing.learning.segment_counts import SegmentCounts
from departing.learning.segment_exploration import SegmentBudget
from departing.learning.segment_likelihood import INITIAL_CONCENTRATION, SegmentedLikelihood
from departing.model import random_streams
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Instance
from departing.model.names import check_names, default_names
from departing.model.segments import Segments
from departing.model.validation import check_int
from departing.planning.plan import Plan
from departing.policy.by_segment import BySegment
from departing.policy.protocol import Policy

SegmentBlock = list[tuple[Policy, int]]
MAX_SEGMENTS = 1000  # a sanity limit; the time of a block is proportional to their number
# Plans per block for each segment. Set by hand: fewer cost regret where the optimal policies of segments differ,
# more cost time.
SEGMENT_PLANS = 8


class SegmentLearner(ModelLearner):
    """A learner that infers an instance, with a prior over types for each segment if it is given segments."""

    saved = (*ModelLearner.saved, "concentration", "_by_segment", "_segment_budget")

    def _set_segments(self, segments: int | Sequence[str] | None) -> None:
        """Set the names of the segments. One segment is treated like none."""
        self.segments = _check_segments(segments)
        self.concentration = INITIAL_CONCENTRATION  # likeliest one of the priors of the segments
        n = len(self.segments or ()) if self.distinguishes_segments else 0
        self._by_segment = SegmentCounts(self.n_categories, MAX_STEPS, n)
        self._segment_budget = SegmentBudget(n + 1 if n else 0, self.objective.scale)

    @property
    def distinguishes_segments(self) -> bool:
        """True if the learner infers a prior for each segment."""
        return self.segments is not None and len(self.segments) > 1

    def learn(
        self,
        counts: Integers,
        categories: Integers,
        outcomes: Integers,
        segment: int | None = None,
        arrivals: Integers | None = None,
    ) -> None:
        """Add to the transition counts.

        `segment` is the index of the segment of these users, -1 for unknown, and `arrivals[n]` the number of users
        who arrived before each, by default the latest.
        """
        self.transitions.add(counts, categories, outcomes, arrivals)
        if self.distinguishes_segments:
            self._by_segment.add(counts, categories, outcomes, -1 if segment is None else segment, arrivals)

    def evidence(self) -> MixtureLikelihood | None:
        """Return the likelihood of what has been observed so far, None before the first outcome."""
        if not self.distinguishes_segments or self.posterior.n_types == 1:
            return super().evidence()
        parts = self._by_segment.histograms(self.transitions.max_depth(MAX_COUNTS))
        if not any(len(users) for _, users in parts):
            return None
        return SegmentedLikelihood.of_segments(parts, self.posterior.n_types, self.concentration)

    def instance(self) -> Instance:
        """Return the maximum a posteriori instance so far, without changing the learner."""
        evidence = self.evidence()
        if not isinstance(evidence, SegmentedLikelihood) or self.segments is None:
            return self.objective.apply(super().instance())
        rng = np.random.default_rng([self.seed, random_streams.LEARNER_MODE, self.arrived])
        likeliest = self._likeliest()
        posterior = Posterior(self.n_categories, likeliest.n_types, rng, list(likeliest.pool))
        mode = posterior.best_mode(self._prepare(evidence, posterior.n_types), self._starts())
        assert isinstance(mode.likelihood, SegmentedLikelihood)
        priors = mode.likelihood.at(mode.logits, 0.0)[0][:-1]
        shares = self._by_segment.shares[:-1]
        segments = Segments(self.segments, shares / shares.sum(), priors)
        return self.objective.apply(mode.instance.replace(prior=None, segments=segments))

    def _update_concentration(self, samples: PosteriorSamples) -> None:
        """Use the likeliest concentration at the mode with the largest mass from the next block on."""
        mode = samples.modes[0]
        if isinstance(mode.likelihood, SegmentedLikelihood):
            self.concentration = mode.likelihood.likeliest_concentration(mode.logits)

    def _segment_plans(self, samples: PosteriorSamples, plans: int, allowed: tuple[int, ...] | None) -> list[Plan]:
        """Plan for some of the samples in every segment with users: half drawn by weight, half uniformly."""
        known = np.flatnonzero(self._by_segment.shares > 0)
        n = max(plans // len(known), SEGMENT_PLANS) // 2
        chosen = []
        for segment in known.tolist():
            positions = (np.arange(n) + self.rng.random()) / n
            likely = np.minimum(np.searchsorted(samples.weights.cumsum(), positions), len(samples.batch) - 1)
            others = self.rng.choice(len(samples.batch), n, replace=False)
            chosen += [(int(j), segment) for j in np.unique([*likely, *others])]
        return [self._plan_for(samples.batch.instance(j, segment), allowed) for j, segment in chosen]

    def _segment_sampled(self, samples: PosteriorSamples, n: int, allowed: tuple[int, ...] | None) -> SegmentBlock:
        """Assign the plans of posterior samples to users in proportion to their weight."""
        users = self.rng.multinomial(n, samples.weights)
        return [(self._by_segment_policy(samples, int(j), allowed), int(users[j])) for j in np.flatnonzero(users)]

    def _by_segment_policy(self, samples: PosteriorSamples, j: int, allowed: tuple[int, ...] | None) -> Policy:
        shares = self._by_segment.shares
        n = len(shares)
        policies = [
            self._plan_for(samples.batch.instance(j, s), allowed).policy if shares[s] or s == n - 1 else None
            for s in range(n)
        ]
        return self._policy_of(tuple(policies))  # type: ignore[arg-type]

    def _policy_of(self, policies: Policies) -> Policy:
        """One policy for all users; that of unknown segments is the last."""
        assert self.segments is not None
        policy: Policy = BySegment(dict(zip(self.segments, policies[:-1], strict=True)), policies[-1])
        return policy


def _check_segments(segments: int | Sequence[str] | None) -> tuple[str, ...] | None:
    """Names of segments, given as such or by their number."""
    if segments is None:
        return None
    if isinstance(segments, str):
        expected = "expected a list of names such as ['de', 'fr'], or their number"
        raise InputError(f"segments is {segments!r:.80}; {expected}.", "segments")
    if not isinstance(segments, Sequence):
        return tuple(default_names("segment", check_int("segments", segments, 1, MAX_SEGMENTS)))
    if len(segments) > MAX_SEGMENTS:
        raise InputError(f"segments has {len(segments)} names; expected at most {MAX_SEGMENTS}.", "segments")
    return check_names("segments", segments)
