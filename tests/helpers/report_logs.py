"""Event logs with known behaviour, and their reports."""

import numpy as np
import pandas as pd

import departing as dp

NAMES = ("<script>alert(1)</script>", "الأخبار & co", "🎵 $x^2$", "long name " * 30)


def make_log(users, click, depart, seed=0, names=None, max_steps=30, fall=1.0):
    """Log of users of `click[K, M]` who depart with probability `depart(step)` after a no-click."""
    rng = np.random.default_rng(seed)
    click = np.asarray(click, float)
    k, m = click.shape
    kinds, rows = rng.integers(m, size=users), []
    active = np.arange(users)
    for step in range(max_steps):
        category = rng.integers(k, size=len(active))
        clicked = rng.random(len(active)) < click[category, kinds[active]] * fall**step
        departed = ~clicked & (rng.random(len(active)) < depart)
        rows += zip(active, [step] * len(active), category, clicked, departed, strict=True)
        active = active[~departed]
    table = pd.DataFrame(rows, columns=["user", "time", "category", "clicked", "departed"])
    table["category"] = [(names or [f"c{a}" for a in range(k)])[a] for a in table["category"]]
    return table


def make_report(table, **options):
    return dp.report(table, **({"types": range(1, 4), "bootstrap": 20} | options))
