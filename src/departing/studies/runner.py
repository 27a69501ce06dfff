"""Running a study: what is missing, on all cores or on a cluster, every finished run kept at once."""

import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import BrokenProcessPool

from departing.evaluation.bounds import Bounds
from departing.learning.library import learner_from_dict
from departing.learning.protocol import Learner
from departing.model.errors import InputError, MissingExtraError
from departing.model.instance import Instance
from departing.model.validation import check_int
from departing.planning.plan import plan
from departing.policy.library import describe
from departing.policy.protocol import Policy
from departing.simulation.regret_curve import optimum_gap
from departing.simulation.run import Progress, Run, quiet
from departing.simulation.simulate import simulate
from departing.studies.definition import Job, Study, key_of
from departing.studies.results import Record, Results, Store

BACKENDS = ("loky", "threading", "dask", "ray")
_STOPPED = (
    "A worker was stopped from outside, most likely for want of memory; what is finished is kept, "
    "so start the study again, with fewer --jobs."
)
IDLE = 15  # seconds after which workers without work go, also those of a study that was killed


def run_study(
    study: Study,
    folder: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    backend: str = "loky",
    scheduler: str | None = None,
    started: Callable[[int, int], None] | None = None,
    progress: Progress | None = None,
) -> Results:
    """Do all runs of `study` that are not in `folder` yet, and gather them.

    Runs go to `jobs` processes (all cores unless told), with joblib's `backend`: `loky`, `threading`, `dask` (on the
    cluster of a `scheduler`, or one of this machine) or `ray`. `started` is told how many runs are missing, and how
    many there are; `progress` every run that is finished. A run that cannot be done is told of at the end, when all
    others are.
    """
    if backend not in BACKENDS:
        raise InputError(f"backend is {backend!r}; allowed are {', '.join(BACKENDS)}.", "backend")
    if scheduler is not None and backend != "dask":
        raise InputError(f"scheduler is {scheduler!r}, but backend is {backend!r}; a scheduler is for dask.")
    workers = None if jobs is None else check_int("jobs", jobs, 1, 10**4)
    store = Store(folder)
    store.open(study)
    done = store.done(store.parts)
    missing = list({job.key: job for job in study.jobs if job.key not in done}.values())
    if started is not None:
        started(len(missing), len(study.jobs))
    failures: list[str] = []
    if missing:
        with _pool(backend, workers, scheduler) as pool:
            failures = _run(store, missing, pool, progress or quiet)
    results = store.gather(study)
    if failures:
        raise InputError(f"{len(failures)} of {len(study.jobs)} runs could not be done; the first: {failures[0]}")
    return results


def most_played(run: Run) -> str | None:
    """In words, the policy that most of the last users of a run had; None if the learner does not tell."""
    assert run.course is not None
    if not run.course.pieces:
        return None
    users: dict[Policy, int] = {}
    last = len(run.checkpoints) - 1
    for piece in run.course.pieces:
        if piece.stretch == last:
            users[piece.policy] = users.get(piece.policy, 0) + piece.users
    return describe(max(users, key=lambda policy: users[policy]), run.course.instance)


Finished = Generator[tuple[str, Record | str], None, None]
Pool = Callable[[Iterator[Any]], Finished]


def _run(store: Store, missing: list[Job], pool: Pool, progress: Progress) -> list[str]:
    """Plan for the instances whose optimum is not known, then do the runs; what went wrong with some."""
    known = store.done(store.optima)
    instances = {_optimum_key(job): job for job in missing}
    unknown = [(key, job) for key, job in instances.items() if key not in known]
    with closing(pool(delayed(_find_optimum)(key, job.case.instance, job.users) for key, job in unknown)) as found:
        for key, record in found:
            assert isinstance(record, dict)
            store.keep(store.optima, key, record)
    optima = {key: store.record(store.optima, key) for key in instances}
    failures = []
    with closing(pool(delayed(_play)(job, optima[_optimum_key(job)]) for job in missing)) as played:
        for key, record in played:
            if isinstance(record, dict):
                store.keep(store.parts, key, record)
            else:
                failures.append(record)
            progress(1)
    return failures


def _optimum_key(job: Job) -> str:
    return key_of({"instance": job.case.instance.to_dict(), "gap": optimum_gap(job.users)})


def _find_optimum(key: str, instance: Instance, users: int) -> tuple[str, Record]:
    return key, optimum_record(instance, users)


def optimum_record(instance: Instance, users: int) -> Record:
    """What the best policy and the best fixed category bring one user, closely enough for the regret of `users`."""
    best = plan(instance, gap=optimum_gap(users))
    return {"lower": best.lower, "upper": best.upper, "fixed_value": instance.best_fixed[1]}


def _play(job: Job, optimum: Record) -> tuple[str, Record | str]:
    """The key of a run with what it came to, or with a sentence why it could not be done."""
    try:
        learner = learner_from_dict(job.learner.spec, job.case.instance, job.users, job.seed)
        _, record = play(learner, job.case.instance, job.users, job.seed, optimum, job.open_users, job.delay)
    except InputError as error:
        return job.key, f"{job}: {error}"
    return job.key, record


def play(
    learner: Learner,
    instance: Instance,
    users: int,
    seed: int,
    optimum: Record,
    open_users: int | None = None,
    delay: int = 0,
    progress: Progress | None = None,
) -> tuple[Run, Record]:
    """A run of a learner, and what it came to."""
    started = time.perf_counter()
    best = Bounds(optimum["lower"], optimum["upper"])
    run = simulate(
        instance, learner, users, seed, open_users=open_users, delay=delay, optimum=best, progress=progress
    )
    seconds = time.perf_counter() - started
    assert run.course is not None
    record = {
        "users": run.checkpoints.tolist(),
        "regret": None if run.course.pieces is None else run.regret.tolist(),
        "realised": run.realised.tolist(),
        "clicks": run.course.clicks.tolist(),
        "optimum": best.value,
        "fixed_value": optimum["fixed_value"],
        "engine": run.engine,
        "seconds": seconds,
    }
    return run, record


@contextmanager
def _pool(backend: str, workers: int | None, scheduler: str | None) -> Iterator[Pool]:
    """A function that does tasks in parallel and yields what they return, as they finish."""
    if backend == "ray":
        with _ray(workers) as pool:
            yield pool
        return
    options: dict[str, Any] = {"backend": backend, "n_jobs": workers or -1}
    if backend == "dask":
        with _dask(workers, scheduler) as client:
            yield partial(_joblib, options | {"client": client})
        return
    if backend == "loky":
        options["idle_worker_timeout"] = IDLE
    yield partial(_joblib, options)


def _joblib(options: dict[str, Any], tasks: Iterator[Any]) -> Finished:
    try:
        with parallel_config(**options):
            yield from Parallel(return_as="generator_unordered")(tasks)
    except BrokenProcessPool as error:
        raise InputError(_STOPPED) from error


@contextmanager
def _dask(workers: int | None, scheduler: str | None) -> Iterator[Any]:
    """A client of the cluster of the scheduler, or of one on this machine."""
    try:
        from dask.distributed import Client, LocalCluster
        from distributed.comm import CommClosedError
        from distributed.scheduler import KilledWorker
    except ImportError as error:
        raise _lacking("dask") from error
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
            raise InputError(f"{_STOPPED} The Dask cluster says: {error}") from error


@contextmanager
def _ray(workers: int | None) -> Iterator[Pool]:
    """Tasks on the cluster that the variable RAY_ADDRESS tells of, or on one of this machine.

    Ray's own backend for joblib returns everything at the end only, so a kill would lose all of it.
    """
    try:
        import ray
    except ImportError as error:
        raise _lacking("ray") from error

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


def _lacking(package: str) -> MissingExtraError:
    return MissingExtraError(
        f"The backend {package!r} needs a package that is not installed: pip install 'departing-bandits[cluster]'."
    )
