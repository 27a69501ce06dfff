"""`simulate`: many users under one policy, or with a learner."""

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np

from departing.evaluation.bounds import Bounds
from departing.learning.protocol import Learner
from departing.model.errors import InputError
from departing.model.instance import Instance
from departing.model.validation import MAX_USERS, check_instance, check_int, check_max_steps, check_seed
from departing.policy.protocol import Policy, resolve_policy
from departing.policy.schedule import Schedule
from departing.simulation.reference import Finished, Record, Users, new_users, play
from departing.simulation.regret_curve import Piece, RegretCurve, as_optimum
from departing.simulation.run import Progress, Run, quiet, run_from_histories

AUTO_MEMORY, MOST_MEMORY = 2**31, 2**33  # bytes of counts the aggregate engine may meet
MANY_TYPES = 10**4  # with more of them single steps are cheaper than crowds by type
ENGINES = ("auto", "aggregate", "lanes", "step")
LEARNING_ENGINES = ("auto", "blocks", "arms", "step")


def simulate(
    instance: Instance,
    policy: Policy | Learner,
    users: int = 10**6,
    seed: int = 0,
    engine: str = "auto",
    *,
    open_users: int | None = None,
    delay: int = 0,
    max_steps: int | None = None,
    threads: int | None = None,
    log: str | os.PathLike[str] | None = None,
    optimum: float | Bounds | None = None,
    progress: Progress | None = None,
) -> Run:
    """A run of `users` users under `policy`, or with a learner.

    Engines, all of the same distribution: `step` is the reference loop; `lanes` makes single steps at full
    speed, on `threads` threads (all cores unless told; the result is the same for any number); `aggregate`
    pushes whole crowds through the graph of counts, whatever their number. `auto` takes `aggregate` unless
    so many different counts are met, or types are there, that single steps are cheaper, and then `lanes`; with a
    `log`, `step`.

    At most `open_users` are here at once (64 unless told, 4096 in `step`). Users still here after `max_steps`
    are truncated. `log` is a path ending in .parquet or .csv for the events. `progress` is called with every
    number of users finished.

    A learner goes on from what it knows, and knows more afterwards. Engines for learners: `step` asks it for every
    recommendation, with at most `open_users` here at once (one unless told); with a `delay` it is told what a user
    did when so many more users have come, and `open_users` come at a time (1000 unless told); `blocks` sends whole
    crowds through the policies it holds, for learners that do; `arms` is for UCB-Hybrid;
    `auto` takes the fastest that fits. `run.regret` compares with the best policy, which is planned when it is first
    asked for unless `optimum` tells what that brings one user.

    >>> from departing.policy.schedule import Fixed
    >>> blog = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]], depart=1.0)
    >>> run = simulate(blog, Fixed(0), users=10**12, seed=7)
    >>> run.users, run.truncated
    (1000000000000, 0)
    >>> abs(run.mean - 0.6333333) < 5 * run.stderr
    True
    """
    users, seed = check_int("users", users, most=MAX_USERS), check_seed(seed)
    together = None if open_users is None else check_int("open_users", open_users)
    check_instance(instance)
    max_steps = check_max_steps(instance, max_steps)
    known = as_optimum(optimum)
    learns = hasattr(policy, "observe")
    allowed = LEARNING_ENGINES if learns else ENGINES
    if engine not in allowed:
        raise InputError(
            f"engine is {engine!r}; allowed {'for learners ' if learns else ''}are {', '.join(allowed)}."
        )
    if learns:
        if log is not None or threads is not None or max_steps is not None:
            raise InputError("log, threads and max_steps are for runs under a policy, not for learners.")
        if not isinstance(policy, Learner):
            raise InputError(f"policy is {policy!r:.80}; a learner has the methods recommend and observe.")
        run = _run_learner(instance, policy, users, seed, engine, together, delay, progress or quiet)
        assert run.course is not None
        return replace(run, course=replace(run.course, known=known))
    policy = resolve_policy(policy, instance.categories)
    if delay:
        raise InputError(
            f"delay is {delay!r}; it is for learners: a policy does not wait for what users did.", "delay"
        )
    run = _run_policy(instance, policy, users, seed, engine, together, max_steps, threads, log, progress or quiet)
    marks, piece = np.array([users]), Piece(0, policy, users)
    return replace(run, course=RegretCurve(instance, marks, np.array([run.clicks]), [piece], known))


def _run_learner(
    instance: Instance,
    learner: Learner,
    users: int,
    seed: int,
    engine: str,
    open_users: int | None,
    delay: int,
    progress: Progress,
) -> Run:
    from departing.learning.protocol import AssignsPolicies, SupportsArms, SupportsBlocks
    from departing.simulation.learning import run_blocks, run_steps

    delay = check_int("delay", delay, 0, MAX_USERS)
    if isinstance(learner, AssignsPolicies):
        learner.check(instance)
    rng = np.random.default_rng([seed, 2])
    stepwise = open_users is not None or delay > 0
    blocks = isinstance(learner, SupportsBlocks)
    arms = isinstance(learner, SupportsArms) and learner.open_users == 0
    if engine == "arms" and (stepwise or not arms):
        raise InputError("engine is 'arms'; it is for UCB-Hybrid without users who are here, one after the other.")
    if isinstance(learner, SupportsArms) and arms and engine in ("auto", "arms") and not stepwise:
        from departing.simulation.arms import Arms

        return Arms(instance, learner, users, seed).run(progress)
    if engine == "blocks" and (stepwise or not blocks):
        raise InputError("engine is 'blocks'; it is for learners that hold their policy, one user after the other.")
    stepwise |= engine == "step" or (engine == "auto" and instance.n_types > MANY_TYPES)
    if isinstance(learner, SupportsBlocks) and not stepwise:
        return run_blocks(instance, learner, users, rng, progress, seed)
    return run_steps(instance, learner, users, rng, open_users or (1000 if delay else 1), delay, progress, seed)


def _run_policy(
    instance: Instance,
    policy: Policy,
    users: int,
    seed: int,
    engine: str,
    together: int | None,
    max_steps: int | None,
    threads: int | None,
    log: str | os.PathLike[str] | None,
    progress: Progress,
) -> Run:
    threads = check_int("threads", threads) if threads is not None else cores()
    if log is not None and engine not in ("auto", "step"):
        raise InputError(f"engine is {engine!r}; an event log is written by the engine step (or auto).", "engine")
    if engine == "step" or log is not None:
        return _run_steps(instance, policy, users, seed, together or 4096, max_steps, log, progress)
    if engine == "aggregate" or (engine == "auto" and instance.n_types <= MANY_TYPES):
        from departing.simulation.aggregate import aggregate

        nodes = (AUTO_MEMORY if engine == "auto" else MOST_MEMORY) // (32 * instance.n_categories)
        effort = _effort(instance, policy, users, max_steps) if engine == "auto" else np.inf
        rng = np.random.default_rng([seed, 1])
        histories = aggregate(instance, policy, users, rng, max_steps, nodes, effort, progress)
        if histories is not None:
            return run_from_histories(histories, "aggregate", seed)
        if engine == "aggregate":
            raise InputError(f"These users meet more than {nodes} different counts; use fewer users, or lanes.")
    from departing.simulation.lanes import Lanes

    return Lanes(instance, policy, users, seed, together or 64, max_steps).run(threads, progress)


def _effort(instance: Instance, policy: Policy, users: int, max_steps: int | None) -> float:
    """How many counts are worth meeting before single steps are cheaper: those of schedules are the cheapest."""
    stay = float(instance.prior @ (1 / instance.departure_probabilities).max(axis=0))
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
    return run_from_histories(finished.histories(instance.n_categories), "step", seed)


def _event_log(log: str | os.PathLike[str], instance: Instance) -> AbstractContextManager[Record]:
    from departing.simulation.event_log import event_log

    return event_log(log, instance)
