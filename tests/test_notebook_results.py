"""Results in a notebook: HTML, data frames, figures and printed summaries."""

import re

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

import departing as dp

NAME = "<script>alert(1)</script> & более"
SITE = dp.Instance([0.6, 0.4], [[0.8, 0.3], [0.3, 0.7]], [[0.4, 0.2], [0.3, 0.6]], categories=[NAME, "music"])


@pytest.fixture(scope="module")
def results():
    sample = dp.sample_log(SITE, users=800, seed=4)
    fit = dp.fit(sample.to_frame(), 2, inactive_after="12 days")
    found = [SITE, sample, sample.histories, fit.histories, fit, fit.check(), dp.plan(fit.instance)]
    found += [dp.plan(fit, bootstrap=20), fit.histories.report, dp.suggest_inactivity(sample.to_frame())]
    found += [
        dp.evaluate(SITE, "greedy"),
        dp.simulate(SITE, "greedy", 500),
        dp.compare(SITE, "greedy", "fixed:music", 500),
    ]
    found.append(dp.regret_bound(SITE, 100))
    found.append(dp.off_policy_value(fit.histories, "greedy", fit=fit, bootstrap=20))
    return {type(each).__name__: each for each in found}


NAMES = ["Instance", "SampleLog", "Histories", "Log", "Fit", "FitCheck", "Plan", "Evaluation", "Run", "Comparison"]
NAMES += ["RegretBound", "OffPolicyValue", "Decision", "LogReport", "ReturnTimes"]


@pytest.mark.parametrize("name", NAMES)
def test_html_is_short_and_safe(results, name):
    text = results[name]._repr_html_()
    assert text.count("<tr>") <= 12
    assert "<script" not in text
    assert len(text) < 5000
    inner = re.sub(r"<style>.*?</style>", "", text)
    assert set(re.findall(r"<(\w+)", inner)) <= {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td"}
    for tag in ("div", "p", "table", "tr", "td", "th"):
        assert len(re.findall(rf"<{tag}[ >]", inner)) == inner.count(f"</{tag}>")


@pytest.mark.parametrize(
    ("name", "columns", "rows"),
    [
        ("Instance", "type share category click depart depart_on_click", 4),
        ("SampleLog", "user time category clicked propensity", None),
        ("Histories", "category shown clicks departures", 2),
        ("Log", "category shown clicks departures", 2),
        ("FitCheck", "family response group n observed expected z", None),
        ("Plan", "policy lower upper loss", 3),
        ("Evaluation", "type share value lower upper", 2),
        ("Run", "clicks users", None),
        ("Comparison", "users first second difference stderr unpaired_stderr lower upper", 1),
        ("OffPolicyValue", "estimator value stderr lower upper ess", 3),
        ("LogReport", "kind decision count rejected example", None),
        ("ReturnTimes", "period returning_later", None),
        ("Decision", "policy value lower upper gain gain_lower gain_upper", 4),
    ],
)
def test_frames(results, name, columns, rows):
    frame = results[name].to_frame()
    assert list(frame.columns) == columns.split()
    assert rows is None or len(frame) == rows


def test_frames_contain_the_results(results):
    fit, log, run = results["Fit"], results["Log"], results["Run"]
    frame = fit.to_frame(0.9)
    lower, upper = fit.intervals(0.9)
    for field in ("click", "depart"):
        assert np.array_equal(frame[field], getattr(fit.instance, field).T.ravel())
        assert np.array_equal(frame[f"{field}_lower"], getattr(lower, field).T.ravel())
        assert np.array_equal(frame[f"{field}_upper"], getattr(upper, field).T.ravel())
    assert ((frame["share_lower"] < frame["share"]) & (frame["share"] < frame["share_upper"])).all()
    assert log.to_frame()["shown"].sum() == log.report.used
    assert log.to_frame()["departures"].sum() == log.report.departed
    assert (run.to_frame()["clicks"] * run.to_frame()["users"]).sum() == run.clicks
    assert run.regret_curve.to_frame()["users"].tolist() == [500]


def test_frames_of_sample_logs_are_logs_in_every_library(results):
    sample = results["SampleLog"]
    one, two = dp.read_log(sample.to_frame(), inactive_after="12 days"), pl.DataFrame(sample.columns())
    assert np.array_equal(one.counts, dp.read_log(two, inactive_after="12 days").counts)


@pytest.mark.parametrize("name", [name for name in NAMES[3:] if name not in ("FitCheck", "LogReport")])
def test_plots_are_figures_that_notebooks_display(results, name, tmp_path):
    figure = results[name].plot(tmp_path / "plot.svg")
    assert isinstance(figure, Figure)
    image, size = figure._repr_png_()
    assert image.startswith(b"\x89PNG")
    assert 200 < size["width"] < 1000
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("name", NAMES[3:])
def test_printing_a_result_prints_its_summary(results, name):
    assert str(results[name]) == results[name].summary()


def test_instances_print_three_digits_and_stay_reproducible():
    exact = SITE.replace(click=[[1 / 3, 0.3], [0.3, 2 / 3]])
    assert "0.333 " in str(exact)
    assert eval(repr(exact), {"Instance": dp.Instance}) == exact
    wide = dp.random_instance("uniform", types=2, categories=30, seed=1)
    assert len(str(wide).splitlines()) <= 44
    assert "more" in str(wide)
