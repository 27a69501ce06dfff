"""Rejected requests as RFC 9457 problem details: codes, statuses, and the exceptions behind them."""

import logging
import sqlite3
from enum import StrEnum
from http import HTTPStatus
from typing import Self

import msgspec

from departing.model.errors import InputError
from departing.service.rollout import NotFoundError
from departing.service.store.base import StoreError
from departing.service.store.connection import UnreachableError


class ProblemCode(StrEnum):
    """Stable codes of rejected requests, each with its HTTP status."""

    status: int

    def __new__(cls, code: str, status: int) -> Self:
        """Make a string with a status."""
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


class ProblemDetails(msgspec.Struct):
    """A rejected request (RFC 9457): the HTTP status, a stable `code`, and the cause in `detail`."""

    type: str
    title: str
    status: int
    code: ProblemCode
    detail: str


BODY_TIMEOUT = 10.0  # seconds for a body to arrive: slow networks against callers that hold connections
# The first entry that matches counts: some of these classes are subclasses of later ones.
CAUSES: tuple[tuple[tuple[type[Exception], ...], ProblemCode, str], ...] = (
    ((msgspec.ValidationError,), ProblemCode.INVALID_REQUEST, "Invalid request: {}."),
    ((msgspec.DecodeError, UnicodeDecodeError), ProblemCode.INVALID_JSON, "The body is not valid JSON: {}."),
    ((TimeoutError,), ProblemCode.REQUEST_TIMEOUT, f"The body did not arrive within {BODY_TIMEOUT:g} seconds."),
    ((NotFoundError,), ProblemCode.NOT_FOUND, "{}"),
    ((UnreachableError, StoreError, OSError, sqlite3.Error), ProblemCode.STORE_UNAVAILABLE, "{}"),
    ((InputError,), ProblemCode.INVALID_REQUEST, "{}"),
)
log = logging.getLogger("departing")


class ProblemError(Exception):
    """A request to reject."""

    def __init__(self, code: ProblemCode, detail: str, *headers: tuple[str, str]) -> None:
        super().__init__(detail)
        self.code, self.headers = code, headers

    def details(self) -> ProblemDetails:
        """The response body; `code` tells problems of one status apart, so `type` stays the RFC's default."""
        status = self.code.status
        return ProblemDetails("about:blank", HTTPStatus(status).phrase, status, self.code, str(self))


def as_problem(error: Exception) -> ProblemError:
    """The problem to answer with after an exception; unexpected exceptions are logged."""
    if isinstance(error, ProblemError):
        return error
    for kinds, code, sentence in CAUSES:
        if isinstance(error, kinds):
            return ProblemError(code, sentence.format(error))
    if type(error).__module__.startswith("psycopg"):  # an optional dependency
        return ProblemError(ProblemCode.STORE_UNAVAILABLE, f"The store cannot be reached: {error}.")
    log.error("a request failed", exc_info=error)
    return ProblemError(ProblemCode.INTERNAL_ERROR, "Internal error; see the log of the service.")
