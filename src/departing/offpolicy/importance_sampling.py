"""Weighted estimates: the users of a log who were shown what a policy shows, each standing for those who were not."""

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


def watched(histories: Histories) -> Floats:
    """The chance that step t of a user who has not departed is in the log, `[t]`.

    A product of shares among the users who got so far (Kaplan and Meier), right if it does not depend on what users
    do whether we go on looking, given the number of steps.
    """
    times, last = histories.multiplicity.astype(np.float64), histories.steps - 1
    longest = int(last.max(initial=0)) + 1

    def ends(rows: Booleans) -> Floats:
        rows = rows & (last >= 0)
        return np.bincount(last[rows], times[rows], longest).astype(np.float64)

    after = np.append(ends(np.ones(len(last), bool))[::-1].cumsum()[::-1][1:], 0.0)  # have a next step
    stayed = ends(histories.censored)
    return np.concatenate([[1.0], (1 - _share(stayed, after + stayed)).cumprod()[:-1]])


def _share(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


@dataclass(frozen=True)
class Weighted:
    """Sums over the users of a log who have a propensity at every step.

    `clicks[n]` and `robust[n]` have a summand of the two estimates for every user; `following`, `weights` and
    `squares` are by step: how many were shown what the policy shows up to and with this step, and the sums of their
    weights and of the squares. `unknown` users miss a propensity.
    """

    clicks: Floats
    robust: Floats
    following: Integers
    weights: Floats
    squares: Floats
    unknown: int

    @property
    def effective(self) -> Floats:
        """How many users with equal weights those who follow the policy are worth, by step."""
        return _share(self.weights**2, self.squares)

    def steps(self, most: float) -> int:
        """The number of steps before the first at which one user stands for more than `most` on average."""
        stands = _share(self.squares, self.weights)
        return int(np.argmax(np.append((stands > most) | (self.following == 0), True)))


def weigh(parts: Iterable[Episodes], to_go: ContinuationValues, seen: Floats, steps: int) -> Weighted:
    """Add up the summands of all users, with the model's values after so many steps.

    A user who was shown what the policy shows up to step t has the weight w_t, one over the product of the
    propensities. With v the value to go under the model, 0 for users who departed, the summands are

        Σ_t w_t click_t / seen_t + w_last v_next / seen_last,

    the last term for users who stayed after the last step, and for the doubly robust estimate

        v_0 + Σ_t w_t (click_t + v_{t+1} - v_t) / seen_t.

    Pending steps are left out, as in a fit.
    """
    following, weights, squares = np.zeros(steps, np.int64), np.zeros(steps), np.zeros(steps)
    clicks, robust, unknown = [np.zeros(0)], [np.zeros(0)], 0
    for part in map(_without_pending, parts):
        first = np.flatnonzero(part.step == 0)
        known = ~np.logical_or.reduceat(np.isnan(part.propensity), first) if len(first) else np.zeros(0, bool)
        unknown += int((~known).sum())
        crowd = _Crowd(part, first[known], np.append(first, len(part))[1:][known], to_go, seen)
        for t in range(steps):
            weight = crowd.step(t, t == steps - 1)
            if not len(weight):
                break
            following[t] += len(weight)
            weights[t] += weight.sum()
            squares[t] += (weight**2).sum()
        clicks.append(crowd.clicks)
        robust.append(crowd.robust)
    return Weighted(np.concatenate(clicks), np.concatenate(robust), following, weights, squares, unknown)


def _without_pending(part: Episodes) -> Episodes:
    """The steps after which it is known who stayed: of every user the first ones."""
    kept = ~part.pending
    return Episodes(**{name: values[kept] for name, values in vars(part).items()})


class _Crowd:
    """Users of a part of a log, followed step by step as long as they are shown what the policy shows."""

    def __init__(
        self, part: Episodes, first: Integers, end: Integers, to_go: ContinuationValues, seen: Floats
    ) -> None:
        self.part, self.first, self.end, self.to_go, self.seen = part, first, end, to_go, seen
        instance = to_go.instance
        n = len(first)
        self.user, self.row, self.weight = np.arange(n), np.zeros(n, np.int64), np.ones(n)
        self.counts = np.zeros((n, instance.n_categories, 4), np.int64)
        start = float(instance.normalised_prior @ to_go.levels[0].values[0])
        self.value, self.clicks, self.robust = np.full(n, start), np.zeros(n), np.full(n, start)

    def step(self, t: int, last: bool) -> Floats:
        """Make step t of those who are shown the right category: what each of them stands for."""
        self._keep(self.first[self.user] + t < self.end[self.user])
        if len(self.user):
            at = self.first[self.user] + t
            self._keep(self.part.category[at] == recommended(self.to_go.policy, self.counts))
        if not len(self.user):
            return np.zeros(0)
        at = self.first[self.user] + t
        outcome = self.part.outcome[at]
        self.weight = self.weight / self.part.propensity[at]
        clicked = (outcome == CLICK) | (outcome == CLICK_DEPART)
        ahead = self._advance(t, self.part.category[at], np.where(clicked, CLICK, STAY))
        after = np.where(outcome >= DEPART, 0.0, ahead)
        stands = self.weight / self.seen[t]
        self.clicks[self.user] += stands * (clicked + (after if last else 0.0))
        self.robust[self.user] += stands * (clicked + after - self.value)
        self.value = after
        return np.asarray(stands)

    def _advance(self, t: int, category: Integers, outcome: Integers) -> Floats:
        """Move to the next counts, as if everybody stayed: the values to go there."""
        instance = self.to_go.instance
        self.counts[np.arange(len(category)), category, outcome] += 1
        self.row = self.to_go.after(t, self.row, outcome)
        beliefs = posterior(log_weights(instance, self.counts), instance.prior)
        return np.asarray((beliefs * self.to_go.values(t + 1, self.row, self.counts)).sum(axis=1))

    def _keep(self, rows: Booleans) -> None:
        self.user, self.row, self.weight = self.user[rows], self.row[rows], self.weight[rows]
        self.counts, self.value = self.counts[rows], self.value[rows]
