"""Readout of an A/B test: arms, comparisons with the control, and recommendations."""

import os
from dataclasses import dataclass, field
from math import isfinite, isnan, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from departing.abtest.sequence import ConfidenceSequence
from departing.abtest.welch import ArmMoments
from departing.data.quality import Irregularity
from departing.formatting import format_percent
from departing.html_tables import html_repr
from departing.model.frames import to_frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (
    "arm",
    "users",
    "clicks per user",
    "difference",
    "interval",
    "p-value",
    "lift",
    "lift interval",
    "sequence",
)


@dataclass(frozen=True)
class Arm:
    """One arm of an experiment.

    Attributes
    ----------
    name : str
    users : int
    mean : float
        Clicks per user.
    variance : float
        Sample variance of the clicks of one user.
    active : int or None
        Users who have not departed; None if unknown.
    """

    name: str
    users: int
    mean: float
    variance: float
    active: int | None = None

    @property
    def stderr(self) -> float:
        """Standard error of the mean."""
        return sqrt(self.variance / self.users)

    @property
    def moments(self) -> ArmMoments:
        """Moments for the tests."""
        return ArmMoments(self.mean, self.variance, 0.0, self.users)


@dataclass(frozen=True, eq=False)
class ArmComparison:
    """Comparison of one treatment with the control.

    Attributes
    ----------
    treatment, control : Arm
    difference, lower, upper : float
        Difference of the clicks per user, and its fixed-sample interval (Welch).
    p_value : float
        Two-sided p-value of no difference (Welch); adjusted by Holm's method if there are several treatments.
    lift, lift_lower, lift_upper : float
        Difference relative to the control, and its interval (Fieller); NaN where it is not determined.
    sequence : ConfidenceSequence
        Bounds of the difference that hold at all looks.
    verdict : {"better", "worse", "undecided", "too few users", "mismatch"}
        Decision by the confidence sequence.
    recommendation : str
        What to do next, in one sentence.
    """

    treatment: Arm
    control: Arm
    difference: float
    lower: float
    upper: float
    p_value: float
    lift: float
    lift_lower: float
    lift_upper: float
    sequence: ConfidenceSequence = field(repr=False)
    verdict: str
    recommendation: str


@dataclass(frozen=True, eq=False)
class ABTest:
    """Readout of an A/B test.

    With several treatments, `difference`, `lower`, `upper`, `p_value`, `lift`, `sequence` and `recommendation` are
    those of the treatment with the largest mean; `comparisons` has all.

    Attributes
    ----------
    arms : tuple of Arm
        The control first.
    comparisons : tuple of ArmComparison
        Every treatment against the control.
    confidence : float
        Confidence level of the intervals, over all comparisons together.
    sample_ratio_p_value : float
        P-value of the numbers of users under the expected shares of the arms.
    warnings : tuple of str
        Sentences about what makes the result doubtful.
    notes : tuple of str
        Sentences about how the results were read.
    irregularities : tuple of Irregularity
        Rejected rows, with counts and examples.
    """

    arms: tuple[Arm, ...]
    comparisons: tuple[ArmComparison, ...]
    confidence: float
    sample_ratio_p_value: float
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    irregularities: tuple[Irregularity, ...]

    @property
    def best(self) -> ArmComparison:
        """Comparison of the treatment with the largest mean."""
        return max(self.comparisons, key=lambda each: each.difference)

    @property
    def means(self) -> dict[str, float]:
        """Clicks per user of every arm."""
        return {arm.name: arm.mean for arm in self.arms}

    @property
    def users(self) -> dict[str, int]:
        """Users of every arm."""
        return {arm.name: arm.users for arm in self.arms}

    @property
    def difference(self) -> float:
        """Difference of the clicks per user, treatment minus control."""
        return self.best.difference

    @property
    def lower(self) -> float:
        """Lower end of the fixed-sample interval of the difference."""
        return self.best.lower

    @property
    def upper(self) -> float:
        """Upper end of the fixed-sample interval of the difference."""
        return self.best.upper

    @property
    def p_value(self) -> float:
        """Two-sided p-value of no difference."""
        return self.best.p_value

    @property
    def lift(self) -> float:
        """Difference relative to the control."""
        return self.best.lift

    @property
    def sequence(self) -> ConfidenceSequence:
        """Confidence sequence of the difference."""
        return self.best.sequence

    @property
    def recommendation(self) -> str:
        """Next step, in one sentence."""
        return self.best.recommendation

    @property
    def recommendations(self) -> tuple[str, ...]:
        """Distinct recommendations of all comparisons."""
        return tuple(dict.fromkeys(each.recommendation for each in self.comparisons))

    def describe(self) -> str:
        """Describe the readout in one sentence: the recommendation."""
        return self.recommendation

    def summary(self) -> str:
        """Overview in several lines: recommendations, arms, comparisons, warnings and notes."""
        lines = [*self.recommendations, *self.warnings]
        for arm in self.arms:
            lines.append(f"  {arm.name}: {arm.users:,} users, {arm.mean:.4f} ± {arm.stderr:.4f} clicks per user")
        for each in self.comparisons:
            lines += [
                f"  {each.treatment.name} − {each.control.name}: {each.difference:+.4f} clicks per user "
                f"({_signed_percent(each.lift)})",
                f"    fixed sample: {_interval(each.lower, each.upper)}, p = {each.p_value:.3g}",
                f"    confidence sequence: {_interval(*each.sequence.final)}",
            ]
        return "\n".join([*lines, *self.sentences()])

    def sentences(self) -> list[str]:
        """Sentences about the intervals, rejected rows and the reading."""
        level, several = format_percent(self.confidence), len(self.comparisons) > 1
        lines = [
            f"Intervals have {level} confidence. The fixed-sample interval and the p-value hold for one look at a "
            "number of users set in advance; the confidence sequence holds for all looks together."
        ]
        if several:
            lines.append(
                f"{len(self.comparisons)} comparisons with {self.arms[0].name}: intervals are adjusted by "
                "Bonferroni's method, p-values by Holm's."
            )
        lines += [f"{each.count:,} × {each.kind}: {each.decision}" for each in self.irregularities]
        return [*lines, *self.notes]

    def rows(self) -> list[list[str]]:
        """Rows of a table, one per arm, in the order of `COLUMNS`."""
        first, *_ = self.arms
        rows = [[first.name, f"{first.users:,}", f"{first.mean:.4f}", *[""] * 6]]
        for each in self.comparisons:
            rows.append(
                [
                    *(each.treatment.name, f"{each.treatment.users:,}", f"{each.treatment.mean:.4f}"),
                    *(f"{each.difference:+.4f}", _interval(each.lower, each.upper), f"{each.p_value:.3g}"),
                    *(_signed_percent(each.lift), _percent_interval(each.lift_lower, each.lift_upper)),
                    _interval(*each.sequence.final),
                ]
            )
        return rows

    def to_frame(self) -> Any:
        """Return a frame of pandas or polars with one row per arm; differences of the control are NaN."""
        blank = dict.fromkeys(
            ("difference", "lower", "upper", "p_value", "lift", "lift_lower", "lift_upper", "sequence_lower"), np.nan
        )
        rows: list[dict[str, Any]] = [_arm_row(self.arms[0]) | blank | {"sequence_upper": np.nan}]
        for each in self.comparisons:
            low, high = each.sequence.final
            values = {name: getattr(each, name) for name in blank if name != "sequence_lower"}
            rows.append(_arm_row(each.treatment) | values | {"sequence_lower": low, "sequence_upper": high})
        return to_frame({name: [row[name] for row in rows] for name in rows[0]})

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Plot the confidence sequence of every comparison over the number of users.

        Parameters
        ----------
        path : path, optional
            File to write, ending in .svg, .png or .pdf.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from departing.abtest.plot import draw_readout
        from departing.plotting.figures import save

        return save(draw_readout(self), path)

    def __repr__(self) -> str:
        return f"<ABTest: {self.describe()}>"

    def _repr_html_(self) -> str:
        return html_repr(self.describe(), COLUMNS, self.rows(), [*self.warnings, *self.sentences()])


def _arm_row(arm: Arm) -> dict[str, Any]:
    return {"arm": arm.name, "users": arm.users, "mean": arm.mean, "stderr": arm.stderr}


def _interval(low: float, high: float) -> str:
    return f"{low:+.4f} to {high:+.4f}" if isfinite(low) and isfinite(high) else "not yet"


def _percent_interval(low: float, high: float) -> str:
    return f"{_signed_percent(low)} to {_signed_percent(high)}" if isfinite(low) and isfinite(high) else "–"


def _signed_percent(value: float) -> str:
    return "–" if isnan(value) else ("+" if value >= 0 else "") + format_percent(value)
