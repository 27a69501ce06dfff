"""Checks of sections 2 and 5.1 whose verdict is not "holds", and the threshold of the belief."""

from fractions import Fraction

from departing.paper import formulas, setting
from departing.paper.exact import BLOG
from departing.paper.item import HOLDS, IMPLEMENTED, REFUTED, Scale

QUICK = Scale(quick=True)


def test_another_definition_of_regret_is_detected(monkeypatch):
    assert setting.check_regret(QUICK).verdict == IMPLEMENTED
    monkeypatch.setattr(formulas, "regret", lambda optimum, returns: (len(returns) - 1) * optimum - sum(returns))
    assert setting.check_regret(QUICK).verdict == REFUTED


def test_another_definition_of_returns_is_detected(monkeypatch):
    monkeypatch.setattr(formulas, "total_return", len)  # the number of steps
    assert setting.check_regret(QUICK).verdict == REFUTED


def test_six_recommendations_before_switching_would_hold(monkeypatch):
    monkeypatch.setattr(formulas, "EXAMPLE_STEPS", 6)
    assert setting.check_example_switch(QUICK).verdict == HOLDS


def test_belief_of_the_example_crosses_its_threshold_after_six_clicks():
    (prior, _), click = BLOG
    threshold = setting.belief_threshold(click)
    assert threshold == Fraction(55, 127)
    beliefs, b = [prior], prior
    for _ in range(7):
        b = formulas.next_belief(b, click[1])
        beliefs.append(b)
    assert [belief <= threshold for belief in beliefs] == [True] * 6 + [False] * 2


def test_another_threshold_of_the_belief_is_detected(monkeypatch):
    threshold = setting.belief_threshold
    monkeypatch.setattr(setting, "belief_threshold", lambda click: threshold(click) + Fraction(1, 50))
    assert setting.check_belief_monotone(QUICK).verdict == REFUTED
