"""Per-decision importance sampling (PDIS) and doubly robust (DR) returns of the users of a log, summed over users."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from departing.data.known_log import Reduce
from departing.data.log import Log
from departing.data.rules import BAD_PROPENSITY, NO_PROPENSITY
from departing.data.sources import Arrays, ChunkFunction
from departing.evaluation.continuation import ContinuationValues
from departing.model.counts import Booleans, Integers
from departing.model.histories import Histories
from departing.model.instance import Floats
from departing.offpolicy.log_segments import LogSegments
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

    @classmethod
    def merged(cls, parts: Sequence["Moments"]) -> "Moments":
        """Moments of the returns of several groups of users together."""
        if len(parts) == 1:
            return parts[0]
        n = sum(part.n for part in parts)
        mean = sum(part.n * part.mean for part in parts) / n
        second = third = 0.0
        for part in parts:
            away = part.mean - mean
            second += part.n * (part.second + away**2)
            third += part.n * (part.third + 3 * away * part.second + away**3)
        return cls(n, mean, second / n, third / n)


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
    parts : tuple of ImportanceReturns
        Returns of the users of each segment, if these are returns of several.
    """

    n: int
    missing: int
    users: Integers
    weight_sums: Floats
    squared_weight_sums: Floats
    pdis_sums: Floats
    dr_sums: Floats
    initial: float
    parts: tuple["ImportanceReturns", ...] = ()

    @classmethod
    def merged(cls, parts: Sequence["ImportanceReturns"]) -> "ImportanceReturns":
        """Returns of the users of several segments together."""
        if len(parts) == 1:
            return parts[0]
        names = ("n", "missing", "users", "weight_sums", "squared_weight_sums", "pdis_sums", "dr_sums")
        sums = {name: sum(getattr(part, name) for part in parts) for name in names}
        return cls(**sums, initial=0.0, parts=tuple(parts))

    @property
    def ess(self) -> Floats:
        """Kish's effective sample size by step: squared sum of the weights over the sum of their squares."""
        return _ratio(self.weight_sums**2, self.squared_weight_sums)

    def horizon(self, max_weight: float, least_ess: float = 0.0) -> int:
        """Number of steps before the weighted mean weight first exceeds `max_weight`, or too few users are left."""
        weight = _ratio(self.squared_weight_sums, self.weight_sums)
        few = (self.users == 0) | (self.ess < least_ess * (1 - 1e-9))  # rounding of the sums of equal weights
        return int(np.argmax(np.append((weight > max_weight) | few, True)))

    def pdis(self, horizon: int) -> Moments:
        """Moments of the PDIS returns with the model's continuation values after `horizon` steps."""
        if self.parts:
            return Moments.merged([part.pdis(horizon) for part in self.parts if part.n])
        return Moments.of(self.n, self.pdis_sums[horizon - 1].tolist(), 0.0)

    def dr(self, horizon: int) -> Moments:
        """Moments of the DR returns with the model's continuation values after `horizon` steps."""
        if self.parts:
            return Moments.merged([part.dr(horizon) for part in self.parts if part.n])
        return Moments.of(self.n, self.dr_sums[horizon - 1].tolist(), self.initial)


@dataclass(frozen=True)
class ClickRewards:
    """Rewards of clicks: the mean `[K]` of each category, or the logged one of every click that has one."""

    mean: Floats
    logged: bool


def log_returns(
    log: Log,
    continuations: Sequence[ContinuationValues],
    observed: Floats,
    segments: LogSegments,
    rewards: ClickRewards | None = None,
) -> ImportanceReturns:
    """Compute the returns of the users of a log, which is read once, where its rows are.

    There is one of `continuations` for each segment of the log. Without `rewards` returns are clicks.

    A user whose first category is not the policy's has the returns 0 (PDIS) and v_0 (DR). If no propensity is
    missing, such users are therefore only counted; a log without propensities is not read at all.
    """
    length = len(observed)
    if "propensity" not in log.report.columns:
        none, sums = np.zeros(length), np.zeros((length, 3))
        return ImportanceReturns(0, log.confirmed.users, none.astype(np.int64), none, none, sums, sums, 0.0)
    nodes = [PolicyNodes(continuation, length) for continuation in continuations]
    kinds = {NO_PROPENSITY[0], BAD_PROPENSITY[0]}
    first = {each.first for each in nodes}
    known = len(first) == 1 and not any(each.kind in kinds for each in log.report.irregularities)
    codes = None if log.segment is None else segments.codes
    with log.walks(first.pop() if known else None) as reduce:
        parts = returns_by_segment(reduce, nodes, observed, segments.users if known else None, codes, rewards)
    return ImportanceReturns.merged(parts)


def importance_returns(
    reduce: Reduce, nodes: PolicyNodes, observed: Floats, users: int | None = None
) -> ImportanceReturns:
    """Compute the returns of users without segments; see `returns_by_segment`."""
    (returns,) = returns_by_segment(reduce, [nodes], observed, None if users is None else np.array([users]))
    return returns


def returns_by_segment(
    reduce: Reduce,
    nodes: Sequence[PolicyNodes],
    observed: Floats,
    users: Integers | None = None,
    codes: Integers | None = None,
    rewards: ClickRewards | None = None,
) -> list[ImportanceReturns]:
    """Compute the returns of the users of S segments, with the model's continuation values after every step.

    The importance weight w_t of a user whose categories agree with the policy up to step t is one over the product
    of the propensities, and 0 for others. With v_t the continuation value under the model (0 after a departure) and
    o_t = `observed[t]`, the returns within a horizon of H steps are

        PDIS = Σ_{t<H} w_t r_t / o_t + w_{H-1} v_H / o_{H-1},
        DR   = v_0 + Σ_{t<H} w_t (r_t + v_{t+1} - v_t) / o_t,

    where r_t is 1 or the reward after a click, and 0 otherwise.

    Pending steps are left out, as in a fit, except that at the horizon: nothing follows it, so that v_H is 0.

    Parameters
    ----------
    reduce : callable
        Applies a function to the steps of users, as `Log.walks` yields.
    nodes : sequence of PolicyNodes, length S
        Counts that users of the policy of each segment may reach. Those that users of the log reach beyond them are
        added until there are none; as a rule, the first ones suffice.
    observed : float array [T]
        Probabilities that a step is observed.
    users : int array [S], optional
        Number of users with known propensities, if `reduce` leaves out some who do not agree with the policy.
    codes : int array [C + 1], optional
        Segment of `nodes` for every index of a segment in the log, the last one for -1.
    rewards : ClickRewards, optional
        Rewards of clicks.
    """
    follow = follower()
    given: Arrays = {"observed": observed}
    if codes is not None:
        given["codes"] = codes
    if rewards is not None:
        given |= {"reward": rewards.mean, "logged": np.array([rewards.logged])}
    while True:
        starts = np.cumsum([0, *(each.n for each in nodes)])
        arrays = [each.arrays() for each in nodes]
        for start, table in zip(starts, arrays, strict=False):
            table["child"] = table["child"] + start
        joined = {name: np.concatenate([each[name] for each in arrays]) for name in arrays[0]}
        parts = reduce(follow, {**given, **joined, "starts": starts[:-1]})
        reached = [part["unknown"] for part in parts if len(part["unknown"])]
        if not reached:
            break
        unknown = np.unique(np.concatenate(reached))
        for start, end, each in zip(starts, starts[1:], nodes, strict=False):
            own = unknown[(unknown >= start) & (unknown < end)]
            if len(own):
                each.expand(own - start)
    sums = np.zeros((len(nodes), len(observed), COLUMNS))
    counted = np.zeros((len(nodes), 2), np.int64)
    for part in parts:
        rows = part["sums"].reshape(len(nodes), -1, COLUMNS)
        sums[:, : rows.shape[1]] += rows
        counted += part["users"].reshape(-1, 2)
    counted[:, 0] = counted[:, 0] if users is None else users
    return [_returns(*each) for each in zip(nodes, sums, counted.tolist(), strict=True)]


def _returns(nodes: PolicyNodes, sums: Floats, users: Sequence[int]) -> ImportanceReturns:
    """Returns of the users of a segment: their sums `[T, 15]`, and the numbers with and without propensities."""
    left = sums[:, 9:].cumsum(axis=0)
    return ImportanceReturns(
        users[0],
        users[1],
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
        """Sums over users, by segment and step.

        The columns of `sums[S T, 15]` are the number of users who agree with the policy, the sums of their weights
        and squared weights, and of the first three powers of their PDIS returns and of their DR returns minus the
        initial value, with this step as the last one; then the same six sums for users who agree no longer.
        `users[2 S]` are the numbers of users with and without known propensities, `unknown` the nodes without a
        category that users reached.
        """
        import numpy as np

        def powers(values: Any) -> list[float]:
            return [float((values**k).sum()) for k in (1, 2, 3)]

        def gains(at: Any, clicked: Any) -> Any:
            if "reward" not in given:
                return clicked
            reward = given["reward"][steps["category"][at]]
            if given["logged"][0]:
                logged = steps["reward"][at]
                reward = np.where(np.isnan(logged), reward, logged)
            return np.where(clicked, reward, 0.0)

        def follow_segment(users: list[Any]) -> tuple[list[list[float]], Any]:
            sums: list[list[float]] = []
            for t in range(len(observed)):
                at, end, node, weight, pdis, dr = users
                going = at < end
                chosen = category[node]
                unknown = np.unique(node[going & (chosen < 0)])
                if len(unknown):
                    return sums, unknown
                kept = going.copy()
                kept[going] = steps["category"][at[going]] == chosen[going]
                left = powers(pdis[~kept]) + powers(dr[~kept])
                if not kept.any():
                    sums.append([0.0] * 9 + left)
                    break
                at, end, node, weight, pdis, dr = (each[kept] for each in users)
                outcome = steps["outcome"][at]
                clicked = (outcome == 0) | (outcome == 3)
                gain = gains(at, clicked)
                after = child[node, np.where(clicked, 0, 1)]
                later = np.where(outcome >= 2, 0.0, value[after])
                weight = weight / steps["propensity"][at]
                total = weight / observed[t]
                dr = dr + total * (gain + later - value[node])
                pdis = pdis + total * gain
                weights = [float(len(total)), float(total.sum()), float((total**2).sum())]
                sums.append([*weights, *powers(pdis + total * later), *powers(dr), *left])
                users = [at + 1, end, after, weight, pdis, dr]
            return sums, np.zeros(0, np.int64)

        first = np.flatnonzero(steps["step"] == 0)
        ends = np.append(first, len(steps["step"]))[1:]
        lacking = np.logical_or.reduceat(np.isnan(steps["propensity"]), first) if len(first) else np.zeros(0, bool)
        category, child, value, observed = (given[name] for name in ("category", "child", "value", "observed"))
        segment = np.zeros(len(first), np.int64)
        if "codes" in given:
            segment = given["codes"][steps["segment"][first].astype(np.int64)]
        all_sums, counted, reached = [], [], [np.zeros(0, np.int64)]
        for s, start in enumerate(given["starts"].tolist()):
            rows = (segment == s) & ~lacking
            n = int(rows.sum())
            zeros = np.zeros(n)
            each, new = follow_segment([first[rows], ends[rows], np.full(n, start), zeros + 1, zeros, zeros])
            all_sums.append(np.array(each).reshape(-1, 15))
            counted += [n, int(((segment == s) & lacking).sum())]
            reached.append(new)
        length = max(map(len, all_sums))
        padded = [np.concatenate([each, np.zeros((length - len(each), 15))]) for each in all_sums]
        return {
            "sums": np.concatenate(padded),
            "users": np.array(counted),
            "unknown": np.concatenate(reached),
        }

    return follow
