"""Limits of off-policy estimates: few departures, extrapolation, categories without data, and overlap."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from departing.data.log import Log
from departing.data.quality import OTHER_CATEGORY
from departing.evaluation.continuation import value_within
from departing.evaluation.traversal import first_level, traverse
from departing.fitting.fit import Fit
from departing.formatting import first_few, format_count, format_significant
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.instance import DEPART, Instance
from departing.offpolicy.direct_method import MAX_NODES, evaluation_tolerance
from departing.offpolicy.log_segments import LogSegments
from departing.policy.protocol import Policy
from departing.policy.schedule import Schedule

if TYPE_CHECKING:
    from departing.offpolicy.importance_sampling import ImportanceReturns
    from departing.offpolicy.value import OffPolicyValue

# Departures below which departure probabilities, and with them the value, rest on the pseudocount; the usual minimum
# for a normal approximation.
MIN_DEPARTURES = 10
MAX_TAIL_SHARE = 0.1  # share of the clicks after the horizon, or after the longest history, before a warning
WEIGHT_STDERRS = 4.0  # between 1 and the mean weight of the first step, before a warning: weights are skewed
MISFIT_STDERRS = 3.0  # between DM and DR, before a warning: a 0.3 % two-sided test
MIN_VALUE = 1e-300  # smaller ones are rounding errors of 0
MIN_ESS = 10.0  # of a step that a segment takes from the log; the usual minimum for a normal approximation
MIN_LEFT_OUT = 0.01  # share of events of other categories, about the bias of PDIS a step
ROUNDING = 1e-9  # of a mean of weights
FIRST_STEPS = 6  # whose categories are compared with those of the log, if the policy depends on the counts


@dataclass(frozen=True)
class Extrapolation:
    """Part of a value that lies beyond the longest history of the log, under the model.

    Attributes
    ----------
    steps : int
        Number of steps of the longest history.
    clicks : float
        Expected clicks or reward per user within these steps.
    share : float
        Share of the value beyond them.
    """

    steps: int
    clicks: float
    share: float


def check_departures(histories: Histories) -> None:
    """Raise if too few users departed for any estimate of clicks until departure.

    If users reached the horizon of the log, the value of a visit is known without departures.
    """
    if histories.steps.max() == histories.horizon:
        return
    departed = int(histories.confirmed_totals[:, DEPART:].sum())
    if departed < MIN_DEPARTURES:
        few = histories.users < 2 * MIN_DEPARTURES
        longer = "a longer log, or shorten `inactive_after` if departures are inferred from inactivity"
        raise InputError(
            f"{format_count(departed, 'user')} of {histories.users:,} departed, so the value of a policy, its clicks "
            f"until departure, is unknown; expected at least {MIN_DEPARTURES}. Collect "
            f"{'a log of more users' if few else longer}."
        )


def extrapolation(
    fit: Fit, policy: Policy | LogSegments, value: float, histories: Histories, max_nodes: int = MAX_NODES
) -> Extrapolation:
    """Compare the value within the longest history with the whole value under the model.

    Of a policy by segment it is that of the users of the segments of the log.
    """
    segments = policy if isinstance(policy, LogSegments) else LogSegments.of(histories, policy)
    steps, clicks = int(histories.confirmed.steps.max()), 0.0
    for g, share in enumerate(segments.group_share().tolist()):
        instance = segments.of_group(fit.instance, g)
        by_type = value_within(instance, segments.policies[g], steps, evaluation_tolerance(instance), max_nodes)
        clicks += share * float(instance.normalised_prior @ by_type)
    return Extrapolation(steps, clicks, min(max(1 - clicks / value, 0.0), 1.0) if value > MIN_VALUE else 0.0)


def model_warnings(histories: Histories, value: "OffPolicyValue", segments: LogSegments) -> Iterator[str]:
    """Sentences about categories without data, and about extrapolation, with the warnings of the fit."""
    unseen = rare_categories(histories, value, 0.0, segments)
    if unseen:
        yield (
            f"The policy recommends {first_few(unseen, 3)}, which the log never shows: the estimates rest on guesses "
            "there. Show such categories to some users at random first, or leave them out of the policy."
        )
    beyond = value.extrapolation
    if beyond.share > MAX_TAIL_SHARE:
        yield (
            f"{beyond.share:.0%} of the value is extrapolated by the model beyond the longest history of the log, "
            f"{format_count(beyond.steps, 'step')}; within these steps it is {format_significant(beyond.clicks)} "
            f"{value.unit} per user."
        )
        yield from value.fit.warnings


def rare_categories(
    histories: Histories, value: "OffPolicyValue", share: float, segments: LogSegments | None = None
) -> list[str]:
    """Names, in quotes, of categories that the policy recommends and at most a `share` of the log's events show."""
    shown = histories.totals.sum(axis=1)
    policies = (value.policy,) if segments is None else segments.policies
    categories = sorted({a for policy in policies for a in _categories(value.fit.instance, policy)})
    most = share * shown.sum()
    return [repr(value.fit.instance.categories[a]) for a in categories if shown[a] <= most]


def _categories(instance: Instance, policy: Policy) -> list[int]:
    """Categories that the policy recommends: all of a schedule, else those of the first steps."""
    if isinstance(policy, Schedule):
        return [int(a) for a in np.unique(policy.phase_categories)]
    categories: set[int] = set()
    for level in traverse(first_level(instance, policy, np.ones(instance.n_types))):
        if level.step == FIRST_STEPS:
            break
        categories.update(level.categories.tolist())
    return sorted(categories)


def _first_weight(returns: "ImportanceReturns") -> tuple[float, float]:
    """Mean weight of all users at the first step, 1 if the propensities are right, and its standard error.

    If all users agree with the policy, the weights are all alike. So their variance is at least the one expected if
    the mean weight is 1: the mean square, estimated by that of the policy's own users, minus 1.
    """
    n, total, squares = returns.n, float(returns.weight_sums[0]), float(returns.squared_weight_sums[0])
    mean = total / n
    return mean, (max(squares / n - mean**2, squares / total - 1, 0.0) / n) ** 0.5


def first_weights_differ(returns: "ImportanceReturns") -> bool:
    """True if the weights of the first step do not average 1, so that PDIS and DR miss part of the users."""
    mean, stderr = _first_weight(returns)
    return abs(mean - 1) > WEIGHT_STDERRS * stderr + ROUNDING


def segment_overlap_warnings(by_segment: Mapping[str, "OffPolicyValue"]) -> Iterator[str]:
    """Sentence that names the segments with poor overlap, and those of them with the direct method alone."""
    poor = [repr(name) for name, part in by_segment.items() if part.dr is None or part.tail_share > MAX_TAIL_SHARE]
    direct = [repr(name) for name, part in by_segment.items() if part.dr is None]
    if poor:
        alone = f", in {first_few(direct, 3)} on it alone (DM)" if direct else ""
        yield (
            f"Poor overlap by segment: in {first_few(poor, 3)} too few users agree with the policy, so the values "
            f"rest on the model{alone}. Collect more users there with random recommendations, or test the "
            "policy on some of them."
        )


def left_out_share(log: Log) -> float:
    """Share of the events that were rejected because `categories` does not list theirs."""
    others = sum(each.count for each in log.report.irregularities if each.kind == OTHER_CATEGORY)
    return others / max(log.report.events, 1)


def overlap_warnings(
    log: Log, firsts: Sequence[str], returns: "ImportanceReturns", value: "OffPolicyValue"
) -> Iterator[str]:
    """Sentences about propensities, overlap and misfit; `firsts` are the categories that the policy shows first."""
    first = " or ".join(map(repr, firsts))
    if not returns.n:
        yield (
            "The log has no propensities, so only the direct method applies; it is optimistic for a policy planned "
            "on the same log. Log the probability of each recommendation and name its column as `propensity` "
            "(--propensity COLUMN)."
        )
        return
    if returns.missing:
        yield (
            f"{returns.missing:,} of {log.users:,} users lack a propensity and are left out of PDIS and DR; "
            "these are unbiased if such users behave like the others."
        )
    if (share := left_out_share(log)) >= MIN_LEFT_OUT:
        yield (
            f"{share:.1%} of the events show categories that were left out (`categories`). Unless these are misspelt "
            "names, the propensities of the other steps count them: PDIS is then too large, by about "
            f"{1 / (1 - share) - 1:.1%} a step, and DR too unless the model is right. Read the log with all its "
            "categories, and plan with `allowed`."
        )
    if value.dr is None:
        yield (
            f"No overlap: the policy starts with {first}, which the log hardly ever shows first, so only the "
            "direct method applies. Show it first to some users at random, with its propensity."
        )
        return
    if first_weights_differ(returns):
        mean, _ = _first_weight(returns)
        yield (
            f"The importance weights of the first step average {mean:.2f} instead of 1, so PDIS is biased: part of "
            f"the log never shows {first} first, or propensities are wrong. Of the log of an experiment, evaluate "
            "the rows of one arm."
        )
    if value.tail_share > MAX_TAIL_SHARE:
        yield (
            f"Poor overlap: after {value.horizon} steps too few users agree with the policy, but "
            f"{value.tail_share:.0%} of its {value.unit} come later and are taken from the model. Collect more users "
            "with random recommendations, or test the policy on some users."
        )
    if abs(value.dr.value - value.dm.value) > MISFIT_STDERRS * max(value.dr.stderr, 1e-12):
        yield (
            f"DM ({value.dm.value:.4g}) and DR ({value.dr.value:.4g}) differ by more than {MISFIT_STDERRS:.0f} "
            "standard errors: the model does not fit this log. Rely on DR and see fit.check()."
        )
