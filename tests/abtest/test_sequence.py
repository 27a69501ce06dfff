"""Confidence sequences: their formula, and their validity under continuous monitoring."""

from math import inf, log, sqrt

import numpy as np
import pytest

import departing as dp
from departing.abtest.sequence import (
    MIN_USERS,
    boundary,
    confidence_sequence,
    mixture_scale,
    users_to_decide,
)
from departing.model.examples import magazine


def slow_bounds(clicks, treated, n, planned, significance):
    """The bounds after n users, as in the paper, with the larger error of the arms' own and the pooled variance."""
    one, other = clicks[:n][treated[:n]], clicks[:n][~treated[:n]]
    if min(len(one), len(other)) < MIN_USERS:
        return -inf, inf
    rho = sqrt(mixture_scale(significance) / planned)
    pooled = (len(one) * one.var(ddof=1) + len(other) * other.var(ddof=1)) / n
    own = one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other)
    sigma = sqrt(n * max(own, pooled / len(one) + pooled / len(other)))
    factor = n * rho**2 + 1
    radius = sigma * sqrt(2 * factor / (n**2 * rho**2) * log(sqrt(factor) / significance))
    difference = one.mean() - other.mean()
    return difference - radius, difference + radius


@pytest.mark.parametrize("seed", range(5))
def test_bounds_agree_with_the_formula(seed):
    rng = np.random.default_rng(seed)
    n, share = 900, rng.uniform(0.2, 0.8)
    treated, clicks = rng.random(n) < share, rng.geometric(0.2, n) - 1.0
    looks = np.sort(rng.choice(np.arange(1, n), 40, replace=False))
    looks = np.append(looks, n)
    sequence = confidence_sequence(clicks, treated, looks, 2000, 0.1)
    for i, look in enumerate(looks):
        expected = slow_bounds(clicks, treated, look, 2000, 0.1)
        assert (sequence.lower[i], sequence.upper[i]) == pytest.approx(expected, rel=1e-9)


def test_the_boundary_is_narrowest_at_the_planned_number_of_users():
    users = np.geomspace(10, 10**7, 400)
    for significance in (0.01, 0.05, 0.2):
        radius = boundary(users, 5000, significance)
        # As a width in clicks, against sequences that are planned for other numbers of users.
        others = [boundary([5000], planned, significance)[0] for planned in np.geomspace(500, 50_000, 200)]
        assert boundary([5000], 5000, significance)[0] <= min(others) + 1e-9
        assert (radius > 0).all()


def test_a_long_sequence_is_thinned_but_decided_at_every_user():
    rng = np.random.default_rng(1)
    treated = rng.random(5000) < 0.5
    clicks = rng.poisson(np.where(treated, 2.0, 1.0)).astype(float)
    sequence = confidence_sequence(clicks, treated, np.arange(1, 5001), 1000, 0.05)
    assert len(sequence.users) == 1000
    assert sequence.users[-1] == 5000
    every = [slow_bounds(clicks, treated, n, 1000, 0.05)[0] > 0 for n in range(200, 500)]
    assert sequence.decided_at == 200 + every.index(True)


def test_users_to_decide():
    needed = users_to_decide(0.1, 3.0, 10_000, 0.05)
    assert pytest.approx(3.0 / sqrt(needed) * float(boundary(needed, 10_000, 0.05))) == 0.1
    assert users_to_decide(0.0, 3.0, 10_000, 0.05) == inf


@pytest.mark.slow
@pytest.mark.parametrize(("share", "planned"), [(0.5, 1000), (0.2, 5000)])
def test_false_positives_under_continuous_monitoring(share, planned):
    """Of 1,000 experiments without a difference at most 5% are ever decided; the fixed test decides far more."""
    probabilities = dp.power(magazine(), "greedy", "fixed:news").treatment.probabilities
    rng, n, experiments = np.random.default_rng(7), 5000, 1000
    sequential = fixed = 0
    for _ in range(experiments):
        clicks = rng.choice(len(probabilities), n, p=probabilities).astype(float)
        treated = rng.random(n) < share
        sequence = confidence_sequence(clicks, treated, np.arange(1, n + 1), planned, 0.05)
        sequential += sequence.decided_at is not None
        users, m = np.cumsum(treated), np.cumsum(~treated)
        late = (users >= MIN_USERS) & (m >= MIN_USERS)
        error = np.sqrt(clicks.var() * (1 / users[late] + 1 / m[late]))
        difference = np.cumsum(clicks * treated)[late] / users[late] - np.cumsum(clicks * ~treated)[late] / m[late]
        fixed += bool((np.abs(difference) > 1.96 * error).any())
    assert sequential / experiments < 0.05 + 2 * sqrt(0.05 * 0.95 / experiments)
    assert fixed / experiments > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, n: rng.geometric(0.3, n) - 1,
        lambda rng, n: rng.random(n) < 0.01,  # a small arm often has no such user at all
        lambda rng, n: rng.random(n) < 0.002,
        lambda rng, n: np.where(rng.random(n) < 0.05, rng.geometric(0.03, n), rng.geometric(0.7, n) - 1),
    ],
    ids=["geometric", "rare", "very rare", "heavy tail"],
)
def test_equal_arms_are_rarely_told_apart_at_any_user(draw, share):
    """200 A/A tests, looked at after every user. With the arms' own variances up to half of them are decided."""
    rng, n, experiments, decided, sure = np.random.default_rng(1), 12_000, 200, 0, 0
    for _ in range(experiments):
        treated, clicks = rng.random(n) < share, np.asarray(draw(rng, n), np.float64)
        looks = np.arange(1, n + 1)
        decided += confidence_sequence(clicks, treated, looks, 10_000, 0.05).decided_at is not None
        sure += confidence_sequence(clicks, treated, looks, 10_000, 0.01).decided_at is not None
    assert decided / experiments < 0.05 + 2 * sqrt(0.05 * 0.95 / experiments)
    assert sure / experiments < 0.01 + 3 * sqrt(0.01 * 0.99 / experiments)


def test_a_small_arm_without_clicks_is_no_evidence():
    """Of 5,000 users 2 % click, but none of the 100 in the treatment; in the other test nobody clicks."""
    treated = np.arange(5000) % 50 == 0
    for clicks in (np.where(np.arange(5000) % 50 == 1, 1.0, 0.0), np.zeros(5000)):
        lower, upper = confidence_sequence(clicks, treated, np.array([5000]), 5000, 0.05).final
        assert lower < -0.0001
        assert upper > 0.0001
