"""Sources of events: files, folders, databases and frames, each opened in DuckDB as the relation `source`."""

import os
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from glob import escape, glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import duckdb
import numpy as np
import numpy.typing as npt

from departing.data.encodings import as_utf8, check_line_ends, check_not_empty, read_bytes
from departing.model.errors import InputError, interruptible_query
from departing.model.frames import to_frame
from departing.model.names import list_names, suggest
from departing.model.tables import copy_rows, disable_progress_bar, literal, quoted, write_errors

if TYPE_CHECKING:
    from departing.data.spark import SparkEngine

FORMATS = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "json"),
    **dict.fromkeys((".duckdb", ".sqlite", ".sqlite3", ".db"), "database"),
}
BATCH_ROWS = 2**16  # rows copied from SQLite at a time: a few MB of Python objects
TO_PARQUET = {
    ("polars", "DataFrame"): "write_parquet",
    ("polars", "LazyFrame"): "sink_parquet",
    ("ibis", "Table"): "to_parquet",
}
OULAD = Path(__file__).with_name("oulad.parquet")  # the bundled dataset
# Share of the free memory, below the memory limit, for the database. The rest is for arrays, and memory that DuckDB
# does not count: with 0.9 of the whole limit, reading 20.9 million events peaked at 1,016 MB within 1 GB, and at
# 559 MB within 500 MB.
DATABASE_SHARE = 0.7
# The database gets this share of the limit even if the process holds so much that less is free: below 100 MB, DuckDB
# cannot aggregate the users of a log with tens of millions of events.
MIN_DATABASE_SHARE = 0.25
THREAD_BYTES = 125_000_000  # memory that DuckDB's documentation recommends per thread for aggregations
HISTORY_ROWS = 2**19  # histories whose cells are in memory at once: about 100 MB
# Steps in memory at once, and their bytes while they are sorted and users are followed, as measured. They take at
# most a sixth of the memory of the database.
WALK_ROWS, WALK_BYTES, WALK_SHARE = 2**20, 110, 1 / 6
WALK_COLUMNS = "SELECT * EXCLUDE u"
Arrays = dict[str, npt.NDArray[Any]]
ChunkFunction = Callable[[Arrays, Arrays], Arrays]
Database = duckdb.DuckDBPyConnection


@dataclass(frozen=True)
class HistoryTables:
    """Results of one pass over all users: rows of some queries, and histories and sampled steps as arrays.

    There are `n` distinct histories with at most `most` steps. Every one of `parts` has some of them: rows by
    `history_end`, `last_step`, `users`, and if they are read `segment` (index of a name or -1), `weight` and
    `weight_squares`; and their counts by `history` (the number of the row), `code` and `n`.
    `sample` has the sampled steps of every partition.
    """

    results: list[list[tuple[Any, ...]]]
    n: int
    most: int
    parts: Iterable[tuple[Arrays, Arrays]]
    sample: list[Arrays]


@dataclass(frozen=True)
class GroupColumns:
    """Columns of a table of users, equal for the users of a group.

    `groups` has the `key` and `age` of every group, and the number of its `row` in `rows`; `columns` are the SQL of
    the columns, given the columns of `rows`. The column of the users' IDs is `user`.
    """

    user: str
    columns: Mapping[str, str]
    groups: Arrays
    rows: Arrays

    def query(self, database: Database, keys: str, table: str = "") -> str:
        """Query for `keys` and the columns of all groups, or of `table` joined to them."""
        database.register("user_groups", self.groups)
        database.register("group_rows", self.rows)
        columns = ", ".join(f"{sql} AS {quoted(name)}" for name, sql in self.columns.items())
        joined = f"{table} JOIN user_groups USING (key, age)" if table else "user_groups"
        return f"SELECT {keys}, {columns} FROM {joined} JOIN group_rows USING (row)"


class UserTable(Protocol):
    """All users of a log with the `key` and `age` of their groups, where the engine has them."""

    def frame(self, columns: GroupColumns) -> Any:
        """The table of users as a frame of the engine."""

    def write(self, columns: GroupColumns, path: str | os.PathLike[str], part: str | os.PathLike[str]) -> None:
        """Write the table of users to `part`, the temporary path of the .parquet or .csv file `path`."""


@dataclass(frozen=True)
class UserGroups:
    """Groups of users with equal histories.

    `rows` and `cells` are those of distinct histories, as in `HistoryTables`. Of every one of the `groups`, `key` and
    `age` identify it in the `table` of users, `history` is the number of a row, and `users` the number of users.
    """

    rows: Arrays
    cells: Arrays
    groups: Arrays
    digest: int
    table: UserTable


@dataclass(frozen=True)
class DuckDBUsers:
    """The table `users` of a database."""

    database: Database

    def frame(self, columns: GroupColumns) -> Any:
        """The table of users in the order of their IDs, as a frame of pandas or Polars."""
        arrays = self.database.execute(self._query(columns)).fetchnumpy()
        names = (columns.user, *columns.columns)
        return to_frame({name: _filled(array) for name, array in zip(names, arrays.values(), strict=True)})

    def write(self, columns: GroupColumns, path: str | os.PathLike[str], part: str | os.PathLike[str]) -> None:
        """Write the table of users, in the order of their IDs, to `part`, the temporary path of the file `path`."""
        with write_errors(path):
            copy_rows(self.database, self._query(columns), Path(part))

    def _query(self, columns: GroupColumns) -> str:
        return columns.query(self.database, f"u AS {quoted(columns.user)}", "users") + " ORDER BY u"


def _filled(array: Any) -> Any:
    """Column with None, or NaN for numbers, where values are missing."""
    if not np.ma.isMaskedArray(array):
        return array
    values = np.ma.getdata(array) if array.dtype.kind == "f" else np.ma.getdata(array).astype(object)
    values[np.ma.getmaskarray(array)] = np.nan if array.dtype.kind == "f" else None
    return values


@dataclass(frozen=True)
class LogSource:
    """Origin of a log, with the size and modification time of every file at the time it was read."""

    source: Any
    table: str | None
    memory: int
    files: tuple[tuple[str, int, int], ...] = ()

    @classmethod
    def of(cls, source: Any, table: str | None, memory: int) -> "LogSource":
        """`source` in its present state."""
        return cls(source, table, memory, _fingerprint(source))

    @contextmanager
    def open(self) -> "Iterator[DuckDBEngine | SparkEngine]":
        """Open the source for reading; raise before and after if a file is not as it was when it was first read."""
        self._check_unchanged()
        source = self.source
        if self.is_distributed:
            from departing.data.spark import SparkEngine

            if type(source).__module__.split(".")[0] == "ibis":
                backend = source.get_backend()
                source = backend.raw_sql(backend.compile(source))
            _check_no_table(self.table)
            with closing(SparkEngine(source, self.memory)) as spark:
                yield spark
        else:
            with _open_duckdb(source, self.table, self.memory) as engine:
                yield engine
        self._check_unchanged()

    @property
    def is_distributed(self) -> bool:
        """True if the rows are on Spark."""
        return is_distributed(self.source)

    def _check_unchanged(self) -> None:
        before, now = dict.fromkeys(self.files), dict.fromkeys(_fingerprint(self.source))
        if before != now:
            path = next(file[0] for file in (*before, *now) if (file in before) != (file in now))
            raise InputError(f"{path!r} changed since the log was read; read the log again with read_log.")


def _fingerprint(source: Any) -> tuple[tuple[str, int, int], ...]:
    """Name, size and modification time in nanoseconds of every file of `source`; nothing for tables in memory."""
    if not isinstance(source, str | os.PathLike):
        return ()
    files, form = find_files(source)
    if form == "database":  # recent changes may still be in the write-ahead log
        files += [file for name in files for file in (f"{name}-wal", f"{name}.wal") if Path(file).exists()]
    stats = [(file, os.stat(file)) for file in files]
    return tuple((file, stat.st_size, stat.st_mtime_ns) for file, stat in stats)


@dataclass(frozen=True)
class DuckDBEngine:
    """A source as the relation `source` of one database of `memory` bytes, which is the only partition."""

    database: Database
    name: str
    columns: dict[str, str]
    memory: int
    guessed: tuple[str, ...] = ()
    packs: ClassVar[bool] = True  # histories in parts, so that a large table of them can be packed

    def define(self, *statements: str) -> None:
        """Create views, tables and types."""
        for statement in statements:
            self.database.execute(statement)

    def by_user(self, user: str, fields: Sequence[str], whole_rows: bool) -> None:
        """Partition by user; no-op, because there is one partition."""

    def rows(self, *queries: str) -> list[list[tuple[Any, ...]]]:
        """The rows of all partitions, for every query."""
        return [self.database.execute(query).fetchall() for query in queries]

    def histories(self, queries: Sequence[str], rows: str, cells: str, sample: str, max_rows: int) -> HistoryTables:
        """The rows of `queries`, the distinct histories of all partitions with their cells, and the sampled steps.

        There are no histories if they are more than `max_rows`.
        """
        results, steps = self.rows(*queries), [self.arrays(sample)]
        ((n, most),) = self.rows("SELECT count(*), coalesce(max(n_events), 0) FROM histories")[0]
        n = n if n <= max_rows else 0
        return HistoryTables(results, n, most, self._histories(rows, cells, n), steps)

    def _histories(self, rows: str, cells: str, n: int) -> Iterator[tuple[Arrays, Arrays]]:
        """Rows and cells of the n histories, some at a time if they are many."""
        if n <= HISTORY_ROWS:
            yield self.arrays(rows), self.arrays(cells)
            return
        self.define(
            "CREATE TABLE cells AS SELECT history::UINTEGER AS history, code::USMALLINT AS code, n::UINTEGER AS n "
            f"FROM ({cells})"
        )
        for start in range(0, n, HISTORY_ROWS):
            where = f"WHERE history >= {start} AND history < {start + HISTORY_ROWS}"
            part = self.arrays(f"SELECT * EXCLUDE (key, age) FROM ({rows}) {where} ORDER BY history")
            yield part, self.arrays(f"SELECT history - {start} AS history, code, n FROM cells {where}")

    def reduce(self, function: ChunkFunction, argument: Arrays, digest: str) -> tuple[list[Arrays], int]:
        """Apply `function` to the rows of the table `walks`, some users at a time; and the sum of `digest`."""
        ((n,),), ((checksum,),) = self.rows("SELECT count(*) FROM walks", digest)
        chunks = -(-n // max(min(WALK_ROWS, int(self.memory * WALK_SHARE / WALK_BYTES)), 1))
        results = []
        for i in range(chunks):
            where = f" WHERE hash(u) % {chunks} = {i}" if chunks > 1 else ""
            results.append(function(self.arrays(f"{WALK_COLUMNS} FROM walks{where} ORDER BY u, step"), argument))
        return results, int(checksum)

    def users(self, query: str, by_age: str, rows: str, cells: str, digest: str) -> UserGroups:
        """Groups of users with equal histories, and the table of users, in whose database they are joined.

        Parameters
        ----------
        query : str
            Query for the table `users`: the user `u`, the `key` of the history, and `age`.
        by_age : str
            Query for the groups in that table.
        rows, cells : str
            Queries for all histories, as in `histories`.
        digest : str
            Query whose sum is returned.
        """
        self.define(f"CREATE TABLE users AS {query}")
        groups = self.arrays(by_age)
        ((checksum,),) = self.rows(digest)[0]
        return UserGroups(self.arrays(rows), self.arrays(cells), groups, int(checksum), DuckDBUsers(self.database))

    def steps(self, table: str, users: int, digest: str) -> Generator[Arrays, None, int]:
        """Yield the rows of `table` for `users` users at a time, and return the sum of the query `digest`."""
        (total,), (checksum,) = (rows[0] for rows in self.rows(f"SELECT max(user) + 1 FROM {table}", digest))
        for start in range(0, total or 0, users):
            where = f"user >= {start} AND user < {start + users}"
            yield self.arrays(f"FROM {table} WHERE {where} ORDER BY user, step")
        return int(checksum)

    def arrays(self, query: str) -> Arrays:
        """The columns of a query as arrays."""
        return {name: np.ma.getdata(a) for name, a in self.database.execute(query).fetchnumpy().items()}


@contextmanager
def _open_duckdb(source: Any, table: str | None, memory: int) -> Iterator[DuckDBEngine]:
    """Open `source` in a database that spills to a temporary folder above `memory` bytes."""
    name = describe_source(source)
    with open_database(memory) as (database, folder, size), input_errors(name):
        database.execute("CREATE TABLE malformed (line VARCHAR)")
        nested, guessed = _create_source(database, source, table, folder)
        columns = {row[0]: row[1] for row in database.execute("DESCRIBE source").fetchall()} | nested
        yield DuckDBEngine(database, name, columns, size, guessed)


@contextmanager
def open_database(memory: int) -> Iterator[tuple[Database, Path, int]]:
    """Open an empty database and a temporary folder, to which it spills so that the process uses `memory` bytes.

    Yields the size of the database in bytes as well, see `database_size`.
    """
    with tempfile.TemporaryDirectory(prefix="departing-") as folder:
        settings: dict[str, Any] = {
            "temp_directory": str(Path(folder) / "spill"),
            "preserve_insertion_order": False,
        }
        with closing(duckdb.connect(config=settings)) as database:
            size = database_size(memory, resident_bytes())  # connecting returns unused memory to the system
            database.execute(f"SET memory_limit = '{size // 1000} kB'")
            database.execute(f"SET threads = {max(min(os.cpu_count() or 1, size // THREAD_BYTES), 1)}")
            database.execute("SET TimeZone = 'UTC'")
            disable_progress_bar(database)
            yield database, Path(folder), size


def database_size(memory: int, resident: int) -> int:
    """Bytes for the database of a process that may use `memory` bytes and already uses `resident` bytes.

    >>> database_size(1_000_000_000, 100_000_000), database_size(1_000_000_000, 900_000_000)
    (630000000, 250000000)
    """
    return int(max(DATABASE_SHARE * (memory - resident), MIN_DATABASE_SHARE * memory))


def resident_bytes() -> int:
    """Resident memory of this process in bytes; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def is_distributed(source: Any) -> bool:
    """Return True for a Spark DataFrame, or an Ibis table of Spark."""
    package = type(source).__module__.split(".")[0]
    return package == "pyspark" or (package == "ibis" and source.get_backend().name == "pyspark")


def describe_source(source: Any) -> str:
    """Name of `source` in a sentence."""
    if isinstance(source, str | os.PathLike):
        return "OULAD (CC BY 4.0)" if source == OULAD else repr(str(source))
    return f"the {type(source).__module__.split('.')[0]} {type(source).__name__}"


@contextmanager
def input_errors(name: str) -> Iterator[None]:
    """Turn errors of the database into input errors of one sentence; an interrupt stays an interrupt."""
    try:
        with interruptible_query():
            yield
    except duckdb.OutOfMemoryException as error:
        raise InputError(
            f"Reading {name} needs more memory or disk than available ({first_line(error)}); raise `memory_limit`, "
            "or set TMPDIR to a folder on a larger disk."
        ) from error
    except (duckdb.Error, sqlite3.Error, zlib.error, OSError, EOFError) as error:
        raise InputError(f"Cannot read {name}: {first_line(error)}.") from error


def first_line(error: Exception) -> str:
    """First line of an error message."""
    return str(error).strip().splitlines()[0].rstrip(". ") if str(error).strip() else type(error).__name__


def _check_no_table(table: str | None) -> None:
    if table is not None:
        raise InputError(f"table is {table!r}, but only a database file has tables; leave it out.", "table")


def _create_source(
    database: Database, source: Any, table: str | None, folder: Path
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Create the relation `source`: a view of columnar data, a table of text columns for text formats.

    Return the types of JSON columns that hold lists or objects, and sentences on what was inferred.
    """
    nested: dict[str, str] = {}
    guessed: tuple[str, ...] = ()
    if not isinstance(source, str | os.PathLike):
        _check_no_table(table)
        _create_from_frame(database, source, folder)
        return nested, guessed
    files, form = find_files(source)
    if form == "database":
        _create_from_database(database, files, table, str(source))
        return nested, guessed
    _check_no_table(table)
    if form == "parquet":
        database.execute(f"CREATE VIEW source AS FROM read_parquet([{_patterns(files)}], union_by_name = true)")
        return nested, guessed
    check_not_empty(files)
    paths, guessed = as_utf8(files, folder)
    with _known_names(paths):
        if form == "csv":
            _create_from_csv(database, paths)
        else:
            nested = _create_from_json(database, paths)
    return nested, guessed


def _patterns(files: Iterable[str]) -> str:
    """SQL of a list of files; DuckDB reads a file name as a glob pattern."""
    return ", ".join(literal(escape(file)) for file in files)


@contextmanager
def _known_names(paths: Mapping[str, str]) -> Iterator[None]:
    """Replace the path of every copy in errors of the database by the file that the caller knows."""
    try:
        yield
    except duckdb.Error as error:
        text = str(error)
        for path, file in paths.items():
            text = text.replace(path, file)
        raise type(error)(text) from error


def _create_from_csv(database: Database, paths: Mapping[str, str]) -> None:
    """Copy CSV files as text, and describe every line that is not a row in the table `malformed`."""
    options = "all_varchar = true, header = true, store_rejects = true"
    scans = " UNION ALL BY NAME ".join(f"FROM read_csv({_patterns([path])}, {options})" for path in paths)
    try:
        database.execute(f"CREATE TABLE source AS {scans}")
    except duckdb.InvalidInputException:
        check_line_ends(paths.values())
        raise
    file = " ".join(f"WHEN {literal(path)} THEN {literal(file)}" for path, file in paths.items())
    database.execute(
        f"INSERT INTO malformed SELECT 'line ' || line || ' of ' || CASE file_path {file} ELSE file_path END "
        "|| ': ' || trim(any_value(csv_line), chr(13) || chr(10)) FROM reject_errors "
        "JOIN reject_scans USING (scan_id, file_id) GROUP BY line, file_path"
    )


def _create_from_json(database: Database, paths: Iterable[str]) -> dict[str, str]:
    """Copy JSON files as text; return the types of columns that hold lists or objects."""
    listed = _patterns(paths)
    scan = f"FROM read_json([{listed}], sample_size = -1, union_by_name = true)"
    found = {row[0]: row[1] for row in database.execute(f"DESCRIBE {scan}").fetchall()}
    types = ", ".join(f"{literal(column)}: 'VARCHAR'" for column in found)
    database.execute(f"CREATE TABLE source AS FROM read_json([{listed}], columns = {{{types}}})")
    return {name: kind for name, kind in found.items() if is_nested(kind)}


def is_nested(column_type: str) -> bool:
    """Return True for a type of lists or objects in DuckDB."""
    return column_type.endswith("]") or column_type.startswith(("STRUCT", "MAP", "UNION"))


def find_files(source: str | os.PathLike[str]) -> tuple[list[str], str]:
    """Sorted files of a file name, glob pattern or folder, and the format they share."""
    path = Path(source).expanduser()
    if path.is_dir():
        files = [str(file) for file in sorted(path.rglob("*")) if file.is_file() and _format(file)]
        missing = f"The folder {str(source)!r} holds no file of a supported format ({', '.join(FORMATS)})."
    elif path.exists():
        files, missing = [str(path)], ""
    elif has_magic(str(path)):
        files = sorted(file for file in glob(str(path), recursive=True) if Path(file).is_file())
        missing = f"No file matches {str(source)!r}."
    else:
        files, missing = [], f"There is no file {str(source)!r}."
        siblings = [each for each in path.parent.iterdir() if _format(each)] if path.parent.is_dir() else []
        stems = {each.name.split(".")[0]: each.name for each in siblings}  # extensions are similar in any case
        similar = get_close_matches(path.name.split(".")[0], list(stems), 1)
        if similar:
            missing = f"There is no file {str(source)!r}; did you mean {stems[similar[0]]!r}?"
    if not files:
        raise InputError(missing)
    formats = {_format(Path(file)) for file in files}
    if formats == {None}:
        raise InputError(
            f"{str(source)!r} has the extension {path.suffix!r}; expected {', '.join(FORMATS)}, or .gz after a text "
            "format."
        )
    if len(formats) > 1:
        raise InputError(f"{str(source)!r} contains files of different formats; read one format at a time.")
    return files, str(formats.pop())


def _format(path: Path) -> str | None:
    if path.name.startswith((".", "_")):  # marker files of Spark and others
        return None
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"] and FORMATS.get(suffixes[-2] if len(suffixes) > 1 else "") in ("csv", "json"):
        suffixes.pop()
    return FORMATS.get(suffixes[-1]) if suffixes else None


def _create_from_database(database: Database, files: list[str], table: str | None, name: str) -> None:
    if len(files) > 1:
        raise InputError(f"{name!r} matches {len(files)} databases; read one at a time.")
    if read_bytes(files[0], 16) == b"SQLite format 3\0":
        _create_from_sqlite(database, files[0], table, name)
        return
    database.execute(f"ATTACH {literal(files[0])} AS attached (READ_ONLY)")
    rows = database.execute(
        "SELECT table_name, table_schema FROM information_schema.tables WHERE table_catalog = 'attached' ORDER BY ALL"
    ).fetchall()
    chosen = _choose_table([row[0] for row in rows], table, name)
    schema = next(row[1] for row in rows if row[0] == chosen)
    database.execute(f"CREATE VIEW source AS FROM attached.{quoted(schema)}.{quoted(chosen)}")


def _create_from_sqlite(database: Database, file: str, table: str | None, name: str) -> None:
    """Copy a table of SQLite as text, because its columns may hold values of any type."""
    with closing(sqlite3.connect(f"{Path(file).resolve().as_uri()}?mode=ro", uri=True)) as connection:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
        ).fetchall()
        chosen = quoted(_choose_table([row[0] for row in tables], table, name))
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({chosen})")]
        cast = ", ".join(f"CAST({quoted(column)} AS TEXT)" for column in columns)
        database.execute(f"CREATE TABLE source ({', '.join(f'{quoted(column)} VARCHAR' for column in columns)})")
        rows = connection.execute(f"SELECT {cast} FROM {chosen}")
        while batch := rows.fetchmany(BATCH_ROWS):
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
        raise InputError(f"{name!r} has {len(tables)} tables ({list_names(tables)}); name one as `table`.")
    if table not in tables:
        raise InputError(f"{name!r} has no table {table!r}; {suggest(table, tables)}")
    return table


def _create_from_frame(database: Database, frame: Any, folder: Path) -> None:
    package, kind = type(frame).__module__.split(".")[0], type(frame).__name__
    path = folder / "frame.parquet"
    try:
        if (package, kind) in (("pandas", "DataFrame"), ("pyarrow", "Table")):
            database.register("source", frame)
            return
        if (package, kind) not in TO_PARQUET:
            raise InputError(
                f"source is {frame!r:.80}; expected a path, or a table of pandas, Polars, Arrow, Spark or Ibis."
            )
        getattr(frame, TO_PARQUET[package, kind])(path)
    except (InputError, duckdb.Error):
        raise
    except Exception as error:  # any error that a package raises about its own frame
        raise InputError(f"Cannot read {describe_source(frame)}: {first_line(error)}.") from error
    database.execute(f"CREATE VIEW source AS FROM read_parquet({literal(str(path))})")
