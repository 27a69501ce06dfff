"""Shadow mode: agreement with the caller, and the estimated gain."""

import asyncio
from unittest.mock import AsyncMock

import numpy as np
import pandas as pd
import pytest

import departing as dp
from departing.model.examples import magazine
from departing.policy.files import policy_to_dict
from departing.service import messages as m
from departing.service.clock import Clock
from departing.service.workers import shadow
from departing.service.workers.process import Helper
from departing.service.workers.shadow import (
    AGAIN,
    ESTIMATING,
    FAILED,
    REWARDED,
    GainEstimate,
    GainRequest,
    ShadowReporter,
    estimate_gain,
)
from helpers.services import recommend, run, service


def test_shadow_mode_is_stored_and_turned_off_by_one_call(address):
    with service(address, instance=magazine(), shadow=True) as served:
        recommend(served, "ann", shown="news", propensity=0.5)
        assert recommend(served, "bob", shown="music").shadow_category == "music"
        report = run(ShadowReporter(served).report())
        assert (report.decisions, report.match_rate) == (2, 0.5)
        assert "200 users" in report.note
        run(served.set_shadow(False))
        recommend(served, "carl")
        assert run(ShadowReporter(served).report()).decisions == 2  # those of the caller only
    with service(address, names=[], shadow=True) as served:
        assert not served.rollout.state.shadow
        assert recommend(served, "eve").category == "music"


@pytest.mark.parametrize(
    ("responds", "note"),
    [
        ({"side_effect": dp.InputError("too few users.")}, "The gain cannot be estimated: too few users."),
        ({"return_value": None}, "The gain could not be estimated; see the log of the service."),
    ],
)
def test_a_gain_that_cannot_be_estimated_is_explained(tmp_path, monkeypatch, responds, note):
    monkeypatch.setattr(Helper, "request", AsyncMock(**responds))
    with service(tmp_path / "s.sqlite", instance=magazine(), shadow=True) as served:
        reporter = ShadowReporter(served)
        run(reporter._update())
        assert reporter._estimate == GainEstimate(note=note)


def test_there_is_no_gain_in_clicks_where_clicks_have_rewards(tmp_path):
    paid = magazine().replace(reward=[1.0, 2.0, 3.0])
    with service(tmp_path / "s.sqlite", instance=paid, shadow=True) as served:
        reporter = ShadowReporter(served)
        run(reporter._update())
        assert reporter._estimate == GainEstimate(note=REWARDED)
    with service(tmp_path / "t.sqlite", instance=magazine(), shadow=True) as served:
        shown = recommend(served, "ann", shown="news")
        run(served.feedback([m.Feedback(shown.event, True, True, 2.0)]))
        reporter = ShadowReporter(served)
        run(reporter._update())
        assert reporter._estimate == GainEstimate(note=REWARDED)


def test_an_invalid_response_is_logged_and_explained(tmp_path, monkeypatch, caplog):
    helper = Helper(("-c", "input(); print('a warning')"), GainEstimate)
    monkeypatch.setattr(shadow, "Helper", lambda *arguments: helper)
    with service(tmp_path / "s.sqlite", instance=magazine(), shadow=True) as served, caplog.at_level("INFO"):
        reporter = ShadowReporter(served)
        run(reporter._update())
        assert reporter._estimate == GainEstimate(note=FAILED)
    assert "invalid_response" in caplog.text
    assert helper.process is None


@pytest.mark.slow
def test_the_gain_over_a_uniform_caller_is_covered_by_its_interval(address, tmp_path):
    site, rng = dp.Instance([0.6, 0.4], [[0.6, 0.1], [0.1, 0.5]], 0.8), np.random.default_rng(2)
    with service(address, instance=site, shadow=True) as served:
        served.clock = Clock()  # the log is ordered by time

        async def visit(name):
            user_type, outcome = rng.choice(2, p=site.prior), 0
            while outcome < 2:
                category = int(rng.integers(2))
                shown = await served.recommend(
                    m.RecommendRequest(name, shown=site.categories[category], propensity=0.5)
                )
                outcome = rng.choice(4, p=site.outcome_probabilities[category, :, user_type])
                await served.feedback([m.Feedback(shown.event, bool(outcome in (0, 3)), bool(outcome >= 2))])

        async def visits():
            await asyncio.gather(*(visit(f"u{i}") for i in range(1500)))

        run(visits())
        policy = policy_to_dict(served.rollout.state.current.policy)
        request = GainRequest(str(address), list(site.categories), "no-click", policy, str(tmp_path))
        estimate = estimate_gain(request)
        true = dp.plan(site).value - uniform_value(site)
        assert estimate.gain.users == 1500
        assert estimate.gain.lower < true < estimate.gain.upper
        assert estimate.gain.lower > 0
        request.categories.append("golf")
        with pytest.raises(dp.InputError, match="counts have 3 categories"):
            estimate_gain(request)


def uniform_value(site):
    """Expected clicks of a user under the uniform policy, by the linear equation of each type."""
    click = site.outcome_probabilities[:, [0, 3]].sum(axis=1).mean(axis=0)
    stay = site.outcome_probabilities[:, [0, 1]].sum(axis=1).mean(axis=0)
    return float(site.prior @ (click / (1 - stay)))


@pytest.mark.parametrize(
    ("often", "propensity", "rare"),
    [(0, None, "'news', 'music'"), (40, None, "'news', 'music'"), (40, 0.1, "'news', 'music'"), (130, None, "")],
)
def test_there_is_no_gain_where_the_caller_does_not_overlap_with_the_policy(often, propensity, rare):
    """The caller shows sport, except to `often` users."""
    site, rng, rows = magazine(), np.random.default_rng(1), []
    for user in range(400):
        name = site.categories[[2, 0][user % 2]] if user < 2 * often else "sport"
        category, user_type, outcome, step = site.categories.index(name), rng.choice(3, p=site.prior), 0, 0
        while outcome < 2:
            outcome, step = rng.choice(4, p=site.outcome_probabilities[category, :, user_type]), step + 1
            rows.append((f"u{user}", 1e4 * user + step, name, outcome in (0, 3), outcome >= 2, propensity))
    columns = dict(
        zip(("user", "time", "category", "clicked", "departed", "propensity"), zip(*rows, strict=True), strict=True)
    )
    log = dp.read_log(pd.DataFrame(columns).astype({"propensity": float}), categories=site.categories, max_rejected=1)
    estimate = shadow._gain(log, dp.plan(site).policy)
    assert (estimate.gain is None) == bool(rare)
    assert estimate.note.startswith(f"No gain: the policy recommends {rare}, which the caller never or rar") == bool(
        rare
    )
    assert ("in an experiment, which rolls it back" in estimate.note) == bool(rare)


def test_the_note_stays_with_the_gain_while_it_is_estimated_again(tmp_path, monkeypatch):
    monkeypatch.setattr(shadow, "MIN_DEPARTED", 0)
    with service(tmp_path / "s.sqlite", instance=magazine(), shadow=True) as served:

        async def reports():
            reporter, release = ShadowReporter(served), asyncio.Event()
            reporter._update = release.wait
            notes = [(await reporter.report()).note]
            release.set()
            await reporter._task
            release.clear()
            reporter._estimate, reporter._departed = (
                GainEstimate(m.Gain(2.0, 1.0, 1.0, 0.5, 1.5, 300), "A warning."),
                -1,
            )
            notes.append((await reporter.report()).note)
            await reporter.close()
            return notes

        assert run(reports()) == [ESTIMATING, f"A warning. {AGAIN}"]


def test_no_gain_is_estimated_for_a_policy_by_segment(tmp_path):
    policy = dp.BySegment({"mobile": dp.Fixed(1)}, default=dp.Fixed(0))
    request = GainRequest("no store", ["news", "sport"], "no-click", policy_to_dict(policy), str(tmp_path))
    assert "depends on the segment" in estimate_gain(request).note
