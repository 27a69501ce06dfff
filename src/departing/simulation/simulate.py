"""`simulate`: many users under one policy."""

import os
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from departing.model.arguments import MOST_USERS, as_seed, as_whole, check_instance, check_stays
from departing.model.errors import InputError
from departing.model.instance import Instance
from departing.policy.protocol import Policy, check_policy
from departing.policy.schedule import Schedule
from departing.simulation.reference import Finished, Record, Users, new_users, play
from departing.simulation.run import Progress, Run, quiet, run_of

AUTO_MEMORY, MOST_MEMORY = 2**31, 2**33  # bytes of counts the aggregate engine may meet
ENGINES = ("auto", "aggregate", "lanes", "step")


def simulate(
    instance: Instance,
    policy: Policy,
    users: int = 10**6,
    seed: int = 0,
    engine: str = "auto",
    *,
    open_users: int | None = None,
    max_steps: int | None = None,
    threads: int | None = None,
    log: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Run:
    """A run of `users` users under `policy`.

    Engines, all of the same distribution: `step` is the reference loop; `lanes` makes single steps at full
    speed, on `threads` threads (all cores unless told; the result is the same for any number); `aggregate`
    pushes whole crowds through the graph of counts, whatever their number. `auto` takes `aggregate` unless
    so many different counts are met that single steps are cheaper, and then `lanes`; with a `log`, `step`.

    At most `open_users` are here at once (64 unless told, 4096 in `step`). Users still here after `max_steps`
    are truncated. `log` is a path ending in .parquet or .csv for the events. `progress` is called with every
    number of users finished.

    >>> from departing.policy.schedule import Fixed
    >>> blog = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]], depart=1.0)
    >>> run = simulate(blog, Fixed(0), users=10**12, seed=7)
    >>> run.users, run.truncated
    (1000000000000, 0)
    >>> abs(run.mean - 0.6333333) < 5 * run.stderr
    True
    """
    users, seed = as_whole("users", users, most=MOST_USERS), as_seed(seed)
    together = None if open_users is None else as_whole("open_users", open_users)
    check_instance(instance)
    check_policy(policy)
    max_steps = check_stays(instance, max_steps)
    if engine not in ENGINES:
        raise InputError(f"engine is {engine!r}; allowed are {', '.join(ENGINES)}.")
    threads = as_whole("threads", threads) if threads is not None else cores()
    progress = progress or quiet
    if log is not None and engine not in ("auto", "step"):
        raise InputError(f"engine is {engine!r}; an event log is written by the engine step (or auto).")
    if engine == "step" or log is not None:
        return _run_steps(instance, policy, users, seed, together or 4096, max_steps, log, progress)
    if engine != "lanes":
        from departing.simulation.aggregate import aggregate

        nodes = (AUTO_MEMORY if engine == "auto" else MOST_MEMORY) // (32 * instance.n_categories)
        effort = _effort(instance, policy, users, max_steps) if engine == "auto" else np.inf
        histories = aggregate(instance, policy, users, seed, max_steps, nodes, effort, progress)
        if histories is not None:
            return run_of(histories, "aggregate", seed)
        if engine == "aggregate":
            raise InputError(f"These users meet more than {nodes} different counts; use fewer users, or lanes.")
    from departing.simulation.lanes import Lanes

    return Lanes(instance, policy, users, seed, together or 64, max_steps).run(threads, progress)


def _effort(instance: Instance, policy: Policy, users: int, max_steps: int | None) -> float:
    """How many counts are worth meeting before single steps are cheaper: those of schedules are the cheapest."""
    stay = float(instance.prior @ (1 / instance.leave).max(axis=0))
    made = users * (stay if max_steps is None else min(stay, max_steps))
    return max(5e4, made / 4000) if isinstance(policy, Schedule) else max(2e5, made / 20)


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_steps(
    instance: Instance,
    policy: Policy,
    users: int,
    seed: int,
    open_users: int,
    max_steps: int | None,
    log: str | os.PathLike[str] | None,
    progress: Progress,
) -> Run:
    rng = np.random.default_rng([seed, 0])
    come, finished, started = new_users(instance, users, rng), Finished(), False

    def arrive(most: int) -> Users:
        nonlocal started
        if started:
            progress(most)
        started = True
        return come(most)

    with nullcontext() if log is None else _event_log(log, instance) as record:
        play(instance, policy, arrive, rng, open_users, max_steps, finished, record)
    return run_of(finished.histories(instance.n_categories), "step", seed)


def _event_log(log: str | os.PathLike[str], instance: Instance) -> AbstractContextManager[Record]:
    from departing.simulation.log import event_log

    return event_log(log, instance)
