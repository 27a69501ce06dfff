"""Execution of the missing runs of a study, on all cores or on a cluster; every finished run is stored at once."""

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any, Protocol

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import BrokenProcessPool

from departing.evaluation.bounds import Bounds
from departing.learning.library import learner_from_dict
from departing.learning.protocol import AssignedPolicy, Learner
from departing.learning.regret_bound import regret_bound
from departing.model.errors import InputError, MissingExtraError
from departing.model.instance import Instance
from departing.model.non_stationary import NonStationaryInstance
from departing.model.progress import Progress
from departing.model.validation import check_choice, check_int
from departing.policy.library import describe
from departing.simulation.moving import site_fixed_value, site_optimum
from departing.simulation.regret_curve import plan_optimum, regret_gap
from departing.simulation.run import Run
from departing.simulation.simulate import simulate
from departing.studies.definition import Job, Study, bound_key, key_of
from departing.studies.results import Record, ResultStore, StudyResults

BACKENDS = ("loky", "threading", "dask", "ray")
_WORKER_KILLED = (
    "A worker process was killed, probably because memory ran out. Finished runs are kept; start the study again "
    "with fewer `jobs`."
)
IDLE_SECONDS = 15  # idle workers exit after this time; the workers of a study that was killed must not stay


class StudyMonitor(Protocol):
    """Observer of the runs of a study. The process that calls `run_study` calls it, whichever backend runs them."""

    def start(self, missing: Sequence[Job]) -> None:
        """Observe the start of the runs that are missing; the optima of their instances are known."""

    def finish(self, job: Job, record: Record | None) -> None:
        """Observe the end of a run; one that failed has no record."""


def run_study(
    study: Study,
    folder: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    backend: str = "loky",
    scheduler: str | None = None,
    progress: Progress | None = None,
    monitor: StudyMonitor | None = None,
) -> StudyResults:
    """Execute all runs of `study` that are not in `folder` yet, and gather the results.

    A study resumes where it stopped.

    Parameters
    ----------
    study : Study
        Definition of the study.
    folder : path-like
        Folder of the results, created if it does not exist.
    jobs : int, optional
        Number of parallel runs, by default the number of cores.
    backend : {"loky", "threading", "dask", "ray"}
        Backend of joblib, or Ray.
    scheduler : str, optional
        Address of a Dask scheduler such as "tcp://HOST:8786", by default a cluster on this machine.
    progress : callable, optional
        Called with the number of finished runs and the number of runs that were missing at the start.
    monitor : StudyMonitor, optional
        Observes the start, and every run with its record when it has finished.

    Returns
    -------
    StudyResults

    Raises
    ------
    InputError
        If an option is invalid, the folder holds another study, or runs failed; these are reported after all others
        have finished.
    """
    check_choice("backend", backend, BACKENDS)
    if scheduler is not None and backend != "dask":
        raise InputError(f"scheduler is {scheduler!r}; it requires `backend` dask, not {backend}.", "scheduler")
    workers = None if jobs is None else check_int("jobs", jobs, 1, 10**4)
    store = ResultStore(folder)
    store.open(study)
    finished = store.finished(store.parts)
    missing = list({job.key: job for job in study.jobs if job.key not in finished}.values())
    failures: list[str] = []
    if missing:
        with _pool(backend, workers, scheduler) as pool:
            failures = _run(store, missing, pool, progress, monitor)
    if study.bound:
        _compute_bounds(store, study, workers, backend, scheduler)
    results = store.gather(study)
    if failures:
        raise InputError(f"{len(failures)} of {len(study.jobs)} runs failed; the first: {failures[0]}")
    return results


def most_used_policy(run: Run) -> str | None:
    """Description of the most frequent policy at the end of a run; None if the learner does not expose policies."""
    if not run.regret_curve.policy_segments:
        return None
    users: dict[AssignedPolicy, int] = {}
    last = len(run.checkpoints) - 1
    for segment in run.regret_curve.policy_segments:
        if segment.interval == last:
            users[segment.policy] = users.get(segment.policy, 0) + segment.users
    return describe(max(users, key=lambda policy: users[policy]), run.regret_curve.instance)


Finished = Generator[tuple[str, Record | str], None, None]  # keys with records, or with error messages
Pool = Callable[[Iterator[Any]], Finished]


def _run(
    store: ResultStore, missing: list[Job], pool: Pool, progress: Progress | None, monitor: StudyMonitor | None
) -> list[str]:
    """Compute the missing optima, then the missing runs; return the errors of runs that failed."""
    known = store.finished(store.optima)
    instances = {_optimum_key(job): job for job in missing}
    unknown = [(key, job) for key, job in instances.items() if key not in known]
    with closing(pool(delayed(_optimum)(key, job.case.instance, job.users) for key, job in unknown)) as solved:
        for key, record in solved:
            assert isinstance(record, dict)
            store.write(store.optima, key, record)
    optima = {key: store.read(store.optima, key) for key in instances}
    failures, jobs = [], {job.key: job for job in missing}
    if monitor is not None:
        monitor.start(missing)
    with closing(pool(delayed(_run_job)(job, optima[_optimum_key(job)]) for job in missing)) as finished:
        for done, (key, record) in enumerate(finished, 1):
            if isinstance(record, dict):
                store.write(store.parts, key, record)
            else:
                failures.append(record)
            if monitor is not None:
                monitor.finish(jobs[key], record if isinstance(record, dict) else None)
            if progress is not None:
                progress(done, len(missing))
    return failures


def _compute_bounds(
    store: ResultStore, study: Study, workers: int | None, backend: str, scheduler: str | None
) -> None:
    """Compute the missing lower bounds of the instances of a study."""
    known = store.finished(store.bounds)
    keys = {bound_key(case.instance, study.users): case.instance for case in study.cases}
    missing = [(key, instance) for key, instance in keys.items() if key not in known]
    if not missing:
        return
    with _pool(backend, workers, scheduler) as pool:
        tasks = (delayed(_bound)(key, instance, study.users) for key, instance in missing)
        with closing(pool(tasks)) as solved:
            for key, record in solved:
                assert isinstance(record, dict)
                store.write(store.bounds, key, record)


def _bound(key: str, instance: Instance, users: int) -> tuple[str, Record]:
    return key, regret_bound(instance, users).to_dict()


def _optimum_key(job: Job) -> str:
    return key_of({"instance": job.case.instance.to_dict(), "gap": regret_gap(job.users)})


def _optimum(key: str, instance: Instance, users: int) -> tuple[str, Record]:
    return key, optimum_record(instance, users)


def optimum_record(instance: Instance | NonStationaryInstance, users: int) -> Record:
    """Value of the best fixed category, and bounds of the optimum precise enough for the regret of `users`.

    Those of a site that changes are means over its users, of the best fixed category and the optimum of their pieces.
    """
    if isinstance(instance, NonStationaryInstance):
        moving = site_optimum(instance, users)
        return {"lower": moving.lower, "upper": moving.upper, "fixed_value": site_fixed_value(instance, users)}
    optimum = plan_optimum(instance, users)
    return {"lower": optimum.lower, "upper": optimum.upper, "fixed_value": instance.best_fixed[1]}


def _run_job(job: Job, optimum: Record) -> tuple[str, Record | str]:
    """Key of a run with its record, or with an error message if it failed."""
    try:
        learner = learner_from_dict(job.learner.spec, job.case.instance, job.users, job.seed)
        _, record = run_learner(learner, job.case.instance, job.users, job.seed, optimum, job.open_users, job.delay)
    except InputError as error:
        return job.key, f"{job}: {error}"
    return job.key, record


def run_learner(
    learner: Learner,
    instance: Instance | NonStationaryInstance,
    users: int,
    seed: int,
    optimum: Record,
    open_users: int | None = None,
    delay: int = 0,
    **callbacks: Any,
) -> tuple[Run, Record]:
    """Simulate a learner, and return the run and its record; `callbacks` are those of `simulate`."""
    started = time.perf_counter()
    best = Bounds(optimum["lower"], optimum["upper"])
    known = None if isinstance(instance, NonStationaryInstance) else best
    run = simulate(instance, learner, users, seed, open_users=open_users, delay=delay, optimum=known, **callbacks)
    seconds = time.perf_counter() - started
    record = {
        "users": run.checkpoints.tolist(),
        "regret": None if run.regret_curve.policy_segments is None else run.regret.tolist(),
        "realised": run.realised_regret.tolist(),
        "clicks": run.regret_curve.clicks.tolist(),
        "optimum": best.value,
        "fixed_value": optimum["fixed_value"],
        "engine": run.engine,
        "seconds": seconds,
    }
    return run, record


@contextmanager
def _pool(backend: str, workers: int | None, scheduler: str | None) -> Iterator[Pool]:
    """Function that executes tasks in parallel and yields their results as they finish."""
    options: dict[str, Any] = {"backend": backend, "n_jobs": workers or -1}
    if backend == "ray":
        with _ray(workers) as pool:
            yield pool
    elif backend == "dask":
        with _dask(workers, scheduler) as client:
            yield partial(_joblib, options | {"client": client})
    else:
        yield partial(_joblib, options | ({"idle_worker_timeout": IDLE_SECONDS} if backend == "loky" else {}))


def _joblib(options: dict[str, Any], tasks: Iterator[Any]) -> Finished:
    try:
        with parallel_config(**options):
            yield from Parallel(return_as="generator_unordered")(tasks)
    except BrokenProcessPool as error:
        raise InputError(_WORKER_KILLED) from error


@contextmanager
def _dask(workers: int | None, scheduler: str | None) -> Iterator[Any]:
    """Client of the scheduler's cluster, or of a cluster on this machine."""
    try:
        from dask.distributed import Client, LocalCluster
        from distributed.comm import CommClosedError
        from distributed.scheduler import KilledWorker
    except ImportError as error:
        raise _missing_extra("dask") from error
    with ExitStack() as stack:
        address: Any = scheduler
        if scheduler is None:
            local = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
            address = stack.enter_context(local)
        try:
            client = stack.enter_context(Client(address, timeout="10s"))
        except (OSError, ValueError) as error:
            raise InputError(f"There is no Dask scheduler at {scheduler!r}; expected tcp://HOST:PORT.") from error
        try:
            yield client
        except (KilledWorker, CommClosedError) as error:
            raise InputError(f"{_WORKER_KILLED} Message of the Dask cluster: {error}") from error


@contextmanager
def _ray(workers: int | None) -> Iterator[Pool]:
    """Pool on the cluster of the environment variable RAY_ADDRESS, or on this machine.

    Ray's own backend for joblib returns all results at the end, so that a kill would lose them.
    """
    try:
        import ray
    except ImportError as error:
        raise _missing_extra("ray") from error

    def call(task: Any) -> Any:
        function, arguments, options = task
        return function(*arguments, **options)

    remote = ray.remote(call)

    def pool(tasks: Iterator[Any]) -> Finished:
        waiting = [remote.remote(task) for task in tasks]
        while waiting:
            (ready,), waiting = ray.wait(waiting)
            yield ray.get(ready)

    ray.init(num_cpus=None if "RAY_ADDRESS" in os.environ else workers, include_dashboard=False, log_to_driver=False)
    try:
        yield pool
    finally:
        ray.shutdown()


def _missing_extra(package: str) -> MissingExtraError:
    return MissingExtraError(
        f"The backend {package!r} needs a package that is not installed: pip install 'departing-bandits[cluster]'."
    )
