"""Detection of drift: its false-alarm rate, its delay, and the monitor of a store."""

import random
from math import comb, exp, log

import numpy as np
import pytest
from scipy.special import beta

from departing.service import messages as m
from departing.service.api.latency import Latency
from departing.service.api.metrics import metrics_text
from departing.service.dashboard import DashboardReader
from departing.service.drift import FirstOutcomes, _evidence, find_change
from departing.service.drift_monitor import DriftMonitor, first_outcomes, outside_gaps
from helpers.services import recommend, run, service


def outcomes(click, depart, category, stratum=None):
    """First outcomes of users with these probabilities, one per user."""
    rng, n = np.random.default_rng(len(click)), len(click)
    stratum = np.zeros(n, int) if stratum is None else stratum
    return FirstOutcomes(np.arange(float(n)), category, stratum, rng.random(n) < click, rng.random(n) < depart)


def test_the_evidence_is_the_likelihood_ratio_of_its_definition():
    values, grid = np.array([True, True, False, True, False, False, False]), np.array([3, 5])

    def mixture(part):
        n, x = len(part), sum(part)
        return beta(x + 0.5, n - x + 0.5) / beta(0.5, 0.5)

    expected = sum(mixture(values[:k]) * mixture(values[k:]) / (j * (j + 1)) for j, k in ((1, 3), (2, 5)))
    expected = (expected + mixture(values) / 3) / ((3 / 7) ** 3 * (4 / 7) ** 4)
    total, position = _evidence(np.arange(7), np.zeros(7, int), values, grid)
    assert total == pytest.approx(log(expected))
    assert position == 0


def test_the_evidence_is_an_e_value_whatever_the_probability():
    grid = np.array([2, 4, 6])
    for p in (0.1, 0.5, 0.9):
        mean = 0.0
        for code in range(2**8):
            values = np.array([bool(code >> i & 1) for i in range(8)])
            total, _ = _evidence(np.arange(8), np.zeros(8, int), values, grid)
            mean += exp(total) * p ** values.sum() * (1 - p) ** (8 - values.sum())
        assert mean <= 1 + 1e-12
    assert comb(8, 4) == 70


@pytest.mark.slow
def test_false_alarms_are_rare_also_while_a_learner_changes_what_is_shown():
    alarms, runs = 0, 60
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        p, n = np.array([0.5, 0.45, 0.2]), 2000
        shown, clicked, sums, counts = np.zeros(n, int), np.zeros(n, bool), np.ones(3), np.full(3, 2.0)
        for i in range(n):
            shown[i] = np.argmax(rng.beta(sums, counts - sums)) if rng.random() > 0.05 else rng.integers(3)
            clicked[i] = rng.random() < p[shown[i]]
            counts[shown[i]] += 1
            sums[shown[i]] += clicked[i]
        departed = rng.random(n) < 0.3
        time = np.arange(float(n))
        looks = (
            FirstOutcomes(*(each[:k] for each in (time, shown, 0 * shown, clicked, departed)))
            for k in range(500, n + 1, 500)
        )
        alarms += any(find_change(look) is not None for look in looks)
    assert alarms <= 4  # more have a probability of 0.0004 at a rate of 1 %


def test_a_jump_is_found_and_told_where():
    n = 4000
    rng = np.random.default_rng(1)
    category = rng.integers(3, size=n)
    click = np.where((category == 1) & (np.arange(n) >= 3000), 0.2, 0.5)
    change = find_change(outcomes(click, 0.3, category))
    assert (change.category, change.outcome) == (1, "click")
    assert abs(change.since - 3000) < 150
    assert (change.before, change.after) == (pytest.approx(0.5, abs=0.06), pytest.approx(0.2, abs=0.08))
    depart = np.where((category == 2) & (np.arange(n) >= 2000), 0.6, 0.3)
    change = find_change(outcomes(np.full(n, 0.5), depart, category))
    assert (change.category, change.outcome) == (2, "departure")


def test_other_shares_of_segments_are_no_drift():
    n = 6000
    rng = np.random.default_rng(2)
    stratum = (rng.random(n) < np.where(np.arange(n) < 3000, 0.1, 0.9)).astype(int)
    click, category = np.where(stratum == 1, 0.7, 0.3), np.zeros(n, int)
    assert find_change(outcomes(click, 0.3, category, stratum)) is None
    assert find_change(outcomes(click, 0.3, category)) is not None  # without segments the rate changes


def visits(served, n, click):
    rng = random.Random(n)

    async def calls():
        for _ in range(n):
            served.clock.time += 1.0
            shown = await served.recommend(m.RecommendRequest(f"{served.clock.time}"))
            clicked = rng.random() < click[shown.category]
            await served.feedback([m.Feedback(shown.event, clicked, not clicked)])
        await served.flush()

    run(calls())


def look(monitor):
    """Look again, also if it is too early or too few users have come."""
    monitor._next_look, monitor._seen = 0.0, 0
    run(monitor.check())


def test_a_store_is_monitored(address, caplog):
    before = {"news": 0.2, "sports": 0.8, "music": 0.5}
    with service(address, inactive_after=5.0) as served:
        monitor = DriftMonitor(served)
        served.rollout.state.current.created = 0.0
        visits(served, 500, before)
        look(monitor)
        assert served.drift == []
        changed = served.clock.time
        visits(served, 500, before | {"sports": 0.1})
        look(monitor)
        [drift] = served.drift
        assert (drift.category, drift.outcome) == ("sports", "click")
        assert abs(drift.since - changed) < 40
        assert "drift_detected" in caplog.messages
        look(monitor)  # the next detection starts from here
        other = DriftMonitor(served)
        run(other.check())
        assert len(served.drift) == 1
        assert any("Drift: the click rate of 'sports'" in text for text in served.warnings())
        assert run(DashboardReader(served).read()).drift == [drift]
        lines = metrics_text(run(served.totals()), served, Latency([])).splitlines()
        assert "departing_drift_detections_total 1" in lines
        assert f"departing_drift_latest_detection_timestamp_seconds {round(drift.time, 3)}" in lines
    with service(address, inactive_after=5.0) as served:
        run(DriftMonitor(served).check())
        assert served.drift == [drift]


WINDOW = 3600.0


def arrive(served, start, end):
    """Stationary users, one every 10 seconds; 70 % come back after 20 minutes, unless the service is down by then."""
    rng = random.Random(start)
    times = np.arange(start, end, 10.0).tolist()
    back = [(time + 1200.0, time) for time in times if rng.random() < 0.7]
    events = sorted([(time, time) for time in times] + [each for each in back if each[0] < end])

    async def calls():
        for i, (served.clock.time, user) in enumerate(events):
            shown = await served.recommend(m.RecommendRequest(f"{user}"))
            await served.feedback([m.Feedback(shown.event, rng.random() < 0.5, False)])
            if i % 5 == 0:
                await served.sweep()
        await served.sweep()
        await served.flush()

    run(calls())


@pytest.mark.parametrize("listed", [1000, 1])
def test_downtime_is_no_drift(tmp_path, monkeypatch, listed):
    """Nobody can come back while the service is down."""
    for module in ("uptime", "drift_monitor"):
        monkeypatch.setattr(f"departing.service.{module}.MAX_GAPS", listed)
    with service(str(tmp_path / "s.sqlite"), inactive_after=WINDOW) as served:
        start = served.clock.time
        run(served.store.transaction(lambda tx: served.uptime.start(tx, start, True)))
        monitor, ends = DriftMonitor(served), []
        served.rollout.state.current.created = 0.0
        for seconds in (8000.0, 600.0):  # of which one list of gaps keeps the second only
            arrive(served, start, start + seconds)
            ends.append(served.clock.time)
            start = served.clock.time = served.clock.time + 2 * WINDOW
            look(monitor)  # the gap is not recorded yet
            assert served.drift == []
            run(served.sweep())
            run(served.flush())
            look(monitor)
            assert served.drift == []
            with served.store.read() as snapshot:
                found = first_outcomes(snapshot, 0, 1, 10**6, 0.0, start - WINDOW, WINDOW)
            assert find_change(found).outcome == "departure"  # with the users around the outages
        assert [gap[0] for gap in served.uptime._gaps] == pytest.approx(ends[-listed:], abs=60.0)


def test_users_whose_window_overlaps_a_gap_do_not_count():
    data = FirstOutcomes(*(np.array([0.0, 9.0, 10.0, 11.0, 19.0, 20.0, 25.0]) for _ in range(5)))
    assert outside_gaps(data, [(20.0, 25.0)], 10.0).time.tolist() == [0.0, 9.0, 10.0, 25.0]
    assert outside_gaps(data, [], 10.0).time.tolist() == data.time.tolist()


def test_the_choices_of_the_caller_do_not_count(tmp_path):
    with service(str(tmp_path / "s.sqlite"), shadow=True, inactive_after=5.0) as served:

        async def calls():
            for i in range(400):
                served.clock.time += 1.0
                shown = await served.recommend(m.RecommendRequest(f"u{i}", shown="news"))
                await served.feedback([m.Feedback(shown.event, i < 200)])
            await served.flush()

        run(calls())
        look(DriftMonitor(served))
        assert served.drift == []
        assert recommend(served, "ann", shown="news").category == "news"
