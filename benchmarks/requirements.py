"""Precision of a fit and of the decision based on it, by the number of users with randomised recommendations."""

import sys
import tempfile
from pathlib import Path

import numpy as np

import departing as dp
from benchmarks.common import Row
from departing.model.examples import magazine

USERS = (500, 2_000, 10_000, 50_000)
LOGS = 11
SITES = {
    "magazine": magazine(),  # 3 types with clear preferences, 3 categories
    "similar types": dp.Instance(
        [0.6, 0.4], [[0.55, 0.40], [0.40, 0.55], [0.45, 0.45]], 0.3, categories=["a", "b", "c"]
    ),
    "eight categories": dp.random_instance("specialists", types=3, categories=8, seed=1, depart=0.5),
}
GAP = 1e-3  # clicks per user; the losses in the table are larger
FIGURES = ("types", "click_error", "first", "loss", "bic", "expected_loss", "claim", "width")


def measure(site: dp.Instance, users: int, seed: int) -> dict[str, float]:
    """Figures of one log of `users` users, of whom each sees categories at random for up to 60 days."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "events.parquet")
        dp.sample_log(site, users, seed, days=60).save(path)
        log = dp.read_log(path, inactive_after="14 days", categories=site.categories)
        fit = dp.fit(log, types=range(1, 5))
        decision = dp.plan(fit)
        ope = dp.off_policy_value(log, decision.policy, fit=fit, bootstrap=20, seed=seed)
        by_bic = dp.plan(dp.fit(log, types=range(1, 5), criterion="bic").instance, gap=GAP)
    optimum = dp.plan(site, gap=GAP)
    value, bic = (dp.evaluate(site, each.policy, gap=GAP).value for each in (decision, by_bic))
    start = np.zeros((site.n_categories, 4), int)
    estimate = ope.best
    return {
        "types": fit.instance.n_types == site.n_types,
        "click_error": float(np.nanmedian(fit.stderr.click)),
        "first": int(decision.policy.recommend(start)) == int(optimum.policy.recommend(start)),
        "loss": max(optimum.value - value, 0.0) / optimum.value,
        "bic": max(optimum.value - bic, 0.0) / optimum.value,
        "expected_loss": decision.expected_loss / optimum.value,
        "claim": (decision.value.upper - decision.value.lower) / 2 / value,
        "width": (estimate.upper - estimate.lower) / 2 / value,
    }


def study(name: str, users: int, logs: int = LOGS) -> dict[str, float]:
    """Means over `logs` logs; medians of the interval widths, which have heavy tails."""
    rows = [measure(SITES[name], users, 1000 + seed) for seed in range(logs)]
    figures = {figure: float(np.mean([row[figure] for row in rows])) for figure in FIGURES}
    return figures | {width: float(np.median([row[width] for row in rows])) for width in ("claim", "width")}


def rows():
    table = []
    for name in SITES:
        for users in USERS:
            each = study(name, users)
            note = (
                f"right number of types {each['types']:.0%}, first category {each['first']:.0%}; "
                f"click ± {each['click_error']:.3f}; claimed loss {each['expected_loss']:.1%}; "
                f"loss {each['bic']:.1%} with types by BIC; "
                f"value ± {each['claim']:.0%} by the model, ± {each['width']:.0%} off-policy"
            )
            print(f"{name}, {users:,} users: loss {each['loss']:.1%}; {note}", file=sys.stderr, flush=True)
            # A decision from 50,000 users must lose little; fewer users have no such limit.
            limit = 0.05 if users >= 50_000 else 1.0
            table.append(
                Row(f"{name}, {users:,} users: loss", 100 * each["loss"], "%", 100 * limit, at_least=False, note=note)
            )
    return table
