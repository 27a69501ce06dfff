import pytest

import departing as dp
from helpers.commands import call, json_output, output

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
kind = "frozen"
category = 0
[[learners]]
kind = "oracle"
"""


def test_learn_reports_regret(tmp_path):
    text = output("learn", "hard", "frozen:category=0", "--users", "1e4", "--plot", tmp_path / "a.svg")
    assert "│ 10,000 │" in text
    assert "100%" in text
    assert "regret grows like users to the power 1.00" in text
    assert "Policy of most users at the end: always category 0." in text
    assert (tmp_path / "a.svg").stat().st_size > 10_000
    result = json_output(
        *("learn", "hard", "frozen:category=0", "--users", 2000, "--runs", 3, "--plot", tmp_path / "b.svg")
    )
    assert (tmp_path / "b.svg").stat().st_size > 10_000
    assert [row["users"] for row in result["regret_curve"]] == [1, 10, 100, 1000, 2000]
    assert result["runs"] == 3
    assert result["regret_curve"][-1]["regret"] == pytest.approx(2000 * 0.06331709)
    assert result["regret_curve"][-1]["share_of_fixed_loss"] == pytest.approx(1)
    assert "mean of 2 runs" in output("learn", "hard", "uniform", "--users", 100, "--runs", 2)
    assert json_output("learn", "blog", "oracle", "--users", 100)["policy"] == "sports × 6, then economics"
    assert (
        json_output("learn", "blog", "frozen:category=1", "--users", 50, "--open-users", 5, "--delay", 10)["slope"]
        is None
    )


def test_learn_reports_the_lower_bound(tmp_path):
    arguments = ("learn", "hard", "frozen:category=0", "--users", 1000, "--bound")
    text = " ".join(output(*arguments, "--plot", tmp_path / "a.svg").split())
    assert "lower" in text
    assert "No learner has less than" in text
    assert "Proved by duality for all policies" in text
    assert "lower bound" in (tmp_path / "a.svg").read_text() or (tmp_path / "a.svg").stat().st_size > 10_000
    result = json_output(*arguments)
    values = [row["bound"] for row in result["regret_curve"]]
    assert values == sorted(values)
    assert result["bound"]["value"] == values[-1] > 1
    assert result["bound"]["alternatives"][0]["nats"] > 0
    assert "bound" not in json_output("learn", "hard", "frozen:category=0", "--users", 100)["regret_curve"][0]


def test_learning_resumes_from_a_file(tmp_path):
    path = tmp_path / "learner.json"
    assert f"Saved to {path}" in output("learn", "blog", "ucb-hybrid", "--users", 300, "--output", path).replace(
        "\n", ""
    )
    more = json_output("learn", "blog", "--load", path, "--users", 300, "-o", path)
    assert more["output"] == str(path)
    assert more["learner"] == str(path)


def test_study_is_run_printed_and_stored(tmp_path):
    (tmp_path / "trial.toml").write_text(STUDY)
    arguments = [
        "study",
        tmp_path / "trial.toml",
        "--output",
        tmp_path / "out",
        "--backend",
        "threading",
        "--jobs",
        1,
    ]
    text = output(*arguments)
    assert "A [small] trial: hard, 2 runs each" in text
    assert "[/b]" in text
    assert "100%" in text
    assert "results.parquet, timings.parquet, regret-hard.svg" in " ".join(text.split())
    result = json_output(*arguments)
    assert [row["learner"] for row in result["summary"]] == ["[/b]", "oracle"] * 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("optima", "parts", "regret-blog.png", "regret-blog.svg", "regret-hard.png", "regret-hard.svg"),
        *("results.parquet", "study.json", "timings.parquet"),
    ]


def test_results_are_stored_in_the_current_folder_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trial.toml").write_text(STUDY)
    assert json_output("study", "trial.toml", "--backend", "threading")["folder"] == "trial-results"
    again = json_output("study", "trial-results/study.json", "--output", "trial-results", "--backend", "threading")
    assert again["title"] == "A [small] trial"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["learn", "blog"], "Expected either LEARNER or --load FILE"),
        (["learn", "blog", "oracle", "--load", "a.json"], "Expected either LEARNER or --load FILE"),
        (["learn", "blog", "magic"], "Unknown learner 'magic'"),
        (["learn", "blog", "bayes:types"], "'types' in 'bayes:types' is not an option"),
        (["learn", "blog", "oracle", "--users", "0"], "--users is 0"),
        (["learn", "blog", "oracle", "--runs", "0"], "--runs is 0"),
        (["learn", "blog", "oracle", "--seed", "-1"], "--seed is -1"),
        (["learn", "blog", "oracle", "--delay", "-1"], "--delay is -1"),
        (["learn", "blog", "oracle", "--delay", "late"], "--delay is 'late'"),
        (["learn", "blog", "oracle", "--open-users", "0"], "--open-users is 0"),
        (
            ["learn", "blog", "oracle", "--runs", "2", "--output", "a.json"],
            "--runs is 2; --output and --load require a single run",
        ),
        (["learn", "blog", "oracle", "--output", "a.toml"], "'a.toml' ends in '.toml'"),
        (["learn", "blog", "oracle", "--plot", "a.gif"], "'a.gif' ends in '.gif'"),
        (["learn", "blog", "--load", "gone.json"], "There is no file 'gone.json'"),
        (["learn", "blog", "frozen:category=golf"], "There is no category 'golf'"),
        (["study", "gone.toml"], "There is no file 'gone.toml'"),
        (["study", "gone"], "'gone' has no suffix; expected one of .toml, .json"),
    ],
)
def test_invalid_input_prints_one_message_and_exits_with_code_2(arguments, sentence):
    done = call(*arguments)
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.output
    assert done.stdout == ""


def test_interrupted_study_reports_how_to_resume(tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    (tmp_path / "trial.toml").write_text(STUDY)
    monkeypatch.setattr("departing.studies.runner.run_study", interrupted)
    done = call("study", tmp_path / "trial.toml", "--output", "somewhere")
    assert done.exit_code == 130
    assert done.stderr.strip() == (
        "Interrupted. Finished runs are kept in 'somewhere'; run the same command to resume."
    )


def test_internal_errors_are_not_hidden(tmp_path, monkeypatch):
    def broken(*arguments, **options):
        raise SystemError("a bug")

    (tmp_path / "trial.toml").write_text(STUDY)
    monkeypatch.setattr("departing.studies.runner.run_study", broken)
    assert isinstance(call("study", tmp_path / "trial.toml", "--output", "somewhere").exception, SystemError)


def test_the_changes_of_a_site_are_reported(tmp_path):
    before = dp.Instance([0.5, 0.5], [[0.8, 0.7], [0.2, 0.1]], 0.5, categories=["news", "sport"])
    after = before.replace(click=before.click[::-1])
    dp.NonStationaryInstance.jump(before, after, at=2_000).save(tmp_path / "site.toml")
    learn = ("learn", tmp_path / "site.toml", "bayes:types=2,growth=0.5,change_detection=true", "--users", "4000")
    printed = " ".join(output(*learn, "--plot", tmp_path / "a.svg").split())
    assert "The site changes after 2,000 users. Changes detected by the learner: after " in printed
    assert "share of fixed loss" not in printed
    assert "to the power" not in printed
    values = json_output(*learn)
    assert values["slope"] is None
    assert [1_900 <= change < 2_800 for change in values["detected_changes"][0]] == [True]
    plain = json_output("learn", "blog", "bayes:growth=0.5", "--users", "200")
    assert "detected_changes" not in plain
    assert "growth is 20; expected" in call("learn", "blog", "bayes:growth=20").stderr
