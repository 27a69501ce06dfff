"""`ab_test`: read the results of an A/B test, compare its arms, and recommend whether to stop."""

from collections.abc import Iterable, Mapping
from math import isfinite, sqrt
from typing import Any

import numpy as np
from scipy import stats

from departing.abtest.readout import ABTest, Arm, ArmComparison
from departing.abtest.results import Results, ResultsSpec, read_results
from departing.abtest.sequence import (
    MIN_USERS,
    ConfidenceSequence,
    confidence_sequence,
    distinct_looks,
    unit_variance,
    users_to_decide,
)
from departing.abtest.welch import holm, lift_interval, welch_interval
from departing.data.spec import MAX_REJECTED, parse_bytes, parse_values
from departing.data.times import check_format
from departing.formatting import format_percent
from departing.model.errors import InputError
from departing.model.names import list_names, suggest
from departing.model.validation import check_confidence, check_float, check_fraction, check_int

PLANNED_USERS = 10_000  # a middling experiment; the sequence is at most a third wider from 0.1 to 100 times as many
MISMATCH = 0.001  # p-value of the sample ratio below which the arms count as mismatched: a usual, cautious threshold
MAX_ACTIVE = 0.01  # share of active users above which a warning appears; a rule of thumb, it changes no result
FAR = 20  # times the present users: a decision beyond is not worth waiting for
CONTROL = "control"


def ab_test(
    results: Any,
    *,
    control: str | None = None,
    arm: str = "arm",
    clicks: str | None = "clicks",
    user: str | None = "user",
    clicked: str | None = "clicked",
    time: str | None = "time",
    departed: str | None = "departed",
    share: float | Mapping[str, float] | None = None,
    confidence: float = 0.95,
    planned_users: int = PLANNED_USERS,
    clicked_values: Iterable[object] | None = None,
    time_format: str | None = None,
    max_rejected: float = MAX_REJECTED,
    table: str | None = None,
    memory_limit: str | int = "1 GB",
) -> ABTest:
    """Read the results of an A/B test: differences with intervals, and whether to stop.

    Parameters
    ----------
    results : path or table
        One row per user with the number of clicks, or one row per event with a flag; any source of `read_log` except
        Spark.
    control : str, optional
        Name of the control arm [default: "control"].
    arm : str
        Column of the arm.
    clicks : str or None
        Column of the clicks of a user. Rows of the same user are added.
    user : str or None
        Column of the user ID; required for one row per event.
    clicked : str or None
        Column that is true if the event is a click, if there is no column of clicks.
    time : str or None
        Column of the time; orders users by arrival, so that the sequence is computed at every time. Without it there
        is one look, at all users.
    departed : str or None
        Column that is true for users who have departed; warns if users are still active.
    share : float or mapping, optional
        Expected share of the users in the treatment arm, or in every arm by name [default: equal shares].
    confidence : float
        Confidence level of intervals and sequence, over all comparisons together.
    planned_users : int
        Users of treatment and control at which the confidence sequence is narrowest; fix it before the experiment,
        for instance as `power(...).sequential_users`.
    clicked_values : list of str, optional
        Values of `clicked` that mean a click.
    time_format : str, optional
        Format of the times, such as "%d/%m/%Y".
    max_rejected : float
        Largest accepted share of rejected rows.
    table : str, optional
        Table of a database file; needed if there are several.
    memory_limit : str or int
        Memory to use, such as "500 MB".

    Returns
    -------
    ABTest

    Raises
    ------
    InputError
        If the source cannot be read, a column is missing, too many rows are rejected, or there are not two arms.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> rng = np.random.default_rng(1)
    >>> arms = np.repeat(["control", "new"], 2000)
    >>> clicks = rng.geometric(np.where(arms == "new", 0.5, 0.6)) - 1
    >>> test = ab_test(pd.DataFrame({"arm": arms, "clicks": clicks}))
    >>> print(test.describe())
    Stop: new is better than control, by 0.209 to 0.456 clicks per user.
    """
    confidence = check_confidence(confidence)
    planned_users = check_int("planned_users", planned_users)
    columns = {"arm": arm, "user": user, "clicks": clicks, "clicked": clicked, "time": time, "departed": departed}
    _check_columns(columns)
    spec = ResultsSpec(
        columns,
        parse_values("clicked_values", clicked_values),
        check_format(time_format),
        check_float("max_rejected", max_rejected, 0.0, 1.0),
    )
    data = read_results(results, table, parse_bytes(memory_limit), spec)
    first = _control(control, data.arms)
    order = [first, *(i for i in range(len(data.arms)) if i != first)]
    arms = tuple(_arm(data, i) for i in order)
    shares = _shares(share, [each.name for each in arms])
    p_ratio = float(stats.chisquare([each.users for each in arms], np.array(shares) * len(data.arm)).pvalue)
    significance = (1 - confidence) / (len(arms) - 1)
    found = [
        _compare(data, order[i], first, arms[i], arms[0], planned_users, significance) for i in range(1, len(arms))
    ]
    adjusted = holm([each["p_value"] for each in found])
    comparisons = tuple(
        _conclude(each | {"p_value": p}, p_ratio < MISMATCH) for each, p in zip(found, adjusted, strict=True)
    )
    notes = list(data.notes)
    if data.time is None:
        notes.append("There is no time column, so the confidence sequence is computed once, at all users.")
    return ABTest(
        arms, comparisons, confidence, p_ratio, _warnings(arms, shares, p_ratio), tuple(notes), data.irregularities
    )


def _check_columns(columns: Mapping[str, str | None]) -> None:
    for each, name in columns.items():
        if not (isinstance(name, str) and name) and not (each != "arm" and name is None):
            raise InputError(f"{each} is {name!r:.80}; expected the name of a column.", each)


def _control(control: str | None, arms: tuple[str, ...]) -> int:
    """Index of the control arm."""
    if control is not None:
        if control not in arms:
            raise InputError(
                f"control is {control!r:.80}, but there is no such arm; {suggest(control, arms)}", "control"
            )
        return arms.index(control)
    named = [i for i, name in enumerate(arms) if name.lower() == CONTROL]
    if len(named) != 1:
        raise InputError(
            f"No arm is named {CONTROL!r}; name the control arm by `control`, one of {list_names(arms)}."
        )
    return named[0]


def _shares(share: float | Mapping[str, float] | None, arms: list[str]) -> list[float]:
    """Expected share of the users in every arm; the control comes first."""
    if share is None:
        return [1 / len(arms)] * len(arms)
    if isinstance(share, Mapping):
        for name in share:
            if name not in arms:
                raise InputError(f"share names the arm {name!r}; {suggest(str(name), arms)}", "share")
        if len(share) < len(arms):
            missing = list_names([name for name in arms if name not in share])
            raise InputError(f"share lacks the arms {missing}; expected a share for every arm.", "share")
        shares = [check_fraction("share", share[name]) for name in arms]
        if abs(sum(shares) - 1) > 1e-6:
            raise InputError(f"share sums to {sum(shares):.6g}; expected 1.", "share")
        return [each / sum(shares) for each in shares]
    if len(arms) > 2:
        raise InputError(
            f"share is {share!r:.40}, but there are {len(arms)} arms; expected a share for every arm by name.",
            "share",
        )
    treated = check_fraction("share", share)
    return [1 - treated, treated]


def _arm(data: Results, i: int) -> Arm:
    clicks = data.clicks[data.arm == i]
    if len(clicks) < 2:
        raise InputError(f"Arm {data.arms[i]!r} has one user; expected at least two users in every arm.")
    active = None if data.active is None else int(data.active[i])
    return Arm(data.arms[i], len(clicks), float(clicks.mean()), float(clicks.var(ddof=1)), active)


def _compare(
    data: Results, i: int, first: int, treatment: Arm, control: Arm, planned_users: int, significance: float
) -> dict[str, Any]:
    """Fields of the comparison of arm `i` with the control, without its verdict."""
    lower, upper, p_value = welch_interval(treatment.moments, control.moments, significance)
    lift_lower, lift_upper = lift_interval(treatment.moments, control.moments, significance)
    chosen = (data.arm == i) | (data.arm == first)
    n = int(chosen.sum())
    looks = np.array([n]) if data.time is None else distinct_looks(data.time[chosen])
    sequence = confidence_sequence(data.clicks[chosen], data.arm[chosen] == i, looks, planned_users, significance)
    difference = treatment.mean - control.mean
    return {
        "treatment": treatment,
        "control": control,
        "difference": difference,
        "lower": lower,
        "upper": upper,
        "p_value": p_value,
        "lift": difference / control.mean if control.mean > 0 else np.nan,
        "lift_lower": lift_lower,
        "lift_upper": lift_upper,
        "sequence": sequence,
    }


def _conclude(fields: dict[str, Any], mismatch: bool) -> ArmComparison:
    """The comparison with its verdict and recommendation."""
    treatment, control, sequence = fields["treatment"], fields["control"], fields["sequence"]
    low, high = sequence.final
    smaller = min(treatment, control, key=lambda arm: arm.users)
    if mismatch:
        verdict = "mismatch"
        text = "Do not decide: the arms do not have the expected sizes. Find the cause first."
    elif smaller.users < MIN_USERS:
        verdict = "too few users"
        text = (
            f"Continue: a decision needs at least {MIN_USERS} users in each arm; {smaller.name} has {smaller.users}."
        )
    elif low > 0 or high < 0:
        verdict = "better" if low > 0 else "worse"
        near, far = sorted((abs(low), abs(high)))
        by = f"by {near:.3g} to {far:.3g} clicks per user"
        text = f"Stop: {treatment.name} is {verdict} than {control.name}, {by}."
    else:
        verdict, text = "undecided", _continue(treatment, control, sequence)
    return ArmComparison(**fields, verdict=verdict, recommendation=text)


def _continue(treatment: Arm, control: Arm, sequence: ConfidenceSequence) -> str:
    """Recommendation if the sequence contains 0."""
    low, high = sequence.final
    n, difference = treatment.users + control.users, treatment.mean - control.mean
    arms = np.array([[arm.variance, arm.users / n] for arm in (control, treatment)])
    unit_error = sqrt(unit_variance(arms[:, 0], arms[:, 1]))
    needed = users_to_decide(difference, unit_error, sequence.planned_users, sequence.significance)
    names = f"{treatment.name} and {control.name}"
    if unit_error == 0 or not isfinite(needed) or needed > FAR * n:
        bounds = f"the difference of {names} is between {low:+.3g} and {high:+.3g} clicks per user"
        return f"No decision is near: {bounds}. Stop if that is close enough to 0, or continue."
    more = max(needed - n, 1)
    rounded = int(float(f"{more:.2g}")) if more >= 100 else int(np.ceil(more))
    condition = f"if the difference stays at {difference:+.3g} clicks per user"
    return f"Continue: about {rounded:,} more users decide between {names} {condition}."


def _warnings(arms: tuple[Arm, ...], shares: list[float], p_ratio: float) -> tuple[str, ...]:
    warnings, total = [], sum(arm.users for arm in arms)
    if p_ratio < MISMATCH:
        sizes = ", ".join(
            f"{arm.name} has {arm.users:,} users ({arm.users / total:.1%}, expected {share:.1%})"
            for arm, share in zip(arms, shares, strict=True)
        )
        warnings.append(f"Sample-ratio mismatch (p = {p_ratio:.2g}): {sizes}. Assignment or logging differs by arm.")
    active = sum(arm.active or 0 for arm in arms)
    if active > MAX_ACTIVE * total:
        warnings.append(
            f"{active:,} of {total:,} users ({format_percent(active / total)}) have not departed, so their clicks "
            "are incomplete; wait, or count the clicks of all users within the same period after their arrival."
        )
    return tuple(warnings)
