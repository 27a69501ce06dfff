"""Sources of events: files, folders, databases and frames, each opened in DuckDB as the relation `source`."""

import gzip
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from glob import escape, glob, has_magic
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from departing.model.errors import InputError

FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".duckdb": "database",
    ".sqlite": "database",
    ".sqlite3": "database",
    ".db": "database",
}
BATCH = 2**16  # rows brought over from SQLite at a time
OULAD = Path(__file__).with_name("oulad.parquet")  # the log in the box
THREAD = 125_000_000  # bytes that DuckDB asks for every thread


@dataclass(frozen=True)
class Opened:
    """An open source: the database with the relation `source`, what to call it, and its columns with their types."""

    database: duckdb.DuckDBPyConnection
    name: str
    columns: dict[str, str]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows that `query` gives."""
        return self.database.execute(query).fetchall()


@contextmanager
def opened(source: Any, table: str | None, memory: int) -> Iterator[Opened]:
    """`source` as the relation `source` of a database that spills to a temporary folder beyond `memory` bytes."""
    name = described(source)
    with tempfile.TemporaryDirectory(prefix="departing-") as folder:
        settings: dict[str, Any] = {
            "memory_limit": f"{memory * 9 // 10_000} kB",  # the rest is for Python
            "temp_directory": str(Path(folder) / "spill"),
            "threads": max(min(os.cpu_count() or 1, memory // THREAD), 1),
            "preserve_insertion_order": False,
        }
        with closing(duckdb.connect(config=settings)) as database, _told(name):
            database.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
            _bring(database, source, table, Path(folder))
            columns = {row[0]: row[1] for row in database.execute("DESCRIBE source").fetchall()}
            _keep_malformed(database)
            yield Opened(database, name, columns)


def described(source: Any) -> str:
    """What to call `source` in a sentence."""
    if isinstance(source, str | os.PathLike):
        return "OULAD (CC BY 4.0)" if source == OULAD else repr(str(source))
    return f"the {type(source).__module__.split('.')[0]} {type(source).__name__}"


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Errors of the database as one sentence; Ctrl-C stays what it is."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise InputError(
            f"Reading {name} needs more memory or disk than there is ({_first_line(error)}); give a larger "
            "memory_limit, or set TMPDIR to a folder on a larger disk."
        ) from error
    except (duckdb.Error, sqlite3.Error, zlib.error, OSError, EOFError) as error:
        raise InputError(f"Cannot read {name}: {_first_line(error)}.") from error
    except RuntimeError as error:
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__


def _bring(database: duckdb.DuckDBPyConnection, source: Any, table: str | None, folder: Path) -> None:
    """Make `source` a view if it is columnar, and a table of text if it is text."""
    if not isinstance(source, str | os.PathLike):
        if table is not None:
            raise InputError(f"table is {table!r}, but only a database file has tables.")
        _bring_frame(database, source, folder)
        return
    files, form = find_files(source)
    if form == "database":
        _bring_database(database, files, table, str(source))
        return
    if table is not None:
        raise InputError(f"table is {table!r}, but {str(source)!r} is no database.")
    patterns = [literal(escape(file)) for file in files]  # DuckDB takes a name for a pattern
    listed = ", ".join(patterns)
    if form == "parquet":
        database.execute(f"CREATE VIEW source AS FROM read_parquet([{listed}], union_by_name = true)")
    elif form == "csv":
        options = "all_varchar = true, header = true, store_rejects = true"
        _check_not_empty(files)
        scans = " UNION ALL BY NAME ".join(f"FROM read_csv({pattern}, {options})" for pattern in patterns)
        try:
            database.execute(f"CREATE TABLE source AS {scans}")
        except duckdb.InvalidInputException:
            _check_line_ends(files)
            raise
    else:
        _check_not_empty(files)
        scan = f"FROM read_json([{listed}], sample_size = -1, union_by_name = true)"
        names = [row[0] for row in database.execute(f"DESCRIBE {scan}").fetchall()]
        typed = ", ".join(f"{literal(column)}: 'VARCHAR'" for column in names)
        database.execute(f"CREATE TABLE source AS FROM read_json([{listed}], columns = {{{typed}}})")


def find_files(source: str | os.PathLike[str]) -> tuple[list[str], str]:
    """The files that `source` names, a file, a glob or a folder, in order, and the format they share."""
    path = Path(source).expanduser()
    if path.is_dir():
        files = [str(file) for file in sorted(path.rglob("*")) if file.is_file() and _format(file)]
        missing = f"The folder {str(source)!r} holds no file of a known format ({', '.join(FORMATS)})."
    elif path.exists():
        files, missing = [str(path)], ""
    elif has_magic(str(path)):
        files = sorted(file for file in glob(str(path), recursive=True) if Path(file).is_file())
        missing = f"No file matches {str(source)!r}."
    else:
        files, missing = [], f"There is no file {str(source)!r}."
        there = [each for each in path.parent.iterdir() if _format(each)] if path.parent.is_dir() else []
        stems = {each.name.split(".")[0]: each.name for each in there}  # endings are alike anyhow
        near = get_close_matches(path.name.split(".")[0], list(stems), 1)
        if near:
            missing = f"There is no file {str(source)!r}; perhaps {stems[near[0]]!r} is meant."
    if not files:
        raise InputError(missing)
    formats = {_format(Path(file)) for file in files}
    if formats == {None}:
        raise InputError(
            f"{str(source)!r} ends in {path.suffix!r}; endings of logs are {', '.join(FORMATS)}, and .gz after text."
        )
    if len(formats) > 1:
        raise InputError(f"{str(source)!r} names files of different formats; read one format at a time.")
    return files, str(formats.pop())


def _format(path: Path) -> str | None:
    if path.name.startswith((".", "_")):  # what Spark and others leave beside the data
        return None
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"] and FORMATS.get(suffixes[-2] if len(suffixes) > 1 else "") in ("csv", "json"):
        suffixes.pop()
    return FORMATS.get(suffixes[-1]) if suffixes else None


def _check_not_empty(files: list[str]) -> None:
    for file in files:
        with gzip.open(file) if file.lower().endswith(".gz") else open(file, "rb") as stream:
            if not stream.read(1):
                raise InputError(f"{file!r} is empty; expected a log with its columns.")


def _check_line_ends(files: list[str]) -> None:
    """Raise if lines of a file end in different ways, which no reader of CSV takes."""
    for file in files:
        with gzip.open(file) if file.lower().endswith(".gz") else open(file, "rb") as stream:
            start = stream.read(2**20)
        windows, unix = start.count(b"\r\n"), start.count(b"\n")
        if 0 < windows < unix or (b"\r" in start and start.count(b"\r") > windows):
            raise InputError(
                f"Lines of {file!r} end in different ways (\\n, \\r or \\r\\n); make them alike first, for instance "
                "with dos2unix."
            )


def _keep_malformed(database: duckdb.DuckDBPyConnection) -> None:
    """The table `malformed`: a sentence for every line that was no row of its file."""
    database.execute("CREATE TABLE malformed (problem VARCHAR)")
    if database.execute("FROM duckdb_tables() WHERE table_name = 'reject_errors'").fetchall():
        database.execute(
            "INSERT INTO malformed SELECT 'line ' || line || ' of ' || file_path || ': ' || any_value(csv_line) "
            "FROM reject_errors JOIN reject_scans USING (scan_id, file_id) GROUP BY line, file_path"
        )


def _bring_database(database: duckdb.DuckDBPyConnection, files: list[str], table: str | None, name: str) -> None:
    if len(files) > 1:
        raise InputError(f"{name!r} names {len(files)} databases; read one at a time.")
    with open(files[0], "rb") as stream:
        is_sqlite = stream.read(16) == b"SQLite format 3\0"
    if is_sqlite:
        _bring_sqlite(database, files[0], table, name)
        return
    database.execute(f"ATTACH {literal(files[0])} AS kept (READ_ONLY)")
    rows = database.execute(
        "SELECT table_name, table_schema FROM information_schema.tables WHERE table_catalog = 'kept' ORDER BY ALL"
    ).fetchall()
    chosen = _choose_table([row[0] for row in rows], table, name)
    schema = next(row[1] for row in rows if row[0] == chosen)
    database.execute(f"CREATE VIEW source AS FROM kept.{quoted(schema)}.{quoted(chosen)}")


def _bring_sqlite(database: duckdb.DuckDBPyConnection, file: str, table: str | None, name: str) -> None:
    """Copy a table of SQLite, whose columns may hold anything, as text."""
    with closing(sqlite3.connect(f"{Path(file).resolve().as_uri()}?mode=ro", uri=True)) as kept:
        tables = kept.execute(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
        ).fetchall()
        chosen = quoted(_choose_table([row[0] for row in tables], table, name))
        columns = [row[1] for row in kept.execute(f"PRAGMA table_info({chosen})")]
        cast = ", ".join(f"CAST({quoted(column)} AS TEXT)" for column in columns)
        database.execute(f"CREATE TABLE source ({', '.join(f'{quoted(column)} VARCHAR' for column in columns)})")
        rows = kept.execute(f"SELECT {cast} FROM {chosen}")
        while batch := rows.fetchmany(BATCH):
            chunk = {f"c{i}": np.array(values, object) for i, values in enumerate(zip(*batch, strict=True))}
            database.register("chunk", chunk)
            database.execute(
                f"INSERT INTO source SELECT {', '.join(f'c{i}::VARCHAR' for i in range(len(columns)))} FROM chunk"
            )
            database.unregister("chunk")


def _choose_table(tables: list[str], table: str | None, name: str) -> str:
    if table is None and len(tables) == 1:
        return tables[0]
    if table is None:
        raise InputError(f"{name!r} has {len(tables)} tables{some(tables)}; name one as table=.")
    if table not in tables:
        raise InputError(f"{name!r} has no table {table!r}; {guess(table, tables)}.")
    return table


def _bring_frame(database: duckdb.DuckDBPyConnection, frame: Any, folder: Path) -> None:
    package, kind = type(frame).__module__.split(".")[0], type(frame).__name__
    path = folder / "frame.parquet"
    try:
        if (package, kind) == ("polars", "DataFrame"):
            frame.write_parquet(path)
        elif (package, kind) == ("polars", "LazyFrame"):
            frame.sink_parquet(path)
        elif (package, kind) in (("pandas", "DataFrame"), ("pyarrow", "Table")):
            database.register("source", frame)
            return
        else:
            raise InputError(
                f"source is {frame!r:.80}; expected a path, or a table of pandas, Polars, Arrow or Ibis."
            )
    except (InputError, duckdb.Error):
        raise
    except Exception as error:  # whatever a package raises about a frame of its own
        raise InputError(f"Cannot read {described(frame)}: {_first_line(error)}.") from error
    database.execute(f"CREATE VIEW source AS FROM read_parquet({literal(str(path))})")


def guess(name: str, names: Sequence[str]) -> str:
    """What was perhaps meant by `name`, or else what there is.

    >>> guess("Catgory", ["user", "category"])
    "perhaps 'category' is meant"
    >>> guess("x", ["user", "category"])
    "there are 'user', 'category'"
    """
    lowered = {each.lower(): each for each in names}
    near = get_close_matches(name.lower(), list(lowered), 1)
    return f"perhaps {lowered[near[0]]!r} is meant" if near else f"there are{some(names, ' {}')}"


def some(names: Sequence[str], form: str = " ({})") -> str:
    """The first of `names`, if there are any."""
    shown = ", ".join(map(repr, names[:10])) + (", …" if len(names) > 10 else "")
    return form.format(shown) if names else " none"


def quoted(name: str) -> str:
    """`name` as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """`text` as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
