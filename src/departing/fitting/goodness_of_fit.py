"""Goodness of fit: every step of a log against its forecast by an instance.

The forecast of a step uses the user's earlier steps and the category shown, so it is valid however categories were
chosen. Under a correct model the sum over any cell of observed minus forecast responses is a martingale: it has
mean 0 and a known variance. If the instance was fitted to the same steps, the sums vary less, because the estimate
follows the data; the variance is reduced accordingly.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING, Any

from departing.data.quality import TIED_NOTE
from departing.fitting.drift import Drift, Series, find_drift
from departing.fitting.forecast_cells import FAMILIES, RESPONSES
from departing.formatting import format_p_value, format_percent
from departing.html_tables import html_repr
from departing.model.frames import to_frame
from departing.model.instance import Floats
from departing.model.validation import check_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIN_EXPECTED = 5.0  # expected successes and failures per cell (Cochran's rule for chi-squared tests)
SIGNIFICANCE = 0.01  # p-value above which there is no evidence of misfit; low, since every log is checked
# Relative error from which a misfit matters: forecast odds of a click are off by 10 % (2.5 points at a probability of
# 0.5), or departures per step, and so the length of stay, by 10 %. Smaller errors are significant in every large log,
# and below the sampling error of the estimates from a thousand users.
MIN_ERROR = 0.1
# Share of users active after the longest history above which clicks per user depend on unobserved steps.
MAX_FINAL_SURVIVAL = 0.05
# Families overlap: previous responses determine the step. The first one in this order that has nearly the largest
# error names the reason.
NEARLY = 0.9
TREND_MEAN = 0.37  # root mean square of a linear change over four groups, relative to the change from first to last
# Shares of the level: half for a trend of clicks, which changes what is best to show, and is the most frequent misfit
# of a log; then for other trends, and for all other tests.
LEVEL_SHARES = {"click trend": 0.5, "trend": 0.25, "other": 0.25}
OVER_TIME = {"cohort", "trend", "calendar"}
WITHIN_USERS = {"previous", "repetition", "counts"}

NOUNS = {
    "click": "Clicks",
    "depart": "Departures after a no-click",
    "depart_on_click": "Departures after a click",
    "share": "Shares of types",
}
CAUSES = {
    "step": "depend on the step",
    "cohort": "differ between users who arrived early and late",
    "trend": "change over the time of the log",
    "calendar": "differ between periods of the log",
    "previous": "depend on the previous response",
    "repetition": "depend on earlier responses to the same category more than the types explain",
    "counts": "depend on earlier responses more than the types explain",
}


@dataclass(frozen=True)
class Cell:
    """Observed and forecast responses in one group of steps.

    Attributes
    ----------
    response : {"click", "depart", "depart_on_click", "share"}
        Response that is counted, or users of a type.
    group : str
        Description of the steps.
    n : int
        Number of steps, or of users.
    observed : int
        Number of positive responses, or posterior number of users of the type.
    expected : float
        Number of positive responses that the instance forecasts.
    variance : float
        Variance of the observed number under the instance.
    """

    response: str
    group: str
    n: int
    observed: int
    expected: float
    variance: float

    @property
    def z(self) -> float:
        """Observed minus expected, in standard errors."""
        return (self.observed - self.expected) / sqrt(self.variance) if self.variance > 0 else 0.0

    @property
    def testable(self) -> bool:
        """True if the cell is large enough for a chi-squared test."""
        return min(self.expected, self.n - self.expected) >= MIN_EXPECTED

    def __str__(self) -> str:
        numbers = f"{self.observed:,} observed, {self.expected:,.1f} expected (z {self.z:+.1f})"
        return f"{self.response} {self.group}: {numbers}"


@dataclass(frozen=True)
class FamilyTest:
    """Test of one response in one family of cells.

    Attributes
    ----------
    family : {"step", "counts", "repetition", "previous", "cohort", "calendar", "trend"}
        Grouping of the steps.
    response : {"click", "depart", "depart_on_click", "share"}
        Response that is counted, or users of a type.
    cells : tuple of Cell
        Cells by group and category that are large enough.
    groups : tuple of Cell
        Cells by group, all categories together.
    p_value : float
        Test of the sum of squared z-scores; of the trend for a trend.
    error : float
        Calibration error: root mean square of observed minus forecast rates, without sampling error. For a trend that
        of a linear change.
    relative_error : float
        For clicks and shares `error` divided by p (1 - p), where p is the mean forecast: about the error of log-odds.
        For departures the error of departures per step, relative to their rate. For a trend that of the change from
        the first to the last group, because users to come are those of the end of the log.
    """

    family: str
    response: str
    cells: tuple[Cell, ...] = field(repr=False)
    groups: tuple[Cell, ...] = field(repr=False)
    p_value: float
    error: float
    relative_error: float

    @property
    def reason(self) -> str:
        """Sentence on what does not fit, with the worst group as an example."""
        worst = max((*self.groups, *self.cells), key=lambda cell: abs(cell.z))
        observed, forecast = (format_percent(number / worst.n) for number in (worst.observed, worst.expected))
        example = f"{observed} {worst.group}, where the model forecasts {forecast}"
        return f"{NOUNS[self.response]} {CAUSES[self.family]}: {example}."


@dataclass(frozen=True)
class FitCheck:
    """Goodness of fit of an instance to the steps of a log.

    Attributes
    ----------
    tests : tuple of FamilyTest
        One test for each response and family of cells: by step, by the user's previous clicks and no-clicks, by those
        of the same category, by the previous response, by the arrival of the user, and by the time of the step; and
        tests of linear trends of each response over time and of the shares of types over arrivals.
    held_out : bool
        True if every user was forecast by a fit to other users.
    calibration : tuple of Cell
        Observed and forecast responses by the forecast probability.
    more_types : int or None
        Larger number of types with which the model fits, if it does not with the present one.
    survival, expected_survival : array [n + 1]
        Share of users active after 0, 1, … steps: the Kaplan-Meier estimate, and the forecast.
    click_rate : array [n]
        Share of clicks at every step.
    tied : float
        Share of events at the same time as another event of the user; their order is unknown.
    drift : Drift or None
        Change of rates over the time of the log: since when, and in which categories and segments; None without
        evidence of one.
    horizon : int or None
        Largest number of recommendations to a user.
    """

    tests: tuple[FamilyTest, ...]
    calibration: tuple[Cell, ...] = field(repr=False)
    survival: Floats = field(repr=False)
    expected_survival: Floats = field(repr=False)
    click_rate: Floats = field(repr=False)
    more_types: int | None = None
    tied: float = 0.0
    held_out: bool = False
    drift: Drift | None = None
    horizon: int | None = None

    @property
    def causes(self) -> dict[str, FamilyTest]:
        """Test that names the reason of the misfit of each response that does not fit."""
        named = {}
        for response in dict.fromkeys(test.response for test in self.misfits):
            failed = {test.family: test for test in self.misfits if test.response == response}
            errors = {
                name: test.relative_error * (TREND_MEAN if name == "trend" else 1.0) for name, test in failed.items()
            }
            largest = max(errors.values())
            named[response] = failed[next(name for name in CAUSES if errors.get(name, 0.0) >= NEARLY * largest)]
        return named

    def with_drift(self, series: Iterable[Series], date: Callable[[float], str]) -> "FitCheck":
        """The same with the drift that `series` show; `date` returns the text of a time from 0 to 1.

        Responses that depend on the step are left out: the first steps of all users are early in a log, so that their
        rates differ over time too.
        """
        causes = self.causes
        by_step = {response for response, test in causes.items() if test.family == "step"}
        known = [self._corrected(test) for test in causes.values() if test.family in OVER_TIME]
        own = (each for each in series if each.response not in by_step)
        return replace(self, drift=find_drift(own, date, min(known, default=None)))

    @property
    def other_misfits(self) -> tuple[FamilyTest, ...]:
        """Misfits that drift does not explain: their reason is not time, and they are larger than the drift."""
        if self.drift is None:
            return self.misfits
        return tuple(test for test in self._other_causes if test.relative_error > self.drift.main.relative_error)

    @property
    def _other_causes(self) -> tuple[FamilyTest, ...]:
        """Tests that name another reason than time."""
        return tuple(test for test in self.causes.values() if test.family not in OVER_TIME)

    @cached_property
    def p_value(self) -> float:
        """Smallest p-value of the tests, Bonferroni-corrected with the weights `LEVEL_SHARES`."""
        return min(map(self._corrected, self.tests), default=1.0)

    def _corrected(self, test: FamilyTest) -> float:
        """p-value of a test divided by its share of the level, which tests with the same key share equally."""
        keys = [_level_key(other) for other in self.tests]
        share = LEVEL_SHARES[_level_key(test)] / sum(LEVEL_SHARES[key] for key in set(keys))
        return min(1.0, test.p_value * keys.count(_level_key(test)) / share)

    @property
    def significant(self) -> tuple[FamilyTest, ...]:
        """Tests with evidence of misfit, in order of decreasing relative error."""
        failed = [test for test in self.tests if self._corrected(test) <= SIGNIFICANCE]
        return tuple(sorted(failed, key=lambda test: -test.relative_error))

    @property
    def misfits(self) -> tuple[FamilyTest, ...]:
        """Tests with evidence of a misfit that is large enough to matter."""
        return tuple(test for test in self.significant if test.relative_error >= MIN_ERROR)

    @property
    def types_may_suffice(self) -> bool:
        """True if all misfits depend on a user's earlier responses, so that more types may explain them."""
        return bool(self.misfits) and {test.family for test in self.misfits} <= WITHIN_USERS

    @property
    def fits(self) -> bool:
        """True unless there is evidence of a misfit that is large enough to matter, whatever the number of types."""
        return (not self.misfits and self.drift is None) or self.more_types is not None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Sentences on what does not fit, one for each response; empty if the model fits."""
        reasons: list[str] = []
        if self.fits:
            return ()
        reasons += [test.reason for test in self.causes.values()]
        if self.drift is not None:
            reasons.append(self.drift.describe())
        if self.tied > TIED_NOTE:
            reasons.append(
                f"{self.tied:.0%} of events share their time with another event of the same user; their order is "
                "unknown, which may be the reason instead of the users' behaviour: log times more precisely."
            )
        return tuple(reasons)

    @property
    def error(self) -> float:
        """Largest calibration error of a test with evidence of misfit, in probability; 0 without evidence."""
        return max((test.error for test in self.significant), default=0.0)

    @property
    def clicks_per_user(self) -> float:
        """Expected clicks per user under the policy of the log, corrected for censoring."""
        return float(self.survival[:-1] @ self.click_rate)

    @property
    def truncated(self) -> bool:
        """True if more than 5% of users remain active after the longest history: the log shows only first steps."""
        return bool(self.survival[-1] > MAX_FINAL_SURVIVAL) and len(self.survival) - 1 != self.horizon

    @property
    def log_value(self) -> float | None:
        """Expected clicks per user under the policy of the log, or None if the log shows only first steps."""
        return None if self.truncated else self.clicks_per_user

    def cells(self, family: str, response: str = "click") -> tuple[Cell, ...]:
        """Cells of one family and response; empty if none is large enough.

        Parameters
        ----------
        family : {"step", "counts", "repetition", "previous", "cohort", "calendar", "trend"}
        response : {"click", "depart", "depart_on_click", "share"}
        """
        check_choice("family", family, (*FAMILIES, "trend"))
        check_choice("response", response, (*RESPONSES, "share"))
        found = (test.cells for test in self.tests if (test.family, test.response) == (family, response))
        return next(found, ())

    def worst(self, n: int = 5) -> list[Cell]:
        """The n cells with the largest absolute z-scores."""
        cells = [cell for test in self.tests for cell in test.cells]
        return sorted(cells, key=lambda cell: -abs(cell.z))[:n]

    def describe(self) -> str:
        """Describe the verdict in one sentence."""
        p = format_p_value(self.p_value if self.drift is None else min(self.p_value, self.drift.p_value))
        if not self.significant and self.drift is None:
            return f"No evidence of misfit ({p})."
        if self.more_types is not None:
            return (
                f"The model fits with {self.more_types} types, but the log has too few users to select them "
                f"({p} for fewer types)."
            )
        if self.drift is not None:
            own = "" if self._other_causes else ", without evidence of other misfit"
            return f"The model does not fit ({p}): users change over time {self.drift.when}{own}."
        points = f"{100 * self.error:.1f} points of probability"
        if self.fits:
            return f"The model fits: forecasts are off by at most {points}, which is significant ({p}) but small."
        return f"The model does not fit ({p}): forecasts are off by up to {points} on average."

    def summary(self) -> str:
        """Overview in several lines: the verdict, its reasons, and a warning about truncation."""
        lines = [self.describe(), *(f"  {reason}" for reason in self.reasons)]
        if self.truncated:
            lines.append(
                f"{self.survival[-1]:.0%} of users are still active after {len(self.survival) - 1} steps, the end of "
                "the longest history; all later steps are extrapolated by the model."
            )
        return "\n".join(lines)

    __str__ = summary

    def to_frame(self) -> Any:
        """Return all cells as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each cell: family, response, group, n, observed, expected, z.
        """
        names = ("response", "group", "n", "observed", "expected", "z")
        columns = {name: [getattr(cell, name) for test in self.tests for cell in test.cells] for name in names}
        return to_frame({"family": [test.family for test in self.tests for _ in test.cells]} | columns)

    def __repr__(self) -> str:
        return f"<FitCheck: {self.describe()}>"

    def _repr_html_(self) -> str:
        head = ["largest deviations", "response", "observed", "expected", "z"]
        rows = [
            [
                cell.group,
                cell.response.replace("_", " "),
                f"{cell.observed:,}",
                f"{cell.expected:,.1f}",
                f"{cell.z:+.1f}",
            ]
            for cell in self.worst()
        ]
        return html_repr(" ".join([self.describe(), *self.reasons]), head, rows)

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Plot calibration: observed against forecast probabilities, with 95% intervals.

        Parameters
        ----------
        path : path, optional
            File to write, ending in .svg, .png or .pdf.
        """
        from departing.fitting.plot import draw_calibration
        from departing.plotting.figures import save

        return save(draw_calibration(self), path)


def _level_key(test: FamilyTest) -> str:
    """Key of `LEVEL_SHARES` for a test."""
    if test.family != "trend":
        return "other"
    return "click trend" if test.response == "click" else "trend"
