"""The commands power and ab, called as a user does."""

import json

import pytest

import departing as dp
from departing.model.examples import magazine
from helpers.commands import call, json_output, output


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    path = tmp_path_factory.mktemp("test") / "results.csv"
    rows = ["user,arm,clicks,time"]
    for i in range(900):
        arm = "new" if i % 2 else "control"
        rows.append(f"u{i},{arm},{(i * 7919) % (9 if i % 2 else 6)},2026-01-{1 + i // 100:02}")
    path.write_text("\n".join(rows))
    return path


def test_power_of_a_saved_fit(tmp_path):
    dp.fit(dp.sample_log(magazine(), users=5000, seed=1).histories, types=3).save(tmp_path / "found.toml")
    printed = output("power", tmp_path / "found.toml", "greedy", "--plot", tmp_path / "power.svg")
    for phrase in (
        "users per arm detect",
        "policy of the log",
        "logged frequencies",
        "Minimum detectable",
        "power.svg",
    ):
        assert phrase in " ".join(printed.split())
    size = dp.power(tmp_path / "found.toml", "greedy")
    values = json_output("power", tmp_path / "found.toml", "greedy")
    assert values["users_per_arm"] == size.users_per_arm
    assert values["treatment"]["mean"] == size.treatment.mean
    given = json_output("power", tmp_path / "found.toml", "greedy", "--users", "1e3", "--share", "0.3")
    assert (given["users"], given["treatment_users"]) == (1000, 300)
    assert output("instance", tmp_path / "found.toml")


def test_errors_of_power_name_options(tmp_path):
    magazine().save(tmp_path / "old.toml")
    for arguments, message in (
        (["magazine", "greedy"], "against is 'log', but an instance has no log"),
        ([tmp_path / "old.toml", "greedy"], "no table 'log'"),
        (["magazine", "greedy", "--against", "greedy"], "no number of users suffices"),
        (["magazine", "greedy", "--against", "fixed:news", "--power", "2"], "--power is 2.0"),
        (["magazine", "greedy", "--against", "fixed:news", "--users", "many"], "--users is 'many'"),
        (["magazine", "greedy", "--against", "fixed:news", "--plot", "a.gif"], "a.gif"),
        (["nothing", "greedy"], "There is no instance 'nothing'"),
        (["nothing.toml", "greedy"], "There is no file 'nothing.toml'"),
    ):
        done = call("power", *arguments)
        assert done.exit_code == 2
        assert message in " ".join(done.stderr.split())


def test_ab(results, tmp_path):
    printed = output("ab", results, "--plot", tmp_path / "ab.png")
    for phrase in ("Stop: new is better than control", "fixed-sample interval", "confidence sequence", "ab.png"):
        assert phrase in " ".join(printed.split())
    values = json_output("ab", results)
    assert values["comparisons"][0]["verdict"] == "better"
    assert values["comparisons"][0]["sequence"]["users"] == [*range(100, 901, 100)]
    assert values["comparisons"][0]["sequence"]["lower"][0] is None  # not yet 100 users in each arm
    assert json.dumps(values)
    one = json_output(
        "ab", results, "--share", "new=0.5,control=0.5", "--planned-users", "1e3", "--confidence", "0.9"
    )
    assert one["confidence"] == 0.9


def test_errors_of_ab_name_options(results):
    for arguments, message in (
        (["--control", "ctrl"], "--control is 'ctrl'"),
        (["--arm", "armm"], "did you mean 'arm'"),
        (["--time", "x"], "Error: There is no column 'x' in"),
        (["--share", "x"], "--share is 'x'"),
        (["--share", "new=x"], "--share is 'new=x'"),
        (["--planned-users", "x"], "--planned-users is 'x'"),
        (["--clicks", "user"], "clicks cannot be parsed"),
        (["--confidence", "0"], "--confidence is 0"),
        (["--table", "x"], "only a database file has tables"),
    ):
        done = call("ab", results, *arguments)
        assert done.exit_code == 2, arguments
        assert message in " ".join(done.stderr.split())
