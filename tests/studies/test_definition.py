import re
from itertools import count

import numpy as np
import pytest

from departing.model.errors import InputError
from departing.model.examples import blog, hard
from departing.model.files import write_document
from departing.planning.plan import plan
from departing.studies.definition import load_study, study_from_dict

FIXED = {"kind": "frozen", "category": 0}
BLOG = {"example": "blog"}
DRAWN = {"name": "k3m2-sure", "types": 2, "categories": 3, "prior_concentration": 3, "draws": 4}


def study(folder=None, **fields):
    document = {"users": 100, "instances": [BLOG], "learners": [FIXED]} | fields
    return study_from_dict(
        {name: value for name, value in document.items() if value is not ...}, folder, "trial", "'a.toml'"
    )


def test_study_contains_every_instance_learner_and_seed(tmp_path):
    hard().save(tmp_path / "mine.toml")
    inline = {"name": "two", "group": "small", "prior": [1.0], "click": [[0.5], [0.4]], "depart": 0.5}
    definition = study(
        tmp_path,
        title="A trial",
        users=1e3,
        seeds=[3, 1],
        open_users=7,
        delay=10,
        instances=[BLOG, {"file": "mine.toml", "group": "small"}, inline, DRAWN],
        learners=[FIXED, {"name": "best", "kind": "oracle"}],
    )
    assert [case.name for case in definition.cases[:3]] == ["blog", "mine", "two"]
    assert [case.name for case in definition.cases[3:]] == [f"k3m2-sure-0{i}" for i in range(4)]
    assert definition.groups == ("blog", "small", "k3m2-sure")
    assert definition.cases[0].instance == blog()
    assert definition.cases[1].instance == hard()
    assert [learner.name for learner in definition.learners] == ["frozen:category=0", "best"]
    assert len(definition.jobs) == 7 * 2 * 2
    assert [job.seed for job in definition.jobs[:4]] == [3, 1, 3, 1]
    assert len({job.key for job in definition.jobs}) == len(definition.jobs)
    assert study(seeds=3).seeds == (0, 1, 2)


def test_written_definition_defines_the_same_study(tmp_path):
    definition = study(instances=[BLOG, DRAWN], seeds=2, delay=5)
    write_document(tmp_path / "study.json", "study", definition.to_dict())
    assert load_study(tmp_path / "study.json") == definition
    assert [job.key for job in load_study(tmp_path / "study.json").jobs] == [job.key for job in definition.jobs]


def test_the_key_of_a_run_does_not_depend_on_names_or_on_other_runs():
    (one,) = study().jobs
    renamed = study(
        title="Other",
        instances=[BLOG | {"name": "renamed", "group": "other"}],
        learners=[FIXED | {"name": "same"}, {"kind": "oracle"}],
        seeds=2,
    )
    assert renamed.jobs[0].key == one.key
    for change in ({"users": 101}, {"open_users": 1}, {"delay": 1}, {"instances": [{"example": "hard"}]}):
        assert study(**change).jobs[0].key != one.key


def test_sampled_instances_do_not_depend_on_the_number_of_draws():
    few, many = (study(instances=[DRAWN | {"draws": n}]).cases for n in (2, 5))
    assert many[:2] == few
    assert study(instances=[DRAWN | {"draws": 3, "first_seed": 2}]).cases == many[2:]
    assert all((case.instance.click >= 0.1).all() and (case.instance.click <= 0.9).all() for case in many)
    assert all(case.instance.sure_departure for case in many)
    (one,) = study(instances=[DRAWN | {"draws": 1, "depart": [0.3, 0.9], "click": [0.2, 0.3]}]).cases
    assert 0.3 <= one.instance.depart.min() < one.instance.depart.max() <= 0.9
    assert one.instance.click.max() <= 0.3


def test_instances_are_sampled_on_the_condition_that_the_best_fixed_category_loses():
    cases = study(instances=[DRAWN | {"fixed_loss": 0.01, "fixed_loss_share": 0.5}]).cases
    lost = [1 - case.instance.best_fixed[1] / plan(case.instance).lower for case in cases]
    assert lost[1] >= 0.01
    assert lost[3] >= 0.01
    plain = study(instances=[DRAWN]).cases
    assert [cases[0], cases[2]] == [plain[0], plain[2]]
    all_of_them = study(instances=[DRAWN | {"draws": 2, "fixed_loss": 0.01}]).cases
    assert all(1 - case.instance.best_fixed[1] / plan(case.instance).lower >= 0.01 for case in all_of_them)


def test_the_clock_does_not_change_which_instances_are_sampled(monkeypatch):
    """With sure departure the condition is decided by the lattice search, otherwise by the heuristic search."""
    condition = {"draws": 3, "fixed_loss": 0.005}
    drawn = [DRAWN | condition | {"name": f"depart-{low}", "depart": [low, 1.0]} for low in (0.3, 1.0)]
    expected, now = study(instances=drawn).cases, count(step=10**6)
    monkeypatch.setattr("departing.planning.problem.perf_counter", lambda: float(next(now)))
    assert study(instances=drawn).cases == expected


def test_values_of_the_best_fixed_category():
    assert blog().best_fixed[1] == pytest.approx(0.6502732240)
    assert np.isclose(hard().best_fixed[1], 0.3591, atol=1e-4)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"users": ...}, "'a.toml' lacks the field 'users'"),
        ({"colour": 1}, "'a.toml' has the unknown field 'colour'; expected one of"),
        ({"users": 0}, "'a.toml': users is 0"),
        ({"users": "many"}, "users is 'many'"),
        ({"title": 3}, "title is 3"),
        ({"seeds": 0}, "seeds is 0"),
        ({"seeds": [1, 1]}, "seeds is [1, 1]; expected the number of seeds, or a list of distinct"),
        ({"seeds": [-1]}, "seed is -1"),
        ({"open_users": 0}, "open_users is 0"),
        ({"delay": -1}, "delay is -1"),
        ({"instances": []}, "instances is []; expected at least one table [[instances]]"),
        ({"learners": 3}, "learners is 3"),
        ({"learners": [{}]}, "'a.toml', learner 1 has the kind None; expected one of bayes"),
        ({"learners": [{"kind": "magic"}]}, "learner 1 has the kind 'magic'"),
        (
            {"learners": [FIXED | {"types": 2}]},
            "learner 1 has the unknown option 'types' of 'frozen'; expected one of category",
        ),
        ({"learners": [{"kind": "oracle", "types": 2}]}, "the unknown option 'types' of 'oracle'; it has no options"),
        ({"learners": [FIXED, FIXED]}, "2 learners named 'frozen:category=0'"),
        ({"learners": [FIXED | {"name": ""}]}, "name is ''"),
        ({"instances": [BLOG, BLOG]}, "2 instances named 'blog'"),
        ({"instances": [{}]}, "instance 1 lacks the field 'categories'"),
        ({"instances": [{"example": "kiosk"}]}, "example is 'kiosk'; expected one of blog, hard, magazine"),
        ({"instances": [{"example": ["shop"]}]}, "example is ['shop']"),
        ({"instances": [BLOG | {"draws": 2}]}, "instance 1 has the unknown field 'draws'"),
        ({"instances": [BLOG | {"group": "a/b"}]}, "group is 'a/b'; expected letters"),
        ({"instances": [{"prior": [1.0], "click": [[0.5]]}]}, "instance 1 lacks the field 'name'"),
        ({"instances": [{"name": "a", "prior": [0.5], "click": [[0.5]]}]}, "instance 1: prior sums to 0.5"),
        ({"instances": [{"name": "a", "prior": [1.0], "click": [[0.5]], "odd": 1}]}, "the unknown field 'odd'"),
        ({"instances": [DRAWN | {"odd": 1}]}, "instance 1 has the unknown field 'odd'"),
        ({"instances": [DRAWN | {"types": 0}]}, "instance 1: types is 0"),
        (
            {"instances": [DRAWN | {"click": [0.9, 0.1]}]},
            "click is [0.9, 0.1]; expected the smaller",
        ),
        (
            {"instances": [DRAWN | {"click": [0.1]}]},
            "click is [0.1]; expected a probability, or the ends of a range",
        ),
        ({"instances": [DRAWN | {"depart": 2}]}, "depart is 2"),
        ({"instances": [DRAWN | {"depart": 0}]}, "instance 1: Type 'type 0' never departs"),
        (
            {"instances": [DRAWN | {"click": 0.5, "fixed_loss": 0.5}]},
            "fixed_loss is 0.5; the best fixed category lost less in all of 10000",
        ),
    ],
)
def test_invalid_definitions_are_rejected(fields, sentence, monkeypatch):
    monkeypatch.setattr("departing.studies.sampler.MAX_TRIES", 10000 if "10000" not in sentence else 10)
    with pytest.raises(InputError, match=re.escape(sentence.replace("10000", "10"))) as raised:
        study(**fields)
    assert "\n" not in str(raised.value)


def test_missing_files_are_reported(tmp_path):
    with pytest.raises(InputError, match=r"There is no file '.*gone.toml'"):
        study(tmp_path, instances=[{"file": "gone.toml"}])
    with pytest.raises(InputError, match="file is 3"):
        study(tmp_path, instances=[{"file": 3}])
    with pytest.raises(InputError, match="There is no file"):
        load_study(tmp_path / "gone.toml")
