"""Goodness of fit: every step of a log against its forecast by an instance.

The forecast of a step uses the user's earlier steps and the category shown, so it is valid however categories were
chosen. Under a correct model the sum over any cell of observed minus forecast responses is a martingale: it has
mean 0 and a known variance.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np

from departing.data.log import Episodes
from departing.html_tables import html_repr
from departing.model.belief import posterior
from departing.model.counts import Booleans, Integers
from departing.model.frames import to_frame
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats, Instance

RESPONSES = ("click", "depart", "depart_on_click")
# Cells trade resolution against power: early steps, with most of the data, one by one; later ones in wider groups.
STEP_GROUPS = np.array([1, 2, 3, 4, 5, 6, 8, 11, 16, 31])  # first step of each group
COUNT_LABELS = ("0 {}s", "1 {}", "2 {}s", "3 or more {}s")  # groups of previous clicks and no-clicks
MIN_EXPECTED = 5.0  # expected successes and failures per cell (Cochran's rule for chi-squared tests)
SIGNIFICANCE = 0.01  # p-value above which there is no evidence of misfit; low, since every log is checked
# Share of users active after the longest history above which clicks per user depend on unobserved steps.
MAX_FINAL_SURVIVAL = 0.05


@dataclass(frozen=True)
class Cell:
    """Observed and forecast responses in one group of steps.

    Attributes
    ----------
    response : {"click", "depart", "depart_on_click"}
        Response that is counted.
    group : str
        Description of the steps.
    n : int
        Number of steps.
    observed : int
        Number of positive responses.
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
        return f"{self.response}, {self.group}: {numbers}"


@dataclass(frozen=True)
class FitCheck:
    """Goodness of fit of an instance to the steps of a log.

    Attributes
    ----------
    by_step, by_counts : tuple of Cell
        Cells by step and category, and by category and the user's previous clicks and no-clicks.
    p_value : float
        Chi-squared test of either set of cells, Bonferroni-corrected. Conservative for an instance fitted to the
        same steps: a small p-value is valid.
    survival, expected_survival : array [n + 1]
        Share of users active after 0, 1, … steps: the Kaplan-Meier estimate, and the forecast.
    click_rate : array [n]
        Share of clicks at every step.
    """

    by_step: tuple[Cell, ...]
    by_counts: tuple[Cell, ...]
    p_value: float
    survival: Floats
    expected_survival: Floats
    click_rate: Floats

    @property
    def clicks_per_user(self) -> float:
        """Expected clicks per user under the policy of the log, corrected for censoring."""
        return float(self.survival[:-1] @ self.click_rate)

    @property
    def truncated(self) -> bool:
        """True if more than 5% of users remain active after the longest history: the log shows only first steps."""
        return bool(self.survival[-1] > MAX_FINAL_SURVIVAL)

    @property
    def log_value(self) -> float | None:
        """Expected clicks per user under the policy of the log, or None if the log shows only first steps."""
        return None if self.truncated else self.clicks_per_user

    def worst(self, n: int = 5) -> list[Cell]:
        """The n cells with the largest absolute z-scores."""
        cells = [cell for cell in (*self.by_step, *self.by_counts) if cell.testable]
        return sorted(cells, key=lambda cell: -abs(cell.z))[:n]

    def describe(self) -> str:
        """Describe the result of the test in one sentence."""
        verdict = "no evidence of misfit" if self.p_value > SIGNIFICANCE else "the model does not fit everywhere"
        p = f"p = {self.p_value:.2g}" if self.p_value >= 1e-15 else "p < 1e-15"
        return f"Goodness of fit, step by step: {p}, {verdict}."

    def summary(self) -> str:
        """Overview in several lines: the test, the worst cells of a misfit, and a warning about truncation."""
        lines = [self.describe()]
        lines += [f"  {cell}" for cell in self.worst() if self.p_value <= SIGNIFICANCE]
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
            One row for each cell: response, group, n, observed, expected, z.
        """
        names = ("response", "group", "n", "observed", "expected", "z")
        cells = (*self.by_step, *self.by_counts)
        return to_frame({name: [getattr(cell, name) for cell in cells] for name in names})

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
        return html_repr(self.describe(), head, rows)


def check_forecasts(instance: Instance, episodes: Iterable[Episodes]) -> FitCheck:
    """Compare the steps of a log with their forecasts by `instance`."""
    labels = _cell_labels(instance.categories)
    sums = np.zeros((len(RESPONSES), len(labels), 4))
    totals = [np.zeros((0, 5)), *(_add_chunk(instance, chunk, sums) for chunk in episodes)]
    total = np.zeros((max(map(len, totals)), 5))
    for part in totals:
        total[: len(part)] += part
    shown, clicks, *_ = total.T
    survival, expected = np.cumprod(1 - total[:, 3:] / np.maximum(total[:, 2:3], 1.0), axis=0).T
    n = len(STEP_GROUPS) * instance.n_categories
    by_step, by_counts = _cells(sums[:, :n], labels[:n]), _cells(sums[:, n:], labels[n:])
    p_value = min(1.0, 2 * min(_chi_squared_test(by_step), _chi_squared_test(by_counts)))
    return FitCheck(by_step, by_counts, p_value, np.append(1.0, survival), np.append(1.0, expected), clicks / shown)


def _cell_labels(categories: Iterable[str]) -> list[str]:
    """Descriptions of the cells by step and category, then of those by previous clicks, no-clicks and category."""
    steps = [f"step {a}" if b == a + 1 else f"steps {a} to {b - 1}" for a, b in pairwise(STEP_GROUPS.tolist())]
    steps.append(f"step {STEP_GROUPS[-1]} and later")
    previous = [f"{c.format('click')} and {s.format('no-click')}" for c in COUNT_LABELS for s in COUNT_LABELS]
    labels = [f"{step} of {name!r}" for step in steps for name in categories]
    return labels + [f"{name!r} after {counts}" for counts in previous for name in categories]


def _cells(sums: Floats, labels: list[str]) -> tuple[Cell, ...]:
    """Cells that are not empty, from `sums[responses, cells, (steps, observed, expected, variance)]`."""
    return tuple(
        Cell(response, label, int(n), int(observed), expected, variance)
        for response, rows in zip(RESPONSES, sums.tolist(), strict=True)
        for label, (n, observed, expected, variance) in zip(labels, rows, strict=True)
        if n and (expected or observed)
    )


def _add_chunk(instance: Instance, chunk: Episodes, sums: Floats) -> Floats:
    """Add the steps of some users to the cells, all first steps, then all second steps, and so on.

    Returns totals by step, `[n, (steps, clicks, steps with known departure, departures, expected departures)]`.
    """
    k = instance.n_categories
    log_prior, log_prob = instance.finite_log_probabilities
    _, index = np.unique(chunk.user, return_inverse=True)
    weights = np.tile(log_prior, (int(index.max()) + 1 if len(index) else 0, 1))
    previous = np.zeros((len(weights), 2), np.int64)  # clicks and no-clicks so far
    order = np.argsort(chunk.step, kind="stable")
    bounds = np.searchsorted(chunk.step[order], np.arange(int(chunk.step.max()) + 2 if len(index) else 0))
    totals = np.zeros((max(len(bounds) - 1, 0), 5))
    for step, (first, last) in enumerate(pairwise(bounds.tolist())):
        rows = order[first:last]
        user, category, outcome = index[rows], chunk.category[rows], chunk.outcome[rows]
        belief = posterior(weights[user], instance.prior)
        prob = (belief[:, None, :] * instance.outcome_probabilities[category]).sum(axis=2)  # [n, 4]
        clicked, departed = (outcome == CLICK) | (outcome == CLICK_DEPART), outcome >= DEPART
        click = prob[:, CLICK] + prob[:, CLICK_DEPART]
        depart = prob[:, DEPART] / np.maximum(prob[:, STAY] + prob[:, DEPART], 1e-300)
        depart_on_click = prob[:, CLICK_DEPART] / np.maximum(click, 1e-300)
        known = ~chunk.pending[rows]
        step_group = np.searchsorted(STEP_GROUPS, step + 1, side="right") - 1
        counts = np.minimum(previous[user], len(COUNT_LABELS) - 1)
        count_group = len(STEP_GROUPS) + counts[:, 0] * len(COUNT_LABELS) + counts[:, 1]
        for cell in (step_group * k + category, count_group * k + category):
            _add(sums[0], cell, clicked, click)
            for response, among, forecast in ((1, ~clicked & known, depart), (2, clicked & known, depart_on_click)):
                _add(sums[response], cell[among], departed[among], forecast[among])
        expected = np.where(clicked, depart_on_click, depart)
        totals[step] = len(rows), clicked.sum(), known.sum(), departed[known].sum(), expected[known].sum()
        weights[user] += log_prob[4 * category + outcome]
        previous[user, 0] += clicked
        previous[user, 1] += ~clicked
    return totals


def _add(sums: Floats, cell: Integers, observed: Booleans, prob: Floats) -> None:
    """Add steps, observed and expected responses and their variance to `sums[cells, 4]`."""
    for column, value in enumerate((np.ones(len(cell)), observed, prob, prob * (1 - prob))):
        np.add.at(sums[:, column], cell, value)


def _chi_squared_test(cells: Iterable[Cell]) -> float:
    """p-value of the sum of squared z-scores of the cells that are large enough."""
    from scipy.special import chdtrc  # 0.1 s to import

    scores = [cell.z for cell in cells if cell.testable]
    return float(chdtrc(len(scores), sum(z * z for z in scores))) if scores else 1.0
