"""`SegmentEstimates`: the priors of segments with their uncertainty."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from departing.fitting.concentration import SegmentOptimum
from departing.fitting.estimation import shift_logit
from departing.formatting import format_count
from departing.model.counts import Integers
from departing.model.frames import to_frame
from departing.model.instance import Floats
from departing.model.segments import Segments
from departing.model.validation import check_confidence


@dataclass(frozen=True, eq=False)
class SegmentEstimates:
    """Estimated priors over types of the segments of a log.

    Attributes
    ----------
    segments : Segments
        Names, shares and priors, as in the instance.
    users : int array [S]
        Number of users of each segment.
    concentration : float
        Users of the common prior that are added to every segment, estimated from the data: small if the segments
        differ much, infinite if they differ no more than by chance.
    logit_stderr : array [S, M]
        Robust standard errors of the logits of the priors.
    row_segment : int array [N]
        Segment of each row of the likelihood of the fit, -1 if it is unknown.
    optimum : SegmentOptimum or None
        Maximum of the likelihood with segments; None if all have the common prior.
    robust_covariance : array [d, d] or None
        Robust covariance matrix of the logits of the responses and the log-ratios of the common prior.
    """

    segments: Segments
    users: Integers
    concentration: float
    logit_stderr: Floats
    row_segment: Integers
    optimum: SegmentOptimum | None = None
    robust_covariance: Floats | None = None

    @property
    def stderr(self) -> Floats:
        """Robust standard errors of the priors, `[S, M]`."""
        prior = self.segments.prior
        return np.asarray(self.logit_stderr * prior * (1 - prior))

    def intervals(self, confidence: float = 0.95) -> tuple[Floats, Floats]:
        """Lower and upper ends `[S, M]` of confidence intervals of the priors, normal in the logits.

        Parameters
        ----------
        confidence : float
            Coverage of each interval.
        """
        z = NormalDist().inv_cdf(0.5 + check_confidence(confidence) / 2)
        lower, upper = (shift_logit(self.segments.prior, end * self.logit_stderr) for end in (-z, z))
        return lower, upper

    def describe(self) -> str:
        """Describe the number of segments and the shrinkage in one sentence."""
        names = format_count(len(self.segments.names), "segment")
        columns = f" of {' and '.join(self.segments.columns)}" if self.segments.columns else ""
        if np.isinf(self.concentration):
            return f"{names}{columns}: no evidence of different priors, so all have the common one."
        added = format_count(max(round(self.concentration), 1), "user")
        return f"{names}{columns}: priors are shrunk towards the common prior with the weight of {added}."

    def to_frame(self, confidence: float = 0.95) -> Any:
        """Return the priors as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each segment and type: segment, users, share, type (its number), prior, lower, upper.
        """
        s, m = self.segments.prior.shape
        lower, upper = self.intervals(confidence)
        return to_frame(
            {
                "segment": np.repeat(self.segments.names, m),
                "users": np.repeat(self.users, m),
                "share": np.repeat(self.segments.share, m),
                "type": np.tile(np.arange(m), s),
                "prior": self.segments.prior.reshape(-1),
                "lower": lower.reshape(-1),
                "upper": upper.reshape(-1),
            }
        )
