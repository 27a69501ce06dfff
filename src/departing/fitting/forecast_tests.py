"""Tests of the forecasts of an instance: sums over cells, their variance under a fitted model, and p-values."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import sqrt

import numpy as np

from departing.data.log import Episodes
from departing.fitting.drift import Series, drift_series
from departing.fitting.forecast_cells import RESPONSES, Family, ForecastSums, TrendSums
from departing.fitting.goodness_of_fit import MIN_EXPECTED, TREND_MEAN, Cell, FamilyTest, FitCheck
from departing.formatting import format_percent
from departing.model.counts import Integers
from departing.model.instance import Floats, Instance

QUARTER_DISTANCE = 0.75 * sqrt(12)  # of the middles of the first and last quarter, in standard deviations of the time


def check_forecasts(
    instances: Instance | Sequence[Instance],
    episodes: Iterable[Episodes],
    *,
    covariance: Floats | None = None,
    parameters: Integers | None = None,
    users: int = 1,
    share_trend: FamilyTest | None = None,
    types: Sequence[Series] = (),
    date: Callable[[float], str] = format_percent,
    horizon: int | None = None,
) -> FitCheck:
    """Compare the steps of a log with their forecasts.

    Parameters
    ----------
    instances : Instance or sequence of Instance
        Model that forecasts; or two, each fitted to one half of the users, to forecast the other (cross-fitting). To
        first order the sums then vary as those of one fit to all users, because the errors of the two fits cancel.
    episodes : iterable of Episodes
        Steps of the log.
    covariance : array [d, d], optional
        Covariance matrix of the estimated logits if the instance was fitted to these steps.
    parameters : int array [d], optional
        Number of each estimated logit: `(response * K + category) * M + type`, then the log-ratios of the prior.
    users : int
        Number of users of the log, at least roughly.
    share_trend : FamilyTest, optional
        Test of the shares of types, to be included.
    types : sequence of Series
        Shares of types over time, to be searched for drift.
    date : callable, optional
        Text of a time from 0 at the start of the log to 1 at its end [default: as a percentage].
    horizon : int, optional
        Largest number of steps of a user, as the log was read [default: none].
    """
    instances = (instances,) if isinstance(instances, Instance) else tuple(instances)
    sums = ForecastSums(instances, users, covariance is not None, horizon)
    for chunk in episodes:
        sums.add(chunk)
    departures = float(sums.totals[:, 3].sum())
    families, responses = list(sums.families()), range(len(RESPONSES))
    fitted = covariance, parameters
    tests = [_test(family, r, sums.category_names, departures, *fitted) for family in families for r in responses]
    tests += [_trend_test(sums.trends, families[-1], r, departures, *fitted) for r in responses]
    shown, clicks, *_ = sums.totals.T
    survival, expected = np.cumprod(1 - sums.totals[:, 3:] / np.maximum(sums.totals[:, 2:3], 1.0), axis=0).T
    curves = np.append(1.0, survival), np.append(1.0, expected), clicks / np.maximum(shown, 1.0)
    found = tuple(test for test in (*tests, share_trend) if test is not None)
    calibration = tuple(_calibration(sums.bins))
    check = FitCheck(found, calibration, *curves, held_out=len(instances) > 1, horizon=horizon)
    segments = () if instances[0].segments is None else instances[0].segments.names
    names = [name.strip("'") for name in sums.category_names]
    series = drift_series(names, sums.calendar, segments, sums.by_segment, sums.arrivals)
    return check.with_drift([*series, *types], date)


def _calibration(bins: Floats) -> Iterator[Cell]:
    for response, rows in zip(RESPONSES, bins, strict=True):
        for i, row in enumerate(rows.tolist()):
            if row[0]:
                low, high = i / len(rows), (i + 1) / len(rows)
                yield Cell(
                    response, f"with a forecast of {low:.0%} to {high:.0%}", int(row[0]), int(row[1]), *row[2:]
                )


def _test(
    family: Family,
    response: int,
    categories: list[str],
    departures: float,
    covariance: Floats | None,
    parameters: Integers | None,
) -> FamilyTest | None:
    """Test one response in one family, in a log with this number of `departures`; None if there is nothing to test.

    In every group the categories with too few responses are joined.
    """
    cells, sums, slopes = [], [], []
    for group, rows, derivatives in zip(family.groups, family.sums[response], family.slopes[response], strict=True):
        large = np.minimum(rows[:, 2], rows[:, 0] - rows[:, 2]) >= MIN_EXPECTED
        parts = [(name, np.array([c])) for c, name in enumerate(categories) if large[c]]
        parts.append(("other categories" if large.any() else "all categories", np.flatnonzero(~large)))
        for name, members in parts:
            label = f"{group} for {name}" if len(categories) > 1 else group
            cell = _cell(response, label, rows[members].sum(axis=0))
            if cell.testable:
                cells.append(cell)
                sums.append(rows[members].sum(axis=0))
                slopes.append(derivatives[members].sum(axis=0))
    if not cells:
        return None
    n, observed, expected, variance = np.array(sums).T
    correlation = np.eye(len(cells))
    if covariance is not None:
        scaled = np.array(slopes)[:, parameters] / np.sqrt(variance)[:, None]
        correlation -= scaled @ covariance @ scaled.T
    residual = observed - expected
    excess = (residual**2 - variance * np.clip(np.diag(correlation), 0.0, 1.0)) / n
    error = sqrt(max(float(excess.sum() / n.sum()), 0.0))
    p_value = weighted_chi_squared_test(float((residual**2 / variance).sum()), correlation)
    if p_value is None:
        return None
    relative = _relative_error(response, error, n, expected, departures)
    totals = family.sums[response].sum(axis=1)
    groups = (_cell(response, group, row) for group, row in zip(family.groups, totals, strict=True))
    return FamilyTest(
        family.name,
        RESPONSES[response],
        tuple(cells),
        tuple(cell for cell in groups if cell.testable),
        p_value,
        error,
        relative,
    )


def _trend_test(
    sums: TrendSums,
    family: Family,
    response: int,
    departures: float,
    covariance: Floats | None,
    parameters: Integers | None,
) -> FamilyTest | None:
    """Score test of a linear trend with time in the logits of one response, the same for all categories and types.

    A steady change is found by this one degree of freedom where the sum of squares over all cells needs several times
    the users. The score of a user weights types by the posterior given all known steps, so that the test is as
    powerful as the likelihood ratio to first order. Clicks at pending steps, which no fit uses, add to the power:
    they are the latest ones. `family` has the cells by time. The relative error is that of the change from the first
    to the last quarter, without sampling error.
    """
    from scipy.special import chdtrc  # 0.1 s to import

    groups = family.sums[response].sum(axis=1)
    cells = (_cell(response, group, row) for group, row in zip(family.groups, groups, strict=True))
    own = tuple(cell for cell in cells if cell.testable)
    n, time, squares, variance_within = sums.times[response]
    if len(own) < 2:
        return None
    centred = np.array([-time / n, 1.0])  # the slope with the time minus its mean
    total = float(centred @ sums.totals[response])
    variance = float(centred @ (sums.squares[response] + np.triu(sums.squares[response], 1).T) @ centred)
    if covariance is not None:
        known = (centred @ sums.products[response])[parameters]
        pending = (centred @ sums.slopes)[parameters] if response == 0 else np.zeros(len(known))
        total -= float((known + pending) @ covariance @ sums.scores[parameters])
        variance += float(pending @ covariance @ pending - known @ covariance @ known)
    if variance <= 0:
        return None
    spread = sqrt(max(squares / n - (time / n) ** 2, 0.0))
    change = QUARTER_DISTANCE * spread * sqrt(max(total**2 - variance, 0.0)) / variance  # of logits
    error = change * float(variance_within / n)
    relative = _relative_error(response, error, groups[:, 0], groups[:, 2], departures)
    p_value = float(chdtrc(1.0, total**2 / variance))
    return FamilyTest("trend", RESPONSES[response], own, own, p_value, TREND_MEAN * error, relative)


def _relative_error(response: int, error: float, n: Floats, expected: Floats, departures: float) -> float:
    """`FamilyTest.relative_error` of an `error` over cells of n steps, in a log with this number of `departures`."""
    rate = float(expected.sum() / n.sum())
    return error / (rate * (1 - rate)) if response == 0 else error * float(n.sum()) / max(departures, 1.0)


def _cell(response: int, group: str, sums: Floats) -> Cell:
    return Cell(RESPONSES[response], group, int(sums[0]), int(sums[1]), float(sums[2]), float(sums[3]))


def weighted_chi_squared_test(statistic: float, correlation: Floats) -> float | None:
    """p-value of a sum of squares of normal variables with this matrix of correlations.

    The sum is distributed as `Σ λ χ²(1)` with the eigenvalues λ, here approximated by a multiple of a chi-squared
    variable of the same mean and variance (Satterthwaite). Eigenvalues are 0 for what the fit determines, 1 for what
    it does not affect. None if they sum to less than one degree of freedom.
    """
    from scipy.special import chdtrc  # 0.1 s to import

    eigenvalues = np.clip(np.linalg.eigvalsh(correlation), 0.0, 1.0)
    total, squares = float(eigenvalues.sum()), float((eigenvalues**2).sum())
    if total < 1 - 1e-9:
        return None
    return float(chdtrc(total**2 / squares, statistic * total / squares))
