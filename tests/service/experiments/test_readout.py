"""Readout and guardrail: which outcomes count, when they are final, and what happens to a treatment that is worse."""

from functools import partial

import duckdb
import pandas as pd
import pytest

import departing as dp
from departing.model.errors import InputError
from departing.service import messages as m
from departing.service.api.latency import Latency
from departing.service.api.metrics import metrics_text
from departing.service.experiments.manager import Experiments
from departing.service.experiments.outcomes import PART
from departing.service.export import write_log
from departing.service.store.connection import read_snapshot
from helpers.experiments import arm, change, metric, readout, start, stored, visits, with_versions
from helpers.services import recommend, run, service

EQUAL = {"news": 0.5, "sports": 0.5, "music": 0.5}
STAY = {"news": 0.8, "sports": 0.8, "music": 0.8}


def send(served, event, clicked, departed=None):
    run(served.feedback([m.Feedback(event, clicked, departed)]))


def sums(experiments, name):
    """Users, sum and sum of squares of both arms, over all stages."""
    outcomes = next(each for each in experiments._outcomes[1] if each.metric == name)
    return sum(outcomes.sums.values())[:, :2].tolist() if outcomes.sums else [[0, 0], [0, 0]]


def gauges(served):
    """The gauges of experiments in the metrics."""
    lines = metrics_text(run(served.totals()), served, Latency([])).splitlines()
    pairs = (line.removeprefix("departing_experiment_").split() for line in lines if line.startswith("departing_exp"))
    return {name: float(value) for name, value in pairs}


def test_clicks_count_within_the_window_and_retention_in_the_return_period_after_it(address):
    """Control users all: window 100 s, return period 50 s."""
    with service(address, explore=0.0, inactive_after=60.0) as served:
        with_versions(served)
        experiments = Experiments(served)
        start(experiments, share=1e-9, window=100.0, return_period=50.0)
        begin = served.clock.time

        def at(seconds):
            served.clock.time = begin + seconds

        first = recommend(served, "ann")
        quiet = recommend(served, "bob")
        at(40)
        send(served, first.event, True)
        send(served, quiet.event, False)
        at(100)
        second = recommend(served, "ann")
        send(served, second.event, True)  # at the end of the window
        third = recommend(served, "ann")
        at(101)
        send(served, third.event, True)  # after it, not counted
        readout(experiments)
        assert sums(experiments, "clicks_per_user") == [[2, 2], [0, 0]]  # final one second after the window
        assert sums(experiments, "retention") == [[0, 0], [0, 0]]
        at(130)
        recommend(served, "ann")  # retained
        at(152)
        recommend(served, "bob")  # returns too late
        readout(experiments)
        assert sums(experiments, "clicks_per_user") == [[2, 2], [0, 0]]
        assert sums(experiments, "retention") == [[2, 1], [0, 0]]
        again = Experiments(served)  # as after a restart: read from the store
        readout(again)
        assert sums(again, "retention") == [[2, 1], [0, 0]]


def test_clicks_of_a_user_who_departs_and_returns_within_the_window_count(address):
    with service(address, explore=0.0) as served:
        with_versions(served)
        experiments = Experiments(served)
        start(experiments, share=1.0, window=100.0)
        for _ in range(3):
            send(served, recommend(served, "ann").event, True, True)
            served.clock.time += 10
        served.clock.time += 200
        recommend(served, "ann")
        served.clock.time += 200
        readout(experiments)
        assert sums(experiments, "clicks_per_user") == [[0, 0], [1, 3]]
        assert stored(served, "SELECT count(*) FROM assignments") == [(4,)]


def test_users_count_in_order_of_arrival_however_they_are_read(tmp_path):
    with service(tmp_path / "s.sqlite", explore=0.0) as served:
        with_versions(served)
        often, once = Experiments(served), Experiments(served)
        start(often, share=0.5, window=10.0, guardrail=False)
        for part in range(3):
            visits(served, [f"u{part} {i}" for i in range(PART // 2)], EQUAL, STAY, seed=part, seconds=0.1)
            readout(often)
        change(often, "ramp", 0.2)
        visits(served, [f"v{i}" for i in range(PART)], EQUAL, STAY, seed=9, seconds=0.1)
        served.clock.time += 100.0
        found, other = readout(often), readout(once)
        for one, two in zip(found.metrics, other.metrics, strict=True):
            assert (one.users, one.treatment, one.control, one.lower, one.upper) == pytest.approx(
                (two.users, two.treatment, two.control, two.lower, two.upper)
            )
        total = 5 * PART // 2
        assert metric(found).users == total
        by_arm = {each.arm: (each.users, each.share) for each in found.arms}
        treated = sum(arm(f"u{part} {i}", 0.5) == "treatment" for part in range(3) for i in range(PART // 2))
        treated += sum(arm(f"v{i}", 0.2) == "treatment" for i in range(PART))
        assert by_arm == {"treatment": (treated, 0.2), "control": (total - treated, 0.8), "holdout": (0, 0.0)}
        assert found.sample_ratio_p_value > 0.01
        assert not found.sample_ratio_mismatch
        assert metric(found).lower < 0 < metric(found).upper
        assert [point.users for point in metric(found).points] == sorted(
            point.users for point in metric(found).points
        )


def test_a_worse_treatment_is_rolled_back_and_active_users_return_to_the_control(address):
    with service(address, explore=0.0) as served:
        with_versions(served)
        experiments = Experiments(served)
        start(experiments, share=0.5, window=10.0)
        active = next(f"active {i}" for i in range(99) if arm(f"active {i}", 0.5) == "treatment")
        visits(served, [f"u{i}" for i in range(700)], EQUAL | {"music": 0.05}, STAY)
        served.clock.time += 20.0
        assert recommend(served, active).version == 2
        run(experiments.check())
        ended = served.rollout.state.experiments[1]
        assert ended.state == "rolled_back"
        assert ended.changes[-1].actor == "guardrail"
        assert "The treatment is worse in clicks per user: -" in ended.changes[-1].reason
        assert recommend(served, active).version == 1
        assert recommend(served, "new").version == 1
        found = readout(experiments)
        assert found.summary.startswith("Rolled back by the guardrail. The treatment is worse in clicks per user: -")
        users = metric(found).users
        visits(served, [f"w{i}" for i in range(50)], EQUAL, STAY)
        assert metric(readout(experiments)).users == users  # users after the end do not count
        run(experiments.check())
        (new,) = [text for text in run(served.check()) if "Experiment" in text]
        assert new.startswith("Experiment 1 was rolled back automatically at ")
        assert new in served.warnings()
        assert gauges(served) == {"running": 0, "share": 0, "sample_ratio_mismatch": 0, "rolled_back": 1}
        with pytest.raises(InputError, match="treatment is 2, which the guardrail rolled back in experiment 1"):
            start(experiments, share=0.25)
        start(experiments, share=0.25, force=True)
        assert run(served.check()) == []
        assert new not in served.warnings()
        assert gauges(served) == {"running": 2, "share": 0.25, "sample_ratio_mismatch": 0, "rolled_back": 0}
        change(experiments, "rollback", number=2)
        assert gauges(served) == {"running": 0, "share": 0, "sample_ratio_mismatch": 0, "rolled_back": 0}


def test_a_treatment_with_worse_retention_is_rolled_back(tmp_path):
    """The treatment has as many clicks per user in the window, but its users leave."""
    with service(tmp_path / "s.sqlite", explore=0.0, inactive_after=50.0) as served:
        with_versions(served)
        experiments = Experiments(served)
        start(experiments, share=0.5, window=10.0)
        users = [f"u{i}" for i in range(400)]
        for user in users:
            recommend(served, user)
        served.clock.time += 20.0
        for i, user in enumerate(users):
            if arm(user, 0.5) == "control" and i % 4:
                recommend(served, user)
        served.clock.time += 60.0
        run(experiments.check())
        assert served.rollout.state.experiments[1].state == "rolled_back"
        assert "worse in retention: -" in served.rollout.state.experiments[1].changes[-1].reason


def test_without_the_guardrail_nothing_is_rolled_back(tmp_path):
    with service(tmp_path / "s.sqlite", explore=0.0) as served:
        with_versions(served)
        experiments = Experiments(served)
        start(experiments, share=0.5, window=10.0, guardrail=False)
        visits(served, [f"u{i}" for i in range(700)], EQUAL | {"music": 0.05}, STAY)
        served.clock.time += 20.0
        run(experiments.check())
        assert served.rollout.state.running is not None
        found = metric(readout(experiments))
        assert found.guardrail_upper < 0
        outcomes = experiments._outcomes[1][0]  # 99 % confidence over both outcomes
        assert found.guardrail_upper == outcomes.difference.interval(10_000, 0.01 / 2)[1]


def test_lost_users_are_a_sample_ratio_mismatch(tmp_path):
    with service(tmp_path / "s.sqlite", explore=0.0) as served:
        with_versions(served)
        experiments = Experiments(served)
        start(experiments, share=0.5)
        for i in range(600):
            if arm(f"u{i}", 0.5) == "control" or i % 3 == 0:
                recommend(served, f"u{i}")
        found = readout(experiments)
        assert found.sample_ratio_mismatch
        assert found.summary.startswith("Sample ratio mismatch: the users per arm do not match the shares")
        assert gauges(served)["sample_ratio_mismatch"] == 0
        run(experiments.check())
        (new,) = [text for text in run(served.check()) if "Experiment" in text]
        assert new.startswith("Experiment 1 has a sample ratio mismatch: ")
        assert new in served.warnings()
        assert gauges(served) == {"running": 1, "share": 0.5, "sample_ratio_mismatch": 1, "rolled_back": 0}
        change(experiments, "stop")
        run(served.check())
        assert new not in served.warnings()
        assert gauges(served)["sample_ratio_mismatch"] == 0


def test_defaults_follow_the_inactivity_period(tmp_path):
    for inactive_after, window, returns in ((1800.0, 1800.0, 1800.0), (14 * 86400.0, 86400.0, 14 * 86400.0)):
        with service(tmp_path / f"{window}.sqlite", inactive_after=inactive_after) as served:
            with_versions(served)
            started = start(Experiments(served))
            assert (started.window, started.return_period) == (window, returns)
    with service(tmp_path / "reported.sqlite") as served:
        with_versions(served)
        started = start(Experiments(served), window=50.0)
        assert (started.window, started.return_period) == (50.0, 50.0)


CLICKING = {"news": 0.5, "sports": 0.4, "music": 0.3}
STAYING = {"news": 0.5, "sports": 0.6, "music": 0.4}


def experiment_log(address, target, users, **options):
    """The log of an experiment: the treatment is music, the control sports or a caller who shows sports mostly."""
    with service(address, **options) as served:
        with_versions(served)
        start(Experiments(served), share=0.3, holdout=0.2, window=10.0, guardrail=False)
        visits(served, [f"u{i}" for i in range(users)], CLICKING, STAYING, shown={"sports": 0.8, "music": 0.2})
        run(served.flush())
        with target.open("wb") as file:
            write_log(partial(read_snapshot, address), "no-click", "parquet", file)


def check_values(rows, *names):
    """Compare the estimates of fixed policies from rows of a log with their values."""
    log = dp.read_log(rows)
    for name in names:
        value, true = dp.off_policy_value(log, dp.Fixed(name), types=1, bootstrap=20), CLICKING[name]
        for estimate in (value.dm, value.pdis, value.dr):
            assert abs(estimate.value - true / (1 - STAYING[name])) < 4 * estimate.stderr
        assert not any("importance weights" in text for text in value.warnings)
    return log


@pytest.mark.parametrize("shadow", [False, True], ids=["versions", "caller"])
def test_the_whole_log_of_an_experiment_feeds_off_policy_evaluation(address, tmp_path, shadow):
    """With exploration, both policies are evaluated on the users of all arms."""
    target = tmp_path / "log.parquet"
    experiment_log(address, target, 800, explore=0.5, shadow=shadow)
    arms = duckdb.sql(f"SELECT DISTINCT arm, experiment FROM '{target}' ORDER BY 1").fetchall()
    assert arms == [("control", 1), ("holdout", 1), ("treatment", 1)]
    assert check_values(target, "music", "sports").users == 800


def test_without_exploration_an_arm_is_evaluated_by_its_own_rows(tmp_path):
    target = tmp_path / "log.parquet"
    experiment_log(tmp_path / "s.sqlite", target, 800, explore=0.0)
    rows = pd.read_parquet(target)
    for arms, name in ((("treatment",), "music"), (("control", "holdout"), "sports")):
        check_values(rows[rows.arm.isin(arms)], name)
    value = dp.off_policy_value(target, dp.Fixed("music"), types=1, bootstrap=20)
    warning = next(text for text in value.warnings if "importance weights" in text)
    assert warning.startswith("The importance weights of the first step average 0.3")


def test_users_are_counted_by_stage_while_a_readout_waits(tmp_path):
    with service(tmp_path / "s.sqlite", explore=0.0) as served:
        with_versions(served)
        experiments = Experiments(served)
        start(experiments, share=0.5, window=10.0)
        visits(served, [f"u{i}" for i in range(150)], EQUAL, STAY)
        served.clock.time += 30.0
        assert (
            "waiting for 100 users per arm whose outcome is final; the smaller arm has"
            in readout(experiments).summary
        )
        change(experiments, "ramp", 0.4)
        visits(served, [f"v{i}" for i in range(180)], EQUAL, STAY)
        served.clock.time += 30.0
        found = metric(readout(experiments))
        smaller = [min(sums[:, 0]) for sums in experiments._outcomes[1][0].sums.values()]
        assert found.stage_users == max(smaller) < 100 < min(found.treatment_users, found.control_users)
        waiting = (
            "100 users per arm whose outcome is final, within one stage (a ramp begins a new one); the smaller arm"
        )
        counted = f"{waiting} of the largest stage"
        assert f"waiting for {counted} has {found.stage_users}." in readout(experiments).summary
        change(experiments, "stop")
        assert f"no result, which takes {counted} had {found.stage_users}." in readout(experiments).summary
