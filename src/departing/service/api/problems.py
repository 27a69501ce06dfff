"""Rejected requests as RFC 9457 problem details: codes, statuses, and the exceptions behind them."""

import logging
import sqlite3
import traceback
from enum import StrEnum
from http import HTTPStatus
from typing import Self

import msgspec

from departing.model.errors import InputError
from departing.service.event_log import log_event
from departing.service.rollout import NotFoundError
from departing.service.service import UserLimitError
from departing.service.store.base import StoreError
from departing.service.store.connection import UnreachableError

# Seconds for a body to arrive: long enough for slow networks, short enough to free connections that are held open.
BODY_TIMEOUT = 10.0


class ProblemCode(StrEnum):
    """Stable codes of rejected requests, each with its HTTP status."""

    status: int

    def __new__(cls, code: str, status: int) -> Self:
        """Create a member whose value is the code."""
        member = str.__new__(cls, code)
        member._value_, member.status = code, status
        return member

    INVALID_JSON = "invalid_json", 400
    KEY_REQUIRED = "key_required", 401
    ADMIN_KEY_REQUIRED = "admin_key_required", 403
    LOCAL_ONLY = "local_only", 403
    NOT_FOUND = "not_found", 404
    UNKNOWN_PATH = "unknown_path", 404
    METHOD_NOT_ALLOWED = "method_not_allowed", 405
    REQUEST_TIMEOUT = "request_timeout", 408
    BODY_TOO_LARGE = "body_too_large", 413
    INVALID_REQUEST = "invalid_request", 422
    RATE_LIMITED = "rate_limited", 429
    INTERNAL_ERROR = "internal_error", 500
    STORE_UNAVAILABLE = "store_unavailable", 503
    USER_LIMIT = "user_limit", 503


class ProblemDetails(msgspec.Struct):
    """A rejected request (RFC 9457): the HTTP status, a stable `code`, and the cause in `detail`."""

    type: str
    title: str
    status: int
    code: ProblemCode
    detail: str


# The first entry that matches counts: some of these classes are subclasses of later ones.
CAUSES: tuple[tuple[tuple[type[Exception], ...], ProblemCode, str], ...] = (
    ((msgspec.ValidationError,), ProblemCode.INVALID_REQUEST, "Invalid request: {}."),
    ((msgspec.DecodeError, UnicodeDecodeError), ProblemCode.INVALID_JSON, "The body is not valid JSON: {}."),
    ((TimeoutError,), ProblemCode.REQUEST_TIMEOUT, f"The body did not arrive within {BODY_TIMEOUT:g} seconds."),
    ((NotFoundError,), ProblemCode.NOT_FOUND, "{}"),
    ((UserLimitError,), ProblemCode.USER_LIMIT, "{}"),
    ((UnreachableError, StoreError, OSError, sqlite3.Error), ProblemCode.STORE_UNAVAILABLE, "{}"),
    ((InputError,), ProblemCode.INVALID_REQUEST, "{}"),
)


class ProblemError(Exception):
    """A rejected request, with headers of the response."""

    def __init__(self, code: ProblemCode, detail: str, *headers: tuple[str, str]) -> None:
        super().__init__(detail)
        self.code, self.headers = code, headers

    def details(self) -> ProblemDetails:
        """Return the response body; `code` identifies the problem, so `type` stays the RFC's default."""
        status = self.code.status
        return ProblemDetails("about:blank", HTTPStatus(status).phrase, status, self.code, str(self))


def as_problem(error: Exception) -> ProblemError:
    """Return the problem that an exception causes; log unexpected exceptions."""
    if isinstance(error, ProblemError):
        return error
    for kinds, code, sentence in CAUSES:
        if isinstance(error, kinds):
            return ProblemError(code, sentence.format(error))
    if type(error).__module__.startswith("psycopg"):  # an optional dependency
        return ProblemError(ProblemCode.STORE_UNAVAILABLE, f"The store cannot be reached: {error}.")
    details = "".join(traceback.format_exception(error))
    log_event("request_failed", logging.ERROR, error=repr(error), traceback=details)
    return ProblemError(ProblemCode.INTERNAL_ERROR, "Internal error; see the log of the service.")
