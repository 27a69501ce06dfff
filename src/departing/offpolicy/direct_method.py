"""Direct method (DM): value of a policy under a fitted instance, with its bootstrap distribution."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from departing.evaluation.bounds import Bounds
from departing.evaluation.continuation import first_steps
from departing.evaluation.evaluate import Evaluation, evaluate
from departing.model.instance import Floats, Instance
from departing.offpolicy.log_segments import LogSegments
from departing.planning.controller import Controller
from departing.policy.alpha import Alpha
from departing.policy.protocol import Policy

# Relative to the value of knowing every user's type; far below the sampling error of any log.
TOLERANCE = 1e-5
# The next three trade time against exactness for long stays; a value that is not exact enough is reported.
MAX_NODES = 300_000  # nodes expanded per evaluation
BATCH_TYPES = 32  # types of bootstrapped instances that share one evaluation of the policy
MIN_PROBABILITY = 1e-5  # of counts that matter for the variance of the tail
REWARD_TOLERANCE = 1e-3  # of expected clicks, relative to the longest visits, for the error of mean rewards
MAX_GAP = 0.005  # of a value, relative, before a warning: a tenth of a standard error of 5 %


@dataclass(frozen=True)
class BootstrapEnsemble:
    """A fitted instance, first, and its bootstrap replicates, with the values of a policy.

    The fitted instance is evaluated alone, several replicates at once as types of one large instance (`batches`, for
    each group of segments with the same policy). `shares[n, S]` are the shares of the S segments, `priors[n, S, M]`
    those of types in them, `by_type[n, G, M]` the values of the policies of the G groups. `bounds` are those of the
    value under the fitted instance, and `gap` is the largest relative width of the bounds of all values.
    """

    segments: LogSegments
    batches: list[list[Instance]]
    shares: Floats
    priors: Floats
    by_type: Floats
    bounds: Bounds
    gap: float

    @classmethod
    def from_instances(cls, instances: list[Instance], policy: Policy, segments: LogSegments | None = None) -> Self:
        """Evaluate a policy under instances of the same shape, for users of the segments of a log."""
        if segments is None:
            one = np.zeros(1, np.int64)
            segments = LogSegments((None,), one + 1, one + 1, (policy,), one, one)
        parts = [
            _evaluate_group([segments.of_group(each, g) for each in instances], own)
            for g, own in enumerate(segments.policies)
        ]
        gap = max(
            evaluation.gap / max(evaluation.upper, 1e-300)
            for _, evaluations, _ in parts
            for evaluation in evaluations
        )
        by_type = np.stack([values for *_, values in parts], axis=1)
        shares = np.array([segments.shares_under(each, instances[0]) for each in instances])
        priors = np.array([segments.priors(each) for each in instances])
        bounds = _mixed_bounds(segments, priors[0], [evaluations[0] for _, evaluations, _ in parts])
        return cls(segments, [batches for batches, *_ in parts], shares, priors, by_type, bounds, gap)

    def only(self, segment: int) -> Self:
        """The values for the users of one segment."""
        evaluated, group = self.segments.only(segment), self.segments.group[segment]
        priors, by_type = self.priors[:, segment : segment + 1], self.by_type[:, group : group + 1]
        value = float(priors[0, 0] @ by_type[0, 0])
        bounds = Bounds(value * (1 - self.gap), value * (1 + self.gap))
        shares = np.ones((len(priors), 1))
        return replace(
            self,
            segments=evaluated,
            batches=[self.batches[group]],
            shares=shares,
            priors=priors,
            by_type=by_type,
            bounds=bounds,
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentence about loose bounds, if any."""
        if self.gap <= MAX_GAP:
            return ()
        return (
            f"Users stay too long to evaluate the policy exactly: values under the model are within {self.gap:.1%}.",
        )

    @property
    def values(self) -> Floats:
        """Value under every instance, `[n]`."""
        return self._mean(self.by_type)

    def _mean(self, by_type: Floats) -> Floats:
        """Mean over the users of every instance, `[n]`, of numbers by group and type, `[n, G, M]`."""
        each = self.shares[..., None] * self.priors * by_type[:, self.segments.group]
        return np.asarray(each.reshape(len(each), -1).sum(axis=1))

    def tail_variance(self, steps: int) -> float:
        """Variance that the model's error about later steps adds to an estimate that relies on it there.

        Let T be the value of the steps after the first `steps`, given who is still active, and V the whole value.
        Under a correct model the covariance of the estimate with the fitted model is that of V - T, so errors of T
        add var T + 2 cov(V - T, T), estimated over the bootstrap. The sum may be negative: no estimate is
        more precise than that of a correct model.
        """
        gained, active = np.empty_like(self.by_type), np.empty_like(self.by_type)
        for g, (batches, policy) in enumerate(zip(self.batches, self.segments.policies, strict=True)):
            parts = [first_steps(batch, policy, steps, MIN_PROBABILITY) for batch in batches]
            for array, values in zip((gained, active), zip(*parts, strict=True), strict=True):
                array[:, g] = np.concatenate(values).reshape(len(array), -1)
        reach = self._mean(active)
        tail = reach[0] * self._mean(self.by_type - gained) / np.where(reach > 0, reach, 1.0)
        return float(np.cov((2 * self.values - tail)[1:], tail[1:])[0, 1])


def _evaluate_group(instances: list[Instance], policy: Policy) -> tuple[list[Instance], list[Evaluation], Floats]:
    """Batches of instances without segments, their evaluations, and the values of the types, `[n, M]`."""
    first, *replicates = instances
    size = max(BATCH_TYPES // first.n_types, 1)
    batches = [first, *(_joined(replicates[i : i + size]) for i in range(0, len(replicates), size))]
    evaluations = [evaluate(batch, policy, evaluation_tolerance(batch), MAX_NODES) for batch in batches]
    by_type = np.concatenate([_values_by_type(each, policy) for each in evaluations])
    return batches, evaluations, by_type.reshape(len(instances), -1)


def _mixed_bounds(segments: LogSegments, priors: Floats, evaluations: list[Evaluation]) -> Bounds:
    """Bounds for all users, given the priors `[S, M]` and an evaluation of each group."""
    if len(segments.names) == 1:
        return Bounds(evaluations[0].lower, evaluations[0].upper)
    ends = [
        np.array([[getattr(bounds, end) for bounds in each.by_type] for each in evaluations])[segments.group]
        for end in ("lower", "upper")
    ]
    lower, upper = (float(segments.share @ (priors * end).sum(axis=1)) for end in ends)
    return Bounds(lower, upper)


def reward_errors(instance: Instance, segments: LogSegments, stderr: Floats) -> Floats:
    """Standard errors of values that those of mean rewards `stderr[K]` cause: of S segments, then of all users.

    The value is linear in the rewards; its derivatives are the expected clicks in each category.
    """
    priors, variance = segments.priors(instance), np.zeros(len(segments.names) + 1)
    for a in np.flatnonzero(stderr > 0):
        unit = instance.replace(reward=(np.arange(len(stderr)) == a).astype(float))
        by_type = []
        for g, own in enumerate(segments.policies):
            group = segments.of_group(unit, g)
            gap = REWARD_TOLERANCE * float(group.fixed_values.max())
            by_type.append([each.value for each in evaluate(group, own, gap, MAX_NODES).by_type])
        clicks = (priors * np.array(by_type)[segments.group]).sum(axis=1)
        variance += (np.append(clicks, segments.share @ clicks) * stderr[a]) ** 2
    return np.asarray(np.sqrt(variance))


def _values_by_type(evaluation: Evaluation, policy: Policy) -> Floats:
    """Values `[M]` of the types within their bounds: those of the policy's alpha vectors, or the midpoints.

    The values of the vectors, each followed by its own successors, are exact under any instance. The policy differs
    from them where another vector is better at the belief, which gains little; midpoints of loose bounds may err by
    half of them.
    """
    bounds = evaluation.by_type
    instance = evaluation.instance
    if not isinstance(policy, Alpha) or policy.successors is None or instance.horizon is not None:
        return np.array([each.value for each in bounds])
    start = int((policy.vectors @ policy.instance.normalised_prior).argmax())
    controller = Controller(policy.vectors, policy.categories, policy.successors, start).solve(instance)
    lower, upper = ([getattr(each, name) for each in bounds] for name in ("lower", "upper"))
    return np.asarray(np.clip(controller.vectors[start], lower, upper))


def _joined(instances: list[Instance]) -> Instance:
    """One instance with the types of several, which are equally likely."""
    prior = np.concatenate([each.prior for each in instances])
    fields = [
        np.concatenate([getattr(each, name) for each in instances], axis=1)
        for name in ("click", "depart", "depart_on_click")
    ]
    extensions = {name: getattr(instances[0], name) for name in ("reward", "unit", "horizon")}
    return Instance(prior / prior.sum(), fields[0], fields[1], fields[2], **extensions)


def evaluation_tolerance(instance: Instance) -> float:
    """Accuracy of values per user under a fitted instance."""
    return TOLERANCE * float(instance.prior @ instance.fixed_values.max(axis=0))
