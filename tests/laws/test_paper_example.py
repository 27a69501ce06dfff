"""Values of policies on the paper's Table 1."""

from decimal import Decimal
from fractions import Fraction

import pytest

import departing as dp
from departing.model.examples import blog

CLICK = [[Fraction(50, 100), Fraction(28, 100)], [Fraction(40, 100), Fraction(39, 100)]]
PRIOR = [Fraction(4, 10), Fraction(6, 10)]


def exact(n):
    """Sports n times, then economics, from the decimal numbers of the table."""
    value = Fraction(0)
    for x in range(2):
        here = Fraction(1)
        for _ in range(n):
            here *= CLICK[1][x]
            value += PRIOR[x] * here
        value += PRIOR[x] * here * CLICK[0][x] / (1 - CLICK[0][x])
    return value


ALWAYS_SPORTS = sum(q * p / (1 - p) for q, p in zip(PRIOR, CLICK[1], strict=True))


@pytest.mark.parametrize(
    ("policy", "value"),
    [
        (dp.Fixed(0), 0.6333333333),
        (dp.Fixed(1), 0.6502732240),
        (dp.Threshold(first=1, steps=6, then=0), 0.6502905844),
    ],
)
def test_policies_have_the_values_of_the_theory(policy, value):
    found = dp.evaluate(blog(), policy)
    assert found.value == pytest.approx(value, abs=5e-11)
    assert found.gap < 1e-12


def test_switching_after_six_steps_is_the_best_threshold():
    # After 60 steps at most 0.4**60 of a click is at stake, so later switches differ from always-sports by less.
    values = [exact(n) for n in range(60)]
    assert max(range(60), key=values.__getitem__) == 6
    assert values[6] - ALWAYS_SPORTS > Fraction(4, 10) ** 60 * 10


def test_the_differences_hold_in_exact_fractions():
    def rounded(fraction, digits):
        return round(Decimal(fraction.numerator) / Decimal(fraction.denominator), digits)

    assert rounded(exact(6) - exact(0), 9) == Decimal("0.016957251")
    assert rounded(exact(6) - ALWAYS_SPORTS, 10) == Decimal("0.0000173604")
    assert rounded(exact(7) - ALWAYS_SPORTS, 10) == Decimal("0.0000122319")


@pytest.mark.parametrize("n", [0, 1, 6, 7, 40])
def test_evaluate_agrees_with_the_fractions(n):
    found = dp.evaluate(blog(), dp.Threshold(first=1, steps=n, then=0))
    assert found.value == pytest.approx(float(exact(n)), rel=1e-14)
