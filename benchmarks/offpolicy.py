"""Off-policy evaluation: coverage of the 95% intervals and bias over many simulated logs."""

import numpy as np

import departing as dp
from benchmarks.common import Row

LOGS = 100
SITE = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.6], [0.5, 0.4]], depart=[[0.7], [0.8], [0.7]] * np.ones((1, 2)))
WALK = dp.Walk([0], then=1)
CASES = {  # users, days of the log, probability of censoring in the middle of a step, policy
    "departures observed": (10_000, 1e4, 0.0, WALK),
    "censored": (10_000, 8.0, 0.0, WALK),
    "censored, some pending": (10_000, 30.0, 0.1, WALK),
    "poor overlap": (5_000, 30.0, 0.0, dp.Greedy(SITE)),
}
NAMES = ("dm", "pdis", "dr")


def log_of(users: int, days: float, censoring: float, seed: int) -> dp.Log:
    """A log of random recommendations with logged departures."""
    import pandas as pd

    sample = dp.sample_log(SITE, users, seed, days=days, step_days=3.0)
    columns = {name: np.asarray(column) for name, column in sample.columns().items()}
    events = pd.DataFrame(columns | {"departed": (sample.outcome >= 2).astype(object)})
    if censoring:  # the click is observed, but not the departure, and nothing after it
        last = np.random.default_rng([seed, 1]).geometric(censoring, users)[sample.user]
        step = events.groupby("user").cumcount() + 1
        events.loc[step == last, "departed"] = None
        events = events[step <= last]
    return dp.read_log(events)


def study(case: str, logs: int = LOGS, bootstrap: int = 200) -> dict[str, np.ndarray]:
    """Error, standard error and coverage, `[logs, 3]`, for every estimator."""
    users, days, censoring, policy = CASES[case]
    truth, results = dp.evaluate(SITE, policy).value, {name: [] for name in NAMES}
    for seed in range(logs):
        log = log_of(users, days, censoring, seed)
        value = dp.off_policy_value(log, policy, fit=dp.fit(log, types=2, n_init=4), bootstrap=bootstrap, seed=seed)
        for name in NAMES:
            estimate = getattr(value, name)
            results[name].append((estimate.value - truth, estimate.stderr, truth in estimate))
    return {name: np.array(rows) for name, rows in results.items()}


def rows():
    studies, table = {case: study(case) for case in CASES}, []
    for name in NAMES:
        covered = {case: 100 * each[name][:, 2].mean() for case, each in studies.items()}
        note = ", ".join(f"{case} {figure:.0f}" for case, figure in covered.items())
        mean = np.mean(list(covered.values()))
        table.append(Row(f"coverage of {name.upper()} intervals", mean, "of 100", 92, note=note))
        table.append(Row(f"coverage of {name.upper()} intervals, upper limit", mean, "of 100", 98, at_least=False))
    for case, each in studies.items():
        error, stderr, _ = each["dr"].T
        figure, note = error.mean() / error.std(ddof=1) * len(error) ** 0.5, f"spread {error.std(ddof=1):.4f}"
        note += f", mean standard error {stderr.mean():.4f}"
        table.append(Row(f"bias of DR, {case}", abs(figure), "errors", 4, at_least=False, note=note))
    return table
