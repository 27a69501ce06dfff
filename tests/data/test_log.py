import csv
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import as_slow, read_slowly, steps_of

import departing as dp

FIELDS = ["user", "time", "category", "clicked", "departed", "propensity", "item"]
CLICKS = ["1", "0", "true", "FALSE", " yes", "No", "click", "no click", "", "maybe"]
NUMBERS = ["0", "1", "2", "3", "3.5", "-4", "70", "", "soon"]
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


def rows_of(times):
    row = st.tuples(
        st.sampled_from(["ann", "bob", "cid", "dan", "eve", " "]),
        st.sampled_from(times),
        st.sampled_from(["news", "sport", "film", "it's, \"odd\"", ""]),
        st.sampled_from(CLICKS),
        st.sampled_from(["0", "0", "no", "stayed", "1", "left", "", "perhaps"]),
        st.sampled_from(["0.5", "0.25", "1", "0", "1.5", "", "?"]),
        st.sampled_from(["x", "y"]),
    )
    return st.lists(row, min_size=1, max_size=40)


def write_csv(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([FIELDS, *rows])


@settings(max_examples=50)
@given(
    rows=st.one_of(rows_of(NUMBERS), rows_of(MOMENTS)),
    departed=st.booleans(),
    silent=st.booleans(),
    propensity=st.booleans(),
    categories=st.sampled_from([None, ("sport", "news", "film")]),
    keep=st.booleans(),
)
def test_dirty_logs_are_read_as_row_by_row(rows, departed, silent, propensity, categories, keep):
    dictionaries = [dict(zip(FIELDS, row, strict=True)) for row in rows]
    clock = any(row[1].startswith("2024") for row in rows)
    silent = silent or not departed
    names, histories, kinds, episodes = read_slowly(
        dictionaries,
        has_departed=departed,
        silence=(30 * 86400 if clock else 3) * 10**6 if silent else None,
        categories=categories,
        keep_duplicates=keep,
        has_propensity=propensity,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.csv"
        write_csv(path, rows)
        arguments = {
            "departed": "departed" if departed else None,
            "inactive_after": ("30 days" if clock else 3) if silent else None,
            "propensity": "propensity" if propensity else None,
            "categories": categories,
            "duplicates": "keep" if keep else "drop",
            "rejects": Path(folder) / "bad.csv",
        }
        readable = any(row[4] not in ("", "perhaps") for row in rows)
        if not histories or (departed and not silent and not readable):
            with pytest.raises(dp.InputError, match="None of the|says who departed"):
                dp.read_log(path, **arguments)
            return
        try:
            log = dp.read_log(path, **arguments)
        except dp.InputError as error:
            assert "says who departed" in str(error) and not silent
            return
        assert list(log.categories) == list(names)
        assert as_slow(log) == histories
        report = log.report
        assert {each.kind: each.count for each in report.irregularities} == kinds
        assert all(1 <= len(each.examples) <= 3 for each in report.irregularities)
        assert report.events == len(rows)
        assert report.used == log.steps @ log.multiplicity
        assert report.users == log.users == len(episodes)
        with open(Path(folder) / "bad.csv", newline="", encoding="utf-8") as stream:
            bad = list(csv.DictReader(stream))
        assert len(bad) == report.rejected
        assert steps_of(log, users=2) == episodes
