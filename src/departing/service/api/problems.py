"""Rejected requests as RFC 9457 problem details: codes, statuses, and the exceptions behind them."""

import logging
import sqlite3
from http import HTTPStatus

import msgspec

from departing.model.errors import InputError
from departing.service.api.messages import ProblemCode, ProblemDetails
from departing.service.rollout import NotFoundError
from departing.service.store.base import StoreError
from departing.service.store.connection import UnreachableError

STATUSES = {
    ProblemCode.INVALID_JSON: 400,
    ProblemCode.KEY_REQUIRED: 401,
    ProblemCode.ADMIN_KEY_REQUIRED: 403,
    ProblemCode.LOCAL_ONLY: 403,
    ProblemCode.NOT_FOUND: 404,
    ProblemCode.UNKNOWN_PATH: 404,
    ProblemCode.METHOD_NOT_ALLOWED: 405,
    ProblemCode.REQUEST_TIMEOUT: 408,
    ProblemCode.BODY_TOO_LARGE: 413,
    ProblemCode.INVALID_REQUEST: 422,
    ProblemCode.RATE_LIMITED: 429,
    ProblemCode.INTERNAL_ERROR: 500,
    ProblemCode.STORE_UNAVAILABLE: 503,
}
# The first entry that matches counts: UnreachableError and NotFoundError are InputErrors.
CAUSES: tuple[tuple[tuple[type[Exception], ...], ProblemCode, str], ...] = (
    ((msgspec.ValidationError,), ProblemCode.INVALID_REQUEST, "Invalid request: {}."),
    ((msgspec.DecodeError, UnicodeDecodeError), ProblemCode.INVALID_JSON, "The body is not valid JSON: {}."),
    ((NotFoundError,), ProblemCode.NOT_FOUND, "{}"),
    ((UnreachableError, StoreError, OSError, sqlite3.Error), ProblemCode.STORE_UNAVAILABLE, "{}"),
    ((InputError,), ProblemCode.INVALID_REQUEST, "{}"),
)
log = logging.getLogger("departing")


class ProblemError(Exception):
    """A request to reject."""

    def __init__(self, code: ProblemCode, detail: str, *headers: tuple[str, str]) -> None:
        super().__init__(detail)
        self.code, self.status, self.headers = code, STATUSES[code], headers

    def details(self) -> ProblemDetails:
        """The response body; `code` tells problems of one status apart, so `type` stays the RFC's default."""
        return ProblemDetails("about:blank", HTTPStatus(self.status).phrase, self.status, self.code, str(self))


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
