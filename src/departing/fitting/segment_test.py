"""Test whether segments tell anything about the types of users, and which columns do.

The test is the score test of equal priors, which is the likelihood-ratio test to first order. Its scores, the
posterior minus the prior probability of each type, have mean zero under equal priors however small a segment is and
whichever categories it was shown, so that its distribution is known where that of the likelihood ratio is not.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from departing.fitting.concentration import SMALLEST, estimate_concentration
from departing.fitting.optimisation import maximise
from departing.fitting.segments import SegmentedLikelihood
from departing.formatting import format_p_value, format_percent
from departing.model.counts import Integers
from departing.model.instance import Floats
from departing.model.segments import SEPARATOR

if TYPE_CHECKING:
    from departing.fitting.result import Fit

SIGNIFICANCE = 0.01  # p-value from which a segment or a column is named; low, since every fit is tested
MAX_SCORES = 1_500  # segments times types less one with a score of their own; smaller ones are joined: 18 MB
# Users of the null hypothesis in the variance of a segment: about the number from which that of its own users is
# known as well.
PRIOR_USERS = 20.0
MIN_EIGENVALUE = 1e-9  # of the variance of a score, relative to the largest; below, a type does not occur


@dataclass(frozen=True)
class ColumnTest:
    """Test of one column of the segments.

    Attributes
    ----------
    column : str
        Name of the column.
    p_value : float
        Test of equal priors for all values of the column.
    gain : float
        Expected log-likelihood that the column alone adds for a user to come, in nats.
    added_p_value : float or None
        Test of equal priors for all values of the column, given the other columns; None if there are none.
    """

    column: str
    p_value: float
    gain: float
    added_p_value: float | None

    @property
    def informative(self) -> bool:
        """True if there is evidence that the column tells something about types beyond the others."""
        return (self.p_value if self.added_p_value is None else self.added_p_value) <= SIGNIFICANCE

    def describe(self) -> str:
        """Describe the test in one sentence."""
        verdict = (
            "tells something about types" if self.p_value <= SIGNIFICANCE else "shows no information about types"
        )
        text = f"{self.column} {verdict} ({format_p_value(self.p_value)}, {self.gain:.3g} nats per user"
        if self.added_p_value is None:
            return f"{text})."
        return f"{text}; beyond the other columns {format_p_value(self.added_p_value)})."


@dataclass(frozen=True)
class SegmentTest:
    """Test whether segments tell anything about the types of their users.

    Attributes
    ----------
    statistic : float
        Score statistic, which equals the likelihood-ratio statistic to first order.
    degrees : float
        Degrees of freedom of the chi-squared distribution that approximates its own.
    p_value : float
        p-value of equal priors in all segments.
    gain : float
        Expected log-likelihood that segments add for a user to come, in nats.
    explained : float
        Share of the entropy of the type that the segment removes: 0 if it tells nothing, 1 if it tells the type.
    columns : tuple of ColumnTest
        Tests of the columns, if there are several.
    """

    statistic: float
    degrees: float
    p_value: float
    gain: float
    explained: float
    columns: tuple[ColumnTest, ...] = ()

    @property
    def informative(self) -> bool:
        """True if there is evidence that segments tell something about types."""
        return self.p_value <= SIGNIFICANCE

    def describe(self) -> str:
        """Describe the test in one sentence."""
        p = format_p_value(self.p_value)
        if not self.informative:
            return f"No evidence that segments tell anything about types ({p})."
        return (
            f"Segments tell something about types ({p}): {self.gain:.3g} nats per user, "
            f"{format_percent(self.explained)} of what is unknown about a type."
        )

    def summary(self) -> str:
        """Overview in several lines: the test of all segments, and those of the columns."""
        return "\n".join([self.describe(), *(f"  {each.describe()}" for each in self.columns)])

    __str__ = summary


def segment_test(fit: "Fit") -> SegmentTest | None:
    """Test the segments of a fit; None if users are of fewer than two segments or types."""
    if fit.segments is None or fit.instance.n_types == 1:
        return None
    segment = fit.segments.row_segment
    if len(np.unique(segment[segment >= 0])) < 2:
        return None
    optimum = maximise(fit.likelihood, fit.logits[None], fit.pseudocount)
    rows = fit.likelihood.rows(segment >= 0)
    segment = segment[segment >= 0]
    logits, prior = optimum.logits[: rows.n_responses * rows.n_types], optimum.parameters.prior
    every = np.zeros(len(segment), np.int64)

    def of(labels: Integers) -> SegmentedLikelihood:
        _, own = np.unique(labels, return_inverse=True)
        return SegmentedLikelihood.of(rows, own, int(own.max()) + 1, prior)

    statistic, degrees, p_value = score_test(of(segment), logits, _order(segment, every))
    gain, explained = _gain(of(segment), logits)
    parts = column_values(fit.segments.segments.names, fit.segments.segments.columns)
    columns = []
    for name, (values, others) in parts.items():
        own = values[segment]
        alone = score_test(of(own), logits, _order(own, every))[2]
        added = score_test(of(segment), logits, _order(segment, others[segment]))[2] if others.any() else None
        columns.append(ColumnTest(name, alone, _gain(of(own), logits)[0], added))
    return SegmentTest(statistic, degrees, p_value, gain, explained, tuple(columns))


def column_values(names: tuple[str, ...], columns: tuple[str, ...]) -> dict[str, tuple[Integers, Integers]]:
    """For each of several columns the number of its value in each segment, `[S]`, and that of the others' values."""
    parts = [name.split(SEPARATOR) for name in names]
    if len(columns) < 2 or any(len(each) != len(columns) for each in parts):
        return {}
    tests = {}
    for i, column in enumerate(columns):
        own = np.unique([each[i] for each in parts], return_inverse=True)[1]
        rest = np.unique([SEPARATOR.join(each[:i] + each[i + 1 :]) for each in parts], return_inverse=True)[1]
        tests[column] = own, rest
    return tests


def _order(segment: Integers, group: Integers) -> Integers:
    """Group of each segment in the order of the segments' numbers."""
    _, first = np.unique(segment, return_index=True)
    return np.asarray(np.unique(group[first], return_inverse=True)[1])


def _gain(likelihood: SegmentedLikelihood, logits: Floats) -> tuple[float, float]:
    """Expected gain of a user to come in nats, and the share of the entropy of the type that segments remove.

    The gain on the users of the fit is too large by the effective number of parameters, as in Akaike's criterion.
    """
    weight, _ = likelihood.row_likelihoods(logits)
    concentration = estimate_concentration(likelihood, weight)
    if np.isinf(concentration):
        return 0.0, 0.0
    prior = likelihood.with_prior(likelihood.target, concentration).modes(weight)[0][:-1]
    users, common = likelihood.segment_users, likelihood.share @ prior
    own = np.log((weight * prior[likelihood.segment]).sum(axis=1)) - np.log(weight @ common)
    effective = (likelihood.n_types - 1) * float((users / (users + concentration)).sum())
    gain = (float(likelihood.users @ own) - effective) / float(users.sum())
    entropy = likelihood.share @ -(prior * np.log(prior)).sum(axis=1)
    explained = 1 - float(entropy / -(common * np.log(common)).sum())
    return max(gain, 0.0), max(explained, 0.0)


def score_test(likelihood: SegmentedLikelihood, logits: Floats, group: Integers) -> tuple[float, float, float]:
    """Test equal priors of the segments within each `group[S]`; returns statistic, degrees of freedom and p-value.

    With U_s the sum of the scores of a segment, n_s its users and V the variance of a score in its group, the
    statistic is the sum of U_s' V⁻¹ U_s / n_s. Its mean and variance follow from the variance of the scores less what
    the estimates explain, and their kurtosis; a multiple of a chi-squared variable has the same (Satterthwaite).
    """
    from scipy.special import chdtrc  # 0.1 s to import

    likelihood, group = _join_small(likelihood, group)
    if np.bincount(group).max() == 1:  # nothing to compare
        return 0.0, 0.0, 1.0
    sums = _ScoreSums(likelihood, logits, group)
    root, users = sums.whitening, np.maximum(likelihood.segment_users, 1e-300)
    whitened = np.einsum("sxy,sy->sx", root, sums.scores) / np.sqrt(users)[:, None]
    statistic = float((whitened**2).sum())
    mean, variance = sums.moments()
    if mean <= 0 or variance <= 0:
        return statistic, 0.0, 1.0
    degrees = 2 * mean**2 / variance
    return statistic, degrees, float(chdtrc(degrees, statistic * 2 * mean / variance))


def _join_small(likelihood: SegmentedLikelihood, group: Integers) -> tuple[SegmentedLikelihood, Integers]:
    """Join the smallest segments of each group if there are too many."""
    most = max(MAX_SCORES // (likelihood.n_types - 1) - len(np.unique(group)), 1)
    if likelihood.n_segments <= most:
        return likelihood, group
    large = np.zeros(likelihood.n_segments, bool)
    large[np.argsort(-likelihood.segment_users, kind="stable")[:most]] = True
    label = np.where(large, np.arange(likelihood.n_segments), likelihood.n_segments + group)
    kept, own = np.unique(label, return_inverse=True)
    joined = np.where(kept < likelihood.n_segments, group[np.minimum(kept, len(group) - 1)], kept - len(group))
    return SegmentedLikelihood.of(
        likelihood.likelihood, own[likelihood.segment], len(kept), likelihood.target
    ), joined


class _ScoreSums:
    """Sums over the users of segments, and the moments of the statistic."""

    def __init__(self, likelihood: SegmentedLikelihood, logits: Floats, group: Integers) -> None:
        s, m, d = likelihood.n_segments, likelihood.n_types, len(logits)
        self.group, self.users = group, likelihood.segment_users
        n_groups = int(group.max()) + 1
        weight, _ = likelihood.row_likelihoods(logits)
        prior = _group_priors(likelihood, weight, group)
        self.scores, self.squares = np.zeros((s, m - 1)), np.zeros((s, m - 1, m - 1))
        self.shared, self.responses = np.zeros((s, m - 1, d)), np.zeros((d, d))
        parts, start = [], 0
        for rows, segment in likelihood.batches(d):
            shares = weight[start : start + len(segment)] * prior[group[segment]]
            start += len(segment)
            shares /= shares.sum(axis=1, keepdims=True)
            away = (shares - prior[group[segment]])[:, :-1]
            scores = rows.response_scores(logits, shares)
            self.responses += scores.T @ (scores * rows.users[:, None])
            weighted = away * rows.users[:, None]
            first = np.flatnonzero(np.append(True, np.diff(segment) != 0))
            own = segment[first]
            self.scores[own] += np.add.reduceat(weighted, first)
            for x in range(m - 1):
                self.squares[own, x] += np.add.reduceat(weighted[:, [x]] * away, first)
                self.shared[own, x] += np.add.reduceat(weighted[:, [x]] * scores, first)
            parts.append((group[segment], rows.users, away))
        total = np.bincount(group, self.users, n_groups)
        variance = np.zeros((n_groups, m - 1, m - 1))
        np.add.at(variance, group, self.squares)
        self.variance = variance / np.maximum(total, 1e-300)[:, None, None]
        self.inverse_root = np.array([_inverse_root(each) for each in self.variance])
        self.whitening = self.inverse_root[group]
        self.total, self.fourth = total, np.zeros(n_groups)
        for own, users, away in parts:
            squares = (np.einsum("nxy,ny->nx", self.inverse_root[own], away) ** 2).sum(axis=1)
            self.fourth += np.bincount(own, users * squares**2, n_groups)
        self.fourth /= np.maximum(total, 1e-300)

    def moments(self) -> tuple[float, float]:
        """Mean and variance of the statistic."""
        s, p = self.scores.shape
        users = np.maximum(self.users, 1e-300)
        scale = (users / (users + PRIOR_USERS))[:, None, None]
        own = scale * (self.squares + PRIOR_USERS * self.variance[self.group])
        whitened = self.whitening @ own @ self.whitening.transpose(0, 2, 1) / users[:, None, None]
        share = np.sqrt(users / self.total[self.group])
        blocks = (whitened * share[:, None, None]).reshape(s * p, p)
        same = self.group[:, None] == self.group
        covariance = np.where(np.kron(same, np.ones((p, p))) > 0, -blocks @ blocks.T, 0.0)
        for i in range(s):
            covariance[i * p : (i + 1) * p, i * p : (i + 1) * p] += whitened[i]
        lever = self._levers(whitened, share)
        covariance -= lever
        degrees = (self.inverse_root != 0).any(axis=2).sum(axis=1)[self.group]
        excess = (self.fourth[self.group] - degrees * (degrees + 2)) / users
        variance = 2 * float((covariance**2).sum()) + float(excess.sum())
        return float(np.trace(covariance)), variance

    def _levers(self, whitened: Floats, share: Floats) -> Floats:
        """Variance of the whitened scores that the estimated responses explain, beyond the priors of the groups."""
        s, p, d = self.shared.shape
        n_groups = len(self.total)
        root = self.whitening / np.sqrt(np.maximum(self.users, 1e-300))[:, None, None]
        in_group = np.zeros((n_groups, p, d))
        np.add.at(in_group, self.group, self.shared)
        of_group = self.inverse_root @ in_group / np.sqrt(np.maximum(self.total, 1e-300))[:, None, None]
        responses = self.responses - np.einsum("gxi,gxj->ij", of_group, of_group)
        beyond = root @ self.shared - (whitened * share[:, None, None]) @ of_group[self.group]
        beyond = beyond.reshape(s * p, d)
        return np.asarray(beyond @ np.linalg.pinv(responses, hermitian=True) @ beyond.T)


def _group_priors(likelihood: SegmentedLikelihood, weight: Floats, group: Integers) -> Floats:
    """Priors `[G, M]` that maximise the likelihood of the users of each group."""
    if not group.any():
        return likelihood.target[None]
    own = group[likelihood.segment]
    merged = SegmentedLikelihood.of(likelihood.likelihood, own, int(group.max()) + 1, likelihood.target)
    order = np.argsort(own, kind="stable")
    return merged.with_prior(likelihood.target, SMALLEST).modes(weight[order])[0][:-1]


def _inverse_root(variance: Floats) -> Floats:
    """Inverse square root of a variance, 0 in directions without any."""
    values, directions = np.linalg.eigh(variance)
    kept = values > MIN_EIGENVALUE * max(float(values.max(initial=0.0)), 1e-300)
    scale = np.where(kept, 1 / np.sqrt(np.where(kept, values, 1.0)), 0.0)
    return np.asarray(scale[:, None] * directions.T)
