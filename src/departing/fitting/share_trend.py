"""Trend of the shares of types: a score test of the prior against the arrival of users."""

from collections.abc import Iterable

import numpy as np

from departing.fitting.drift import Series
from departing.fitting.forecast_cells import QUARTER_LABELS, TIME_BINS, quarters
from departing.fitting.goodness_of_fit import TREND_MEAN, Cell, FamilyTest
from departing.fitting.likelihood import MixtureLikelihood
from departing.model.counts import Integers
from departing.model.instance import Floats, Instance

BATCH_ROWS = 2**22  # entries of a matrix of scores at a time: 32 MiB


def share_trend(
    instance: Instance,
    halves: Iterable[tuple[MixtureLikelihood, Integers, Floats, Floats | None]],
    covariance: Floats,
) -> FamilyTest | None:
    """Test whether the shares of types change with the arrival of users; None if all arrive at the same time.

    Each half of the users has a likelihood, the users `[N, bins]` of its rows by arrival, logits `[d]`, and with
    segments the priors `[N, M]` of its rows. A user's score for the shares is the posterior minus the prior. Its sum,
    weighted by the centred number of the cohort, has mean 0 under the model; the variance is that of the scores, less
    what the estimate explains (`covariance[d, d]`). The posterior uses all steps of a user, so this test needs half
    the users that forecasts of single steps need.
    """
    from scipy.special import chdtrc  # 0.1 s to import

    halves = list(halves)
    m, d = instance.n_types, len(covariance)
    quarter = quarters(np.sum([users.sum(axis=0) for _, users, *_ in halves], axis=0))
    used = np.unique(quarter[quarter >= 0])
    if m == 1 or len(used) < 2:
        return None
    sizes, sums, expected = np.zeros(len(used)), np.zeros((len(used), m)), np.zeros((len(used), m))
    prior = instance.normalised_prior
    products, outer = np.zeros((len(used), m - 1, d)), np.zeros((len(used), m))
    for likelihood, users, logits, priors in halves:
        rows = max(BATCH_ROWS // d, 1)
        in_quarter = np.stack([users[:, quarter == q].sum(axis=1) for q in used]).astype(np.float64)
        sizes += in_quarter.sum(axis=1)
        for start in range(0, len(users), rows):
            part = likelihood.rows(slice(start, start + rows))
            weight = in_quarter[:, start : start + rows]
            if priors is None:
                scores, shares = part.scores(logits), part.responsibilities(logits)
            else:
                own = priors[start : start + rows]
                shares = part.type_likelihoods(logits) * own
                shares /= shares.sum(axis=1, keepdims=True)
                scores = np.concatenate([part.response_scores(logits, shares), (shares - own)[:, :-1]], axis=1)
                expected += weight @ own
            sums += weight @ shares
            outer += weight @ shares**2
            for q in range(len(used)):
                products[q] += (scores[:, d - m + 1 :] * weight[q][:, None]).T @ scores
    if not expected.any():
        expected = sizes[:, None] * prior
    place = np.arange(len(used)) - sizes @ np.arange(len(used)) / sizes.sum()
    deviation = sums - expected
    total = place @ deviation[:, :-1]
    first_order, second_order = np.tensordot(place, products, axes=1), np.tensordot(place**2, products, axes=1)
    variance = second_order[:, d - m + 1 :] - first_order @ covariance @ first_order.T
    statistic = float(total @ np.linalg.pinv(variance, hermitian=True) @ total)
    # One step of scoring: the change of the log-ratios of the shares from the first to the last cohort.
    change = np.ptp(place) * np.linalg.pinv(second_order[:, d - m + 1 :], hermitian=True) @ total
    ends = prior * np.exp(np.outer([-0.5, 0.5], np.append(change, 0.0)))
    first, last = ends / ends.sum(axis=1, keepdims=True)
    excess = max(1 - (m - 1) / max(statistic, 1e-300), 0.0) ** 0.5  # without sampling error
    moved = excess * np.abs(last - first)
    spread = np.maximum(outer - sums**2 / np.maximum(sizes, 1.0)[:, None], 0.0)
    cells = tuple(
        Cell(
            "share",
            f"{QUARTER_LABELS['cohort'].format(q + 1, len(used))} for {instance.types[x]!r}",
            int(sizes[q]),
            round(float(sums[q, x])),
            float(expected[q, x]),
            float(spread[q, x]),
        )
        for q in range(len(used))
        for x in range(m)
    )
    relative = float((moved / (prior * (1 - prior))).max())
    return FamilyTest(
        "trend", "share", cells, (), float(chdtrc(m - 1, statistic)), TREND_MEAN * float(moved.max()), relative
    )


def type_series(
    instance: Instance, halves: Iterable[tuple[MixtureLikelihood, Integers, Floats, Floats | None, Integers | None]]
) -> list[Series]:
    """Shares of types by the arrival of users, of all users and of each segment, to be searched for drift.

    `halves` are those of `share_trend`, with the segments of the rows. Of two types only one is followed.
    """
    if instance.n_types == 1:
        return []
    followed = range(1 if instance.n_types == 2 else instance.n_types)
    names = () if instance.segments is None else instance.segments.names
    sums = np.zeros((len(names) + 1, len(followed), 4, TIME_BINS))  # those of all users last
    for likelihood, users, logits, priors, segment in halves:
        prior = np.tile(instance.normalised_prior, (len(users), 1)) if priors is None else priors
        shares = likelihood.type_likelihoods(logits) * prior
        shares /= shares.sum(axis=1, keepdims=True)
        for x in followed:
            columns = [np.ones(len(users)), shares[:, x], prior[:, x], (shares[:, x] - prior[:, x]) ** 2]
            values = np.stack(columns)  # [4, N]
            sums[-1, x] += values @ users
            for s in range(len(names) if segment is not None else 0):
                rows = np.flatnonzero(segment == s)
                sums[s, x] += values[:, rows] @ users[rows]
    groups = [("segment", name) for name in names]
    own = [Series(instance.types[x], "type", instance.types[x], *sums[-1, x]) for x in followed]
    return own + [
        Series(instance.types[x], *group, *each[x])
        for group, each in zip(groups, sums, strict=False)
        for x in followed
    ]
