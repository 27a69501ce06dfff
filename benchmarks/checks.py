"""Verdicts of the goodness-of-fit check: alarms on logs of the model, and on logs whose users do not follow it."""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

import departing as dp
from benchmarks.common import Row
from departing.fitting.goodness_of_fit import FitCheck
from departing.model.examples import magazine

# CHECKED_LOGS=100 scripts/bench checks makes the study of the docs, which takes hours; by default it takes minutes.
LOGS = int(os.environ.get("CHECKED_LOGS", "20"))  # of each true model and size
CONTROL_LOGS = LOGS // 5  # of each control
SIZES = (2_000, 5_000, 20_000) if LOGS >= 100 else (2_000, 5_000)
DRIFTS = (5, 10, 20)  # points of click probability over the length of the log
DRIFT_USERS = 5_000  # of the logs with drifts from 5 to 20 points
SITE = dp.Instance([0.6, 0.4], [[0.8, 0.3], [0.3, 0.7]], [[0.3, 0.6], [0.7, 0.4]], 0.02, categories=["news", "film"])
SHOP = dp.Instance([0.5, 0.3, 0.2], [[0.5, 0.2, 0.1], [0.3, 0.4, 0.2], [0.2, 0.1, 0.5], [0.35, 0.3, 0.3]], 0.25)
MODELS = {"two types": SITE, "magazine": magazine(), "shop": SHOP}
DAYS, INACTIVE = 90.0, "14 days"  # users return after a day on average, and after 14 days with probability 1e-6

Probability = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Control:
    """Users who need not follow the model.

    Both functions return probabilities for users of a `type` who arrived at `arrival` (0 to 1): of a click on a
    category at a step, and of departing after a response at an age in days.
    """

    click: Probability
    depart: Probability
    shuffle: bool = False  # clicks among all events
    share_drift: float = 0.0  # fall of the share of the first type over the length of the log


def _click(user, category, step):
    return SITE.click[category, user["type"]]


def _depart(user, category, step, clicked, age):
    return np.where(clicked, SITE.depart_on_click[category, user["type"]], SITE.depart[category, user["type"]])


def _by_steps(user, category, step, clicked, age):
    """A user departs after a number of steps around 8, whatever is shown."""
    return np.full(len(category), 1 / (1 + np.exp(8 - step)))


def _by_lifetime(user, category, step, clicked, age):
    """A user departs after a number of days that is drawn in advance, around 10."""
    return (age > 10 * user["luck"]).astype(float)


def _falling(user, category, step):
    return _click(user, category, step) * np.where(step < 3, 1.0, 0.7)


def _drifting(points):
    """Click probabilities fall by `points` over the length of the log."""

    def click(user, category, step):
        return np.clip(_click(user, category, step) + points / 100 * (0.5 - user["arrival"]), 0, 1)

    return click


def _continuous(user, category, step):
    """Every user has a click probability of their own for every category."""
    return user["taste"][np.arange(len(category)), category]


def _bored(user, category, step):
    return _click(user, category, step) * 0.8 ** np.minimum(user["clicks"], 4)


def _coin(user, category, step):
    return np.full(len(category), 0.5)


def _coin_depart(user, category, step, clicked, age):
    return np.where(clicked, 0.0, 0.3)


def _depart_anyway(user, category, step, clicked, age):
    return np.full(len(category), 0.2)


CONTROLS = {
    "departure by step count": Control(_click, _by_steps),
    "departure by lifetime": Control(_click, _by_lifetime),
    "clicks fall after step 3": Control(_falling, _depart),
    "clicks fall with clicks": Control(_bored, _depart),
    **{f"cohort drift of {points} points": Control(_drifting(points), _depart) for points in DRIFTS},
    "share drift of 25 points": Control(_click, _depart, share_drift=0.25),
    "continuous heterogeneity": Control(_continuous, _coin_depart),
    "shuffled clicks": Control(_click, _depart_anyway, shuffle=True),
    "coin flips": Control(_coin, _coin_depart),
}
ONE_TYPE = ("shuffled clicks", "coin flips")
SMALL = ("cohort drift of 5 points", "continuous heterogeneity")  # misfits that hardly matter: no limit


def control_log(control: Control, users: int, seed: int) -> dp.Log:
    """Log of users who behave according to a control and are shown random categories."""
    import polars

    rng = np.random.default_rng([seed, 17])
    arrival, n_categories = rng.random(users), SITE.n_categories
    traits = {
        "type": (rng.random(users) >= SITE.prior[0] + control.share_drift * (0.5 - arrival)).astype(int),
        "arrival": arrival,
        "luck": rng.gamma(9, 1 / 9, users),
        "taste": rng.beta(1.5, 1.5, (users, n_categories)),
        "clicks": np.zeros(users),
    }
    active, now, parts, step = np.arange(users), arrival * DAYS, [], 0
    while len(active):
        user = {name: values[active] for name, values in traits.items()}
        category = rng.integers(n_categories, size=len(active))
        clicked = rng.random(len(active)) < control.click(user, category, step)
        traits["clicks"][active] += clicked
        parts.append((active, now, category, clicked))
        later = now + rng.exponential(1.0, len(active))
        stays = rng.random(len(active)) >= control.depart(
            user, category, step, clicked, later - arrival[active] * DAYS
        )
        stays &= later < DAYS
        active, now, step = active[stays], later[stays], step + 1
    user, time, category, clicked = (np.concatenate(column) for column in zip(*parts, strict=True))
    if control.shuffle:
        clicked = rng.permutation(clicked)
    stamp = np.datetime64("2026-01-01", "us") + (time * 86400e6).astype("timedelta64[us]")
    names = np.array(SITE.categories)[category]
    return dp.read_log(
        polars.DataFrame({"user": user, "time": stamp, "category": names, "clicked": clicked}),
        inactive_after=INACTIVE,
    )


def model_log(instance: dp.Instance, users: int, seed: int) -> dp.Log:
    """Log of users of an instance, with departures inferred from inactivity."""
    import polars

    columns = dp.sample_log(instance, users, seed, days=DAYS).columns()
    return dp.read_log(polars.DataFrame(columns), inactive_after=INACTIVE)


def verdict(log: dp.Log) -> tuple[dp.Fit, FitCheck]:
    """Fit and check of a log, by the defaults."""
    fit = dp.fit(log)
    return fit, fit.check()


def rows(logs: int = LOGS, control_logs: int = CONTROL_LOGS, sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """Share of logs with the verdict "does not fit", or "one type", in percent."""
    table = []
    for name, instance in MODELS.items():
        for users in sizes:
            checks = [verdict(model_log(instance, users, seed))[1] for seed in range(logs)]
            alarms = 100 * np.mean([not check.fits for check in checks])
            table.append(Row(f"false alarms, {name}, {users:,} users", alarms, "of 100", 5, at_least=False))
    for name, control in CONTROLS.items():
        for users in sizes:
            pairs = [verdict(control_log(control, users, seed)) for seed in range(control_logs)]
            alarms = 100 * np.mean([not check.fits for _, check in pairs])
            one_type = 100 * np.mean([fit.one_type for fit, _ in pairs])
            note = f"does not fit {alarms:.0f}, one type {one_type:.0f}; {_reasons(check for _, check in pairs)}"
            if name in ONE_TYPE:
                table.append(Row(f"one type, {name}, {users:,} users", one_type, "of 100", 95, note=note))
            else:
                limit = 0 if name in SMALL else 95
                table.append(Row(f"alarms, {name}, {users:,} users", alarms, "of 100", limit, note=note))
    points = np.linspace(5, 20, control_logs)
    drifts = (control_log(Control(_drifting(drift), _depart), DRIFT_USERS, i) for i, drift in enumerate(points))
    found = 100 * np.mean([not verdict(log)[1].fits for log in drifts])
    table.append(Row(f"alarms, cohort drift of 5 to 20 points, {DRIFT_USERS:,} users", found, "of 100", 90))
    return table


def _reasons(checks: Iterable[FitCheck]) -> str:
    """The families that are named, with the number of checks."""
    named = Counter(reason.split(":")[0] for check in checks for reason in check.reasons)
    return ", ".join(f"{reason} ({n})" for reason, n in named.most_common(2))
