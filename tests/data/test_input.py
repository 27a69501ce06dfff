"""Input that is not understood raises an error or is noted; what is inferred is said."""

import gzip
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import departing as dp
from departing.data.columns import USUAL_NAMES, find_columns
from helpers.commands import call, json_output

N = 200


def frame(**columns):
    """A regular log of 40 users with five daily events each, and the given columns in place of its own."""
    i = np.arange(N)
    regular = {
        "user": i // 5,
        "time": pd.Timestamp("2024-01-01") + pd.to_timedelta(i % 5 * 24 + i // 5, unit="h"),
        "category": np.array(["news", "sport", "film"])[i % 3],
        "clicked": i % 2 == 0,
        "departed": i % 5 == 4,
    }
    return pd.DataFrame({name: values for name, values in (regular | columns).items() if values is not None})


def repeated(*values):
    return (list(values) * N)[:N]


# columns


@pytest.mark.parametrize("field", USUAL_NAMES)
def test_columns_are_found_under_their_usual_names(field):
    defaults = {name: name for name in USUAL_NAMES}
    for tier in USUAL_NAMES[field]:
        for name in tier.split():
            columns = [other for other in defaults if other != field] + [name.upper().replace("ID", "_Id")]
            fields, sentences = find_columns(defaults, columns, "the log", False)
            assert fields[field] == columns[-1]
            assert name == field or any(f"is used for {field}" in each for each in sentences)


def test_guessed_columns_are_reported():
    log = dp.read_log(frame().rename(columns={"user": "Member ID", "time": "ts", "departed": "churned"}))
    assert log.report.columns == {
        "user": "Member ID",
        "time": "ts",
        "category": "category",
        "clicked": "clicked",
        "departed": "churned",
    }
    assert log.report.guessed == (
        "Column 'Member ID' is used for user.",
        "Column 'ts' is used for time.",
        "Column 'churned' is used for departed.",
    )
    assert log.report.guessed[0] in str(log.report)


def test_ambiguous_columns_raise_and_better_names_win():
    both = frame().rename(columns={"user": "user_id"}).assign(uid=1)
    with pytest.raises(dp.InputError, match=r"may be the user: 'user_id', 'uid'; name one, such as `user`='user_id'"):
        dp.read_log(both)
    assert dp.read_log(both, user="user_id").report.guessed == ()
    log = dp.read_log(frame().rename(columns={"user": "user_id"}).assign(session_id=1, device_id=2))
    assert log.report.columns["user"] == "user_id"
    unsure = dp.read_log(frame().assign(prob=0.5, pscore=0.5))
    assert "propensity" not in unsure.report.columns
    assert "'prob', 'pscore' may hold propensities" in unsure.report.guessed[0]


def test_a_missing_column_names_the_option_and_the_columns():
    with pytest.raises(dp.InputError) as error:
        dp.read_log(frame().rename(columns={"user": "whom"}))
    assert str(error.value) == (
        "There is no column 'user' for user in the pandas DataFrame; its columns are 'whom', 'time', 'category', "
        "'clicked', 'departed'. Name it by `user`=COLUMN."
    )
    with pytest.raises(dp.InputError, match=r"no columns 'usr' for user and 'tim' for time .* `user`='user' `time`="):
        dp.read_log(frame(), user="usr", time="tim")


def test_an_inactivity_period_is_not_mixed_with_a_guessed_departure():
    log = dp.read_log(frame().rename(columns={"departed": "churned"}), inactive_after="1 day")
    assert "departed" not in log.report.columns


# rejected rows, categories and flags


def test_more_rejected_rows_than_accepted_raise_with_counts_reasons_and_examples():
    dirty = frame(category=["", *repeated("news")[:-12], *[None] * 11])
    with pytest.raises(dp.InputError) as error:
        dp.read_log(dirty)
    first, *lines, last = str(error.value).splitlines()
    assert first == (
        "12 of 200 events in the pandas DataFrame (6.0%) are rejected; the accepted share is 0.05 (`max_rejected`)."
    )
    assert lines[0] == "  12 × category is missing"
    assert len(lines) == 4
    assert last == "Next step: correct the rows; or accept the loss of these rows by `max_rejected`=0.06."
    assert dp.read_log(dirty, max_rejected=0.06).report.rejected == 12
    assert dp.read_log(frame(category=[*repeated("news")[:-10], *[None] * 10])).report.rejected == 10


def test_a_listed_category_that_does_not_occur_raises():
    with pytest.raises(dp.InputError) as error:
        dp.read_log(frame(), categories=["news", "sports", "film"])
    assert str(error.value) == (
        "`categories` lists the category 'sports', which no event in the pandas DataFrame has; its categories are "
        "'film' (66 events), 'news' (67 events), 'sport' (67 events), and 67 of 200 events have a category that is "
        "not listed. For 'sports': did you mean 'sport'? Correct `categories`, or accept this by `max_rejected`=1."
    ).replace("'film' (66 events), 'news' (67 events), 'sport' (67 events)", _categories(error))
    log = dp.read_log(frame(), categories=["news", "sports", "film"], max_rejected=0.4)
    assert log.categories == ("news", "sports", "film")


def _categories(error):
    """The categories in the message, which are in the order of their numbers of events."""
    return str(error.value).split("its categories are ")[1].split(", and")[0]


@pytest.mark.parametrize(
    ("field", "labels", "words"),
    [
        ("clicked", ("click", "impression"), r"'impression' is not a known word.*such as `clicked_values`='click'"),
        ("clicked", ("Open", "Ignored"), r"'ignored', 'open' are not known words"),
        ("clicked", ("ja", "nein"), r"such as `clicked_values`='ja' or `clicked_values`='nein': all other values"),
        ("clicked", ("no", "opened"), r"'opened' is not a known word.*such as `clicked_values`='opened': all other"),
        ("departed", ("churned", "active"), r"for departed holds 'active' \(100 rows\), 'churned' \(100 rows\)"),
    ],
)
def test_labels_that_are_not_known_words_raise(field, labels, words):
    with pytest.raises(dp.InputError, match=words):
        dp.read_log(frame(**{field: repeated(*labels)}))


def test_values_that_mean_a_click_or_a_departure_are_named():
    expected = dp.read_log(frame())
    clicked = ["Click" if each else "impression" for each in frame().clicked]
    departed = ["gone" if each else "here" for each in frame().departed]
    log = dp.read_log(frame(clicked=clicked, departed=departed), clicked_values="click", departed_values=["GONE "])
    assert (log.counts == expected.counts).all()
    rated = [4 if each else 2.5 for each in frame().clicked]
    rated = dp.read_log(frame(clicked=[5, *rated[1:]]), clicked_values=[4, 5])
    assert (rated.counts == expected.counts).all()
    with pytest.raises(dp.InputError, match=r"clicked_values lists 'clik', .* its values are '.*' \(100 rows\)"):
        dp.read_log(frame(clicked=clicked), clicked_values="clik")
    missing = dp.read_log(frame(clicked=["NULL", None, *clicked[2:]]), clicked_values="click")
    assert missing.report.irregularities[0].kind == "clicked is missing"


def test_words_for_missing_values_are_missing_unless_listed():
    words = ["NaN", "NULL", "None", "N/A", *repeated("news", "sport")[4:]]
    log = dp.read_log(frame(category=words))
    assert log.categories == ("news", "sport")
    assert log.report.irregularities[0].count == 4
    listed = dp.read_log(frame(category=words), categories=["news", "sport", "None"])
    assert listed.report.irregularities[0].count == 3
    assert dp.read_log(frame(user=words, departed=False)).users == 2


def test_similar_categories_are_noted():
    log = dp.read_log(frame(category=["sprot", "News", " sport ", *repeated("news", "sport")[3:]]))
    assert log.report.notes[:3] == (
        "Categories ' sport ' (1 events) and 'sport' (99 events) differ in case or spaces only and are separate "
        "categories; to merge them, write them alike in the log.",
        "Categories 'News' (1 events) and 'news' (98 events) differ in case or spaces only and are separate "
        "categories; to merge them, write them alike in the log.",
        "Category 'sprot' (1 events) may be a misspelling of 'sport' (99 events).",
    )


def test_lists_raise(tmp_path):
    with pytest.raises(dp.InputError, match=r"Column 'category' for category is of type VARCHAR\[\]; expected one"):
        dp.read_log(frame(category=[["news"]] * N))
    with pytest.raises(dp.InputError, match=r"holds lists such as \"\['news'\]\""):
        dp.read_log(frame(category=["['news']"] * N))
    row = {"user": 1, "time": 1, "category": ["news"], "clicked": 1, "departed": 0}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    with pytest.raises(dp.InputError, match=r"Column 'category' for category is of type VARCHAR\[\]"):
        dp.read_log(tmp_path / "a.jsonl")


# times


def stamps(form):
    return [time.strftime(form) for time in frame().time]


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ("%Y-%m-%d %H:%M:%S", None),
        ("%Y-%m-%dT%H:%M:%S.%fZ", None),
        ("%Y/%m/%d %H:%M", None),
        ("%Y.%m.%d %H:%M", None),
        ("%Y-%m-%d %H:%M +0000", None),
        ("%d.%m.%Y %H:%M", "the day first, because that is the order with dots"),
        ("%d %b %Y %H:%M", None),
        ("%b %d, %Y %H:%M", None),
    ],
)
def test_times_are_read_in_usual_formats(form, sentence):
    expected, log = dp.read_log(frame()), dp.read_log(frame(time=stamps(form)))
    assert (log.report.first, log.report.last) == (expected.report.first, expected.report.last)
    assert (log.counts == expected.counts).all()
    assert [sentence] == [None if not log.report.guessed else log.report.guessed[0][-len(sentence) - 1 : -1]]


@pytest.mark.parametrize(
    "form", ["%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d-%m-%Y", "%m/%d/%Y %I:%M %p", "%d/%m/%Y %H:%M:%S+00:00"]
)
def test_the_order_of_day_and_month_is_inferred_or_asked_for(form):
    later = frame(time=frame().time + pd.Timedelta(days=14))
    texts = [time.strftime(form) for time in later.time]
    log = dp.read_log(frame(time=texts), duplicates="keep")
    which = "day" if form.startswith("%d") else "month"
    column = f"Dates in column 'time' are read with the {which} first, because a day above 12 occurs."
    assert log.report.guessed == (column,)
    assert log.report.first.startswith("2024-01-15")
    ambiguous = frame(time=stamps(form))
    with pytest.raises(dp.InputError, match=r"the order of day and month is ambiguous; give `time_format`='%d.%m.%Y"):
        dp.read_log(ambiguous)
    log = dp.read_log(ambiguous, time_format=form.replace("+00:00", "%z"), duplicates="keep")
    assert log.report.first.startswith("2024-01-01")


def test_mixed_orders_and_years_of_two_digits_raise():
    with pytest.raises(dp.InputError, match=r"mixes dates with the day first \(100 .*`time_format`='%d/%m/%Y'"):
        dp.read_log(frame(time=repeated("13/01/2024", "01/13/2024")))
    with pytest.raises(dp.InputError, match="time cannot be parsed"):
        dp.read_log(frame(time=stamps("%d-%m-%y")))
    log = dp.read_log(frame(time=stamps("%d-%m-%y")), time_format="%d-%m-%y", duplicates="keep")
    assert log.report.last == "2024-01-06 00:00:00"
    integers = dp.read_log(frame(time=[*map(int, stamps("%Y%m%d"))]), time_format="%Y%m%d", duplicates="keep")
    assert integers.report.last == "2024-01-06 00:00:00"
    with pytest.raises(dp.InputError, match="not text; leave it out"):
        dp.read_log(frame(), time_format="%Y")


@pytest.mark.parametrize(("unit", "scale"), [("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6)])
@pytest.mark.parametrize("kind", [int, str, float])
def test_epochs_are_timestamps(unit, scale, kind):
    seconds = frame().time.astype("int64") // (10**9 if frame().time.dtype == "datetime64[ns]" else 10**6)
    expected = dp.read_log(frame(departed=None), inactive_after="1 day")
    log = dp.read_log(frame(time=[kind(each * scale) for each in seconds], departed=None), inactive_after="1 day")
    assert (log.report.first, log.report.last) == (expected.report.first, expected.report.last)
    assert (log.counts == expected.counts).all()
    assert log.report.guessed == (f"Numbers in column 'time' are read as {unit} since 1970.",)


def test_a_last_row_whose_outcome_is_open_is_not_counted_as_rejected():
    i = np.arange(N)
    clicked = pd.Series(i % 2 == 0, dtype=object)
    last = clicked.where(i % 5 != 4, None)
    whole = frame(clicked=last, departed=None)
    for table in (whole, whole.sample(frac=1, random_state=1)):
        log = dp.read_log(table, inactive_after="9 days")
        assert (log.report.used, log.report.users) == (160, 40)
        assert "40 × clicked is missing" in log.report.summary()
    middle = clicked.where(i % 5 != 2, None)
    with pytest.raises(dp.InputError, match=r"40 of 200 .* are rejected"):
        dp.read_log(frame(clicked=middle, departed=None), inactive_after="9 days")


def test_epochs_as_floats_have_the_same_assignments():
    times = frame().time.astype("datetime64[ns]").astype("int64")
    site = dp.Instance([0.6, 0.4], [[0.7, 0.2]] * 3, 0.5, categories=["film", "news", "sport"])
    tables = [
        dp.assign(dp.read_log(frame(time=each, departed=None), inactive_after="2 days"), site, "greedy").to_frame()
        for each in (times, times.astype(float), times.astype("uint64"), times.astype(float) / 1e3)
    ]
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table, tables[0])


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_times_with_a_zone_in_arrow(unit):
    aware = frame(departed=None)
    aware["time"] = aware.time.astype(f"datetime64[{unit}]").dt.tz_localize("UTC")
    expected = dp.read_log(frame(departed=None), inactive_after="1 day")
    log = dp.read_log(pa.Table.from_pandas(aware), inactive_after="1 day")
    assert (log.report.first, log.report.last) == (expected.report.first, expected.report.last)
    assert (log.counts == expected.counts).all()


@pytest.mark.parametrize("form", ["%Y%m%d", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S"])
@pytest.mark.parametrize("kind", [int, str, float])
def test_digits_of_dates_are_timestamps(form, kind):
    options = {"inactive_after": "1 day", "duplicates": "keep"}
    times = stamps(form)
    expected = dp.read_log(frame(time=times, departed=None), time_format=form, **options)
    log = dp.read_log(frame(time=[kind(int(each)) for each in times], departed=None), **options)
    assert (log.report.first, log.report.last) == (expected.report.first, expected.report.last)
    assert (log.counts == expected.counts).all()
    assert log.report.guessed == (f"Numbers in column 'time' are read as dates in the format '{form}'.",)
    counters = dp.read_log(frame(time=range(20_240_140, 20_240_140 + N)))
    assert counters.report.guessed == ()
    assert counters.report.first == "20240140"


def test_mixed_epochs_raise():
    seconds = [1_704_067_200 + i * 1000 for i in range(N)]
    mixed = [each * 1000 if i % 3 else each for i, each in enumerate(seconds)]
    with pytest.raises(dp.InputError, match=r"in seconds \(67 rows\) and milliseconds \(133 rows\); convert all"):
        dp.read_log(frame(time=mixed))


def test_equal_rows_of_dates_are_noted_or_raise():
    few = frame(time=stamps("%Y-%m-%d"), item=range(N), departed=False)
    few = pd.concat([few, few[:3]])
    log = dp.read_log(few)
    assert "3 equal rows were rejected as duplicates; if they are separate events, use dup" in log.report.notes[0]
    with pytest.raises(dp.InputError, match=r"100 × duplicate row(.|\n)*use `duplicates`='keep'"):
        dp.read_log(pd.concat([few[:N], few[:100]]))
    assert dp.read_log(pd.concat([few[:N], few[:100]]), duplicates="keep").report.used == N + 100


# encodings


@pytest.mark.parametrize(
    ("name", "encode", "sentence"),
    [
        ("a.csv", lambda text: text.encode("cp1252"), "is not UTF-8; it is read as Windows-1252 (Latin-1)."),
        ("a.csv", lambda text: text.encode("utf-16"), "is not UTF-8; it is read as UTF-16."),
        ("a.csv", lambda text: text.encode("utf-8-sig"), None),
        ("a.csv", lambda text: gzip.compress(text.encode()), "is compressed by gzip."),
        ("a.csv.gz", lambda text: gzip.compress(text.encode("latin-1")), "read as Windows-1252 (Latin-1)."),
        ("a.csv.gz", lambda text: text.encode(), None),
        ("a.tsv", lambda text: text.replace(",", "\t").encode("cp1252"), "read as Windows-1252 (Latin-1)."),
    ],
)
def test_other_encodings_are_read(tmp_path, name, encode, sentence):
    text = frame(category=repeated("café", "Köln", "Ærø")).to_csv(index=False)
    (tmp_path / name).write_bytes(encode(text))
    log = dp.read_log(tmp_path / name)
    assert sorted(log.categories) == ["Köln", "café", "Ærø"]
    assert log.report.rejected == 0
    assert log.report.guessed[0].endswith(sentence) if sentence else log.report.guessed == ()


def test_invalid_bytes_in_utf8_are_malformed_lines(tmp_path):
    text = frame(category=repeated("café", "Köln")).to_csv(index=False).encode()
    (tmp_path / "a.csv").write_bytes(text + b"7,2024-01-01,caf\xe9,1,0\n")
    log = dp.read_log(tmp_path / "a.csv")
    assert [(each.kind, each.count) for each in log.report.irregularities] == [("malformed line", 1)]


# the command line


def test_commands_have_the_same_options(tmp_path):
    path = tmp_path / "log.csv"
    clicked = ["click" if each else "impression" for each in frame().clicked]
    events = frame(clicked=clicked, time=stamps("%d/%m/%Y"), item=range(N), departed=np.arange(N) == N - 1)
    events.rename(columns={"user": "uid"}).to_csv(path, index=False)
    arguments = ["fit", path, "--types", "1", "--bootstrap", "0"]
    done = call(*arguments)
    assert done.exit_code == 2
    assert "give --time-format='%d/%m/%Y' or --time-format='%m/%d/%Y'" in done.stderr
    arguments += ["--time-format", "%d/%m/%Y"]
    assert "such as --clicked-values='click'" in call(*arguments).stderr
    arguments += ["--clicked-values", "click"]
    result = json_output(*arguments)
    assert result["log"]["columns"]["user"] == "uid"
    assert result["log"]["guessed"] == ["Column 'uid' is used for user."]
    path.write_text(path.read_text() + "\n".join(path.read_text().splitlines()[1:100]) + "\n")
    assert "--duplicates='keep'; or accept the loss of these rows by --max-rejected=" in call(*arguments).stderr
    assert json_output(*arguments, "--duplicates", "keep")["log"]["used"] == N + 99
    assert json_output(*arguments, "--max-rejected", "0.5")["log"]["used"] == N
