"""Logs on Spark: the SQL of `rules.py` runs in DuckDB inside Spark's Python workers, once per partition.

Spark distributes the rows, by user where the rules need all rows of a user; only aggregates return to the driver. The
workers need the packages duckdb and pyarrow, but not departing: the function that Spark ships is self-contained.
"""

import pickle
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import duckdb
import numpy as np
import pyarrow
from pyspark.sql.pandas.types import to_arrow_schema

from departing.data.sources import Arrays, Database, describe_source, first_line, input_errors, open_database
from departing.model.errors import InputError
from departing.model.tables import quoted


class SparkEngine:
    """A Spark DataFrame, each partition of which is the relation `source` of a DuckDB database in a worker.

    Nothing is computed before results are requested: every request is one Spark job, in which each partition starts
    with an empty database and runs all statements defined so far.
    """

    guessed: tuple[str, ...] = ()

    def __init__(self, frame: Any, memory: int) -> None:
        self.name, self.memory = describe_source(frame), memory
        self.settings = {
            "memory_limit": f"{memory * 9 // 10_000} kB",
            "threads": 1,
            "preserve_insertion_order": False,
        }
        self.script = ["SET TimeZone = 'UTC'", "CREATE TABLE malformed (line VARCHAR)"]
        with duckdb.connect() as database, _input_errors(self.name):
            # Spark 4.0 and earlier assume UTC for timestamps; later releases require the time zone.
            zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
            database.register("source", to_arrow_schema(frame.schema, **zone).empty_table())
            self.columns = {row[0]: row[1] for row in database.execute("DESCRIBE source").fetchall()}
        plain = [f"c{i}" for i in range(len(frame.columns))]  # Spark has its own meaning for dots and backticks
        self.frame = frame.toDF(*plain)
        renamed = ", ".join(f"{a} AS {quoted(b)}" for a, b in zip(plain, frame.columns, strict=True))
        self.script.append(f"CREATE VIEW source AS SELECT {renamed} FROM partition_rows")

    def define(self, *statements: str) -> None:
        """Create views, tables and types in every partition."""
        self.script += statements

    def by_user(self, column: str, in_order: bool = False) -> None:
        """Bring the rows of a user into one partition, and partitions into the order of users if `in_order`."""
        key = f"c{list(self.columns).index(column)}"
        rows = self.frame.where(f"{key} IS NOT NULL")
        self.frame = rows.repartitionByRange(key) if in_order else rows.repartition(key)

    def rows(self, *queries: str) -> list[list[tuple[Any, ...]]]:
        """The rows of all partitions, for every query."""
        parts = list(self._parts(queries, as_arrays=False)) if queries else []
        return [[row for part in parts for row in part[i]] for i in range(len(queries))]

    def arrays(self, *queries: str) -> Iterator[list[Arrays]]:
        """The columns of every query as arrays, partition by partition."""
        return self._parts(queries, as_arrays=True)

    def steps(self, table: str, users: int, digest: str) -> Generator[Arrays, None, int]:
        """Yield the rows of `table` for `users` users at a time, and return the sum of the query `digest`.

        Users are numbered within partitions; the numbers of a partition continue those of the one before.
        """
        checksum = start = n = 0
        rest: Arrays = {}
        for part, total in self._parts((f"FROM {table} ORDER BY user, step", digest), as_arrays=True, stream=True):
            checksum += int(total["digest"][0])
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

    @contextmanager
    def users(self, query: str, *queries: str) -> Iterator[tuple[list[list[Arrays]], Database]]:
        """The `arrays` of `queries`, and a database in which the rows of `query` are the table `users`.

        The columns of `query` are `u`, `history`, the number of a row of the second of `queries`, and `age`. The rows
        pass through the driver one partition at a time; the numbers of a partition continue those of the one before.
        """
        parts: list[list[Arrays]] = []
        n = 0
        with open_database(self.memory) as (database, _), input_errors(self.name):
            for *part, table in self._parts(queries, as_arrays=True, stream=True, table=query):
                database.register("part", pyarrow.ipc.open_stream(table).read_all())
                insert = "INSERT INTO users" if parts else "CREATE TABLE users AS"
                database.execute(f"{insert} SELECT u, history + {n} AS history, age FROM part")
                database.unregister("part")
                parts.append(part)
                n += len(part[1]["history_end"])
            yield parts, database

    def _parts(
        self, queries: tuple[str, ...], as_arrays: bool, stream: bool = False, table: str | None = None
    ) -> Iterator[list[Any]]:
        """Results of every partition that has rows, in order; `stream` computes one partition at a time.

        The last result is the Arrow stream of the query `table`, if that is given.
        """
        task = _task(self.settings, self.script, queries, as_arrays, table)
        with _input_errors(self.name):
            parts = self.frame.mapInArrow(task, "part binary")
            for (part,) in parts.toLocalIterator(prefetchPartitions=True) if stream else parts.collect():
                results = pickle.loads(part)
                n = len(queries)
                yield [*map(_arrays, results[:n]), *results[n:]] if as_arrays else results


def _task(
    settings: dict[str, Any], script: list[str], queries: tuple[str, ...], as_arrays: bool, table: str | None
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function that a Spark worker runs on one partition; it must not refer to names of this module.

    It returns pickled lists of rows, or pickled types and bytes of columns, made of built-in types only, so that the
    versions of NumPy on workers and driver may differ.
    """

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import itertools
        import pickle
        import tempfile

        import duckdb
        import numpy as np
        import pyarrow

        first = next(batches, None)
        if first is None:
            return
        with tempfile.TemporaryDirectory() as folder:
            database = duckdb.connect(config=settings | {"temp_directory": folder})
            rows = pyarrow.RecordBatchReader.from_batches(first.schema, itertools.chain((first,), batches))
            database.register("batches", rows)
            database.execute("CREATE TABLE partition_rows AS FROM batches")
            for statement in script:
                database.execute(statement)
            results: list[Any] = []
            for query in queries:
                result = database.execute(query)
                if as_arrays:
                    columns = {name: np.ma.getdata(column) for name, column in result.fetchnumpy().items()}
                    results.append({name: (column.dtype.str, column.tobytes()) for name, column in columns.items()})
                else:
                    results.append(result.fetchall())
            if table is not None:
                rows = database.sql(table).to_arrow_table()
                sink = pyarrow.BufferOutputStream()
                with pyarrow.ipc.new_stream(sink, rows.schema) as stream:
                    stream.write_table(rows)
                results.append(sink.getvalue().to_pybytes())
            database.close()
        yield pyarrow.RecordBatch.from_arrays([pyarrow.array([pickle.dumps(results)], pyarrow.binary())], ["part"])

    return run


def _arrays(columns: dict[str, tuple[str, bytes]]) -> Arrays:
    return {name: np.frombuffer(values, np.dtype(kind)) for name, (kind, values) in columns.items()}


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
