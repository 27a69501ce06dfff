"""Commands on an instance with rewards, a horizon and segments."""

import pytest

import departing as dp
from helpers.commands import json_output, output

DEVICES = dp.Segments(["mobile", "desktop"], share=[0.75, 0.25], prior=[[0.8, 0.2], [0.4, 0.6]], columns=["device"])


@pytest.fixture
def file(tmp_path):
    shop = dp.Instance(
        None,
        [[0.5, 0.28], [0.4, 0.39]],
        0.5,
        categories=["news", "sport"],
        reward=[1.0, 10.0],
        unit="euro",
        horizon=7,
        segments=DEVICES,
    )
    shop.save(tmp_path / "shop.toml")
    return tmp_path / "shop.toml"


def test_evaluate_prints_values_in_the_unit_and_by_segment(file):
    text = output("evaluate", file, "fixed:sport", "greedy", "--distribution")
    assert "Expected euro per user" in text
    assert "By segment" in text
    assert "mobile" in text
    rows = json_output("evaluate", file, "fixed:sport")["policies"]
    value = dp.evaluate(dp.Instance.load(file), dp.Fixed(1))
    assert rows[0]["unit"] == "euro"
    assert rows[0]["lower"] == value.lower
    assert rows[0]["by_segment"]["desktop"]["upper"] == value.by_segment["desktop"].upper


def test_policies_of_equal_value_have_no_loss(file):
    text = output("evaluate", file, "fixed:sport", "fixed:1", "fixed:news")
    assert "undecided" not in text
    assert "best" in text
    assert "none" in text


def test_the_plan_of_segments_describes_them_first(file):
    plan = dp.plan(dp.Instance.load(file))
    assert " ".join(output("plan", file).split()).startswith(" ".join(plan.describe().split()))


def test_the_sensitivity_of_a_plan_names_the_segments_that_change(tmp_path):
    site = dp.Instance(
        None,
        [[0.5, 0.2], [0.3, 0.6]],
        0.5,
        categories=["news", "sport"],
        segments=dp.Segments(["close", "clear"], [0.2, 0.8], [[0.54, 0.46], [0.0, 1.0]]),
    )
    site.save(tmp_path / "site.toml")
    text = output("plan", tmp_path / "site.toml", "--sensitivity", 0.2)
    assert "in close" in " ".join(text.split())
    values = json_output("plan", tmp_path / "site.toml", "--sensitivity", 0.2)["sensitivity"]
    assert set(values["by_segment"]) == {"close", "clear"}
    assert values["shifts"][0]["by_segment"].keys() == values["by_segment"].keys()


def test_learning_states_the_unit_in_json(file):
    assert json_output("learn", file, "bayes", "--users", 50)["unit"] == "euro"


def test_simulate_prints_and_logs_rewards(file, tmp_path):
    text = output("simulate", file, "greedy", "--users", "2e4")
    assert "euro per user" in text
    values = json_output("simulate", file, "fixed:sport", "--users", "3000", "--log", tmp_path / "log.csv")
    assert values["unit"] == "euro"
    assert values["reward"] == pytest.approx(3000 * values["mean"])
    assert (tmp_path / "log.csv").read_text().startswith("user,time,device,category,clicked,departed,reward\n")
    compared = json_output("simulate", file, "fixed:sport", "--against", "greedy", "--users", "5000")
    assert compared["unit"] == "euro"
    assert "Euro per user on the same" in output("simulate", file, "greedy", "--against", "greedy", "--users", "500")


def test_the_log_of_the_shop_is_written(tmp_path):
    values = json_output("sample-log", "shop", "-o", tmp_path / "shop.csv", "--users", "2e3")
    assert values["users"] == 2000
    head = (tmp_path / "shop.csv").read_text().splitlines()[0]
    assert head == "user,country,device,ts,category,clicked,revenue,propensity"


def test_off_policy_evaluation_of_the_shop_is_in_its_unit_and_by_segment(tmp_path):
    output("sample-log", "shop", "-o", tmp_path / "shop.csv", "--users", "3e3", "--days", "900")
    options = ["--segment", "country,device", "--time", "ts", "--reward", "revenue", "--unit", "euro"]
    options += ["--inactive-after", "20 days", "--types", 2, "--bootstrap", 20, "--horizon", 2]
    text = output("ope", tmp_path / "shop.csv", "fixed:fashion", *options)
    assert "Euro per user of always fashion" in text
    assert "by segment" in text
    assert "policy of the log" not in text  # it is not cut after two recommendations
    document = json_output("ope", tmp_path / "shop.csv", "fixed:fashion", *options[:-2])
    assert document["log_value"] > 1.5 * document["log_clicks"]  # a click is worth more than a euro
    document = json_output("ope", tmp_path / "shop.csv", "fixed:fashion", *options)
    assert document["log_value"] is None
    values = document["policies"][0]
    assert values["unit"] == "euro"
    assert set(values["by_segment"]) == {"de/mobile", "de/desktop", "fr/mobile", "fr/desktop"}
    assert values["by_segment"]["de/mobile"]["users"] > 900
    assert set(values["estimates"]) == {"dm", "pdis", "dr"}


def test_the_horizon_of_a_log_is_that_of_its_fit_plan_and_value(tmp_path):
    site = dp.Instance([0.6, 0.4], [[0.8, 0.3], [0.3, 0.7]], 0.4, categories=["film", "news"], horizon=4)
    site.save(tmp_path / "site.toml")
    log, fitted, policy = (tmp_path / name for name in ("log.csv", "fitted.toml", "policy.toml"))
    output("sample-log", tmp_path / "site.toml", "-o", log, "--users", "3e3")
    reading = ["--inactive-after", "14 days", "--horizon", 4]
    options = ["--types", 2, "--bootstrap", 20]
    text = output("fit", log, *reading, *options, "-o", fitted, "--policy", policy)
    assert "still active" not in text
    assert dp.Instance.load(fitted).horizon == 4
    assert json_output("plan", fitted)["horizon"] == 4
    estimates = json_output("ope", log, policy, *reading, *options)["policies"][0]["estimates"]
    assert estimates["dm"]["value"] == pytest.approx(dp.evaluate(site, dp.load_policy(policy)).value, rel=0.1)
    text = output("report", log, *reading, *options, "-o", tmp_path / "page.html")
    assert "--horizon 4" in (tmp_path / "page.html").read_text()
    output("assign", log, "--fit", fitted, *reading, "-o", tmp_path / "users.csv")
