"""`Fit`: an instance estimated from histories, with its uncertainty."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from departing.data.log import Episodes, Log
from departing.data.rewards import RewardStats
from departing.fitting.concentration import SegmentOptimum
from departing.fitting.estimation import SelectionCriteria, shift_logit
from departing.fitting.forecast_tests import check_forecasts
from departing.fitting.goodness_of_fit import FitCheck
from departing.fitting.held_out import arrivals, compact, cross_fit, thin
from departing.fitting.likelihood import MixtureLikelihood, Parameters
from departing.fitting.refit import refit, refit_rows, with_parameters, with_segments
from departing.fitting.resampling import SamplingDesign, resample_users
from departing.fitting.rewards import draw_rewards
from departing.fitting.segment_estimates import SegmentEstimates
from departing.fitting.segment_test import SegmentTest, segment_test
from departing.fitting.share_trend import share_trend, type_series
from departing.fitting.standard_errors import robust_covariance, transform_estimates
from departing.fitting.type_description import describe_types
from departing.fitting.type_evidence import describe_gain, describe_hidden, hidden_types, sabic_gain
from departing.formatting import format_count, format_percent
from departing.html_tables import html_repr
from departing.model import random_streams
from departing.model.blas import one_blas_thread
from departing.model.errors import InputError
from departing.model.files import write_document
from departing.model.frames import to_frame
from departing.model.histories import Histories
from departing.model.instance import Floats, Instance
from departing.model.logged_policy import LoggedPolicy
from departing.model.progress import Progress
from departing.model.validation import MAX_TYPES, check_choice, check_confidence, check_int, check_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOOTSTRAP_METHODS = ("parametric", "nonparametric")
CHECK_STREAM = 2  # of random numbers, beside those of fits
CHECK_CHUNK = 50_000  # users whose steps are held in memory at once by `Fit.check`
# Users per parameter from which halves are fitted separately: at 60, p-values of users of the model were as uniform
# as those of one fit to all.
HELD_OUT_USERS = 60


@dataclass(frozen=True, eq=False)
class Fit:
    """Instance estimated from histories.

    Attributes
    ----------
    instance : Instance
        Estimate, types in order of decreasing share.
    criteria : tuple of SelectionCriteria
        One entry for each number of types that was tried.
    warnings : tuple of str
        Sentences about assumptions and parameters that are not identifiable.
    identified : Parameters
        Booleans in the shape of the parameters: False where the histories do not determine the estimate.
    histories : Histories
        Data of the fit.
    likelihood : MixtureLikelihood
        Likelihood of these data.
    logits : array [d]
        Estimate as logits.
    covariance : array [d, d]
        Inverse of the observed information at `logits`.
    pseudocount : float
        Successes and failures added to every response of every type.
    segments : SegmentEstimates or None
        Priors of the segments with their uncertainty; None if the histories have no segments.
    log : Histories
        Source of the histories, which have weights if there is a half-life.
    half_life : str, float, timedelta or None
        Age at which a user counts half; None if all users count alike.
    rewards : RewardStats or None
        Mean reward of a click in each category with its spread; None without rewards.
    """

    instance: Instance
    criteria: tuple[SelectionCriteria, ...]
    warnings: tuple[str, ...]
    identified: Parameters
    histories: Histories
    likelihood: MixtureLikelihood
    logits: Floats
    covariance: Floats
    pseudocount: float
    segments: SegmentEstimates | None = None
    log: Histories | None = None
    half_life: str | float | timedelta | None = None
    rewards: RewardStats | None = None
    _bootstraps: dict[tuple[int, str, int], tuple[Instance, list[Instance]]] = field(default_factory=dict, repr=False)

    @property
    def _in_segments(self) -> SegmentOptimum | None:
        """Maximum of the likelihood with a prior for each segment; None if all users have the same prior."""
        return None if self.segments is None else self.segments.optimum

    @cached_property
    def log_likelihood(self) -> float:
        """Log-likelihood of the histories, in nats."""
        if self._in_segments is not None:
            return self._in_segments.log_likelihood
        return self.likelihood.log_likelihood(self.logits)

    @property
    def _evidence(self) -> float:
        """Log-likelihood, integrated over the priors of segments."""
        return self.log_likelihood if self._in_segments is None else self._in_segments.evidence

    @property
    def effective_users(self) -> float:
        """Number of users of equal weight that are worth as much: the number of users, without a half-life."""
        return self.histories.effective_users

    def draw_rewards(self, n: int, seed: int = 0) -> Floats:
        """Draw mean rewards `[n, K]` with the uncertainty of the log, for intervals of values.

        Parameters
        ----------
        n : int
            Number of draws.
        seed : int
            Seed of the random numbers.
        """
        if self.rewards is None:
            return np.tile(self.instance.reward, (n, 1))
        rng = np.random.default_rng([check_seed(seed), random_streams.FIT_BOOTSTRAP])
        return draw_rewards(self.rewards, check_int("n", n), rng)

    @cached_property
    def robust_covariance(self) -> Floats:
        """Covariance matrix of the logits by the sandwich estimator, `[d, d]`: valid if users differ within types."""
        if self.segments is not None and self.segments.robust_covariance is not None:
            return self.segments.robust_covariance
        return robust_covariance(self.likelihood, self.logits, self.covariance, self.pseudocount)

    @cached_property
    def stderr(self) -> Parameters:
        """Robust standard errors (sandwich estimator); 0 for probabilities that were not estimated."""
        return self._transformed(lambda prob, logit_stderr: logit_stderr * prob * (1 - prob), 0.0, 0.0)

    def intervals(self, confidence: float = 0.95) -> tuple[Parameters, Parameters]:
        """Lower and upper ends of robust confidence intervals, normal in the logits and so within 0 and 1.

        Parameters
        ----------
        confidence : float
            Coverage of each interval.

        Returns
        -------
        lower, upper : Parameters
            Arrays in the shapes of the parameters; both ends equal the value of a probability not estimated.
        """
        z = NormalDist().inv_cdf(0.5 + check_confidence(confidence) / 2)
        lower, upper = (
            self._transformed(lambda prob, stderr, end=end: shift_logit(prob, end * stderr), 1.0, 0.0)
            for end in (-z, z)
        )
        return lower, upper

    def _transformed(self, function: Callable[..., Floats], depart: float, depart_on_click: float) -> Parameters:
        covariance = self.robust_covariance
        return transform_estimates(self.likelihood, self.logits, covariance, function, depart, depart_on_click)

    @one_blas_thread
    def bootstrap(
        self, resamples: int = 200, method: str = "parametric", seed: int = 0, progress: Progress | None = None
    ) -> list[Instance]:
        """Refit bootstrap samples of the histories. Results are kept: a second call with equal arguments is fast.

        Parameters
        ----------
        resamples : int
            Number of bootstrap samples.
        method : {"parametric", "nonparametric"}
            "parametric" simulates users of the fitted instance, with the observed category frequencies and
            censoring. "nonparametric" draws users with replacement, which is valid for a misspecified model too.
        seed : int
            Seed of the random numbers.
        progress : callable, optional
            Called with the number of finished resamples and `resamples`.

        Returns
        -------
        list of Instance
            One estimate per sample, its types matched to those of this fit.
        """
        check_choice("method", method, BOOTSTRAP_METHODS)
        check_seed(seed)
        key = check_int("resamples", resamples), method, seed
        instance, instances = self._bootstraps.get(key, (None, []))
        if instance != self.instance:
            instances = self._bootstrap(*key, progress)
            self._bootstraps[key] = self.instance, instances
        return list(instances)

    def _bootstrap(self, resamples: int, method: str, seed: int, progress: Progress | None) -> list[Instance]:
        rng = np.random.default_rng([seed, random_streams.FIT_BOOTSTRAP])
        known = self.histories.confirmed
        design, by_segment = SamplingDesign.from_histories(known), np.zeros(0, np.int64)
        worth = known.effective_users / known.users  # of a user, if they have weights
        if known.segment is not None:
            unknown = known.users - known.segment_users.sum()
            by_segment = np.rint(np.append(known.segment_users, unknown) * worth).astype(np.int64)
        instances = []
        for done in range(resamples):
            if method == "nonparametric":
                sample = resample_users(known, rng)
            elif self.instance.segments is not None:
                sample = design.sample_segments(self.instance, by_segment, rng)
            else:
                sample = replace(design, users=round(known.users * worth)).sample(self.instance, rng)
            instances.append(refit(self, sample))
            if progress is not None:
                progress(done + 1, resamples)
        return instances

    def resampled(self, users: Floats) -> Instance:
        """Instance fitted to other numbers of users of the rows of `likelihood`, starting at this fit.

        With segments, the concentration stays that of this fit.

        Parameters
        ----------
        users : array [N]
            Number of users, or sum of their weights, of each row.
        """
        return refit_rows(self, users)

    @one_blas_thread
    def check(self, users: int = 200_000, held_out: bool | None = None) -> FitCheck:
        """Test the goodness of fit on the steps of a random sample of users, which `read_log` keeps.

        If the model does not fit in a way that more types may explain, one type more is tried.

        Parameters
        ----------
        users : int
            Number of users to check, at most those of the sample: 200,000, with about 2 million events.
        held_out : bool, optional
            Forecast each half of the users by a fit to the other half. By default, if there are enough users for the
            number of parameters.

        Returns
        -------
        FitCheck
            Observed against forecast responses.

        Raises
        ------
        InputError
            If the fit is not of a log from `read_log`: plain histories do not keep the order of steps.
        """
        log = self.log
        if not isinstance(log, Log):
            raise InputError("Histories do not keep the order of steps; fit a log from read_log to check it.")
        episodes = [compact(chunk) for chunk in log.sample_episodes(users, CHECK_CHUNK)]
        if self.half_life is not None:
            rng = np.random.default_rng([0, random_streams.FIT, CHECK_STREAM])
            relative = log.half_life_fraction(self.half_life)
            episodes = [thin(chunk, relative, rng) for chunk in episodes]
        tied = log.report.tied
        check = replace(self._check(episodes, held_out), tied=tied)
        more = self.instance.n_types + 1
        if check.types_may_suffice and more <= min(len(self.histories.confirmed), MAX_TYPES):
            from departing.fitting.fit import fit  # which needs this module

            larger = fit(self.histories, more, pseudocount=self.pseudocount)
            if larger._check(episodes, held_out).fits:
                return replace(check, more_types=more, drift=None)
        return check

    def _check(self, episodes: list[Episodes], held_out: bool | None) -> FitCheck:
        """Check with the present number of types."""
        users = sum(1 + int(np.count_nonzero(np.diff(chunk.user))) for chunk in episodes if len(chunk))
        if held_out is None:
            held_out = users >= HELD_OUT_USERS * self.likelihood.n_parameters
        horizon = self.histories.horizon
        halves, instances = arrivals(self.likelihood, episodes, horizon), [self.instance]
        logits = [self.logits] * 2
        covariance, optimum = self.covariance, self._in_segments
        priors: list[Floats | None] = [None if optimum is None else optimum.prior] * 2
        if held_out and all(len(half.arrivals) for half in halves):
            covariance = covariance * (self.effective_users / users)  # of a fit to the users that are checked
            logits, priors = cross_fit(halves, self.logits, self.pseudocount, optimum)
            instances = []
            for own, prior in zip(logits, priors, strict=True):
                parameters, segments = self.likelihood.from_logits(own), self.instance.segments
                if prior is None or segments is None:
                    instances.append(with_parameters(self.instance, parameters))
                else:
                    instances.append(with_segments(self.instance, parameters, prior, segments.share))
        groups = [
            (half.likelihood, half.arrivals, own, half.priors(prior, self.instance), half.segment)
            for half, own, prior in zip(halves, logits, priors, strict=True)
        ]
        return check_forecasts(
            instances,
            episodes,
            covariance=covariance,
            parameters=self.likelihood.parameter_numbers,
            users=users,
            share_trend=share_trend(self.instance, (group[:4] for group in groups), covariance),
            types=type_series(self.instance, groups),
            date=format_percent if not isinstance(self.log, Log) else self.log.date,
            horizon=horizon,
        )

    def describe(self) -> str:
        """Describe the fit in one sentence."""
        shares = ", ".join(f"{share:.0%}" for share in self.instance.prior)
        types, users = format_count(self.instance.n_types, "type"), format_count(self.histories.users, "user")
        return f"{types} of users ({shares}), estimated from {users}."

    def describe_types(self) -> list[str]:
        """Describe every type in one line, by the probabilities that the histories determine."""
        return describe_types(self.instance, self.stderr)

    @cached_property
    def segment_test(self) -> SegmentTest | None:
        """Test whether segments are informative about types, and which columns are; None without several segments."""
        return segment_test(self)

    @cached_property
    def one_type(self) -> bool:
        """True if one type describes the users as well, by the adjusted BIC: planning has nothing to gain."""
        return sabic_gain(self.likelihood, self._evidence) <= 0

    @cached_property
    def hidden_types(self) -> int | None:
        """Larger number of types that is likely, though there are too few users for it; None if there is none."""
        return hidden_types(self.criteria, self.instance.n_types)

    def describe_evidence(self) -> str:
        """Describe whether one type of users suffices."""
        if self.hidden_types is not None and self.one_type:
            return describe_hidden(self.instance.n_types, self.hidden_types)
        return describe_gain(self.instance.n_types, sabic_gain(self.likelihood, self._evidence))

    def summary(self) -> str:
        """Overview in several lines: types, criteria for the number of types, warnings.

        Examples
        --------
        >>> from departing.fitting.fit import fit
        >>> from departing.simulation.sample_log import sample_log
        >>> site = Instance([0.7, 0.3], [[0.9, 0.2], [0.3, 0.8]], 0.3, categories=["sports", "economics"])
        >>> print(fit(sample_log(site, users=20000, seed=1).histories, types=[1, 2]).summary())
        2 types of users (70%, 30%), estimated from 20,000 users.
          70% of users: love sports, leave after economics
          30% of users: love economics, leave after sports
        types  parameters    log-likelihood    adjusted BIC    held-out
            1           4        -129,216.0       258,459.0    -6.39571
         *  2           9        -114,734.7       229,529.8    -5.74087
        """
        lines = [self.describe(), *(f"  {line}" for line in self.describe_types())]
        lines.append(f"types  parameters  {'log-likelihood':>16}  {'adjusted BIC':>14}  {'held-out':>10}")
        for row in self.criteria:
            mark = "*" if row.types == self.instance.n_types else " "
            values = f"{row.log_likelihood:16,.1f}  {row.sabic:14,.1f}  {row.held_out:10.5f}"
            lines.append(f" {mark} {row.types:2}  {row.parameters:10}  {values}")
        if self.segments is not None:
            lines.append(self.segments.describe())
        if self.segment_test is not None:
            lines.append(self.segment_test.summary())
        return "\n".join([*lines, *(f"Warning: {warning}" for warning in self.warnings)])

    def plot(self, path: str | os.PathLike[str] | None = None, *, check: FitCheck | None = None) -> "Figure":
        """Plot click and departure probabilities by category and type.

        Parameters
        ----------
        path : path, optional
            File to write, ending in .svg, .png or .pdf.
        check : FitCheck, optional
            Result of `check()`; adds the survival curve, observed and expected.
        """
        from departing.fitting.plot import draw_fit
        from departing.plotting.figures import save

        return save(draw_fit(self, check), path)

    def plot_over_time(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        buckets: int | float | str | timedelta = 24,
        check: FitCheck | None = None,
    ) -> "Figure":
        """Plot click and departure rates of each category and the shares of segments over the time of the log.

        Parameters
        ----------
        path : path, optional
            File to write, ending in .svg, .png or .pdf.
        buckets : int, float, str or timedelta
            Number of periods, or the length of each, as of `Log.over_time`.
        check : FitCheck, optional
            Result of `check()`; marks the start of a drift, with its 95% interval.
        """
        from departing.fitting.plot import draw_rates_over_time
        from departing.plotting.figures import save

        if not isinstance(self.log, Log):
            raise InputError("Histories have no times; fit a log from read_log to plot it over time.")
        return save(draw_rates_over_time(self.log, buckets, check), path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the instance, and how often the log showed each category, to a TOML or JSON file.

        `Instance.load` reads the file; `departing power` uses both parts.
        """
        log = LoggedPolicy.from_histories(self.histories)
        write_document(path, "instance", self.instance.to_dict() | {"log": log.to_dict()})

    def to_frame(self, confidence: float = 0.95) -> Any:
        """Return the estimates as a data frame of pandas, or of polars if pandas is not installed.

        Parameters
        ----------
        confidence : float
            Coverage of the intervals.

        Returns
        -------
        DataFrame
            One row for each type and category: type, share, category, click, depart and depart_on_click, each
            probability with the ends of its interval in columns such as click_lower and click_upper.
        """
        ends = dict(zip(("lower", "upper"), self.intervals(confidence), strict=True))
        columns: dict[str, Any] = {}
        for name, values in self.instance.columns().items():
            columns[name] = values
            for end, parameters in ends.items():
                if name == "share":
                    columns[f"share_{end}"] = np.repeat(parameters.prior, self.instance.n_categories)
                elif name in ("click", "depart", "depart_on_click"):
                    columns[f"{name}_{end}"] = getattr(parameters, name).T.reshape(-1)
        return to_frame(columns)

    __str__ = summary

    def _repr_html_(self) -> str:
        head, rows = self.instance.table(max_categories=4)
        return html_repr(self.describe(), head, rows, [*self.describe_types(), *self.warnings])

    def __repr__(self) -> str:
        shares = ", ".join(f"{share:.0%}" for share in self.instance.prior)
        types = format_count(self.instance.n_types, "type")
        categories = format_count(self.instance.n_categories, "category", "categories")
        return f"<Fit of {self.histories.users} users: {types} ({shares}), {categories}>"
