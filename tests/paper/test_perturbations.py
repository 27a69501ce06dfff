"""Checks fail on perturbed statements: each entry changes one formula of a statement that holds."""

import pytest

from departing.paper import formulas
from departing.paper.item import HOLDS, REFUTED, Scale
from departing.paper.items import ITEMS

PERTURBED = {}  # key: (module, name of the formula in it, perturbed replacement)
BY_KEY = {item.key: item for item in ITEMS}


@pytest.mark.parametrize("key", PERTURBED)
def test_perturbed_statement_is_refuted(key, monkeypatch):
    module, name, replacement = PERTURBED[key]
    monkeypatch.setattr(module, name, replacement)
    finding = BY_KEY[key].check(Scale(quick=True))
    assert finding.verdict == REFUTED, finding.evidence


def test_every_statement_that_holds_is_perturbed():
    assert {item.key for item in ITEMS if item.verdict == HOLDS} == set(PERTURBED)
