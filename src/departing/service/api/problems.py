"""Rejected requests as RFC 9457 problem details: codes, statuses, and the exceptions behind them."""

import logging
import sqlite3
import time
from enum import StrEnum
from http import HTTPStatus
from typing import Self

import msgspec

from departing.model.errors import InputError
from departing.service import messages as m
from departing.service.event_log import log_event
from departing.service.rollout import NotFoundError
from departing.service.segment_names import SegmentLimitError
from departing.service.service import FinishedError, UserLimitError
from departing.service.store.base import RETRY_AFTER, OverloadedError, StoreError
from departing.service.store.connection import UnreachableError


class ProblemCode(StrEnum):
    """Stable codes of rejected requests, each with its HTTP status."""

    status: int

    def __new__(cls, code: str, status: int) -> Self:
        """Create a member whose value is the code."""
        member = str.__new__(cls, code)
        member._value_, member.status = code, status
        return member

    INVALID_JSON = "invalid_json", 400
    INCOMPLETE_BODY = "incomplete_body", 400
    KEY_REQUIRED = "key_required", 401
    ADMIN_KEY_REQUIRED = "admin_key_required", 403
    LOCAL_ONLY = "local_only", 403
    NOT_FOUND = "not_found", 404
    UNKNOWN_PATH = "unknown_path", 404
    METHOD_NOT_ALLOWED = "method_not_allowed", 405
    REQUEST_TIMEOUT = "request_timeout", 408
    FINISHED = "finished", 409
    BODY_TOO_LARGE = "body_too_large", 413
    INVALID_REQUEST = "invalid_request", 422
    SEGMENT_LIMIT = "segment_limit", 422
    RATE_LIMITED = "rate_limited", 429
    INTERNAL_ERROR = "internal_error", 500
    EXPORT_LIMIT = "export_limit", 503
    OVERLOADED = "overloaded", 503
    STOPPING = "stopping", 503
    STORE_UNAVAILABLE = "store_unavailable", 503
    USER_LIMIT = "user_limit", 503


class ProblemDetails(msgspec.Struct):
    """A rejected request (RFC 9457): the HTTP status, a stable `code`, and the cause in `detail`.

    `request_id` is that of the header `X-Request-Id` and of the log.
    """

    type: str
    title: str
    status: int
    code: ProblemCode
    detail: str
    request_id: str


# The first entry that matches counts: some of these classes are subclasses of later ones.
CAUSES: tuple[tuple[tuple[type[Exception], ...], ProblemCode, str], ...] = (
    ((msgspec.ValidationError,), ProblemCode.INVALID_REQUEST, "Invalid request: {}."),
    ((msgspec.DecodeError, UnicodeDecodeError), ProblemCode.INVALID_JSON, "The body is not valid JSON: {}."),
    ((m.NestingError,), ProblemCode.INVALID_JSON, "{}"),
    ((NotFoundError,), ProblemCode.NOT_FOUND, "{}"),
    ((SegmentLimitError,), ProblemCode.SEGMENT_LIMIT, "{}"),
    ((FinishedError,), ProblemCode.FINISHED, "{}"),
    ((UserLimitError,), ProblemCode.USER_LIMIT, "{}"),
    ((OverloadedError,), ProblemCode.OVERLOADED, "{}"),
    ((UnreachableError, StoreError, OSError, sqlite3.Error), ProblemCode.STORE_UNAVAILABLE, "{}"),
    ((InputError,), ProblemCode.INVALID_REQUEST, "{}"),
)


LOG_SECONDS = 10.0  # between two events of one cause: while a database is down, every request fails
MAX_DETAIL = 2000  # characters of a detail, which may repeat what was sent
MAX_LOGGED = 100  # causes that are remembered; there are a few
_logged: dict[tuple[object, ...], float] = {}  # causes, and when they were logged


class ProblemError(Exception):
    """A rejected request, with headers of the response."""

    def __init__(self, code: ProblemCode, detail: str, *headers: tuple[str, str]) -> None:
        super().__init__(detail)
        self.code, self.headers = code, headers

    def details(self, request_id: str) -> ProblemDetails:
        """Return the response body; `code` identifies the problem, so `type` stays the RFC's default."""
        status = self.code.status
        detail = str(self)[:MAX_DETAIL]
        return ProblemDetails("about:blank", HTTPStatus(status).phrase, status, self.code, detail, request_id)


def as_problem(error: Exception, request_id: str = "") -> ProblemError:
    """Return the problem that an exception causes; log unexpected exceptions."""
    if isinstance(error, ProblemError):
        return error
    for kinds, code, sentence in CAUSES:
        if isinstance(error, kinds):
            detail = sentence.format(error)
            if code is ProblemCode.STORE_UNAVAILABLE:
                return _unavailable(error, detail, request_id)
            headers = [("retry-after", f"{error.retry_after:.0f}")] if isinstance(error, OverloadedError) else []
            return ProblemError(code, detail, *headers)
    if type(error).__module__.startswith("psycopg"):  # an optional dependency
        return _unavailable(error, f"The store cannot be reached: {error}.", request_id)
    log_event("request_failed", logging.ERROR, error, request_id=request_id)
    return ProblemError(ProblemCode.INTERNAL_ERROR, "Internal error; see the log of the service.")


def _unavailable(error: Exception, detail: str, request_id: str) -> ProblemError:
    """Return the problem of a store that is unavailable; log it at most every `LOG_SECONDS` for each cause."""
    cause = (type(error), getattr(error, "errno", None), getattr(error, "sqlite_errorcode", None))
    now = time.monotonic()
    if now - _logged.get(cause, -LOG_SECONDS) >= LOG_SECONDS:
        if len(_logged) >= MAX_LOGGED:
            _logged.clear()
        _logged[cause] = now
        log_event(ProblemCode.STORE_UNAVAILABLE, logging.WARNING, error, request_id=request_id)
    return ProblemError(ProblemCode.STORE_UNAVAILABLE, detail, ("retry-after", f"{RETRY_AFTER:.0f}"))
