"""Opening a service: its store, its categories and its first policy version."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from departing.model.errors import InputError, MissingExtraError
from departing.model.instance import Instance
from departing.model.names import list_names
from departing.planning.plan import plan
from departing.policy.schedule import Fixed
from departing.service.departures import REQUIRED, DepartureRule, adopt_rule
from departing.service.event_log import log_event
from departing.service.names import check_name
from departing.service.policy_version import INITIAL, INSTANCE, PolicyVersion, policy_details
from departing.service.rollout import RolloutState
from departing.service.service import Service
from departing.service.settings import Settings
from departing.service.store import queries
from departing.service.store.base import Store, StoreError, Transaction
from departing.service.store.connection import TemporarilyUnreachableError, UnreachableError, is_postgres
from departing.service.store.sqlite import SqliteStore
from departing.service.stored_settings import (
    adopt_columns,
    adopt_half_life,
    adopt_missing_feedback,
    adopt_unit,
    check_columns,
)
from departing.service.warning_rules import learning_warning

PLAN_GAP = 1e-6  # relative to the value: no user notices a difference below it
REPLACED = (
    "The store {} holds a learned policy; new users now get the plan of the instance instead. Add --learn to "
    "continue learning, or switch back by POST /v1/policy."
)
SHADOW_ENDED = (
    "Shadow mode was turned off in the store {}, so --shadow has no effect. Remove the option, or turn shadow mode "
    'on with POST /v1/shadow and {{"enabled": true}}.'
)
NEW = "The store {} is new; name its categories (--categories) or give an instance."
PLAN_SECONDS = 60.0  # time limit of planning at the start


def open_store(address: str | Path, missing_feedback: str = "no-click", accept_loss: bool = False) -> Store:
    """Open the store at an address: a file, or a PostgreSQL database."""
    if is_postgres(address):
        try:
            from departing.service.store.postgres import PostgresStore
        except ImportError as error:
            raise MissingExtraError("PostgreSQL needs psycopg; install it with: pip install '.[postgres]'") from error
        return PostgresStore(str(address), missing_feedback)
    if "://" in str(address):
        raise InputError(f"store is {str(address)!r:.80}; expected the name of a file, or a URL postgresql://….")
    return SqliteStore(Path(address), missing_feedback, accept_loss)


def open_service(
    address: str | Path,
    names: Sequence[str],
    instance: Instance | None,
    settings: Settings,
    seed: int | None = None,
    *,
    clock: Callable[[], float] | None = None,
    accept_loss: bool = False,
    accept_clock: bool = False,
) -> Service:
    """Open the service of a store; a new one starts with these categories, or with the plan of `instance`.

    A store remembers the definition of departure; that of `settings` replaces it. A service that learns needs one.
    With `accept_loss` a file is served although something is missing that was on disk before; with `accept_clock`
    the service starts although the clock is behind the latest time in the store.
    """
    if not is_postgres(address) and not Path(address).exists():
        _check_new(Path(address), names, instance, settings, accept_loss)
    store = open_store(address, settings.missing_feedback, accept_loss)

    async def start() -> Service:
        nonlocal instance, settings
        listed = names if instance is None else instance.categories

        def adopt(tx: Transaction) -> tuple[list[str], tuple[str, ...], str, str, DepartureRule, DepartureRule]:
            """Adopt categories and settings together, or none of them if one is refused."""
            rules = adopt_rule(tx, settings.rule, settings.learn)
            known = _add_categories(tx, store.name, listed)
            missing = adopt_missing_feedback(tx, settings.missing_feedback)
            if settings.shadow:
                _start_shadow_mode(tx, store.name)
            adopt_half_life(tx, settings.half_life)
            columns = adopt_columns(tx, settings.segment_columns, None if instance is None else instance.segments)
            return known, columns, adopt_unit(tx, settings.unit), missing, *rules

        known, columns, unit, missing, rule, before = await store.transaction(adopt)
        settings = replace(
            settings,
            inactive_after=rule.inactive_after,
            departures_reported=rule.reported,
            segment_columns=columns,
            unit=unit,
        )
        if before.is_defined and rule != before:
            log_event("departures_redefined", before=before.describe(), now=rule.describe())
        if missing != settings.missing_feedback:
            log_event("missing_feedback_redefined", logging.WARNING, before=missing, now=settings.missing_feedback)
        if instance is not None and known != list(instance.categories):
            instance = instance.relabel([instance.categories.index(name) for name in known])
        service = Service(store, settings, clock, seed)
        await store.transaction(lambda tx: service.uptime.start(tx, service.clock(), accept_clock))
        await service.refresh()
        state = service.rollout.state
        planned = None
        if instance is not None:
            available = [a for a in state.available if a < instance.n_categories]
            replaced = not settings.learn and state.pinned is None and state.versions and state.current.is_learned
            if replaced or not _is_planned(state, instance, available):
                planned = _plan(instance, available)
            if replaced:
                log_event("warning", logging.WARNING, text=REPLACED.format(store.name))
        await store.transaction(lambda tx: _publish_first(tx, service, planned))
        service.add_warnings(lambda: learning_warning(service.rollout.state.current.is_learned, settings.learn))
        return service

    try:
        return asyncio.run(start())
    except BaseException as error:
        store.close()
        if isinstance(error, StoreError):
            raise (UnreachableError if store.damage else TemporarilyUnreachableError)(str(error)) from error
        raise


def _check_new(
    path: Path, names: Sequence[str], instance: Instance | None, settings: Settings, accept_loss: bool
) -> None:
    """Raise before a file is created that could not be served; a store that is missing is refused later."""
    if settings.learn and not settings.rule.is_defined:
        raise InputError(REQUIRED)
    check_columns(settings.segment_columns, (), None if instance is None else instance.segments)
    names = names if instance is None else instance.categories
    if not names and (accept_loss or not path.with_name(path.name + ".lock").exists()):
        raise InputError(NEW.format(path.resolve()))
    for name in names:
        check_name("categories", name)


def _add_categories(tx: Transaction, store: str, names: Sequence[str]) -> list[str]:
    """Add the categories to a new store; return them in the order of the store."""
    known = [name for name, _ in tx.rows(queries.CATEGORIES)]
    if not known and not names:
        raise InputError(NEW.format(store))
    if known and names and sorted(names) != sorted(known[: len(names)]):
        raise InputError(
            f"The store {store} has the categories {list_names(known)}, not {list_names(names)}; give these "
            "categories or an instance with them, or another store (--store)."
        )
    if not known:
        log_event("store_created", store=store)
        for category, name in enumerate(names):
            check_name("categories", name)
            tx.write(queries.ADD_CATEGORY, category, name, time.time())
    return known[: len(names)] if known else list(names)


def _start_shadow_mode(tx: Transaction, store: str) -> None:
    """Turn shadow mode on in a store that has no record of it."""
    stored = tx.rows(queries.SETTING, queries.SHADOW_KEY)
    if not stored:
        tx.write(queries.SET, queries.SHADOW_KEY, "1")
    elif stored[0][0] != "1":
        log_event("warning", logging.WARNING, text=SHADOW_ENDED.format(store))


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
