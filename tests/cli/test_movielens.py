import pytest

import departing as dp
from departing.cli.tables.learning import optimum_notes
from helpers.commands import call, told, values
from helpers.releases import draw, write, zipped


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return write(tmp_path_factory.mktemp("ml") / "ml", *draw(1), "latest")


def test_types_are_made_told_and_saved(release, tmp_path):
    saved, picture = tmp_path / "a.toml", tmp_path / "a.png"
    options = ["--genres", "Action, Drama", "--types", 2, "--depart", "0.5,0.4", "--seed", 3]
    text = told("movielens", release, *options, "-o", saved, "--picture", picture)
    assert "ratings by 30 users" in text
    assert "│ Comedy" in text
    assert "of users (type 1): click most on" in text
    assert "left out who lack a rating in some genre" in text
    assert "best for every type" in text
    assert f"Saved to {saved}" in text.replace("\n", " ")
    assert picture.stat().st_size > 10_000
    found = dp.Instance.load(saved)
    assert (found.categories, found.n_types) == (("Action", "Drama"), 2)
    assert found.depart.tolist() == [[0.5, 0.5], [0.4, 0.4]]
    again = values("movielens", zipped(release, tmp_path / "ml.zip"), *options)
    assert dp.Instance(**again["instance"]) == found
    assert again["users"] + sum(again["dropped"].values()) == 30
    assert sum(again["favourites"].values()) == pytest.approx(1)
    assert (
        values("movielens", release, *options, "--click", "paper")["instance"]["click"] != again["instance"]["click"]
    )


def test_a_replay_is_made_and_the_other_commands_take_it(release, tmp_path):
    saved = tmp_path / "replay.json"
    text = told("movielens", release, "--replay", "-o", saved, "--picture", tmp_path / "a.svg")
    assert "Every user is a type of its own; best to show is" in text
    assert (tmp_path / "a.svg").stat().st_size > 10_000
    assert "instance" not in values("movielens", release, "--replay")
    users = dp.Instance.load(saved).n_types
    assert values("movielens", release, "--replay")["users"] == users > 20
    assert values("simulate", saved, "fixed:0", "--users", 1000)["users"] == 1000
    assert values("learn", saved, "bayes:types=2", "--users", 100)["optimum"][0] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--genres", "Dramma"], "There is no genre 'Dramma'; perhaps 'Drama' is meant."),
        (["--types", 0], "types is 0"),
        (["--types", 2, "--replay"], "--types and --replay do not go together"),
        (["--seed", 2, "--replay"], "--seed and --replay do not go together"),
        (["--depart", "often"], "depart is 'often'; expected a chance"),
        (["--depart", "0.5,0.5"], "depart has shape (2,)"),
        (["-o", "a.csv"], "allowed endings are .toml, .json"),
        (["--picture", "a.gif"], "allowed endings are .svg, .png, .pdf"),
    ],
)
def test_mistakes_are_told_in_one_sentence(release, arguments, words):
    done = call("movielens", release, *arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_wide_bounds_of_the_optimum_are_reported():
    last = {"users": 10_000, "per_user": 0.01}
    assert optimum_notes({"lower": 1.0, "upper": 1.0001}, last) == []
    assert optimum_notes({"lower": 1.0, "upper": 1.004}, last) == [
        "The optimum is only known to be 1 to 1.004 clicks per user; the regret may be off by 20."
    ]
