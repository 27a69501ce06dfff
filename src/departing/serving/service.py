"""The service itself, whatever speaks to it: recommends, is told what users do, and remembers."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any
from uuid import uuid4

from departing.model.belief import belief as belief_after
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Instance
from departing.serving import messages as m
from departing.serving import people
from departing.serving.people import RefusedError, User
from departing.serving.store import Answer, Decision, SqliteStore
from departing.serving.versions import Version, Versions, choose, types_of

WHY = {
    "unknown": "There is no such event.",
    "contradiction": "Something else was told of this event before.",
    "came back": "The user came back after this event, and cannot have departed.",
    "closed": "The user has departed since, and this event was taken for a no-click.",
}
SWEEP = 1000  # users whose silence is looked at in one go


class NotFoundError(InputError):
    """There is nothing of that name."""


@dataclass(frozen=True)
class Settings:
    """How a service behaves."""

    inactive_after: float = inf  # seconds of silence after which a user is taken for departed
    explore: float = 0.05  # share of recommendations that are any category
    unanswered: str = "no-click"  # what a recommendation that was never answered means
    shadow: bool = False  # the caller decides, we only say what we would have shown
    most_categories: int = 1000


class Service:
    """Recommends to users by published policies, and keeps what they do in a store."""

    def __init__(
        self,
        store: SqliteStore,
        settings: Settings | None = None,
        clock: Callable[[], float] = time.time,
        seed: int | None = None,
    ) -> None:
        self.store, self.settings, self.clock = store, settings or Settings(), clock
        self.rng = random.Random(seed)
        store.unanswered = self.settings.unanswered
        self.counters: Counter[str] = Counter()
        self.names: list[str] = []
        self.retired: set[int] = set()
        for name, retired in store.categories():
            self._learn_of(name, retired)
        self.versions = Versions(store.rows("SELECT * FROM policies ORDER BY version"))
        self._now = 0.0
        kept = dict(store.rows("SELECT key, value FROM meta"))
        self.shadow = kept.get("shadow", str(int(self.settings.shadow))) == "1"
        self._refresh_allotments()

    def _learn_of(self, name: str, retired: bool) -> None:
        self.names.append(name)
        if retired:
            self.retired.add(len(self.names) - 1)

    def now(self) -> float:
        """The time, which never goes back, whatever the clock does."""
        self._now = max(self._now, self.clock())
        return self._now

    # Recommending

    def recommend(self, ask: m.Ask) -> m.Recommendation:
        """What to show to a user."""
        if ask.event is not None:
            before = self._asked_before(ask)
            if before is not None:
                return before
        now = self.now()
        allowed = self._allowed(ask.allowed)
        told = self._category(self._told(ask)) if self.shadow else None
        user = self.store.user(ask.user)
        if user is not None and not user.departed and now - user.seen > self.settings.inactive_after:
            self._leave(user, now, "silent")
        if user is not None and user.departed:  # somebody who was taken for departed begins anew
            self.counters["returned"] += 1
            old, user = user, None
            self.store.rename(old, f"earlier {uuid4().hex}")
            self.store.save(old)
        if user is None:
            user = User(self.store.next_user, ask.user, self.versions.assign(), [], [])
            self.store.next_user += 1
        people.come_back(user)
        counts = user.counts_with_open(len(self.names), self.settings.unanswered)
        version = self.versions[user.version]
        chance: float | None
        category, chance, ours = choose(version, counts, allowed, self.settings.explore, self.rng)
        if told is not None:
            category, chance = told, ask.propensity
        event = self.store.next_event
        self.store.next_event += 1
        self.store.reserve()
        people.show(user, event, category, now, self.settings.unanswered)
        decision = Decision(event, ask.event, user.number, now, category, chance, user.version, ours)
        self.store.save(user, self.store.decided(decision))
        self.counters["recommended"] += 1
        return self._recommendation(decision, counts if ask.explain else None)

    def _told(self, ask: m.Ask) -> str:
        if ask.shown is None:
            raise InputError("shown is missing; in shadow mode the caller says which category it shows.")
        return ask.shown

    def _asked_before(self, ask: m.Ask) -> m.Recommendation | None:
        assert ask.event is not None
        if ask.event.startswith("e-"):
            raise InputError(f"event is {ask.event!r:.60}; ids that begin with 'e-' are made by the service.")
        before = self.store.decision_of(ask.event)
        if before is None:
            return None
        user = self.store.user(ask.user)
        if user is None or user.number != before.user:
            raise InputError(f"event is {ask.event!r:.60}; it was used for another user.")
        return self._recommendation(before, None)

    def _recommendation(self, decision: Decision, counts: Integers | None) -> m.Recommendation:
        answer = m.Recommendation(
            _event_name(decision), self.names[decision.category], decision.propensity, decision.version
        )
        if self.shadow:
            answer.would_show = self.names[decision.ours]
        if counts is not None:
            version = self.versions[decision.version]
            if version.instance is not None:
                outlook = self._outlook(version, version.instance, counts)
                if outlook is not None:
                    answer.belief, answer.further_clicks = outlook
        return answer

    def _outlook(
        self, version: Version, instance: Instance, counts: Integers
    ) -> tuple[dict[str, float], float] | None:
        """The belief, and the clicks to expect; None if no type of the instance does such things."""
        known = counts[: instance.n_categories].copy()
        known[:, 2:] = 0  # who is asked about is here
        try:
            shares = belief_after(instance, known)
        except InputError:
            return None
        vectors = getattr(version.policy, "vectors", instance.fixed_values)
        return types_of(instance, shares), float((vectors @ shares).max())

    def _allowed(self, names: Sequence[str] | None) -> list[int]:
        if names is None:
            allowed = [a for a in range(len(self.names)) if a not in self.retired]
        else:
            allowed = sorted({self._category(name) for name in names} - self.retired)
        if not allowed:
            raise InputError("allowed names only retired categories; at least one that is shown is needed.")
        return allowed

    def _category(self, name: str) -> int:
        try:
            return self.names.index(name)
        except ValueError:
            known = ", ".join(map(repr, self.names[:10]))
            raise InputError(f"category is {name!r:.60}; known are {known}.") from None

    # Feedback

    async def feedback(self, rows: Sequence[m.Feedback]) -> list[m.Taken]:
        """Be told what came of events; what is taken is on disk when this returns."""
        taken = [self._take(row) for row in rows]
        await self.store.flushed()
        return taken

    def _take(self, row: m.Feedback) -> m.Taken:
        try:
            new = self._answer(row)
        except RefusedError as error:
            self.counters[f"refused_{str(error).replace(' ', '_')}"] += 1
            return m.Taken(row.event, False, WHY[str(error)])
        self.counters["answered" if new else "repeated"] += 1
        return m.Taken(row.event, True)

    def _answer(self, row: m.Feedback) -> bool:
        """Take an answer; whether it is news."""
        decision = self._decision(row.event)
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
            if before is None and row.clicked:
                raise RefusedError("closed")
            if row.departed and not user.departed:
                raise RefusedError("came back")
            return False
        now = self.now()
        if not people.answer(user, decision.event, row.clicked, row.departed, now, self.settings.unanswered):
            return False
        writes = [self.store.answered(decision.event, Answer(row.clicked, row.departed), now)]
        if user.departed:
            writes.append(_departure(user, now, "told"))
            self.counters["departed"] += 1
        self.counters["clicked"] += row.clicked and before is None
        self.store.save(user, *writes)
        return True

    def _decision(self, event: str) -> Decision | None:
        if event.startswith("e-") and event[2:].isdecimal() and len(event) < 20:
            return self.store.decision(int(event[2:]))
        return self.store.decision_of(event)

    async def depart(self, name: str) -> m.Done:
        """A user has gone for good."""
        user = self._user(name)
        if user.departed:
            return m.Done(False)
        self._leave(user, self.now(), "told")
        await self.store.flushed()
        return m.Done(True)

    def _leave(self, user: User, now: float, why: str) -> None:
        people.depart(user, self.settings.unanswered)
        self.store.save(user, _departure(user, now, why))
        self.counters["departed"] += 1

    def sweep(self) -> int:
        """Take those for departed who have been silent long enough; how many."""
        if self.settings.inactive_after == inf:
            return 0
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

    async def known(self, name: str) -> m.Known:
        """What is known of a user."""
        user = self._user(name)
        await self.store.flushed()
        counts = user.counts_with_open(len(self.names), self.settings.unanswered)
        version = self.versions[user.version]
        outlook = None if version.instance is None else self._outlook(version, version.instance, counts)
        return m.Known(
            user.name,
            user.version,
            user.departed,
            {name: row.tolist() for name, row in zip(self.names, counts, strict=True)},
            None if outlook is None else outlook[0],
            None if outlook is None or user.departed else outlook[1],
            self._history(user),
        )

    def _history(self, user: User) -> list[m.Past]:
        query = (
            "SELECT d.event, d.key, d.time, d.category, a.clicked, a.departed FROM decisions d "
            "LEFT JOIN answers a USING (event) WHERE d.user = ? ORDER BY d.event DESC LIMIT 100"
        )
        return self.pasts(self.store.rows(query, user.number))

    def pasts(self, rows: Iterable[tuple[Any, ...]]) -> list[m.Past]:
        """Recommendations of the past, from their rows."""
        return [
            m.Past(key or f"e-{event}", at, self.names[category], _truth(clicked), _truth(departed))
            for event, key, at, category, clicked, departed in rows
        ]

    async def forget(self, name: str) -> m.Done:
        """Forget who a user is; what they did stays in the statistics, without a name."""
        user = self._user(name)
        self.store.rename(user, f"forgotten {uuid4().hex}")
        if not user.departed:
            user.departed = True  # nobody can come back under this name; nothing says that they left
            user.open.clear()
        writes = ("UPDATE decisions SET key = NULL WHERE user = ?", (user.number,))
        self.store.save(user, writes)
        self.counters["forgotten"] += 1
        await self.store.flushed()
        return m.Done(True)

    # Policies and categories

    def publish(self, version: Version) -> None:
        """Publish a version and give it to all new users."""
        self.versions.publish(version)
        self.versions.allot([], version.number)
        self.store.write(
            ("INSERT OR REPLACE INTO policies VALUES (?, ?, ?, ?)", version.row()),
            *_allotments([], version.number),
        )

    def refresh(self) -> bool:
        """Take up what a trainer has published meanwhile; whether there was anything."""
        newest = max(self.versions.known, default=-1)
        rows = self.store.rows("SELECT * FROM policies WHERE version > ? ORDER BY version", newest)
        for row in rows:
            self.versions.publish(Version.of_row(*row))
        if rows:
            self._refresh_allotments()
        return bool(rows)

    def _refresh_allotments(self) -> None:
        rows = self.store.rows("SELECT version, users FROM allotments ORDER BY place")
        if rows and {number for number, _ in rows} <= set(self.versions.known):
            *parts, (current, _) = rows
            self.versions.allot(parts, current)

    def policies(self) -> m.Policies:
        """All versions, the latest first."""
        return m.Policies([self._published(version) for _, version in sorted(self.versions.known.items())[::-1]])

    def policy(self) -> m.Published:
        """The version that new users get."""
        return self._published(self.versions[self.versions.current])

    def _published(self, version: Version) -> m.Published:
        about = version.about
        return m.Published(
            version.number,
            version.made,
            about.get("words", ""),
            about.get("lower"),
            about.get("upper"),
            about.get("source", ""),
            version.number == self.versions.current,
        )

    async def switch(self, number: int) -> m.Published:
        """Give new users a version of the past, until the next one is published."""
        if number not in self.versions.known:
            raise NotFoundError(f"There is no version {number} of the policy.")
        self.versions.allot([], number)
        self.store.write(*_allotments([], number))
        await self.store.flushed()
        return self.policy()

    async def set_shadow(self, shadow: bool) -> m.ShadowReport:
        """Let the caller decide, or decide ourselves from now on."""
        self.shadow = shadow
        self.store.write(("INSERT OR REPLACE INTO meta VALUES ('shadow', ?)", (str(int(shadow)),)))
        return await self.shadow_report()

    async def shadow_report(self) -> m.ShadowReport:
        """How often the caller decided as we would have."""
        await self.store.flushed()
        ((n, matches),) = self.store.rows("SELECT count(*), coalesce(sum(category = ours), 0) FROM decisions")
        return m.ShadowReport(self.shadow, n, matches, matches / n if n else None)

    def categories(self) -> m.Categories:
        """All categories."""
        return m.Categories([m.CategoryState(name, a in self.retired) for a, name in enumerate(self.names)])

    async def add_category(self, name: str) -> m.Categories:
        """Add a category, or take one back that was retired.

        A new one is shown by the share that explores until a policy that knows it is published.
        """
        if name in self.names and self.names.index(name) not in self.retired:
            raise InputError(f"name is {name!r:.60}; there is such a category.")
        if name not in self.names and len(self.names) >= self.settings.most_categories:
            raise InputError(f"There are {len(self.names)} categories, as many as are allowed.")
        now = self.now()
        if name in self.names:
            self.retired.discard(self.names.index(name))
            self.store.write(("UPDATE categories SET retired = NULL WHERE name = ?", (name,)))
        else:
            self._learn_of(name, False)
            self.store.write(("INSERT INTO categories VALUES (?, ?, ?, NULL)", (len(self.names) - 1, name, now)))
        await self.store.flushed()
        return self.categories()

    async def retire_category(self, name: str) -> m.Categories:
        """Show a category no more."""
        category = self._category(name)
        if len(self.names) - len(self.retired | {category}) < 1:
            raise InputError(f"name is {name!r:.60}; it is the last category that is shown.")
        self.retired.add(category)
        self.store.write(("UPDATE categories SET retired = ? WHERE name = ?", (self.now(), name)))
        await self.store.flushed()
        return self.categories()


def _allotments(parts: Sequence[tuple[int, int]], current: int) -> list[tuple[str, tuple[object, ...]]]:
    """The writes of what new users get: so many each in turn, then `current` for all."""
    listed = [*parts, (current, 0)]
    inserts = [("INSERT INTO allotments VALUES (?, ?, ?)", (i, *part)) for i, part in enumerate(listed)]
    return [("DELETE FROM allotments", ()), *inserts]


def _event_name(decision: Decision) -> str:
    return decision.key or f"e-{decision.event}"


def _truth(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _departure(user: User, now: float, why: str) -> tuple[str, tuple[object, ...]]:
    return "INSERT OR IGNORE INTO departures VALUES (?, ?, ?)", (user.number, now, why)
