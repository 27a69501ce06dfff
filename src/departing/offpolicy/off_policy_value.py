"""`off_policy_value`: what a policy would have earned with the users of a log."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Self

import numpy as np

from departing.data.log import Log
from departing.evaluation.continuation import ContinuationValues, continuation_values, first_steps
from departing.evaluation.evaluate import evaluate
from departing.fitting.fit import Fit
from departing.fitting.fit import fit as fit_histories
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.instance import Floats, Instance
from departing.model.progress import Progress
from departing.model.validation import check_float, check_int, check_seed
from departing.offpolicy.importance_sampling import Weighted, watched, weigh
from departing.policy.protocol import Policy, recommended, resolve_policy

TOLERANCE = 1e-5  # of values under fitted instances, as a share of the best a known user brings
NODES = 300_000  # counts that are followed for it at most
TOGETHER = 32  # types of bootstrapped instances that are evaluated at once
STANDS_FOR = 0.01  # share of all users that one user may stand for, on average at a step
BEYOND = 0.1  # share of the clicks that may be the model's without a warning
NOTHING = 1e-3  # share of the clicks that does not matter
LOOSE = 0.005  # share of a value within which it must be known
RARE = 1e-5  # chance of counts that do not matter for the error of what comes later
APART = 3.0  # standard errors between model and log from which the model is doubted


@dataclass(frozen=True)
class Estimate:
    """A value with its standard error and the ends of its confidence interval."""

    value: float
    stderr: float
    lower: float
    upper: float

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.lower:.4g} to {self.upper:.4g})"


@dataclass(frozen=True)
class Overlap:
    """One step: how many users were shown what the policy shows up to here, and how many their weights are worth.

    `share` is the part of the policy's clicks that come at this step, under the model.
    """

    step: int
    following: int
    effective: float
    share: float


@dataclass(frozen=True, eq=False)
class OffPolicyValue:
    """What a policy would have earned: expected clicks of one user, by up to three estimates.

    `model` is the value under the instance fitted to the log. Where propensities are logged there are two more, that
    take the first `steps` of users from the log and what comes after them from the model: `weighted` (per-decision
    importance weighting) and `robust` (doubly robust), in which the model also takes out what is mere luck. Within
    these steps both are right whether the model is or not. `beyond` is the share of the clicks that come later,
    `effective` how many users the weights at the last of these steps are worth, `overlap` the same step by step, and
    `warnings` are sentences about what to be careful with.
    """

    model: Estimate
    weighted: Estimate | None
    robust: Estimate | None
    confidence: float
    users: int
    steps: int
    beyond: float
    effective: float
    overlap: tuple[Overlap, ...] = field(repr=False)
    warnings: tuple[str, ...]
    fit: Fit = field(repr=False)
    policy: Policy = field(repr=False)

    @property
    def best(self) -> Estimate:
        """The doubly robust estimate, or that of the model where there is none."""
        return self.robust or self.model

    def __str__(self) -> str:
        named = {"model": self.model, "weighted": self.weighted, "doubly robust": self.robust}
        lines = [f"{name:14}{estimate}" for name, estimate in named.items() if estimate is not None]
        return "\n".join([*lines, *self.warnings])


def off_policy_value(
    log: Histories,
    policy: Policy,
    *,
    fit: Fit | None = None,
    types: int | Iterable[int] = range(1, 6),
    confidence: float = 0.95,
    times: int = 200,
    seed: int = 0,
    progress: Progress | None = None,
) -> OffPolicyValue:
    """What `policy` would have earned with the users of a log: expected clicks of one user.

    The answer of the model needs histories only: the value under `fit`, or under a fit with one of so many `types`,
    with an interval from so many `times` of resampling users. For a log with propensities there are two more, which
    trust the model less. Users who were still here when we stopped looking are no departures; it is assumed that how
    many steps we look at users does not depend on what they do.

    >>> import tempfile, departing as dp
    >>> site = dp.Instance([0.7, 0.3], [[0.7, 0.2], [0.3, 0.6]], depart=0.7)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dp.sample_log(site, users=5000, seed=1, days=900).save(f"{folder}/events.csv")
    ...     log = dp.read_log(f"{folder}/events.csv", inactive_after="20 days")
    ...     found = off_policy_value(log, dp.Walk([0], then=1), types=2, times=50)
    >>> print(found)
    model         1.143 (1.09 to 1.198)
    weighted      1.253 (1.117 to 1.44)
    doubly robust 1.175 (1.067 to 1.304)
    >>> round(dp.evaluate(site, dp.Walk([0], then=1)).value, 3)
    1.171
    """
    if not isinstance(log, Histories):
        raise InputError(f"log is {log!r:.60}; expected a Log, such as read_log gives, or Histories.")
    policy = _resolve(log, policy)
    z = NormalDist().inv_cdf(0.5 + check_float("confidence", confidence, 0.0, 1 - 1e-9) / 2)
    times, seed = check_int("times", times, 2), check_seed(seed)
    if fit is None:
        fit = fit_histories(log, types, seed=seed)
    elif not isinstance(fit, Fit):
        raise InputError(f"fit is {fit!r:.60}; expected what dp.fit gives.")
    elif fit.instance.n_categories != log.counts.shape[1]:
        raise InputError(
            f"fit is of {fit.instance.n_categories} categories, but the log has {log.counts.shape[1]}; "
            "expected a fit of the same categories."
        )
    drawn = _Drawn.of([fit.instance, *fit.bootstrap(times, "resample", seed, progress)], policy)
    model = drawn.estimate(z)
    if not isinstance(log, Log):
        note = "These are histories without single steps, so there is the answer of the model only."
        notes = (*drawn.warnings, note)
        return OffPolicyValue(model, None, None, confidence, log.users, 0, 1.0, 0.0, (), notes, fit, policy)
    seen = watched(log.confirmed)
    to_go = continuation_values(fit.instance, policy, len(seen), _tolerance(fit.instance), NODES)
    sums = weigh(log.episodes(), to_go, seen, len(seen))
    overlap = _overlap(sums, to_go)
    steps = sums.steps(max(STANDS_FOR * len(sums.clicks), 1.0))
    beyond = max(1 - sum(each.share for each in overlap[:steps]), 0.0)
    weighted, robust, effective = None, None, 0.0
    if steps and len(sums.clicks) > 1:
        effective = overlap[steps - 1].effective
        if steps < len(overlap):
            sums = weigh(log.episodes(), to_go, seen, steps)
        more, least = (drawn.spread_beyond(steps), model.stderr**2) if beyond > NOTHING else (0.0, 0.0)
        weighted, robust = _estimate(sums.clicks, more, least, z), _estimate(sums.robust, more, least, z)
    warnings = drawn.warnings + _warnings(log, policy, sums, steps, beyond, model, robust)
    return OffPolicyValue(
        model, weighted, robust, confidence, log.users, steps, beyond, effective, overlap, warnings, fit, policy
    )


def _resolve(log: Histories, policy: Policy) -> Policy:
    """The policy with category indices of the log; raise if it is for other categories."""
    resolve_policy(policy)
    try:
        policy = resolve_policy(policy, log.categories or ())
    except InputError as error:
        raise InputError(f"{error} Read the log with categories=[...] in the order of the policy.") from error
    recommended(policy, np.zeros((1, log.counts.shape[1], 4), np.int64))
    return policy


@dataclass(frozen=True)
class _Drawn:
    """A fitted instance and others of the same shape that are as likely, evaluated several at a time.

    Each is so many more types of one large instance: `crowds`, with the shares of types in `priors[n, M]` and the
    values of a policy in `by_type[n, M]`.
    """

    policy: Policy
    crowds: list[Instance]
    priors: Floats
    by_type: Floats
    loose: float  # how far apart bounds of a value are at most, as a share of it

    @classmethod
    def of(cls, instances: list[Instance], policy: Policy) -> Self:
        """Evaluate a policy under instances."""
        crowds, found, loose = [], [], 0.0
        together = max(TOGETHER // instances[0].n_types, 1)
        for first in range(0, len(instances), together):
            some = instances[first : first + together]
            prior = np.concatenate([each.prior for each in some])
            fields = [
                np.concatenate([getattr(each, name) for each in some], axis=1)
                for name in ("click", "depart", "depart_on_click")
            ]
            crowds.append(Instance(prior / prior.sum(), fields[0], fields[1], fields[2]))
            worth = evaluate(crowds[-1], policy, _tolerance(crowds[-1]), NODES)
            found += [each.value for each in worth.by_type]
            loose = max(loose, worth.gap / max(worth.upper, 1e-300))
        priors = np.array([each.normalised_prior for each in instances])
        return cls(policy, crowds, priors, np.array(found).reshape(priors.shape), loose)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence if the policy could not be followed far enough."""
        if self.loose <= LOOSE:
            return ()
        return (
            f"Users stay too long to follow the policy to the end: the model's values are known to within "
            f"{self.loose:.1%} only.",
        )

    @property
    def values(self) -> Floats:
        """The value under every instance."""
        return np.asarray((self.priors * self.by_type).sum(axis=1))

    def estimate(self, z: float) -> Estimate:
        """The value under the first instance, with a normal interval for its logarithm, spread as the others are."""
        value, others = float(self.values[0]), self.values[1:]
        factor = float(np.exp(z * np.log(others).std(ddof=1)))
        return Estimate(value, float(others.std(ddof=1)), value / factor, value * factor)

    def spread_beyond(self, steps: int) -> float:
        """What the errors of the model after so many steps add to the variance of an estimate that trusts it there.

        Let T be what comes later, if it is known who is still here, and V the whole value. With a right model the
        estimate and the fitted model have the covariance of V - T with the model, so errors of T add
        var T + 2 cov(V - T, T), here over the bootstrap. Nothing does better than the model: below zero is possible.
        """
        parts = [first_steps(crowd, self.policy, steps, RARE) for crowd in self.crowds]
        earned, here = (np.concatenate(part).reshape(self.priors.shape) for part in zip(*parts, strict=True))
        reach = (self.priors * here).sum(axis=1)
        later = reach[0] * (self.priors * (self.by_type - earned)).sum(axis=1) / reach
        return float(np.cov((2 * self.values - later)[1:], later[1:])[0, 1])


def _tolerance(instance: Instance) -> float:
    return TOLERANCE * float(instance.prior @ instance.fixed_values.max(axis=0))


def _estimate(summands: Floats, more: float, least: float, z: float) -> Estimate:
    """The mean of the summands; `more` is added to its variance, of which there is at least so much.

    Summands with weights are skewed: means that are too small come with errors that are too small. Johnson's
    correction moves the interval up for it.
    """
    n, mean = len(summands), float(summands.mean())
    apart = summands - mean
    own = float(apart @ apart) / (n - 1) / n
    stderr = max(own + more, least) ** 0.5
    skew = float((apart**3).mean()) / (n * own) ** 1.5 / n**0.5 if own > 0 else 0.0
    shift = float(np.clip(skew * (1 + 2 * z**2) / 6, -z / 2, z / 2)) * own**0.5
    return Estimate(mean, stderr, mean + shift - z * stderr, mean + shift + z * stderr)


def _overlap(sums: Weighted, to_go: ContinuationValues) -> tuple[Overlap, ...]:
    earned = np.array([level.earned for level in to_go.levels])
    share = np.zeros(max(len(sums.following), len(earned)))
    share[: len(earned)] = earned / earned.sum() if earned.sum() > 0 else 0.0
    return tuple(
        Overlap(t, int(n), float(sums.effective[t]), float(share[t])) for t, n in enumerate(sums.following) if n
    )


def _warnings(
    log: Log, policy: Policy, sums: Weighted, steps: int, beyond: float, model: Estimate, robust: Estimate | None
) -> tuple[str, ...]:
    """Sentences about what the log cannot tell."""
    found: list[str] = []
    if not len(sums.clicks):
        return (
            *found,
            "The log has no propensities, so there is the word of the model only, which for a policy planned on the "
            "same log is optimistic; where categories were drawn, log the chance of each as a column propensity.",
        )
    if sums.unknown:
        found.append(
            f"{sums.unknown:,} of {log.users:,} users miss a propensity and are left out of the weighted estimates, "
            "which are right if those users are like the others."
        )
    if robust is None:
        first = int(recommended(policy, np.zeros((1, log.counts.shape[1], 4), np.int64))[0])
        found.append(
            f"No overlap: the policy begins with {(log.categories or ())[first]!r}, which the log shows to hardly "
            "anybody at first, so there is the answer of the model only."
        )
        return tuple(found)
    if beyond > BEYOND:
        found.append(
            f"Poor overlap: after {steps} steps too few users were shown what the policy shows, but {beyond:.0%} of "
            "its clicks come later; for these the model is trusted."
        )
    if abs(robust.value - model.value) > APART * max(robust.stderr, 1e-12):
        found.append(
            f"The model says {model.value:.4g}, the log itself {robust.value:.4g}, more than {APART:.0f} standard "
            "errors apart: trust the log, and look where the model fails."
        )
    return tuple(found)
