"""A server under load, compared with a bare echo on the same stack, and the regret of its learner."""

import asyncio
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import departing as dp
from benchmarks.common import Row
from benchmarks.loader import ROWS
from departing.learning.bayes import Bayes
from departing.model.examples import magazine
from departing.service.event_id import format_event_id
from departing.service.runtime import run
from departing.service.store.base import user_write
from departing.service.store.connection import SqliteDatabase, connect
from departing.service.user import Step, User
from departing.service.workers.supervisor import stop_event
from departing.service.workers.trainer import Trainer
from helpers import postgres

LOADTEST_USERS = int(os.environ.get("LOADTEST_USERS", "100000"))
PACE = 400  # arrivals per second
STORED_USERS = 10**6  # with ten recommendations each
DEPARTING = [sys.executable, "-m", "departing"]
SERVER_CORE, LOAD_CORE = 1, 0  # the server and the load generator do not share a core
CONNECTIONS = 64, 1024
CAPACITY_SHARE = 0.8  # of the measured capacity, at which latencies are measured
LEARN = ("--learn", "--departures", "reported")
PLAN = ("--instance", "magazine", "--departures", "reported")
OLD_EVENTS, STEPS = 600_000, 4  # recommendations that are no longer in memory, and how many of them a user has
BATCH_CLIENTS, BATCH_ROWS = 4, 1000
WORKER_SHARE = 0.3  # of the rate of one worker, at which the CPU time per call is measured
PACED_SECONDS = 6.0  # of the recommendations beside batches
ROUNDS = 3  # alternating measurements of the echo and the server, and with and without a trainer
TITLE = "A server under load: 64 connections, load generator on the other core"


def rows() -> list[Row]:
    """All measurements of the service."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [
            *speed(folder),
            *while_training(folder),
            *beside_batches(folder),
            *many_users(folder / "many.sqlite"),
            *workers(),
            *loadtest(folder / "loadtest.sqlite"),
        ]


def speed(folder: Path) -> Iterator[Row]:
    """Request rates, CPU times per call and latencies: medians over rounds, alternating with the echo."""
    results: dict[str, list[dict[str, float]]] = defaultdict(list)
    for i in range(ROUNDS):
        events = folder / "events.json"
        with started(["-m", "benchmarks.serve", "echo"], SERVER_CORE) as port:
            for connections in CONNECTIONS:
                results[f"echo {connections}"].append(load(port, "echo", 60_000, connections))
        with serving(folder / f"{i}.sqlite", *LEARN, "--explore", "0.05", core=SERVER_CORE) as port:
            for connections in CONNECTIONS:
                results[f"recommend {connections}"].append(load(port, "recommend", 60_000, connections, events))
            results["feedback"].append(load(port, "feedback", 30_000, events=events))
            rate = CAPACITY_SHARE * results["recommend 64"][-1]["rate"]
            results["paced"].append(load(port, "recommend", 60_000, rate=rate))
        with serving(folder / f"{i} batch.sqlite", *PLAN, core=SERVER_CORE) as port:
            load(port, "recommend", 60_000, events=events)
            results["batch"].append(load(port, "batch", 120, events=events))
    for connections in CONNECTIONS:
        echo, recommend = results[f"echo {connections}"], results[f"recommend {connections}"]
        ratio = _median(echo, "cpu") / _median(recommend, "cpu")
        note = (
            f"{1e6 * _median(recommend, 'cpu'):.1f} µs, echo {1e6 * _median(echo, 'cpu'):.1f} µs; "
            f"{_median(recommend, 'rate'):,.0f} and {_median(echo, 'rate'):,.0f}/s"
        )
        label = f"recommendations per CPU time compared with the echo, {connections:,} connections"
        yield Row(label, ratio, "×", 0.55, note=note)
    p99, pace = 1e3 * _median(results["paced"], "p99"), _median(results["paced"], "rate")
    yield Row("recommendations, p99 at 80 % of capacity", p99, "ms", 25, at_least=False, note=f"{pace:,.0f}/s")
    recommend, single = results["recommend 64"], results["feedback"]
    note = f"{_median(single, 'rate'):,.0f}/s, {1e6 * _median(single, 'cpu'):.1f} µs of CPU time each"
    label = "durable feedback, one by one, compared with recommendations"
    yield Row(label, _median(single, "rate") / _median(recommend, "rate"), "×", 0.5, note=note)
    row = 1e6 * _median(results["batch"], "cpu") / ROWS
    note = f"{row:.1f} µs of CPU time each"
    yield Row(
        "durable feedback, batches of 500, rows", ROWS * _median(results["batch"], "rate"), "/s", 60_000, note=note
    )


def _median(results: list[dict[str, float]], name: str) -> float:
    return median(result[name] for result in results)


def while_training(folder: Path) -> Iterator[Row]:
    """p99 of recommendations while a trainer plans continuously for five categories and four types, and without."""
    rng = np.random.default_rng(0)
    site = dp.Instance(rng.dirichlet(np.ones(4)), rng.uniform(0.1, 0.9, (5, 4)), rng.uniform(0.3, 0.9, (5, 4)))
    site.save(folder / "five.toml")
    store, copy = folder / "train.sqlite", folder / "copy.sqlite"
    idle, training = [], []
    with serving(
        store, "--learn", "--departures", "reported", "--types", "4", "--categories", ",".join(site.categories)
    ) as port:
        run_loadtest(port, folder / "five.toml", 2000, 0)
        with closing(SqliteDatabase(store)) as database:
            database.copy(copy)
        for _ in range(ROUNDS):
            idle.append(load(port, "recommend", 40_000)["p99"])
            with subprocess.Popen([sys.executable, "-m", "benchmarks.serve", "train", str(copy)]) as trainer:
                time.sleep(4.0)  # until it plans
                training.append(load(port, "recommend", 40_000)["p99"])
                trainer.kill()
    without, during = 1e3 * median(idle), 1e3 * median(training)
    note = f"{without:.1f} and {during:.1f} ms; K = 5, M = 4"
    yield Row(
        "p99 of recommendations, with a trainer to without", during / without, "×", 2, at_least=False, note=note
    )


def train(copy: str) -> None:
    """Train in an endless loop."""
    os.nice(19)
    with closing(connect(copy)) as store:
        while True:
            trainer = Trainer(store, types=4)
            trainer._trained_at = -1
            trainer.step()


def beside_batches(folder: Path) -> Iterator[Row]:
    """p99 of recommendations at half of the capacity, while clients send batches of old feedback, and without."""
    store, events, rounds = folder / "old.sqlite", folder / "old.json", list[list[dict[str, float]]]()
    ids = old_events(store)
    with serving(store, *PLAN) as port:  # not pinned: its threads read and write on the other core
        load(port, "recommend", 20_000)
        rate = 0.5 * load(port, "recommend", 40_000)["rate"]
        total, share = int(PACED_SECONDS * rate), OLD_EVENTS // ROUNDS
        for i in range(ROUNDS):
            alone = load(port, "recommend", total, rate=rate)
            events.write_text(json.dumps(ids[i * share : (i + 1) * share]))
            rounds.append([alone, beside(port, total, rate, events, share // BATCH_ROWS)])
    (p50, p99), (busy_p50, busy_p99) = (
        [1e3 * _median(results, name) for name in ("median", "p99")] for results in zip(*rounds, strict=True)
    )
    rows = _median([both for _, both in rounds], "rows")
    note = (
        f"p50 {p50:.1f} and {busy_p50:.1f} ms, p99 {p99:.1f} and {busy_p99:.1f} ms at {rate:,.0f}/s; "
        f"{BATCH_CLIENTS} clients, {BATCH_ROWS:,} rows each time, {rows:,.0f} rows/s"
    )
    label = "p99 of recommendations at 50 % of capacity, with batches of old feedback to without"
    yield Row(label, busy_p99 / p99, "×", 2, at_least=False, note=note)


def old_events(path: Path) -> list[str]:
    """Write a store of users who wait for feedback on `STEPS` recommendations each; the IDs of these in any order."""
    with serving(path, *PLAN):
        pass
    now, numbers = time.time(), range(1, OLD_EVENTS + 1)
    users = (
        user_write(
            User(i, f"old {i}", 0, [], [Step(event, 0) for event in open_steps], STEPS, open_steps[-1], now),
            "no-click",
        )[1]
        for i, open_steps in enumerate(numbers[i : i + STEPS] for i in range(0, OLD_EVENTS, STEPS))
    )
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA synchronous = OFF")
        database.executemany(f"INSERT INTO users VALUES ({', '.join('?' * 10)})", users)
        database.executemany(
            "INSERT INTO decisions (event, number, time, category, propensity, version, policy_category) "
            f"VALUES (?, ?, {now}, 0, 1, 0, 0)",
            ((event, (event - 1) // STEPS) for event in numbers),
        )
    return [format_event_id(0, int(event)) for event in np.random.default_rng(0).permutation(numbers)]


def beside(port: int, total: int, rate: float, events: Path, batches: int) -> dict[str, float]:
    """Result of recommendations at a fixed rate while other clients send batches, with the `rows` per second."""
    command = [sys.executable, "-m", "benchmarks.loader", str(port)]
    options = ["--connections", str(BATCH_CLIENTS), "--rows", str(BATCH_ROWS), "--events", str(events), "--wait"]
    with (
        pinned(LOAD_CORE),
        waiting([*command, "batch", str(batches), *options]) as sender,
        waiting([*command, "recommend", str(total), "--rate", str(rate), "--wait"]) as paced,
    ):
        before = feedback_rows(port)
        for process in (sender, paced):
            process.stdin.write("go\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        began = time.perf_counter()
        result: dict[str, float] = json.loads(paced.stdout.readline())  # type: ignore[union-attr]
        rows, seconds = feedback_rows(port) - before, time.perf_counter() - began
        if sender.poll() is not None or result["failed"]:
            raise RuntimeError("The batches ended before the recommendations, or recommendations failed.")
    return result | {"rows": rows / seconds}


@contextmanager
def waiting(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A load generator that has prepared its requests and waits for a line; it is killed at the end."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            process.stdout.readline()  # type: ignore[union-attr]
            yield process
        finally:
            process.kill()


def feedback_rows(port: int) -> float:
    """Rows of feedback that a server has recorded."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = response.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("departing_feedback_total ")))


def many_users(path: Path) -> Iterator[Row]:
    """Start and memory with a million users and ten million recommendations in the store."""
    seconds, memory = big_store(path)
    yield Row("start with ten million stored recommendations", seconds, "s", 10, at_least=False)
    yield Row("memory with a million known users", memory, "MB", 1000, at_least=False)


def workers() -> Iterator[Row]:
    """One and two workers on PostgreSQL, 64 connections for each: rates, and the CPU time per call.

    Two workers need two cores, PostgreSQL and the load generator further ones. With fewer cores the rates cannot show
    how the service scales. The CPU time per call, that of PostgreSQL included, shows that more workers cost no more:
    it is measured at the same fixed rate for each worker, so that both have as many calls in a transaction.
    """
    if postgres.binaries() is None:
        print(postgres.MISSING, "Several workers are not measured.")
        return
    server, calls, pace = postgres.Postgres(), 30_000, 0.0
    rates: dict[int, list[float]] = {1: [], 2: []}
    spent: dict[int, list[np.ndarray]] = {1: [], 2: []}  # seconds per call of workers, PostgreSQL and load generator
    try:
        for _ in range(ROUNDS):
            for number in rates:
                with serving(server.new(), *PLAN, "--workers", str(number)) as port:
                    time.sleep(2.0)  # until all workers listen
                    pid, connections = server_pid(port), CONNECTIONS[0] * number
                    rates[number].append(load(port, "recommend", calls, connections)["rate"])
                    pace = pace or WORKER_SHARE * rates[1][0]
                    before = _spent(pid, server.process.pid)
                    load(port, "recommend", calls // 2 * number, connections, rate=pace * number)
                    spent[number].append((_spent(pid, server.process.pid) - before) / (calls // 2 * number))
    finally:
        server.close()
    one, two = (median(measured) for measured in rates.values())
    each = {number: 1e6 * np.median(measured, axis=0) for number, measured in spent.items()}
    cores, service = os.cpu_count() or 1, {number: micros[:2].sum() for number, micros in each.items()}
    parts = (
        f"{'one worker' if number == 1 else 'two workers'} {micros[0]:.0f} µs, PostgreSQL {micros[1]:.0f} µs, load "
        f"generator {micros[2]:.0f} µs"
        for number, micros in each.items()
    )
    note = (
        f"{'; '.join(parts)}, at {pace:,.0f} calls/s for each worker. "
        f"At most {one:,.0f} and {two:,.0f} calls/s ({two / one:.2f} times) on {cores} cores"
    )
    if cores > 3:
        yield Row("two workers on PostgreSQL compared with one", two / one, "×", 1.6)
    ratio = service[2] / service[1]
    yield Row("CPU time per call, two workers compared with one", ratio, "×", 1.1, at_least=False, note=note)


def _spent(pid: int, database: int) -> np.ndarray:
    """CPU seconds of the workers, of PostgreSQL and of the load generators so far."""
    return np.array([cpu(pid), cpu(database), sum(os.times()[2:4])])


def cpu(pid: int) -> float:
    """CPU seconds of a process and its descendants."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(cpu, map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())))


def loadtest(store: Path) -> Iterator[Row]:
    """Regret of a learning service, compared with the same learner in `dp.simulate` with as many open users."""
    with serving(store, "--learn", "--departures", "reported", "--explore", "0", "--types", "3") as port:
        wait_for(port)
        magazine().save(store.with_suffix(".toml"))
        result = run_loadtest(port, store.with_suffix(".toml"), LOADTEST_USERS, PACE)
    optimum = dp.plan(magazine(), 1e-3)
    runs = [
        dp.simulate(magazine(), Bayes(3, 3, seed=seed), LOADTEST_USERS, seed=seed, open_users=64, optimum=optimum)
        for seed in range(3)
    ]
    simulated = sum(float(run.regret[-1]) for run in runs) / len(runs)
    regret, fixed = result["regret"], (optimum.value - magazine().best_fixed[1]) * LOADTEST_USERS
    note = f"{regret:,.0f} to {simulated:,.0f}; always news {fixed:,.0f}; p99 {1e3 * result['p99_seconds']:.0f} ms"
    label = f"regret of {LOADTEST_USERS:,} users compared with dp.simulate"
    yield Row(label, regret / simulated, "×", 1.2, at_least=False, note=note)


def run_loadtest(port: int, instance: Path, users: int, pace: float) -> dict[str, float]:
    """Run `departing loadtest`; its JSON result."""
    url = f"http://127.0.0.1:{port}"
    options = ["--url", url, "--users", str(users), "--pace", str(pace), "--json"]
    done = subprocess.run(
        [*DEPARTING, "loadtest", str(instance), *options], capture_output=True, text=True, check=True
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def big_store(path: Path) -> tuple[float, float]:
    """Seconds to start on a store with ten million recommendations to a million users, and its memory in MB."""
    with serving(path, *PLAN):
        pass

    def user_rows() -> Iterator[tuple[object, ...]]:
        for i in range(STORED_USERS):
            user = User(i, f"user {i}", 0, [i % 9, 2, 0, 0, 1, 3, 0, 0, 0, 1], [], 10)
            yield user_write(user, "no-click")[1]

    with sqlite3.connect(path) as database:
        database.execute("PRAGMA synchronous = OFF")
        columns = len(next(user_rows()))
        database.executemany(f"INSERT INTO users VALUES ({', '.join('?' * columns)})", user_rows())
        numbers = (
            f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {10 * STORED_USERS - 1}) "
        )
        database.execute(
            "INSERT INTO decisions (event, number, time, category, propensity, version, policy_category) "
            f"{numbers} SELECT i + 1, i % {STORED_USERS}, 0, 0, 1, 0, 0 FROM n"
        )
    start = time.perf_counter()
    with serving(path, *PLAN) as port:
        seconds = time.perf_counter() - start
        pid = next(p for p in _pids(str(path)))
        load(port, "everybody", STORED_USERS)
        memory = int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024
    return seconds, memory


def _pids(text: str) -> Iterator[int]:
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in command and b"trainer" not in command:
            yield int(place.name)


def wait_for(port: int) -> None:
    """Wait for the first policy of the trainer."""
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready"):
                return
        except urllib.error.HTTPError:
            time.sleep(0.1)


def load(
    port: int,
    kind: str,
    total: int,
    connections: int = CONNECTIONS[0],
    events: Path | None = None,
    rate: float | None = None,
) -> dict[str, float]:
    """Run the load generator; its result, with the CPU seconds of the server per request."""
    command = [sys.executable, "-m", "benchmarks.loader", str(port), kind, str(total)]
    command += ["--connections", str(connections)]
    command += [] if events is None else ["--events", str(events)]
    command += [] if rate is None else ["--rate", str(rate)]
    pid = server_pid(port)
    with pinned(LOAD_CORE):
        before = threads_cpu(pid)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    if result["failed"]:
        raise RuntimeError(f"{result['failed']:,} of {total:,} requests failed.")
    return result | {"cpu": (threads_cpu(pid) - before) / total}


def server_pid(port: int) -> int:
    """Process ID of the server that was started on a port."""
    return next(_pids(f"\0{port}\0"))


def threads_cpu(pid: int) -> float:
    """CPU seconds of all threads of a process, to the nanosecond."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Run this process, and those that it starts, on one core, if there are several."""
    cores = os.sched_getaffinity(0)
    if core is not None and len(cores) > 1:
        os.sched_setaffinity(0, {sorted(cores)[core]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def serving(store: Path | str, *options: str, core: int | None = None) -> Iterator[int]:
    known = [] if {"--instance", "--categories"} & set(options) else ["--categories", "news,sport,music"]
    with started([*DEPARTING[1:], "serve", "--store", str(store), *known, *options, "--port"], core) as port:
        yield port


@contextmanager
def started(command: list[str], core: int | None = None) -> Iterator[int]:
    """A server on a free port, passed as the last argument."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pinned(core):
        process = subprocess.Popen(
            [sys.executable, *command, str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ,
        )
    try:
        while True:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                raise RuntimeError(f"{command} did not start")
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


async def echo(port: int) -> None:
    """The same stack without a service: decodes and encodes JSON."""
    import msgspec

    from departing.service import messages as m
    from departing.service.api.connections import MAX_CONNECTIONS
    from departing.service.server import http_server

    decode, encode = msgspec.json.Decoder(m.RecommendRequest).decode, msgspec.json.Encoder().encode

    class App:
        async def __rsgi__(self, scope, protocol) -> None:  # type: ignore[no-untyped-def]
            request = decode(await protocol())
            response = m.Recommendation("e-1", request.user, 1.0, 0)
            protocol.response_bytes(200, [("content-type", "application/json")], encode(response))

    stopped = stop_event()
    serving = asyncio.create_task(http_server(App(), "127.0.0.1", port, MAX_CONNECTIONS).serve())
    await asyncio.wait([serving, asyncio.create_task(stopped.wait())], return_when=asyncio.FIRST_COMPLETED)


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        run(echo(int(sys.argv[2])))
    else:
        train(sys.argv[2])
