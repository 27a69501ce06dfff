"""Opening a service: its store, its categories and its first policy version."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

from departing.model.errors import InputError, MissingExtraError
from departing.model.instance import Instance
from departing.planning.plan import plan
from departing.policy.schedule import Fixed
from departing.service.policy_version import INITIAL, INSTANCE, PolicyVersion, policy_details
from departing.service.rollout import RolloutState
from departing.service.service import Service, Settings
from departing.service.store import queries
from departing.service.store.base import Store, StoreError, Transaction
from departing.service.store.connection import is_postgres
from departing.service.store.sqlite import SqliteStore

PLAN_GAP = 1e-6  # relative to the value: no user notices a difference below it
PLAN_SECONDS = 60.0  # time limit of planning at the start


def open_store(address: str | Path, missing_feedback: str = "no-click") -> Store:
    """Open the store at an address: a file, or a PostgreSQL database."""
    if is_postgres(address):
        try:
            from departing.service.store.postgres import PostgresStore
        except ImportError as error:
            raise MissingExtraError("PostgreSQL needs psycopg; install it with: pip install '.[postgres]'") from error
        return PostgresStore(str(address), missing_feedback)
    if "://" in str(address):
        raise InputError(f"store is {str(address)!r:.80}; expected the name of a file, or a URL postgresql://….")
    return SqliteStore(Path(address), missing_feedback)


def open_service(
    address: str | Path, names: Sequence[str], instance: Instance | None, settings: Settings, seed: int | None = None
) -> Service:
    """Open the service of a store; a new one starts with these categories, or with the plan of `instance`."""
    store = open_store(address, settings.missing_feedback)

    async def start() -> Service:
        nonlocal instance
        listed = names if instance is None else instance.categories
        known = await store.transaction(lambda tx: _add_categories(tx, store.name, listed))
        if instance is not None and known != list(instance.categories):
            instance = instance.relabel([instance.categories.index(name) for name in known])
        service = Service(store, settings, seed=seed)
        await service.refresh()
        state = service.rollout.state
        planned = None
        if instance is not None:
            available = [a for a in state.available if a < instance.n_categories]
            planned = None if _is_planned(state, instance, available) else _plan(instance, available)
        await store.transaction(lambda tx: _publish_first(tx, service, planned))
        return service

    try:
        return asyncio.run(start())
    except BaseException as error:
        store.close()
        if isinstance(error, StoreError):
            raise InputError(str(error)) from error
        raise


def _add_categories(tx: Transaction, store: str, names: Sequence[str]) -> list[str]:
    """Add the categories to a new store; return them in the order of the store."""
    known = [name for name, _ in tx.rows(queries.CATEGORIES)]
    if not known and not names:
        raise InputError(f"The store {store} is new; name its categories (--categories) or give an instance.")
    if known and names and sorted(names) != sorted(known[: len(names)]):
        raise InputError(
            f"The store {store} has the categories {', '.join(known)}, not {', '.join(names)}; omit --categories, "
            "give an instance with these categories, or use another store."
        )
    if not known:
        for category, name in enumerate(names):
            tx.write(queries.ADD_CATEGORY, category, name, time.time())
    return known[: len(names)] if known else list(names)


def _is_planned(state: RolloutState, instance: Instance, available: list[int]) -> bool:
    """Return True if a published version is the plan of the instance for the available categories."""
    plans = [version.details for version in state.versions.values() if version.from_instance]
    if not plans or plans[-1]["instance"] != json.loads(json.dumps(instance.to_dict())):
        return False
    return not state.current.from_instance or plans[-1].get("shown", available) == available


def _plan(instance: Instance, available: list[int]) -> PolicyVersion:
    best = plan(instance, PLAN_GAP * max(1.0, float(instance.fixed_values.max())), PLAN_SECONDS, allowed=available)
    bounds = {"lower": best.lower, "upper": best.upper}
    details = policy_details(best.policy, instance) | bounds | {"source": INSTANCE, "shown": available}
    return PolicyVersion(-1, time.time(), best.policy, instance.n_categories, details)


def _publish_first(tx: Transaction, service: Service, planned: PolicyVersion | None) -> None:
    """Publish the plan, if one was made, or a uniform policy if nothing was published yet."""
    rollout = service.rollout
    rollout.refresh(tx)
    if planned is None and not rollout.state.versions:
        details = {"description": "all categories with equal probability", "source": INITIAL, "uniform": True}
        planned = PolicyVersion(0, time.time(), Fixed(0), len(rollout.state.names), details)
    if planned is not None:
        rollout.publish(tx, planned)
