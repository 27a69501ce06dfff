"""Per-decision importance sampling (PDIS) and doubly robust (DR) returns of the users of a log."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from departing.data.log import Episodes
from departing.evaluation.continuation import ContinuationValues
from departing.model.belief import log_weights, posterior
from departing.model.counts import Booleans, Integers
from departing.model.histories import Histories
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats
from departing.policy.protocol import recommended


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
    sums = np.zeros((3, horizon))  # users, weights, squared weights
    parts, missing = [(np.zeros(0), np.zeros(0))], 0
    for chunk in map(_without_pending, chunks):
        first = np.flatnonzero(chunk.step == 0)
        known = ~np.logical_or.reduceat(np.isnan(chunk.propensity), first) if len(first) else np.zeros(0, bool)
        missing += int((~known).sum())
        end = np.append(first, len(chunk))[1:]
        parts.append(_follow(chunk, first[known], end[known], continuation, observed, sums))
    pdis, dr = (np.concatenate(part) for part in zip(*parts, strict=True))
    return ImportanceReturns(pdis, dr, sums[0].astype(np.int64), sums[1], sums[2], missing)


def _without_pending(chunk: Episodes) -> Episodes:
    """Steps with a known outcome: for every user the first ones."""
    kept = ~chunk.pending
    return Episodes(**{name: values[kept] for name, values in vars(chunk).items()})


def _follow(
    chunk: Episodes, first: Integers, end: Integers, continuation: ContinuationValues, observed: Floats, sums: Floats
) -> tuple[Floats, Floats]:
    """PDIS and DR returns of users with steps `first[n]:end[n]`; adds to `sums[3, horizon]`."""
    instance, n, horizon = continuation.instance, len(first), sums.shape[1]
    initial = float(instance.normalised_prior @ continuation.levels[0].values[0])
    pdis, dr, value = np.zeros(n), np.full(n, initial), np.full(n, initial)
    user, node, weight = np.arange(n), np.zeros(n, np.int64), np.ones(n)
    counts = np.zeros((n, instance.n_categories, 4), np.int64)
    for t in range(horizon):
        at = first[user] + t
        kept = at < end[user]
        if kept.any():
            kept[kept] = chunk.category[at[kept]] == recommended(continuation.policy, counts[kept])
        if not kept.any():
            break
        user, at, node, counts = user[kept], at[kept], node[kept], counts[kept]
        outcome = chunk.outcome[at]
        clicked = (outcome == CLICK) | (outcome == CLICK_DEPART)
        stayed = np.where(clicked, CLICK, STAY)  # the next counts of a user who does not depart
        counts[np.arange(len(user)), chunk.category[at], stayed] += 1
        node = continuation.child_rows(t, node, stayed)
        beliefs = posterior(log_weights(instance, counts), instance.prior)
        next_value = (beliefs * continuation.values(t + 1, node, counts)).sum(axis=1)
        next_value = np.where(outcome >= DEPART, 0.0, next_value)
        weight = weight[kept] / chunk.propensity[at]
        total = weight / observed[t]
        pdis[user] += total * (clicked + (next_value if t == horizon - 1 else 0.0))
        dr[user] += total * (clicked + next_value - value[kept])
        sums[:, t] += len(total), total.sum(), (total**2).sum()
        value = next_value
    return pdis, dr
