"""Checks fail on perturbed statements: each entry changes one formula of a statement that holds."""

from fractions import Fraction
from math import e, exp, log1p, sqrt

import numpy as np
import pytest

from departing.paper import formulas
from departing.paper.item import HOLDS, REFUTED, Scale
from departing.paper.items import ITEMS

# key: (module, name of the formula in it, perturbed replacement)
PERTURBED = {
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
    "mgf-series": (formulas, "geometric_series_bound", lambda z: Fraction(19, 10) * z**2),
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
