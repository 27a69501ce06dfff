"""A load test and its result."""

import asyncio
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from departing.client import Client
from departing.evaluation.bounds import Bounds
from departing.formatting import format_bounds, format_clicks
from departing.loadtest.connection import header_lines, not_departing, run_sessions
from departing.loadtest.regret import optimum_and_regret, uniform_value
from departing.loadtest.simulated_users import SimulatedUsers
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.model.names import list_names

RANGES = 8  # user ranges in the result, each as long as all before it: early and late users apart
ROUNDING = 1e-4  # of the optimum: mean regrets above minus this are 0; alpha vectors are optimal to 1e-6 of the scale

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class LoadTestResult:
    """Clicks, rewards and regret of the simulated users of a load test, and the latencies of their requests.

    Attributes
    ----------
    instance : Instance
        The true instance.
    optimum : Bounds
        Bounds on the value of the optimal policy, with the segments of the users if the instance has some.
    clicks : array [users]
        Clicks of every user.
    rewards : array [users]
        Reward of every user, in the unit of the instance.
    regrets : array [users]
        Regret of every user, in the unit of the instance; its mean estimates the regret per user without bias.
    rejected_feedback : int
        Outcomes that the service did not accept.
    latencies : array [requests]
        Seconds from a request to its response.
    seconds : float
        Duration of the load test.
    cut_visits : int
        Visits that the service ended, whose horizon is shorter than that of the instance. The reward that they miss
        is part of the regret.
    """

    instance: Instance
    optimum: Bounds
    clicks: Integers
    rewards: Floats
    regrets: Floats
    rejected_feedback: int
    latencies: Floats
    seconds: float
    cut_visits: int = 0

    def regret(self, start: int = 0, stop: int | None = None) -> tuple[float, float | None]:
        """Mean regret per user of a range of users, and its standard error (None for a single user)."""
        mean, stderr = _mean(self.regrets[start:stop])
        return (0.0 if -ROUNDING * self.optimum.upper <= mean < 0 else mean), stderr

    def ranges(self) -> Rows:
        """Reward and regret per user in ranges of users, each as long as all before it."""
        n, rows = len(self.regrets), []
        ends = sorted({0, *(n >> k for k in range(RANGES))})
        for start, stop in pairwise(ends):
            value, value_stderr = _mean(self.rewards[start:stop])
            regret, regret_stderr = self.regret(start, stop)
            row = {"first": start + 1, "last": stop, "clicks_per_user": value, "clicks_stderr": value_stderr}
            rows.append(row | {"regret_per_user": regret, "regret_stderr": regret_stderr})
        return rows

    def baselines(self) -> Rows:
        """Value per user and regret of the service and of baseline policies."""
        category, fixed = self.instance.best_fixed
        values = {
            "optimal policy": self.optimum.value,
            "this service": self.optimum.value - self.regret()[0],
            f"always {self.instance.categories[category]}": fixed,
            "uniformly random": uniform_value(self.instance),
        }
        n, best = len(self.regrets), self.optimum.value
        return [{"policy": name, "clicks_per_user": v, "regret": n * (best - v)} for name, v in values.items()]

    def to_dict(self) -> dict[str, Any]:
        """All results as JSON values."""
        n, (regret, stderr) = len(self.regrets), self.regret()
        median, p99 = np.quantile(self.latencies, [0.5, 0.99]).tolist()
        return {
            "users": n,
            "clicks": int(self.clicks.sum()),
            "reward": float(self.rewards.sum()),
            "unit": self.instance.unit,
            "regret": n * regret,
            "regret_stderr": None if stderr is None else n * stderr,
            "optimum": [self.optimum.lower, self.optimum.upper],
            "baselines": self.baselines(),
            "ranges": self.ranges(),
            "rejected_feedback": self.rejected_feedback,
            "cut_visits": self.cut_visits,
            "requests": len(self.latencies),
            "seconds": self.seconds,
            "median_seconds": median,
            "p99_seconds": p99,
        }

    def summary(self) -> str:
        """Total regret, request rate and latencies, in a few lines."""
        values = self.to_dict()
        stderr = "" if values["regret_stderr"] is None else f" ± {format_clicks(values['regret_stderr'])}"
        optimum, unit = format_bounds(self.optimum.lower, self.optimum.upper, 4), self.instance.unit
        lines = [
            f"Total regret: {format_clicks(values['regret'])}{stderr} {unit}. Optimum: {optimum} {unit} per user.",
            f"{values['requests']:,} requests in {self.seconds:.1f} s: {values['requests'] / self.seconds:,.0f}/s, "
            f"latency median {1e3 * values['median_seconds']:.1f} ms, p99 {1e3 * values['p99_seconds']:.1f} ms.",
        ]
        if self.rejected_feedback:
            lines.append(f"Rejected feedback: {self.rejected_feedback:,}.")
        if self.cut_visits:
            lines.append(f"Visits that the service ended at a shorter horizon: {self.cut_visits:,}.")
        return "\n".join(lines)


def _mean(values: Floats) -> tuple[float, float | None]:
    """Return the mean and its standard error, None for a single value."""
    stderr = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return float(values.mean()), stderr


def check_service(instance: Instance, url: str, key: str | None = None) -> None:
    """Raise unless the service is reachable and shows the categories of the instance."""
    if key is not None and not (key.isascii() and key.isprintable()):
        raise InputError("key contains characters other than printable ASCII.", "key")
    try:
        with Client(url, key) as client:
            rows = client.call("GET", "/v1/categories")["categories"]
        shown = [row["name"] for row in rows if not row["retired"]]
    except InputError:  # a ValueError too
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise not_departing(url, error) from error
    if set(shown) != set(instance.categories):
        given = list_names(instance.categories)
        raise InputError(f"The service shows {list_names(shown)}; expected the categories of the instance, {given}.")


def run_loadtest(
    instance: Instance,
    url: str,
    users: int,
    pace: float = 200.0,
    open_users: int = 64,
    seed: int = 0,
    key: str | None = None,
    progress: Callable[[int], None] = lambda _: None,
    shown: str | None = None,
) -> LoadTestResult:
    """Send simulated users of an instance to a running service.

    Parameters
    ----------
    instance
        The true instance; the service must show its categories.
    url
        Address of the service.
    users
        Number of users.
    pace
        New users per second at most; 0 for no limit.
    open_users
        Users who visit at the same time, each over its own connection.
    seed
        Seed of types and outcomes.
    key
        API key.
    progress
        Called with 1 after each user.
    shown
        Category that the caller shows, for a service in shadow mode.

    Returns
    -------
    LoadTestResult
        Clicks, regrets and latencies.

    Raises
    ------
    InputError
        If the service is unreachable or shows other categories.
    """
    check_service(instance, url, key)
    optimum, step_regret = optimum_and_regret(instance)
    simulated = SimulatedUsers(instance, users, step_regret, pace, seed, header_lines(url, key), progress, shown)
    latencies: array[float] = array("d")
    start = time.perf_counter()
    asyncio.run(run_sessions(url, [simulated.session() for _ in range(min(open_users, users))], latencies))
    seconds = time.perf_counter() - start
    results = simulated.clicks, simulated.rewards, simulated.regrets, simulated.rejected_feedback
    return LoadTestResult(instance, optimum, *results, np.array(latencies), seconds, simulated.cut_visits)
