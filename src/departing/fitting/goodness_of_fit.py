"""Goodness of fit: every step of a log against its forecast by an instance.

The forecast of a step uses the user's earlier steps and the category shown, so it is valid however categories were
chosen. Under a correct model the sum over any cell of observed minus forecast responses is a martingale: it has
mean 0 and a known variance.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from departing.model.belief import finite_log_probabilities, posterior
from departing.model.counts import Integers
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats, Instance

RESPONSES = ("click", "depart", "depart_on_click")
# Cells trade resolution against power: early steps, with most of the data, one by one; later ones in wider groups.
STEP_GROUPS = np.array([1, 2, 3, 4, 5, 6, 8, 11, 16, 31])  # first step of each group
COUNT_GROUPS = 4  # previous clicks or no-clicks: 0, 1, 2, 3 or more
MIN_EXPECTED = 5.0  # expected successes and failures per cell (Cochran's rule for chi-squared tests)
SIGNIFICANCE = 0.01  # p-value above which there is no evidence of misfit; low, since every log is checked
# Share of users active after the longest history above which clicks per user depend on unobserved steps.
MAX_FINAL_SURVIVAL = 0.05


class EpisodeChunk(Protocol):
    """Steps of some users in order, all steps of a user in one chunk, as `Log.episodes` returns them."""

    user: Integers
    step: Integers
    category: Integers
    outcome: Integers
    pending: npt.NDArray[np.bool_]


@runtime_checkable
class EpisodeSource(Protocol):
    """Histories that keep the order of steps, such as a `Log`."""

    def episodes(self, users: int) -> Iterator[EpisodeChunk]:
        """Steps of all users, in chunks of `users` users."""


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
        """True if so many users remain active after the longest history that the log shows only the first steps."""
        return bool(self.survival[-1] > MAX_FINAL_SURVIVAL)

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


class _CellSums:
    """Sums over steps by cell, `[responses, cells, (steps, observed, expected, variance)]`."""

    def __init__(self, cells: int) -> None:
        self.values = np.zeros((len(RESPONSES), cells, 4))

    def add(self, response: int, cell: Integers, observed: npt.NDArray[np.bool_], prob: Floats) -> None:
        for column, value in enumerate((np.ones(len(cell)), observed, prob, prob * (1 - prob))):
            np.add.at(self.values[response, :, column], cell, value)

    def cells(self, groups: list[str]) -> tuple[Cell, ...]:
        """Cells that are not empty; `groups` describes them."""
        return tuple(
            Cell(response, group, int(n), int(observed), expected, variance)
            for response, values in zip(RESPONSES, self.values, strict=True)
            for group, (n, observed, expected, variance) in zip(groups, values.tolist(), strict=True)
            if n and (expected or observed)
        )


def check_forecasts(instance: Instance, episodes: Iterable[EpisodeChunk]) -> FitCheck:
    """Compare the steps of a log with their forecasts by `instance`."""
    k, n_groups = instance.n_categories, len(STEP_GROUPS)
    by_step, by_counts = _CellSums(n_groups * k), _CellSums(COUNT_GROUPS * COUNT_GROUPS * k)
    totals = [np.zeros((0, 5)), *(_add_chunk(instance, chunk, by_step, by_counts) for chunk in episodes)]
    total = np.zeros((max(map(len, totals)), 5))
    for part in totals:
        total[: len(part)] += part
    shown, clicks, *_ = total.T
    survival, expected = np.cumprod(1 - total[:, 3:] / np.maximum(total[:, 2:3], 1.0), axis=0).T
    step_cells = by_step.cells(
        [f"{_steps_label(g)} of {name!r}" for g in range(n_groups) for name in instance.categories]
    )
    previous = [
        f"{_count_label(c, 'click')} and {_count_label(s, 'no-click')}"
        for c in range(COUNT_GROUPS)
        for s in range(COUNT_GROUPS)
    ]
    count_cells = by_counts.cells([f"{name!r} after {label}" for label in previous for name in instance.categories])
    p_value = min(1.0, 2 * min(_chi_squared_test(step_cells), _chi_squared_test(count_cells)))
    return FitCheck(
        step_cells, count_cells, p_value, np.append(1.0, survival), np.append(1.0, expected), clicks / shown
    )


def _add_chunk(instance: Instance, chunk: EpisodeChunk, by_step: _CellSums, by_counts: _CellSums) -> Floats:
    """Add the steps of some users to the cells, all first steps, then all second steps, and so on.

    Returns totals by step, `[n, (steps, clicks, steps with known departure, departures, expected departures)]`.
    """
    k = instance.n_categories
    log_prior, log_prob = finite_log_probabilities(instance)
    _, index = np.unique(chunk.user, return_inverse=True)
    weights = np.tile(log_prior, (int(index.max()) + 1 if len(index) else 0, 1))
    previous = np.zeros((len(weights), 2), np.int64)  # clicks and no-clicks so far
    order = np.argsort(chunk.step, kind="stable")
    bounds = np.searchsorted(chunk.step[order], np.arange(int(chunk.step.max()) + 2 if len(index) else 0))
    totals = np.zeros((max(len(bounds) - 1, 0), 5))
    for step, (first, last) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
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
        counts = np.minimum(previous[user], COUNT_GROUPS - 1)
        for sums, cell in (
            (by_step, step_group * k + category),
            (by_counts, (counts[:, 0] * COUNT_GROUPS + counts[:, 1]) * k + category),
        ):
            sums.add(0, cell, clicked, click)
            for response, among, forecast in ((1, ~clicked & known, depart), (2, clicked & known, depart_on_click)):
                sums.add(response, cell[among], departed[among], forecast[among])
        expected = np.where(clicked, depart_on_click, depart)
        totals[step] = len(rows), clicked.sum(), known.sum(), departed[known].sum(), expected[known].sum()
        weights[user] += log_prob[4 * category + outcome]
        previous[user, 0] += clicked
        previous[user, 1] += ~clicked
    return totals


def _chi_squared_test(cells: Iterable[Cell]) -> float:
    """p-value of the sum of squared z-scores of the cells that are large enough."""
    from scipy.special import chdtrc  # 0.1 s to import

    scores = [cell.z for cell in cells if cell.testable]
    return float(chdtrc(len(scores), sum(z * z for z in scores))) if scores else 1.0


def _steps_label(group: int) -> str:
    first = int(STEP_GROUPS[group])
    if group + 1 == len(STEP_GROUPS):
        return f"step {first} and later"
    last = int(STEP_GROUPS[group + 1]) - 1
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _count_label(n: int, noun: str) -> str:
    number = f"{n} or more" if n == COUNT_GROUPS - 1 else str(n)
    return f"{number} {noun}{'' if n == 1 else 's'}"
