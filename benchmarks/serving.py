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
from contextlib import contextmanager
from pathlib import Path

import msgspec

import departing as dp
from benchmarks.common import Row
from departing.learning.bayes import Bayes
from departing.model.examples import magazine
from departing.serving.people import User
from departing.serving.versions import Version

USERS = 20_000  # of the crowd
MANY = 10**6  # users that are known, with ten decisions each
TITLE = "A server under load, 64 connections, the load on the other core"


def rows() -> list[Row]:
    """What the server does, and what the echo does."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with started(["-m", "benchmarks.serving", "echo"]) as port:
            echo = load(port, "echo", 60_000)
        with serving(folder / "a.sqlite", "--learn", "--explore", "0.05") as port:
            asked = load(port, "recommend", 60_000)
            single = load(port, "feedback", 20_000)
        with serving(folder / "b.sqlite", "--instance", "magazine") as port:
            load(port, "recommend", 60_000)
            batch = load(port, "batch", 120)
        with serving(folder / "c.sqlite", "--learn", "--explore", "0", "--types", "3") as port:
            wait_for(port)
            played = load(port, "crowd", USERS)
        lost, fixed = regret(folder / "c.sqlite")
        memory_and_start = big_store(folder / "d.sqlite")
    best = dp.plan(magazine(), 1e-3)
    runs = [
        dp.simulate(magazine(), Bayes(3, 3, seed=seed), USERS, seed=seed, open_users=64, optimum=best)
        for seed in range(3)
    ]
    alone = sum(float(run.regret[-1]) for run in runs) / len(runs)
    return [
        Row("recommend, a second", asked["rate"], "/s", 8000, note=f"p50 {asked['median'] * 1e3:.1f} ms"),
        Row("recommend against the echo", asked["rate"] / echo["rate"], "×", 0.5, note=f"echo {echo['rate']:,.0f}/s"),
        Row("recommend, p99", asked["p99"] * 1e3, "ms", 20, at_least=False),
        Row("durable single feedback, a second", single["rate"], "/s", 2500),
        Row("durable single feedback, p99", single["p99"] * 1e3, "ms", 50, at_least=False),
        Row("feedback in batches of 500, rows a second", batch["rate"] * 500, "/s", 50_000),
        Row("start with ten million decisions stored", memory_and_start[0], "s", 10, at_least=False),
        Row("memory then", memory_and_start[1], "MB", 1000, at_least=False, note="a million users known"),
        Row(
            f"regret of a crowd of {USERS:,} against that of dp.simulate",
            lost / alone,
            "×",
            1.2,
            at_least=False,
            note=f"{lost:,.0f} to {alone:,.0f}; a fixed category {fixed:,.0f}; {played['rate']:,.0f} calls/s",
        ),
    ]


def regret(store: Path) -> tuple[float, float]:
    """What the users of a store lost by the exact values of the policies they were given; and by a fixed category."""
    site = magazine()
    with sqlite3.connect(store) as database:
        users = dict(database.execute("SELECT version, count(DISTINCT user) FROM decisions GROUP BY version"))
        versions = {row[0]: Version.of_row(*row) for row in database.execute("SELECT * FROM policies")}
    best, lost = dp.plan(site, 1e-4).value, 0.0
    uniform = sum(dp.evaluate(site, dp.Fixed(a)).value for a in range(3)) / 3  # about: it is drawn at every step
    for number, n in users.items():
        version = versions[number]
        worth = uniform if version.about.get("uniform") else dp.evaluate(site, version.policy, 1e-4).value
        lost += n * (best - worth)
    return lost, (best - site.best_fixed[1]) * sum(users.values())


def big_store(path: Path) -> tuple[float, float]:
    """Seconds to start on a store with ten million decisions of a million users, and the memory it takes, in MB."""
    with serving(path, "--instance", "magazine"):
        pass

    def known() -> Iterator[tuple[int, str, bytes, bytes, int, float]]:
        for i in range(MANY):
            user = User(i, f"user {i}", 0, [i % 9, 2, 0, 0, 1, 3, 0, 0, 0, 1], [], 10)
            yield i, user.name, msgspec.msgpack.encode(user), msgspec.msgpack.encode(user.counts), 0, 0.0

    with sqlite3.connect(path) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.executemany("INSERT INTO users VALUES (?, ?, ?, ?, ?, ?)", known())
        numbers = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {10 * MANY - 1}) "
        database.execute(f"INSERT INTO decisions {numbers} SELECT i + 1, NULL, i % {MANY}, 0, 0, 1, 0, 0 FROM n")
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
def serving(store: Path, *options: str) -> Iterator[int]:
    known = [] if "--instance" in options else ["--categories", "news,sport,music"]
    code = "from departing.cli import main; main()"
    with started(["-c", code, "serve", "--store", str(store), *known, *options, "--port"]) as port:
        yield port


@contextmanager
def started(command: list[str]) -> Iterator[int]:
    """A server on a free port, given as the last argument."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    process = subprocess.Popen([sys.executable, *command, str(port)], stderr=subprocess.DEVNULL, env=os.environ)
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

    from departing.serving import messages as m

    decode, encode = msgspec.json.Decoder(m.Ask).decode, msgspec.json.Encoder().encode

    class App:
        async def __rsgi__(self, scope, protocol) -> None:  # type: ignore[no-untyped-def]
            ask = decode(await protocol())
            answer = m.Recommendation("e-1", ask.user, 1.0, 0)
            protocol.response_bytes(200, [("content-type", "application/json")], encode(answer))

    await Server(App(), port=port, interface=Interfaces.RSGI, log_enabled=False).serve()


if __name__ == "__main__":
    asyncio.run(echo(int(sys.argv[2])))
