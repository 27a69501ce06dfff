"""`power`: users that an A/B test of two policies needs, from the exact distributions of their clicks."""

import os
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Any

from departing.abtest.returns import Returns, mixture_returns, policy_returns
from departing.abtest.sample_size import SampleSize, power_of, split_users
from departing.abtest.sequence import MIN_USERS
from departing.decision.decision import Decision
from departing.fitting.fit import Fit
from departing.formatting import format_clicks_per_user
from departing.model.errors import InputError
from departing.model.instance import CLICKS, Instance
from departing.model.logged_policy import LoggedPolicy
from departing.model.validation import MAX_USERS, check_fraction, check_instance, check_int
from departing.policy.library import PolicyLike, describe, policy_for

LOG = "log"
# Relative difference of two values below which they count as equal: that of the computed distributions is smaller.
NO_DIFFERENCE = 1e-5
# Relative difference of the clicks of the log and of its shown frequencies above which a note appears; a rule of
# thumb, it changes no result.
LOG_NOTE = 0.1


def power(
    source: Decision | Fit | Instance | str | os.PathLike[str],
    policy: PolicyLike | None = None,
    against: PolicyLike = LOG,
    *,
    power: float = 0.8,
    significance: float = 0.05,
    share: float = 0.5,
    users: int | None = None,
    max_nodes: int | None = None,
    clicks_only: bool = False,
) -> SampleSize:
    """Compute the users that an A/B test of two policies needs, from the exact distributions of their clicks.

    Parameters
    ----------
    source : Decision, Fit, Instance or path
        Model of the users: a decision of `plan(fit)`, a fit, an instance, or a file of `Fit.save`.
    policy : Policy, Plan, Decision or str, optional
        Policy of the treatment arm, also in short form such as "greedy" or "fixed:news" [default: the policy of the
        decision].
    against : "log", or like `policy`
        Policy of the control arm. "log" is the policy of the log that the fit was made of: a random category at every
        step, with the frequencies at which the log showed each category.
    power : float
        Probability with which the test is to find the difference.
    significance : float
        Significance level of the two-sided test.
    share : float
        Share of the users in the treatment arm.
    users : int, optional
        Users of both arms together, if their number is given: computes the power and the minimum detectable effect.
    max_nodes : int, optional
        Largest number of nodes (distinct counts) to expand for each policy, as in `evaluate`.
    clicks_only : bool
        Compare clicks although the instance has rewards. The distribution of rewards is not computed.

    Returns
    -------
    SampleSize
        Users per arm, power, and minimum detectable effect.

    Raises
    ------
    InputError
        If the policies have equal values, the source has no log for `against`, the instance has rewards and
        `clicks_only` is false, or an argument is invalid.

    Examples
    --------
    >>> blog = Instance([0.4, 0.6], [[0.5, 0.28], [0.4, 0.39]], categories=["economics", "sports"])
    >>> size = power(blog, "fixed:sports", against="fixed:economics")
    >>> size.users_per_arm
    62605
    >>> print(size.describe())
    62,605 users per arm detect a difference of 0.017 clicks per user (2.7%) with power 80%.
    """
    requested, significance = check_fraction("power", power), check_fraction("significance", significance)
    share = check_fraction("share", share)
    if requested <= significance:
        raise InputError(f"power is {requested:g}; expected more than the significance, {significance:g}.", "power")
    users = None if users is None else check_int("users", users, _smallest(share), MAX_USERS)
    instance, log = _model(source)
    check_instance(instance, ("horizon", "segments", "reward"))
    notes: list[str] = []
    users_of = instance  # in clicks
    if "reward" in instance.extensions:
        if not clicks_only:
            raise InputError(
                f"The clicks of the instance have rewards in {instance.unit}, but the sample size is that of a test "
                "of clicks per user; set `clicks_only` to compare clicks."
            )
        users_of = instance.replace(reward=None, unit=CLICKS)
        notes.append("Clicks are compared; rewards are ignored.")
    treatment = _arm(instance, users_of, _chosen(policy, source), max_nodes)
    if isinstance(against, str) and against == LOG:
        if log is None:
            raise InputError(_missing_log(source), "against")
        control = mixture_returns("policy of the log", users_of, log.shown)
        notes += _log_notes(log, control)
    else:
        control = _arm(instance, users_of, against, max_nodes)
    if abs(treatment.mean - control.mean) <= NO_DIFFERENCE * max(treatment.mean, control.mean):
        raise InputError(
            f"{treatment.name} and {control.name} both have {format_clicks_per_user(control.mean)} expected clicks "
            "per user. There is no difference, so no number of users suffices; compare other policies."
        )
    if users is None:
        users = _users(treatment, control, treatment.mean - control.mean, share, significance, requested)
        if users > MAX_USERS:
            raise InputError(
                f"The difference of {treatment.mean - control.mean:.3g} clicks per user needs more than "
                f"{MAX_USERS:g} users; compare other policies."
            )
    reached = power_of(treatment, control, treatment.mean - control.mean, users, share, significance)
    if min(split_users(users, share)) < MIN_USERS:
        notes.append(
            f"An arm has fewer than {MIN_USERS} users, where the approximation of the test is rough; "
            f"use at least {ceil(MIN_USERS / min(share, 1 - share)):,} users in total."
        )
    size = SampleSize(treatment, control, users, share, reached, requested, significance, tuple(notes))
    uncertain = None if users_of is not instance else _uncertainty(size, source, policy)
    return size if uncertain is None else replace(size, notes=(*notes, uncertain))


def _chosen(policy: PolicyLike | None, source: Any) -> PolicyLike:
    """The policy of the treatment arm."""
    if policy is not None:
        return policy
    if not isinstance(source, Decision):
        raise InputError("policy is missing; expected a policy, or a Decision as `source`.", "policy")
    return source


def _uncertainty(size: SampleSize, source: Any, policy: PolicyLike | None) -> str | None:
    """Sentence about the interval of the difference, if `source` is a Decision that compares both policies."""
    if not isinstance(source, Decision) or not any(policy is each for each in (None, source, source.policy)):
        return None
    gain = next((each for each in source.gains if each.name == size.control.name), None)
    if gain is None:
        return None
    interval = f"{gain.lower:.3g} to {gain.upper:.3g} clicks per user (95% interval)"
    text = f"The log leaves the difference uncertain: {interval}"
    if gain.lower <= NO_DIFFERENCE * size.control.mean:
        return f"{text}; there may be no difference."
    users = _users(size.treatment, size.control, gain.lower, size.share, size.significance, size.requested_power)
    return f"{text}; its lower end needs {max(split_users(users, size.share)):,} users per arm."


def _users(
    treatment: Returns, control: Returns, difference: float, share: float, significance: float, requested: float
) -> int:
    """Smallest number of users of both arms that finds the difference with the requested power."""
    each = 2 if share == 0.5 else 1  # equal arms grow by one user each

    def suffices(n: int) -> bool:
        return power_of(treatment, control, difference, each * n, share, significance) >= requested

    return each * _least(suffices, ceil(_smallest(share) / each))


def _model(source: Any) -> tuple[Instance, LoggedPolicy | None]:
    """Instance of a source, and the policy of its log if it has one."""
    if isinstance(source, Decision):
        source = source.fit
    if isinstance(source, Fit):
        return source.instance, LoggedPolicy.from_histories(source.histories)
    if isinstance(source, Instance):
        return source, None
    if isinstance(source, str | os.PathLike):
        instance = Instance.load(source)
        return instance, LoggedPolicy.load(source, instance.n_categories)
    raise InputError(
        f"source is {source!r:.80}; expected a Fit, a Decision, an Instance, or the path of a saved fit."
    )


def _missing_log(source: Any) -> str:
    if isinstance(source, Instance):
        return (
            "against is 'log', but an instance has no log; expected a fit as `source`, or a policy as `against`, "
            "such as 'fixed:C' or 'greedy'."
        )
    return (
        f"against is 'log', but {str(source)!r} has no table 'log' with the shown frequencies; write the file again "
        "with departing fit LOG -o FILE, or give a policy as `against`, such as 'fixed:C' or 'greedy'."
    )


def _log_notes(log: LoggedPolicy, control: Returns) -> list[str]:
    notes = ["The policy of the log is taken as a random category at every step, with the logged frequencies."]
    if log.clicks_per_user is not None and abs(control.mean - log.clicks_per_user) > LOG_NOTE * control.mean:
        notes.append(
            f"Users of the log clicked {format_clicks_per_user(log.clicks_per_user)} times on average, but "
            f"{format_clicks_per_user(control.mean)} are expected of random categories: the log adapts to its users, "
            "or the model does not fit. Give the policy of the log as `against`."
        )
    return notes


def _arm(instance: Instance, users_of: Instance, policy: PolicyLike, max_nodes: int | None) -> Returns:
    """Clicks of a policy for an instance, of the users of another one."""
    resolved = policy_for(instance, policy)
    max_nodes = None if max_nodes is None else check_int("max_nodes", max_nodes)
    return policy_returns(describe(resolved, instance), users_of, resolved, max_nodes)


def _smallest(share: float) -> int:
    """Smallest number of users with two in each arm."""
    return _least(lambda n: min(split_users(n, share)) >= 2, 4)


def _least(holds: Callable[[int], bool], start: int) -> int:
    """Smallest integer from `start` for which `holds`, which is false below some number and true above it."""
    step, high = 1, start
    while not holds(high) and high <= 4 * MAX_USERS:
        step, high = 2 * step, high + 2 * step
    low = start
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
