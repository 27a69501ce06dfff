"""Checks fail on perturbed statements: each entry changes one formula of a statement that holds."""

from fractions import Fraction
from math import e, exp, log, log1p, sqrt

import numpy as np
import pytest

from departing.learning import ucb_bound
from departing.paper import appendix_e, formulas, setting
from departing.paper.exact import BLOG, largest_first
from departing.paper.item import HOLDS, REFUTED, Scale
from departing.paper.items import ITEMS


def wider_row(click):
    """A row that is dominant up to 0.05."""
    return click[0][1] >= click[1][1] - Fraction(1, 20)


def wider_diagonal(click):
    """A diagonal that is dominant up to 0.1: some of these have a dominant column."""
    (p1x, p1y), (p2x, p2y) = click
    return p1x >= p2y > p1y and p2y > p2x - Fraction(1, 10)


def neither_row_dominant(click):
    """A column or a diagonal is dominant."""
    return click[0][0] > click[1][0] and click[1][1] > click[0][1]


def summed_value(b, click, n):
    """Value of N steps of category 2 and then category 1 by a loop."""
    (p1x, p1y), (p2x, p2y) = click
    head = sum(b * p2x**i + (1 - b) * p2y**i for i in range(1, n + 1))
    return head + b * p2x**n * p1x / (1 - p1x) + (1 - b) * p2y**n * p1y / (1 - p1y)


def point_without_logarithms(b, click):
    """Ñ without the factors ln P₂ᵧ and ln P₂ₓ."""
    c1, c2, _ = formulas.switching_coefficients(b, click)
    return log(-c2 / c1) / log(click[1][0] / click[1][1])


ORIGINAL = dict(vars(formulas))
UCB_REGRET_BOUND = ucb_bound.ucb_regret_bound


def scaled(name, factor):
    """A formula times a factor."""
    return lambda *args: ORIGINAL[name](*args) * factor


def exchanged_types(prior, click, counts):
    """α with the prior in another order."""
    return ORIGINAL["active_probability"](prior[::-1], click, counts)


def scaled_steps(b, click):
    """The repaired number of steps with a belief that is 2% smaller."""
    return ORIGINAL["repaired_switching_steps"](b * Fraction(49, 50), click)


# key: (module, name of the formula in it, perturbed replacement)
PERTURBED = {
    # Section 2
    "protocol": (formulas, "outcome_probabilities", lambda p, d: (p, (1 - p) * (1 - 0.97 * d), (1 - p) * 0.97 * d)),
    "deterministic": (formulas, "deterministic_choice", lambda values: values[0]),
    "example-table": (setting, "BLOG", (BLOG[0], ((Fraction(1, 2), Fraction(2, 5)), BLOG[1][1]))),
    "first-step": (formulas, "FIRST_STEP", (Fraction("0.368"), Fraction("0.395"))),
    "example-myopic": (formulas, "EXAMPLE_BETTER", 0),
    "example-gaps": (formulas, "EXAMPLE_GAPS", (Fraction("0.0169"), Fraction("1.74e-5"))),
    "linear": (formulas, "example_regret", lambda users: users * Fraction("1.74e-5")),
    "fixed-arms": (formulas, "fixed_is_inferior", lambda best, fixed: best > 1.2 * fixed),  # the ratio is 1.18
    # Sections 3 and 4, appendix C
    "not-sub-gaussian": (formulas, "log_sub_gaussian_tail", lambda v, sigma: -v / (2 * sigma)),
    "tails-moments": (formulas, "moment_property", lambda power, constant: constant * sqrt(power)),
    "best-category-extremes": (formulas, "fixed_value", lambda p, depart: p / (1 - p)),
    "best-category": (formulas, "fixed_value", lambda p, depart: 1.001 * p / (depart * (1 - p))),
    "geometric": (formulas, "leave_probability", lambda p, depart: depart * p),
    "return-below-length": (formulas, "largest_return", lambda steps: steps - 2),
    # The constant is loose: the exponent is 0.2% of the bound, so the whole factor 8e is dropped.
    "return-scale": (formulas, "return_scale", lambda leave: -1 / log1p(-leave)),
    "one-type-scale-repaired": (formulas, "global_scale", lambda epsilon: 0.99 * -8 * e / log1p(-epsilon)),
    "bernstein": (formulas, "bernstein", lambda v, tau, b: 2 * exp(-max(v**2 / tau**2, v / b))),
    "algorithm": (formulas, "radius", scaled("radius", 7 / 8)),
    # Bernstein's inequality is loose: the tails are 0.004 of the bound.
    "general-regret": (formulas, "radius", scaled("radius", 0.8)),
    # The reading of the paper.
    "one-type-repaired": (formulas, "smallest_departure", lambda click, depart: 1 - max(click)),
    # Section 5.3, as loose as the constant of one type
    "threshold-scale": (formulas, "global_scale", lambda epsilon: -1 / log1p(-epsilon)),
    "threshold-mgf": (formulas, "dominating_click", min),
    # Extensions
    "comparison-lemma": (formulas, "smallest_hazard", lambda click, leave: 1.1 * leave / (leave + click)),
    "sharp-scale": (formulas, "sharp_scale", lambda epsilon: -1.4 / log1p(-epsilon)),
    # Appendix D
    "recurrence": (formulas, "value_before", lambda later, p, depart: later * (1 - depart * (1 - p)) + 1.001 * p),
    "fixed-value": (formulas, "fixed_value", lambda p, depart: p / (depart * (1 - p)) * Fraction(1001, 1000)),
    "geometric-moments-repaired": (formulas, "repaired_length_constant", lambda leave: -0.9 / log1p(-leave)),
    "length-tails": (formulas, "tail_property", lambda v, constant: np.exp(-v / constant)),
    "mean-return-step": (formulas, "length_constant", lambda leave: -0.98 / log1p(-leave)),
    "mean-return": (formulas, "length_constant", lambda leave: -0.98 / log1p(-leave)),
    "uncentred-moments": (formulas, "length_constant", lambda leave: -0.98 / log1p(-leave)),
    "tail-domination": (formulas, "length_needed", lambda v: v + 2),
    "return-moments": (formulas, "return_constant", lambda leave: -0.7 / log1p(-leave)),  # the mean has 0.74
    # Section 5.1
    "belief-monotone": (formulas, "belief_increases", lambda before, after: after > Fraction(101, 100) * before),
    "pomdp": (formulas, "stay_or_depart", lambda p: (p * Fraction(99, 100), 1 - p * Fraction(99, 100))),
    "relabelling": (setting, "largest_first", lambda b, click: (b, largest_first(b, click)[1])),
    "belief": (formulas, "next_belief", lambda b, row: b * row[0] / (b * row[0] + row[1] * (1 - b) * 101 / 100)),
    "bellman": (formulas, "bellman", lambda b, row, later: (b * row[0] + (1 - b) * row[1]) * (1 + later * 99 / 100)),
    "single-walk": (formulas, "SURE_DEPARTURE", 0.99),
    "walk": (formulas, "active_probability", scaled("active_probability", 1.001)),
    # Sections 5.2 and 5.3
    "partition": (formulas, "dominant_column", lambda click: click[1][0] > click[1][1] > click[0][1]),
    "row": (formulas, "dominant_row", wider_row),
    "column": (formulas, "stationary_point", lambda b, click: ORIGINAL["stationary_point"](b, click) + 1),
    "diagonal": (formulas, "dominant_diagonal", wider_diagonal),
    "constant-time": (formulas, "switching_value", summed_value),
    "threshold-optimal": (formulas, "threshold_policies", lambda h: [(1, n) for n in range(h + 1)]),
    "threshold-policy": (formulas, "threshold_category", lambda a, h, j: a if j < h else 1 - a),
    "survival": (formulas, "stay_probability", lambda epsilon, h: (1 - epsilon) ** (h + 1)),
    "exponential-candidates": (formulas, "n_policies", lambda k, h: k**h - 1),
    "size-of-set": (formulas, "n_threshold_policies", lambda h: 2 * h + 1),
    # The largest loss that a search found is 0.053 of the bound.
    "horizon": (formulas, "horizon_loss", scaled("horizon_loss", Fraction(1, 20))),
    # With 10^5 users the regret is 0.035 of the bound.
    "two-by-two": (ucb_bound, "ucb_regret_bound", lambda *args, **options: 0.03 * UCB_REGRET_BOUND(*args, **options)),
    "horizon-repaired": (
        formulas,
        "repaired_horizon",
        lambda users, epsilon: ORIGINAL["repaired_horizon"](users, epsilon) - 1,
    ),
    # Appendix A
    "finite-return": (formulas, "active_probability", scaled("active_probability", Fraction(1001, 1000))),
    "bijection": (formulas, "active_probability", scaled("active_probability", Fraction(1001, 1000))),
    "prefix-values": (formulas, "active_probability", scaled("active_probability", Fraction(1001, 1000))),
    "recursion": (formulas, "active_probability", scaled("active_probability", Fraction(1001, 1000))),
    "backtracking": (formulas, "active_probability", exchanged_types),
    "recursion-time": (formulas, "n_counts", lambda h: h),
    # Tight: with all click probabilities 0.99 the loss is 0.99 of the bound.
    "recursion-error": (formulas, "horizon_loss", scaled("horizon_loss", Fraction(49, 50))),
    "many-types": (formulas, "active_probability", exchanged_types),
    "many-categories-time": (formulas, "recursion_time", lambda k, h: h ** (k - 1)),
    # Appendix E
    "row-exchange": (formulas, "dominant_row", wider_row),
    "switching-condition": (formulas, "switching_constant", scaled("switching_constant", Fraction(26, 25))),
    "switching-persists": (
        appendix_e,
        "_proper",
        lambda click: click[0][0] > click[1][0] and click[1][1] > click[0][1],
    ),
    "most-switches-repaired": (formulas, "repaired_switching_steps", scaled_steps),
    "value-of-n": (formulas, "switching_value", lambda b, click, n: ORIGINAL["switching_value"](b, click, n + 1)),
    "stationary-point": (formulas, "stationary_point", point_without_logarithms),
    "n-star": (formulas, "column_policies", lambda n: ORIGINAL["column_policies"](n)[:3]),
    "diagonal-horizon": (formulas, "dominant_diagonal", neither_row_dominant),
    "diagonal-two-steps": (
        formulas,
        "base_inequalities",
        lambda x, *rest: ORIGINAL["base_inequalities"](x * 51 / 50, *rest),
    ),
    "diagonal-last-switch": (formulas, "dominant_diagonal", neither_row_dominant),
    # Section 6
    "uncertain-walks": (formulas, "UNCERTAIN_DEPARTURE", Fraction(1)),
}
BY_KEY = {item.key: item for item in ITEMS}


@pytest.mark.parametrize("key", PERTURBED)
def test_perturbed_statement_is_refuted(key, monkeypatch):
    module, name, replacement = PERTURBED[key]
    monkeypatch.setattr(module, name, replacement)
    finding = BY_KEY[key].check(Scale(quick=True))
    assert finding.verdict == REFUTED, finding.evidence


def test_every_statement_that_holds_is_perturbed():
    assert {item.key for item in ITEMS if item.verdict == HOLDS} == set(PERTURBED)
