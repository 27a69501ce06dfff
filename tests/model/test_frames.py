"""Data frames of results, and HTML tables."""

import sys

import pandas as pd
import polars as pl
import pytest

from departing.html_tables import MAX_ROWS, html_repr
from departing.model.errors import InputError
from departing.model.frames import to_frame

COLUMNS = {"category": ["news", "sport"], "clicks": [3, 1]}


def test_frames_are_of_pandas_if_installed():
    assert to_frame(COLUMNS).equals(pd.DataFrame(COLUMNS))


def test_frames_are_of_polars_without_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)  # its import fails
    assert to_frame(COLUMNS).equals(pl.DataFrame(COLUMNS))


def test_missing_libraries_are_named(monkeypatch):
    for library in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match="pip install pandas"):
        to_frame(COLUMNS)


def test_html_is_escaped_and_short():
    name = "<script>alert('x')</script>"
    text = html_repr(name, [name], [[name]] * (MAX_ROWS + 3), [name])
    assert "<script" not in text
    assert text.count("<td>") == MAX_ROWS
    assert "3 more rows" in text
