"""What is going on in a service, for its page: read from the store, at most once a second."""

import time
from math import sqrt

import msgspec

from departing.serving import messages as m
from departing.serving.people import User
from departing.serving.service import Service

RECENT = 20_000  # users that the statistics are of
STEPS = 20
LATEST = 8
EVERY = 1.0  # seconds for which an answer is good


class Watch:
    """Looks at a service, and remembers for a second what it saw."""

    def __init__(self, service: Service) -> None:
        self._service, self._seen, self._at = service, b"", 0.0

    def look(self) -> m.Live:
        """What is going on now."""
        if time.monotonic() - self._at > EVERY or not self._seen:
            self._seen = msgspec.msgpack.encode(self._look())
            self._at = time.monotonic()
        return msgspec.msgpack.decode(self._seen, type=m.Live)

    def _look(self) -> m.Live:
        service, store, k = self._service, self._service.store, len(self._service.names)
        ((users, departed),) = store.rows("SELECT count(*), coalesce(sum(departed), 0) FROM users")
        query = "SELECT state FROM users WHERE number >= (SELECT max(number) FROM users) - ? "
        shown, left = [0] * k, [0] * k
        steps, returns = [0] * (STEPS + 1), dict[int, list[int]]()
        n = 0
        for (state,) in store.rows(query, RECENT):
            user = msgspec.msgpack.decode(state, type=User)
            n += user.departed
            clicks = 0
            for place, times in enumerate(user.counts):
                category, outcome = divmod(place, 4)
                shown[category] += times
                clicks += times if outcome in (0, 3) else 0
                left[category] += times if outcome >= 2 else 0
            if user.departed:
                returns.setdefault(user.version, []).append(clicks)
                for step in range(min(user.steps, STEPS) + 1):
                    steps[step] += 1
        version = service.versions[service.versions.current]
        instance = version.instance
        return m.Live(
            service.now(),
            users,
            users - departed,
            dict(service.counters),
            list(service.names),
            service.policy(),
            [_interval(number, found) for number, found in sorted(returns.items())[-12:]],
            [count / n if n else 1.0 for count in steps],
            shown,
            left,
            None if instance is None else dict(zip(instance.types, instance.prior.tolist(), strict=True)),
            self._latest(),
        )

    def _latest(self) -> list[m.Past]:
        query = (
            "SELECT d.event, d.key, d.time, d.category, a.clicked, a.departed FROM decisions d "
            "LEFT JOIN answers a USING (event) ORDER BY d.event DESC LIMIT ?"
        )
        return self._service.pasts(self._service.store.rows(query, LATEST))


def _interval(version: int, returns: list[int]) -> m.VersionLive:
    n = len(returns)
    mean = sum(returns) / n
    spread = sqrt(sum((r - mean) ** 2 for r in returns) / max(n - 1, 1) / n)
    return m.VersionLive(version, n, mean, mean - 1.96 * spread, mean + 1.96 * spread)
