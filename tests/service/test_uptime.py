"""Downtime and wrong clocks at the start: no user becomes inactive by them."""

from contextlib import closing, contextmanager

import pytest

import departing as dp
from departing.service import messages as m
from departing.service.service import Settings
from departing.service.startup import open_service
from departing.service.uptime import Uptime
from helpers.services import NAMES, FixedClock, recommend, rows, run, wait_for

DAY = 86400.0
NOW = 1_700_000_000.0
PERIOD = 3600.0


@contextmanager
def started(address, time, **options):
    """A service that starts at a time; users who are inactive for an hour count as departed."""
    clock = FixedClock(time)
    opened = open_service(address, NAMES, None, Settings(inactive_after=PERIOD), seed=1, clock=clock, **options)
    with closing(opened.store):
        yield opened
        run(opened.flush())


def departed(served, *names):
    """Sweep, and return which of the users have departed."""
    run(served.flush())
    run(served.sweep())
    return [run(served.user_state(name)).departed for name in names]


def live(served, until):
    """Let time pass, with sweeps, which write the heartbeat."""
    while served.clock.time < until:
        served.clock.time = min(served.clock.time + 250, until)
        run(served.sweep())
        run(served.flush())


def test_time_before_a_gap_counts_without_it():
    uptime = Uptime()
    uptime._gaps = [(100.0, 200.0), (300.0, 350.0)]
    assert [uptime.cutoff(now, 40.0) for now in (360.0, 389.0, 391.0)] == [270.0, 299.0, 351.0]
    assert uptime.cutoff(360.0, 120.0) == 90.0  # over both gaps


@pytest.mark.parametrize("ahead", [20 * DAY, 400 * DAY])
def test_a_clock_ahead_at_the_start_departs_nobody(address, ahead):
    with started(address, NOW) as served:
        recommend(served, "ann")
        live(served, NOW + 1200)
        recommend(served, "bob")
    start = NOW + 1200 + ahead
    with started(address, start) as served:
        assert departed(served, "ann", "bob") == [False, False]
        assert "the service was down, or the clock is ahead" in served.warnings()[0]
        recommend(served, "eve")
    with started(address, start + 60) as served:  # the gap is remembered
        live(served, start + 2390)
        assert departed(served, "ann", "bob", "eve") == [False, False, False]
        live(served, start + 2410)
        assert departed(served, "ann", "bob", "eve") == [True, False, False]
        live(served, start + 3590)
        assert departed(served, "bob", "eve") == [False, False]
        live(served, start + 3610)
        assert departed(served, "bob", "eve") == [True, True]
        live(served, start + 3710)
        assert served.uptime.cutoff(served.now(), PERIOD) == start + 110  # the gap is over a period ago


def test_the_latest_gaps_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("departing.service.uptime.MAX_GAPS", 3)
    for i in range(6):
        with started(str(tmp_path / "s.sqlite"), NOW + i * DAY) as served:
            gaps = served.uptime._gaps
    assert gaps == [(NOW + i * DAY, NOW + (i + 1) * DAY) for i in (2, 3, 4)]


def test_users_return_after_downtime_as_the_same(address):
    with started(address, NOW) as served:
        event = recommend(served, "ann").event
    with started(address, NOW + 10 * DAY) as served:
        assert run(served.feedback([m.Feedback(event, True)]))[0].accepted
        recommend(served, "ann")
        assert len(run(served.user_state("ann")).history) == 2
        assert "returned_users" not in run(served.totals())


def test_a_short_restart_is_no_downtime(address):
    with started(address, NOW) as served:
        recommend(served, "ann")
    with started(address, NOW + 200) as served:
        assert served.uptime.cutoff(served.now(), PERIOD) == NOW + 200 - PERIOD
        assert not [text for text in served.warnings() if "clock" in text]


def test_a_quiet_service_is_not_down(address):
    with started(address, NOW) as served:
        recommend(served, "ann")
        live(served, NOW + 2000)
    with started(address, NOW + 2100) as served:
        assert served.uptime.cutoff(served.now(), PERIOD) == NOW + 2100 - PERIOD


def test_a_clock_behind_the_store_is_refused(address):
    with started(address, NOW) as served:
        recommend(served, "ann")
    before = rows_of(address)
    with pytest.raises(dp.InputError, match=r"the clock is 20 days behind, .* start with --accept-clock\."):
        started(address, NOW - 20 * DAY).__enter__()
    assert rows_of(address) == before
    with started(address, NOW - 200) as served:  # no more than clocks differ
        assert departed(served, "ann") == [False]


def rows_of(address):
    with started(address, NOW) as served:
        return rows(served, "SELECT value FROM meta WHERE key = 'heartbeat'")


def test_a_clock_that_was_ahead_can_be_set_back(address):
    with started(address, NOW) as served:
        recommend(served, "ann")
    with started(address, NOW + 20 * DAY) as served:
        recommend(served, "bob")
    with started(address, NOW + 60, accept_clock=True) as served:
        recommend(served, "eve")
    with started(address, NOW + 120) as served:  # it was accepted once and for all
        live(served, NOW + PERIOD + 30)
        assert departed(served, "ann", "bob", "eve") == [True, False, False]
        live(served, NOW + PERIOD + 90)
        assert departed(served, "eve", "bob") == [True, False]


def test_stores_without_a_heartbeat_go_by_their_latest_record(address):
    with started(address, NOW) as served:
        recommend(served, "ann")
        run(served.store.transaction(lambda tx: tx.write("DELETE FROM meta WHERE key = 'heartbeat'")))
    with pytest.raises(dp.InputError, match="the clock is 2 days behind"):
        started(address, NOW - 2 * DAY).__enter__()
    with started(address, NOW + 20 * DAY) as served:
        assert departed(served, "ann") == [False]


def test_downtime_of_the_database_is_no_inactivity(postgres):
    address = postgres.new()
    with started(address, NOW) as served:
        recommend(served, "ann")
        served.store._database.abort()  # and it stays away for ten days
        served.clock.time += 10 * DAY
        assert wait_for(served.sweep) == 0
        assert departed(served, "ann") == [False]
