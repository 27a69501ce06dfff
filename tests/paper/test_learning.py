"""Computations behind the checks of regret, against plain ones."""

from fractions import Fraction
from math import comb, inf

import numpy as np
import pytest
from scipy.special import nbdtr, nbdtrc

from departing.evaluation.evaluate import evaluate
from departing.evaluation.sub_exponential import SubExponential
from departing.learning.ucb import proved_tau
from departing.learning.ucb_bound import ucb_regret_bound
from departing.model.instance import Instance
from departing.paper.exact import two_phase_value
from departing.paper.formulas import radius, smallest_departure
from departing.paper.horizon import LONG_CLICK, SHORT_CLICK, late_prior, least_truncation_loss, truncation_loss
from departing.paper.learning import (
    SLOW_CLICK,
    SLOW_DEPART,
    executed_bounds,
    lower_bound,
    mean_tails,
)
from departing.planning.plan import plan
from departing.policy.schedule import Fixed, Threshold


def test_lower_bound_is_below_the_regret_of_a_plain_simulation():
    users, tau, rng = 300, 31.4, np.random.default_rng(1)
    leave = np.array(SLOW_DEPART) * (1 - np.array(SLOW_CLICK))
    stop, lost = leave / (leave + SLOW_CLICK), []
    for _ in range(100):
        pulls, total, index = [0, 0], [0, 0], [inf, inf]
        for _user in range(users):
            arm = int(index[1] > index[0])
            pulls[arm] += 1
            total[arm] += rng.geometric(stop[arm]) - 1
            index[arm] = total[arm] / pulls[arm] + radius(pulls[arm], users, tau, 1.0)
        lost.append(pulls[1] * (1000 - 0.5 / leave[1]))
    bound = lower_bound(SLOW_CLICK, SLOW_DEPART, tau, users)
    assert 0 < bound < np.mean(lost) - 3 * np.std(lost) / 10


@pytest.mark.parametrize("users", [100, 10**6, 10**12])
def test_lower_bound_does_not_exceed_the_bound_with_valid_constants(users):
    tau = proved_tau(smallest_departure(SLOW_CLICK, SLOW_DEPART))
    assert lower_bound(SLOW_CLICK, SLOW_DEPART, tau, users) <= ucb_regret_bound([0.0, 99.1], tau, 1.0, users)


def test_tails_of_means_by_convolution():
    law = evaluate(Instance([1.0], [[0.5]]), Fixed(0), 1e-25).distribution.returns
    constants, users, worst, total = SubExponential(tau=0.4, b=0.3), 20, 0.0, np.ones(1)
    for n in range(1, users + 1):
        total = np.convolve(total, law)
        if n in (1, 2, 4, 8, 16):
            away = np.abs(np.arange(len(total)) / n - 1) > radius(n, users, 0.4, constants.eta)
            worst = max(worst, total[away].sum() / (2 / users**4))
    assert mean_tails(law, users, constants) == pytest.approx(worst, rel=1e-6)


def test_exact_values_of_threshold_policies():
    prior = late_prior(LONG_CLICK, 30)
    instance = Instance([float(q) for q in prior], [[float(p) for p in row] for row in LONG_CLICK])
    value = two_phase_value(prior, LONG_CLICK, 1, 7)
    assert isinstance(value, Fraction)
    assert float(value) == pytest.approx(evaluate(instance, Threshold(1, 7, 0)).value, rel=1e-12)
    assert plan(instance).policy in (Threshold(1, 30, 0), Threshold(1, 31, 0))  # equally good
    assert truncation_loss(prior, LONG_CLICK, 30, 30) == 0
    assert truncation_loss(prior, LONG_CLICK, 29, 30) > 0


@pytest.mark.parametrize("click", [LONG_CLICK, SHORT_CLICK])
@pytest.mark.parametrize("horizon", [10, 40, 120])
@pytest.mark.parametrize("delay", [1, 5, 30])
def test_proved_lower_bound_of_the_truncation(click, horizon, delay):
    least = least_truncation_loss(click, horizon, horizon + delay)
    loss = truncation_loss(late_prior(click, horizon + delay), click, horizon, horizon + delay)
    assert 0 < least <= loss
    assert least_truncation_loss(click, horizon + 1, horizon + 1 + delay) == least * click[1][1]


def test_lines_4_to_9_by_hand():
    assert executed_bounds([2, 0], 100, 0.5, (4, 5)) == [None, None]  # V̂[0], V̂[1] are set; V̂[1], then V̂[2] are read
    assert executed_bounds([2, 0], 100, 0.5, (5, 4)) == [2 + radius(1, 100, 0.5, 1.0), 1 + radius(2, 100, 0.5, 1.0)]


def test_negative_binomial_tails_are_accurate():
    stop, n = 0.3, 64
    exact = sum(Fraction(comb(k + n - 1, k)) * Fraction(stop) ** n * (1 - Fraction(stop)) ** k for k in range(20))
    assert nbdtr(19, n, stop) == pytest.approx(float(exact), rel=1e-9)
    whole = sum(Fraction(comb(k + n - 1, k)) * Fraction(stop) ** n * (1 - Fraction(stop)) ** k for k in range(401))
    assert nbdtrc(400, n, stop) == pytest.approx(float(1 - whole), rel=1e-9)
