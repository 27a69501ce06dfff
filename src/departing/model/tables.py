"""Tables of DuckDB: names and strings in SQL, and files in Parquet and CSV."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from departing.model.errors import InputError, interruptible_query
from departing.model.files import atomic_write, check_suffix

_COPY_OPTIONS = {".parquet": "FORMAT parquet, COMPRESSION zstd", ".csv": "FORMAT csv, HEADER true"}
TABLE_SUFFIXES = tuple(_COPY_OPTIONS)


def quoted(name: str) -> str:
    """`name` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """`text` as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def disable_progress_bar(database: duckdb.DuckDBPyConnection) -> None:
    """Keep queries from printing a progress bar.

    In a notebook without ipywidgets there is none, and DuckDB refuses to change the setting.
    """
    if database.execute("SELECT current_setting('enable_progress_bar')").fetchall()[0][0]:
        database.execute("SET enable_progress_bar = false")


def write_table(database: duckdb.DuckDBPyConnection, query: str, path: str | os.PathLike[str]) -> None:
    """Write the rows of `query` to a .parquet or .csv file, which appears only when it is complete."""
    check_suffix(path, TABLE_SUFFIXES)
    with atomic_write(path) as part, write_errors(path):
        copy_rows(database, query, part)


def copy_rows(database: duckdb.DuckDBPyConnection, query: str, part: os.PathLike[str]) -> None:
    """Write the rows of `query` to `part`, the temporary path of a .parquet or .csv file."""
    options = _COPY_OPTIONS[check_suffix(part, TABLE_SUFFIXES)]
    disable_progress_bar(database)
    database.execute(f"COPY ({query}) TO {literal(str(part))} ({options}, USE_TMP_FILE false)")


@contextmanager
def write_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors of the database into an input error about `path`; an interrupt stays an interrupt."""
    try:
        with interruptible_query():
            yield
    except duckdb.Error as error:
        number = re.search(r'"errno":"(\d+)"', str(error))  # of the system's error, which has a plainer message
        reason = os.strerror(int(number[1])) if number else str(error).splitlines()[0]
        raise InputError(f"Cannot write {str(path)!r}: {reason}.") from error
