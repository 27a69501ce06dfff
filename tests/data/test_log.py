import csv
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import departing as dp
from helpers.logs import histories_of, read_row_by_row, steps_of

FIELDS = ["user", "time", "category", "clicked", "departed", "propensity", "item"]
CLICKS = ["1", "0", "1.0", "0e0", "true", "FALSE", " yes", "No", "click", "no click", "", "maybe"]
NUMBERS = ["0", "1", "2", "3", "3.5", "-4", "0", "1", "2", "61", "", "soon"]
MOMENTS = [
    "2024-01-01",
    "2024-01-01 00:00:00",
    "2024-01-01T02:00:00+02:00",
    "2024-01-01T00:00:00Z",
    "2024-01-31 10:00:00.5",
    "2024-02-05T23:00:00-05:00",
    "",
    "yesterday",
]


def dirty_rows(seed, times):
    """Mostly valid rows with every irregularity that a log may contain."""
    random = np.random.default_rng(seed)
    users = ["ann", "bob", "cid", "dan", "eve", "fay", "gil", " "][: random.integers(1, 9)]
    values = [
        users,
        times,
        ["news", "sport", "film", 'it\'s, "odd"', "news", "sport", "film", ""],
        CLICKS,
        ["0", "0", "no", "stayed", "0", "false", "", "1", "left", "perhaps"],
        ["0.5", "0.25", "1", "0", "1.5", "", "?"],
        ["x", "y"],
    ]
    return [[str(random.choice(each)) for each in values] for _ in range(random.integers(1, 60))]


def test_departures_inferred_from_inactivity_are_unbiased(tmp_path):
    site = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.8], [0.5, 0.5]], [[0.2, 0.7], [0.4, 0.6], [0.3, 0.8]])
    dp.sample_log(site, users=20000, seed=1, days=40, step_days=1.0).save(tmp_path / "events.parquet")
    log = dp.read_log(tmp_path / "events.parquet", inactive_after="14 days", categories=site.categories)
    fit = dp.fit(log, types=2)
    z = (fit.instance.depart - site.depart) / fit.stderr.depart  # types are in the order of their shares
    assert np.abs(z).max() < 4
    assert np.mean(z**2) < 2.5
    assert fit.check().p_value > 0.001


def write_csv(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([FIELDS, *rows])


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    clock=st.booleans(),
    departed=st.booleans(),
    by_inactivity=st.booleans(),
    propensity=st.booleans(),
    categories=st.sampled_from([None, ("sport", "news", "film")]),
    keep=st.booleans(),
    horizon=st.booleans(),
)
@pytest.mark.slow
def test_a_dirty_log_is_read_as_row_by_row(
    seed, clock, departed, by_inactivity, propensity, categories, keep, horizon
):
    rows = dirty_rows(seed, MOMENTS if clock else NUMBERS)
    dictionaries = [dict(zip(FIELDS, row, strict=True)) for row in rows]
    by_inactivity = by_inactivity or not departed
    options = {
        "has_departed": departed,
        "inactive": (30 * 86400 if clock else 3) * 10**6 if by_inactivity else None,
        "categories": categories,
        "keep_duplicates": keep,
        "has_propensity": propensity,
    }
    names, histories, kinds, episodes = read_row_by_row(dictionaries, **options)
    longest = max(map(len, episodes), default=0) or None
    if horizon:
        names, histories, kinds, episodes = read_row_by_row(dictionaries, **options, horizon=longest)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.csv"
        write_csv(path, rows)
        arguments = {
            "departed": "departed" if departed else None,
            "inactive_after": ("30 days" if clock else 3) if by_inactivity else None,
            "propensity": "propensity" if propensity else None,
            "categories": categories,
            "duplicates": "keep" if keep else "drop",
            "rejects": Path(folder) / "bad.csv",
            "max_rejected": 1,
            "horizon": longest if horizon else None,
        }
        unread = kinds["departed is missing"] + kinds["departed cannot be parsed"]
        if not histories or (not by_inactivity and unread == sum(map(len, episodes)) + kinds["duplicate row"]):
            with pytest.raises(dp.InputError, match=r"None of the|can be parsed as departed or stayed"):
                dp.read_log(path, **arguments)
            return
        log = dp.read_log(path, **arguments)
        assert list(log.categories) == list(names)
        assert histories_of(log) == histories
        report = log.report
        assert {each.kind: each.count for each in report.irregularities} == kinds
        assert all(1 <= len(each.examples) <= 3 for each in report.irregularities)
        assert report.events == len(rows)
        assert report.used == log.steps @ log.multiplicity
        assert report.users == log.users == len(episodes)
        assert report.pending == sum(steps[-1][3] is True for steps in episodes)
        with open(Path(folder) / "bad.csv", newline="", encoding="utf-8") as stream:
            bad = list(csv.DictReader(stream))
        assert len(bad) == report.rejected
        assert steps_of(log, users=2) == episodes


def test_counts_above_a_byte_are_added_up(tmp_path):
    lines = [f"a,{time},news,{int(time % 2 == 0)}" for time in range(400)] + ["b,0,news,1"]
    (tmp_path / "events.csv").write_text("\n".join(["user,time,category,clicked", *lines]))
    log = dp.read_log(tmp_path / "events.csv", inactive_after=200)
    assert log.counts.tolist() == [[[0, 0, 0, 1]], [[200, 200, 0, 0]]]
    assert log.pending.tolist() == [[[0, 0]], [[100, 100]]]
    with log.user_histories() as users:
        assert sorted(users.counts.tolist()) == log.counts.tolist()
