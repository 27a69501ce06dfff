"""Services and stores without HTTP, for tests."""

import asyncio
import importlib
import pkgutil
import sqlite3
import time
from contextlib import closing, contextmanager

from departing.service import messages as m
from departing.service import store as stores
from departing.service.policy_version import PolicyVersion
from departing.service.rollout import publication
from departing.service.settings import Settings
from departing.service.startup import open_service
from departing.service.store.base import Store, StoreError
from departing.service.store.connection import connect
from departing.service.store.queries import WRITE_CHECK_KEY

NAMES = ["news", "sports", "music"]
TABLES = (
    *("meta", "categories", "users", "decisions", "feedback", "departures", "policies", "allocations", "counters"),
    *("experiments", "assignments", "segments"),
)


class FixedClock:
    """A clock that a test sets."""

    def __init__(self, time=1000.0):
        self.time = time

    def __call__(self):
        return self.time


@contextmanager
def service(address, names=NAMES, instance=None, seed=1, **options):
    """A service with a fixed clock; an instance brings its own categories."""
    opened = open_service(address, [] if instance else names, instance, Settings(**options), seed)
    opened.clock = FixedClock()
    with closing(opened.store):
        yield opened


def run(call):
    return asyncio.run(call)


def recommend(service, *fields, **more):
    return run(service.recommend(m.RecommendRequest(*fields, **more)))


def wait_for(call, seconds=60.0):
    """The result of an asynchronous call, repeated while the store fails."""

    async def repeated():
        deadline = time.monotonic() + seconds
        while True:
            try:
                return await call()
            except StoreError:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)

    return run(repeated())


def rows(service, query):
    return run(service.store.transaction(lambda tx: tx.rows(query)))


def publish(service, policy, n_categories=3, **details):
    """Publish a policy for all new users."""
    version = PolicyVersion(-1, 0.0, policy, n_categories, details)
    run(service.store.transaction(lambda tx: service.rollout.publish(tx, version)))


def publish_as_trainer(address, policies, trials=(), latest=None):
    """Publish policies by number, from outside the service."""
    versions = [PolicyVersion(number, 0.0, policy, 3, {}) for number, policy in policies.items()]
    with closing(connect(address)) as database, database.transaction():
        for query, values in publication(versions, trials, max(policies) if latest is None else latest):
            database.execute(query, *values)


@contextmanager
def locked(path):
    """Hold the file's write lock from another connection, as a program that hangs in a transaction would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("COMMIT")


def store_classes():
    """All stores that the package defines."""
    for module in pkgutil.iter_modules(stores.__path__, f"{stores.__name__}."):
        importlib.import_module(module.name)
    found, queue = [], [Store]
    while queue:
        subclasses = queue.pop().__subclasses__()
        queue += subclasses
        found += [each for each in subclasses if not getattr(each, "__abstractmethods__", None)]
    return sorted(found, key=lambda each: each.__name__)


def contents(store):
    """All rows on disk, except the one by which PostgreSQL is checked."""
    with store.read() as snapshot:
        tables = {table: sorted(snapshot.execute(f"SELECT * FROM {table}"), key=repr) for table in TABLES}
    tables["meta"] = [row for row in tables["meta"] if row[0] != WRITE_CHECK_KEY]
    return tables
