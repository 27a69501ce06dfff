"""Per-decision importance sampling (PDIS) and doubly robust (DR) returns of the users of a log, summed over users."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from departing.data.log import Log
from departing.data.reader import Reduce
from departing.data.rules import BAD_PROPENSITY, NO_PROPENSITY
from departing.data.sources import Arrays, ChunkFunction
from departing.evaluation.continuation import ContinuationValues
from departing.model.counts import Booleans, Integers
from departing.model.histories import Histories
from departing.model.instance import Floats
from departing.offpolicy.policy_nodes import PolicyNodes

COLUMNS = 15  # of the sums of a step, see `follower`


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
class Moments:
    """Number of returns, their mean, and their second and third central moments."""

    n: int
    mean: float
    second: float
    third: float

    @classmethod
    def of(cls, n: int, sums: Sequence[float], origin: float) -> "Moments":
        """Moments of `n` returns from the sums of the first three powers of their distances from `origin`.

        Most returns are at the origin, and the others are far from it, so that little precision is lost.
        """
        first, second, third = (each / n for each in sums)
        return cls(n, origin + first, max(second - first**2, 0.0), third - 3 * first * second + 2 * first**3)


@dataclass(frozen=True)
class ImportanceReturns:
    """Sums of the PDIS and DR returns of users with known propensities, and of their weights by step.

    Attributes
    ----------
    n : int
        Number of users with known propensities.
    missing : int
        Number of users without a propensity at some step; they are left out.
    users : int array [T]
        Users whose categories agree with the policy up to and including a step.
    weight_sums, squared_weight_sums : float array [T]
        Sums of the weights of these users, and of their squares.
    pdis_sums, dr_sums : float array [T, 3]
        Sums over all n users of the first three powers of the returns within t + 1 steps: of PDIS, and of DR minus
        the value `initial` of the policy under the model.
    initial : float
        Value of the policy under the model.
    """

    n: int
    missing: int
    users: Integers
    weight_sums: Floats
    squared_weight_sums: Floats
    pdis_sums: Floats
    dr_sums: Floats
    initial: float

    @property
    def ess(self) -> Floats:
        """Kish's effective sample size by step: squared sum of the weights over the sum of their squares."""
        return _ratio(self.weight_sums**2, self.squared_weight_sums)

    def horizon(self, max_weight: float) -> int:
        """Number of steps before the weighted mean weight first exceeds `max_weight`, or no user is left."""
        weight = _ratio(self.squared_weight_sums, self.weight_sums)
        return int(np.argmax(np.append((weight > max_weight) | (self.users == 0), True)))

    def pdis(self, horizon: int) -> Moments:
        """Moments of the PDIS returns with the model's continuation values after `horizon` steps."""
        return Moments.of(self.n, self.pdis_sums[horizon - 1].tolist(), 0.0)

    def dr(self, horizon: int) -> Moments:
        """Moments of the DR returns with the model's continuation values after `horizon` steps."""
        return Moments.of(self.n, self.dr_sums[horizon - 1].tolist(), self.initial)


def log_returns(log: Log, continuation: ContinuationValues, observed: Floats) -> ImportanceReturns:
    """Compute the returns of the users of a log, which is read once, where its rows are.

    A user whose first category is not the policy's has the returns 0 (PDIS) and v_0 (DR). If no propensity is
    missing, such users are therefore only counted; a log without propensities is not read at all.
    """
    length = len(observed)
    if "propensity" not in log.report.columns:
        none, sums = np.zeros(length), np.zeros((length, 3))
        return ImportanceReturns(0, log.confirmed.users, none.astype(np.int64), none, none, sums, sums, 0.0)
    nodes = PolicyNodes(continuation, length)
    kinds = {NO_PROPENSITY[0], BAD_PROPENSITY[0]}
    known = not any(each.kind in kinds for each in log.report.irregularities)
    with log.walks(nodes.first if known else None) as reduce:
        return importance_returns(reduce, nodes, observed, log.confirmed.users if known else None)


def importance_returns(
    reduce: Reduce, nodes: PolicyNodes, observed: Floats, users: int | None = None
) -> ImportanceReturns:
    """Compute the returns of users, with the model's continuation values after every number of steps.

    The importance weight w_t of a user whose categories agree with the policy up to step t is one over the product
    of the propensities, and 0 for others. With v_t the continuation value under the model (0 after a departure) and
    o_t = `observed[t]`, the returns within a horizon of H steps are

        PDIS = Σ_{t<H} w_t click_t / o_t + w_{H-1} v_H / o_{H-1},
        DR   = v_0 + Σ_{t<H} w_t (click_t + v_{t+1} - v_t) / o_t.

    Steps whose departure is pending are left out, as in a fit.

    Parameters
    ----------
    reduce : callable
        Applies a function to the confirmed steps of users, as `Log.walks` yields.
    nodes : PolicyNodes
        Counts that users of the policy may reach. Those that users of the log reach beyond them are added until there
        are none; as a rule, the first ones suffice.
    observed : float array [T]
        Probabilities that a step is observed.
    users : int, optional
        Number of users with known propensities, if `reduce` leaves out some who do not agree with the policy.
    """
    follow = follower()
    while True:
        parts = reduce(follow, {"observed": observed, **nodes.arrays()})
        reached = [part["unknown"] for part in parts if len(part["unknown"])]
        if not reached:
            break
        nodes.expand(np.unique(np.concatenate(reached)))
    sums = np.zeros((len(observed), COLUMNS))
    known = missing = 0
    for part in parts:
        sums[: len(part["sums"])] += part["sums"]
        known, missing = known + int(part["users"][0]), missing + int(part["users"][1])
    left = sums[:, 9:].cumsum(axis=0)
    return ImportanceReturns(
        known if users is None else users,
        missing,
        sums[:, 0].astype(np.int64),
        sums[:, 1],
        sums[:, 2],
        sums[:, 3:6] + left[:, :3],
        sums[:, 6:9] + left[:, 3:],
        nodes.initial,
    )


def follower() -> ChunkFunction:
    """The function that follows users along the counts of a policy, step by step.

    It refers to nothing but NumPy, because Spark ships it to workers without departing.
    """

    def follow(steps: Arrays, given: Arrays) -> Arrays:
        """Sums over users, by step.

        The columns of `sums[T, 15]` are the number of users who agree with the policy, the sums of their weights and
        squared weights, and of the first three powers of their PDIS returns and of their DR returns minus the initial
        value, with this step as the last one; then the same six sums for users who agree no longer. `users` are the
        numbers of users with and without known propensities, `unknown` the nodes without a category that users
        reached.
        """
        import numpy as np

        def powers(values: Any) -> list[float]:
            return [float((values**k).sum()) for k in (1, 2, 3)]

        first = np.flatnonzero(steps["step"] == 0)
        ends = np.append(first, len(steps["step"]))[1:]
        lacking = np.logical_or.reduceat(np.isnan(steps["propensity"]), first) if len(first) else np.zeros(0, bool)
        n = len(first) - int(lacking.sum())
        category, child, value, observed = (given[name] for name in ("category", "child", "value", "observed"))
        users: list[Any] = [
            first[~lacking],
            ends[~lacking],
            np.zeros(n, np.int64),
            np.ones(n),
            np.zeros(n),
            np.zeros(n),
        ]
        sums: list[list[float]] = []
        unknown = np.zeros(0, np.int64)
        for t in range(len(observed)):
            at, end, node, weight, pdis, dr = users
            going = at < end
            chosen = category[node]
            unknown = np.unique(node[going & (chosen < 0)])
            if len(unknown):
                break
            kept = going.copy()
            kept[going] = steps["category"][at[going]] == chosen[going]
            left = powers(pdis[~kept]) + powers(dr[~kept])
            if not kept.any():
                sums.append([0.0] * 9 + left)
                break
            at, end, node, weight, pdis, dr = (each[kept] for each in users)
            outcome = steps["outcome"][at]
            clicked = (outcome == 0) | (outcome == 3)
            after = child[node, np.where(clicked, 0, 1)]
            later = np.where(outcome >= 2, 0.0, value[after])
            weight = weight / steps["propensity"][at]
            total = weight / observed[t]
            dr = dr + total * (clicked + later - value[node])
            pdis = pdis + total * clicked
            weights = [float(len(total)), float(total.sum()), float((total**2).sum())]
            sums.append([*weights, *powers(pdis + total * later), *powers(dr), *left])
            users = [at + 1, end, after, weight, pdis, dr]
        return {
            "sums": np.array(sums).reshape(-1, 15),
            "users": np.array([n, int(lacking.sum())]),
            "unknown": unknown,
        }

    return follow
