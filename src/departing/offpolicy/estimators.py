"""`off_policy_value`: value of a policy from a log that another policy produced."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from departing.data.log import Log
from departing.data.read_source import read_source
from departing.evaluation.continuation import ContinuationValues, continuation_values
from departing.fitting.fit import Fit
from departing.fitting.fit import fit as fit_histories
from departing.model.blas import one_blas_thread
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.instance import Floats, Instance
from departing.model.names import list_names
from departing.model.progress import Progress
from departing.model.validation import check_confidence, check_resamples, check_seed
from departing.offpolicy.direct_method import MAX_NODES, BootstrapEnsemble, evaluation_tolerance, reward_errors
from departing.offpolicy.importance_sampling import (
    ClickRewards,
    ImportanceReturns,
    Moments,
    log_returns,
    observation_probabilities,
)
from departing.offpolicy.limits import (
    MIN_ESS,
    check_departures,
    extrapolation,
    first_weights_differ,
    model_warnings,
    overlap_warnings,
    segment_overlap_warnings,
)
from departing.offpolicy.log_segments import LogSegments, segment_warnings
from departing.offpolicy.value import Estimate, OffPolicyValue, Overlap
from departing.policy.library import GREEDY, PolicyLike, to_policy
from departing.policy.protocol import Policy, recommended

# The horizon trades bias against variance: beyond it a single user would carry more than this share of the estimate.
# `scripts/bench offpolicy` measures the coverage of the intervals at this value.
MAX_WEIGHT_SHARE = 0.01  # of all users, by the weighted mean weight of a step
REWARD_DRAWS = 200  # of mean rewards: their standard errors are accurate to 5 %
HORIZON_REACHED = (
    "No user of the log has more than {0} recommendations. If the site ends visits there, read the log with "
    "`horizon`={0}, so that users who reached it do not count as departed."
)
HALF_LIFE = (
    "The fit has a half-life of {}: DM is the value for users at the end of the log, whereas PDIS and DR average "
    "over all users of the log."
)
NEGLIGIBLE_TAIL = 1e-3  # share of the clicks after the horizon below which its variance is ignored


@one_blas_thread
def off_policy_value(
    log: Any,
    policy: PolicyLike,
    *,
    fit: Fit | None = None,
    types: int | Iterable[int] = range(1, 6),
    confidence: float = 0.95,
    bootstrap: int = 200,
    seed: int = 0,
    horizon: int | None = None,
    progress: Progress | None = None,
    **read_options: Any,
) -> OffPolicyValue:
    """Estimate the value of `policy` from a log: expected clicks per user, had the policy chosen the categories.

    The direct method needs histories only. PDIS and DR need a log with the propensity of every step and rely less on
    the model. Censored users do not count as departed; censoring is assumed to be independent of behaviour given
    the number of steps.

    If the log has rewards, the value is the expected reward per user: the direct method uses the mean reward of a
    click in each category, PDIS and DR the logged reward of every click. If the log has segments, users get the
    policy of their segment, and the value is that of the users of the log; without segments in the log, the policy
    for unknown segments.

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
    horizon : int, optional
        Largest number of recommendations to a user, at most that of the log: later steps of the log do not count.
        [default: that of the fitted instance, else that of the log, as a rule none]
    progress : callable, optional
        Called with the number of finished resamples and `bootstrap`.
    **read_options
        Arguments of `read_log` for a log that is not read yet.

    Returns
    -------
    OffPolicyValue
        Estimates `dm`, `pdis` and `dr`, in clicks or the unit of the reward per user.

    Raises
    ------
    InputError
        If an argument is invalid, policy, fit and log have different categories, policy and log have segments of the
        same features in another order, or fewer than 10 users departed and none reached a horizon.

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
    known = () if fit.instance.segments is None else fit.instance.segments.names
    if known and log.segments is not None and not set(known) & set(log.segments):
        raise InputError(
            f"fit has the segments {list_names(known)}, but the log has {list_names(log.segments)}; "
            "expected a fit of a log with the same features as `segment`."
        )
    if log.reward is not None and "reward" not in fit.instance.extensions:
        fit = replace(fit, instance=fit.instance.replace(reward=log.reward, unit=log.unit))
    rewards = log.rewards if isinstance(log, Log) else None
    if rewards is not None and fit.rewards is None and np.array_equal(fit.instance.reward, rewards.mean):
        fit = replace(fit, rewards=rewards)
    reached = isinstance(log, Log) and log.horizon is None and horizon == log.steps.max()
    horizon = _check_horizon(horizon, fit, log)
    if horizon != fit.instance.horizon:
        fit = replace(fit, instance=fit.instance.replace(horizon=horizon))
    policy = _resolve(log, policy, fit.instance)
    notes = segment_warnings(log, policy)
    if fit.half_life is not None:
        notes.append(HALF_LIFE.format(fit.half_life))
    replicates = fit.bootstrap(bootstrap, "nonparametric", seed, progress)
    segments = LogSegments.of(log, policy)
    ensemble = BootstrapEnsemble.from_instances([fit.instance, *replicates], policy, segments)
    of_clicks, errors = None, np.zeros(len(segments.names) + 1)
    if "reward" in fit.instance.extensions:
        of_clicks = _click_rewards(log, fit)
        if fit.rewards is not None:
            errors = reward_errors(fit.instance, segments, fit.draw_rewards(REWARD_DRAWS, seed).std(axis=0))
    estimation = _Estimation(log, fit, policy, confidence, z, segments, log.users, errors)
    value = estimation.direct(ensemble)
    if reached:
        notes.append(HORIZON_REACHED.format(horizon))
    value = replace(value, warnings=(*ensemble.warnings, *notes, *model_warnings(log, value, segments)))
    parts = {i: estimation.of(i).direct(ensemble.only(i)) for i in _named(segments)}
    if not isinstance(log, Log):
        note = "Plain histories have no propensities; only the direct method applies."
        direct = {str(segments.names[i]): part for i, part in parts.items()}
        return replace(value, warnings=(*value.warnings, note), by_segment=direct)
    observed = observation_probabilities(log.confirmed)[: fit.instance.horizon]
    levels = [
        continuation_values(segments.of_group(fit.instance, g), own, len(observed), estimation.tolerance, MAX_NODES)
        for g, own in enumerate(segments.policies)
    ]
    continuations = [
        replace(levels[g], instance=fit.instance.in_segment(name))
        for name, g in zip(segments.names, segments.group.tolist(), strict=True)
    ]
    returns = log_returns(log, continuations, observed, segments, of_clicks)
    value = estimation.with_returns(value, ensemble, returns, levels)
    for i in parts:
        own, users = levels[segments.group[i]], returns.parts[i] if returns.parts else returns
        least_ess = MIN_ESS if returns.parts else 0.0
        parts[i] = estimation.of(i).with_returns(parts[i], ensemble.only(i), users, [own], least_ess)
        if returns.parts and parts[i].dr is not None and first_weights_differ(users):
            parts[i] = replace(parts[i], pdis=None, dr=None)
    by_segment = {str(segments.names[i]): each for i, each in parts.items()}
    names = [(log.categories or ())[_first_category(log, each)] for each in segments.policies]
    warnings = (*value.warnings, *overlap_warnings(log, list(dict.fromkeys(names)), returns, value))
    if returns.parts and returns.n:
        warnings = (*warnings, *segment_overlap_warnings(by_segment))
    return replace(value, warnings=warnings, by_segment=by_segment)


def _check_horizon(horizon: int | None, fit: Fit, log: Histories) -> int | None:
    """Horizon of the value: the given one, else that of the fit, else that of the log, which none may exceed."""
    chosen = next((each for each in (horizon, fit.instance.horizon) if each is not None), log.horizon)
    if chosen is not None and log.horizon is not None and chosen > log.horizon:
        raise InputError(
            f"horizon is {chosen!r:.80}, but the log was read with `horizon`={log.horizon}: no user had more "
            f"recommendations; expected at most {log.horizon}.",
            "horizon",
        )
    return chosen


def _named(segments: LogSegments) -> list[int]:
    """Positions of the segments that have names; none for a log without segments."""
    return [i for i, name in enumerate(segments.names) if name is not None]


def _click_rewards(log: Histories, fit: Fit) -> ClickRewards:
    """Rewards of clicks: the logged ones if the model has means of such rewards, otherwise those of the model."""
    mean, logged = fit.instance.reward, isinstance(log, Log) and log.rewards is not None
    estimated = fit.rewards is not None and np.allclose(fit.rewards.mean, mean)
    return ClickRewards(mean, logged and estimated)


@dataclass(frozen=True)
class _Estimation:
    """What the estimates of all users and of those of each segment share.

    `reward_errors` are those that mean rewards cause: of the segments, and of these users last.
    """

    log: Histories
    fit: Fit
    policy: Policy
    confidence: float
    z: float
    segments: LogSegments
    users: int
    reward_errors: Floats

    def of(self, segment: int) -> "_Estimation":
        """The same for one segment."""
        users, errors = int(self.segments.all_users[segment]), self.reward_errors[[segment]]
        return replace(self, segments=self.segments.only(segment), users=users, reward_errors=errors)

    @property
    def tolerance(self) -> float:
        """Accuracy of values under the model."""
        return evaluation_tolerance(self.fit.instance)

    def direct(self, ensemble: BootstrapEnsemble) -> OffPolicyValue:
        """Value by the direct method."""
        dm = _direct_method(ensemble, self.users, self.z, float(self.reward_errors[-1]))
        beyond = extrapolation(self.fit, self.segments, dm.value, self.log)
        return OffPolicyValue(
            dm, None, None, self.confidence, self.users, 0, 1.0, beyond, (), (), self.fit, self.policy
        )

    def with_returns(
        self,
        value: OffPolicyValue,
        ensemble: BootstrapEnsemble,
        returns: ImportanceReturns,
        levels: Sequence[ContinuationValues],
        least_ess: float = 0.0,
    ) -> OffPolicyValue:
        """Value with PDIS and DR, as far as policy and log overlap: before the first step with less than an ESS."""
        overlap = _overlap(returns, levels, self.segments.group_share())
        horizon = returns.horizon(max(MAX_WEIGHT_SHARE * returns.n, 1.0), least_ess)
        tail_share = max(1 - sum(step.click_share for step in overlap[:horizon]), 0.0)
        value = replace(value, horizon=horizon, tail_share=tail_share, overlap=overlap)
        if not horizon or returns.n <= 1:
            return value
        tail_matters = tail_share > NEGLIGIBLE_TAIL
        added, least = (ensemble.tail_variance(horizon), value.dm.stderr**2) if tail_matters else (0.0, 0.0)
        ess = overlap[horizon - 1].ess
        pdis, dr = (
            _mean_estimate(each, added, least, self.z, ess) for each in (returns.pdis(horizon), returns.dr(horizon))
        )
        return replace(value, pdis=pdis, dr=dr)


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


def _direct_method(ensemble: BootstrapEnsemble, users: int, z: float, reward_error: float = 0.0) -> Estimate:
    """Value under the fitted instance, with an interval that is normal in the logarithm of the value.

    Where the bounds of the value are loose, the interval contains them. `reward_error` is the standard error that the
    mean rewards cause.
    """
    value, replicates = float(ensemble.values[0]), ensemble.values[1:]
    deviation, stderr = np.log(replicates).std(ddof=1), float(replicates.std(ddof=1))
    if reward_error:
        deviation, stderr = np.hypot(deviation, reward_error / value), float(np.hypot(stderr, reward_error))
    factor = float(np.exp(z * deviation))
    lower, upper = ensemble.bounds.lower / factor, ensemble.bounds.upper * factor
    return Estimate(value, stderr, lower, upper, float(users))


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


def _overlap(returns: ImportanceReturns, levels: Sequence[ContinuationValues], shares: Floats) -> tuple[Overlap, ...]:
    """Overlap at every step that some user reaches, given continuation values and share of each group of users."""
    gained = np.sum([share * each.gained for share, each in zip(shares, levels, strict=True)], axis=0)
    if gained.sum() > 0:
        gained = gained / gained.sum()
    return tuple(
        Overlap(t, int(n), float(returns.ess[t]), float(gained[t])) for t, n in enumerate(returns.users) if n
    )
