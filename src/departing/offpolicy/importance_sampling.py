"""Per-decision importance sampling (PDIS) and doubly robust (DR) returns of the users of a log."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from departing.data.log import Episodes
from departing.evaluation.continuation import ContinuationValues
from departing.model.belief import log_weights, posterior
from departing.model.counts import Integers
from departing.model.histories import Histories
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats
from departing.policy.protocol import recommended

Booleans = npt.NDArray[np.bool_]


def observation_probabilities(histories: Histories) -> Floats:
    """Probability `[t]` that step t of a user who has not departed is observed, by the Kaplan-Meier estimator.

    Its inverse is the inverse-probability-of-censoring weight. Valid if censoring is independent of the user's
    behaviour given the number of steps.
    """
    users, last = histories.multiplicity.astype(np.float64), histories.steps - 1
    length = int(last.max(initial=0)) + 1

    def ending(rows: Booleans) -> Floats:
        rows = rows & (last >= 0)
        return np.bincount(last[rows], users[rows], length).astype(np.float64)

    continued = np.append(ending(np.ones(len(last), bool))[::-1].cumsum()[::-1][1:], 0.0)  # have a next step
    censored = ending(histories.censored)
    return np.concatenate([[1.0], (1 - _ratio(censored, continued + censored)).cumprod()[:-1]])


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


@dataclass(frozen=True)
class ImportanceReturns:
    """PDIS and DR returns of users with known propensities, and their weights by step.

    `pdis[n]` and `dr[n]` have one return per user. By step, `users` counts those whose categories agree with the
    policy up to and including it; `weight_sums` and `squared_weight_sums` are over these users. Users without a
    propensity at some step are left out and counted in `missing`.
    """

    pdis: Floats
    dr: Floats
    users: Integers
    weight_sums: Floats
    squared_weight_sums: Floats
    missing: int

    @property
    def ess(self) -> Floats:
        """Kish's effective sample size by step: squared sum of the weights over the sum of their squares."""
        return _ratio(self.weight_sums**2, self.squared_weight_sums)

    def horizon(self, max_weight: float) -> int:
        """Number of steps before the weighted mean weight first exceeds `max_weight`, or no user is left."""
        weight = _ratio(self.squared_weight_sums, self.weight_sums)
        return int(np.argmax(np.append((weight > max_weight) | (self.users == 0), True)))


def importance_returns(
    chunks: Iterable[Episodes], continuation: ContinuationValues, observed: Floats, horizon: int
) -> ImportanceReturns:
    """Compute the returns of all users, with the model's continuation values after `horizon` steps.

    The importance weight w_t of a user whose categories agree with the policy up to step t is one over the product
    of the propensities, and 0 for others. With v_t the continuation value under the model (0 after a departure) and
    o_t = `observed[t]`, the returns are

        PDIS = Σ_{t<H} w_t click_t / o_t + w_{H-1} v_H / o_{H-1},
        DR   = v_0 + Σ_{t<H} w_t (click_t + v_{t+1} - v_t) / o_t.

    Steps whose departure is pending are left out, as in a fit.
    """
    users, weight_sums, squared_weight_sums = np.zeros(horizon, np.int64), np.zeros(horizon), np.zeros(horizon)
    pdis, dr, missing = [np.zeros(0)], [np.zeros(0)], 0
    for chunk in map(_without_pending, chunks):
        first = np.flatnonzero(chunk.step == 0)
        known = ~np.logical_or.reduceat(np.isnan(chunk.propensity), first) if len(first) else np.zeros(0, bool)
        missing += int((~known).sum())
        trajectories = _Trajectories(
            chunk, first[known], np.append(first, len(chunk))[1:][known], continuation, observed
        )
        for t in range(horizon):
            weights = trajectories.step(t, t == horizon - 1)
            if not len(weights):
                break
            users[t] += len(weights)
            weight_sums[t] += weights.sum()
            squared_weight_sums[t] += (weights**2).sum()
        pdis.append(trajectories.pdis)
        dr.append(trajectories.dr)
    return ImportanceReturns(
        np.concatenate(pdis), np.concatenate(dr), users, weight_sums, squared_weight_sums, missing
    )


def _without_pending(chunk: Episodes) -> Episodes:
    """Steps with a known outcome: for every user the first ones."""
    kept = ~chunk.pending
    return Episodes(**{name: values[kept] for name, values in vars(chunk).items()})


class _Trajectories:
    """Users of a chunk, followed step by step while their categories agree with the policy."""

    def __init__(
        self, chunk: Episodes, first: Integers, end: Integers, continuation: ContinuationValues, observed: Floats
    ) -> None:
        self.chunk, self.first, self.end = chunk, first, end
        self.continuation, self.observed = continuation, observed
        instance = continuation.instance
        n = len(first)
        self.user, self.row, self.weight = np.arange(n), np.zeros(n, np.int64), np.ones(n)
        self.counts = np.zeros((n, instance.n_categories, 4), np.int64)
        initial = float(instance.normalised_prior @ continuation.levels[0].values[0])
        self.value, self.pdis, self.dr = np.full(n, initial), np.zeros(n), np.full(n, initial)

    def step(self, t: int, final: bool) -> Floats:
        """Add step t of the users who still agree with the policy; return their weights."""
        self._keep(self.first[self.user] + t < self.end[self.user])
        if len(self.user):
            at = self.first[self.user] + t
            self._keep(self.chunk.category[at] == recommended(self.continuation.policy, self.counts))
        if not len(self.user):
            return np.zeros(0)
        at = self.first[self.user] + t
        outcome = self.chunk.outcome[at]
        self.weight = self.weight / self.chunk.propensity[at]
        clicked = (outcome == CLICK) | (outcome == CLICK_DEPART)
        next_value = self._advance(t, self.chunk.category[at], np.where(clicked, CLICK, STAY))
        next_value = np.where(outcome >= DEPART, 0.0, next_value)
        weight = self.weight / self.observed[t]
        self.pdis[self.user] += weight * (clicked + (next_value if final else 0.0))
        self.dr[self.user] += weight * (clicked + next_value - self.value)
        self.value = next_value
        return np.asarray(weight)

    def _advance(self, t: int, category: Integers, outcome: Integers) -> Floats:
        """Move to the next counts as if every user stayed; return the continuation values there."""
        instance = self.continuation.instance
        self.counts[np.arange(len(category)), category, outcome] += 1
        self.row = self.continuation.after(t, self.row, outcome)
        beliefs = posterior(log_weights(instance, self.counts), instance.prior)
        return np.asarray((beliefs * self.continuation.values(t + 1, self.row, self.counts)).sum(axis=1))

    def _keep(self, rows: Booleans) -> None:
        self.user, self.row, self.weight = self.user[rows], self.row[rows], self.weight[rows]
        self.counts, self.value = self.counts[rows], self.value[rows]
