"""Every source gives the same log; unreadable or changed sources raise an error of one sentence."""

import gzip
import json
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars
import pytest

import departing as dp
from departing.data import rules, sources
from departing.data.known_log import KnownLogReader
from departing.model.examples import magazine
from helpers.logs import histories_of, steps_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One log in all formats."""
    folder = tmp_path_factory.mktemp("logs")
    path = folder / "events.csv"
    dp.simulate(magazine(), dp.Greedy(magazine()), users=300, seed=4, max_steps=5, log=path)
    kept = duckdb.connect(str(folder / "events.duckdb"))
    kept.execute(f"CREATE TABLE events AS FROM '{path}'")
    kept.execute("CREATE TABLE other (x INTEGER)")
    (folder / "parts").mkdir()
    kept.execute(f"COPY events TO '{folder}/events.parquet'")
    kept.execute(f"COPY events TO '{folder}/events.jsonl' (FORMAT json)")
    kept.execute(f"COPY events TO '{folder}/events.json' (FORMAT json, ARRAY true)")
    for part in (0, 1):  # the second with its columns in another order
        names = (
            '"user", "time", category, clicked, departed' if part else 'departed, clicked, category, "time", "user"'
        )
        query = f'SELECT {names} FROM events WHERE "user" % 2 = {part}'
        kept.execute(f"COPY ({query}) TO '{folder}/parts/{part}.parquet'")
        kept.execute(f"COPY ({query}) TO '{folder}/part-{part}.csv'")
    (folder / "parts" / "_SUCCESS").write_text("")
    rows = kept.execute("FROM events").fetchall()
    kept.close()
    for name in ("events.csv", "events.jsonl"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
    (folder / "events.tsv").write_text(path.read_text().replace(",", "\t"))
    lite = sqlite3.connect(folder / "events.sqlite")
    lite.execute('CREATE TABLE events ("user", "time", category, clicked, departed)')
    lite.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)
    lite.commit()
    lite.close()
    return folder


@pytest.fixture(scope="module")
def log(folder):
    return dp.read_log(folder / "events.csv")


def frame(folder, package):
    path = folder / "events.parquet"
    if package == "polars":
        return polars.read_parquet(path)
    if package == "polars lazy":
        return polars.scan_parquet(path)
    if package == "pandas":
        import pandas

        columns = polars.read_parquet(path).to_dict(as_series=False)
        return pandas.DataFrame(columns)
    pyarrow = pytest.importorskip("pyarrow.parquet")
    return pyarrow.read_table(path)


def is_the_same(one, two):
    return histories_of(one) == histories_of(two) and one.categories == two.categories


@pytest.mark.parametrize(
    "name",
    [
        "events.parquet",
        "events.csv.gz",
        "events.tsv",
        "events.jsonl",
        "events.jsonl.gz",
        "events.json",
        "parts",
        "parts/*.parquet",
        "part-*.csv",
    ],
)
def test_every_file_format_gives_the_same_log(folder, log, name):
    other = dp.read_log(folder / name)
    assert is_the_same(other, log)
    assert other.report.rejected == 0
    if name in ("events.parquet", "events.jsonl"):  # whose users are in the order of numbers and of letters
        assert sorted(map(tuple, steps_of(other))) == sorted(map(tuple, steps_of(log)))


@pytest.mark.parametrize("name", ["events.duckdb", "events.sqlite"])
def test_databases_give_the_same_log(folder, log, name):
    assert is_the_same(dp.read_log(folder / name, table="events"), log)


@pytest.mark.parametrize("package", ["polars", "polars lazy", "pandas", "pyarrow"])
def test_frames_give_the_same_log(folder, log, package):
    other = dp.read_log(frame(folder, package))
    assert is_the_same(other, log)
    assert steps_of(other, users=50) == steps_of(dp.read_log(folder / "events.parquet"))
    assert other.report.source == f"the {package.split()[0]} {type(frame(folder, package)).__name__}"


def test_reading_the_log_of_a_simulation_gives_its_histories(tmp_path):
    run = dp.simulate(magazine(), dp.Fixed(1), users=2000, seed=2, max_steps=4, log=tmp_path / "a.parquet")
    log = dp.read_log(tmp_path / "a.parquet", categories=magazine().categories, max_rejected=1)
    assert (log.counts == run.histories.counts).all()
    assert (log.multiplicity == run.histories.multiplicity).all()
    assert not log.pending.any()
    assert log.report.censored == run.truncated > 0
    assert any("Never shown" in note for note in log.report.notes)


def write(path, rows, header="user,time,category,clicked,departed"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "", "empty"),
        ("a.jsonl", "", "empty"),
        ("a.csv", "user,time,category,clicked,departed\n", "There are no events"),
        ("a.parquet", "PAR1 nothing of the kind PAR1", "Cannot read"),
        ("a.parquet", "", "Cannot read"),
        ("a.duckdb", "no database at all, only text in a file of this name", "Cannot read"),
        ("a.jsonl", '{"user": 1, "time": \n{{{', "Cannot read"),
        ("a.csv.gz", "not compressed", "There are no columns"),
        ("a.sqlite", "SQLite format 3\0 and nothing more", "Cannot read"),
        ("a.csv", "user,time,category,clicked,departed\n1,1,a,1,0\r\n1,2,b,0,1\n", "mixes line endings"),
        (
            "a.csv",
            "user,time,category,clicked,departed\n1,1,a,maybe,0\n",
            "such as `clicked_values`='maybe'",
        ),
        ("a.xlsx", "", "expected .parquet"),
        ("a", "", "expected .parquet"),
    ],
)
def test_a_damaged_file_raises_an_error_of_one_sentence(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(dp.InputError, match=words) as error:
        dp.read_log(tmp_path / name)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


def test_unknown_files_tables_and_columns_suggest_the_most_similar(folder, tmp_path):
    for source, words in (
        (folder / "event.parquet", "There is no file .*event.parquet'; did you mean 'events.[a-z.]*'\\?"),
        (folder / "*.nothing", "No file matches"),
        (tmp_path, "holds no file of a supported format"),
        (folder, "files of different formats"),
        (tmp_path / "no" / "such.csv", "There is no file"),
        (folder / "x.csv", r"There is no file '[^']*x.csv'\.$"),
    ):
        with pytest.raises(dp.InputError, match=words):
            dp.read_log(source)
    for name in ("events.duckdb", "events.sqlite"):
        with pytest.raises(dp.InputError, match="has no table 'event'; did you mean 'events'"):
            dp.read_log(folder / name, table="event")
    with pytest.raises(dp.InputError, match=r"has 2 tables .*'events', 'other'.*name one as `table`"):
        dp.read_log(folder / "events.duckdb")
    with pytest.raises(dp.InputError, match=r"no column 'Catgory' .* columns are 'user'.* `category`='category'"):
        dp.read_log(folder / "events.csv", category="Catgory")
    with pytest.raises(dp.InputError, match=r"no column 'left' for departed .* by `departed`="):
        dp.read_log(folder / "events.csv", departed="left")
    with pytest.raises(dp.InputError, match="only a database file has tables"):
        dp.read_log(folder / "events.csv", table="events")
    with pytest.raises(dp.InputError, match="only a database file has tables"):
        dp.read_log(frame(folder, "polars"), table="events")
    with pytest.raises(dp.InputError, match="expected a path, or a table of pandas"):
        dp.read_log([1, 2, 3])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"departed": None},
            "Departures are unknown.*`inactive_after`=1.5. The log is too short to suggest a reliable period",
        ),
        (
            {"departed": None, "inactive_after": "30 days"},
            "expected a number > 0 in the unit of column 'time'",
        ),
        ({"inactive_after": -1}, "inactive_after is -1"),
        ({"inactive_after": True}, "inactive_after is True"),
        ({"user": ""}, "user is ''; expected the name of a column"),
        ({"departed": 3}, "departed is 3; expected the name of a column or None"),
        ({"duplicates": "some"}, "expected one of drop, keep"),
        ({"categories": "news"}, "expected a list of names"),
        ({"categories": ["a", "a"]}, "twice"),
        ({"categories": [" "]}, "nonempty names"),
        ({"categories": range(1001)}, "at most 1,000"),
        ({"categories": ["x"]}, r"lists the category 'x', which no event .* has; its categories are 'news' \(\d+"),
        ({"categories": ["x"], "max_rejected": 1}, "None of the .* events .*category is not in `categories`"),
        ({"max_rejected": 2}, "max_rejected is 2; expected a number from 0 to 1"),
        ({"time_format": "day"}, "time_format is 'day'; expected a format such as"),
        ({"time_format": "%Q"}, "time_format is '%Q'; expected a format such as"),
        ({"time_format": "%Y%j"}, "time cannot be parsed"),
        ({"clicked_values": 3}, "clicked_values is 3; expected a list of values"),
        ({"clicked_values": ["maybe"]}, "clicked_values lists 'maybe', which does not occur in column 'clicked'"),
        ({"departed_values": "gone"}, "departed_values lists 'gone', which does not occur in column 'departed'"),
        ({"memory_limit": "much"}, "memory_limit is 'much'"),
        ({"memory_limit": 5}, "memory_limit is 5"),
        ({"rejects": "bad.xlsx"}, "expected one of .parquet, .csv"),
        ({"rejects": "no/such/folder/bad.csv"}, "Cannot write"),
        ({"clicked": "time"}, r"Column 'time' for clicked holds \d; expected 0 or 1.*instance time >="),
        ({"time": "clicked"}, "Column 'clicked' for time is of type BOOLEAN"),
        ({"departed": "category"}, "Column 'category' for departed holds .*are not known words"),
    ],
)
def test_an_invalid_argument_raises_an_error_of_one_sentence(folder, arguments, words):
    with pytest.raises(dp.InputError, match=words) as error:
        dp.read_log(folder / "events.parquet", **arguments)
    assert "\n" not in str(error.value)


def test_malformed_lines_are_counted_and_written_to_rejects(tmp_path):
    rows = ["1,0,news,1,0", "1,1,news,0,1,too,many", "2,0", "2,5,sport,0,1"]
    path = write(tmp_path / "a.csv", rows)
    log = dp.read_log(path, rejects=tmp_path / "bad.parquet", max_rejected=1)
    [bad] = log.report.irregularities
    assert (bad.kind, bad.count, log.report.events) == ("malformed line", 2, 4)
    assert "1,1,news,0,1,too,many" in bad.examples[0]
    [(n,)] = duckdb.sql(f"SELECT count(rejection_reason) FROM '{tmp_path}/bad.parquet'").fetchall()
    assert n == 2


def test_rejected_rows_are_written_unchanged(tmp_path):
    rows = ["1,0,news,1,0", "1,1,news,perhaps,0", "1,2,sport,0,1", "1,3,sport,0,0", "2,0,news,1,0", "2,0,news,1,0"]
    path = write(tmp_path / "a.csv", rows, header="user,time,category,clicked,rejection_reason")
    dp.read_log(path, departed="rejection_reason", rejects=tmp_path / "bad.csv", max_rejected=1)
    written = duckdb.sql(f"FROM read_csv('{tmp_path}/bad.csv', all_varchar = true) ORDER BY ALL").fetchall()
    assert written == [
        ("1", "1", "news", "perhaps", "0", "clicked cannot be parsed"),
        ("1", "3", "sport", "0", "0", "event after the user's departure"),
        ("2", "0", "news", "1", "0", "duplicate row"),
    ]


def test_a_source_column_named_rejection_reason_does_not_clash_with_the_added_one(tmp_path):
    path = write(
        tmp_path / "log.csv", ["a,1,x,1,0", "a,2,x,,0", "b,1,x,0,1"], "user,time,category,clicked,Rejection_Reason"
    )
    dp.read_log(path, departed="Rejection_Reason", rejects=tmp_path / "bad.csv", max_rejected=1)
    assert "rejection_reason_" in (tmp_path / "bad.csv").read_text().splitlines()[0]


@pytest.mark.parametrize("name", ["log[1].csv", "log[1].parquet", "log[ab]*.jsonl"])
def test_a_file_name_with_pattern_characters_is_read_as_a_name(tmp_path, name):
    rows = "SELECT 'a' AS \"user\", 1 AS time, 'x' AS category, 1 AS clicked, 0 AS departed"
    plain = tmp_path / f"plain.{name.rsplit('.')[-1]}"
    duckdb.sql(f"COPY ({rows}) TO '{plain}'" + (" (FORMAT json)" if name.endswith("jsonl") else ""))
    plain.rename(tmp_path / name)
    (tmp_path / name.replace("[1]", "1")).touch()
    assert dp.read_log(tmp_path / name).report.used == 1


def test_inactivity_of_exactly_the_period_is_a_departure(tmp_path):
    times = ["2024-01-01 00:00:00", "2024-01-01 00:00:01", "2024-01-31"]
    path = write(
        tmp_path / "a.csv", [f"{i},{time},news,{i % 2}" for i, time in enumerate(times)], "user,time,category,clicked"
    )
    log = dp.read_log(path, inactive_after="30 days")
    assert (log.report.departed, log.report.inactive, log.report.pending) == (1, 1, 2)
    assert histories_of(log) == {(((0, 2),), ()): 1, (((0, 0),), ((0, 0),)): 1, (((0, 1),), ((0, 1),)): 1}


def test_time_zones_are_converted_and_times_without_one_are_utc(tmp_path):
    rows = ["1,2024-01-01T12:00:00+02:00,a,1", "1,2024-01-01T11:00:00,b,0", "2,2024-03-01,b,0"]
    log = dp.read_log(write(tmp_path / "a.csv", rows, "user,time,category,clicked"), inactive_after="1 week")
    assert histories_of(log)[((0, 0), (1, 2)), ()] == 1  # the second event is an hour later than the first
    [mixed] = log.report.irregularities
    assert (mixed.kind, mixed.count) == ("time without a zone among times with a zone", 2)


@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP_NS", "TIMESTAMP_S"])
def test_every_type_of_time_column_is_read(tmp_path, kind):
    duckdb.sql(
        f"COPY (SELECT i % 3 AS user, ('2024-01-01'::DATE + i::INTEGER)::{kind} AS time, 'a' AS category, "
        f"i % 2 AS clicked FROM range(10) r(i)) TO '{tmp_path}/a.parquet'"
    )
    log = dp.read_log(tmp_path / "a.parquet", inactive_after="2 days")
    assert (log.report.first, log.report.last) == ("2024-01-01 00:00:00", "2024-01-10 00:00:00")
    assert log.report.inactive == 1  # the user of the eighth of January


@pytest.mark.parametrize("scale", [1, 1e-5, -1, 10**14])
def test_times_may_be_numbers_of_any_magnitude(tmp_path, scale):
    rows = [f"{i % 2},{i * scale!r},a,{i % 3 % 2}" for i in range(12)]
    log = dp.read_log(write(tmp_path / "a.csv", rows, "user,time,category,clicked"), inactive_after=abs(scale))
    assert log.report.inactive == 1
    assert log.report.irregularities == ()


def test_one_user_one_category_no_clicks_and_all_censored(tmp_path):
    log = dp.read_log(write(tmp_path / "a.csv", ["7,1,a,0,0", "7,2,a,0,0"]))
    assert log.counts.tolist() == [[[0, 2, 0, 0]]]
    assert log.report.notes == (
        "There is only one user.",
        "All users are censored: departure probabilities cannot be estimated from this log.",
        "There is only one category.",
        "Never clicked: 'a'.",
    )
    assert "1 users: 0 departed" in str(log.report)


def test_a_note_says_if_more_rows_are_rejected_than_used(tmp_path):
    log = dp.read_log(write(tmp_path / "a.csv", ["7,1,a,0,1", "7,2,a,?,0", ",2,a,1,0"]), max_rejected=1)
    assert "More events were rejected (2) than used (1)." in log.report.notes
    assert repr(log).endswith("; 2 events rejected>")


def test_columns_may_have_any_name(tmp_path):
    header = 'u,"it\'s ""t""",c,y,whole,departing_row'
    log = dp.read_log(
        write(tmp_path / "a.csv", ["1,1,2,1,no,0", "1,2,10,0,yes,0"], header),
        user="u",
        time='it\'s "t"',
        category="c",
        clicked="y",
        departed="whole",
    )
    assert log.categories == ("2", "10")
    assert histories_of(log) == {(((0, 0), (1, 2)), ()): 1}


@pytest.mark.slow
def test_too_many_categories_are_refused_unless_listed(tmp_path):
    path = tmp_path / "a.parquet"
    duckdb.sql(
        "COPY (SELECT i % 1000 AS user, i AS time, (i * 7919) % 100000 AS category, i % 3 = 0 AS clicked, "
        f"false AS departed FROM range(300000) r(i)) TO '{path}'"
    )
    with pytest.raises(dp.InputError, match=r"Column 'category' holds more than 1,000 categories.*by `categories`"):
        dp.read_log(path)
    log = dp.read_log(path, categories=range(50), max_rejected=1)
    assert log.report.rejected == 300000 - 150
    with pytest.raises(
        dp.InputError, match=r"distinct counts in 1,000 categories, a table of .* GB, but memory_limit"
    ):
        dp.read_log(_many(tmp_path / "b.parquet"), memory_limit="100 MB")


def _many(path):
    duckdb.sql(
        "COPY (SELECT i // 3 AS user, i AS time, hash(i) % 1000 AS category, i % 3 = 0 AS clicked, false AS departed "
        f"FROM range(30000) r(i)) TO '{path}'"
    )
    return path


def test_long_histories_with_ties_are_read_correctly(tmp_path):
    duckdb.sql(
        "COPY (SELECT i % 5 AS user, i // 10 AS time, hash(i) % 3 AS category, i % 7 < 3 AS clicked, "
        f"i >= 4995 AS departed FROM range(5000) r(i)) TO '{tmp_path}/a.parquet'"
    )
    log = dp.read_log(tmp_path / "a.parquet", duplicates="keep")
    assert (log.users, log.steps.tolist(), log.report.departed) == (5, [1000] * 5, 5)
    assert {each.kind: each.count for each in log.report.irregularities} == {
        "same time as another event of the user": 5000
    }


def test_episodes_can_be_read_repeatedly_and_in_parts(folder, log):
    parts = list(log.episodes(users=7))
    assert len(parts) == 43
    assert [part.user[0] for part in parts] == list(range(0, 300, 7))
    assert sum(map(len, parts)) == log.report.used
    assert all(np.isnan(part.propensity).all() for part in parts)
    with pytest.raises(dp.InputError, match="users is 0"):
        next(log.episodes(users=0))


@pytest.mark.parametrize("unit", [1, 0.5])
def test_episodes_know_the_times_of_their_steps(unit):
    rows = {"user": ["b", "a", "a", "b", "c"], "time": [10, 14, 12, 30, 20], "category": list("xyxyx")}
    rows["time"] = [unit * time for time in rows["time"]]
    frame = polars.DataFrame(rows | {"clicked": [1, 0, 1, 0, 0], "departed": [0, 1, 0, 1, 1]})
    (part,) = dp.read_log(frame).episodes()
    assert part.user.tolist() == [0, 0, 1, 1, 2]
    assert part.time.tolist() == [0.1, 0.2, 0.0, 1.0, 0.5]


def test_json_values_of_every_type_are_read(tmp_path):
    rows = [
        {"user": 1, "time": "2024-01-01T00:00:00Z", "category": 1, "clicked": True, "departed": None},
        {"user": "x", "time": "2024-01-02T00:00:00Z", "category": "1", "clicked": 0, "departed": 1.0},
        {"user": "x", "time": None, "category": "1", "clicked": "no", "more": {"a": [1]}},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    log = dp.read_log(path, max_rejected=1)
    assert histories_of(log) == {(((0, 0),), ((0, 0),)): 1, (((0, 2),), ()): 1}
    assert [each.kind for each in log.report.irregularities] == ["time is missing", "departed is missing"]


@pytest.mark.parametrize(
    "name", ["events.csv", "events.parquet", "events.jsonl.gz", "events.duckdb", "events.sqlite"]
)
def test_a_log_does_not_silently_read_a_changed_file(folder, tmp_path, name):
    path = tmp_path / name
    path.write_bytes((folder / name).read_bytes())
    log = dp.read_log(path, table="events" if name.endswith(("duckdb", "sqlite")) else None)
    model = dp.fit(log, types=1)
    expected = model.check().p_value
    assert model.check().p_value == expected
    changed = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(changed, changed))
    with pytest.raises(dp.InputError, match=rf"{name}' changed since the log was read; read the log again with"):
        list(log.episodes())
    assert model.check().p_value == expected  # on the steps that were read
    path.unlink()
    with pytest.raises(dp.InputError, match="There is no file"):
        list(log.episodes())


def test_a_log_of_a_folder_notices_an_added_file(folder, tmp_path):
    (tmp_path / "0.parquet").write_bytes((folder / "parts" / "0.parquet").read_bytes())
    log = dp.read_log(tmp_path)
    (tmp_path / "1.parquet").write_bytes((folder / "parts" / "1.parquet").read_bytes())
    with pytest.raises(dp.InputError, match=r"1.parquet' changed since the log was read"):
        list(log.episodes())


def test_a_log_of_a_frame_notices_changed_values():
    import pandas

    events = pandas.DataFrame(
        {
            "user": [1, 1, 2],
            "time": [1, 2, 1],
            "category": ["a", "b", "a"],
            "clicked": [1, 0, 1],
            "departed": [0, 1, 0],
        }
    )
    log = dp.read_log(events)
    assert len(steps_of(log)) == 2
    for column, row, value in (("clicked", 0, 0), ("category", 2, "c"), ("user", 2, 1), ("time", 1, 0)):
        before = events.loc[row, column]
        events.loc[row, column] = value
        with pytest.raises(dp.InputError, match="Rows of the pandas DataFrame changed since they were read"):
            list(log.episodes())
        events.loc[row, column] = before
    assert len(steps_of(log)) == 2


def test_blank_text_of_any_kind_is_missing(tmp_path):
    rows = [
        {"user": "a", "time": i, "category": c, "clicked": 1}
        for i, c in enumerate(["x", "\t", " \n", "", "\u00a0", "x"])
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    log = dp.read_log(tmp_path / "a.jsonl", inactive_after=1, max_rejected=1)
    assert log.categories == ("x",)
    assert [(each.kind, each.count) for each in log.report.irregularities] == [("category is missing", 4)]


def test_a_log_prints_a_summary(log):
    assert log.summary().startswith("<Log of 300 users")
    assert log.report.summary() in log.summary()


def test_columns_of_a_frame_without_values_are_missing_values():
    columns = ["user", "time", "category", "clicked", "departed"]
    with pytest.raises(dp.InputError, match="There are no events in the pandas DataFrame"):
        dp.read_log(pd.DataFrame([], columns=columns))
    times = pd.date_range("2026-01-01", periods=200, freq="h")
    table = pd.DataFrame({"user": range(200), "time": times, "category": "a", "clicked": True, "departed": None})
    assert dp.read_log(table, inactive_after="1 day").users == 200
    with pytest.raises(dp.InputError, match="clicked is missing in 200 of them"):
        dp.read_log(table.assign(clicked=None), inactive_after="1 day")


def test_the_memory_limit_includes_what_the_process_already_holds(tmp_path, monkeypatch):
    """Off-policy evaluation reads a log again after a fit, whose libraries and arrays stay in memory."""
    path = tmp_path / "events.parquet"
    dp.sample_log(dp.Instance([0.5, 0.5], [[0.8, 0.2], [0.3, 0.6]], 0.2), 300, seed=1).save(path)
    log = dp.read_log(path, inactive_after="10 days", memory_limit="1 GB")
    sizes = {}
    for resident in (100, 600, 5000):
        monkeypatch.setattr(sources, "resident_bytes", lambda resident=resident: resident * 10**6)
        with log.source.open() as engine:
            ((limit, threads),) = engine.rows("SELECT current_setting('memory_limit'), current_setting('threads')")[0]
            sizes[resident] = engine.memory // 10**6, limit, threads <= max(engine.memory // sources.THREAD_BYTES, 1)
    assert sizes == {
        100: (630, "600.8 MiB", True),
        600: (280, "267.0 MiB", True),
        5000: (250, "238.4 MiB", True),
    }


def test_users_are_followed_in_more_parts_where_there_is_less_memory(tmp_path):
    path = tmp_path / "events.parquet"
    dp.sample_log(dp.Instance([0.5, 0.5], [[0.8, 0.2], [0.3, 0.6]], 0.2), 3000, seed=1).save(path)
    log = dp.read_log(path, inactive_after="10 days")
    with log.source.open() as engine:
        reduce = KnownLogReader(engine, log.spec).walks(log.profile, log.digest, None)
        (whole,) = reduce(lambda steps, _: steps, {})
        small = replace(engine, memory=int(len(whole["step"]) / 4 * sources.WALK_BYTES / sources.WALK_SHARE))
        parts, _ = small.reduce(lambda steps, _: steps, {}, rules.digest(log.profile))
    assert 4 <= len(parts) <= 5
    assert all(part["step"][0] == 0 for part in parts)  # users are not split
    assert sum(len(part["step"]) for part in parts) == len(whole["step"])


def test_resident_memory_is_that_of_the_process(monkeypatch):
    assert 10**7 < sources.resident_bytes() < 10**11
    monkeypatch.setattr(sources, "Path", lambda name: Path(f"/nowhere{name}"))
    assert sources.resident_bytes() == 0
