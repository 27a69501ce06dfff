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
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import departing as dp
from benchmarks.common import Row
from departing.learning.bayes import Bayes
from departing.model.examples import magazine
from departing.service.store.base import user_write
from departing.service.store.connection import SqliteDatabase, connect
from departing.service.user import User
from departing.service.workers.trainer import Trainer
from helpers import postgres

LOADTEST_USERS = int(os.environ.get("LOADTEST_USERS", "100000"))
PACE = 400  # arrivals per second
STORED_USERS = 10**6  # with ten recommendations each
DEPARTING = [sys.executable, "-m", "departing"]
ROUNDS = 3  # alternating measurements of the echo and the server, and with and without a trainer
TITLE = "A server under load: 64 connections, load generator on the other core"


def rows() -> list[Row]:
    """All measurements of the service."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [
            *speed(folder),
            *while_training(folder),
            *many_users(folder / "many.sqlite"),
            *workers(),
            *loadtest(folder / "loadtest.sqlite"),
        ]


def speed(folder: Path) -> Iterator[Row]:
    """Request rates and latencies: medians over rounds, alternating with the echo."""
    echoes, recommends, single, batch = [], [], [], []
    for i in range(ROUNDS):
        with started(["-m", "benchmarks.serve", "echo"]) as port:
            echoes.append(load(port, "echo", 60_000))
        with serving(folder / f"{i}.sqlite", "--learn", "--explore", "0.05") as port:
            recommends.append(load(port, "recommend", 60_000))
            single.append(load(port, "feedback", 20_000))
        with serving(folder / f"{i} batch.sqlite", "--instance", "magazine") as port:
            load(port, "recommend", 60_000)
            batch.append(load(port, "batch", 120))
    of_echo = [one["rate"] / other["rate"] for one, other in zip(recommends, echoes, strict=True)]
    low, high = min(of_echo), max(of_echo)
    yield Row(
        "recommendations",
        _median(recommends, "rate"),
        "/s",
        8000,
        note=f"p50 {1e3 * _median(recommends, 'median'):.1f} ms",
    )
    yield Row("recommendations, p99", 1e3 * _median(recommends, "p99"), "ms", 20, at_least=False)
    note = f"{low:.2f} to {high:.2f}; echo {_median(echoes, 'rate'):,.0f}/s"
    yield Row("recommendations compared with the echo", median(of_echo), "×", 0.5, note=note)
    yield Row("durable feedback, one by one", _median(single, "rate"), "/s", 2500)
    yield Row("durable feedback, one by one, p99", 1e3 * _median(single, "p99"), "ms", 50, at_least=False)
    yield Row("durable feedback, batches of 500, rows", 500 * _median(batch, "rate"), "/s", 50_000)


def _median(results: list[dict[str, float]], name: str) -> float:
    return median(result[name] for result in results)


def while_training(folder: Path) -> Iterator[Row]:
    """p99 of recommendations while a trainer plans continuously for five categories and four types, and without."""
    rng = np.random.default_rng(0)
    site = dp.Instance(rng.dirichlet(np.ones(4)), rng.uniform(0.1, 0.9, (5, 4)), rng.uniform(0.3, 0.9, (5, 4)))
    site.save(folder / "five.toml")
    store, copy = folder / "train.sqlite", folder / "copy.sqlite"
    idle, training = [], []
    with serving(store, "--learn", "--types", "4", "--categories", ",".join(site.categories)) as port:
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


def many_users(path: Path) -> Iterator[Row]:
    """Start and memory with a million users and ten million recommendations in the store."""
    seconds, memory = big_store(path)
    yield Row("start with ten million stored recommendations", seconds, "s", 10, at_least=False)
    yield Row("memory with a million known users", memory, "MB", 1000, at_least=False)


def workers() -> Iterator[Row]:
    """One and two workers on PostgreSQL, with the CPU time per call, which shows when the cores are saturated."""
    if postgres.binaries() is None:
        print(postgres.MISSING, "Several workers are not measured.")
        return
    server, calls = postgres.Postgres(), 30_000
    rates: dict[int, list[float]] = {1: [], 2: []}
    spent = np.zeros(3)
    try:
        for _ in range(ROUNDS):
            for number, measured in rates.items():
                with serving(server.new(), "--instance", "magazine", "--workers", str(number)) as port:
                    time.sleep(2.0)  # until all workers listen
                    pid = next(_pids(f"--port\0{port}\0"))
                    before = np.array([cpu(pid), cpu(server.process.pid), sum(os.times()[2:4])])
                    measured.append(load(port, "recommend", calls)["rate"])
                    spent += np.array([cpu(pid), cpu(server.process.pid), sum(os.times()[2:4])]) - before
    finally:
        server.close()
    one, two = (median(measured) for measured in rates.values())
    each = 1e6 * spent / (2 * ROUNDS * calls)
    full = 1e6 * (os.cpu_count() or 1) / each.sum()
    note = (
        f"{one:,.0f} and {two:,.0f}/s; a call takes {each[0]:.0f} µs of the workers, {each[1]:.0f} µs of PostgreSQL "
        f"and {each[2]:.0f} µs of the load generator: {os.cpu_count()} cores are saturated at {full:,.0f}/s"
    )
    yield Row("two workers on PostgreSQL compared with one", two / one, "×", 1.6, note=note)


def cpu(pid: int) -> float:
    """CPU seconds of a process and its descendants."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(cpu, map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())))


def loadtest(store: Path) -> Iterator[Row]:
    """Regret of a learning service, compared with the same learner in `dp.simulate` with as many open users."""
    with serving(store, "--learn", "--explore", "0", "--types", "3") as port:
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
    with serving(path, "--instance", "magazine"):
        pass

    def user_rows() -> Iterator[tuple[object, ...]]:
        for i in range(STORED_USERS):
            user = User(i, f"user {i}", 0, [i % 9, 2, 0, 0, 1, 3, 0, 0, 0, 1], [], 10)
            yield user_write(user, "no-click")[1]

    with sqlite3.connect(path) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.executemany("INSERT INTO users VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", user_rows())
        numbers = (
            f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {10 * STORED_USERS - 1}) "
        )
        database.execute(
            f"INSERT INTO decisions {numbers} SELECT i + 1, NULL, i % {STORED_USERS}, 0, 0, 1, 0, 0, 0 FROM n"
        )
    start = time.perf_counter()
    with serving(path, "--instance", "magazine") as port:
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


def load(port: int, kind: str, total: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.loader", str(port), kind, str(total)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


@contextmanager
def serving(store: Path | str, *options: str) -> Iterator[int]:
    known = [] if {"--instance", "--categories"} & set(options) else ["--categories", "news,sport,music"]
    with started([*DEPARTING[1:], "serve", "--store", str(store), *known, *options, "--port"]) as port:
        yield port


@contextmanager
def started(command: list[str]) -> Iterator[int]:
    """A server on a free port, passed as the last argument."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, *command, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
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
    from granian.constants import Interfaces
    from granian.server.embed import Server

    from departing.service import messages as m

    decode, encode = msgspec.json.Decoder(m.RecommendRequest).decode, msgspec.json.Encoder().encode

    class App:
        async def __rsgi__(self, scope, protocol) -> None:  # type: ignore[no-untyped-def]
            request = decode(await protocol())
            response = m.Recommendation("e-1", request.user, 1.0, 0)
            protocol.response_bytes(200, [("content-type", "application/json")], encode(response))

    await Server(App(), port=port, interface=Interfaces.RSGI, log_enabled=False).serve()


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        asyncio.run(echo(int(sys.argv[2])))
    train(sys.argv[2])
