"""A real server under load, beside a bare echo of the same stack, and what its learner loses."""

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
from departing.service.store.connection import SqliteDatabase
from departing.service.store.training import TrainingStore
from departing.service.user import User
from departing.service.workers.trainer import Trainer
from helpers import postgres

CROWD = int(os.environ.get("CROWD", "100000"))  # users
PACE = 400  # of them a second
MANY = 10**6  # users that are known, with ten decisions each
DEPARTING = [sys.executable, "-c", "from departing.cli import main; main()"]
TURNS = 3  # that the echo and the server take, and recommending with and without a trainer
TITLE = "A server under load, 64 connections, the load on the other core"


def rows() -> list[Row]:
    """What the server does, and what the echo does."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [
            *speed(folder),
            *while_training(folder),
            *many_users(folder / "many.sqlite"),
            *workers(),
            *crowd(folder / "crowd.sqlite"),
        ]


def speed(folder: Path) -> Iterator[Row]:
    """Rates and times of calls, in turns with the echo; the medians of them."""
    echoes, asked, single, batch = [], [], [], []
    for turn in range(TURNS):
        with started(["-m", "benchmarks.serve", "echo"]) as port:
            echoes.append(load(port, "echo", 60_000))
        with serving(folder / f"{turn}.sqlite", "--learn", "--explore", "0.05") as port:
            asked.append(load(port, "recommend", 60_000))
            single.append(load(port, "feedback", 20_000))
        with serving(folder / f"{turn} batch.sqlite", "--instance", "magazine") as port:
            load(port, "recommend", 60_000)
            batch.append(load(port, "batch", 120))
    of_echo = [one["rate"] / other["rate"] for one, other in zip(asked, echoes, strict=True)]
    low, high = min(of_echo), max(of_echo)
    yield Row(
        "recommend, a second", _mid(asked, "rate"), "/s", 8000, note=f"p50 {1e3 * _mid(asked, 'median'):.1f} ms"
    )
    yield Row("recommend, p99", 1e3 * _mid(asked, "p99"), "ms", 20, at_least=False)
    note = f"{low:.2f} to {high:.2f}; echo {_mid(echoes, 'rate'):,.0f}/s"
    yield Row("recommend against the echo", median(of_echo), "×", 0.5, note=note)
    yield Row("durable single feedback, a second", _mid(single, "rate"), "/s", 2500)
    yield Row("durable single feedback, p99", 1e3 * _mid(single, "p99"), "ms", 50, at_least=False)
    yield Row("feedback in batches of 500, rows a second", 500 * _mid(batch, "rate"), "/s", 50_000)


def _mid(found: list[dict[str, float]], name: str) -> float:
    return median(each[name] for each in found)


def while_training(folder: Path) -> Iterator[Row]:
    """The p99 of recommend while a trainer plans all the time, for five categories and four types, and without."""
    rng = np.random.default_rng(0)
    site = dp.Instance(rng.dirichlet(np.ones(4)), rng.uniform(0.1, 0.9, (5, 4)), rng.uniform(0.3, 0.9, (5, 4)))
    site.save(folder / "five.toml")
    store, copy = folder / "train.sqlite", folder / "copy.sqlite"
    alone, busy = [], []
    with serving(store, "--learn", "--types", "4", "--categories", ",".join(site.categories)) as port:
        play(port, folder / "five.toml", 2000, 0)
        with closing(SqliteDatabase(store)) as database:
            database.copy(copy)
        for _ in range(TURNS):
            alone.append(load(port, "recommend", 40_000)["p99"])
            with subprocess.Popen([sys.executable, "-m", "benchmarks.serve", "train", str(copy)]) as trainer:
                time.sleep(4.0)  # it has begun
                busy.append(load(port, "recommend", 40_000)["p99"])
                trainer.kill()
    one, other = 1e3 * median(alone), 1e3 * median(busy)
    note = f"{one:.1f} and {other:.1f} ms; K = 5, M = 4"
    yield Row("p99 of recommend while a trainer plans, to without", other / one, "×", 2, at_least=False, note=note)


def train(copy: str) -> None:
    """What a trainer does, again and again."""
    os.nice(19)
    with closing(TrainingStore(copy)) as store:
        while True:
            trainer = Trainer(store, types=4)
            trainer._trained_at = -1
            trainer.step()


def many_users(path: Path) -> Iterator[Row]:
    """A million users, known, and ten million decisions, stored."""
    seconds, memory = big_store(path)
    yield Row("start with ten million decisions stored", seconds, "s", 10, at_least=False)
    yield Row("memory then", memory, "MB", 1000, at_least=False, note="a million users known")


def workers() -> Iterator[Row]:
    """One and two workers on PostgreSQL, in turns; where cores are not free, what a call takes of them tells why."""
    if postgres.binaries() is None:
        print(postgres.MISSING, "so several workers are not measured.")
        return
    server, calls = postgres.Postgres(), 30_000
    rates: dict[int, list[float]] = {1: [], 2: []}
    spent = np.zeros(3)
    try:
        for _ in range(TURNS):
            for number, found in rates.items():
                with serving(server.new(), "--instance", "magazine", "--workers", str(number)) as port:
                    time.sleep(2.0)  # all of them listen
                    pid = next(_pids(f"--port\0{port}\0"))
                    before = np.array([cpu(pid), cpu(server.process.pid), sum(os.times()[2:4])])
                    found.append(load(port, "recommend", calls)["rate"])
                    spent += np.array([cpu(pid), cpu(server.process.pid), sum(os.times()[2:4])]) - before
    finally:
        server.close()
    one, two = (median(found) for found in rates.values())
    each = 1e6 * spent / (2 * TURNS * calls)
    full = 1e6 * (os.cpu_count() or 1) / each.sum()
    note = (
        f"{one:,.0f} and {two:,.0f}/s; a call takes {each[0]:.0f} µs of the workers, {each[1]:.0f} of PostgreSQL and "
        f"{each[2]:.0f} of the load, so that {os.cpu_count()} cores are full at {full:,.0f}/s"
    )
    yield Row("two workers on PostgreSQL to one", two / one, "×", 1.6, note=note)


def cpu(pid: int) -> float:
    """Seconds of CPU time that a process and those it started have taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(cpu, map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())))


def crowd(store: Path) -> Iterator[Row]:
    """What users lose to a learner behind HTTP, beside what they lose to it in a simulation, as many open."""
    with serving(store, "--learn", "--explore", "0", "--types", "3") as port:
        wait_for(port)
        magazine().save(store.with_suffix(".toml"))
        played = play(port, store.with_suffix(".toml"), CROWD, PACE)
    best = dp.plan(magazine(), 1e-3)
    runs = [
        dp.simulate(magazine(), Bayes(3, 3, seed=seed), CROWD, seed=seed, open_users=64, optimum=best)
        for seed in range(3)
    ]
    alone = sum(float(run.regret[-1]) for run in runs) / len(runs)
    lost, fixed = played["regret"], (best.value - magazine().best_fixed[1]) * CROWD
    note = f"{lost:,.0f} to {alone:,.0f}; always news {fixed:,.0f}; p99 {1e3 * played['p99_seconds']:.0f} ms"
    what = f"regret of a crowd of {CROWD:,} against that of dp.simulate"
    yield Row(what, lost / alone, "×", 1.2, at_least=False, note=note)


def play(port: int, instance: Path, users: int, pace: float) -> dict[str, float]:
    """Let a crowd visit."""
    url = f"http://127.0.0.1:{port}"
    options = ["--url", url, "--users", str(users), "--pace", str(pace), "--json"]
    done = subprocess.run(
        [*DEPARTING, "loadtest", str(instance), *options], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def big_store(path: Path) -> tuple[float, float]:
    """Seconds to start on a store with ten million decisions of a million users, and the memory it takes, in MB."""
    with serving(path, "--instance", "magazine"):
        pass

    def known() -> Iterator[tuple[object, ...]]:
        for i in range(MANY):
            user = User(i, f"user {i}", 0, [i % 9, 2, 0, 0, 1, 3, 0, 0, 0, 1], [], 10)
            yield user_write(user, "no-click")[1]

    with sqlite3.connect(path) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.executemany("INSERT INTO users VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", known())
        numbers = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {10 * MANY - 1}) "
        database.execute(f"INSERT INTO decisions {numbers} SELECT i + 1, NULL, i % {MANY}, 0, 0, 1, 0, 0, 0 FROM n")
    begun = time.perf_counter()
    with serving(path, "--instance", "magazine") as port:
        seconds = time.perf_counter() - begun
        pid = next(p for p in _pids(str(path)))
        load(port, "everybody", MANY)
        memory = int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024
    return seconds, memory


def _pids(words: str) -> Iterator[int]:
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes()
        except OSError:
            continue
        if words.encode() in command and b"trainer" not in command:
            yield int(place.name)


def wait_for(port: int) -> None:
    """Wait until the trainer has published its first policy."""
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready"):
                return
        except urllib.error.HTTPError:
            time.sleep(0.1)


def load(port: int, kind: str, total: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.loader", str(port), kind, str(total)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


@contextmanager
def serving(store: Path | str, *options: str) -> Iterator[int]:
    known = [] if {"--instance", "--categories"} & set(options) else ["--categories", "news,sport,music"]
    with started([*DEPARTING[1:], "serve", "--store", str(store), *known, *options, "--port"]) as port:
        yield port


@contextmanager
def started(command: list[str]) -> Iterator[int]:
    """A server on a free port, given as the last argument."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, *command, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
    )
    try:
        while True:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                raise RuntimeError(f"{command} does not start")
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


async def echo(port: int) -> None:
    """The same stack with nothing in it: reads JSON, writes JSON."""
    import msgspec
    from granian.constants import Interfaces
    from granian.server.embed import Server

    from departing.service.api import messages as m

    decode, encode = msgspec.json.Decoder(m.RecommendRequest).decode, msgspec.json.Encoder().encode

    class App:
        async def __rsgi__(self, scope, protocol) -> None:  # type: ignore[no-untyped-def]
            ask = decode(await protocol())
            answer = m.Recommendation("e-1", ask.user, 1.0, 0)
            protocol.response_bytes(200, [("content-type", "application/json")], encode(answer))

    await Server(App(), port=port, interface=Interfaces.RSGI, log_enabled=False).serve()


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        asyncio.run(echo(int(sys.argv[2])))
    train(sys.argv[2])
