"""`simulate`: many users under one policy, or with a learner."""

import os
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from departing.evaluation.bounds import Bounds
from departing.evaluation.traversal import first_level
from departing.kernels.cores import available_cores
from departing.learning.protocol import AssignsPolicies, Learner, SupportsArms, SupportsBlocks
from departing.model import random_streams
from departing.model.blas import one_blas_thread
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.instance import EXTENSIONS, Instance
from departing.model.non_stationary import NonStationaryInstance
from departing.model.sampling import sample_type_counts
from departing.model.validation import MAX_USERS, check_instance, check_int, check_max_steps, check_seed
from departing.policy.library import PolicyLike, policy_for
from departing.policy.protocol import Policy, policy_in_segment
from departing.policy.schedule import Schedule
from departing.simulation.reference import FinishedUsers, Recommend, UsersProgress, new_users, no_progress, play
from departing.simulation.regret_curve import RegretCurve, optimum_bounds
from departing.simulation.run import Run, exact_total, run_from_histories, total_reward
from departing.simulation.run_record import RegretProgress, RunRecord

# Bytes of distinct counts that the aggregate engine may hold: if `auto` tries it, and if it is requested.
# A larger limit lets it handle more users at the risk of exhausting the memory.
AUTO_MEMORY, MAX_MEMORY = 2**31, 2**33
# With more types than this single steps are cheaper than numbers of users by type.
MANY_TYPES = 10**4
# Steps of `lanes` that take as long as one node of `aggregate`, and numbers of nodes that `auto` always tries. Set by
# hand: they decide how soon `auto` gives up an aggregate run. Steps of a schedule cost least: its automaton is small.
STEPS_PER_NODE, CHEAP_NODES = 20, 2e5
STEPS_PER_SCHEDULE_NODE, CHEAP_SCHEDULE_NODES = 4000, 5e4
ENGINES = ("auto", "aggregate", "lanes", "step")
LEARNING_ENGINES = ("auto", "blocks", "arms", "step")
# Hides the latency of table lookups; the packed states of all lanes are 512 bytes, well inside any cache.
DEFAULT_LANES = 64
DEFAULT_OPEN_USERS = 4096  # of the reference engine: amortises the fixed cost of a NumPy call
DELAYED_ARRIVALS = 1000  # users who arrive at a time if feedback is delayed: fewer calls of the learner


def simulate(
    instance: Instance | NonStationaryInstance,
    policy: PolicyLike | Learner,
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
    progress: UsersProgress | None = None,
    regret_progress: RegretProgress | None = None,
) -> Run:
    """Simulate users under a policy, or with a learner.

    A learner continues from its present state and has learned from these users afterwards. The same arguments give
    the same run on any machine and any number of threads.

    Parameters
    ----------
    instance : Instance or NonStationaryInstance
        Users and categories. Users get a segment by the shares of the segments and are recommended categories by the
        policy of theirs. At the horizon a user is finished.
        A `NonStationaryInstance` is simulated piece by piece: the users of a piece finish before those of the next
        one arrive, regret is against the optimal policy of the piece of each user, and the learner is informed of
        categories that are added and retired. `users` and `seed` are those of all pieces.
    policy : Policy, Plan, Learner or str
        Policy of all users, or its short form such as "greedy" or "fixed:CATEGORY"; or a learner that recommends and
        observes.
    users : int
        Number of users.
    seed : int
        Seed of all random numbers. A learner that has seen users before gets others with the same seed.
    engine : str
        All engines sample from the same distribution. Under a policy: `step` is the reference loop; `lanes` makes
        single steps at full speed, many users in lockstep; `aggregate` moves numbers of users through the count
        graph, at a cost that hardly depends on `users`; `auto` chooses `aggregate` unless `lanes` is
        cheaper because of many distinct counts or many types, and `step` if there is a `log`. With a
        learner: `step` requests every single recommendation; `blocks` moves whole blocks of users through the
        policies of learners that keep a policy for many users; `arms` is for UCB-Hybrid; `auto` chooses the fastest
        that applies.
    open_users : int, optional
        Largest number of users who are active at the same time.
        [default: 64 in `lanes`, 4096 in `step`, 1 with a learner, or 1000 with a learner and a `delay`]
    delay : int
        Number of users who arrive before a learner observes an outcome.
    max_steps : int, optional
        Number of steps after which users are truncated. Only under a policy.
    threads : int, optional
        Number of threads of the engine `lanes`. [default: the number of cores]
    log : path, optional
        File ending in .parquet or .csv to write all events to, with columns for the features of the segment and the
        reward if the instance has them. Only under a policy.
    optimum : float or Bounds, optional
        Value of the optimal policy, for `Run.regret`. [default: planned when first needed]
    progress : callable, optional
        Called with the number of users who finished since the last call.
    regret_progress : callable, optional
        Called at checkpoints, ten per decade of users, with the number of users and their cumulative regret so far:
        the expected regret if the learner reports its policies, otherwise the realised one. Only with a learner.

    Returns
    -------
    Run
        Clicks, steps and regret of the users.

    Raises
    ------
    InputError
        If an argument is invalid or does not fit the engine.

    Examples
    --------
    >>> from departing.policy.schedule import Fixed
    >>> blog = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]], depart=1.0)
    >>> run = simulate(blog, Fixed(0), users=10**12, seed=7)
    >>> run.users, run.truncated
    (1000000000000, 0)
    >>> abs(run.mean - 0.6333333) < 5 * run.stderr
    True
    """
    users, seed = check_int("users", users, most=MAX_USERS), check_seed(seed)
    given = {"engine": engine, "open_users": open_users, "delay": delay, "max_steps": max_steps, "threads": threads}
    options: dict[str, Any] = {**given, "progress": progress, "before": _users_so_far(policy)}
    if isinstance(instance, NonStationaryInstance):
        from departing.simulation.moving import simulate_site

        if log is not None or optimum is not None:
            raise InputError("`log` and `optimum` apply to an Instance, not to a NonStationaryInstance; omit them.")
        return simulate_site(instance, policy, users, seed, _simulate, regret_progress, **options)
    options |= {"log": log, "optimum": optimum, "regret_progress": regret_progress}
    return _simulate(instance, policy, users, seed, **options)


def _simulate(
    instance: Instance,
    policy: PolicyLike | Learner,
    users: int,
    seed: int,
    *,
    engine: str,
    open_users: int | None,
    delay: int,
    max_steps: int | None,
    threads: int | None,
    progress: UsersProgress | None,
    before: int,
    log: str | os.PathLike[str] | None = None,
    optimum: float | Bounds | None = None,
    regret_progress: RegretProgress | None = None,
    checkpoints: Integers | None = None,
) -> Run:
    """Simulate users of an instance; see `simulate`.

    A learner that has seen users `before` gets others now. `checkpoints` are those of a run with a learner.
    """
    open_users = None if open_users is None else check_int("open_users", open_users)
    learns = hasattr(policy, "observe")
    check_instance(instance, EXTENSIONS)
    max_steps = check_max_steps(instance, max_steps)
    known_optimum = optimum_bounds(optimum)
    engines = LEARNING_ENGINES if learns else ENGINES
    if engine not in engines:
        kind = "learner" if learns else "policy"
        raise InputError(f"engine is {engine!r}; expected one of {', '.join(engines)} for a {kind}.", "engine")
    simulation = _Simulation(instance, users, seed, engine, open_users, progress or no_progress, before)
    if learns:
        if log is not None or threads is not None or max_steps is not None:
            raise InputError("`log`, `threads` and `max_steps` apply to policies, not to learners; omit them.")
        if not isinstance(policy, Learner):
            raise InputError(f"policy is {policy!r:.80}; a learner has the methods recommend and observe.")
        reports = isinstance(policy, AssignsPolicies)
        record = RunRecord(instance, users, reports, known_optimum, regret_progress, checkpoints)
        run = simulation.with_learner(policy, check_int("delay", delay, 0, MAX_USERS), record)
    else:
        chosen = policy_for(instance, cast(PolicyLike, policy))
        for name, value in (("delay", delay), ("regret_progress", regret_progress)):
            if value:
                raise InputError(f"{name} is {value!r:.80}; it applies to learners only; omit it.", name)
        threads = available_cores() if threads is None else check_int("threads", threads)
        run = simulation.under_policy(chosen, max_steps, threads, log)
    if known_optimum is None:
        return run
    return replace(run, regret_curve=replace(run.regret_curve, known_optimum=known_optimum))


def _users_so_far(policy: PolicyLike | Learner) -> int:
    """Users that a learner has seen; 0 for one that does not say, and for a policy."""
    if not isinstance(policy, AssignsPolicies):
        return 0
    arrived = getattr(policy, "arrived", 0)
    return max(policy.next_user_id, int(arrived) if isinstance(arrived, int | np.integer) else 0)


@dataclass(frozen=True)
class _Simulation:
    """Checked arguments of `simulate`, and the choice of the engine."""

    instance: Instance
    users: int
    seed: int
    engine: str
    open_users: int | None
    progress: UsersProgress
    before: int

    @one_blas_thread
    def with_learner(self, learner: Learner, delay: int, record: RunRecord) -> Run:
        """Simulate with a learner: by arms or blocks if the learner supports one of them, otherwise step by step."""
        from departing.simulation.learning import run_blocks, run_steps

        if isinstance(learner, AssignsPolicies):
            learner.check(self.instance)
        seed = self.seed
        if self.before:
            sequence = np.random.SeedSequence([seed, random_streams.CONTINUED, self.before])
            seed = int(sequence.generate_state(1, np.uint64)[0])
        rng = np.random.default_rng([seed, random_streams.SIMULATE_LEARNER])
        stepwise = self.open_users is not None or delay > 0
        plain = self.instance.horizon is None and self.instance.segments is None
        arms = self.engine in ("auto", "arms") and not stepwise and plain
        if arms and isinstance(learner, SupportsArms) and learner.active_users == 0:
            from departing.simulation.arms import Arms

            run = Arms(self.instance, learner, self.users, seed).run(record, self.progress)
            return replace(run, seed=self.seed)
        if self.engine == "arms":
            raise InputError(
                "engine is 'arms'; it applies to UCB-Hybrid without active users, `open_users` and `delay`, and to "
                "instances without a horizon and segments.",
                "engine",
            )
        if self.engine == "blocks" and (stepwise or not isinstance(learner, SupportsBlocks)):
            raise InputError(
                "engine is 'blocks'; it applies to learners that keep a policy for many users, without `open_users` "
                "and `delay`.",
                "engine",
            )
        stepwise |= self.engine == "step" or (self.engine == "auto" and self.instance.n_types > MANY_TYPES)
        if isinstance(learner, SupportsBlocks) and not stepwise:
            histories = run_blocks(self.instance, learner, self.users, rng, record, self.progress)
            return run_from_histories(histories, "blocks", self.seed, record.curve())
        open_users = self.open_users or (DELAYED_ARRIVALS if delay else 1)
        histories = run_steps(self.instance, learner, self.users, rng, open_users, delay, record, self.progress)
        return run_from_histories(histories, "step", self.seed, record.curve())

    def under_policy(
        self, policy: Policy, max_steps: int | None, threads: int, log: str | os.PathLike[str] | None
    ) -> Run:
        """Simulate under a policy: step by step to write a log, in aggregate where that is cheaper, or by lanes."""
        if log is not None and self.engine not in ("auto", "step"):
            expected = "an event log is written by the engine step (or auto)"
            raise InputError(f"engine is {self.engine!r}; {expected}.", "engine")
        if self.instance.horizon is not None:
            max_steps = min(self.instance.horizon, self.instance.horizon if max_steps is None else max_steps)
        if self.engine == "step" or log is not None:
            return self._steps(policy, max_steps, log)
        if self.instance.segments is not None:
            return self._segments(policy, max_steps, threads)
        return self._users(policy, max_steps, threads)

    def _users(self, policy: Policy, max_steps: int | None, threads: int) -> Run:
        """Simulate users without segments in aggregate where that is cheaper, or by lanes."""
        instance, engine, auto = self.instance, self.engine, self.engine == "auto"
        if engine == "aggregate" or (auto and instance.n_types <= MANY_TYPES):
            from departing.simulation.aggregate import aggregate

            max_nodes = (AUTO_MEMORY if auto else MAX_MEMORY) // (32 * instance.n_categories)
            effort = _affordable_effort(instance, policy, self.users, max_steps) if auto else np.inf
            rng = np.random.default_rng([self.seed, random_streams.SIMULATE_AGGREGATE])
            first = first_level(instance, policy, sample_type_counts(instance, self.users, rng))
            histories = aggregate(first, rng, max_steps, max_nodes, effort, self.progress)
            if histories is not None:
                return self._run(policy, histories, "aggregate", max_steps)
            if engine == "aggregate":
                raise InputError(
                    f"These users have more than {max_nodes} distinct counts; use fewer users, or the engine lanes."
                )
        from departing.simulation.lanes import Lanes

        lanes = self.open_users or DEFAULT_LANES
        return Lanes(instance, policy, self.users, self.seed, lanes, max_steps).run(threads, self.progress)

    def _segments(self, policy: Policy, max_steps: int | None, threads: int) -> Run:
        """Simulate the users of every segment by themselves."""
        from departing.simulation.segments import join_returns, simulate_segments

        def simulated(name: str, users: int, seed: int) -> Run:
            part = replace(self, instance=self.instance.in_segment(name), users=users, seed=seed)
            return part._users(policy_in_segment(policy, name), max_steps, threads)

        by_segment, histories = simulate_segments(self.instance, self.users, self.seed, simulated)
        runs = list(by_segment.values())
        clicks, reward = (sum(getattr(run, name) for run in runs) for name in ("clicks", "reward"))
        return Run(
            steps=sum(run.steps for run in runs),
            truncated=sum(run.truncated for run in runs),
            engine=", ".join(sorted({run.engine for run in runs})),
            seed=self.seed,
            returns=(returns := join_returns(runs))[0],
            returns_users=returns[1],
            regret_curve=RegretCurve.of_policy(self.instance, policy, self.users, clicks, reward),
            _count_histories=histories,
        )

    def _steps(self, policy: Policy, max_steps: int | None, log: str | os.PathLike[str] | None) -> Run:
        rng = np.random.default_rng([self.seed, random_streams.SIMULATE_STEPS])
        instance, finished = self.instance, FinishedUsers()
        recommend: Policy | Recommend = policy
        if self.instance.segments is not None:
            from departing.simulation.segments import FinishedInSegments, SegmentPolicies, joined_instance

            instance, recommend = joined_instance(self.instance), SegmentPolicies.of(self.instance, policy)
            finished = FinishedInSegments(segments=self.instance.segments, n_types=self.instance.n_types)
        arrive = new_users(instance, self.users, rng)
        users = (arrive, rng, self.open_users or DEFAULT_OPEN_USERS, max_steps, finished, self.progress)
        if log is None:
            play(instance, recommend, *users)
        else:
            from departing.simulation.event_log import event_log

            with event_log(log, self.instance) as record:
                play(instance, recommend, *users, record)
        return self._run(policy, finished.histories(instance.n_categories), "step", max_steps)

    def _run(self, policy: Policy, histories: Histories, engine: str, max_steps: int | None) -> Run:
        clicks, reward = exact_total(histories.clicks, histories.multiplicity), total_reward(self.instance, histories)
        curve = RegretCurve.of_policy(self.instance, policy, histories.users, clicks, reward)
        return run_from_histories(histories, engine, self.seed, curve, max_steps)


def _affordable_effort(instance: Instance, policy: Policy, users: int, max_steps: int | None) -> float:
    """Number of nodes at which the aggregate engine costs as much as single steps."""
    longest = float(instance.prior @ (1 / instance.departure_probabilities).max(axis=0))
    steps = users * (longest if max_steps is None else min(longest, max_steps))
    if isinstance(policy, Schedule):
        return max(CHEAP_SCHEDULE_NODES, steps / STEPS_PER_SCHEDULE_NODE)
    return max(CHEAP_NODES, steps / STEPS_PER_NODE)
