"""Log of the service on standard error: one JSON object per line, whatever is logged, warned or raised."""

import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from departing.model.errors import InputError

LEVEL = "DEPARTING_LOG_LEVEL"  # environment variable with the level of this process and of its children
LEVELS = ("debug", "info", "warning", "error")

log = logging.getLogger("departing")


class JsonFormatter(logging.Formatter):
    """Formats records of all loggers as JSON objects.

    Every object has `time`, `level`, `process`, `pid` and `event`. Records of other loggers have the event
    `log_record` with `logger` and `message`; an exception adds `error` and `traceback`.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        event, fields = record.getMessage(), getattr(record, "fields", None)
        if fields is None:
            event, fields = "log_record", {"logger": record.name, "message": event}
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": record.process,
            "event": event,
            **fields,
        }
        if record.exc_info and record.exc_info[1] is not None:
            details = "".join(traceback.format_exception(*record.exc_info))
            line |= {"error": repr(record.exc_info[1]), "traceback": details}
        return json.dumps(line, default=str)  # in ASCII, whatever the encoding of standard error


class StderrHandler(logging.Handler):
    """Writes each record to standard error, whatever that is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        with suppress(OSError, ValueError):  # a log that nobody can read must not stop the service
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()


@contextmanager
def json_lines(process: str, level: str | None = None) -> Iterator[None]:
    """Context in which this process logs to standard error, one JSON object per line.

    Includes warnings and uncaught exceptions in all threads; an exception ends the process, as an `InputError` with
    code 2. The exception to this are messages that compiled libraries print by themselves before they abort.

    Parameters
    ----------
    process
        Name of the process in the log, such as "server".
    level
        One of `LEVELS`; by default that of the parent process, or "info".
    """
    if level is not None:
        os.environ[LEVEL] = level
    root, handler = logging.getLogger(), StderrHandler()
    before = root.level, threading.excepthook, sys.unraisablehook
    handler.setFormatter(JsonFormatter(process))
    root.addHandler(handler)
    root.setLevel(os.environ.get(LEVEL, "info").upper())
    logging.captureWarnings(True)
    threading.excepthook = _log_uncaught
    sys.unraisablehook = _log_uncaught
    try:
        yield
    except Exception as error:
        if sys.stderr.isatty():  # for a person
            raise
        if isinstance(error, InputError):
            log_event("failed", logging.ERROR, error=str(error))
            raise SystemExit(error.exit_code) from error
        log_event("uncaught_exception", logging.ERROR, error)
        raise SystemExit(1) from error
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        level_before, threading.excepthook, sys.unraisablehook = before
        root.setLevel(level_before)


def _log_uncaught(details: Any) -> None:
    log_event("uncaught_exception", logging.ERROR, details.exc_value)


def log_event(event: str, level: int = logging.INFO, exception: BaseException | None = None, **fields: Any) -> None:
    """Write a line to the log; an exception adds the fields `error` and `traceback`."""
    log.log(level, event, extra={"fields": fields}, exc_info=exception)
