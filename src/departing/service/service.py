"""The service itself, whatever speaks to it: recommends, is told what users do, and remembers."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from uuid import uuid4

from departing.model.belief import belief as belief_after
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Instance
from departing.service import user as people
from departing.service.api import messages as m
from departing.service.clock import Clock
from departing.service.export import PAST, pasts
from departing.service.policy_version import Version, choose, types_of
from departing.service.rollout import Catalogue, NotFoundError
from departing.service.store.base import NOTHING, Answer, Decision, Prefetch, Store, StoreError, Write, event_number
from departing.service.user import RefusedError, User

REFUSALS = {  # code and reason of refused feedback
    "unknown": ("unknown_event", "There is no such event."),
    "contradiction": ("conflicting_feedback", "Conflicts with feedback already recorded for this event."),
    "came back": ("user_returned", "The user returned after this event, so it cannot have ended in a departure."),
    "closed": ("event_closed", "The event was closed without feedback because the user went on or departed."),
}
SWEEP = 1000  # users whose silence is looked at in one go
HERE = "SELECT count(*) FROM users WHERE departed = 0"
LIVES = 100  # times that a user began anew, as far as that is looked back


@dataclass(frozen=True)
class Settings:
    """How a service behaves."""

    inactive_after: float = inf  # seconds of silence after which a user is taken for departed
    explore: float = 0.01  # share of recommendations that are any category
    unanswered: str = "no-click"  # what a recommendation that was never answered means
    shadow: bool = False  # the caller decides, we only say what we would have shown
    most_categories: int = 1000
    most_users: int = 10_000_000  # who may be here at once


class Service:
    """Recommends to users by published policies, and keeps what they do in a store."""

    def __init__(
        self,
        store: Store,
        settings: Settings | None = None,
        clock: Callable[[], float] | None = None,
        seed: int | None = None,
    ) -> None:
        self.store, self.settings, self.clock = store, settings or Settings(), clock or Clock()
        self.rng = random.Random(seed)
        self.counters = store.counters
        store.unanswered = self.settings.unanswered
        self.catalogue = Catalogue(store, self.settings.most_categories, self.settings.shadow)
        ((store.here,),) = store.rows(HERE)
        self._now = 0.0

    def now(self) -> float:
        """The time, which never goes back, whatever the clock does."""
        self._now = max(self._now, self.clock())
        return self._now

    # Recommending

    async def recommend(self, ask: m.RecommendRequest) -> m.Recommendation:
        """What to show to a user."""
        need = Prefetch(users=(ask.user,), key=ask.event, new=True)
        return await self.store.act(need, lambda: self._recommend(ask), durable=False)

    def _recommend(self, ask: m.RecommendRequest) -> m.Recommendation:
        if ask.event is not None:
            before = self._asked_before(ask)
            if before is not None:
                return before
        now, settings, catalogue = self.now(), self.settings, self.catalogue
        allowed = self._allowed(ask.allowed)
        told = catalogue.category(self._told(ask)) if catalogue.shadow else None
        user = self._arrived(ask.user, now)
        if self.store.shared:
            catalogue.catch_up(user.version, user.categories)
        people.come_back(user)
        counts = user.counts_with_open(len(catalogue.names), settings.unanswered)
        version = catalogue.versions[user.version]
        chance: float | None
        category, chance, ours = choose(version, counts, allowed, settings.explore, self.rng)
        if told is not None:
            category, chance = told, ask.propensity
        event = self.store.new_event()
        people.show(user, event, category, now, settings.unanswered)
        decision = Decision(
            event, ask.event, user.number, now, category, chance, user.version, ours, int(told is not None)
        )
        self.store.save(user, self.store.decided(decision))
        self.counters["recommended"] += 1
        return self._recommendation(decision, counts if ask.explain else None)

    def _arrived(self, name: str, now: float) -> User:
        """The user of this name; a new one, if they are, or if they were taken for departed."""
        user, before = self.store.user(name), -1
        if user is not None and not user.departed and now - user.seen > self.settings.inactive_after:
            self._leave(user, now, "silent")
        if user is not None and not user.departed:
            return user
        if self.store.here >= self.settings.most_users:
            raise StoreError(f"There are {self.store.here:,} active users, the maximum (--max-users).")
        if user is not None:  # begins anew
            before = user.number
            self.counters["returned"] += 1
            self.store.rename(user, f"earlier {uuid4().hex}")
            self.store.save(user)
        number = self.store.new_number()
        self.store.here += 1
        self.counters["arrived"] += 1
        return User(number, name, self.catalogue.version_of(number), [], [], before=before)

    def _told(self, ask: m.RecommendRequest) -> str:
        if ask.shown is None:
            raise InputError("shown is missing; in shadow mode the caller says which category it shows.")
        return ask.shown

    def _asked_before(self, ask: m.RecommendRequest) -> m.Recommendation | None:
        assert ask.event is not None
        if ask.event.startswith("e-"):
            raise InputError(f"event is {ask.event!r:.60}; ids that begin with 'e-' are made by the service.")
        before = self.store.decision_of(ask.event)
        if before is None:
            return None
        lives = islice(self._lives(ask.user), LIVES)
        user = next((life for life in lives if life.number == before.user), None)
        if user is None:
            raise InputError(f"event is {ask.event!r:.60}; it was used for another user.")
        self.catalogue.catch_up(before.version, max(user.categories, before.category + 1))
        counts = user.counts_with_open(len(self.catalogue.names), self.settings.unanswered, before.event)
        return self._recommendation(before, counts if ask.explain else None)

    def _lives(self, name: str) -> Iterator[User]:
        """The user of a name, and who they were before they began anew."""
        user = self.store.user(name)
        while user is not None:
            yield user
            user = self.store.user_of(user.before) if user.before >= 0 else None

    def _recommendation(self, decision: Decision, counts: Integers | None) -> m.Recommendation:
        names = self.catalogue.names
        answer = m.Recommendation(
            decision.key or f"e-{decision.event}", names[decision.category], decision.propensity, decision.version
        )
        if decision.shadow:
            answer.shadow_category = names[decision.ours]
        if counts is not None:
            outlook = self._outlook(self.catalogue.versions[decision.version], counts)
            if outlook is not None:
                answer.belief, answer.expected_remaining_clicks = outlook
        return answer

    def _outlook(self, version: Version, counts: Integers) -> tuple[dict[str, float], float] | None:
        """The belief, and the clicks to expect; None if nothing is known, or no type does such things."""
        instance: Instance | None = version.instance
        if instance is None:
            return None
        known = counts[: instance.n_categories].copy()
        known[:, 2:] = 0  # who is asked about is here
        try:
            shares = belief_after(instance, known)
        except InputError:
            return None
        vectors = getattr(version.policy, "vectors", instance.fixed_values)
        return types_of(instance, shares), float((vectors @ shares).max())

    def _allowed(self, names: Sequence[str] | None) -> list[int]:
        allowed = self.catalogue.shown
        if names is not None:
            asked = {self.catalogue.category(name) for name in names}
            allowed = [a for a in self.catalogue.shown if a in asked]
        if not allowed:
            raise InputError("allowed names only retired categories; at least one that is shown is needed.")
        return allowed

    # Feedback

    async def feedback(self, rows: Sequence[m.Feedback]) -> list[m.FeedbackResult]:
        """Be told what came of events; what is taken is on disk when this returns."""
        need = Prefetch(told=tuple(row.event for row in rows))
        return await self.store.act(need, lambda: [self._take(row) for row in rows])

    def _take(self, row: m.Feedback) -> m.FeedbackResult:
        try:
            new = self._answer(row)
        except RefusedError as error:
            self.counters[f"refused_{str(error).replace(' ', '_')}"] += 1
            return m.FeedbackResult(row.event, False, *REFUSALS[str(error)])
        self.counters["answered" if new else "repeated"] += 1
        return m.FeedbackResult(row.event, True)

    def _answer(self, row: m.Feedback) -> bool:
        """Take an answer; whether it is news."""
        number = event_number(row.event)
        decision = self.store.decision_of(row.event) if number is None else self.store.decision(number)
        if decision is None:
            raise RefusedError("unknown")
        user = self.store.user_of(decision.user)
        assert user is not None
        step = next((step for step in user.open if step.event == decision.event), None)
        waiting = step is not None and step.clicked is None
        before = None if waiting else self.store.answer(decision.event)
        if before is not None:
            other = row.departed is not None and before.departed not in (None, row.departed)
            if before.clicked != row.clicked or other:
                raise RefusedError("contradiction")
            if row.departed is None or before.departed == row.departed:
                return False
        if step is None:  # it was settled since
            self._check_settled(row, decision, user, before)
            return False
        now = self.now()
        if not people.answer(user, decision.event, row.clicked, row.departed, now, self.settings.unanswered):
            return False
        writes = [self.store.answered(decision.event, Answer(row.clicked, row.departed), now)]
        if user.departed:
            writes.append(self._gone(user, now, "told"))
        self.counters["clicked"] += row.clicked and before is None
        self.store.save(user, *writes)
        return True

    def _check_settled(self, row: m.Feedback, decision: Decision, user: User, before: Answer | None) -> None:
        """Raise unless an answer says what an event was taken for anyhow."""
        last = decision.event == user.last
        if before is None and (row.clicked or self.settings.unanswered != "no-click"):
            raise RefusedError("closed")
        if row.departed and not (last and user.departed):
            raise RefusedError("came back")
        if row.departed is False and last and user.departed:
            raise RefusedError("contradiction")

    # Leaving

    async def depart(self, name: str) -> m.Status:
        """A user has gone for good."""
        return await self.store.act(Prefetch(users=(name,)), lambda: self._depart(name))

    def _depart(self, name: str) -> m.Status:
        user = self._user(name)
        if user.departed:
            return m.Status(False)
        self._leave(user, self.now(), "told")
        return m.Status(True)

    def _leave(self, user: User, now: float, why: str) -> None:
        people.depart(user, self.settings.unanswered)
        self.store.save(user, self._gone(user, now, why))

    def _gone(self, user: User, now: float, why: str) -> Write:
        """The write of a departure."""
        self.counters["departed"] += 1
        self.store.here -= 1
        return "INSERT INTO departures VALUES (?, ?, ?) ON CONFLICT (number) DO NOTHING", (user.number, now, why)

    async def sweep(self) -> int:
        """Take those for departed who have been silent long enough; how many."""
        if self.settings.inactive_after == inf:
            return 0
        return await self.store.act(NOTHING, self._sweep, durable=False)

    def _sweep(self) -> int:
        now = self.now()
        silent = self.store.silent(now - self.settings.inactive_after, SWEEP)
        for user in silent:
            self._leave(user, now, "silent")
        return len(silent)

    # People

    def _user(self, name: str) -> User:
        user = self.store.user(name)
        if user is None:
            raise NotFoundError(f"There is no user {name!r:.60}.")
        return user

    async def known(self, name: str) -> m.UserState:
        """What is known of a user."""
        await self.settled()
        return await self.store.act(Prefetch(users=(name,)), lambda: self._known(name), durable=False)

    def _known(self, name: str) -> m.UserState:
        user = self._user(name)
        past = self.store.rows(f"{PAST} WHERE d.number = ? ORDER BY d.event DESC LIMIT 100", user.number)
        self.catalogue.catch_up(user.version, max([user.categories, *(row[3] + 1 for row in past)]))
        names = self.catalogue.names
        counts = user.counts_with_open(len(names), self.settings.unanswered)
        outlook = self._outlook(self.catalogue.versions[user.version], counts)
        return m.UserState(
            user.name,
            user.version,
            user.departed,
            {name: m.OutcomeCounts(*row.tolist()) for name, row in zip(names, counts, strict=True)},
            None if outlook is None else outlook[0],
            None if outlook is None or user.departed else outlook[1],
            pasts(past, names),
        )

    async def forget(self, name: str) -> m.Status:
        """Forget who a user is; what they did stays in the statistics, without a name."""
        await self.settled()
        return await self.store.act(Prefetch(users=(name,)), lambda: self._forget(name))

    def _forget(self, name: str) -> m.Status:
        self._user(name)
        for user in list(self._lives(name)):
            self.store.rename(user, f"forgotten {uuid4().hex}")
            if not user.departed:
                self.store.here -= 1
                people.close(user, self.settings.unanswered)
            user.before = -1
            self.store.forget_keys(user.number)
            self.store.save(user)
        self.counters["forgotten"] += 1
        return m.Status(True)

    # Policies and categories

    async def refresh(self) -> bool:
        """Take up what a trainer has published, and other processes have changed; whether there is a new policy."""
        return await self.store.act(NOTHING, self.catalogue.refresh, durable=False)

    async def totals(self) -> dict[str, int]:
        """The counters of all processes that ever served from this store."""
        return dict(await self.store.act(NOTHING, self.store.totals, durable=False))

    async def settled(self) -> None:
        """Wait until all that was asked before is on disk."""
        await self.store.act(NOTHING, lambda: None)

    async def policies(self) -> m.PolicyList:
        """All versions, the latest first."""
        versions = self.catalogue.versions.known
        return m.PolicyList([self._published(version) for _, version in sorted(versions.items(), reverse=True)])

    async def policy(self) -> m.PolicyVersionInfo:
        """The version that new users get."""
        return self._published(self.catalogue.current)

    def _published(self, version: Version) -> m.PolicyVersionInfo:
        about, current = version.about, version is self.catalogue.current
        return m.PolicyVersionInfo(
            version.number,
            version.made,
            about.get("words", ""),
            about.get("lower"),
            about.get("upper"),
            about.get("source", ""),
            current,
            current and self.catalogue.pinned is not None,
        )

    async def switch(self, number: int | None) -> m.PolicyVersionInfo:
        """Give new users a version of the past, until told otherwise; None for the latest again."""
        await self.store.act(NOTHING, lambda: self.catalogue.switch(number))
        return await self.policy()

    async def set_shadow(self, shadow: bool) -> None:
        """Let the caller decide, or decide ourselves from now on."""
        await self.store.act(NOTHING, lambda: self.catalogue.set_shadow(shadow))

    async def categories(self) -> m.CategoryList:
        """All categories."""
        retired = self.catalogue.retired
        return m.CategoryList([m.CategoryState(name, a in retired) for a, name in enumerate(self.catalogue.names)])

    async def add_category(self, name: str) -> m.CategoryList:
        """Add a category, or take one back that was retired.

        A new one is shown by the share that explores until a policy that knows it is published.
        """
        await self.store.act(NOTHING, lambda: self.catalogue.add(name, self.now()))
        return await self.categories()

    async def retire_category(self, name: str) -> m.CategoryList:
        """Show a category no more."""
        await self.store.act(NOTHING, lambda: self.catalogue.retire(name, self.now()))
        return await self.categories()
