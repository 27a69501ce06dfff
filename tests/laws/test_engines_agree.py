"""All engines sample from the exact distribution."""

from functools import cache

import numpy as np
import pytest
from scipy.stats import chi2

import departing as dp
from helpers.exact import final_counts
from helpers.strategies import Opaque

USERS = 20_000
SMALLEST_P = 1e-4  # with fixed seeds: about 240 tests below


def setting(seed):
    """One of twenty random instances with a policy of some kind."""
    rng = np.random.default_rng(seed)
    types, categories = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    drawn = dp.random_instance("uniform", types, categories, seed=seed, depart=1.0 if seed % 4 == 0 else None)
    last = rng.uniform(0, 0.4, drawn.click.shape) if seed % 3 == 0 else 0.0
    instance = dp.Instance(drawn.prior, drawn.click, drawn.depart, last)
    walk = rng.integers(0, categories, 5).tolist()
    table = np.zeros((1, categories, 4), np.int64)
    policies = [
        dp.Fixed(walk[0]),
        dp.Walk(walk[:4], then=walk[4]),
        dp.Greedy(instance),
        dp.Table(table, [walk[0]], fallback=dp.Fixed(walk[1])),
        Opaque(dp.Greedy(instance)),
    ]
    return instance, policies[seed % 5]


@cache
def exact(seed):
    """A setting with the exact probabilities of final counts and of returns."""
    instance, policy = setting(seed)
    returns = dp.evaluate(instance, policy, gap=1e-8).distribution.returns
    return instance, policy, final_counts(instance, policy, smallest=1e-10), returns


def chi_square(observed, expected):
    """The p-value of observed counts against expected ones, rare cells together."""
    cells = sorted(expected, key=expected.get)
    rest_observed, rest_expected, statistic, freedom = 0, 0.0, 0.0, -1
    for cell in cells:
        rest_observed += observed.get(cell, 0)
        rest_expected += expected[cell]
        if rest_expected >= 10:
            statistic += (rest_observed - rest_expected) ** 2 / rest_expected
            freedom += 1
            rest_observed, rest_expected = 0, 0.0
    return chi2.sf(statistic, freedom) if freedom > 0 else 1.0


@pytest.mark.parametrize("engine", ["step", "lanes", "aggregate"])
@pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.slow) if n == 17 else n for n in range(20)])
def test_counts_and_returns_have_the_exact_distribution(seed, engine):
    instance, policy, probabilities, returns = exact(seed)
    run = dp.simulate(instance, policy, users=USERS, seed=seed, engine=engine)
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
    rows = run.histories.counts.reshape(len(run.histories), -1)
    observed = dict(zip(map(tuple, rows.tolist()), run.histories.multiplicity.tolist(), strict=True))
    expected = {key: USERS * probability for key, probability in probabilities.items()}
    # Histories rarer than all that was followed: less than a hundred thousandth of the users, see above.
    assert sum(times for key, times in observed.items() if key not in expected) <= 3
    assert sum(observed.values()) == USERS
    assert chi_square(observed, expected) > SMALLEST_P

    observed = dict(zip(run.returns.tolist(), run.returns_users.tolist(), strict=True))
    assert chi_square(observed, {c: USERS * probability for c, probability in enumerate(returns)}) > SMALLEST_P


@pytest.mark.parametrize("engine", ["step", "lanes", "aggregate"])
def test_truncated_runs_have_the_exact_distribution(engine):
    for seed in (1, 2, 3, 6):
        instance, policy = setting(seed)
        run = dp.simulate(instance, policy, users=USERS, seed=seed, engine=engine, max_steps=3)
        expected = {k: USERS * c for k, c in final_counts(instance, policy, 0.0, max_steps=3).items()}
        rows = run.histories.counts.reshape(len(run.histories), -1)
        observed = dict(zip(map(tuple, rows.tolist()), run.histories.multiplicity.tolist(), strict=True))
        assert chi_square(observed, expected) > SMALLEST_P
        assert run.histories.steps.max() <= 3
        assert run.truncated == run.histories.multiplicity[run.histories.censored].sum() > 0


def test_a_trillion_users_have_the_mean_of_the_exact_value():
    for seed in range(8):
        instance, policy = setting(seed)
        run = dp.simulate(instance, policy, users=10**12, seed=seed, engine="aggregate")
        exact = dp.evaluate(instance, policy, gap=1e-8)
        assert abs(run.mean - exact.value) < 4.5 * run.stderr + 1e-8


def test_single_step_engines_have_the_mean_of_the_exact_value_at_scale():
    for seed in range(8):
        instance, policy = setting(seed)
        run = dp.simulate(instance, policy, users=2_000_000, seed=seed, engine="lanes")
        exact = dp.evaluate(instance, policy, gap=1e-8)
        assert abs(run.mean - exact.value) < 4.5 * run.stderr + 1e-8
