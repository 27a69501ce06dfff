"""Repeated options, and names of options in error messages."""

import re

import pytest

from helpers.commands import call, json_output, output


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("shop") / "shop.csv"
    output("sample-log", "shop", "-o", path, "--users", "1e3", "--seed", "1")
    return path


def options(**changes):
    given = {"time": "ts", "segment": "country,device", "reward": "revenue", "unit": "euro"} | changes
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]


def error_of(*arguments):
    done = call(*arguments)
    assert done.exit_code == 2
    return " ".join(done.stderr.split())


def test_repeated_lists_accumulate(log):
    fit = ["fit", log, "--types", "1", "--bootstrap", "0", *options(segment=None), "--inactive-after", "14 days"]
    once = json_output(*fit, "--segment", "country,device")
    assert json_output(*fit, "--segment", "country", "--segment", "device") == once
    clicked = json_output(*fit, "--clicked-values", "true", "--clicked-values", "false")
    assert clicked["check"]["clicks_per_user"] > once["check"]["clicks_per_user"]
    both = json_output("plan", "blog", "--allowed", "0", "--allowed", "1")
    assert both["lower"] == json_output("plan", "blog", "--allowed", "0,1")["lower"]
    printed = error_of("paper", "--only", "first", "--only", "second")
    assert "first, second" in printed


def test_repeated_options_of_one_value_are_refused(log):
    printed = error_of("fit", log, "--user", "a", "--user", "b")
    assert "Option '--user' is given more than once; give it once." in printed
    assert "Option '--output' is given more than once" in error_of(
        "plan", "blog", "-o", "a.json", "--output", "b.json"
    )
    assert call("plan", "blog", "--json", "--json").exit_code == 0


def test_missing_columns_of_segments_are_named_in_one_option(log):
    printed = error_of("fit", log, *options(segment="countr,place", reward="gain"))
    assert printed.endswith("Name them by --reward=COLUMN --segment=country,COLUMN.")
    assert "--segment=country,device." in error_of("fit", log, *options(segment="country,devic"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"segment": "user"}, "Column 'user' is named for segment and for user"),
        ({"reward": "category"}, "Column 'category' is named for reward and for another field."),
        ({"max_segments": 2}, "Columns 'country', 'device' of '"),
        ({"max_segments": 0}, "--max-segments is 0; expected"),
        ({"reward": "country"}, "Column 'country' for reward holds no number ≥ 0"),
        ({"clicked_values": "maybe"}, "--clicked-values lists 'maybe', which does not occur"),
        ({"categories": "nothing"}, "--categories lists the category 'nothing'"),
        ({"inactive_after": "soon"}, "--inactive-after is 'soon'"),
        ({"unit": "euro", "reward": None}, "--unit is 'euro', but there is no reward"),
        ({"missing_segment": " "}, "--missing-segment is ' '"),
        ({"horizon": "1"}, "--horizon is 1, but users of the log"),
    ],
)
def test_messages_name_options_and_columns_apart(log, changes, sentence):
    given = {"inactive_after": "14 days"} | changes
    printed = error_of("fit", log, *options(**given))
    assert printed.startswith(f"Error: {sentence}")
    assert not re.search(r"--[a-z-]+(Column|The|For|No)", printed)
    assert "horizon" not in changes or "or omit --horizon" in printed
    assert "`" not in printed


def revenue(log, tmp_path, change):
    """The log with other values of rewards."""
    head, *rows = log.read_text().splitlines()
    k, clicked = head.split(",").index("revenue"), head.split(",").index("clicked")
    changed = [row.split(",") for row in rows]
    for i, row in enumerate(changed):
        row[k] = change(i, row[k]) if row[clicked] in ("1", "true", "yes") else row[k]
    path = tmp_path / "changed.csv"
    path.write_text("\n".join([head, *map(",".join, changed)]))
    return error_of("fit", path, *options())


def test_the_format_of_rewards_is_named_where_they_are_wrong(log, tmp_path):
    euro = revenue(log, tmp_path, lambda i, value: f"€{value}")
    assert "Write rewards as numbers ≥ 0 such as 8.13, with a decimal point and without a currency sign" in euro
    assert "missing" not in euro
    assert "Write 0" not in euro
    missing = revenue(log, tmp_path, lambda i, value: "" if i % 2 else value)
    assert "of them missing" in missing
    assert missing.endswith("Write 0 for clicks without a value, or name another column as --reward.")
    both = revenue(log, tmp_path, lambda i, value: "" if i % 2 else f"€{value}")
    assert "Write 0 for clicks without a value, write the others as numbers ≥ 0 such as 8.13" in both


def test_numbers_and_names_are_repeated_as_they_were_given(log, tmp_path):
    assert error_of("fit", log, *options(), "--inactive-after", "4").startswith(
        "Error: --inactive-after is 4; expected"
    )
    assert "'/dev/null' has no suffix; expected one of .toml, .json." in error_of("plan", "blog", "-o", "/dev/null")


def test_rewards_of_a_run_have_two_decimals():
    printed = output("simulate", "shop", "greedy", "--users", "2e4")
    run = json_output("simulate", "shop", "greedy", "--users", "2e4")
    assert f" {run['reward']:,.2f} │" in printed
    assert f" {run['mean']:.4f} │" in printed
