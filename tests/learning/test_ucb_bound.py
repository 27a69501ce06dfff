"""The regret bound of UCB-Hybrid, and the steps of its proof."""

from math import exp, floor, inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import departing as dp
from departing.learning.ucb_bound import informative_from, pull_bound, truncation_bound, ucb_regret_bound
from departing.model.errors import InputError
from departing.paper.formulas import radius

CONSTANTS = {"tau": st.floats(0.1, 50), "eta": st.floats(0.05, 30), "users": st.integers(2, 10**6)}


@given(loss=st.floats(0.01, 20), **CONSTANTS)
def test_pull_bound_counts_the_radii_above_half_the_loss(loss, tau, eta, users):
    last = floor(pull_bound(loss, tau, eta, users)) - 1  # users after which the policy may be chosen once more
    assert last == 0 or 2 * radius(last, users, tau, eta) >= loss * (1 - 1e-12)
    assert 2 * radius(last + 1, users, tau, eta) < loss * (1 + 1e-12)
    assert pull_bound(0.0, tau, eta, users) == pull_bound(1e-279, tau, eta, users) == inf


@given(n=st.integers(1, 10**6), share=st.floats(0.01, 1), stretch=st.floats(1, 3), **CONSTANTS)
def test_bernstein_gives_the_fourth_power_in_all_cases(n, share, stretch, tau, eta, users):
    b, true_tau = share * sqrt(eta) * tau / stretch, tau / stretch  # η ≥ b² / τ², and the used τ is at least τ
    r = radius(n, users, tau, eta)
    exponent = n * r**2 / (2 * true_tau**2) if r <= true_tau**2 / b else n * r / (2 * b)
    assert exponent >= 4 * log(users) * (1 - 1e-12)


@given(losses=st.lists(st.floats(0, 5), min_size=2, max_size=6), tau=st.floats(0.1, 5), eta=st.floats(0.1, 5))
@settings(max_examples=30)
def test_the_bound_covers_every_possible_number_of_users(losses, tau, eta):
    users, loss = 10**4, np.array(losses) - min(losses)
    rng = np.random.default_rng(1)
    for _ in range(20):  # numbers of users within the bounds of the policies, at most `users` in all
        most = np.array([min(pull_bound(each, tau, eta, users), users) for each in loss])
        pulls = rng.uniform(0, 1, len(loss)) * most
        pulls *= min(1.0, users / pulls.sum())
        assert loss @ pulls <= ucb_regret_bound(loss, tau, eta, users) * (1 + 1e-12)


def test_constants_of_each_policy():
    whole = ucb_regret_bound([0.0, 0.5, 0.5], 2.0, 1.0, 10**4)
    assert (
        ucb_regret_bound([0.0, 0.5, 0.5], [9.0, 2.0, 2.0], [7.0, 1.0, 1.0], 10**4) == whole
    )  # the best does not count
    assert ucb_regret_bound([0.0, 0.5, 0.5], [9.0, 2.0, 1.0], 1.0, 10**4) < whole
    # 0.5 + 16 √4 3 ln 100 + √(32 · 50 ln 100 · 9) + 4 · 0.5 / 100²
    assert ucb_regret_bound([0.0, 0.5], 3.0, 4.0, 100, after=50) == pytest.approx(
        0.5 + 96 * log(100) + 3 * sqrt(1600 * log(100)) + 2e-4
    )


def test_the_bound_grows_like_the_square_root():
    large = [ucb_regret_bound([0.0] + [0.1] * 29, 31.4, 1.0, users) for users in (1e12, 1e14)]
    assert 1.0 < np.log10(large[1] / large[0]) < 1.1


def test_truncation():
    assert truncation_bound(1000, 0.5, 3) == pytest.approx(125)  # 1000 / 2^4 / 0.5
    site = dp.Instance([1.0], [[0.8], [0.7]])  # all clicks after step H
    after = dp.evaluate(site, dp.Fixed(0)).value * 0.8**5
    assert truncation_bound(1, 0.2, 5) == pytest.approx(after)


def test_the_whole_bound_includes_the_truncation():
    losses, options = [0.0, 0.5], {"epsilon": 0.5, "horizon": 3}
    alone = ucb_regret_bound(losses, 3.0, 1.0, 100, after=50)
    assert ucb_regret_bound(losses, 3.0, 1.0, 100, after=50, **options) == pytest.approx(alone + 50 / 8)
    with pytest.raises(InputError, match="Only one of epsilon and horizon is set"):
        ucb_regret_bound(losses, 3.0, 1.0, 100, epsilon=0.5)


def test_informative_from_finds_the_crossing():
    users = informative_from(lambda t: 1000 + 10 * sqrt(t), 2.0)
    assert 1000 + 10 * sqrt(users) < 2 * users
    assert 1000 + 10 * sqrt(users / 1.02) >= 2 * users / 1.02
    assert informative_from(lambda t: 3 * t, 2.0) == inf
    assert informative_from(lambda t: 0.0, 2.0) < exp(1)
