"""Small random logs, and a slow, obvious assignment of their users to types."""

from dataclasses import dataclass

import numpy as np

import departing as dp
from departing.evaluation.evaluate import evaluate
from departing.model.instance import CLICK, CLICK_DEPART, DEPART


def random_events(seed, users=40):
    """A log with ties, duplicates, events after departures, and unknown departures, as a pandas frame."""
    import pandas

    random = np.random.default_rng(seed)
    n = 4 * users
    left = [bool(flag) if flag < 2 else None for flag in random.choice(3, n, p=[0.8, 0.15, 0.05])]
    events = pandas.DataFrame(
        {
            "user": random.integers(0, users, n),
            "time": random.integers(0, 30, n),
            "category": random.choice(["news", "sport", "film"], n),
            "clicked": random.random(n) < 0.5,
            "departed": left,
        }
    )
    return pandas.concat([events, events[: n // 10]], ignore_index=True)


@dataclass
class SlowRow:
    events: int
    clicks: int
    departed: bool
    active: float
    posterior: np.ndarray
    recommendation: str | None
    remaining: float


class Continued:
    """A policy for users who have made some steps already."""

    def __init__(self, policy, counts):
        self.policy, self.counts = policy, counts

    def recommend(self, counts):
        return self.policy.recommend(np.asarray(counts) + self.counts)


def slow_rows(log, events, instance, policy):
    """Yield the assignment of every user, in order, from the steps of the log; the slow way."""
    with log.user_histories() as users:
        ages, not_returned = users.ages, users.not_returned
    last_times = events.groupby("user")["time"].max()  # in the order of the user column
    order = [instance.category_index(name) for name in log.categories]
    column = log.spec.columns["departed"]
    both = column in events and log.spec.inactive_after is not None
    logged = events.groupby("user")[column].max() if both else None
    for part in log.episodes():
        for user in np.unique(part.user):
            steps = np.flatnonzero(part.user == user)
            counts = np.zeros((instance.n_categories, 4), np.int64)
            for i in steps:
                counts[order[part.category[i]], part.outcome[i]] += 1
            clicks, last = counts[:, [CLICK, CLICK_DEPART]].sum(), steps[-1]
            if part.pending[last] and logged is not None and logged[user]:  # logged in the last inactivity period
                shown = order[part.category[last]]
                counts[shown, part.outcome[last]] -= 1
                counts[shown, CLICK_DEPART if part.outcome[last] == CLICK else DEPART] += 1
            if counts[:, DEPART:].any():
                yield SlowRow(len(steps), clicks, True, 0.0, dp.belief(instance, counts), None, 0.0)
                continue
            posterior, stay = dp.belief(instance, counts), 1.0
            if part.pending[last]:
                a, clicked = order[part.category[last]], part.outcome[last] == CLICK
                before = counts.copy()
                before[a, part.outcome[last]] -= 1
                likelihood = instance.click[a] if clicked else 1 - instance.click[a]
                silence = not_returned[(events["time"].max() - last_times.iloc[user] >= ages).sum()]
                left = (instance.depart_on_click if clicked else instance.depart)[a]
                gone, here = (
                    dp.belief(instance, before) * likelihood * each for each in (left, (1 - left) * silence)
                )
                posterior, stay = (gone + here) / (gone + here).sum(), here.sum() / (gone + here).sum()
            value = evaluate(
                instance.replace(prior=dp.belief(instance, counts)), Continued(policy, counts), 1e-4
            ).value
            category = instance.categories[int(policy.recommend(counts))]
            yield SlowRow(len(steps), clicks, False, stay, posterior, category, stay * value)
