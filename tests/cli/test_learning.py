import pytest

from helpers.commands import call, told, values

STUDY = """
title = "A [small] trial"
users = 1e4
seeds = 2
[[instances]]
example = "hard"
[[instances]]
example = "blog"
[[learners]]
name = "[/b]"
kind = "fixed"
category = 0
[[learners]]
kind = "oracle"
"""


def test_a_learner_learns_and_tells_what_it_cost(tmp_path):
    text = told("learn", "hard", "fixed:category=0", "--users", "1e4", "--picture", tmp_path / "a.svg")
    assert "│ 10,000 │" in text
    assert "100.0%" in text
    assert "Regret grows like users to the power 1.00" in text
    assert "In the end most users get: always category 0." in text
    assert (tmp_path / "a.svg").stat().st_size > 10_000
    found = values("learn", "hard", "fixed:category=0", "--users", 2000, "--runs", 3)
    assert [row["users"] for row in found["course"]] == [1, 10, 100, 1000, 2000]
    assert found["runs"] == 3
    assert found["course"][-1]["regret"] == pytest.approx(2000 * 0.06331709)
    assert found["course"][-1]["share_of_fixed_loss"] == pytest.approx(1)
    assert "mean of 2 runs" in told("learn", "hard", "uniform", "--users", 100, "--runs", 2)
    assert values("learn", "blog", "oracle", "--users", 100)["policy"] == "sports × 6, then economics"
    assert (
        values("learn", "blog", "fixed:category=1", "--users", 50, "--open-users", 5, "--delay", 10)["slope"] is None
    )


def test_learning_goes_on_from_a_file(tmp_path):
    path = tmp_path / "learner.json"
    assert f"Saved to {path}" in told("learn", "blog", "ucb-hybrid", "--users", 300, "--save", path).replace("\n", "")
    more = values("learn", "blog", "--load", path, "--users", 300, "--save", path)
    assert more["saved"] == str(path)
    assert more["learner"] == str(path)


def test_a_study_is_run_shown_and_kept(tmp_path):
    (tmp_path / "trial.toml").write_text(STUDY)
    arguments = ["study", tmp_path / "trial.toml", "--save", tmp_path / "out", "--backend", "threading", "--jobs", 1]
    text = told(*arguments)
    assert "A [small] trial: hard, 2 runs each" in text
    assert "[/b]" in text
    assert "100.0%" in text
    assert "results.parquet, timings.parquet, regret-hard.svg" in " ".join(text.split())
    found = values(*arguments)
    assert [row["learner"] for row in found["summary"]] == ["[/b]", "oracle"] * 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("optima", "parts", "regret-blog.png", "regret-blog.svg", "regret-hard.png", "regret-hard.svg"),
        *("results.parquet", "study.json", "timings.parquet"),
    ]


def test_results_lie_where_we_are_unless_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trial.toml").write_text(STUDY)
    assert values("study", "trial.toml", "--backend", "threading")["folder"] == "trial-results"
    again = values("study", "trial-results/study.json", "--save", "trial-results", "--backend", "threading")
    assert again["title"] == "A [small] trial"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["learn", "blog"], "Give either a learner, or --load"),
        (["learn", "blog", "oracle", "--load", "a.json"], "Give either a learner, or --load"),
        (["learn", "blog", "magic"], "There is no learner 'magic'"),
        (["learn", "blog", "bayes:types"], "'types' in 'bayes:types' is no option"),
        (["learn", "blog", "oracle", "--users", "0"], "users is 0"),
        (["learn", "blog", "oracle", "--runs", "0"], "runs is 0"),
        (["learn", "blog", "oracle", "--seed", "-1"], "seed is -1"),
        (["learn", "blog", "oracle", "--delay", "-1"], "delay is -1"),
        (["learn", "blog", "oracle", "--delay", "late"], "delay is 'late'"),
        (["learn", "blog", "oracle", "--open-users", "0"], "--open-users is 0"),
        (["learn", "blog", "oracle", "--runs", "2", "--save", "a.json"], "runs is 2; a learner is saved and loaded"),
        (["learn", "blog", "oracle", "--save", "a.toml"], "'a.toml' ends in '.toml'"),
        (["learn", "blog", "oracle", "--picture", "a.gif"], "'a.gif' ends in '.gif'"),
        (["learn", "blog", "--load", "gone.json"], "There is no file 'gone.json'"),
        (["learn", "blog", "fixed:category=golf"], "There is no category 'golf'"),
        (["study", "gone.toml"], "There is no file 'gone.toml'"),
        (["study", "gone"], "'gone' ends in ''; allowed endings are .toml, .json"),
    ],
)
def test_errors_are_one_sentence_and_exit_code_two(arguments, sentence):
    done = call(*arguments)
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.output
    assert done.stdout == ""


def test_interrupting_a_study_tells_how_to_go_on(tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    (tmp_path / "trial.toml").write_text(STUDY)
    monkeypatch.setattr("departing.studies.runner.run_study", interrupted)
    done = call("study", tmp_path / "trial.toml", "--save", "somewhere")
    assert done.exit_code == 2
    assert done.stderr.strip() == (
        "Interrupted; finished runs are kept in 'somewhere', and the same command goes on from there."
    )


def test_a_bug_is_not_hidden(tmp_path, monkeypatch):
    def broken(*arguments, **options):
        raise SystemError("a bug")

    (tmp_path / "trial.toml").write_text(STUDY)
    monkeypatch.setattr("departing.studies.runner.run_study", broken)
    assert isinstance(call("study", tmp_path / "trial.toml", "--save", "somewhere").exception, SystemError)
