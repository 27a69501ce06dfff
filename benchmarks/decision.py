"""Decisions from fresh logs: bias of the claimed value, and coverage of its interval.

Every log goes the way of a user: `dp.plan(dp.fit(histories))` with the number of types chosen by the adjusted BIC.
The truth is the value of the recommended policy under the instance that the log was sampled from. About two hours.
"""

import sys

import numpy as np

import departing as dp
from benchmarks.common import Row, cpu_seconds
from departing.model.examples import blog, magazine

LOGS, USERS = 200, (5_000, 50_000)
FIRST_SEED = 10_000  # the method was chosen on other seeds, below 4,000
INSTANCES = {
    "magazine, K = 3, M = 3": magazine(),
    "blog of the paper, K = 2, M = 2": blog(),
    "random, K = 4, M = 2": dp.random_instance("uniform", 2, 4, seed=2),
    "long stays, K = 3, M = 2": dp.Instance(
        [0.6, 0.4], [[0.85, 0.45], [0.5, 0.8], [0.65, 0.6]], [[0.2, 0.35], [0.3, 0.15], [0.25, 0.25]]
    ),
}
MAX_Z = 2.0  # standard errors of the mean of claim minus truth
TRUTH_GAP, TRUTH_NODES = 1e-3, 2_000_000  # of the value


def rows():
    results = []
    for users in USERS:
        for name, instance in INSTANCES.items():
            claims = np.array([one_log(instance, users, FIRST_SEED + i) for i in range(LOGS)])
            results += calibration(f"{name}, {users:,} users", claims)
            print(results[-2], results[-3], file=sys.stderr)  # the whole table takes hours
    return [*results, speed()]


def one_log(instance, users, seed):
    """Truth, claim, its interval, the value under the fit, and the largest width of the bounds of the truth."""
    histories = dp.sample_log(instance, users, seed=seed, days=365).histories
    fit = dp.fit(histories, types=range(1, 5))
    decision = dp.plan(fit, seed=seed)
    value = decision.value
    truth = dp.evaluate(instance, decision.policy, TRUTH_GAP * value.value, TRUTH_NODES)
    raw = dp.evaluate(fit.instance, decision.policy, TRUTH_GAP * value.value, TRUTH_NODES)
    return truth.value, value.value, value.lower, value.upper, raw.value


def calibration(name, claims):
    truth, claim, lower, upper, raw = claims.T
    errors, raw_errors = claim - truth, raw - truth
    bias, stderr = errors.mean(), errors.std(ddof=1) / len(errors) ** 0.5
    covered = 100 * float(((lower <= truth) & (truth <= upper)).mean())
    noise = (100 - covered) * covered / len(errors)
    note = f"{bias:+.4f} ± {stderr:.4f} of {truth.mean():.3f} clicks; {raw_errors.mean():+.4f} without correction"
    return [
        Row(f"claim minus truth, {name}", float(abs(bias) / stderr), "standard errors", MAX_Z, False, note),
        Row(f"coverage of 95% intervals, {name}", covered, "%", 93, note=f"± {noise**0.5:.1f}, {len(errors)} logs"),
        Row("the same, upper limit", covered, "%", 97, False),
    ]


def speed():
    fit = dp.fit(dp.sample_log(magazine(), 5_000, seed=1, days=365).histories, types=3)
    (seconds,) = cpu_seconds(lambda: dp.plan(fit), repeats=3)
    return Row("one decision, magazine, 5,000 users", seconds, "s", 2.0, at_least=False)
