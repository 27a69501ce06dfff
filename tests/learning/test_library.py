import re

import pytest

from departing.learning.frozen import Frozen
from departing.learning.library import (
    check_spec,
    learner_from_dict,
    load_learner,
    parse_learner,
    short_form,
)
from departing.learning.oracle import Oracle
from departing.learning.registry import LEARNERS
from departing.model.errors import InputError
from departing.model.examples import blog, magazine
from departing.policy.schedule import Fixed
from departing.simulation.simulate import simulate

SHORT = [*(kind for kind in LEARNERS if kind != "frozen"), "frozen:category=1", "bayes:explore=none", "bayes:types=3"]
SHORT += ["ucb-hybrid:policies=fixed,scale=estimated", "ucb-hybrid:horizon=3,epsilon=0.5", "ucb-hybrid:tau=1.5"]
SHORT += ["ucb-hybrid:horizon=paper", "ucb-hybrid:scale=exact", "ucb-hybrid:policies=fixed,scale=exact"]


@pytest.mark.parametrize("text", SHORT)
def test_every_learner_is_created_simulated_saved_and_loaded(text, tmp_path):
    spec = parse_learner(text)
    assert short_form(spec) == text
    learner = learner_from_dict(spec, blog(), users=50, seed=1)
    run = simulate(blog(), learner, users=50, seed=1, optimum=0.65)
    assert run.users == 50
    assert len(run.regret) == len(run.checkpoints)
    learner.save(tmp_path / "a.json")
    again = load_learner(tmp_path / "a.json")
    assert type(again) is type(learner)
    assert (again.recommend(["ann"]) == learner.recommend(["ann"])).all()


def test_defaults_come_from_the_instance():
    assert learner_from_dict({"kind": "bayes"}, magazine(), 100, 0).types == 3
    assert learner_from_dict({"kind": "bayes", "types": 2}, magazine(), 100, 0).types == 2
    given = learner_from_dict({"kind": "ucb-hybrid", "epsilon": 0.5}, blog(), 100, 0)
    assert learner_from_dict({"kind": "ucb-hybrid"}, blog(), 100, 0).tau == given.tau
    estimated = learner_from_dict({"kind": "ucb-hybrid", "scale": "estimated"}, blog(), 100, 0)
    assert estimated.policies == given.policies
    assert isinstance(learner_from_dict({"kind": "oracle"}, blog(), 100, 0), Oracle)
    sports = learner_from_dict({"kind": "frozen", "category": "sports"}, blog(), 100, 0)
    assert isinstance(sports, Frozen)
    assert sports.recommend([1]) == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("magic", "Unknown learner 'magic'; expected one of bayes, explore-then-commit"),
        ("", "Unknown learner ''"),
        ("bayes:3", "'3' in 'bayes:3' is not an option; write bayes:types=3"),
        ("bayes:types=2,types=3", "has the option 'types' twice"),
        ("bayes:kind=lattice", "has the option 'kind' twice"),
        (
            "bayes:horizon=3",
            "'bayes:horizon=3' has the unknown option 'horizon' of 'bayes'; expected one of types, explore",
        ),
        ("lattice:types=3", "the unknown option 'types' of 'lattice'; expected one of epsilon, horizon, scale"),
        ("bayes:types=2.5", "'bayes:types=2.5': types is 2.5; expected an integer ≥ 1"),
        ("bayes:explore=magic", "explore is 'magic'; expected one of voi, thompson, none"),
        ("ucb-hybrid:epsilon=2", "epsilon is 2; expected a number above 0 and below 1"),
        ("ucb-hybrid:scale=3", "scale is 3; expected one of proved, sharp, estimated, exact"),
        ("ucb-hybrid:horizon=long", "horizon is 'long'; expected an integer ≥ 0 or 'paper'"),
        ("frozen", "'frozen' has no option 'category', which the kind 'frozen' requires"),
    ],
)
def test_an_invalid_short_form_is_rejected(text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        parse_learner(text)


def test_an_invalid_learner_is_rejected(tmp_path):
    with pytest.raises(InputError, match="has the kind \\['bayes'\\]"):
        check_spec({"kind": ["bayes"]})
    with pytest.raises(InputError, match="with thresholds requires 2 categories, but the instance has 3"):
        learner_from_dict({"kind": "ucb-hybrid"}, magazine(), 100, 0)
    with pytest.raises(InputError, match="horizon applies to ucb-hybrid with policies = 'thresholds'"):
        learner_from_dict({"kind": "ucb-hybrid", "policies": "fixed", "horizon": 3}, magazine(), 100, 0)
    Fixed(0).save(tmp_path / "policy.json")
    with pytest.raises(InputError, match="has format 'departing-policy'"):
        load_learner(tmp_path / "policy.json")
    (tmp_path / "odd.json").write_text('{"format": "departing-learner", "version": 1, "kind": "odd", "state": {}}')
    with pytest.raises(InputError, match="has the kind 'odd'; expected one of bayes"):
        load_learner(tmp_path / "odd.json")
