"""Segments of users in logs, against a reader that follows the rules row by row."""

import csv
import math
from collections import Counter
from datetime import datetime, timedelta

import numpy as np
import pytest

import departing as dp
from departing.data import segments as module

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

COLUMNS = ("user", "time", "category", "clicked", "departed", "country", "device")
START = datetime(2024, 1, 1)


def random_rows(seed, users=150):
    """Events with missing segments, users who change theirs, ties, duplicates and events after departures."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        country, device = rng.choice(["de", "fr", " de ", "", "NA"]), rng.choice(["mobile", "tv"])
        for _ in range(rng.integers(1, 6)):
            if rng.random() < 0.2:
                country = rng.choice(["de", "fr", "n/a", "us"])
            time = START + timedelta(hours=int(rng.integers(0, 30)))
            clicked, departed = rng.random() < 0.5, rng.random() < 0.1
            category = rng.choice(["news", "film", "film", ""]) if rng.random() < 0.05 else "news"
            row = (f"u{user:03}", time, category, int(clicked), int(departed), country, device)
            rows += [tuple(map(str, row))] * (2 if rng.random() < 0.05 else 1)
    return rows


def write_rows(rows, path, columns=COLUMNS):
    if path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
    else:
        table = dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
        parquet.write_table(arrow.table(table), path)
    return path


def segment_of(row, named=None):
    parts = [named if value.strip() in ("", "n/a", "NA") else value.strip() for value in row[5:7]]
    return None if None in parts else "/".join(parts)


def segments_row_by_row(rows, named=None):
    """Segment of every user, and the number of users with used events in several."""
    used = {}
    for row in set(rows):
        if row[2]:
            used.setdefault(row[0], []).append(row)
    segments, changed = {}, 0
    for user, events in used.items():
        departures = [row[1] for row in events if row[4] == "1"]
        kept = [row for row in events if not departures or row[1] <= min(departures)]
        first = [segment_of(row, named) for row in kept if row[1] == min(each[1] for each in kept)]
        segments[user] = min((name for name in first if name is not None), default=None)
        changed += len({segment_of(row, named) for row in kept} - {None}) > 1
    return segments, changed


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("named", [None, "missing"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_segment_is_that_of_the_first_used_event(tmp_path, ending, named, seed):
    rows = random_rows(seed)
    path = write_rows(rows, tmp_path / f"events.{ending}")
    log = dp.read_log(path, segment=["country", "device"], missing_segment=named, max_rejected=1)
    expected, changed = segments_row_by_row(rows, named)
    counted = Counter(expected.values())
    assert dict(zip(log.segments, log.segment_users.tolist(), strict=True)) == {
        name: n for name, n in counted.items() if name is not None
    }
    assert log.segment_columns == ("country", "device")
    assert log.report.segments == dict(zip(log.segments, log.segment_users.tolist(), strict=True))
    assert log.report.unknown_segment == counted[None]
    assert log.in_segment(None).users == counted[None]
    kinds = {each.kind: each.count for each in log.report.irregularities}
    assert kinds["user with events in several segments"] == changed > 0
    if named is None:
        assert kinds["segment is missing"] > 0
        assert counted[None] > 0
    plain = dp.read_log(path, max_rejected=1)
    merged = log.without_segments.distinct
    for field in ("counts", "multiplicity", "pending"):
        assert (getattr(merged, field) == getattr(plain, field)).all()
    assert log.report.columns["segment"] == "country/device"
    assert "segments by country/device: " in log.report.summary()


def test_steps_and_sample_carry_the_segment_of_the_user(tmp_path):
    rows = random_rows(3)
    path = write_rows(rows, tmp_path / "events.csv")
    log = dp.read_log(path, segment=["country", "device"], max_rejected=1)
    expected, _ = segments_row_by_row(rows)
    in_order = [expected[user] for user in sorted(expected)]
    names = (*log.segments, None)
    (steps,) = log.episodes()
    assert [names[i] for i in steps.segment] == [in_order[user] for user in steps.user]
    (sample,) = log.sample_episodes(10**6, 10**6)
    by_user = [names[i] for i in sample.segment[sample.step == 0]]
    assert Counter(by_user) == Counter(in_order)
    assert all(len(set(sample.segment[sample.user == user])) == 1 for user in set(sample.user))
    with log.walks(None) as reduce:
        (walks,) = reduce(lambda arrays, _: arrays, {})
    known = ~steps.pending
    assert Counter(walks["segment"].tolist()) == Counter(steps.segment[known].tolist())


def test_one_column_is_one_segment_and_columns_are_never_guessed(tmp_path):
    path = write_rows(random_rows(4), tmp_path / "events.csv")
    log = dp.read_log(path, segment="country", max_rejected=1)
    assert log.segments == ("de", "fr", "us")
    assert log.segment_columns == ("country",)
    plain = dp.read_log(path, max_rejected=1)
    assert plain.segments is plain.segment is plain.rewards is None
    assert "segment" not in plain.report.columns
    assert plain.unit == "clicks"
    (steps,) = plain.episodes()
    assert steps.segment is steps.reward is None


def test_segments_of_later_events_only_are_left_out(tmp_path):
    rows = [
        ("ann", "1", "news", "1", "0", "de", "tv"),
        ("ann", "2", "news", "0", "1", "zz", "tv"),
        ("bob", "1", "news", "0", "1", "uk", "tv"),
        ("cy", "1", "news", "1", "1", "", "tv"),
        ("cy", "2", "news", "1", "1", "fr", "tv"),
    ]
    log = dp.read_log(write_rows(rows, tmp_path / "events.csv"), segment="country", max_rejected=1)
    assert log.segments == ("de", "uk")
    assert log.segment_users.tolist() == [1, 1]
    assert sorted(log.segment.tolist()) == [-1, 0, 1]
    (steps,) = log.episodes()
    assert steps.segment.tolist() == [0, 0, 1, -1]
    (sample,) = log.sample_episodes(10, 10)
    assert sorted(sample.segment.tolist()) == [-1, 0, 0, 1]
    assert sorted(log.weighted(math.inf).segment.tolist()) == [-1, 0, 1]


def test_namibia_is_a_country_among_codes_of_two_letters(tmp_path):
    rows = [(f"u{i}", "1", "news", "1", "1", code, "tv") for i, code in enumerate(["DE", "FR", "NA", "US", ""])]
    log = dp.read_log(write_rows(rows, tmp_path / "events.csv"), segment="country")
    assert log.segments == ("DE", "FR", "NA", "US")
    rows = [(f"u{i}", "1", "news", "1", "1", code, "tv") for i, code in enumerate(["Germany", "FR", "NA"])]
    log = dp.read_log(write_rows(rows, tmp_path / "others.csv"), segment="country")
    assert log.segments == ("FR", "Germany")


def test_rare_segments_beyond_the_maximum_are_unknown(tmp_path):
    codes = ["de"] * 50 + ["fr"] * 30 + ["us"] * 3 + ["uk"] * 2 + ["se"]
    rows = [(f"u{i}", "1", "news", str(i % 2), "1", code, "tv") for i, code in enumerate(codes)]
    path = write_rows(rows, tmp_path / "events.csv")
    log = dp.read_log(path, segment="country", max_segments=3)
    assert log.segments == ("de", "fr", "us")
    assert log.report.unknown_segment == 3
    assert any("has 5 segments; the 3 largest are used" in note for note in log.report.notes)
    with pytest.raises(
        dp.InputError, match=r"beyond the 1 largest have 41\.9% of the events; .* raise `max_segments`"
    ):
        dp.read_log(path, segment="country", max_segments=1)


def test_a_column_of_ids_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_VALUES", 20)
    rows = [(f"u{i}", "1", "news", "1", "1", str(i), "tv") for i in range(30)]
    with pytest.raises(dp.InputError, match=r"Column 'country' of .* has more than 20 distinct values"):
        dp.read_log(write_rows(rows, tmp_path / "events.csv"), segment="country")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"segment": "countri"}, "no column 'countri' for segment in .* `segment`='country'"),
        ({"segment": ["country", "plan"]}, "no column 'plan' for segment"),
        ({"segment": "user"}, "Column 'user' is named for segment and for user"),
        ({"segment": 3}, "segment is 3; expected the name of a column"),
        ({"segment": []}, "segment is"),
        ({"segment": ["country", "country"]}, "segment has the name 'country' twice"),
        ({"segment": "country", "max_segments": 0}, "max_segments is 0; expected an integer ≥ 1"),
        ({"segment": "country", "missing_segment": ""}, "missing_segment is ''; expected a name"),
    ],
)
def test_invalid_segments_raise_a_clear_error(tmp_path, options, sentence):
    path = write_rows(random_rows(5, users=20), tmp_path / "events.csv")
    with pytest.raises(dp.InputError, match=sentence):
        dp.read_log(path, max_rejected=1, **options)


def test_columns_without_values_and_ambiguous_names_are_refused(tmp_path):
    rows = [(f"u{i}", "1", "news", "1", "1", "", "tv") for i in range(3)]
    with pytest.raises(dp.InputError, match=r"Column 'country' of .* holds no values"):
        dp.read_log(write_rows(rows, tmp_path / "none.csv"), segment="country")
    rows = [("ann", "1", "news", "1", "1", "a/b", "c"), ("bob", "1", "news", "1", "1", "a", "b/c")]
    with pytest.raises(dp.InputError, match=r"have the same name 'a/b/c'"):
        dp.read_log(write_rows(rows, tmp_path / "names.csv"), segment=["country", "device"])
    rows = [("ann", "1", "news", "1", "0", "", "tv"), ("ann", "2", "news", "1", "1", "de", "tv")]
    with pytest.raises(dp.InputError, match="first event of every user has no value of 'country'"):
        dp.read_log(write_rows(rows, tmp_path / "later.csv"), segment="country")


def test_numbers_are_segments_in_numerical_order(tmp_path):
    table = {
        "user": [1, 2, 3, 4],
        "time": [1, 1, 1, 1],
        "category": ["news"] * 4,
        "clicked": [True, False] * 2,
        "departed": [True] * 4,
        "tier": [10, 9, None, 9],
    }
    parquet.write_table(arrow.table(table), tmp_path / "events.parquet")
    log = dp.read_log(tmp_path / "events.parquet", segment="tier")
    assert log.segments == ("9", "10")
    assert log.segment_users.tolist() == [2, 1]


def test_half_life_weights_are_those_of_the_first_event(tmp_path):
    rows = random_rows(6)
    path = write_rows(rows, tmp_path / "events.csv")
    log = dp.read_log(path, segment="country", max_rejected=1)
    used = {}
    for user, time, category, *_ in rows:
        if category:
            used[user] = min(used.get(user, time), time)
    end = max(row[1] for row in rows)
    age = {user: (datetime.fromisoformat(end) - datetime.fromisoformat(first)) for user, first in used.items()}
    weights = {user: 0.5 ** (each / timedelta(hours=10)) for user, each in age.items()}
    for half_life in ("10 hours", timedelta(hours=10)):
        recent = log.weighted(half_life)
        assert recent.users == log.users
        assert recent.weight.sum() == pytest.approx(sum(weights.values()), rel=1e-8)
        assert recent.weight_squares.sum() == pytest.approx(sum(w * w for w in weights.values()), rel=1e-8)
        assert 0 < recent.effective_users < log.users
        assert recent.segments == log.segments
        for field in ("counts", "multiplicity", "pending", "segment"):
            assert (getattr(recent, field) == getattr(log, field)).all()
    by_segment = {}
    expected, _ = segments_row_by_row([(*row[:6], "tv") for row in rows])
    for user, weight in weights.items():
        by_segment[expected[user]] = by_segment.get(expected[user], 0) + weight
    for i, name in enumerate(log.segments):
        assert recent.weight[recent.segment == i].sum() == pytest.approx(by_segment[f"{name}/tv"], rel=1e-8)
    equal = log.weighted(math.inf)
    assert (equal.weight == log.multiplicity).all()
    assert equal.effective_users == log.users


def test_half_lives_of_numeric_times_and_invalid_ones(tmp_path):
    rows = [("ann", "0", "news", "1", "1"), ("bob", "10", "news", "1", "1")]
    path = write_rows(rows, tmp_path / "events.csv", COLUMNS[:5])
    log = dp.read_log(path)
    assert log.weighted(10).weight.tolist() == [1.5]
    assert log.weighted(10).weight_squares.tolist() == [1.25]
    assert log.weighted(1e-9).weight.tolist() == [1.0]  # the user at the end of the log
    for wrong in ("30 days", 0, -1, None, float("nan")):
        with pytest.raises(dp.InputError, match=r"half_life is .*expected a number > 0 in the unit of column 'time'"):
            log.weighted(wrong)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_spellings_that_differ_in_case_or_space_are_one_segment(tmp_path, ending):
    values = ["de"] * 5 + ["DE", " De ", "FR", "FR", "fr", "unknown", "(not set)", "None", "n/a", ""]
    rows = [(f"u{i:02}", "1", "news", "1", "1", value, "TV" if i % 3 else "tv") for i, value in enumerate(values)]
    path = write_rows(rows, tmp_path / f"events.{ending}")
    log = dp.read_log(path, segment=["country", "device"], max_rejected=1)
    assert dict(zip(log.segments, log.segment_users.tolist(), strict=True)) == {"FR/TV": 3, "de/TV": 7}
    kinds = {each.kind: each for each in log.report.irregularities}
    merged, missing = kinds["segment value in another spelling"], kinds["segment is missing"]
    assert merged.count == 2 + 1 + 5 - 2  # of known segments and of devices, where they overlap
    assert "'DE' is 'de' (1 event)" in merged.examples
    assert missing.count == 5
    assert "'(not set)' (1 event)" in missing.examples
    named = dp.read_log(path, segment="country", missing_segment="Unknown", max_rejected=1)
    assert dict(zip(named.segments, named.segment_users.tolist(), strict=True)) == {"FR": 3, "Unknown": 5, "de": 7}
    (steps,) = log.episodes()
    assert (np.bincount(steps.segment[steps.segment >= 0]) == log.segment_users).all()
    assert (log.weighted(math.inf).segment_users == log.segment_users).all()


def test_categories_in_two_spellings_are_noted_with_a_remedy(tmp_path):
    rows = [(f"u{i}", "1", name, "1", "1", "de", "tv") for i, name in enumerate(["news", "news", "News", "film"])]
    log = dp.read_log(write_rows(rows, tmp_path / "events.csv"))
    (note,) = [each for each in log.report.notes if "differ in case" in each]
    assert note.endswith("are separate categories; to merge them, write them alike in the log.")


@pytest.mark.parametrize("ending", [None, "parquet"])
def test_integers_in_columns_of_floats_have_no_decimals(tmp_path, ending):
    """An integer column with a missing value is one of floats in pandas."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "user": range(8),
            "time": 1.0,
            "category": [1.0, 2.0] * 4,
            "clicked": True,
            "departed": True,
            "plan": [1.0, 1.0, 2.0, 2.5, -3.0, 1e300, math.nan, math.inf],
        }
    )
    source = frame
    if ending:
        source = tmp_path / f"log.{ending}"
        frame.to_parquet(source)
    log = dp.read_log(source, segment="plan")
    assert log.categories == ("1", "2")
    assert set(log.segments) == {"1", "2", "2.5", "-3", "1e+300", "inf"}
    assert log.segment_users[log.segments.index("1")] == 2
    whole = frame.assign(plan=frame["plan"].where(frame["plan"].abs() < 9, 7).astype("int64"), category=[1, 2] * 4)
    assert {"1", "2", "-3"} < set(dp.read_log(whole, segment="plan").segments)
    assert dp.read_log(source, categories=["1", "2"]).report.used == 8
