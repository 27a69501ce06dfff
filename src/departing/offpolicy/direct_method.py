"""Direct method (DM): value of a policy under a fitted instance, with its bootstrap distribution."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from departing.evaluation.bounds import Bounds
from departing.evaluation.continuation import first_steps
from departing.evaluation.evaluate import Evaluation, evaluate
from departing.model.instance import Floats, Instance
from departing.planning.controller import Controller
from departing.policy.alpha import Alpha
from departing.policy.protocol import Policy

# Relative to the value of knowing every user's type; far below the sampling error of any log.
TOLERANCE = 1e-5
# The next three trade time against exactness for long stays; a value that is not exact enough is reported.
MAX_NODES = 300_000  # nodes expanded per evaluation
BATCH_TYPES = 32  # types of bootstrapped instances that share one evaluation of the policy
MIN_PROBABILITY = 1e-5  # of counts that matter for the variance of the tail
MAX_GAP = 0.005  # of a value, relative, before a warning: a tenth of a standard error of 5 %


@dataclass(frozen=True)
class BootstrapEnsemble:
    """A fitted instance, first, and its bootstrap replicates, with the values of a policy.

    The fitted instance is evaluated alone, several replicates at once as types of one large instance (`batches`).
    `priors[n, M]` are the shares of types, `by_type[n, M]` the values of the policy. `bounds` are those of the value
    under the fitted instance, and `gap` is the largest relative width of the bounds of all values.
    """

    policy: Policy
    batches: list[Instance]
    priors: Floats
    by_type: Floats
    bounds: Bounds
    gap: float

    @classmethod
    def from_instances(cls, instances: list[Instance], policy: Policy) -> Self:
        """Evaluate a policy under instances of the same shape."""
        first, *replicates = instances
        size = max(BATCH_TYPES // first.n_types, 1)
        batches = [first, *(_joined(replicates[i : i + size]) for i in range(0, len(replicates), size))]
        evaluations = [evaluate(batch, policy, evaluation_tolerance(batch), MAX_NODES) for batch in batches]
        gap = max(evaluation.gap / max(evaluation.upper, 1e-300) for evaluation in evaluations)
        priors = np.array([each.normalised_prior for each in instances])
        by_type = np.concatenate([_values_by_type(each, policy) for each in evaluations]).reshape(priors.shape)
        return cls(policy, batches, priors, by_type, Bounds(evaluations[0].lower, evaluations[0].upper), gap)

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
        return np.asarray((self.priors * self.by_type).sum(axis=1))

    def tail_variance(self, steps: int) -> float:
        """Variance that the model's error about later steps adds to an estimate that relies on it there.

        Let T be the value of the steps after the first `steps`, given who is still active, and V the whole value.
        Under a correct model the covariance of the estimate with the fitted model is that of V - T, so errors of T
        add var T + 2 cov(V - T, T), estimated over the bootstrap. The sum may be negative: no estimate is
        more precise than that of a correct model.
        """
        parts = [first_steps(batch, self.policy, steps, MIN_PROBABILITY) for batch in self.batches]
        clicks, active = (np.concatenate(part).reshape(self.priors.shape) for part in zip(*parts, strict=True))
        reach = (self.priors * active).sum(axis=1)
        tail = reach[0] * (self.priors * (self.by_type - clicks)).sum(axis=1) / reach
        return float(np.cov((2 * self.values - tail)[1:], tail[1:])[0, 1])


def _values_by_type(evaluation: Evaluation, policy: Policy) -> Floats:
    """Values `[M]` of the types within their bounds: those of the policy's alpha vectors, or the midpoints.

    The values of the vectors, each followed by its own successors, are exact under any instance. The policy differs
    from them where another vector is better at the belief, which gains little; midpoints of loose bounds may err by
    half of them.
    """
    bounds = evaluation.by_type
    if not isinstance(policy, Alpha) or policy.successors is None:
        return np.array([each.value for each in bounds])
    start = int((policy.vectors @ policy.instance.normalised_prior).argmax())
    controller = Controller(policy.vectors, policy.categories, policy.successors, start).solve(evaluation.instance)
    lower, upper = ([getattr(each, name) for each in bounds] for name in ("lower", "upper"))
    return np.asarray(np.clip(controller.vectors[start], lower, upper))


def _joined(instances: list[Instance]) -> Instance:
    """One instance with the types of several, which are equally likely."""
    prior = np.concatenate([each.prior for each in instances])
    fields = [
        np.concatenate([getattr(each, name) for each in instances], axis=1)
        for name in ("click", "depart", "depart_on_click")
    ]
    return Instance(prior / prior.sum(), fields[0], fields[1], fields[2])


def evaluation_tolerance(instance: Instance) -> float:
    """Accuracy, in clicks per user, of values under a fitted instance."""
    return TOLERANCE * float(instance.prior @ instance.fixed_values.max(axis=0))
