"""Rewards of clicks: the numbers ≥ 0 of a column, of which the mean of each category is taken.

Sums are those of integers: rewards times a power of two, so that they do not depend on the order of the rows. SQL
column: `r` reward of a click, NULL if it has none and for no-clicks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, log2, sqrt
from typing import Any

import numpy as np

from departing.formatting import first_few
from departing.html_tables import html_repr
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.frames import to_frame
from departing.model.instance import Floats

# Bits of a reward as an integer: those of the largest one. Squares of 88 bits leave room for 2^39 clicks in 128 bits,
# and a reward a million times smaller than the largest is still known to 7 digits.
BITS = 44
DIGITS = 12  # of a mean: fewer than the integers have, so that the mean of equal rewards is their value
NO_REWARD = ("reward of a click is missing", "the click is used, but not in the mean of rewards")
BAD_REWARD = ("reward of a click is not a number ≥ 0", "treated as missing")
UNCLICKED_REWARD = ("reward without a click", "ignored")
NUMBER_FORMAT = "such as 8.13, with a decimal point and without a currency sign or separators of thousands"
FILL_STEP = "write 0 for clicks without a value"
MAX_ROWS = 20  # categories of an overview


@dataclass(frozen=True)
class RewardStats:
    """Rewards of clicks by category.

    Attributes
    ----------
    categories : tuple of str
        Names of the K categories.
    unit : str
        Unit of the rewards, such as "euro".
    mean : float array [K]
        Mean reward of a click; that of all clicks for a category without clicks.
    stderr : float array [K]
        Standard error of the mean; NaN for fewer than two clicks.
    sd : float array [K]
        Standard deviation of the rewards of clicks; NaN for fewer than two clicks.
    clicks : int array [K]
        Number of clicks with a reward.
    """

    categories: tuple[str, ...]
    unit: str
    mean: Floats
    stderr: Floats
    sd: Floats
    clicks: Integers

    def columns(self) -> dict[str, Any]:
        """Columns of `to_frame`, `[K]` each."""
        return {
            "category": list(self.categories),
            "mean": self.mean,
            "stderr": self.stderr,
            "sd": self.sd,
            "clicks": self.clicks,
        }

    def to_frame(self) -> Any:
        """Return the statistics as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each category: category, mean, stderr, sd, clicks.
        """
        return to_frame(self.columns())

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as plain values; None where they are not defined."""
        values = {
            name: [None if np.isnan(value) else value for value in getattr(self, name).tolist()]
            for name in ("mean", "stderr", "sd", "clicks")
        }
        return {"unit": self.unit, "categories": list(self.categories)} | values

    def describe(self) -> str:
        """Describe the mean rewards in one sentence."""
        parts = [
            f"{name} {mean:.4g}" + (f" ± {stderr:.2g}" if stderr > 0 else "")
            for name, mean, stderr in zip(self.categories, self.mean, self.stderr, strict=True)
        ]
        return f"Mean reward of a click in {self.unit} (± standard error): {first_few(parts, MAX_ROWS)}."

    def _repr_html_(self) -> str:
        rows = [
            [name, *(f"{value:.4g}" for value in row)] for name, *row in zip(*self.columns().values(), strict=True)
        ]
        return html_repr(f"Rewards of clicks in {self.unit}", list(self.columns()), rows, [])


def reward_scale(largest: float) -> float:
    """Factor that makes integers of rewards up to `largest`: a power of two.

    >>> reward_scale(1.0) == 2.0**44, reward_scale(10.0) == 2.0**40
    (True, True)
    """
    return 2.0 ** (BITS - ceil(log2(largest))) if largest > 0 else 1.0


def sums(scale: float) -> str:
    """SQL of the number of rewards `r`, and of their integers' sum and sum of squares, as text: they may be large."""
    integer = f"round(r * {scale!r})::HUGEINT"
    return (
        f"count(r) AS n, coalesce(sum({integer}), 0)::VARCHAR AS total, "
        f"coalesce(sum({integer} * {integer}), 0)::VARCHAR AS squares"
    )


def sums_by_category(scale: float) -> str:
    """Query for the sums of the rewards of used clicks by category."""
    return (
        f"SELECT k, {sums(scale)} FROM ("
        "SELECT k, r FROM events ANTI JOIN corrected_users USING (u) WHERE y "
        "UNION ALL SELECT k, r FROM corrected WHERE y AND rejection_reason IS NULL) GROUP BY k"
    )


def weighted_sums_by_category(last: int, half_life: float) -> str:
    """Query for the number of rewards of used clicks by category, and for sums over them: w, w², w r and w r².

    The weight w of a user is that of `history_rules.Profile.history_sums`.
    """
    age = f"({last} - arrival)::DOUBLE"
    return (
        "WITH used AS (SELECT u, t, k, y, r FROM events ANTI JOIN corrected_users USING (u) "
        "UNION ALL SELECT u, t, k, y, r FROM corrected WHERE rejection_reason IS NULL), "
        f"users AS (SELECT u, pow(2.0::DOUBLE, -({age} / '{half_life!r}'::DOUBLE)) AS w "
        "FROM (SELECT u, min(t) AS arrival FROM used GROUP BY u)) "
        "SELECT k, count(r), sum(w), sum(w * w), sum(w * r), sum(w * r * r) FROM used JOIN users USING (u) "
        "WHERE y AND r IS NOT NULL GROUP BY k"
    )


def weighted_reward_stats(
    parts: Iterable[tuple[int, int, float, float, float, float]], categories: Sequence[str], unit: str
) -> RewardStats:
    """Statistics from the rows of `weighted_sums_by_category` of all partitions."""
    sums = np.zeros((len(categories), 5))
    for category, *row in parts:
        sums[category] += row
    clicks, weight, squares, first, second = sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(weight > 0, first / weight, first.sum() / weight.sum())
        several = np.where((clicks > 1) & (weight**2 > squares), 1.0, np.nan)
        sd = several * np.sqrt(np.maximum(second / weight - mean**2, 0.0) / (1 - squares / weight**2))
        stderr = sd * np.sqrt(squares) / weight
    rounded = np.array([float(f"{value:.{DIGITS}g}") for value in mean])  # whatever the order of the rows
    return RewardStats(tuple(categories), unit, rounded, stderr, sd, clicks.astype(np.int64))


def reward_stats(
    parts: Iterable[tuple[int, int, str, str]], categories: Sequence[str], unit: str, scale: float, column: str
) -> RewardStats:
    """Statistics from the rows of `sums_by_category` of all partitions."""
    k = len(categories)
    n, totals, squares = [0] * k, [0] * k, [0] * k
    for category, number, total, square in parts:
        n[category] += number
        totals[category] += int(total)
        squares[category] += int(square)
    if not sum(totals):
        raise InputError(
            f"Column {column!r} for reward is 0 for every click; expected the value of some clicks to be above 0: "
            "name another column as `reward`.",
            "reward",
        )
    pooled = _mean(sum(totals), sum(n), scale)
    mean = [_mean(total, number, scale) if number else pooled for total, number in zip(totals, n, strict=True)]
    sd = [  # of exact integers
        sqrt((number * square - total * total) / (number * (number - 1))) / scale if number > 1 else np.nan
        for number, total, square in zip(n, totals, squares, strict=True)
    ]
    clicks = np.array(n, np.int64)
    stderr = np.array(sd) / np.sqrt(np.maximum(clicks, 1))
    return RewardStats(tuple(categories), unit, np.array(mean), stderr, np.array(sd), clicks)


def _mean(total: int, number: int, scale: float) -> float:
    return float(f"{total / number / scale:.{DIGITS}g}")


def check_rewards(
    unknown: int, missing: int, clicks: int, max_rejected: float, column: str, source: str, example: str | None
) -> None:
    """Raise if more clicks than accepted have no reward that is a number ≥ 0."""
    if unknown <= max_rejected * clicks:
        return
    such = f", such as {example!r}" if example is not None else ""
    absent = f", {missing:,} of them missing" if missing else ""
    steps = [FILL_STEP] if missing else []
    if unknown > missing:
        steps.append(f"write {'the others' if missing else 'rewards'} as numbers ≥ 0 {NUMBER_FORMAT}")
    step = ", ".join([*steps, "or name another column as `reward`"])
    raise InputError(
        f"Column {column!r} for reward holds no number ≥ 0 in {unknown:,} of {clicks:,} clicks in {source} "
        f"({unknown / clicks:.1%}{absent}){such}; the accepted share is {max_rejected:.3g} (`max_rejected`). "
        f"{step[0].upper()}{step[1:]}.",
        "reward",
    )
