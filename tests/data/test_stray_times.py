"""A few times far before or far after all others are rejected; files keep their names; rare categories are noted."""

import json

import numpy as np
import pandas as pd
import pytest

import departing as dp
from departing.data.checks import STRAY_SHARE, TIME_BINS, rare_names, regular_times
from helpers.commands import call, json_output

BEFORE, AFTER = "time far before all others", "time far after all others"


def frame(n=400, seed=0, **columns):
    """A log of n events in 60 days of users with four daily events each."""
    i, random = np.arange(n), np.random.default_rng(seed)
    day = np.repeat(random.integers(0, 56, -(-n // 4)), 4)[:n] + i % 4
    regular = {
        "user": i // 4,
        "time": pd.Timestamp("2024-01-01") + pd.to_timedelta(day * 86400 + i, unit="s"),
        "category": np.array(["news", "sport", "film"])[i % 3],
        "clicked": i % 2 == 0,
    }
    return pd.DataFrame(regular | columns)


def with_times(events, *values):
    """The log with `values` as its first times, in text."""
    return events.assign(time=[*values, *events.time.astype(str)[len(values) :]])


def rejected(log):
    return {each.kind: each.count for each in log.report.irregularities if each.rejected}


def counts(log):
    return sorted(zip(log.counts.tolist(), log.multiplicity.tolist(), log.pending.tolist(), strict=True))


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        (["2999-12-31"], {AFTER: 1}),
        (["1970-01-01"], {BEFORE: 1}),
        (["2999-12-31 00:00:00", "2200-01-01", "1970-01-01", "1900-01-01"], {BEFORE: 2, AFTER: 2}),
        (["1970-01-01", "2078-02-20"], {BEFORE: 1, AFTER: 1}),  # neither gap is more than half of the time
        (["1970-01-01"] * 4, {BEFORE: 4}),
        (["2024-04-01"], {}),  # not farther than the log is long
    ],
)
def test_rows_with_stray_times_are_rejected_as_if_they_were_not_there(values, kinds, tmp_path):
    events, n = with_times(frame(), *values), len(values) if kinds else 0
    for options in ({"inactive_after": "7 days"}, {"inactive_after": "auto"}):
        log = dp.read_log(events, rejects=tmp_path / "rejects.csv", **options)
        assert rejected(log) == kinds
        rest = dp.read_log(events[n:], **options)
        assert (log.report.first, log.report.last) == (rest.report.first, rest.report.last)
        assert counts(log) == counts(rest)
        steps, others = next(log.episodes()), next(rest.episodes())
        assert (steps.outcome == others.outcome).all()
        assert (steps.time == others.time).all()
        reasons = pd.read_csv(tmp_path / "rejects.csv").rejection_reason.value_counts().to_dict()
        assert reasons == kinds
        assert sum("all others" in note for note in log.report.notes) == len(kinds)
    assert dp.suggest_inactivity(events).period == dp.suggest_inactivity(events[n:]).period


def test_more_than_a_few_events_are_not_stray():
    log = dp.read_log(with_times(frame(), *["2024-06-01"] * 5), inactive_after="7 days", duplicates="keep")
    assert log.report.rejected == 0
    assert log.report.last == "2024-06-01 00:00:00"


def test_times_within_the_inactivity_period_are_not_stray():
    events = with_times(frame(), "2024-06-01")
    assert dp.read_log(events, inactive_after="95 days").report.rejected == 0
    assert dp.read_log(events, inactive_after="90 days").report.rejected == 1


def test_stray_times_are_rejected_with_logged_departures_and_listed_categories():
    events = with_times(frame(), "2999-12-31").assign(departed=lambda rows: rows.index % 4 == 3)
    log = dp.read_log(events, categories=["sport", "news", "film"])
    assert rejected(log) == {AFTER: 1}
    numbers = events.assign(time=[*range(399), 10**6])  # may be relative to the user's first event
    assert rejected(dp.read_log(numbers)) == {}
    assert rejected(dp.read_log(numbers.drop(columns="departed"), inactive_after=7)) == {AFTER: 1}


def test_stray_epochs_are_rejected():
    seconds = (frame().time - pd.Timestamp("1970-01-01")) // pd.Timedelta("1s")
    log = dp.read_log(frame(time=[0, 32_503_593_600, *seconds[2:]]), inactive_after="7 days")
    assert rejected(log) == {BEFORE: 1, AFTER: 1}
    assert log.report.last.startswith("2024-")


def test_stray_times_count_as_rejected_rows():
    events = with_times(frame(), "2999-12-31")
    with pytest.raises(dp.InputError, match=r"1 × time far after all others\n +user 0, time 2999-12-31"):
        dp.read_log(events, inactive_after="7 days", max_rejected=0)


@pytest.mark.parametrize("seed", range(30))
def test_bins_find_what_sorted_times_show(seed):
    random = np.random.default_rng(seed)
    core = random.integers(0, 1000, 500)
    sides = [
        np.full(random.integers(0, 9), sign * random.integers(5000, 10 ** random.integers(4, 9))) for sign in (-1, 1)
    ]
    times = np.concatenate([core, *sides])

    def bins(first, last):
        chosen = np.sort(times[(times >= first) & (times <= last)])
        number = (chosen - first) * TIME_BINS // (last - first + 1)
        return {
            b: (int((number == b).sum()), int(chosen[number == b].min()), int(chosen[number == b].max()))
            for b in np.unique(number).tolist()
        }

    first, last = regular_times(bins, int(times.min()), int(times.max()), 0)
    few = [len(side) <= STRAY_SHARE * len(times) for side in sides]
    if all(few):  # everything that is farther away than the core is long
        assert (first, last) == (core.min(), core.max())
    else:
        for values, is_few, is_kept in zip(sides, few, (first <= -5000, last >= 5000), strict=True):
            assert is_kept or is_few or not len(values)


# copies of files


def test_a_copy_of_a_file_is_reported_under_the_name_of_the_file(tmp_path):
    text = frame(category="café").assign(departed=0).to_csv(index=False)
    path = tmp_path / "latin.csv"
    path.write_bytes((text + "7,2024-01-01,café,1,0,extra\n").encode("cp1252"))
    log = dp.read_log(path, rejects=tmp_path / "rejects.csv")
    (malformed,) = log.report.irregularities
    assert malformed.examples == (f"line 402 of {path}: 7,2024-01-01,café,1,0,extra",)
    assert (
        (tmp_path / "rejects.csv").read_text(encoding="utf-8").splitlines()[-1].endswith(f'{malformed.examples[0]}"')
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("garbage.csv", np.random.default_rng(0).bytes(20_000)),
        ("mixed.csv", ("user,time\n" + "é,1\r\n" * 50 + "é,1\n" * 50).encode("cp1252")),
        ("bad.jsonl", (json.dumps({"user": "é"}, ensure_ascii=False) + '\n{"user": \n').encode("cp1252")),
        ("garbage.json", b"\xe9\xe8" * 500),
    ],
)
def test_errors_about_a_copy_name_the_file(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(dp.InputError) as error:
        dp.read_log(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)
    assert "departing-" not in str(error.value)
    assert not str(error.value).endswith(". .")


# rare categories


def test_rare_categories_are_noted_with_the_way_to_leave_them_out(tmp_path):
    category = ["sprot", "a, b", "a, b", *frame(3000).category[3:]]
    events = frame(3000, category=category).assign(departed=lambda rows: rows.index % 4 == 3)
    log = dp.read_log(events)
    (note,) = (note for note in log.report.notes if "rare" in note)
    assert note == (
        "Categories 'sprot' (1 events), 'a, b' (2 events) are rare: their probabilities cannot be estimated. To "
        "leave them out, list the categories to keep: categories=['film', 'news', 'sport'] "
        "(--categories film,news,sport)."
    )
    assert not any("rare" in note for note in dp.read_log(events, categories=["film", "news", "sport"]).report.notes)
    events.to_csv(tmp_path / "log.csv", index=False)
    arguments = ["fit", tmp_path / "log.csv", "--types", "1", "--bootstrap", "0"]
    assert note in json_output(*arguments)["log"]["notes"]
    result = json_output(*arguments, "--categories", "film,news,sport")
    assert result["log"]["used"] == 2997
    assert "category is not in `categories`" in call(*arguments, "--categories", "film,news,sport").stdout


def test_categories_of_a_small_log_or_with_enough_events_are_not_rare():
    assert rare_names({}) == []
    assert rare_names({"a": 100, "b": 3}) == []
    assert rare_names({"a": 10**6, "b": 30}) == []
    assert "--categories" not in rare_names({"a, b": 10**6, "c": 29})[0]
