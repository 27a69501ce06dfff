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
NAMES = ("dm", "pdis", "dr")


def log_of(users: int, days: float, stopping: float, seed: int) -> dp.Log:
    """A log of a site that shows categories at random, with logged departures."""
    import pandas as pd

    seen = dp.sample_log(SITE, users, seed, days=days, gap=3.0)
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
        answer = dp.off_policy_value(log, policy, fit=dp.fit(log, types=2, n_init=4), bootstrap=times, seed=seed)
        for name in NAMES:
            estimate = getattr(answer, name)
            found[name].append((estimate.value - truth, estimate.stderr, truth in estimate))
    return {name: np.array(rows) for name, rows in found.items()}


def rows():
    studies, found = {case: study(case) for case in CASES}, []
    for name in NAMES:
        covered = {case: 100 * each[name][:, 2].mean() for case, each in studies.items()}
        note = ", ".join(f"{case} {figure:.0f}" for case, figure in covered.items())
        mean = np.mean(list(covered.values()))
        found.append(Row(f"truth within intervals of {name}", mean, "of 100", 92, note=note))
        found.append(Row(f"truth within intervals of {name}", mean, "of 100", 98, at_least=False))
    for case, each in studies.items():
        error, stderr, _ = each["dr"].T
        figure, note = error.mean() / error.std(ddof=1) * len(error) ** 0.5, f"spread {error.std(ddof=1):.4f}"
        note += f", mean standard error {stderr.mean():.4f}"
        found.append(Row(f"bias of dr, {case}", abs(figure), "errors", 4, at_least=False, note=note))
    return found
