"""Logs on Spark: the SQL of `rules.py` runs in DuckDB inside Spark's Python workers, once per partition.

The source is read once. The rows of some users at a time become one value, a compressed Arrow stream (`_pack`), so
that Spark shuffles and caches few large values instead of many rows; the cache serves all queries of a reading. The
workers aggregate results, and merge those that exist once per history (`_merge`): the driver receives the distinct
histories, samples of bounded size and sums. The workers need the packages duckdb, numpy and pyarrow, but not
departing: the functions that Spark ships are self-contained.
"""

import os
import pickle
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from inspect import signature
from typing import Any

import duckdb
import numpy as np
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from departing.data.sources import (
    DATABASE_SHARE,
    WALK_COLUMNS,
    Arrays,
    ChunkFunction,
    GroupColumns,
    HistoryTables,
    UserGroups,
    describe_source,
    first_line,
)
from departing.model.errors import InputError
from departing.model.tables import quoted

PACKED, RESULT = "part int, rows binary", "bucket int, kind string, value binary"
PARTS = 4  # groups of users per shuffle partition: Spark hashes groups to partitions, so more groups are more even
MAX_PARTS = 2048  # above, groups are so small that the headers of their Arrow streams take more space than the rows
PACKED_ROWS = 2**20  # rows that a worker sorts by group at a time: tens of MB
TASK_BYTES = 2**24  # packed rows of a task: 800,000 events of 20 bytes, so that a task takes a second or more
BUCKETS = 256  # groups of histories that workers merge
USER = "user_id"  # of the frame of users
CELL = 2**40  # a cell is its code times this, plus its count
WorkerFunction = Callable[[Iterator[Any]], Iterator[Any]]


class SparkEngine:
    """A Spark DataFrame, each partition of which is the relation `source` of a DuckDB database in a worker.

    Nothing is computed before results are requested: every request is one Spark job, in which each partition starts
    with an empty database and runs all statements defined so far. The first one reads the source, the others its
    cache.
    """

    guessed: tuple[str, ...] = ()
    packs = False  # the driver receives all histories at once

    def __init__(self, frame: Any, memory: int) -> None:
        self.name = describe_source(frame)
        self.settings = {
            "memory_limit": f"{int(memory * DATABASE_SHARE) // 1000} kB",
            "threads": 1,
            "preserve_insertion_order": False,
        }
        self.script = ["SET TimeZone = 'UTC'", "CREATE TABLE malformed (line VARCHAR)"]
        with duckdb.connect() as database, _input_errors(self.name):
            database.register("source", _arrow_schema(frame.schema).empty_table())
            self.columns = {row[0]: row[1] for row in database.execute("DESCRIBE source").fetchall()}
        plain = [f"c{i}" for i in range(len(frame.columns))]  # Spark has its own meaning for dots and backticks
        self.plain = dict(zip(frame.columns, plain, strict=True))
        self.frame = frame.toDF(*plain)
        self.packed: Any = None
        self.user = ""

    def by_user(self, user: str, fields: Sequence[str], whole_rows: bool) -> None:
        """Bring the rows of a user into one partition, with the columns `fields` and cached once.

        All other columns are replaced by a hash if `whole_rows`, which tells equal rows from others, else left out.
        """
        self.user, kept = self.plain[user], [self.plain[name] for name in fields]
        others = [name for name in self.plain.values() if name not in kept] if whole_rows else []
        source = self.frame.select(*kept, *others)
        partitions = int(source.sparkSession.conf.get("spark.sql.shuffle.partitions"))
        pack = _pack(self.user, kept, others, min(PARTS * partitions, MAX_PARTS))
        with _input_errors(self.name), _coalesced_cache(source.sparkSession):
            self.packed = source.mapInArrow(pack, PACKED).repartition("part").persist()
        columns = [f"{self.plain[name]} AS {quoted(name)}" for name in fields]
        if others:
            hashed = next(name for i in range(len(columns) + 1) if (name := f"row_hash{i}") not in fields)
            columns.append(f"row_hash AS {hashed}")
        self.script.append(f"CREATE VIEW source AS SELECT {', '.join(columns)} FROM partition_rows")

    def close(self) -> None:
        """Drop the cache."""
        if self.packed is not None:
            self.packed.unpersist()

    @cached_property
    def rows_by_user(self) -> Any:
        """The cached rows in partitions of a suitable size: Spark's own number suits no size in particular."""
        with _input_errors(self.name):
            sizes = self.packed.selectExpr("part", "length(rows) AS size").groupBy("part").sum("size").collect()
        return self.packed.coalesce(max(2, -(-sum(size for _, size in sizes) // TASK_BYTES)))

    def define(self, *statements: str) -> None:
        """Create views, tables and types in every partition."""
        self.script += statements

    def rows(self, *queries: str) -> list[list[tuple[Any, ...]]]:
        """The rows of all partitions, for every query."""
        parts = [value for _, value in self._collect(self._run(self.script, queries))] if queries else []
        return [[row for part in parts for row in part[i]] for i in range(len(queries))]

    def histories(self, queries: Sequence[str], rows: str, cells: str, sample: str, max_rows: int) -> HistoryTables:
        """The rows of `queries`, the distinct histories of all partitions with their cells, and the sampled steps.

        There are no histories if they are more than `max_rows`.
        """
        parts = self._run(self.script, queries, {"sample": sample}, _with_cells(rows, cells))
        found, samples, histories = self._merged(parts, max_rows)
        part = _split_cells(histories)
        n = len(part[0]["users"])
        most = int(np.bincount(part[1]["history"], part[1]["n"], n).max(initial=0))
        return HistoryTables(found, n, most, [part], samples)

    def users(self, query: str, by_age: str, rows: str, cells: str, digest: str) -> UserGroups:
        """Groups of users with equal histories, and the frame of users, in which Spark joins them.

        See `DuckDBEngine.users`; `rows` are replaced by those of `by_age`, which workers merge.
        """
        script = [*self.script, f"CREATE TABLE users AS {query}"]
        parts = self._run(script, [digest], {}, _with_cells(by_age, cells))
        results, _, merged = self._merged(parts, 2**62)
        groups, cells_of = _split_cells(merged)
        _, first, history = np.unique(groups["key"], return_index=True, return_inverse=True)
        number = np.full(len(groups["key"]), -1)
        number[first] = np.arange(len(first))
        own = number[cells_of["history"]]
        cells_of = {name: values[own >= 0] for name, values in (cells_of | {"history": own}).items()}
        frame = self.rows_by_user.mapInArrow(*_users(self.settings, script, self.frame.schema[self.user].dataType))
        return UserGroups(
            {name: values[first] for name, values in groups.items()},
            cells_of,
            groups | {"history": history},
            sum(row[0] for row in results[0]),
            SparkUsers(frame, self.name),
        )

    def reduce(self, function: ChunkFunction, argument: Arrays, digest: str) -> tuple[list[Arrays], int]:
        """Apply `function` to the rows of the table `walks` of every partition; and the sum of the query `digest`."""
        walks = {"walks": f"{WALK_COLUMNS} FROM walks ORDER BY u, step"}
        results, checksum = list[Arrays](), 0
        for kind, value in self._collect(self._run(self.script, [digest], walks, None, function, argument)):
            if kind == "rows":
                checksum += int(value[0][0][0])
            else:
                results.append(_arrays(value))
        return results, checksum

    def steps(self, table: str, users: int, digest: str) -> Generator[Arrays, None, int]:
        """Yield the rows of `table` for `users` users at a time, and return the sum of the query `digest`.

        Partitions pass through the driver one at a time; users are numbered in the order in which they arrive.
        """
        checksum = start = n = 0
        rest: Arrays = {}
        parts = self._run(self.script, [digest], {"steps": f"FROM {table} ORDER BY user, step"})
        for kind, value in self._collect(parts, stream=True):
            if kind == "rows":
                checksum += int(value[0][0][0])
                continue
            part = _arrays(value)
            part["user"] = part["user"] + n
            n = int(part["user"].max(initial=n - 1)) + 1
            rest = {name: np.concatenate([rest[name], part[name]]) for name in part} if rest else part
            while n - start >= users:
                start += users
                end = int(np.searchsorted(rest["user"], start))
                yield {name: values[:end] for name, values in rest.items()}
                rest = {name: values[end:] for name, values in rest.items()}
        if n > start:
            yield rest
        return checksum

    def _run(
        self,
        script: list[str],
        queries: Sequence[str],
        arrays: Mapping[str, str] | None = None,
        histories: str | None = None,
        function: ChunkFunction | None = None,
        argument: Arrays | None = None,
    ) -> Any:
        """Frame of results, see `_task`."""
        task = _task(self.settings, script, list(queries), dict(arrays or {}), histories, function, argument)
        return self.rows_by_user.mapInArrow(task, RESULT)

    def _merged(self, parts: Any, max_rows: int) -> tuple[list[list[tuple[Any, ...]]], list[Arrays], list[Arrays]]:
        """Rows of every query, other arrays, and merged histories; none of these if they are more than `max_rows`."""
        merged = parts.repartition("bucket").mapInArrow(_merge(self.settings, max_rows), RESULT)
        results, arrays, histories = list[Any](), list[Arrays](), list[Arrays]()
        for kind, value in self._collect(merged):
            if kind == "rows":
                results.append(value)
            else:
                (histories if kind == "histories" else arrays).append(_arrays(value))
        found = [[row for part in results for row in part[i]] for i in range(len(results[0]))]
        return found, arrays, histories if all(histories) else []

    def _collect(self, frame: Any, stream: bool = False) -> Iterator[tuple[str, Any]]:
        """Kind and value of all results; `stream` computes one partition at a time."""
        with _input_errors(self.name):
            for _, kind, value in frame.toLocalIterator(prefetchPartitions=True) if stream else frame.collect():
                yield kind, pickle.loads(value)


class SparkUsers:
    """All users of a log as a Spark DataFrame of their IDs, keys and ages."""

    def __init__(self, users: Any, name: str) -> None:
        self.users, self.name = users, name

    def frame(self, columns: GroupColumns) -> Any:
        """The table of users as a Spark DataFrame in no order, for which Spark joins the groups to the users."""
        with duckdb.connect() as database:
            groups = database.sql(columns.query(database, "key, age::INTEGER AS age")).to_arrow_table()
        session = self.users.sparkSession
        # Spark 3 reads Arrow tables as frames of pandas only.
        given = session.createDataFrame(groups if int(session.version.split(".")[0]) > 3 else groups.to_pandas())
        joined = self.users.join(given, ["key", "age"]).withColumnRenamed(USER, columns.user)
        return joined.select(*(f"`{name.replace('`', '``')}`" for name in (columns.user, *columns.columns)))

    def write(self, columns: GroupColumns, path: str | os.PathLike[str], part: str | os.PathLike[str]) -> None:
        """Write the table of users to the folder `path` of .parquet or .csv files, in place of another one."""
        with _input_errors(self.name):
            writer = self.frame(columns).write.mode("overwrite")
            if str(path).endswith(".csv"):
                writer.csv(str(part), header=True)
            else:
                writer.parquet(str(part))


def _with_cells(rows: str, cells: str) -> str:
    """Query for histories with their cells as one list, in the order of `bucket`, a hash of the history."""
    listed = f"SELECT history, list(code::BIGINT * {CELL} + n) AS cells FROM ({cells}) GROUP BY history"
    return (
        f"SELECT * EXCLUDE history, (key % {BUCKETS})::INTEGER AS bucket "
        f"FROM ({rows}) JOIN ({listed}) USING (history) ORDER BY bucket"
    )


def _split_cells(parts: list[Arrays]) -> tuple[Arrays, Arrays]:
    """Rows of histories, numbered from 0, and their cells."""
    names: Sequence[str] = ("key", "history_end", "last_step", "age", "users", "n_cells", "cells")
    names = list(parts[0]) if parts else names
    columns = {
        name: np.concatenate([part[name] for part in parts]) if parts else np.empty(0, np.int64) for name in names
    }
    cells, n_cells = columns.pop("cells"), columns.pop("n_cells")
    history = np.repeat(np.arange(len(n_cells)), n_cells)
    return columns, {"history": history, "code": cells // CELL, "n": cells % CELL}


def _pack(user: str, kept: list[str], others: list[str], parts: int) -> WorkerFunction:
    """The function that turns rows into Arrow streams of the rows of some users each.

    Users are divided by hash into `parts` groups; rows without a user go to any of them. The columns `others` become
    one hash. Like all functions that Spark ships, it must not refer to names of this module.
    """
    rows_per_chunk = PACKED_ROWS

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import duckdb
        import numpy as np
        import pyarrow

        options = pyarrow.ipc.IpcWriteOptions(compression="lz4")
        hashed = f", hash({', '.join(others)}) AS row_hash" if others else ""
        query = f"SELECT hash({user}) % {parts} AS part{hashed} FROM chunk"

        def packed(chunk: list[Any]) -> Iterator[Any]:
            table = pyarrow.Table.from_batches(chunk)
            with duckdb.connect(config={"threads": 1}) as database:  # in the order of the rows
                database.execute("SET TimeZone = 'UTC'")
                database.register("chunk", table)
                columns = database.execute(query).fetchnumpy()
            part = np.asarray(columns["part"]).astype(np.uint16)
            if table[user].null_count:
                unknown = table[user].is_null().to_numpy()
                part[unknown] = np.arange(unknown.sum()) % parts
            table = table.select(kept)
            if others:
                table = table.append_column("row_hash", pyarrow.array(np.asarray(columns["row_hash"])))
            order = np.argsort(part, kind="stable")
            table = table.combine_chunks().take(pyarrow.array(order))
            ends = np.searchsorted(part[order], np.arange(parts), side="right")
            numbers, values, start = [], [], 0
            for number, end in enumerate(ends.tolist()):
                if end > start:
                    sink = pyarrow.BufferOutputStream()
                    with pyarrow.ipc.new_stream(sink, table.schema, options=options) as stream:
                        stream.write_table(table.slice(start, end - start))
                    numbers.append(number)
                    values.append(sink.getvalue().to_pybytes())
                start = end
            streams = [pyarrow.array(numbers, pyarrow.int32()), pyarrow.array(values, pyarrow.binary())]
            yield pyarrow.RecordBatch.from_arrays(streams, ["part", "rows"])

        chunk, n = [], 0
        for batch in batches:
            chunk.append(batch)
            n += batch.num_rows
            if n >= rows_per_chunk:
                yield from packed(chunk)
                chunk, n = [], 0
        if n:
            yield from packed(chunk)

    return run


def _task(
    settings: dict[str, Any],
    script: list[str],
    queries: list[str],
    arrays: dict[str, str],
    histories: str | None,
    function: ChunkFunction | None,
    argument: Arrays | None,
    table: str | None = None,
) -> WorkerFunction:
    """The function that computes the results of one partition of packed rows.

    The results are rows of `queries`, columns of `arrays`, to which `function` is applied if there is one, and Arrow
    streams of `histories` by bucket. All others have a negative bucket. Values are pickled and made of built-in types
    only, so that the versions of NumPy on workers and driver may differ. If a query `table` is given, the results are
    its rows alone, as they are.
    """

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pickle
        import tempfile

        import duckdb
        import numpy as np
        import pyarrow
        from pyspark import TaskContext

        def streams() -> Iterator[Any]:
            for batch in batches:
                for value in batch.column("rows"):
                    yield pyarrow.ipc.open_stream(value.as_buffer())

        def result(bucket: int, kind: str, value: bytes) -> Any:
            columns = [
                pyarrow.array([bucket], pyarrow.int32()),
                pyarrow.array([kind]),
                pyarrow.array([value], pyarrow.binary()),
            ]
            return pyarrow.RecordBatch.from_arrays(columns, ["bucket", "kind", "value"])

        all_streams = streams()
        first = next(all_streams, None)
        if first is None:
            return

        def rows() -> Iterator[Any]:
            yield from first
            for stream in all_streams:
                yield from stream

        context = TaskContext.get()
        bucket = -1 - (context.partitionId() if context else 0)  # the same if the task is repeated
        with tempfile.TemporaryDirectory() as folder:
            database = duckdb.connect(config=settings | {"temp_directory": folder})
            database.register("batches", pyarrow.RecordBatchReader.from_batches(first.schema, rows()))
            database.execute("CREATE TABLE partition_rows AS FROM batches")
            database.unregister("batches")
            for statement in script:
                database.execute(statement)
            if table is not None:
                yield from database.sql(table).to_arrow_table().to_batches()
                return
            yield result(bucket, "rows", pickle.dumps([database.execute(query).fetchall() for query in queries]))
            for kind, query in arrays.items():
                columns = {
                    name: np.ma.getdata(column) for name, column in database.execute(query).fetchnumpy().items()
                }
                if function is not None:
                    columns = function(columns, argument or {})
                plain = {name: (column.dtype.str, column.shape, column.tobytes()) for name, column in columns.items()}
                yield result(bucket, kind, pickle.dumps(plain))
            if histories is not None:
                found = database.sql(histories).to_arrow_table()
                buckets = found["bucket"].to_numpy()
                starts = np.flatnonzero(np.diff(buckets, prepend=-1)).tolist()
                found = found.drop(["bucket"])
                ends = [*starts[1:], len(buckets)] if starts else []  # a partition may have no histories
                for start, end in zip(starts, ends, strict=True):
                    sink = pyarrow.BufferOutputStream()
                    with pyarrow.ipc.new_stream(sink, found.schema) as stream:
                        stream.write_table(found.slice(start, end - start))
                    yield result(int(buckets[start]), "histories", sink.getvalue().to_pybytes())
            database.close()

    return run


def _users(settings: dict[str, Any], script: list[str], user_type: Any) -> tuple[WorkerFunction, Any]:
    """The function that returns the rows of the table `users` of one partition of packed rows, and their schema."""
    schema = StructType(
        [StructField(USER, user_type), StructField("key", LongType()), StructField("age", IntegerType())]
    )
    types = _arrow_schema(schema)
    task = _task(
        settings, script, [], {}, None, None, None, f"SELECT u AS {USER}, key, age::INTEGER AS age FROM users"
    )

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        for batch in task(batches):
            yield from pyarrow.Table.from_batches([batch]).cast(types).to_batches()

    return run, schema


def _merge(settings: dict[str, Any], max_rows: int) -> WorkerFunction:
    """The function that merges equal histories of the buckets of one partition, and passes on all other results.

    Buckets are equally large up to random variation. If they are far above their share of `max_rows`, nothing is
    returned.
    """
    most = 2 * max_rows // BUCKETS + 1000

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pickle
        import tempfile

        import duckdb
        import numpy as np
        import pyarrow
        import pyarrow.compute

        buckets, streams = set(), []
        for batch in batches:
            is_history = pyarrow.compute.equal(batch.column("kind"), "histories")
            streams += batch.filter(is_history).column("value").to_pylist()
            buckets.update(batch.filter(is_history).column("bucket").to_pylist())
            if not pyarrow.compute.all(is_history).as_py():
                yield batch.filter(pyarrow.compute.invert(is_history))
        if not streams:
            return
        parts = pyarrow.concat_tables([pyarrow.ipc.open_stream(stream).read_all() for stream in streams])
        with (
            tempfile.TemporaryDirectory() as folder,
            duckdb.connect(config=settings | {"temp_directory": folder}) as database,
        ):
            database.register("parts", parts)
            others = [f"any_value({name}) AS {name}" for name in ("segment",) if name in parts.column_names]
            others += [
                f"sum({name}) AS {name}" for name in ("weight", "weight_squares") if name in parts.column_names
            ]
            merged = database.sql(
                "SELECT key, any_value(history_end) AS history_end, any_value(last_step) AS last_step, age, "
                f"{''.join(f'{each}, ' for each in others)}"
                "sum(users)::BIGINT AS users, any_value(cells) AS cells FROM parts GROUP BY key, age"
            ).to_arrow_table()
        columns: dict[str, Any] = {}
        if merged.num_rows <= most * len(buckets):
            cells = merged["cells"].combine_chunks()
            columns = {name: merged[name].to_numpy() for name in merged.column_names if name != "cells"}
            columns["n_cells"] = np.diff(cells.offsets.to_numpy())
            columns["cells"] = cells.flatten().to_numpy()
        plain = {name: (column.dtype.str, column.shape, column.tobytes()) for name, column in columns.items()}
        arrays = [
            pyarrow.array([0], pyarrow.int32()),
            pyarrow.array(["histories"]),
            pyarrow.array([pickle.dumps(plain)], pyarrow.binary()),
        ]
        yield pyarrow.RecordBatch.from_arrays(arrays, ["bucket", "kind", "value"])

    return run


def _arrays(columns: dict[str, tuple[str, tuple[int, ...], bytes]]) -> Arrays:
    return {
        name: np.frombuffer(values, np.dtype(kind)).reshape(shape) for name, (kind, shape, values) in columns.items()
    }


def _arrow_schema(schema: Any) -> Any:
    """Schema of Arrow for one of Spark: up to version 4.0, Spark assumes UTC for timestamps; later it is required."""
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


@contextmanager
def _coalesced_cache(session: Any) -> Iterator[None]:
    """Let Spark coalesce small shuffle partitions of frames that are cached meanwhile, as it does for all others.

    With 200 partitions, 4 million events took 32 s of CPU instead of 22 s.
    """
    name = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"
    before = session.conf.get(name, None)
    session.conf.set(name, "true")
    try:
        yield
    finally:
        if before is None:
            session.conf.unset(name)
        else:
            session.conf.set(name, before)


@contextmanager
def _input_errors(name: str) -> Iterator[None]:
    """Turn errors of Spark into input errors of one sentence."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("pyspark", "py4j", "duckdb", "_duckdb", "pyarrow"):
            raise
        if "No module named 'duckdb'" in str(error) or "No module named 'pyarrow'" in str(error):
            raise InputError(
                f"Cannot read {name}: Spark's Python workers need duckdb and pyarrow; install both on every node."
            ) from error
        causes = re.findall(r"^[\w.]*duckdb\.\w+: (.*)$", str(error), re.MULTILINE)  # below a traceback of the worker
        reason = causes[-1].rstrip(".") if causes else first_line(error)
        raise InputError(f"Cannot read {name}: {reason}.") from error
