import pytest

import departing as dp
from departing.cli.tables.learning import optimum_notes
from helpers.commands import call, json_output, output
from helpers.releases import draw, write, zipped


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return write(tmp_path_factory.mktemp("ml") / "ml", *draw(1), "latest")


def test_types_are_built_printed_and_saved(release, tmp_path):
    saved, plot = tmp_path / "a.toml", tmp_path / "a.png"
    options = ["--genres", "Action, Drama", "--types", 2, "--depart", "0.5,0.4", "--seed", 3]
    text = output("movielens", release, *options, "-o", saved, "--plot", plot)
    assert "ratings by 30 users" in text
    assert "│ Comedy" in text
    assert "of users: clicks most on" in text
    assert "without a rating in some genre" in text
    assert "best for every type" in text
    assert f"Saved to {saved}" in text.replace("\n", " ")
    assert plot.stat().st_size > 10_000
    result = dp.Instance.load(saved)
    assert (result.categories, result.n_types) == (("Action", "Drama"), 2)
    assert result.depart.tolist() == [[0.5, 0.5], [0.4, 0.4]]
    again = json_output("movielens", zipped(release, tmp_path / "ml.zip"), *options)
    assert dp.Instance(**again["instance"]) == result
    assert again["users"] + sum(again["excluded"].values()) == 30
    assert sum(again["best_genre_shares"].values()) == pytest.approx(1)
    assert (
        json_output("movielens", release, *options, "--click", "paper")["instance"]["click"]
        != again["instance"]["click"]
    )


@pytest.mark.slow
def test_replay_is_built_and_accepted_by_other_commands(release, tmp_path):
    saved = tmp_path / "replay.json"
    text = output("movielens", release, "--replay", "-o", saved, "--plot", tmp_path / "a.svg")
    assert "Every user is a type. Best genre:" in text
    assert (tmp_path / "a.svg").stat().st_size > 10_000
    assert "instance" not in json_output("movielens", release, "--replay")
    users = dp.Instance.load(saved).n_types
    assert json_output("movielens", release, "--replay")["users"] == users > 20
    assert json_output("simulate", saved, "fixed:0", "--users", 1000)["users"] == 1000
    assert json_output("learn", saved, "bayes:types=2", "--users", 100)["optimum"][0] > 0


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["--genres", "Dramma"], "There is no genre 'Dramma'; did you mean 'Drama'?"),
        (["--types", 0], "--types is 0"),
        (["--types", 2, "--replay"], "--replay and --types cannot be combined"),
        (["--seed", 2, "--replay"], "--replay and --seed cannot be combined"),
        (["--depart", "often"], "--depart is 'often'; expected a probability"),
        (["--depart", "0.5,0.5"], "depart has shape (2,)"),
        (["-o", "a.csv"], "expected one of .toml, .json"),
        (["--plot", "a.gif"], "expected one of .svg, .png, .pdf"),
    ],
)
def test_invalid_input_prints_one_message(release, arguments, phrase):
    done = call("movielens", release, *arguments)
    assert done.exit_code == 2
    assert phrase in done.stderr
    assert done.stdout == ""


def test_wide_bounds_of_the_optimum_are_reported():
    last = {"users": 10_000, "per_user": 0.01}
    assert optimum_notes({"lower": 1.0, "upper": 1.0001}, last) == []
    assert optimum_notes({"lower": 1.0, "upper": 1.004}, last) == [
        "The optimum is only known to be 1 to 1.004 clicks per user; the regret may be off by 20."
    ]
