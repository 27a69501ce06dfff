"""Events of a user at the same time: their order is unknown and must not look like the behaviour of users."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import departing as dp
from departing.fitting.goodness_of_fit import Cell, FamilyTest

duckdb = pytest.importorskip("duckdb")
SITE = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.8]], [[0.4, 0.5], [0.5, 0.4]])
SITE_AB = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.8]], [[0.4, 0.5], [0.5, 0.4]], categories=["a", "b"])


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """The same log with full times and with dates only."""
    folder = tmp_path_factory.mktemp("logs")
    dp.sample_log(SITE, users=6000, seed=1, days=60, step_days=1.0).save(folder / "full.parquet")
    duckdb.execute(
        f"COPY (SELECT * REPLACE (date_trunc('day', time) AS time) FROM '{folder}/full.parquet') "
        f"TO '{folder}/dates.parquet'"
    )
    read = {"inactive_after": "10 days", "duplicates": "keep"}
    return [dp.read_log(folder / name, **read) for name in ("full.parquet", "dates.parquet")]


def test_dates_without_a_time_of_day_do_not_look_like_a_misfit(logs):
    full, dates = (dp.fit(log, types=2) for log in logs)
    np.testing.assert_allclose(dates.instance.click, full.instance.click, atol=0.02)
    np.testing.assert_allclose(dates.instance.depart, full.instance.depart, atol=0.05)
    assert dates.instance.depart_on_click.max() < 0.02
    check = dates.check()
    assert check.p_value > 0.001
    assert check.tied == logs[1].report.tied > 0.3
    note = f"{check.tied:.0%} of events share their time with another event of the same user; their order is unknown."
    assert note in logs[1].report.notes
    assert logs[0].report.tied == 0


def test_the_order_of_ties_does_not_depend_on_clicks_or_categories():
    """One click and three equal no-clicks at one time: the click is at each place for a quarter of the users."""
    n = 4000
    rows = [(user, 1, "a", click) for user in range(n) for click in (1, 0, 0, 0)]
    rows += [(user, 2, "b", 0) for user in range(n)]
    frame = pytest.importorskip("pandas").DataFrame(rows, columns=["user", "time", "category", "clicked"])
    log = dp.read_log(frame.assign(departed=0), duplicates="keep")
    places = Counter()
    for part in log.episodes():
        places.update(part.step[part.outcome == 0].tolist())
    z = [(places[place] - n / 4) / np.sqrt(n * 3 / 16) for place in range(4)]
    assert sum(places.values()) == n
    assert np.abs(z).max() < 4


def test_a_departure_by_inactivity_follows_a_no_click():
    rows = [(user, 1, category, click) for user in range(200) for category, click in (("a", 0), ("b", 1), ("c", 0))]
    rows += [(999, time, "a", 0) for time in range(1, 21)]
    frame = pytest.importorskip("pandas").DataFrame(rows)
    frame.columns = ["user", "time", "category", "clicked"]
    log = dp.read_log(frame, inactive_after=10)
    departures = sum(counts[:, 2:] * n for counts, n in zip(log.counts, log.multiplicity, strict=True))
    assert departures[:, 1].sum() == departures[1, 0] == 0
    assert departures[0, 0] + departures[2, 0] == 200
    assert abs(departures[0, 0] - 100) < 30  # either no-click may be the last
    steps = np.concatenate([np.stack([part.category, part.outcome]) for part in log.episodes()], axis=1)
    assert np.bincount(steps[0, steps[1] == 2], minlength=3).tolist() == departures[:, 0].tolist()


def test_a_misfit_of_a_log_with_ties_is_not_blamed_on_the_users(logs):
    check = dp.fit(logs[1], types=2).check()
    cell = Cell("click", "at step 1", 1000, 700, 500.0, 250.0)
    misfit = replace(check, tests=(FamilyTest("step", "click", (cell,), (cell,), 0.0, 0.2, 0.8),))
    assert not misfit.fits
    assert misfit.reasons[-1].endswith(
        "which may be the reason instead of the users' behaviour: log times more precisely."
    )
    assert len(replace(misfit, tied=0.0).reasons) == 1


@pytest.mark.parametrize("reading", [{}, {"departed": None, "inactive_after": 5}, {"duplicates": "keep"}])
def test_times_that_collide_in_the_first_test_for_ties_are_no_ties(reading):
    """Multiples of 61 × 59 set the same bits for every event, so that all users are tested a second time."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(3)
    n = 3000
    columns = {
        "user": rng.integers(0, 600, n),
        "time": rng.integers(0, 60, n),
        "category": rng.choice(["a", "b"], n),
        "clicked": rng.random(n) < 0.5,
        "departed": rng.random(n) < 0.1,
        "propensity": 0.5,
    }
    found = []
    for scale in (1, 61 * 59):
        frame = pandas.DataFrame(columns | {"time": columns["time"] * scale})
        if "inactive_after" in reading:
            reading = reading | {"inactive_after": 5 * scale}
        found.append(dp.read_log(frame, max_rejected=1, **reading))
    plain, scaled = found
    assert 0 < plain.report.tied == scaled.report.tied < 0.5
    for name in ("counts", "multiplicity", "pending"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(scaled, name))
    kinds = [[(each.kind, each.count) for each in log.report.irregularities] for log in found]
    assert kinds[0] == kinds[1]
    for one, two in zip(plain.episodes(100), scaled.episodes(100), strict=True):
        for name in ("user", "step", "category", "outcome", "pending"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    users = [dp.assign(log, SITE_AB).to_frame() for log in found]
    assert users[0].equals(users[1])
