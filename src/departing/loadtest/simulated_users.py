"""A crowd: simulated users of an instance who visit a running service, and what they lose there.

Each has a hidden type, asks for a recommendation, clicks or not, departs or not, and tells so, until it departs.
Everything is asked under an id of our own, so that it may be asked again when the service is started anew.
"""

import asyncio
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from random import Random
from typing import Any, cast
from uuid import uuid4

import numpy as np
from rich.markup import escape
from rich.table import Table

from departing.client import Client
from departing.evaluation.bounds import Bounds
from departing.formatting import format_bounds, format_clicks, format_number, format_significant
from departing.loadtest.connection import Talk, converse, head_of, place_of, post
from departing.model.belief import belief
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats, Instance
from departing.planning.plan import plan
from departing.policy.alpha import Alpha

STRETCHES = 8
MEMORY = 2**18  # different counts whose losses are remembered
PLANNING = 20.0  # seconds
NOTHING = 1e-4  # of the clicks of a user: so far regret may be below 0 because vectors are not quite the best

Rows = list[dict[str, Any]]


# What is lost


class Losses:
    """What showing each category loses against the best way of going on, after what a user did so far.

    That is V - Q, where V is what the best alpha vector promises under the belief, and Q what the category brings at
    this step with V after it. Over the steps of a user these add up, in expectation, to V at the start less what the
    user brings (the performance difference lemma), with far less noise than by counting clicks. That is so whatever
    the vectors are: where they are not the best ones only the noise grows. Terms may then be below zero, and are left
    so.
    """

    def __init__(self, instance: Instance, vectors: Floats | None = None) -> None:
        self.instance = instance
        known = [] if vectors is None else [vectors]
        self.vectors = np.concatenate([*known, instance.fixed_values])  # [n, M]
        self.start = float((self.vectors @ instance.normalised_prior).max())
        self.after = lru_cache(MEMORY)(self._after)

    def _after(self, done: tuple[int, ...]) -> list[float]:
        """The losses of all categories after so many clicks and stays of each, two numbers a category."""
        counts = np.zeros((self.instance.n_categories, 4), np.int64)
        counts[:, [CLICK, STAY]] = np.reshape(done, (-1, 2))
        here = belief(self.instance, counts)
        ahead = (here * self.instance.outcome_probabilities[:, [CLICK, STAY]]) @ self.vectors.T  # [K, 2, n]
        brings = self.instance.click @ here + ahead.max(axis=2).sum(axis=1)
        return cast(list[float], ((self.vectors @ here).max() - brings).tolist())


def best_of(instance: Instance) -> tuple[Bounds, Losses]:
    """What the best policy brings, and losses against it."""
    scale = max(1.0, float(instance.fixed_values.max()))
    made = plan(instance, 1e-6 * scale, PLANNING, "search")
    return made, Losses(instance, made.policy.vectors if isinstance(made.policy, Alpha) else None)


def value_of_random(instance: Instance) -> float:
    """The expected clicks of a user to whom every category is shown with the same chance, at every step.

    >>> value_of_random(Instance(prior=[1.0], click=[[0.5], [0.0]], depart=1.0))
    0.3333333333333333
    """
    return float(
        instance.normalised_prior @ (instance.click.mean(axis=0) / instance.departure_probabilities.mean(axis=0))
    )


# The users


class Crowd:
    """Users of an instance, and what becomes of each, in the order in which they come.

    The luck of a user is fixed by the seed; what they are shown is not.
    """

    def __init__(
        self,
        instance: Instance,
        users: int,
        losses: Losses,
        pace: float = 0.0,
        seed: int = 0,
        head: bytes = b"host: localhost\r\n",
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.instance, self.losses, self.seed = instance, losses, seed
        self.clicks, self.lost = np.zeros(users, np.int64), np.zeros(users)
        self.refused = 0  # answers that the service did not take
        self._gap, self._next = (1 / pace if pace else 0.0), 0.0
        self._head, self._progress, self._left = head, progress, iter(range(users))
        self._name = uuid4().hex[:12]  # so that two crowds are different people
        self._index = {name: a for a, name in enumerate(instance.categories)}
        self._shares = instance.normalised_prior.cumsum()[:-1].tolist()
        self._sums = instance.outcome_probabilities.cumsum(axis=1)[:, :3].transpose(0, 2, 1).tolist()  # [K][M][3]

    def talk(self) -> Talk:
        """What one connection says: users one after the other, as long as any are left."""
        for i in self._left:
            wait = self._turn()
            if wait > 0:
                yield wait
            yield from self._visit(i)
            self._progress(1)

    def _turn(self) -> float:
        """Seconds until the next user may come."""
        now = time.perf_counter()
        at = max(now, self._next)
        self._next = at + self._gap
        return at - now

    def _visit(self, i: int) -> Talk:
        """A user from the first step to the last."""
        rng = Random(f"{self.seed} {i}")
        kind, step, outcome = bisect_right(self._shares, rng.random()), 0, CLICK
        done = [0] * (2 * self.instance.n_categories)
        while outcome in (CLICK, STAY):
            category, outcome = yield from self._step(i, step, kind, rng.random())
            self.lost[i] += self.losses.after(tuple(done))[category]
            self.clicks[i] += outcome in (CLICK, CLICK_DEPART)
            if outcome in (CLICK, STAY):
                done[2 * category + outcome] += 1
            step += 1

    def _step(self, i: int, step: int, kind: int, luck: float) -> Generator[bytes, Any, tuple[int, int]]:
        """What was shown, and what the user did.

        A service that was killed may have forgotten what it recommended, so that an answer is not taken; then it is
        asked a second time.
        """
        event = f"{self._name}-{i}-{step}"
        ask = post("/v1/recommend", {"user": f"crowd {self._name} {i}", "event": event}, self._head)
        for _ in range(2):
            category = self._category((yield ask))
            outcome = bisect_right(self._sums[category][kind], luck)
            told = {
                "event": event,
                "clicked": outcome in (CLICK, CLICK_DEPART),
                "departed": outcome in (DEPART, CLICK_DEPART),
            }
            answer = yield post("/v1/feedback", told, self._head)
            if answer["accepted"]:
                return category, outcome
        self.refused += 1
        return category, outcome

    def _category(self, shown: dict[str, Any]) -> int:
        name = shown["category"]
        if name not in self._index:
            raise InputError(f"The service recommends {name!r:.60}, which is no category of the instance.")
        return self._index[name]


@dataclass(frozen=True)
class SampleLog:
    """What came of a crowd: by user their `clicks` and what they `lost`, the best possible, and times of answers."""

    instance: Instance
    best: Bounds
    clicks: Integers
    lost: Floats
    refused: int
    times: Floats
    seconds: float

    def _mean(self, values: Floats, start: int = 0, stop: int | None = None) -> tuple[float, float | None]:
        part = values[start:stop]
        error = float(part.std(ddof=1) / np.sqrt(len(part))) if len(part) > 1 else None
        return float(part.mean()), error

    def regret(self, start: int = 0, stop: int | None = None) -> tuple[float, float | None]:
        """Regret of a user, from one user to another, and its standard error; what is hardly below 0 is 0."""
        mean, error = self._mean(self.lost, start, stop)
        return (0.0 if -NOTHING * self.best.upper <= mean < 0 else mean), error

    def stretches(self) -> Rows:
        """Clicks and regret of a user, in stretches of users of which each is as long as all before."""
        n, rows = len(self.lost), []
        ends = sorted({0, *(n >> k for k in range(STRETCHES))})
        for start, stop in pairwise(ends):
            mean, error = self._mean(self.clicks.astype(np.float64), start, stop)
            regret, regret_error = self.regret(start, stop)
            rows.append(
                {
                    "first": start + 1,
                    "last": stop,
                    "clicks_per_user": mean,
                    "clicks_stderr": error,
                    "regret_per_user": regret,
                    "regret_stderr": regret_error,
                }
            )
        return rows

    def ways(self) -> Rows:
        """What a user brings here, expected, and by other ways of recommending."""
        category, fixed = self.instance.best_fixed
        values = {
            "the best possible": self.best.value,
            "this service": self.best.value - self.regret()[0],
            f"always {self.instance.categories[category]}": fixed,
            "any category, all alike": value_of_random(self.instance),
        }
        n, best = len(self.lost), self.best.value
        return [{"way": way, "clicks_per_user": v, "regret": n * (best - v)} for way, v in values.items()]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        n, (regret, error) = len(self.lost), self.regret()
        median, slow = np.quantile(self.times, [0.5, 0.99]).tolist()
        return {
            "users": n,
            "clicks": int(self.clicks.sum()),
            "regret": n * regret,
            "regret_stderr": None if error is None else n * error,
            "best": [self.best.lower, self.best.upper],
            "ways": self.ways(),
            "stretches": self.stretches(),
            "refused": self.refused,
            "calls": len(self.times),
            "seconds": self.seconds,
            "median_seconds": median,
            "p99_seconds": slow,
        }

    def tables(self) -> list[Table]:
        """Stretches of users, and other ways of recommending."""
        first = _table(f"{len(self.lost):,} users", "users", "clicks per user", "±", "regret per user", "±")
        for row in self.stretches():
            means = (row[name] for name in ("clicks_per_user", "clicks_stderr", "regret_per_user", "regret_stderr"))
            first.add_row(f"{row['first']:,} to {row['last']:,}", *map(_short, means))
        first.caption = "Regret: expected clicks that the best policy would have brought more. ±: standard error."
        second = _table("Expected clicks", "", "clicks per user", f"regret of {len(self.lost):,} users")
        for row in self.ways():
            second.add_row(escape(row["way"]), format_number(row["clicks_per_user"], 4), format_clicks(row["regret"]))
        return [first, second]

    def notes(self) -> list[str]:
        """How it went."""
        found = self.to_dict()
        error = "" if found["regret_stderr"] is None else f" ± {format_clicks(found['regret_stderr'])}"
        best = format_bounds(self.best.lower, self.best.upper, 4)
        notes = [
            f"Total regret {format_clicks(found['regret'])}{error} clicks; the optimum is {best} clicks per user.",
            f"{found['calls']:,} calls in {self.seconds:.1f} s, {found['calls'] / self.seconds:,.0f} a second; half "
            f"were answered within {1e3 * found['median_seconds']:.1f} ms, "
            f"99 of 100 within {1e3 * found['p99_seconds']:.1f} ms.",
        ]
        if self.refused:
            notes.append(f"Answers of users that the service did not take: {self.refused:,}.")
        return notes


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for name in columns:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    return table


def _short(value: float | None) -> str:
    return "–" if value is None else "0" if abs(value) < 1e-6 else format_significant(value)


def check_service(instance: Instance, url: str, key: str | None = None) -> None:
    """Raise unless the service can be reached and shows the categories of the instance."""
    place_of(url)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise InputError("key has characters that are not printable ASCII.")
    try:
        with Client(url, key) as client:
            found = client.call("GET", "/v1/categories")
        shown = [row["name"] for row in found["categories"] if not row["retired"]]
    except InputError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{url} does not answer as departing serve does.") from error
    if set(shown) != set(instance.categories):
        there, here = (", ".join(names[:10]) for names in (shown, instance.categories))
        raise InputError(f"The service shows the categories {there}; those of the instance are {here}.")


def visit(
    instance: Instance,
    url: str,
    users: int,
    pace: float = 200.0,
    open_users: int = 64,
    seed: int = 0,
    key: str | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> SampleLog:
    """Let users of an instance visit a running service: so many new ones a second at most, so many at once."""
    check_service(instance, url, key)
    best, losses = best_of(instance)
    crowd = Crowd(instance, users, losses, pace, seed, head_of(url, key), progress)
    times: array[float] = array("d")
    started = time.perf_counter()
    asyncio.run(converse(url, [crowd.talk() for _ in range(min(open_users, users))], times))
    seconds = time.perf_counter() - started
    return SampleLog(instance, best, crowd.clicks, crowd.lost, crowd.refused, np.array(times), seconds)
