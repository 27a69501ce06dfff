"""Rates of a log by calendar time, against counts of its rows."""

from datetime import datetime, timedelta

import numpy as np
import pytest

import departing as dp

COLUMNS = ["user", "time", "category", "clicked", "country", "revenue"]
START = datetime(2024, 1, 1, 7)


def random_events(seed, users=300):
    """Events at distinct times of each user, over 60 days."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        country = rng.choice(["de", "fr", ""])
        time = START + timedelta(days=float(rng.uniform(0, 50)))
        for _ in range(rng.integers(1, 6)):
            clicked = rng.random() < 0.5
            reward = round(rng.gamma(2), 2) if clicked else ""
            rows.append((user, time.isoformat(), rng.choice(["news", "film"]), int(clicked), country, reward))
            time += timedelta(days=float(rng.exponential(1)))
    return rows


def write_events(path, rows):
    path.write_text("\n".join([",".join(COLUMNS), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_rates_are_those_of_the_rows(tmp_path):
    rows = random_events(1)
    path = write_events(tmp_path / "events.csv", rows + rows[:5])  # and duplicates
    log = dp.read_log(path, inactive_after="5 days", segment="country", reward="revenue", unit="euro", max_rejected=1)
    rates = log.over_time("7 days")
    assert rates.start[0] == np.datetime64("2024-01-01")
    assert (np.diff(rates.start) == np.timedelta64(7, "D")).all()
    assert (rates.unit, rates.categories, rates.segments) == ("euro", ("film", "news"), ("de", "fr"))
    shape = len(rates), 2
    shown, clicks, at_risk, departures, rewards = (np.zeros(shape) for _ in range(5))
    arrivals, segments = np.zeros(len(rates)), np.zeros(shape)
    end = max(datetime.fromisoformat(row[1]) for row in rows)
    for user in range(300):
        mine = sorted(row for row in rows if row[0] == user)
        for i, (_, time, category, clicked, country, reward) in enumerate(mine):
            time = datetime.fromisoformat(time)
            place = (time - datetime(2024, 1, 1)).days // 7, rates.categories.index(category)
            shown[place] += 1
            clicks[place] += clicked
            rewards[place] += reward or 0
            if end - time >= timedelta(days=5):
                at_risk[place] += 1
                departures[place] += i == len(mine) - 1
            if i == 0:
                arrivals[place[0]] += 1
                if country:
                    segments[place[0], rates.segments.index(country)] += 1
    assert (rates.shown == shown).all()
    assert (rates.clicks == clicks).all()
    assert (rates.at_risk == at_risk).all()
    assert (rates.departures == departures).all()
    assert (rates.arrivals == arrivals).all()
    assert (rates.segment_users == segments).all()
    assert rates.mean_reward == pytest.approx(rewards / np.where(clicks, clicks, np.nan), nan_ok=True)
    assert rates.shown.sum() == log.totals.sum()
    assert rates.departures.sum() == log.report.departed
    frame = rates.to_frame()
    assert len(frame) == 2 * len(rates)
    assert frame["click_rate"].to_numpy() == pytest.approx(rates.click_rate.reshape(-1), nan_ok=True)
    assert list(rates.segment_frame().columns) == ["start", "segment", "users", "share"]
    assert np.isnan(rates.departure_rate[-1]).all()
    assert "periods from 2024-01-01 00:00 to" in rates.describe()
    assert "film" in rates._repr_html_()
    rates.plot(tmp_path / "rates.svg")
    assert (tmp_path / "rates.svg").stat().st_size > 1000


def test_logged_departures_of_irregular_users_are_counted(tmp_path):
    text = "user,time,category,clicked,departed\n"
    text += "ann,0,news,1,0\nann,0,film,1,1\nbob,3,news,1,0\nbob,9,news,0,1\n"
    text += "cy,5,film,0,\ndan,1,news,1,1\ndan,8,film,1,0\n"
    (tmp_path / "events.csv").write_text(text)
    log = dp.read_log(tmp_path / "events.csv", max_rejected=1)
    rates = log.over_time(2)
    assert rates.start.tolist() == [0.0, 5.0, 10.0]
    assert rates.shown.tolist() == [[1, 3], [1, 1]]  # film, news; an event after dan's departure is rejected
    assert rates.departures.tolist() == [[1, 1], [0, 1]]
    assert rates.at_risk.tolist() == [[1, 3], [0, 1]]  # it is unknown whether cy departed
    assert rates.arrivals.tolist() == [3, 1]
    assert rates.mean_reward is None
    assert rates.segment_users.shape == (2, 0)
    rates.plot(tmp_path / "rates.png")


@pytest.mark.parametrize("buckets", [0, -1, "soon", 1001, "1 minute", None, True])
def test_invalid_periods_raise_a_clear_error(tmp_path, buckets):
    path = write_events(tmp_path / "events.csv", random_events(2, users=20))
    log = dp.read_log(path, inactive_after="5 days")
    with pytest.raises(dp.InputError, match="buckets is"):
        log.over_time(buckets)
    assert len(log.over_time(7)) == 7
    assert len(log.over_time(timedelta(days=20))) == 3
