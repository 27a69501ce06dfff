"""Resident memory of a server whose users are all active: below 1 GB, whatever their number and size."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import departing as dp
from departing.service.store import cache
from departing.service.store.base import user_write
from departing.service.user import User
from helpers.load import LONG
from helpers.servers import serving

LIMIT = 1000  # MB
# Categories and users. Two generations of users are in memory: 300,000 up to about 40 categories, 74,000 with 200.
SIZES = [(200, 100_000), *([(5, 1_000_000), (40, 400_000)] if LONG else [])]


def fill(store, n_categories, n_users):
    """Write active users with counts in all categories straight into a store."""
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 4, (100, 4 * n_categories)).tolist()

    def rows():
        for i in range(n_users):
            user = User(i, f"user {i}", 0, counts[i % len(counts)], [], 10)
            yield user_write(user, "no-click")[1]

    with closing(sqlite3.connect(store)) as database, database:
        database.execute("PRAGMA synchronous = OFF")
        columns = len(next(rows()))
        database.executemany(f"INSERT INTO users VALUES ({', '.join('?' * columns)})", rows())


def request_all(server, n_users):
    """Request one recommendation for every user over 64 connections."""
    command = [sys.executable, "-m", "benchmarks.loader", str(server.port), "everybody", str(n_users)]
    folder = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["failed"] == 0


def peak(pid):
    """Largest resident memory of a process so far, in MB."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("n_categories", "n_users"), SIZES)
def test_the_memory_of_many_active_users_stays_below_1_gb(tmp_path, n_categories, n_users):
    in_memory = 2 * min(cache.MAX_CACHED_USERS, cache.MAX_USER_BYTES / (cache.USER_BYTES + 32 * n_categories))
    assert n_users > in_memory  # so that the limits are reached
    click = np.linspace(0.2, 0.8, n_categories)[:, None]
    dp.Instance([1.0], click, np.full_like(click, 0.5)).save(tmp_path / "site.toml")
    options = ("--instance", tmp_path / "site.toml", "--departures", "reported")
    with serving(tmp_path, *options) as server:
        server.stop()
        fill(server.store, n_categories, n_users)
        server.start()
        at_start = peak(server.process.pid)
        request_all(server, n_users)
        memory = peak(server.process.pid)
    print(f"sqlite: {n_users:,} active users, {n_categories} categories: {at_start:.0f} to {memory:.0f} MB")
    assert memory < LIMIT
