"""`off_policy_value`: value of a policy from a log that another policy produced."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from departing.data.log import Log
from departing.data.read_source import read_source
from departing.evaluation.continuation import ContinuationValues, continuation_values
from departing.fitting.fit import Fit
from departing.fitting.fit import fit as fit_histories
from departing.html_tables import html_repr
from departing.model.errors import InputError
from departing.model.frames import to_frame
from departing.model.histories import Histories
from departing.model.instance import Instance
from departing.model.progress import Progress
from departing.model.validation import check_confidence, check_resamples, check_seed
from departing.offpolicy.direct_method import MAX_NODES, BootstrapEnsemble, evaluation_tolerance
from departing.offpolicy.importance_sampling import ImportanceReturns, Moments, log_returns, observation_probabilities
from departing.offpolicy.limits import (
    MAX_TAIL_SHARE,
    Extrapolation,
    check_departures,
    extrapolation,
    model_warnings,
    overlap_warnings,
)
from departing.policy.library import GREEDY, PolicyLike, to_policy
from departing.policy.protocol import Policy, recommended

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The horizon trades bias against variance: beyond it a single user would carry more than this share of the estimate.
# `scripts/bench offpolicy` measures the coverage of the intervals at this value.
MAX_WEIGHT_SHARE = 0.01  # of all users, by the weighted mean weight of a step
NEGLIGIBLE_TAIL = 1e-3  # share of the clicks after the horizon below which its variance is ignored


@dataclass(frozen=True)
class Estimate:
    """Estimated clicks per user.

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
        Share of the policy's clicks at this step, under the model.
    """

    step: int
    users: int
    ess: float
    click_share: float


@dataclass(frozen=True, eq=False)
class OffPolicyValue:
    """Off-policy value of a policy: expected clicks per user, by up to three estimators.

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
        Share of the policy's clicks after the horizon, under the model.
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

    @property
    def best(self) -> Estimate:
        """The doubly robust estimate, or that of the direct method if there is none."""
        return self.dr or self.dm

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
        return f"{self.best.value:.4g} expected clicks per user ({name}, {interval}){note}."

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
        head = ["estimator", "clicks per user", f"{self.confidence:.0%} interval", "ESS"]
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


def off_policy_value(
    log: Any,
    policy: PolicyLike,
    *,
    fit: Fit | None = None,
    types: int | Iterable[int] = range(1, 6),
    confidence: float = 0.95,
    bootstrap: int = 200,
    seed: int = 0,
    progress: Progress | None = None,
    **read_options: Any,
) -> OffPolicyValue:
    """Estimate the value of `policy` from a log: expected clicks per user, had the policy chosen the categories.

    The direct method needs histories only. PDIS and DR need a log with the propensity of every step and rely less on
    the model. Censored users do not count as departed; censoring is assumed to be independent of behaviour given
    the number of steps.

    Parameters
    ----------
    log : Log, data frame, path or Histories
        A `Log` or a source that `read_log` reads; plain histories give the direct method alone.
    policy : Policy, Plan or str
        Policy to evaluate, for the categories of the log; or its short form such as
        "fixed:CATEGORY" or "greedy", the greedy policy of the fitted model.
    fit : Fit, optional
        Model; by default fitted to `log`.
    types : int or iterable of int
        Number of types of that fit, or candidates; ignored if `fit` is given.
    confidence : float
        Coverage of the confidence intervals.
    bootstrap : int
        Number of nonparametric bootstrap resamples for the error of the model, at least 20.
    seed : int
        Seed of the random numbers.
    progress : callable, optional
        Called with the number of finished resamples and `bootstrap`.
    **read_options
        Arguments of `read_log` for a log that is not read yet.

    Returns
    -------
    OffPolicyValue
        Estimates `dm`, `pdis` and `dr`, in clicks per user.

    Raises
    ------
    InputError
        If an argument is invalid, policy, fit and log have different categories, or fewer than 10 users departed.

    Examples
    --------
    >>> import tempfile, departing as dp
    >>> site = dp.Instance([0.7, 0.3], [[0.7, 0.2], [0.3, 0.6]], depart=0.7)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dp.sample_log(site, users=5000, seed=1, days=900).save(f"{folder}/events.csv")
    ...     log = dp.read_log(f"{folder}/events.csv", inactive_after="20 days")
    ...     value = off_policy_value(log, dp.Walk([0], then=1), types=2, bootstrap=50)
    >>> print(value)
    DM    1.143 (1.09 to 1.198), ESS 5,000
    PDIS  1.253 (1.117 to 1.44), ESS 27
    DR    1.175 (1.067 to 1.304), ESS 27
    >>> round(dp.evaluate(site, dp.Walk([0], then=1)).value, 3)
    1.171
    """
    log = read_source(log, read_options, off_policy_value)
    if policy != GREEDY:
        policy = _resolve(log, policy)
    z = NormalDist().inv_cdf(0.5 + check_confidence(confidence) / 2)
    bootstrap, seed = check_resamples(bootstrap), check_seed(seed)
    check_departures(log)
    if fit is None:
        fit = fit_histories(log, types, seed=seed)
    elif not isinstance(fit, Fit):
        raise InputError(f"fit is {fit!r:.60}; expected a Fit, such as dp.fit returns.")
    elif fit.instance.n_categories != log.counts.shape[1]:
        raise InputError(
            f"fit has {fit.instance.n_categories} categories, but the log has {log.counts.shape[1]}; "
            "expected a fit of the same categories."
        )
    elif log.categories is not None and fit.instance.categories != log.categories:
        raise InputError(
            f"fit has the categories {', '.join(fit.instance.categories)}, but the log has "
            f"{', '.join(log.categories)}; expected a fit of the same categories in the same order."
        )
    policy = _resolve(log, policy, fit.instance)
    replicates = fit.bootstrap(bootstrap, "nonparametric", seed, progress)
    ensemble = BootstrapEnsemble.from_instances([fit.instance, *replicates], policy)
    dm = _direct_method(ensemble, log.users, z)
    beyond = extrapolation(fit, policy, dm.value, log)
    value = OffPolicyValue(dm, None, None, confidence, log.users, 0, 1.0, beyond, (), ensemble.warnings, fit, policy)
    value = replace(value, warnings=(*value.warnings, *model_warnings(log, value)))
    if not isinstance(log, Log):
        note = "Plain histories have no propensities; only the direct method applies."
        return replace(value, warnings=(*value.warnings, note))
    observed = observation_probabilities(log.confirmed)
    tolerance = evaluation_tolerance(fit.instance)
    continuation = continuation_values(fit.instance, policy, len(observed), tolerance, MAX_NODES)
    returns = log_returns(log, continuation, observed)
    overlap = _overlap(returns, continuation)
    horizon = returns.horizon(max(MAX_WEIGHT_SHARE * returns.n, 1.0))
    tail_share = max(1 - sum(step.click_share for step in overlap[:horizon]), 0.0)
    value = replace(value, horizon=horizon, tail_share=tail_share, overlap=overlap)
    if horizon and returns.n > 1:
        tail_matters = tail_share > NEGLIGIBLE_TAIL
        added, least = (ensemble.tail_variance(horizon), dm.stderr**2) if tail_matters else (0.0, 0.0)
        ess = overlap[horizon - 1].ess
        pdis, dr = (
            _mean_estimate(each, added, least, z, ess) for each in (returns.pdis(horizon), returns.dr(horizon))
        )
        value = replace(value, pdis=pdis, dr=dr)
    first = (log.categories or ())[_first_category(log, policy)]
    return replace(value, warnings=(*value.warnings, *overlap_warnings(log, first, returns, value)))


def _resolve(log: Histories, given: PolicyLike, instance: Instance | None = None) -> Policy:
    """Policy with category indices of the log; raise if it is for other categories."""
    if not isinstance(given, str):
        given = to_policy(given, ())
    policy = to_policy(given, log.categories or (), instance)
    _first_category(log, policy)
    return policy


def _first_category(log: Histories, policy: Policy) -> int:
    """Category that the policy recommends to a new user."""
    return int(recommended(policy, np.zeros((1, log.counts.shape[1], 4), np.int64))[0])


def _direct_method(ensemble: BootstrapEnsemble, users: int, z: float) -> Estimate:
    """Value under the fitted instance, with an interval that is normal in the logarithm of the value.

    Where the bounds of the value are loose, the interval contains them.
    """
    value, replicates = float(ensemble.values[0]), ensemble.values[1:]
    factor = float(np.exp(z * np.log(replicates).std(ddof=1)))
    lower, upper = ensemble.bounds.lower / factor, ensemble.bounds.upper * factor
    return Estimate(value, float(replicates.std(ddof=1)), lower, upper, float(users))


def _mean_estimate(returns: Moments, added: float, least: float, z: float, ess: float) -> Estimate:
    """Mean of the returns; `added` is added to its variance, which is at least `least`.

    Weighted returns are skewed: means that are too small come with standard errors that are too small. Johnson's
    correction shifts the interval accordingly.
    """
    n, mean = returns.n, returns.mean
    variance = returns.second / (n - 1)
    stderr = max(variance + added, least) ** 0.5
    skewness = returns.third / (n * variance) ** 1.5 / n**0.5 if variance > 0 else 0.0
    shift = float(np.clip(skewness * (1 + 2 * z**2) / 6, -z / 2, z / 2)) * variance**0.5
    return Estimate(mean, stderr, mean + shift - z * stderr, mean + shift + z * stderr, ess)


def _overlap(returns: ImportanceReturns, continuation: ContinuationValues) -> tuple[Overlap, ...]:
    """Overlap at every step that some user reaches."""
    clicks = np.array([level.gained for level in continuation.levels])
    share = np.zeros(max(len(returns.users), len(clicks)))
    share[: len(clicks)] = clicks / clicks.sum() if clicks.sum() > 0 else 0.0
    return tuple(Overlap(t, int(n), float(returns.ess[t]), float(share[t])) for t, n in enumerate(returns.users) if n)
