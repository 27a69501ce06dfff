"""The service, independent of HTTP: recommends, records feedback, and keeps the state of users."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from uuid import uuid4

from msgspec import UNSET

from departing.evaluation.remaining import remaining_clicks
from departing.model.belief import belief as belief_after
from departing.model.errors import InputError
from departing.service import messages as m
from departing.service import user as user_rules
from departing.service.clock import Clock
from departing.service.export import history_events
from departing.service.policy_version import PolicyVersion
from departing.service.rollout import NotFoundError, Rollout
from departing.service.store import queries
from departing.service.store.base import Decision, Prefetch, Store, Transaction, parse_event_id
from departing.service.user import FeedbackRejectedError, RecordedFeedback, RejectionCode, User, counts_array

MAX_SWEEP = 1000  # inactive users of one transaction: bounds the delay of other calls
MAX_HISTORY = 100  # events in the state of a user
MAX_EARLIER_VISITS = 100  # departures and returns of one user that are searched for a repeated event ID


@dataclass(frozen=True)
class Settings:
    """Options of a service."""

    inactive_after: float = inf  # seconds of inactivity after which a user counts as departed
    explore: float = 0.01  # probability of a category drawn uniformly
    missing_feedback: str = "no-click"  # meaning of a recommendation without feedback
    shadow: bool = False  # True if the caller decides and the policy only logs its choice
    max_categories: int = 1000
    max_users: int = 10_000_000  # active at once


class UserLimitError(Exception):
    """A new user beyond the maximum number of active users."""


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
        self.rollout = Rollout(self.settings.max_categories, self.settings.shadow)
        self._now = 0.0

    def now(self) -> float:
        """Return the time, which never goes back, whatever the clock does."""
        self._now = max(self._now, self.clock())
        return self._now

    # Recommendations

    async def recommend(self, request: m.RecommendRequest) -> m.Recommendation:
        """Recommend a category to a user."""
        prefetch = Prefetch((request.user,), (), request.event, True)
        return await self.store.transaction(lambda tx: self._recommend(tx, request), prefetch, durable=False)

    def _recommend(self, tx: Transaction, request: m.RecommendRequest) -> m.Recommendation:
        if request.event is not None:
            repeated = self._repeated(tx, request, request.event)
            if repeated is not None:
                return repeated
        now, settings, rollout = self.now(), self.settings, self.rollout
        allowed = self._allowed(tx, request.allowed)
        shown = self._shown(tx, request) if rollout.state.shadow else None
        user = self._active_user(tx, request.user, now)
        if tx.store.shared:
            rollout.catch_up(tx, user.version, user.n_categories)
        state = rollout.state
        user_rules.confirm_stay(user)
        counts = user.current_counts(settings.missing_feedback)
        version = state.versions[user.version]
        propensity: float | None
        category, propensity, policy_category = version.choose(counts, allowed, settings.explore, self.rng)
        if shown is not None:
            category, propensity = shown, request.propensity
        event_number = tx.store.new_event_number()
        user_rules.add_step(user, event_number, category, now, settings.missing_feedback)
        shadow = int(shown is not None)
        decision = Decision(
            event_number, request.event, user.number, now, category, propensity, user.version, policy_category, shadow
        )
        tx.record_decision(user, decision)
        tx.count("recommendations")
        return self._recommendation(decision, counts if request.explain else None)

    def _active_user(self, tx: Transaction, name: str, now: float) -> User:
        """Return the user of this name; a new one if there is none, or the last one has departed."""
        user = tx.user(name)
        if user is not None and not user.departed:
            if now - user.last_seen <= self.settings.inactive_after:
                return user
            self._depart(tx, user, now, "inactive")
        if tx.active_users >= self.settings.max_users:
            users = f"max_users is {self.settings.max_users:,} and {tx.active_users:,} users are active"
            raise UserLimitError(f"{users}; retry later or raise the limit of the service.")
        if user is not None:
            tx.count("returned_users")
            # A returning user starts a new record. The old one gets a placeholder name, because names are unique.
            tx.rename_user(user, f"earlier {uuid4().hex}")
        number, previous = tx.store.new_user_number(), -1 if user is None else user.number
        user = User(number, name, self.rollout.state.version_for(number), [], [], previous=previous)
        tx.add_user(user)
        tx.count("new_users")
        return user

    def _shown(self, tx: Transaction, request: m.RecommendRequest) -> int:
        """Return the category that the caller shows in shadow mode."""
        if request.shown is None:
            raise InputError("shown is missing; in shadow mode it must name the category that the caller shows.")
        return self.rollout.category(tx, request.shown, "shown")

    def _repeated(self, tx: Transaction, request: m.RecommendRequest, event: str) -> m.Recommendation | None:
        """Return the recommendation already made for the client's event ID, None if the ID is new."""
        if event.startswith("e-"):
            raise InputError(f"event is {event!r:.60}; IDs that start with 'e-' are reserved; use another ID.")
        decision = tx.decision_by_client_event_id(event)
        if decision is None:
            return None
        visits = islice(self._visits(tx, request.user), MAX_EARLIER_VISITS)
        user = next((visit for visit in visits if visit.number == decision.user_number), None)
        if user is None:
            raise InputError(f"event is {event!r:.60}; this ID was already used for another user; use a new one.")
        self.rollout.catch_up(tx, decision.version, max(user.n_categories, decision.category + 1))
        counts = user.current_counts(self.settings.missing_feedback, decision.event_number)
        return self._recommendation(decision, counts if request.explain else None)

    def _visits(self, tx: Transaction, name: str) -> Iterator[User]:
        """Yield the user of a name, then the same person before each earlier departure."""
        user = tx.user(name)
        while user is not None:
            yield user
            user = tx.user_by_number(user.previous) if user.previous >= 0 else None

    def _recommendation(self, decision: Decision, counts: list[int] | None) -> m.Recommendation:
        names, version = self.rollout.state.names, decision.version
        forecast = None if counts is None else _forecast(self.rollout.state.versions[version], counts)
        belief, clicks = forecast or (UNSET, UNSET)
        shadow_category = names[decision.policy_category] if decision.shadow else UNSET
        event, category = decision.client_event_id or f"e-{decision.event_number}", names[decision.category]
        return m.Recommendation(event, category, decision.propensity, version, belief, clicks, shadow_category)

    def _allowed(self, tx: Transaction, names: Sequence[str] | None) -> list[int]:
        """Return the available categories among those that a request allows."""
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
        prefetch = Prefetch((), tuple([row.event for row in rows]))
        return await self.store.transaction(lambda tx: [self._feedback(tx, row) for row in rows], prefetch)

    def _feedback(self, tx: Transaction, row: m.Feedback) -> m.FeedbackResult:
        try:
            added = self._record_feedback(tx, row)
        except FeedbackRejectedError as error:
            tx.count(f"rejected_feedback_{error.code}")
            return m.FeedbackResult(row.event, False, error.code, error.code.reason)
        tx.count("feedback" if added else "repeated_feedback")
        return m.FeedbackResult(row.event, True)

    def _record_feedback(self, tx: Transaction, row: m.Feedback) -> bool:
        """Record one row of feedback; True if it adds information."""
        number = parse_event_id(row.event)
        decision = tx.decision_by_client_event_id(row.event) if number is None else tx.decision(number)
        if decision is None:
            raise FeedbackRejectedError(RejectionCode.UNKNOWN_EVENT)
        event_number, user = decision.event_number, tx.user_by_number(decision.user_number)
        assert user is not None
        step = user.open_step(event_number)
        earlier = tx.feedback(event_number) if step is None else None
        feedback, now = RecordedFeedback(row.clicked, row.departed), self.now()
        if not user_rules.apply_feedback(user, event_number, feedback, now, self.settings.missing_feedback, earlier):
            return False
        tx.record_feedback(user, event_number, feedback, now)
        if user.departed:
            self._record_departure(tx, user, now, "reported")
        if row.clicked and step is not None and step.clicked is None:
            tx.count("clicks")
        return True

    # Departures

    async def depart(self, name: str) -> m.Status:
        """Record that a user has departed."""

        def record(tx: Transaction) -> m.Status:
            user = _existing_user(tx, name)
            if user.departed:
                return m.Status(False)
            self._depart(tx, user, self.now(), "reported")
            return m.Status(True)

        return await self.store.transaction(record, Prefetch(users=(name,)))

    def _depart(self, tx: Transaction, user: User, now: float, cause: str) -> None:
        user_rules.depart(user, self.settings.missing_feedback)
        self._record_departure(tx, user, now, cause)

    def _record_departure(self, tx: Transaction, user: User, now: float, cause: str) -> None:
        tx.record_departure(user, now, cause)
        tx.count("departures")

    async def sweep(self) -> int:
        """Mark users inactive for longer than `inactive_after` as departed; return how many, at most `MAX_SWEEP`."""

        def sweep(tx: Transaction) -> int:
            now = self.now()
            inactive = tx.inactive_users(now - self.settings.inactive_after, MAX_SWEEP)
            for user in inactive:
                self._depart(tx, user, now, "inactive")
            return len(inactive)

        return 0 if self.settings.inactive_after == inf else await self.store.transaction(sweep, durable=False)

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
        names = self.rollout.state.names
        counts = user.current_counts(self.settings.missing_feedback)
        rows = counts_array(counts, len(names)).tolist()
        belief, clicks = _forecast(self.rollout.state.versions[user.version], counts) or (None, None)
        return m.UserState(
            user.name,
            user.version,
            user.departed,
            {name: m.OutcomeCounts(*row) for name, row in zip(names, rows, strict=True)},
            belief,
            None if user.departed else clicks,
            history_events(history, names),
        )

    async def forget(self, name: str) -> m.Status:
        """Delete the name of a user and the client's event IDs; the counts stay, without a name."""
        await self.flush()

        def forget(tx: Transaction) -> m.Status:
            _existing_user(tx, name)
            for user in list(self._visits(tx, name)):
                tx.rename_user(user, f"forgotten {uuid4().hex}")
                if not user.departed:
                    user_rules.anonymise_record(user, self.settings.missing_feedback)
                    tx.active_change -= 1
                user.previous = -1
                tx.forget_client_event_ids(user)
            tx.count("forgotten_users")
            return m.Status(True)

        return await self.store.transaction(forget, Prefetch(users=(name,)))

    # Policies and categories

    async def refresh(self) -> bool:
        """Adopt new versions and changes of other processes; True if a version is new."""
        return await self.store.transaction(self.rollout.refresh, durable=False)

    async def totals(self) -> dict[str, int]:
        """Return the counters of all processes that ever served from this store."""
        return dict(await self.store.transaction(Transaction.totals, durable=False))

    async def flush(self) -> None:
        """Wait until everything requested before is on disk."""
        await self.store.transaction(lambda tx: None)

    async def policies(self) -> m.PolicyList:
        """Return all policy versions, the latest first."""
        versions = sorted(self.rollout.state.versions.items(), reverse=True)
        return m.PolicyList([self._version_info(version) for _, version in versions])

    async def policy(self) -> m.PolicyVersionInfo:
        """Return the version that new users get."""
        return self._version_info(self.rollout.state.current)

    def _version_info(self, version: PolicyVersion) -> m.PolicyVersionInfo:
        details, state = version.details, self.rollout.state
        description, source = details.get("description", ""), details.get("source", "")
        lower, upper, current = details.get("lower"), details.get("upper"), version is state.current
        pinned = current and state.pinned is not None
        return m.PolicyVersionInfo(
            version.number, version.created, description, lower, upper, source, current, pinned
        )

    async def pin(self, version: int | None) -> m.PolicyVersionInfo:
        """Pin a policy version for new users; None follows the latest version again."""
        await self.store.transaction(lambda tx: self.rollout.pin(tx, version))
        return await self.policy()

    async def set_shadow(self, enabled: bool) -> None:
        """Turn shadow mode on or off."""
        await self.store.transaction(lambda tx: self.rollout.set_shadow(tx, enabled))

    async def categories(self) -> m.CategoryList:
        """Return all categories."""
        state = self.rollout.state
        return m.CategoryList([m.CategoryState(name, a in state.retired) for a, name in enumerate(state.names)])

    async def add_category(self, name: str) -> m.CategoryList:
        """Add a category, or restore a retired one.

        A new category is shown by exploration only, until a policy that knows it is published.
        """
        await self.store.transaction(lambda tx: self.rollout.add_category(tx, name, self.now()))
        return await self.categories()

    async def retire_category(self, name: str) -> m.CategoryList:
        """Retire a category: it is not shown any more."""
        await self.store.transaction(lambda tx: self.rollout.retire_category(tx, name, self.now()))
        return await self.categories()


def _existing_user(tx: Transaction, name: str) -> User:
    user = tx.user(name)
    if user is None:
        raise NotFoundError(f"user is {name!r:.60}; expected a user who has requested a recommendation.")
    return user


def _forecast(version: PolicyVersion, counts: list[int]) -> tuple[dict[str, float], float] | None:
    """Return belief and expected remaining clicks of a user who stays.

    None if the version has no instance or the counts are impossible.
    """
    instance = version.instance
    if instance is None:
        return None
    known = counts_array(counts, instance.n_categories)
    known[:, 2:] = 0  # the forecast is for a user who stays
    try:
        belief = belief_after(instance, known)
    except InputError:  # no type of the instance can have these counts
        return None
    # Without lookahead, which takes too long for a request: exact for schedules, the best alpha vector for a plan.
    remaining = remaining_clicks(instance, version.policy, known[None], gap=0.0, max_nodes=0)
    return dict(zip(instance.types, belief.tolist(), strict=True)), float(remaining.values[0])
