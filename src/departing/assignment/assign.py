"""`assign`: the most likely type of every user of a log, with the next recommendation."""

import os
from contextlib import ExitStack
from typing import Any

import numpy as np

from departing.assignment.assignments import Assignments, table_file
from departing.assignment.histories import RELATIVE_GAP, assign_histories
from departing.data.log import Log
from departing.data.read_source import read_source
from departing.data.sources import is_distributed
from departing.formatting import format_count
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.files import check_suffix, check_writable
from departing.model.instance import Instance
from departing.model.names import default_names, list_names
from departing.model.tables import TABLE_SUFFIXES
from departing.planning.plan import plan
from departing.policy.library import PolicyLike, policy_for

PLANNING_SECONDS = 60.0


def assign(
    log: Any,
    fit: Any,
    policy: PolicyLike | None = None,
    output: str | os.PathLike[str] | None = None,
    **read_options: Any,
) -> Assignments:
    """Assign every user of a log to a type, and compute the next recommendation.

    The posterior, the recommendation and the expected remaining clicks, or reward, depend on the user's counts and
    segment only. They are computed once for users with equal histories and joined to the users by the engine that
    reads the log. Beliefs of users in a segment start at its prior, those of other users at the common prior.

    Parameters
    ----------
    log : Log, data frame or path
        Log of the users, which need not be the log of the fit; or a source that `read_log` reads. Categories are
        matched by name.
    fit : Fit, Decision, Plan or Instance
        Model of the users.
    policy : Policy, Plan or str, optional
        Policy that gives the next recommendation: an object, "greedy", "fixed:CATEGORY", or the path of a saved
        policy. [default: the policy of the Decision or Plan; otherwise the optimal policy of the instance, within a
        thousandth of its value]
    output : path, optional
        Write the table of users to this .parquet or .csv file; Spark writes a folder of files.
    **read_options
        Arguments of `read_log` for a source that is not read yet, such as `user`, `time` and `inactive_after`.

    Returns
    -------
    Assignments
        Users by type; `to_frame()` and `save(path)` give the table of users.

    Raises
    ------
    InputError
        If the log has categories that the model does not know, the source of the log changed since it was read, or
        the file cannot be written.

    Notes
    -----
    A user whose last step is *pending* may have departed after it. The posterior then uses the click or no-click of
    that step and the time since it: the longer it is, compared with the times after which users return, the likelier
    the user departed. `active_probability` is the probability that the user has not, and the expected remaining
    clicks include it. The recommendation is that for a user who returns. A user who reached the horizon has none.

    Examples
    --------
    >>> import tempfile, departing as dp
    >>> site = dp.Instance([0.6, 0.4], [[0.8, 0.2], [0.3, 0.7]], 0.5, categories=["news", "film"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dp.sample_log(site, users=1000, seed=1).save(f"{folder}/log.parquet")
    ...     log = dp.read_log(f"{folder}/log.parquet", inactive_after="14 days")
    ...     users = assign(log, site)
    ...     table = users.to_frame()
    >>> users
    <Assignments of 1,000 users to 2 types>
    >>> list(table.columns[-3:])
    ['expected_remaining_clicks', 'posterior_type 0', 'posterior_type 1']
    """
    instance = _instance(fit)
    if output is not None and is_distributed(log.source.source if isinstance(log, Log) else log):
        check_suffix(output, TABLE_SUFFIXES)
    elif output is not None:
        check_writable(output, TABLE_SUFFIXES)
    log = read_source(log, read_options, assign)
    if not isinstance(log, Log):
        raise InputError(f"log is {log!r:.80}; expected a log that read_log returned, with user IDs.", "log")
    order = _category_order(log, instance)
    _check_segments(log, instance)
    _check_horizon(log, instance)
    if policy is None and hasattr(fit, "policy"):
        policy = fit.policy
    if policy is None:
        policy = plan(instance, RELATIVE_GAP * instance.best_fixed[1], PLANNING_SECONDS).policy
    chosen = policy_for(instance, policy)
    with ExitStack() as stack:
        part = None if output is None else stack.enter_context(table_file(log, output))
        users = stack.enter_context(log.user_histories())
        rows = assign_histories(instance, chosen, users, order, log.segments or ())
        assignments = Assignments(log, instance, chosen, rows)
        if output is not None and part is not None:
            assignments.write(users, output, part)
    return assignments


def _instance(fit: Any) -> Instance:
    """Instance of a fit, a decision or a plan."""
    for source in (fit, getattr(fit, "instance", None), getattr(getattr(fit, "fit", None), "instance", None)):
        if isinstance(source, Instance):
            return source
    raise InputError(f"fit is {fit!r:.80}; expected a fit, a decision, a plan or an instance.", "fit")


def _check_segments(log: Log, instance: Instance) -> None:
    """Raise if the segments of the log are made of other features than those of the instance."""
    given, known = log.segment_columns, () if instance.segments is None else instance.segments.columns
    if given and known and given != known:
        raise InputError(
            f"The segments of the log are made of {list_names(given)}, those of the fit of {list_names(known)}; read "
            f"the log with `segment`={','.join(known)!r}.",
            "segment",
        )


def _check_horizon(log: Log, instance: Instance) -> None:
    """Raise if users of the log who reached the horizon of the instance count as departed by inactivity."""
    inferred = log.horizon is None and log.profile.inactive is not None
    if inferred and instance.horizon == log.steps.max():
        raise InputError(
            f"No user of the log has more than {instance.horizon} recommendations, the horizon of the fit; read the "
            f"log with `horizon`={instance.horizon}, because inactive users who reached it may not have departed.",
            "horizon",
        )


def _category_order(log: Log, instance: Instance) -> Integers:
    """Index into the instance's categories for every category of the log; default names match any."""
    own, known = list(log.categories or ()), list(instance.categories)
    if len(own) == len(known) and any(names == default_names("category", len(names)) for names in (own, known)):
        return np.arange(len(own))
    events = log.totals.sum(axis=1)
    missing = [
        f"{name!r} ({format_count(int(n), 'event')})"
        for name, n in zip(own, events, strict=True)
        if name not in known
    ]
    if missing:
        shared = [name for name in own if name in known]
        listed = ", ".join(missing[:5]) + (f" and {len(missing) - 5:,} more" if len(missing) > 5 else "")
        action = f"read the log with `categories` {','.join(shared)}" if shared else "choose a fit of this log"
        raise InputError(
            f"The log has categories that the fit does not know: {listed}. Expected some of {list_names(known)}; "
            f"{action}, or fit again."
        )
    return np.array([known.index(name) for name in own], np.int64)
