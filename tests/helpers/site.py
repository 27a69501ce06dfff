"""Simulated sites: users who visit a service by a virtual clock, and the true figures of endless such users."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from departing.policy.schedule import Fixed
from departing.service import messages as m
from departing.service.cohorts import WINDOWS
from helpers.services import publish, run

START = 1_800_000_000.0


@dataclass(frozen=True)
class Site:
    """Users of several types; the policy versions show one category each. Times are in ticks."""

    prior: tuple[float, ...]
    click: tuple[tuple[float, ...], ...]  # by category and type
    depart: tuple[float, ...]  # by type, after a no-click
    gap: tuple[int, ...]  # longest time between recommendations, by type
    depart_on_click: float = 0.0
    tick: float = 60.0  # seconds
    arrivals: float = 8.0  # per tick
    ticks: int = 120
    lag: int = 0  # of feedback
    inactive_after: int | None = None  # after which users count as departed
    switch: float = 0.5  # share of the time after which the second version is published
    reported: bool = True  # whether feedback contains departures

    def draw(self, rng, version, user_type):
        """Draw click, departure and time to the next recommendation, of arrays of users."""
        clicked = rng.random(len(user_type)) < np.array(self.click)[version, user_type]
        stays = 1 - np.where(clicked, self.depart_on_click, np.array(self.depart)[user_type])
        return clicked, rng.random(len(user_type)) >= stays, rng.integers(1, np.array(self.gap)[user_type] + 1)

    def truth(self, seed=0, users=200_000):
        """Mean clicks within each window, `[version, window]`, and probability of k steps, `[version, window, k]`."""
        rng, windows = np.random.default_rng(seed), np.array(WINDOWS)
        clicks, reach = np.zeros((2, len(windows))), np.zeros((2, len(windows), self.ticks + 2))
        for version in range(2):
            user_type = rng.choice(len(self.prior), users, p=self.prior)
            time = np.zeros(users, int)
            for step in range(1, self.ticks + 2):
                clicked, departed, gap = self.draw(rng, version, user_type)
                reach[version, :, step] = np.searchsorted(np.sort(time * self.tick), windows, side="right") / users
                heard = np.sort((time[clicked] + self.lag) * self.tick)
                clicks[version] += np.searchsorted(heard, windows, side="right") / users
                kept = ~departed & (time + gap <= self.ticks)
                user_type, time = user_type[kept], (time + gap)[kept]
        reach[:, :, 0] = 1.0
        return clicks, reach

    def settings(self):
        """Options of the service."""
        return {} if self.inactive_after is None else {"inactive_after": self.inactive_after * self.tick}

    def visit(self, service, seed):
        """Let users visit a service with the categories "0" and "1", a version of which is published in turn."""
        visits = _Visits(self, service, np.random.default_rng(seed))
        switch = int(self.switch * self.ticks)
        for category, ticks in enumerate((range(switch), range(switch, self.ticks))):
            publish(service, Fixed(category), 2)
            run(visits.run(ticks))
        service.clock.time += self.tick / 2


class _Visits:
    """Visits under way: who requests a recommendation and what feedback is sent at each tick."""

    def __init__(self, site, service, rng):
        self.site, self.service, self.rng, self.users = site, service, rng, 0
        self.due, self.feedback = defaultdict(list), defaultdict(list)

    async def run(self, ticks):
        site, service, rng = self.site, self.service, self.rng
        for tick in ticks:
            service.clock.time = START + tick * site.tick
            arrivals = rng.poisson(site.arrivals)
            types = rng.choice(len(site.prior), arrivals, p=site.prior).tolist()
            self.due[tick] += [(f"u{self.users + i}", user_type) for i, user_type in enumerate(types)]
            self.users += arrivals
            await self.recommend(tick, self.due.pop(tick))
            rows = self.feedback.pop(tick, [])
            if rows:
                assert all(row.accepted for row in await service.feedback(rows))
            while await service.sweep():
                pass

    async def recommend(self, tick, users):
        site = self.site
        shown = [await self.service.recommend(m.RecommendRequest(name)) for name, _ in users]
        categories, types = [int(each.category) for each in shown], [user_type for _, user_type in users]
        drawn = (array.tolist() for array in site.draw(self.rng, np.array(categories, int), np.array(types, int)))
        for user, each, clicked, departed, gap in zip(users, shown, *drawn, strict=True):
            feedback = m.Feedback(each.event, clicked, departed if site.reported else None)
            self.feedback[tick + site.lag].append(feedback)
            if not departed:
                self.due[tick + gap].append(user)
