"""What a policy would have earned: how often the truth is within 95 % intervals, over many simulated logs."""

import numpy as np

import departing as dp
from benchmarks.common import Row

LOGS = 100
SITE = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.6], [0.5, 0.4]], depart=[[0.7], [0.8], [0.7]] * np.ones((1, 2)))
WALK = dp.Walk([0], then=1)
CASES = {  # users, days of the log, chance to stop looking in the middle of a step, policy
    "departures known": (10_000, 1e4, 0.0, WALK),
    "censored": (10_000, 8.0, 0.0, WALK),
    "censored, some pending": (10_000, 30.0, 0.1, WALK),
    "poor overlap": (5_000, 30.0, 0.0, dp.Greedy(SITE)),
}
NAMES = ("model", "weighted", "robust")


def log_of(users: int, days: float, stopping: float, seed: int) -> dp.Log:
    """A log of a site that shows categories at random, with logged departures."""
    import pandas as pd

    seen = dp.visits(SITE, users, seed, days=days, gap=3.0)
    columns = {name: np.asarray(column) for name, column in seen.columns().items()}
    events = pd.DataFrame(columns | {"departed": (seen.outcome >= 2).astype(object)})
    if stopping:  # the click is seen, but not whether the user stayed, and nothing after it
        watched = np.random.default_rng([seed, 1]).geometric(stopping, users)[seen.user]
        step = events.groupby("user").cumcount() + 1
        events.loc[step == watched, "departed"] = None
        events = events[step <= watched]
    return dp.read_log(events)


def study(case: str, logs: int = LOGS, times: int = 200) -> dict[str, np.ndarray]:
    """Error, standard error and whether the truth is covered, `[logs, 3]`, for every estimate."""
    users, days, stopping, policy = CASES[case]
    truth, found = dp.evaluate(SITE, policy).value, {name: [] for name in NAMES}
    for seed in range(logs):
        log = log_of(users, days, stopping, seed)
        answer = dp.value_on_log(log, policy, fit=dp.fit(log, types=2, starts=4), times=times, seed=seed)
        for name in NAMES:
            estimate = getattr(answer, name)
            found[name].append((estimate.value - truth, estimate.stderr, truth in estimate))
    return {name: np.array(rows) for name, rows in found.items()}


def rows():
    found = []
    for case in CASES:
        for name, each in study(case).items():
            error, stderr, covered = each.T
            note = (
                f"bias {error.mean():+.4f}, spread {error.std(ddof=1):.4f}, mean standard error {stderr.mean():.4f}"
            )
            figure = 100 * covered.mean()
            found.append(Row(f"{case}: {name} covers", figure, "of 100", 92, note=note))
            found.append(Row(f"{case}: {name} covers", figure, "of 100", 98, at_least=False))
    return found
