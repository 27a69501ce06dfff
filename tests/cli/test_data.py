"""The commands sample-log, fit and ope, called as a user does."""

import json

import pytest

import departing as dp
from departing.model.examples import magazine
from helpers.commands import call, json_output, output


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("site") / "events.parquet"
    text = output("sample-log", "magazine", "--users", "2e4", "--days", "60", "--seed", "1", "-o", path)
    assert "of 20,000 users" in text
    return path


@pytest.mark.slow
def test_fit_prints_types_standard_errors_and_gains(log, tmp_path):
    printed = output(
        "fit", log, "--inactive-after", "14 days", "--types", "2-3", "--bootstrap", 20,
        "-o", tmp_path / "fitted.toml", "--plot", tmp_path / "fit.svg",
    )  # fmt: skip
    for phrase in ("Number of types", "love news", "±", "No evidence of misfit", "policy of the log", "fitted.toml"):
        assert phrase in printed
    result = dp.Instance.load(tmp_path / "fitted.toml")
    assert result.categories == ("music", "news", "sport")
    assert result.n_types == 3
    assert (tmp_path / "fit.svg").read_text().startswith("<?xml")


def test_fit_as_json(log, tmp_path):
    result = json_output("fit", log, "--inactive-after", "14 days", "--types", "3", "--bootstrap", 20)
    assert result["types"] == 3
    assert [row["types"] for row in result["criteria"]] == [3]
    assert 0 <= result["check"]["p_value"] <= 1
    names = [row["name"] for row in result["values"]]
    assert names[:2] == ["recommended policy", "policy of the log"]
    assert names[3] == "greedy"
    for row in (*result["values"], *result["gains"]):
        assert row["lower"] <= row["value"] <= row["upper"]
    assert [row["name"] for row in result["gains"]] == names[1:]
    assert sum(row["probability"] for row in result["first"]) == pytest.approx(1)
    assert 0 < result["expected_loss"] < 1
    assert result["recommended_policy"].startswith(f"start with {result['first'][0]['category']}")
    assert dp.Instance(**result["instance"]).n_categories == 3
    low, high = result["intervals"]["click"]
    assert all(a < b for row, other in zip(low, high, strict=True) for a, b in zip(row, other, strict=True))


def test_csv_with_other_column_names_and_departures(tmp_path):
    path = tmp_path / "clicks.csv"
    rows = ["who,when,what,hit,left"]
    for user in range(60):
        rows += [f"u{user},1,news,1,no", f"u{user},2,film,{user % 2},{'yes' if user % 3 else 'no'}"]
    path.write_text("\n".join([*rows, "u7,9,news,perhaps,no"]))
    result = json_output(
        "fit", path, "--user", "who", "--time", "when", "--category", "what", "--clicked", "hit",
        "--departed", "left", "--types", "1", "--bootstrap", "0", "--rejects", tmp_path / "bad.csv",
    )  # fmt: skip
    assert (result["users"], result["censored"]) == (60, 20)
    assert (result["log"]["events"], result["log"]["rejected"]) == (121, 1)
    assert result["log"]["irregularities"][0]["kind"] == "clicked cannot be parsed"
    assert "perhaps" in (tmp_path / "bad.csv").read_text()


def test_sample_log_as_json(tmp_path):
    result = json_output("sample-log", "blog", "--users", "100", "-o", tmp_path / "a.csv")
    assert result["users"] == 100
    assert len((tmp_path / "a.csv").read_text().splitlines()) == result["events"] + 1


@pytest.mark.parametrize("none", ["none", "inf"])
def test_no_half_life(log, none):
    options = "fit", log, "--inactive-after", "14 days", "--types", "1", "--bootstrap", 0
    assert json_output(*options, "--half-life", none) == json_output(*options)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--types", "0"], "Error: --types is '0'; expected numbers from 1 to 64"),
        (["--types", "3-1"], "--types is '3-1'"),
        (["--types", "many"], "--types is 'many'; expected numbers from 1 to 64"),
        (["--bootstrap", "3"], "Error: --bootstrap is 3; expected an integer ≥ 20"),
        (["--inactive-after", "300 days"], "the log must be longer than --inactive-after"),
        (["--user", "time"], "is named for two of"),
        (["--clicked", "clickd"], "clicked"),
        (["--inactive-after", "a while"], "--inactive-after is 'a while'; expected a duration such as '14 days'"),
        (
            ["--half-life", "0 days"],
            "--half-life is '0 days'; expected a duration such as '14 days' or '30 minutes' (",
        ),
        (["--half-life", "0 days"], "more than 0)"),
        (["--criterion", "best"], "--criterion is 'best'; expected one of sabic, bic, held-out"),
        (["-o", "fitted.txt"], "expected one of"),
        (["--plot", "fitted.txt"], "expected one of"),
        (["--sure-departure"], "but users stayed after"),
        (["--categories", "news,news"], "--categories has the name 'news' twice"),
        (["--memory-limit", "1 kB"], "--memory-limit is '1 kB'; expected a size of at least '100 MB'"),
    ],
)
def test_invalid_input_of_fit_prints_one_message(log, arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    usual = {"--types": "1", "--inactive-after": "14 days"}
    done = call(
        "fit", log, *(each for pair in usual.items() if pair[0] not in arguments for each in pair), *arguments
    )
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_log_without_departures_requires_an_inactivity_period(log):
    done = call("fit", log)
    assert done.exit_code == 2
    assert "by --inactive-after='auto', or state one, such as --inactive-after='5 days'" in done.stderr


def test_unselected_categories_still_show_that_users_were_active(log):
    arguments = ["fit", log, "--inactive-after", "14 days", "--types", "1", "--bootstrap", "0"]
    arguments += ["--categories", "news,sport", "--max-rejected", "0.5"]
    result = json_output(*arguments)
    kinds = {each["kind"]: each["count"] for each in result["log"]["irregularities"]}
    assert kinds["category is not in `categories`"] == result["log"]["rejected"] > 0
    assert 0 < kinds["rejected row after the user's last event"] < result["log"]["censored"]
    assert result["instance"]["categories"] == ["news", "sport"]


def test_ope_estimates_the_value_of_policies(log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a long name would be wrapped
    chosen = ["fixed:news", "greedy", "walk.toml"]
    dp.Walk([1], then=0).save("walk.toml")
    options = ["--inactive-after", "14 days", "--types", "3", "--bootstrap", 20]
    printed = output("ope", log, *chosen, *options)
    for phrase in (
        "20,000 users",
        "Clicks per user of always news",
        "of greedy",
        "walk.toml",
        "doubly robust",
        "ESS",
    ):
        assert phrase in printed
    result = json_output("ope", log, *chosen, *options)
    assert result["log"]["users"] == 20000
    assert [each["policy"].split(":")[0] for each in result["policies"]] == [
        "always news", "greedy", "walk.toml"
    ]  # fmt: skip
    for each in result["policies"]:
        robust = each["estimates"]["dr"]
        assert robust["lower"] < robust["value"] < robust["upper"]
    truth = dp.evaluate(magazine(), dp.Fixed(0)).value
    model = result["policies"][0]["estimates"]["dm"]
    assert abs(model["value"] - truth) < 5 * model["stderr"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fixed:film"], "film"),
        (["nonsense"], "There is no policy 'nonsense'"),
        (["greedy", "--confidence", "2"], "--confidence is 2"),
        (["greedy", "--bootstrap", "1"], "--bootstrap is 1; expected an integer ≥ 20"),
        (["greedy", "--propensity", "probability"], "There is no column 'probability'"),
    ],
)
def test_invalid_input_of_ope_prints_one_message(log, arguments, sentence):
    done = call("ope", log, "--types", "1", "--inactive-after", "14 days", *arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_json_is_one_object(log):
    assert json.loads(output("fit", log, "--inactive-after", "14 days", "--types", "1", "--bootstrap", "0", "--json"))
