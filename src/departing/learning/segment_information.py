"""Information gained from users of segments: about what they share, and about the prior of each segment."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from departing.kernels.learning.path_probabilities import path_probabilities
from departing.learning.information_gain import MIN_PROBABILITY, InformationGain, observed_graph
from departing.learning.instance_batch import Controllers, InstanceBatch
from departing.learning.objective import Objective
from departing.learning.posterior import DIFFERENCE_STEP, PSEUDOCOUNT, Mode
from departing.learning.segment_likelihood import Arrow, SegmentedLikelihood
from departing.model.counts import Integers
from departing.model.instance import Floats
from departing.policy.protocol import Policy


@dataclass(frozen=True, eq=False)
class SegmentedMode:
    """A mode of the posterior with the priors of the segments."""

    mode: Mode

    @property
    def likelihood(self) -> SegmentedLikelihood:
        """The likelihood."""
        assert isinstance(self.mode.likelihood, SegmentedLikelihood)
        return self.mode.likelihood

    @cached_property
    def _point(self) -> tuple[Floats, Arrow]:
        return self.likelihood.at(self.mode.logits, PSEUDOCOUNT)

    @property
    def priors(self) -> Floats:
        """Priors of the segments, `[S, M]`."""
        return self._point[0]

    @cached_property
    def precision(self) -> Arrow:
        """Information about all parameters; that about the logits is at least the lower limit of the mode."""
        arrow = self._point[1]
        information = arrow.eliminated[1]
        return replace(arrow, centre=arrow.centre + self.mode.precision - information)

    @cached_property
    def neighbours(self) -> InstanceBatch:
        """The mode, and the instances one step ahead and back in the logit of each response, `2 F M + 1`."""
        logits, n = self.mode.logits, self.likelihood.n_responses * self.likelihood.n_types
        steps = DIFFERENCE_STEP * np.eye(len(logits))[:n]
        points = np.concatenate([logits[None], logits + steps, logits - steps])
        return InstanceBatch.of_logits(self.likelihood, points)

    def value_slopes(self, policy: Policy, controllers: Controllers, objective: Objective) -> tuple[Floats, Floats]:
        """Gradients of the value of a policy in each segment, `[S, d]` by logit and `[S, M - 1]` by log-ratio."""
        values = self.neighbours.values_by_type(policy, controllers, objective)
        n = len(values) // 2
        slopes = (values[1 : n + 1] - values[n + 1 :]) / (2 * DIFFERENCE_STEP)
        shared = np.zeros((len(self.priors), len(self.mode.logits)))
        shared[:, :n] = self.priors @ slopes.T
        return shared, (self.priors * (values[0] - (self.priors @ values[0])[:, None]))[:, :-1]

    def graph(self, policy: Policy, steps: int) -> tuple[Integers, Integers]:
        """Count graph of the first steps of most users under a policy."""
        return observed_graph(policy, self.mode.instance, steps)

    def paths(self, graph: tuple[Integers, Integers]) -> tuple[Floats, Floats]:
        """Probabilities of the paths of one user by type, `[M, P]`, and their slopes by logit, `[F M, M, P]`."""
        batch, m = self.neighbours, self.likelihood.n_types
        units = np.eye(m)
        by_type = np.stack(
            [path_probabilities(*graph, np.tile(units[x], (len(batch), 1)), batch.outcomes) for x in range(m)], axis=1
        )
        n = len(by_type) // 2
        return by_type[0], (by_type[1 : n + 1] - by_type[n + 1 :]) / (2 * DIFFERENCE_STEP)


@dataclass(frozen=True)
class SegmentFisher:
    """Information of one user of a segment at one mode: about the responses, the log-ratios, and both."""

    responses: Floats
    cross: Floats
    ratios: Floats


@dataclass
class SegmentInformation:
    """Information of policies, each computed once; `shares[S]` are those of the segments, `steps` are observed."""

    modes: list[SegmentedMode]
    shares: Floats
    steps: int
    _paths: dict[Policy, list[tuple[Floats, Floats]]] = field(default_factory=dict)
    _known: dict[tuple[int, Policy], tuple[list[SegmentFisher], Floats]] = field(default_factory=dict)

    def of(self, policies: Sequence[Policy | None]) -> InformationGain:
        """Information from one user of a random segment, if the segments have these policies; none without one."""
        k, s, d = len(self.modes), len(self.shares), len(self.modes[0].mode.logits)
        r = self.modes[0].likelihood.n_types - 1
        total = Arrow(np.zeros((k, d, d)), np.zeros((k, s, d, r)), np.zeros((k, s, r, r)))
        divergence = np.zeros((k, k))
        for segment, (policy, share) in enumerate(zip(policies, self.shares.tolist(), strict=True)):
            if policy is None or not share:
                continue
            fisher, own = self._in_segment(segment, policy)
            divergence += share * own
            for index, each in enumerate(fisher):
                n = len(each.responses)
                total.centre[index, :n, :n] += share * each.responses
                total.cross[index, segment, :n] += share * each.cross
                total.own[index, segment] += share * each.ratios
        return InformationGain(total, divergence)  # type: ignore[arg-type]

    def _in_segment(self, segment: int, policy: Policy) -> tuple[list[SegmentFisher], Floats]:
        key = segment, policy
        if key not in self._known:
            self._known[key] = self._compute(segment, policy)
        return self._known[key]

    def _compute(self, segment: int, policy: Policy) -> tuple[list[SegmentFisher], Floats]:
        if policy not in self._paths:
            graph = self.modes[0].graph(policy, self.steps)
            self._paths[policy] = [mode.paths(graph) for mode in self.modes]
        fisher, at_modes = [], []
        for mode, (by_type, slopes) in zip(self.modes, self._paths[policy], strict=True):
            prior = mode.priors[segment]
            paths = prior @ by_type
            responses = np.einsum("x,dxp->dp", prior, slopes)
            ratios = (prior[:, None] * (by_type - paths))[:-1]
            weighted = responses / np.maximum(paths, MIN_PROBABILITY)
            # Without BLAS, whose sums depend on the number of its threads.
            fisher.append(
                SegmentFisher(
                    np.einsum("dp,ep->de", weighted, responses),
                    np.einsum("dp,rp->dr", weighted, ratios),
                    np.einsum("rp,qp->rq", ratios / np.maximum(paths, MIN_PROBABILITY), ratios),
                )
            )
            at_modes.append(paths)
        probabilities = np.array(at_modes)
        logs = np.log(np.maximum(probabilities, MIN_PROBABILITY))
        divergence = np.maximum((probabilities * logs).sum(axis=1)[:, None] - probabilities @ logs.T, 0.0)
        return fisher, divergence
