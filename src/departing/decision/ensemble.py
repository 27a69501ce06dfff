"""Ensemble: a fitted instance with bootstrap draws of it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from departing.decision.log_value import LogValue
from departing.decision.policy_graph import PolicyGraph
from departing.decision.stack import Rule, Stack
from departing.fitting.fit import Fit
from departing.fitting.optimisation import newton_maximise
from departing.fitting.quasi_newton import quasi_newton_maximise
from departing.fitting.refit import with_parameters
from departing.model import random_streams
from departing.model.instance import Floats, Instance
from departing.model.progress import Progress
from departing.policy.protocol import Policy
from departing.policy.schedule import Schedule

# Values are needed to a small fraction of the sampling error of a log, which is some percent of the value.
GRAPH_GAP = 1e-3
GRAPH_NODES = 20_000  # counts of one policy, with up to ten categories; 0.05 s
# Refits are limited to about ten seconds for 100 draws: 60 parameters, and rows times parameters. Larger logs
# determine the logits so well that one step is enough.
MAX_PARAMETERS, MAX_REFIT_SIZE = 60, 1_500_000
CONVERGED = 1e-2  # nats: a tenth of a standard error of a draw
MAX_STEP = 1.0  # logits: parameters that are less certain need refits, whose pseudocounts limit them
# Resamples that share one pass over the scores of all rows: most numbers of users take a byte, so that 100 resamples
# of 6.5 million rows take three passes.
MAX_RESAMPLED_BYTES = 2**28


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Fitted instance, first, and bootstrap draws.

    Attributes
    ----------
    instances : list of Instance
        The fitted instance and `n - 1` draws.
    logits : array [n, d]
        The same as logits; the fit alone if it has a prior for each segment.
    log_values : array [n]
        Reward per user under the policy of the log, in the log and in each resample of it.
    """

    instances: list[Instance]
    logits: Floats
    log_values: Floats

    @classmethod
    def bootstrap(cls, fit: Fit, draws: int, seed: int, progress: Progress | None = None) -> Self:
        """Refit `draws` samples of the users with replacement, starting at the fit.

        Where refits by Newton's method would take too long, the quasi-Newton method replaces it for a large model,
        and one step with the curvature of the fit for a large log.
        """
        rng = np.random.default_rng([seed, random_streams.DECISION])
        likelihood, log = fit.likelihood, LogValue.of(fit.histories, fit.instance)
        users, total = likelihood.users, int(likelihood.users.sum())
        rows, d = len(users), likelihood.n_parameters
        one_step = rows * d > MAX_REFIT_SIZE
        refit = d <= MAX_PARAMETERS and not one_step
        logits, values = [fit.logits], [log.value(users)]
        in_segments = fit.segments is not None and fit.segments.optimum is not None
        drawn: list[Instance] = []
        waiting: list[npt.NDArray[Any]] = []  # resamples for one step
        for done in range(draws):
            numbers = rng.multinomial(total, users / users.sum())  # of users with weights, as many as they are worth
            resampled = numbers.astype(np.float64)
            if in_segments:
                drawn.append(fit.resampled(resampled))
            elif refit:
                result = newton_maximise(likelihood.reweighted(resampled), fit.logits[None], fit.pseudocount)
                logits.append(result.logits[0])
            elif one_step:
                waiting.append(numbers.astype(np.min_scalar_type(int(numbers.max()))))
                if done + 1 == draws or sum(each.nbytes for each in waiting) > MAX_RESAMPLED_BYTES:
                    logits.extend(_one_step(fit, waiting))
                    waiting.clear()
            else:
                sample = likelihood.reweighted(resampled)
                logits.append(quasi_newton_maximise(sample, fit.logits, fit.pseudocount, CONVERGED)[0])
            values.append(log.value(resampled))
            if progress is not None:
                progress(done + 1, draws)
        drawn = drawn or [with_parameters(fit.instance, likelihood.from_logits(each)) for each in logits[1:]]
        if fit.rewards is not None:
            rewards = fit.draw_rewards(draws, seed)
            drawn = [each.replace(reward=reward) for each, reward in zip(drawn, rewards, strict=True)]
        return cls([fit.instance, *drawn], np.array(logits), np.array(values))

    @cached_property
    def stack(self) -> Stack:
        """All instances, to evaluate policies under them."""
        return Stack.of(self.instances)

    def rule(self, policy: Policy) -> Rule:
        """A policy in a form that can be evaluated under many instances, followed as the fitted users do."""
        return policy if isinstance(policy, Schedule) else follow(policy, self.instances[0])


def _one_step(fit: Fit, resampled: list[npt.NDArray[Any]]) -> Floats:
    """Logits `[n, d]` after one step from the fit, given numbers of users `[n][N]` of the rows.

    The scores `[N, d]` of all rows would take gigabytes: they are computed for a batch of rows at a time.
    """
    likelihood, start = fit.likelihood, 0
    gradients = np.zeros((len(resampled), likelihood.n_parameters))
    for batch in likelihood.batches(likelihood.n_parameters):
        end = start + len(batch.users)
        change = np.array([numbers[start:end] for numbers in resampled]) - batch.users
        gradients += change @ batch.scores(fit.logits)
        start = end
    return np.asarray(fit.logits + np.clip(gradients @ fit.covariance, -MAX_STEP, MAX_STEP))


def follow(policy: Policy, instance: Instance) -> PolicyGraph:
    """Count graph of a policy, as far as it matters to users of an instance."""
    nodes = min(GRAPH_NODES, 10 * GRAPH_NODES // instance.n_categories)
    return PolicyGraph.follow(policy, instance, GRAPH_GAP * float(instance.best_fixed[1]), nodes)
