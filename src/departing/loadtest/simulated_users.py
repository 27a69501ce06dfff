"""Simulated users of an instance who visit a running service.

Each user has a hidden type, requests a recommendation, clicks or not, departs or not, and sends that as feedback,
until departure or the horizon. Every request carries an event ID, so it can be repeated when the service restarts.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Generator
from math import inf
from random import Random
from typing import Any
from uuid import uuid4

import numpy as np

from departing.client import ServiceError
from departing.loadtest.connection import Session, post_request
from departing.loadtest.regret import StepRegret
from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Instance


class _Group:
    """Users of one segment, or all users of an instance without segments."""

    def __init__(self, segment: str | None, instance: Instance) -> None:
        self.segment, self.type_cdf = segment, instance.normalised_prior.cumsum()[:-1].tolist()


class SimulatedUsers:
    """Users of an instance, with their clicks, rewards and regrets in order of arrival.

    The seed fixes segment and type of every user and the random number behind each outcome, not what is shown.

    Parameters
    ----------
    instance
        The true instance.
    users
        Number of users.
    step_regret
        Regret of each recommendation.
    pace
        New users per second at most; 0 for no limit.
    seed
        Seed of types and outcomes.
    headers
        Header lines of all requests.
    progress
        Called with 1 after each user.
    shown
        Category that the caller shows, for a service in shadow mode.
    """

    def __init__(
        self,
        instance: Instance,
        users: int,
        step_regret: StepRegret,
        pace: float = 0.0,
        seed: int = 0,
        headers: bytes = b"host: localhost\r\n",
        progress: Callable[[int], None] = lambda _: None,
        shown: str | None = None,
    ) -> None:
        self.instance, self.step_regret, self.seed = instance, step_regret, seed
        self.clicks, self.rewards, self.regrets = np.zeros(users, np.int64), np.zeros(users), np.zeros(users)
        self.rejected_feedback = self.cut_visits = 0
        self._horizon = inf if instance.horizon is None else instance.horizon
        self._choice = {} if shown is None else {"shown": shown}
        self._interval, self._next_arrival = (1 / pace if pace else 0.0), 0.0
        self._headers, self._progress, self._remaining = headers, progress, iter(range(users))
        self._run_id = uuid4().hex[:12]  # keeps the users of two load tests apart
        self._index = {name: a for a, name in enumerate(instance.categories)}
        segments = instance.segments
        names = (None,) if segments is None else segments.names
        self._groups = [_Group(name, instance.in_segment(name)) for name in names]
        self._segment_cdf = [] if segments is None else segments.share.cumsum()[:-1].tolist()
        self._rewards = instance.reward.tolist() if "reward" in instance.extensions else None
        self._outcome_cdf = instance.outcome_probabilities.cumsum(axis=1)[:, :3].transpose(0, 2, 1).tolist()

    def session(self) -> Session:
        """Yield the requests of one connection: users one after the other while any remain."""
        for i in self._remaining:
            wait = self._reserve_arrival()
            if wait > 0:
                yield wait
            yield from self._visit(i)
            self._progress(1)

    def _reserve_arrival(self) -> float:
        """Return the seconds until the next user may arrive, and reserve that time."""
        now = time.perf_counter()
        arrival = max(now, self._next_arrival)
        self._next_arrival = arrival + self._interval
        return arrival - now

    def _visit(self, i: int) -> Session:
        rng = Random(f"{self.seed} {i}")
        group = self._groups[bisect_right(self._segment_cdf, rng.random()) if self._segment_cdf else 0]
        user_type, step, outcome = bisect_right(group.type_cdf, rng.random()), 0, CLICK
        regret = self.step_regret.in_segment(group.segment)
        request = {"user": f"loadtest {self._run_id} {i}", **self._choice}
        if group.segment is not None:
            request["segment"] = group.segment
        clicks_and_stays = [0] * (2 * self.instance.n_categories)
        while outcome in (CLICK, STAY) and step < self._horizon:
            event = f"{self._run_id}-{i}-{step}"
            result = yield from self._step(request | {"event": event}, user_type, rng.random())
            if result is None:
                self.cut_visits += 1
                self.regrets[i] += regret.remaining(tuple(clicks_and_stays))
                return
            category, outcome = result
            self.regrets[i] += regret.after(tuple(clicks_and_stays))[category]
            if outcome in (CLICK, CLICK_DEPART):
                self.clicks[i] += 1
                self.rewards[i] += self.instance.reward[category]
            if outcome in (CLICK, STAY):
                clicks_and_stays[2 * category + outcome] += 1
            step += 1

    def _step(
        self, request: dict[str, str], user_type: int, draw: float
    ) -> Generator[bytes, Any, tuple[int, int] | None]:
        """Return the category shown and the outcome of one step, None if the service shows nothing more.

        A service that was killed may have lost its recommendation and then rejects the feedback; both are sent twice.
        """
        for _ in range(2):
            shown = yield post_request("/v1/recommend", request, self._headers)
            if isinstance(shown, ServiceError):
                return None
            name = shown["category"]
            if name not in self._index:
                raise InputError(f"The service recommends {name!r:.60}, which is not a category of the instance.")
            category = self._index[name]
            outcome = bisect_right(self._outcome_cdf[category][user_type], draw)
            clicked, departed = outcome in (CLICK, CLICK_DEPART), outcome in (DEPART, CLICK_DEPART)
            feedback: dict[str, Any] = {"event": request["event"], "clicked": clicked, "departed": departed}
            if clicked and self._rewards is not None:
                feedback["reward"] = self._rewards[category]
            result = yield post_request("/v1/feedback", feedback, self._headers)
            if result["accepted"]:
                return category, outcome
        self.rejected_feedback += 1
        return category, outcome
