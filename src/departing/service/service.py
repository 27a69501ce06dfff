"""The service, independent of HTTP: recommends, records feedback, and keeps the state of users."""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from uuid import uuid4

from departing.model.errors import InputError
from departing.model.instance import CLICKS
from departing.service import messages as m
from departing.service import user as user_rules
from departing.service.batches import FeedbackRecorder
from departing.service.clock import Clock
from departing.service.event_id import RESERVED_PREFIX
from departing.service.event_log import log_event
from departing.service.experiments.assignment import enter, participate
from departing.service.experiments.warnings import experiment_warnings
from departing.service.late_feedback import make_final
from departing.service.policy_version import PolicyVersion, parse_versions
from departing.service.recording import record_inferred_departure, record_reported_departure
from departing.service.responses import recommendation, user_state
from departing.service.rollout import NotFoundError, Rollout
from departing.service.segment_names import segment_name
from departing.service.settings import DEFAULT_UNIT, Settings
from departing.service.store import queries
from departing.service.store.base import Prefetch, Store, Transaction
from departing.service.store.cache import Decision
from departing.service.uptime import Uptime
from departing.service.user import User
from departing.service.warning_rules import find_warnings, user_limit_warning

MAX_SWEEP = 1000  # inactive users of one transaction: bounds the delay of other calls
MAX_HISTORY = 100  # events in the state of a user
MAX_EARLIER_VISITS = 100  # departures and returns of one user that are searched for a repeated event ID


class UserLimitError(Exception):
    """A new user beyond the maximum number of active users."""


class FinishedError(InputError):
    """A request for a user who has had all recommendations of the horizon."""

    def __init__(self, user: str, horizon: int) -> None:
        super().__init__(
            f"user {user!r:.60} has had all {horizon} recommendations of the horizon; show nothing more. The visit "
            "is over after the inactivity period; report a departure only if the user has left for good."
        )


class Service:
    """Recommends to users by published policies, and keeps their state in a store."""

    def __init__(
        self,
        store: Store,
        settings: Settings | None = None,
        clock: Callable[[], float] | None = None,
        seed: int | None = None,
    ) -> None:
        self.store, self.settings, self.clock = store, settings or Settings(), clock or Clock()
        self.rng = random.Random(seed)
        self.rollout = Rollout(self.settings.max_categories, self.settings.max_segments)
        self._now = 0.0
        self._recorder = FeedbackRecorder(store, self.settings, self.now)
        self._warnings, self._warn = find_warnings(self.settings.rule, {}), list[Callable[[], dict[str, str]]]()
        self.mismatched: int | None = None  # an experiment whose users per arm do not match its shares
        self.failing: dict[str, str] = {}  # maintenance tasks that fail, and a warning for each
        self.drift: list[m.Drift] = []  # changes that were detected, the latest last
        self.uptime = Uptime()

    def now(self) -> float:
        """Return the time, which never goes back, whatever the clock does."""
        self._now = max(self._now, self.clock())
        return self._now

    def warnings(self) -> list[str]:
        """Return what the operator should know, each with the next step; `check` brings it up to date."""
        warnings = self.store.warnings() + self.uptime.warnings(self.now())
        return [*warnings, *self.failing.values(), *self._warnings.values()]

    def add_warnings(self, source: Callable[[], dict[str, str]]) -> None:
        """Add warnings of another part, such as the HTTP server, by their keys."""
        self._warn.append(source)
        self._warnings |= source()

    async def check(self) -> list[str]:
        """Look for reasons to warn the operator; return the warnings that are new."""
        found = find_warnings(self.settings.rule, await self.totals())
        found |= experiment_warnings(self.rollout.state, self.mismatched, self.now())
        found |= user_limit_warning(self.store.active_users, self.settings.max_users)
        for source in self._warn:
            found |= source()
        before, self._warnings = self._warnings, found
        return [text for key, text in found.items() if key not in before]

    # Recommendations

    async def recommend(self, request: m.RecommendRequest) -> m.Recommendation:
        """Recommend a category to a user."""
        self._recorder.others += 1
        prefetch = Prefetch((request.user,), (), request.event, True)
        return await self.store.transaction(lambda tx: self._recommend(tx, request), prefetch, durable=False)

    def _recommend(self, tx: Transaction, request: m.RecommendRequest) -> m.Recommendation:
        if request.event is not None:
            repeated = self._repeated(tx, request, request.event)
            if repeated is not None:
                return repeated
        now, settings, rollout = self.now(), self.settings, self.rollout
        allowed = self._allowed(tx, request.allowed)
        segment = None if request.segment is None else segment_name(request.segment, settings.segment_columns)
        user = self._active_user(tx, request.user, now, segment)
        if segment != user.segment and segment is not None:
            tx.count("kept_segments")
        if tx.store.shared:
            rollout.catch_up(tx, user.version, user.n_categories, user.experiment)
        state = rollout.state
        by_caller, arm = state.shadow, None
        if user.experiment is not None:
            by_caller, arm = participate(state, user)
        shown = self._shown(tx, request, user) if by_caller else None
        version = state.versions[user.version]
        horizon = None if by_caller else state.horizon_of(version)
        if horizon is not None and user.steps >= horizon:
            raise FinishedError(request.user, horizon)
        user_rules.confirm_stay(user)
        counts = user.current_counts(settings.missing_feedback)
        propensity: float | None
        category, propensity, policy_category = version.choose(
            counts, allowed, settings.explore, self.rng, user.segment
        )
        if shown is not None:
            category, propensity = shown, request.propensity
        event_number = tx.store.new_event_number()
        user_rules.add_step(user, event_number, category, now, settings.missing_feedback)
        user.finished = horizon is not None and user.steps >= horizon
        shadow = int(shown is not None)
        decision = Decision(
            event_number,
            request.event,
            user.number,
            now,
            category,
            propensity,
            user.version,
            policy_category,
            shadow,
            tx.store.epoch,
            None if arm is None else user.experiment,
            arm,
        )
        tx.record_decision(user, decision)
        tx.count("recommendations")
        is_unknown = request.segment is not None and version.knows_segment(user.segment) is False
        if is_unknown:
            tx.count("missing_segments" if user.segment is None else "unknown_segments")
        return recommendation(state, decision, user, counts if request.explain else None, segment, is_unknown)

    def _active_user(self, tx: Transaction, name: str, now: float, segment: str | None) -> User:
        """Return the user of this name; a new one in a segment if there is none, or the last one has departed."""
        user = tx.user(name)
        if user is not None and not user.departed:
            if user.last_seen >= self.uptime.cutoff(now, self.settings.inactive_after):
                return user
            record_inferred_departure(tx, user, self.settings, now)
        if tx.active_users >= self.settings.max_users:
            users = f"max_users is {self.settings.max_users:,} and {tx.active_users:,} users are active"
            raise UserLimitError(f"{users}; retry later or raise the limit of the service.")
        previous, state = user, self.rollout.state
        if previous is not None:
            tx.count("returned_users")
            make_final(previous)
            # A returning user starts a new record. The old one gets a placeholder name, because names are unique.
            tx.rename_user(previous, f"earlier {uuid4().hex}")
        number = tx.store.new_user_number()
        if segment is not None:
            self.rollout.add_segment(tx, segment, now)
            state = self.rollout.state
        user = User(number, name, state.version_for(number), [], [], arrived=now, segment=segment)
        if previous is not None:
            user.previous, user.first = previous.number, previous.person
        if state.running is not None:
            enter(tx, state, state.running, user, previous)
        tx.add_user(user)
        tx.count("new_users")
        return user

    def _shown(self, tx: Transaction, request: m.RecommendRequest, user: User) -> int:
        """Return the category that the caller shows in shadow mode."""
        if request.shown is None and user.arm is not None:
            raise InputError(
                f"shown is missing; the user is in the {user.arm} of experiment {user.experiment}, where the caller "
                "decides. Send the category that you would show with every request, and show the response's category."
            )
        if request.shown is None:
            raise InputError("shown is missing; in shadow mode it must name the category that the caller shows.")
        return self.rollout.category(tx, request.shown, "shown")

    def _repeated(self, tx: Transaction, request: m.RecommendRequest, event: str) -> m.Recommendation | None:
        """Return the recommendation already made for the client's event ID, None if the ID is new."""
        if event.startswith(RESERVED_PREFIX):
            raise InputError(
                f"event is {event!r:.60}; IDs that start with {RESERVED_PREFIX!r} are reserved; use another ID."
            )
        decision = tx.decision_by_client_event_id(event)
        if decision is None:
            return None
        visits = islice(self._visits(tx, request.user), MAX_EARLIER_VISITS)
        user = next((visit for visit in visits if visit.number == decision.user_number), None)
        if user is None:
            raise InputError(f"event is {event!r:.60}; this ID was already used for another user; use a new one.")
        self.rollout.catch_up(tx, decision.version, max(user.n_categories, decision.category + 1))
        counts = user.current_counts(self.settings.missing_feedback, decision.event_number)
        segment = None if request.segment is None else segment_name(request.segment, self.settings.segment_columns)
        state = self.rollout.state
        is_unknown = request.segment is not None and state.versions[user.version].knows_segment(user.segment) is False
        return recommendation(state, decision, user, counts if request.explain else None, segment, is_unknown)

    def _visits(self, tx: Transaction, name: str) -> Iterator[User]:
        """Yield the user of a name, then the same person before each earlier departure."""
        user = tx.user(name)
        while user is not None:
            yield user
            user = tx.user_by_number(user.previous) if user.previous >= 0 else None

    def _allowed(self, tx: Transaction, names: Sequence[str] | None) -> list[int]:
        """Return the available categories among those that a request allows."""
        if not self.rollout.state.available:
            raise InputError("All categories are retired; add or restore one with POST /v1/categories.")
        if names is None:
            return self.rollout.state.available
        requested = {self.rollout.category(tx, name, "an entry of allowed") for name in names}
        allowed = [a for a in self.rollout.state.available if a in requested]
        if not allowed:
            raise InputError("allowed contains only retired categories; expected at least one that is not retired.")
        return allowed

    # Feedback

    async def feedback(self, rows: Sequence[m.Feedback]) -> list[m.FeedbackResult]:
        """Record feedback; what is accepted is on disk when this returns."""
        return await self._recorder.record(rows)

    # Departures

    async def depart(self, name: str) -> m.Status:
        """Record that a user has departed."""

        def record(tx: Transaction) -> m.Status:
            return m.Status(record_reported_departure(tx, _existing_user(tx, name), self.settings, self.now()))

        return await self.store.transaction(record, Prefetch(users=(name,)))

    async def sweep(self) -> int:
        """Mark users inactive for longer than `inactive_after` as departed; return how many, at most `MAX_SWEEP`."""

        def sweep(tx: Transaction) -> int:
            now, period = self.now(), self.settings.inactive_after
            self.uptime.beat(tx, now)
            if period == inf:
                return 0
            inactive = tx.inactive_users(self.uptime.cutoff(now, period), MAX_SWEEP)
            for user in inactive:
                record_inferred_departure(tx, user, self.settings, now)
            return len(inactive)

        return await self.store.transaction(sweep, durable=False)

    # Users

    async def user_state(self, name: str) -> m.UserState:
        """Return the state of a user."""
        await self.flush()
        return await self.store.transaction(
            lambda tx: self._user_state(tx, name), Prefetch(users=(name,)), durable=False
        )

    def _user_state(self, tx: Transaction, name: str) -> m.UserState:
        user = _existing_user(tx, name)
        history = tx.rows(queries.USER_HISTORY, user.number, MAX_HISTORY)
        self.rollout.catch_up(tx, user.version, max([user.n_categories, *(row[3] + 1 for row in history)]))
        counts = user.known_counts(self.settings.missing_feedback)
        return user_state(self.rollout.state, user, counts, history)

    async def forget(self, name: str) -> m.Status:
        """Delete the name of a user and the client's event IDs; the counts stay, without a name."""
        await self.flush()

        def forget(tx: Transaction) -> m.Status:
            _existing_user(tx, name)
            visits = list(self._visits(tx, name))
            for user in visits:
                tx.rename_user(user, f"{queries.FORGOTTEN}{uuid4().hex}")
                if not user.departed:
                    user_rules.anonymise_record(user, self.settings.missing_feedback)
                    tx.active_change -= 1
                user.previous, user.first, user.inferred = -1, -1, None
            tx.forget_client_event_ids(visits)
            tx.count("forgotten_users")
            return m.Status(True)

        return await self.store.transaction(forget, Prefetch(users=(name,)))

    # Policies and categories

    async def refresh(self, built: Mapping[tuple[str, str], PolicyVersion] | None = None) -> bool:
        """Adopt new versions and changes of other processes; True if a version is new.

        Versions are parsed in a thread, which takes a second for the largest, except those already `built` from
        the same document and details.
        """
        rows = await self.store.transaction(self.rollout.new_rows, durable=False)
        parsed = await asyncio.to_thread(parse_versions, rows, built or {}) if rows else {}
        return await self.store.transaction(lambda tx: self.rollout.refresh(tx, parsed), durable=False)

    async def totals(self) -> dict[str, int]:
        """Return the counters of all processes that ever served from this store."""
        return dict(await self.store.transaction(Transaction.totals, durable=False))

    async def has_rewards(self) -> bool:
        """Return whether any click was sent with a reward above 0."""
        return (await self.totals()).get("rewarded_clicks", 0) > 0

    @property
    def unit(self) -> str:
        """Unit of the rewards in feedback."""
        state = self.rollout.state
        versions = [state.current, *(version for _, version in sorted(state.versions.items(), reverse=True))]
        units = (version.instance.unit for version in versions if version.instance is not None)
        return self.settings.unit or next((unit for unit in units if unit != CLICKS), DEFAULT_UNIT)

    async def flush(self) -> None:
        """Wait until everything requested before is on disk."""
        await self.store.transaction(lambda tx: None)

    async def policies(self) -> m.PolicyList:
        """Return all policy versions, the latest first."""
        versions = sorted(self.rollout.state.versions.items(), reverse=True)
        return m.PolicyList([self.version_info(version) for _, version in versions])

    async def policy(self) -> m.PolicyVersionInfo:
        """Return the version that new users get."""
        return self.version_info(self.rollout.state.current)

    def version_info(self, version: PolicyVersion) -> m.PolicyVersionInfo:
        """Return a version with its details."""
        details, state = version.details, self.rollout.state
        description, source = details.get("description", ""), details.get("source", "")
        lower, upper, current = details.get("lower"), details.get("upper"), version is state.current
        pinned = current and state.pinned is not None
        unit = details.get("instance", {}).get("unit", CLICKS)
        return m.PolicyVersionInfo(
            version.number,
            version.created,
            description,
            lower,
            upper,
            unit,
            source,
            current,
            pinned,
            details.get("half_life"),
            details.get("effective_users"),
        )

    async def pin(self, version: int | None) -> m.PolicyVersionInfo:
        """Pin a policy version for new users; None follows the latest version again."""

        def pin(tx: Transaction) -> None:
            self._check_no_experiment(tx, "pin a version")
            self.rollout.pin(tx, version)

        await self.store.transaction(pin)
        return await self.policy()

    async def set_shadow(self, enabled: bool) -> None:
        """Turn shadow mode on or off."""

        def set_shadow(tx: Transaction) -> None:
            self._check_no_experiment(tx, "turn shadow mode on or off")
            self.rollout.set_shadow(tx, enabled)

        await self.store.transaction(set_shadow)

    def _check_no_experiment(self, tx: Transaction, change: str) -> None:
        self.rollout.reload(tx)
        running = self.rollout.state.running
        if running is not None:
            raise InputError(f"Experiment {running.id} is running; stop or complete it before you {change}.")

    async def categories(self) -> m.CategoryList:
        """Return all categories."""
        rows = await self.store.transaction(lambda tx: tx.rows(queries.ASSUMED_REWARDS), durable=False)
        state, rewards = self.rollout.state, {category: float(value) for category, value in rows}
        listed = [m.CategoryInfo(name, a in state.retired, rewards.get(a)) for a, name in enumerate(state.names)]
        return m.CategoryList(listed)

    async def add_category(self, name: str, reward: float | None = None) -> m.CategoryList:
        """Add a category, or restore a retired one; `reward` is assumed until its clicks have rewards.

        A new category is shown by exploration only, until a policy that knows it is published.
        """

        def add(tx: Transaction) -> str | None:
            change = self.rollout.add_category(tx, name, self.now())
            if reward is not None:
                tx.write(queries.SET, queries.REWARD_KEY.format(self.rollout.state.names.index(name)), repr(reward))
            return change

        return await self._changed_categories(name, await self.store.transaction(add))

    async def retire_category(self, name: str) -> m.CategoryList:
        """Retire a category: it is not shown any more."""
        changed = await self.store.transaction(lambda tx: self.rollout.retire_category(tx, name, self.now()))
        return await self._changed_categories(name, changed)

    async def _changed_categories(self, name: str, change: str | None) -> m.CategoryList:
        """Write a change to the log, and return all categories."""
        if change is not None:
            available = len(self.rollout.state.available)
            log_event(f"category_{change}", category=name, available=available)
        return await self.categories()


def _existing_user(tx: Transaction, name: str) -> User:
    user = tx.user(name)
    if user is None:
        raise NotFoundError(f"user is {name!r:.60}; expected a user who has requested a recommendation.")
    return user
