"""Result of off-policy evaluation: estimates with their intervals, and overlap by step."""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from departing.fitting.fit import Fit
from departing.html_tables import html_repr
from departing.model.frames import to_frame
from departing.offpolicy.limits import MAX_TAIL_SHARE, Extrapolation
from departing.policy.protocol import Policy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Estimate:
    """Estimated value: clicks or reward per user.

    Attributes
    ----------
    value : float
        Point estimate.
    stderr : float
        Standard error.
    lower, upper : float
        Ends of the confidence interval.
    ess : float
        Effective sample size: for the direct method the number of users, for the others that of the weights at
        the last step of the horizon.
    """

    value: float
    stderr: float
    lower: float
    upper: float
    ess: float

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.lower:.4g} to {self.upper:.4g})"


@dataclass(frozen=True)
class Overlap:
    """Overlap of the log with the policy at one step.

    Attributes
    ----------
    step : int
        Step, from 0.
    users : int
        Users whose categories agree with the policy up to and including this step.
    ess : float
        Effective sample size of their weights.
    click_share : float
        Share of the policy's value at this step, under the model.
    """

    step: int
    users: int
    ess: float
    click_share: float


@dataclass(frozen=True, eq=False)
class OffPolicyValue:
    """Off-policy value of a policy: expected clicks or reward per user, by up to three estimators.

    Attributes
    ----------
    dm : Estimate
        Direct method: value under the instance fitted to the log.
    pdis : Estimate or None
        Per-decision importance sampling within the horizon, the model after it. None without propensities or
        overlap.
    dr : Estimate or None
        Doubly robust: PDIS with the model as control variate. Within the horizon both are unbiased for any model.
    confidence : float
        Coverage of the intervals.
    users : int
        Number of users in the log.
    horizon : int
        Number of steps that PDIS and DR take from the log.
    tail_share : float
        Share of the policy's value after the horizon, under the model.
    extrapolation : Extrapolation
        Share of the value beyond the longest history of the log, under the model.
    overlap : tuple of Overlap
        Overlap by step.
    warnings : tuple of str
        Sentences about overlap, propensities and misfit.
    fit : Fit
        Fit of the model.
    policy : Policy
        Policy that was evaluated.
    by_segment : dict of str to OffPolicyValue
        The same for the users of each segment of the log, by the name of the segment. Steps at which the effective
        sample size of a segment is below 10 come from the model; if the first is one, only the direct method applies.
    """

    dm: Estimate
    pdis: Estimate | None
    dr: Estimate | None
    confidence: float
    users: int
    horizon: int
    tail_share: float
    extrapolation: Extrapolation
    overlap: tuple[Overlap, ...] = field(repr=False)
    warnings: tuple[str, ...]
    fit: Fit = field(repr=False)
    policy: Policy = field(repr=False)
    by_segment: dict[str, "OffPolicyValue"] = field(default_factory=dict, repr=False)

    @property
    def unit(self) -> str:
        """Unit of the value."""
        return self.fit.instance.unit

    @property
    def best(self) -> Estimate:
        """The doubly robust estimate, or that of the direct method if there is none."""
        return self.dr or self.dm

    @property
    def best_name(self) -> str:
        """Field name of the best estimate: "dr" or "dm"."""
        return "dm" if self.dr is None else "dr"

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Available estimates by field name: "dm", "pdis", "dr"."""
        named = {"dm": self.dm, "pdis": self.pdis, "dr": self.dr}
        return {name: estimate for name, estimate in named.items() if estimate is not None}

    def describe(self) -> str:
        """Describe the best estimate in one sentence."""
        name = "direct method" if self.dr is None else "doubly robust"
        interval = f"{self.confidence:.0%} interval {self.best.lower:.4g} to {self.best.upper:.4g}"
        share = self.extrapolation.share
        note = f", {share:.0%} of them extrapolated beyond the longest history" if share > MAX_TAIL_SHARE else ""
        return f"{self.best.value:.4g} expected {self.unit} per user ({name}, {interval}){note}."

    def summary(self) -> str:
        """Overview in several lines: estimates with confidence interval and effective sample size, warnings."""
        lines = [
            f"{name.upper():4}  {estimate}, ESS {estimate.ess:,.0f}" for name, estimate in self.estimates.items()
        ]
        return "\n".join([*lines, *self.warnings])

    __str__ = summary

    def to_frame(self) -> Any:
        """Return the estimates as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each estimator: estimator, value, stderr, lower, upper, ess.
        """
        names = ("value", "stderr", "lower", "upper", "ess")
        columns = {name: [getattr(each, name) for each in self.estimates.values()] for name in names}
        return to_frame({"estimator": list(self.estimates)} | columns)

    def __repr__(self) -> str:
        return f"<OffPolicyValue: {self.describe()}>"

    def _repr_html_(self) -> str:
        head = ["estimator", f"{self.unit} per user", f"{self.confidence:.0%} interval", "ESS"]
        rows = [
            [name.upper(), f"{each.value:.4g}", f"{each.lower:.4g} to {each.upper:.4g}", f"{each.ess:,.0f}"]
            for name, each in self.estimates.items()
        ]
        return html_repr(self.describe(), head, rows, self.warnings)

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Plot the estimates with their intervals, and the effective sample size by step.

        Parameters
        ----------
        path : path, optional
            File to write, ending in .svg, .png or .pdf.
        """
        from departing.offpolicy.plot import draw_off_policy_value
        from departing.plotting.figures import save

        return save(draw_off_policy_value(self), path)
