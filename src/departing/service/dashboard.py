"""What is going on in a service, for its page: read from the store in a thread, at most once a second."""

import asyncio
import time
from contextlib import closing
from math import sqrt

import msgspec

from departing.fitting.type_description import describe_type
from departing.model.instance import Instance
from departing.service.api import messages as m
from departing.service.export import PAST, pasts
from departing.service.service import Service
from departing.service.store.connection import Database, connect

RECENT = 20_000  # users that the statistics are of
STEPS = 20
LATEST = 8
SPANS = 30  # that time is divided into, from when the recent users departed to now
LEARNED = 300  # versions that the progress is told of
EVERY = 1.0  # seconds for which an answer is good


class Watch:
    """Looks at a service, and remembers for a second what it saw."""

    def __init__(self, service: Service, learning: bool = False) -> None:
        self._service, self._learning = service, learning
        self._seen: m.Dashboard | None = None
        self._at, self._turn = 0.0, asyncio.Lock()

    async def look(self) -> m.Dashboard:
        """What is going on now."""
        async with self._turn:
            if self._seen is None or time.monotonic() - self._at > EVERY:
                published, totals = await self._service.policy(), await self._service.totals()
                self._seen = await asyncio.to_thread(self._look, published, totals)
                self._at = time.monotonic()
        return self._seen

    def _look(self, published: m.PolicyVersionInfo, totals: dict[str, int]) -> m.Dashboard:
        catalogue = self._service.catalogue
        current = catalogue.current
        instance, graph = current.instance, current.about.get("graph")
        with closing(connect(self._service.store.address)) as database, database.snapshot():
            names = [name for (name,) in database.rows("SELECT name FROM categories ORDER BY category")]
            ((users, gone),) = database.rows("SELECT count(*), coalesce(sum(departed), 0) FROM users")
            ((newest,),) = database.rows("SELECT coalesce(max(number), 0) FROM users")
            shown, left = _by_category(database, newest - RECENT, len(names))
            return m.Dashboard(
                self._service.now(),
                users,
                users - int(gone),
                totals,
                [m.CategoryActivity(name, a in catalogue.retired, shown[a], left[a]) for a, name in enumerate(names)],
                [] if instance is None else _types(instance),
                self._learning,
                catalogue.shadow,
                published,
                None if graph is None else msgspec.convert(graph, m.Branch),
                _moments(database, newest - RECENT, self._service.now()),
                self._learned(),
                _survival(database, newest - RECENT),
                pasts(database.rows(f"{PAST} ORDER BY d.event DESC LIMIT ?", LATEST), names),
            )

    def _learned(self) -> list[m.LearningPoint]:
        """What the versions that were thought best were worth, by what was known then."""
        versions = sorted(self._service.catalogue.versions.known.items())
        best = [version for _, version in versions if version.about.get("loss") is not None]
        return [
            m.LearningPoint(
                each.number,
                each.made,
                each.about.get("arrived", 0),
                each.about.get("lower"),
                each.about.get("upper"),
                each.about["loss"],
            )
            for each in best[-LEARNED:]
        ]


def _types(instance: Instance) -> list[m.TypeShare]:
    return [
        m.TypeShare(name, share, describe_type(instance, x).partition(": ")[2])
        for x, (name, share) in enumerate(zip(instance.types, instance.prior.tolist(), strict=True))
    ]


def _by_category(database: Database, since: int, n_categories: int) -> tuple[list[int], list[int]]:
    """How often each category was shown to recent users, and how often they left then."""
    shown, left = [0] * n_categories, [0] * n_categories
    query = "SELECT counts, count(*) FROM users WHERE number >= ? GROUP BY counts"
    for blob, users in database.rows(query, since):
        for place, times in enumerate(msgspec.msgpack.decode(blob)[: 4 * n_categories]):
            category, outcome = divmod(place, 4)
            shown[category] += times * users
            left[category] += times * users if outcome >= 2 else 0
    return shown, left


def _survival(database: Database, since: int) -> list[float]:
    """The share of recent users, of those who departed, who were still here after so many steps."""
    query = "SELECT steps, count(*) FROM users WHERE number >= ? AND departed = 1 GROUP BY steps"
    steps = [0] * (STEPS + 1)
    for stayed, users in database.rows(query, since):
        for step in range(min(stayed, STEPS) + 1):
            steps[step] += users
    return [count / steps[0] if steps[0] else 1.0 for count in steps]


def _moments(database: Database, since: int, now: float) -> list[m.ClicksBin]:
    """Clicks per user of recent users who departed, by when they did and by version."""
    recent = "FROM departures p JOIN users u ON u.number = p.number WHERE p.number >= ?"
    ((first,),) = database.rows(f"SELECT min(p.time) {recent}", since)
    if first is None:
        return []
    width = max(now - first, 1.0) / SPANS
    query = (
        "SELECT CAST(1000 * (p.time - ?) AS BIGINT) / ? AS span, u.version, count(*), sum(u.clicks), "
        f"sum(u.clicks * u.clicks) {recent} GROUP BY span, u.version ORDER BY span, u.version"
    )
    found = database.rows(query, first, int(1000 * width), since)
    return [_moment(first + (span + 0.5) * width, *map(int, rest)) for span, *rest in found]


def _moment(time: float, version: int, n: int, clicks: int, squares: int) -> m.ClicksBin:
    mean = clicks / n
    spread = sqrt(max(squares / n - mean**2, 0.0) / max(n - 1, 1))
    return m.ClicksBin(time, version, n, mean, max(mean - 1.96 * spread, 0.0), mean + 1.96 * spread)
