"""Reference arithmetic in fractions: walks, threshold policies and the recursions over counts."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from departing.paper import formulas
from departing.paper.exact import (
    BLOG,
    best_then_fixed,
    best_to_counts,
    best_values,
    best_walk_value,
    count_recursion,
    largest_first,
    random_cases,
    recursion,
    threshold_value,
    walk_value,
)

PRIOR, CLICK = (
    (Fraction(1, 3), Fraction(2, 3)),
    ((Fraction(1, 2), Fraction(1, 5)), (Fraction(2, 5), Fraction(3, 5))),
)


def test_recursions_find_the_best_walk():
    exact = max(walk_value(PRIOR, CLICK, walk) for walk in product((0, 1), repeat=7))
    assert best_walk_value(PRIOR, CLICK, 7) == exact
    assert max(value for value, _ in best_to_counts(PRIOR, CLICK, 7).values()) == exact
    values, visited = recursion(np.array([[1 / 3, 2 / 3]]), np.array([CLICK], np.float64), 7)
    assert values[0] == pytest.approx(float(exact), abs=1e-14)
    assert visited == sum(h + 1 for h in range(1, 8))
    level, walk, sizes = count_recursion(2, 7, lambda c: formulas.active_probability(PRIOR, CLICK, c))
    assert max(level.values()) == exact == walk_value(PRIOR, CLICK, walk)
    assert sum(sizes) == visited


def test_best_values_detect_a_policy_that_is_off_by_one_step():
    best = best_values([(BLOG[0][0], BLOG[1])], 220)[0]
    assert best == pytest.approx(float(walk_value(*BLOG, [1] * 6, 0)), abs=1e-14)
    assert best - float(walk_value(*BLOG, [1] * 7, 0)) == pytest.approx(1.73604e-5 - 1.22319e-5, abs=1e-9)


def test_threshold_values_are_those_of_walks():
    for a, h in product((0, 1), range(5)):
        assert threshold_value(PRIOR[0], CLICK, a, h) == walk_value(PRIOR, CLICK, [a] * h, 1 - a)


def test_best_then_fixed_is_the_best_of_all_such_walks():
    walks = product(product((0, 1), repeat=4), (0, 1))
    assert best_then_fixed(PRIOR, CLICK, 4) == max(walk_value(PRIOR, CLICK, walk, then) for walk, then in walks)


@pytest.mark.parametrize("largest", range(4))
def test_largest_first_keeps_the_values(largest):
    p = [Fraction(i, 10) for i in (1, 3, 2, 4)]
    p[largest] = Fraction(9, 10)
    click = (p[:2], p[2:])
    b, relabelled = largest_first(Fraction(1, 4), click)
    assert relabelled[0][0] == Fraction(9, 10)
    prior = (Fraction(1, 4), Fraction(3, 4))
    assert best_walk_value((b, 1 - b), relabelled, 3) == best_walk_value(prior, click, 3)


def test_random_cases_have_the_structure_and_some_ties():
    cases = list(random_cases(formulas.dominant_column, 60))
    assert all(click[0][0] >= click[1][0] >= click[1][1] > click[0][1] for _, click in cases)
    assert any(click[1][0] == click[1][1] for _, click in cases)
    assert cases == list(random_cases(formulas.dominant_column, 60))


def test_what_survives_of_the_corollary_on_the_number_of_steps():
    """Where the corollary has a finite N, always category 1 is optimal; the repaired number is the optimal one."""
    assert formulas.repaired_switching_steps(BLOG[0][0], BLOG[1]) == 6
    defined = 0
    for b, click in random_cases(lambda c: c[0][0] > c[1][0] > c[1][1] > c[0][1], 100, seed=1):
        p2x, p2y = click[1]
        constant = formulas.switching_constant(b, click)
        sums = [(sum(p2x**i for i in range(1, n)), sum(p2y**i for i in range(1, n))) for n in (2, 3, 6, 12)]
        if any(x > constant * y for x, y in sums):
            defined += 1
            assert best_then_fixed((b, 1 - b), click, 8) == threshold_value(b, click, 1, 0)
            assert formulas.repaired_switching_steps(b, click) == 0
    assert defined > 10
