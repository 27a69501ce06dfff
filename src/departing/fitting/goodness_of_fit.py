"""How far a fitted instance is from what users did: every step against its forecast.

The forecast of a step is made from the user's earlier steps and the category shown, so it does not matter how
categories were chosen. What is observed less what was forecast, summed over any cells, then has mean 0 and a variance
that is known, if the instance is right.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Protocol

import numpy as np
import numpy.typing as npt

from departing.model.belief import finite_log_probabilities, posterior
from departing.model.counts import Integers
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats, Instance

STEPS = np.array([1, 2, 3, 4, 5, 6, 8, 11, 16, 31])  # where the groups of steps begin
MOST = 4  # clicks or no-clicks so far that are told apart
ENOUGH = 5.0  # yes and no that a cell must be expected to have, for its test
DOUBT = 0.01  # p-value from which on the model is not doubted
CUT = 0.05  # share of users still here after the longest history, above which the log is cut short
QUESTIONS = ("click", "depart", "depart_on_click")


class Steps(Protocol):
    """Steps of some users in order, whole users, as `Log.episodes` gives them."""

    user: Integers
    step: Integers
    category: Integers
    outcome: Integers
    pending: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Cell:
    """Steps that belong together: how many said yes to a question (click, depart, …), and how many were forecast."""

    question: str
    where: str
    n: int
    observed: int
    expected: float
    variance: float

    @property
    def z(self) -> float:
        """Standard errors that the observed number is above the forecast one."""
        return (self.observed - self.expected) / sqrt(self.variance) if self.variance > 0 else 0.0

    def __str__(self) -> str:
        numbers = f"{self.observed:,} seen, {self.expected:,.1f} forecast (z {self.z:+.1f})"
        return f"{self.question}, {self.where}: {numbers}"


@dataclass(frozen=True)
class Check:
    """How well forecasts did: cells by step and category, and by what the user had done before.

    `p_value` is how likely differences as large as in one or the other cells would be if the instance were right;
    rather too large if the instance was fitted to the same steps, so a small one is sound.
    `here[n]` and `forecast[n]` are the shares of users who are still here after n steps: as observed, allowing for
    those who are censored, and by the forecasts. `clicked[n]` is the share of clicks at the step after.
    """

    by_step: tuple[Cell, ...]
    by_counts: tuple[Cell, ...]
    p_value: float
    here: Floats
    forecast: Floats
    clicked: Floats

    @property
    def clicks(self) -> float:
        """Clicks per user as the log has them, with what censored users would have gone on to do."""
        return float(self.here[:-1] @ self.clicked)

    @property
    def cut_short(self) -> bool:
        """Whether so many users are still here after the longest history that the log shows only how they begin."""
        return bool(self.here[-1] > CUT)

    def worst(self, n: int = 5) -> list[Cell]:
        """The cells with the largest differences, in standard errors."""
        cells = [cell for cell in (*self.by_step, *self.by_counts) if _testable(cell)]
        return sorted(cells, key=lambda cell: -abs(cell.z))[:n]

    def __str__(self) -> str:
        verdict = "nothing speaks against the model" if self.p_value > DOUBT else "the model does not fit everywhere"
        p = f"p = {self.p_value:.2g}" if self.p_value >= 1e-15 else "p below 1e-15"
        lines = [f"Forecasts against what happened, step by step: {p}, {verdict}."]
        lines += [f"  {cell}" for cell in self.worst() if self.p_value <= DOUBT]
        if self.cut_short:
            lines.append(
                f"{self.here[-1]:.0%} of users are still here after {len(self.here) - 1} steps, where the longest "
                "history ends: about later steps there is only the word of the model."
            )
        return "\n".join(lines)


class _Sums:
    """Sums over steps by cell: `[questions, cells, (asked, yes, forecast, variance)]`."""

    def __init__(self, cells: int) -> None:
        self.values = np.zeros((len(QUESTIONS), cells, 4))

    def add(self, question: int, cell: Integers, yes: npt.NDArray[np.bool_], chance: Floats) -> None:
        for column, value in enumerate((np.ones(len(cell)), yes, chance, chance * (1 - chance))):
            np.add.at(self.values[question, :, column], cell, value)


def check(instance: Instance, episodes: Iterable[Steps]) -> Check:
    """Compare what users did with its forecasts by `instance`."""
    k, groups = instance.n_categories, len(STEPS)
    steps, counts = _Sums(groups * k), _Sums(MOST * MOST * k)
    ends: list[Floats] = []
    for part in episodes:
        _follow(instance, part, steps, counts, ends)
    by_step = _cells(steps, [f"{_step_words(g)} of {name!r}" for g in range(groups) for name in instance.categories])
    before = [f"{_times(c, 'click')} and {_times(s, 'no-click')}" for c in range(MOST) for s in range(MOST)]
    by_counts = _cells(counts, [f"{name!r} after {words}" for words in before for name in instance.categories])
    longest = max((len(left) for left in ends), default=0)
    total = np.zeros((longest, 5))
    for left in ends:
        total[: len(left)] += left
    shown, clicks, *_ = total.T
    here, forecast = np.cumprod(1 - total[:, 3:] / np.maximum(total[:, 2:3], 1.0), axis=0).T
    p_value = min(1.0, 2 * min(_p_value(by_step), _p_value(by_counts)))
    return Check(by_step, by_counts, p_value, np.append(1.0, here), np.append(1.0, forecast), clicks / shown)


def _follow(instance: Instance, part: Steps, steps: _Sums, counts: _Sums, ends: list[Floats]) -> None:
    """Go through the steps of some users, all first steps, then all second ones, and so on."""
    k = instance.n_categories
    prior, chances = finite_log_probabilities(instance)
    _, who = np.unique(part.user, return_inverse=True)
    weights = np.tile(prior, (int(who.max()) + 1 if len(who) else 0, 1))
    done = np.zeros((len(weights), 2), np.int64)  # clicks and no-clicks so far
    order = np.argsort(part.step, kind="stable")
    bounds = np.searchsorted(part.step[order], np.arange(int(part.step.max()) + 2 if len(who) else 0))
    left = np.zeros((max(len(bounds) - 1, 0), 5))
    for step, (first, last) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        rows = order[first:last]
        user, category, outcome = who[rows], part.category[rows], part.outcome[rows]
        belief = posterior(weights[user], instance.prior)
        joint = belief[:, None, :] * instance.outcome_probabilities[category]  # [n, 4, M]
        chance = joint.sum(axis=2)
        clicked, gone = (outcome == CLICK) | (outcome == CLICK_DEPART), outcome >= DEPART
        click = chance[:, CLICK] + chance[:, CLICK_DEPART]
        after_miss = chance[:, DEPART] / np.maximum(chance[:, STAY] + chance[:, DEPART], 1e-300)
        after_click = chance[:, CLICK_DEPART] / np.maximum(click, 1e-300)
        known = ~part.pending[rows]
        group = np.searchsorted(STEPS, step + 1, side="right") - 1
        before = np.minimum(done[user], MOST - 1)
        for sums, cell in (
            (steps, group * k + category),
            (counts, (before[:, 0] * MOST + before[:, 1]) * k + category),
        ):
            sums.add(0, cell, clicked, click)
            for question, among, forecast in ((1, ~clicked & known, after_miss), (2, clicked & known, after_click)):
                sums.add(question, cell[among], gone[among], forecast[among])
        expected = np.where(clicked, after_click, after_miss)
        left[step] = len(rows), clicked.sum(), known.sum(), gone[known].sum(), expected[known].sum()
        weights[user] += chances[4 * category + outcome]
        done[user, 0] += clicked
        done[user, 1] += ~clicked
    ends.append(left)


def _cells(sums: _Sums, where: list[str]) -> tuple[Cell, ...]:
    found = []
    for question, values in zip(QUESTIONS, sums.values, strict=True):
        for words, (n, yes, forecast, variance) in zip(where, values.tolist(), strict=True):
            if n and (forecast or yes):
                found.append(Cell(question, words, int(n), int(yes), forecast, variance))
    return tuple(found)


def _p_value(cells: Iterable[Cell]) -> float:
    """How likely it is that the squared z-scores of the cells sum to more."""
    scores = [cell.z for cell in cells if _testable(cell)]
    return _upper_tail(sum(z * z for z in scores), len(scores)) if scores else 1.0


def _testable(cell: Cell) -> bool:
    return min(cell.expected, cell.n - cell.expected) >= ENOUGH


def _step_words(group: int) -> str:
    first = int(STEPS[group])
    if group + 1 == len(STEPS):
        return f"step {first} and later"
    last = int(STEPS[group + 1]) - 1
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _times(n: int, what: str) -> str:
    many = f"{n} or more" if n == MOST - 1 else str(n)
    return f"{many} {what}{'' if n == 1 else 's'}"


def _upper_tail(value: float, freedom: int) -> float:
    """The chance that a chi-squared number is larger, by Wilson and Hilferty's approximation.

    >>> round(_upper_tail(18.307, 10), 3), round(_upper_tail(124.342, 100), 3)
    (0.05, 0.05)
    """
    z = ((value / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / sqrt(2 / (9 * freedom))
    return NormalDist().cdf(-z)
