import json

import numpy as np
import pytest
from hypothesis import given

import departing as dp
from departing.model.examples import blog
from helpers.strategies import instances


def test_scalars_broadcast_and_arrays_are_frozen():
    instance = dp.Instance([0.4, 0.6], [[0.5, 0.28], [0.4, 0.39]], depart=0.5, depart_on_click=0.1)
    assert instance.depart.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert instance.depart_on_click.shape == (2, 2)
    for array in (
        instance.prior,
        instance.click,
        instance.depart,
        instance.outcome_probabilities,
        instance.departure_probabilities,
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        instance.prior = [1.0]


def test_arguments_are_copied():
    click = np.array([[0.5], [0.4]])
    instance = dp.Instance([1.0], click)
    click[0, 0] = 0.9
    assert instance.click[0, 0] == 0.5


@given(instances())
def test_outcomes_sum_to_one_and_logarithms_agree(instance):
    np.testing.assert_allclose(instance.outcome_probabilities.sum(axis=1), 1, rtol=1e-15)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(
            np.exp(instance.log_outcome_probabilities), instance.outcome_probabilities, rtol=1e-12, atol=1e-300
        )
    np.testing.assert_allclose(
        instance.outcome_probabilities[:, 2:].sum(axis=1), instance.departure_probabilities, rtol=1e-14
    )


@given(instances())
def test_repr_and_files_preserve_the_instance(tmp_path_factory, instance):
    folder = tmp_path_factory.mktemp("instance")
    for name in ("a.toml", "a.json"):
        instance.save(folder / name)
        again = dp.Instance.load(folder / name)
        assert again == instance
        assert hash(again) == hash(instance)
        for field in ("prior", "click", "depart", "depart_on_click"):
            assert getattr(again, field).tobytes() == getattr(instance, field).tobytes()
    assert eval(repr(instance), {"Instance": dp.Instance}) == instance


def test_instances_differ_by_any_field():
    base = blog()
    assert base != dp.Instance(base.prior, base.click, base.depart)
    assert base != dp.Instance(base.prior, base.click, 0.5, categories=base.categories, types=base.types)
    assert base != "blog"


def test_large_instances_have_a_short_repr():
    assert repr(dp.random_instance("uniform", 20, 20)) == "<Instance with 20 categories and 20 types>"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"prior": [0.4, 0.7]}, "prior sums to 1.1; expected 1"),
        ({"prior": [1.4, -0.4]}, r"prior\[0\] is 1.4; expected a probability between 0 and 1"),
        ({"prior": [np.nan, 1.0]}, r"prior\[0\] is nan; expected a probability between 0 and 1"),
        ({"prior": []}, r"prior has shape \(0,\)"),
        ({"prior": [[0.5, 0.5]]}, "expected one probability for each type"),
        ({"prior": "high"}, "prior is 'high'; expected a number"),
        ({"click": [[0.5, 0.28], [0.4, 1.39]]}, r"click\[1\]\[1\] is 1.39; expected a probability"),
        ({"click": [[0.5, 0.28], [0.4]]}, "rows of equal length"),
        ({"click": [0.5, 0.28]}, r"click has shape \(2,\); expected a row for each category and 2 columns"),
        ({"click": [[0.5, 0.2, 0.1]]}, r"click has shape \(1, 3\)"),
        ({"click": np.zeros((0, 2))}, r"click has shape \(0, 2\)"),
        ({"click": [[True, False], [True, True]]}, "expected a number"),
        ({"depart": [0.5, 0.5]}, r"depart has shape \(2,\); expected one number or shape \(2, 2\)"),
        ({"depart": -1}, "depart is -1.0; expected a probability between 0 and 1"),
        ({"depart_on_click": 2}, "depart_on_click is 2.0; expected a probability between 0 and 1"),
        ({"depart": 0.0}, "Type 'type 0' never departs from category 'category 0' .* value is infinite"),
        ({"click": [[0.5, 0.28], [0.4, 1.0]]}, "Type 'type 1' never departs from category 'category 1'"),
        ({"depart": 1e-320}, "never departs"),
        ({"categories": ["a"]}, "categories has 1 names; expected 2"),
        ({"categories": ["a", "a"]}, "the name 'a' twice"),
        ({"categories": ["a", " "]}, "nonempty names"),
        ({"categories": "ab"}, "expected 2 nonempty names"),
        ({"categories": 5}, "categories is 5; expected 2 nonempty names"),
        ({"types": ["x", 3]}, "types is"),
    ],
)
def test_invalid_fields_raise_a_clear_error(fields, sentence):
    good = {"prior": [0.4, 0.6], "click": [[0.5, 0.28], [0.4, 0.39]], "depart": 1.0}
    with pytest.raises(dp.InputError, match=sentence) as caught:
        dp.Instance(**(good | fields))
    assert "\n" not in str(caught.value)


def test_a_certain_click_is_valid_with_departure_on_click():
    instance = dp.Instance([1.0], [[1.0]], 0.0, depart_on_click=0.25)
    assert dp.evaluate(instance, dp.Fixed(0)).value == pytest.approx(4)


def test_names_and_indices_find_a_category():
    assert [blog().category_index(name) for name in ("sports", 1, "1", np.int64(1), "economics")] == [1, 1, 1, 1, 0]
    for wrong in ("golf", 2, -1, None, 1.9, float("inf"), "9" * 5000):
        with pytest.raises(dp.InputError, match=r"There is no category .*expected one of 'economics', 'sports'"):
            blog().category_index(wrong)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.toml", "prior = [0.4, ", "is not valid TOML"),
        ("a.json", "{", "is not valid JSON"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", "[1, 2]", "does not contain named fields; expected the fields of an instance"),
        ("a.toml", "prior = [1.0]", "lacks the field 'click'"),
        (
            "a.toml",
            "prior = [1.0]\nclick = [[0.5]]\nclicks = 3",
            "unknown field 'clicks'; expected one of categories, click",
        ),
        ("a.toml", "prior = [0.9]\nclick = [[0.5]]", "prior sums to 0.9"),
        ("a.toml", "version = 99\nprior = [1.0]\nclick = [[0.5]]", "has version 99; this release .* Upgrade"),
        ("a.toml", "version = 'x'\nprior = [1.0]\nclick = [[0.5]]", "expected an integer ≥ 1"),
        ("a.toml", "format = 'departing-policy'\nprior = [1.0]\nclick = [[0.5]]", "has format 'departing-policy'"),
        ("a.yaml", "", "ends in '.yaml'; expected one of .toml, .json"),
    ],
)
def test_invalid_files_raise_a_clear_error(tmp_path, name, text, sentence):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(dp.InputError, match=sentence):
        dp.Instance.load(path)


def test_missing_and_unreadable_files_raise_a_clear_error(tmp_path):
    with pytest.raises(dp.InputError, match=r"There is no file '.*gone.toml'"):
        dp.Instance.load(tmp_path / "gone.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(dp.InputError, match="Cannot read"):
        dp.Instance.load(tmp_path / "folder.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(dp.InputError, match="is not valid TOML"):
        dp.Instance.load(tmp_path / "bytes.toml")


def test_unwritable_paths_raise_a_clear_error(tmp_path):
    with pytest.raises(dp.InputError, match=r"Cannot write '.*a.toml': there is no folder '.*no'\."):
        blog().save(tmp_path / "no" / "a.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(dp.InputError, match="it is a folder"):
        blog().save(tmp_path / "folder.toml")
    with pytest.raises(dp.InputError, match="expected one of"):
        blog().save(tmp_path / "a.xml")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.toml"]


def test_a_file_written_by_hand_needs_no_header(tmp_path):
    path = tmp_path / "hand.json"
    path.write_text(json.dumps({"prior": [1], "click": [[0.5]]}))
    assert dp.Instance.load(path) == dp.Instance([1.0], [[0.5]])


def test_names_may_be_an_array():
    instance = dp.Instance([1.0], [[0.5], [0.4]], categories=np.array(["a", "b"]))
    assert instance.categories == ("a", "b")


def test_a_file_name_that_is_too_long_raises_a_clear_error():
    with pytest.raises(dp.InputError, match=r"Cannot write .*File name too long"):
        blog().save("a" * 300 + ".toml")


def test_replace_changes_some_fields_and_keeps_the_others():
    base = blog()
    assert base.replace() == base
    changed = base.replace(prior=[0.5, 0.5], types=["a", "b"])
    assert (changed.prior.tolist(), changed.types, changed.categories) == ([0.5, 0.5], ("a", "b"), base.categories)
    assert (changed.click == base.click).all()


def test_fields_of_the_instance_in_the_table_log_are_refused(tmp_path):
    path = tmp_path / "fitted.toml"
    text = "prior = [1.0]\nclick = [[0.5], [0.4]]\n\n[log]\nusers = 3\nshown = [0.5, 0.5]\n"
    path.write_text(text)
    assert dp.Instance.load(path).horizon is None
    path.write_text(text + "horizon = 5\n")
    with pytest.raises(dp.InputError, match=r"'horizon' in the table \[log\].*above the first \[table\]"):
        dp.Instance.load(path)
    path.write_text(text + "visitors = 5\n")
    with pytest.raises(
        dp.InputError, match="log has the unknown field 'visitors'; expected one of clicks_per_user, "
    ):
        dp.Instance.load(path)
    path.write_text(f"horizon = 5\n{text}")
    assert dp.Instance.load(path).horizon == 5
