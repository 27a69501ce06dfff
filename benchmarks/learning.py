"""Learners: speed, regret compared with UCB-Hybrid with the constants of the paper, and delayed feedback."""

from statistics import mean, median

import numpy as np

import departing as dp
from benchmarks.common import Row, cpu_seconds
from departing.model.examples import blog, hard

USERS = 10**6
SEEDS = range(1000, 1020)  # no constant was tuned on these; `studies/paper.toml` has a hundred
# Minimum ratio of the median regret of UCB-Hybrid with the proved constants to that of Bayes and LatticeUCB.
MIN_RATIO = {"blog": (25, 4), "hard": (250, 15)}


def _unsure(n):
    """A random instance with n types, n categories and departure probabilities from U(.3, .9)."""
    rng = np.random.default_rng(n)
    return dp.Instance(rng.dirichlet(np.full(n, 3.0)), rng.uniform(0.1, 0.9, (n, n)), rng.uniform(0.3, 0.9, (n, n)))


def _epsilon(instance):
    return float(instance.departure_probabilities.min())


def _hybrid(epsilon):
    return dp.UCBHybrid.thresholds(users=USERS, epsilon=epsilon, horizon="paper")


def _regrets(instance, make, seeds=SEEDS, **options):
    optimum = dp.plan(instance)
    runs = (dp.simulate(instance, make(seed), USERS, seed, optimum=optimum, **options) for seed in seeds)
    return [float(run.regret[-1]) for run in runs]


def _speed():
    thirty = [dp.Threshold(first=a, steps=n, then=1 - a) for a in (0, 1) for n in range(15)]

    def hybrid():
        dp.simulate(blog(), dp.UCBHybrid(thirty, users=USERS, epsilon=0.5), USERS)

    seconds = cpu_seconds(hybrid)[0]
    yield Row("UCB-Hybrid, 30 policies", USERS / seconds / 1e6, "M users/s", 3)
    for n, limit in ((2, 30), (3, 60)):
        instance = _unsure(n)

        def bayes(instance=instance, n=n):
            dp.simulate(instance, dp.Bayes(n, n, users=10**9), 10**9)

        yield Row(f"Bayes, 10^9 users, K = M = {n}", cpu_seconds(bayes, repeats=1)[0], "s", limit, at_least=False)

    for name, instance in (("sure", blog()), ("unsure", _unsure(2))):

        def lattice(instance=instance):
            dp.simulate(
                instance, dp.LatticeUCB(2, 10**9, epsilon=float(instance.departure_probabilities.min())), 10**9
            )

        figure = cpu_seconds(lattice, repeats=1)[0]
        yield Row(f"lattice, 10^9 users, K = 2, {name} departure", figure, "s", 30, at_least=False)


def _regret():
    for instance, name in ((blog(), "blog"), (hard(), "hard")):
        epsilon = _epsilon(instance)
        proved = median(_regrets(instance, lambda _, e=epsilon: _hybrid(e)))
        makers = (
            ("Bayes", lambda seed: dp.Bayes(2, 2, seed, users=USERS)),
            ("lattice", lambda seed, e=epsilon: dp.LatticeUCB(2, USERS, seed, epsilon=e)),
        )
        for (learner, make), ratio in zip(makers, MIN_RATIO[name], strict=True):
            regrets = _regrets(instance, make)
            low, middle, high = np.percentile(regrets, (25, 50, 75))
            note = f"median {middle:.0f} (quartiles {low:.0f} and {high:.0f}, mean {mean(regrets):.0f}, "
            note += f"max {max(regrets):.0f}) against {proved:.0f}, {len(SEEDS)} seeds"
            yield Row(
                f"{learner} on {name}: median regret of UCB-Hybrid relative to it",
                proved / middle,
                "×",
                ratio,
                note=note,
            )


def _delayed():
    instance = hard()
    makers = (
        ("Bayes", lambda seed: dp.Bayes(2, 2, seed, users=USERS)),
        ("lattice", lambda seed: dp.LatticeUCB(2, USERS, seed, epsilon=_epsilon(instance))),
        ("UCB-Hybrid", lambda seed: _hybrid(_epsilon(instance))),
    )
    for learner, make in makers:
        sequential = mean(_regrets(instance, make, seeds=range(3)))
        for setting, options in (
            ("1,000 active users", {"open_users": 1000}),
            ("feedback 10,000 users late", {"delay": 10000}),
        ):
            regret = mean(_regrets(instance, make, seeds=range(3), **options))
            note = f"{regret:.0f} against {sequential:.0f}, mean of 3 seeds"
            yield Row(
                f"{learner}, {setting}: regret relative to sequential users",
                regret / sequential,
                "×",
                2,
                at_least=False,
                note=note,
            )


def _bound():
    sure = _unsure(3).replace(depart=1.0)
    for name, instance in (("sure", sure), ("unsure", _unsure(3))):
        for mode, share in (("expected", None), ("99 of 100 runs", 0.99)):
            dp.regret_bound(instance, 100, share=share)
            bound = dp.regret_bound(instance, 10**7, share=share)
            seconds = cpu_seconds(lambda i=instance, s=share: dp.regret_bound(i, 10**7, share=s), repeats=1)[0]
            what = f"lower bound, 10^7 users, K = M = 3, {name} departure, {mode}"
            yield Row(what, seconds, "s", 10, at_least=False, note=f"{bound.value:.0f} clicks")


def rows():
    return [*_speed(), *_regret(), *_delayed(), *_bound()]
