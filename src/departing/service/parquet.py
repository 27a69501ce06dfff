"""Conversion of JSON lines to a Parquet file while they are read: nothing is kept on disk."""

import os
import threading
from collections.abc import Generator
from contextlib import suppress

import duckdb

from departing.model.tables import disable_progress_bar

PART = 1 << 16  # bytes of a part of the file: what a pipe holds
INVALID = b"{\n"  # a line that is not JSON, so that DuckDB does not finish the file


def parquet_parts(lines: Generator[bytes, None, None], columns: str) -> Generator[bytes, None, None]:
    """Yield the parts of a Parquet file with the rows of JSON lines.

    Parameters
    ----------
    lines
        Whole lines, any number at a time; closed in any case.
    columns
        Columns and their types, as DuckDB's `read_json` accepts them.

    Yields
    ------
    bytes
        Parts of the file. DuckDB buffers the rows of one row group, 123,000.

    Raises
    ------
    Exception
        Whatever `lines` raises, or the error of DuckDB; the file is then incomplete and cannot be read.
    """
    (lines_end, feed_end), (read_end, file_end) = os.pipe(), os.pipe()
    errors: list[BaseException] = []
    closed = threading.Event()  # set when nobody wants the rest

    def feed() -> None:
        with suppress(BrokenPipeError), open(feed_end, "wb") as target:  # broken if the conversion ends early
            try:
                for part in lines:
                    if closed.is_set():
                        break
                    target.write(part)
            except BrokenPipeError:
                raise
            except BaseException as error:
                errors.append(error)
                target.write(INVALID)

    def convert() -> None:
        query = f"COPY (FROM read_json(?, columns = {columns}, format = 'newline_delimited')) TO '/dev/fd/{file_end}'"
        try:
            with duckdb.connect(config={"threads": 1}) as connection:
                disable_progress_bar(connection)
                connection.execute(f"{query} (FORMAT parquet)", [f"/dev/fd/{lines_end}"])
        except BaseException as error:
            errors.append(error)
        finally:
            os.close(lines_end)
            os.close(file_end)

    threads = [threading.Thread(target=each, name="parquet", daemon=True) for each in (feed, convert)]
    for thread in threads:
        thread.start()
    try:
        while part := os.read(read_end, PART):
            yield part
    finally:
        closed.set()
        while os.read(read_end, PART):  # DuckDB 2.0 may hang if a write fails, so its output is read to the end
            pass
        os.close(read_end)
        for thread in threads:
            thread.join()
        lines.close()
    if errors:
        raise errors[0]
