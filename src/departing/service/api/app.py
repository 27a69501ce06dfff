"""The RSGI application: dispatches requests to routes."""

import asyncio
import json
import logging
from collections.abc import Callable
from time import perf_counter_ns
from types import CoroutineType
from typing import Any

from departing.service.api.auth import PUBLIC, ApiKeys, check_local
from departing.service.api.bodies import BodyReader
from departing.service.api.headers import JSON_HEADERS, PROBLEM_HEADERS
from departing.service.api.latency import OTHER, Latency
from departing.service.api.openapi import openapi
from departing.service.api.problems import ProblemCode, ProblemError, as_problem
from departing.service.api.request_id import HEADER, request_ids
from departing.service.api.routes import PAGE_MEDIA, PARAMETERS, RETIRE, Endpoints, Response, Route, encode
from departing.service.event_log import log_event
from departing.service.service import Service

WITH_PARAMETER = tuple(PARAMETERS)
MAX_DISCARDED = 1 << 16  # bytes read of a body without a valid key or route, so that the connection stays usable
CLOSE = ("connection", "close")
POLL_SECONDS = 0.05  # between two looks at the open requests while the service stops


class App:
    """An RSGI application for Granian.

    Parameters
    ----------
    service
        The service behind the API.
    keys
        API keys; without them only local requests are accepted.
    ready
        Predicate: a policy to serve is published.
    learning
        True if a trainer runs; shown on the dashboard.
    access_log
        Write a line to the log for every request.
    """

    def __init__(
        self,
        service: Service,
        keys: ApiKeys | None = None,
        ready: Callable[[], bool] = lambda: True,
        learning: bool = False,
        access_log: bool = False,
    ) -> None:
        self.service, self.keys = service, keys or ApiKeys()
        self.endpoints = Endpoints(service, ready, learning)
        self.routes = self.endpoints.table()
        document = 200, JSON_HEADERS, json.dumps(openapi(self.routes)).encode()
        self.routes.append(Route("GET", "/openapi.json", PUBLIC, lambda _: document))
        self._table = {(route.method, route.path): route for route in self.routes}
        self._table |= {("HEAD", route.path): route for route in self.routes if route.method == "GET"}
        self._latency = self.endpoints.latency = Latency(list(self._table))
        self._request_id, self._access_log = request_ids(), access_log
        self.bodies, self.open_requests = BodyReader(), 0

    async def __rsgi__(self, scope: Any, protocol: Any) -> tuple[str, int, str]:
        """Answer one request; return its path as in the route table, its status and its ID."""
        started, request_id = perf_counter_ns(), self._request_id(scope.headers.get(HEADER))
        path, argument = _match(scope)
        self.open_requests += 1
        try:
            try:  # here, because another coroutine around `_dispatch` would cost 0.5 µs per request
                status, headers, body = await self._dispatch(scope, protocol, path, argument)
            except Exception as error:
                status, headers, body = self._problem(error, request_id)
            headers = [*headers, (HEADER, request_id)]
            if self.endpoints.draining:
                headers.append(CLOSE)  # so that callers with a connection of their own move to another server
            if isinstance(body, bytes):
                protocol.response_bytes(status, headers, body)
            elif scope.method == "HEAD":
                await body.close()
                protocol.response_empty(status, headers)
            else:
                await body.send(protocol, scope.client, status, headers)
        finally:
            self.open_requests -= 1
        nanoseconds = perf_counter_ns() - started
        self._latency.observe(scope.method, path, status, nanoseconds)
        if self._access_log:
            self._log_access(scope, path, status, nanoseconds, request_id)
        return path, status, request_id

    def route_name(self, method: str, path: str) -> str:
        """Return the path of a route, and one name for all paths without a route."""
        return path if (method, path) in self._table else OTHER[1]

    def _log_access(self, scope: Any, path: str, status: int, nanoseconds: int, request_id: str) -> None:
        """Log a request by its route, because a path may contain the name of a user."""
        route, seconds = self.route_name(scope.method, path), round(nanoseconds / 1e9, 6)
        fields = {"method": scope.method, "route": route, "status": status, "seconds": seconds}
        log_event("request", logging.INFO, request_id=request_id, client=scope.client, **fields)

    def _problem(self, error: Exception, request_id: str) -> Response:
        """Return problem details.

        A function of its own: a problem that is a variable of a function in its traceback would stay in memory, with
        the request and the body that still arrives, until the garbage collector finds it.
        """
        problem = as_problem(error, request_id)
        self.service.store.counters[f"problems_{problem.code.status}"] += 1
        return problem.code.status, [*PROBLEM_HEADERS, *problem.headers], encode(problem.details(request_id))

    async def _dispatch(self, scope: Any, protocol: Any, path: str, argument: Any) -> Response:
        method = scope.method
        route = self._table.get((method, path))
        if not self.keys.required:
            check_local(scope.headers, route is not None and route.media == PAGE_MEDIA)
        try:
            if route is None:
                raise self._no_route(method, path)
            self.keys.check(route.access, scope)
        except ProblemError:
            if 0 < int(scope.headers.get("content-length") or 0) <= MAX_DISCARDED:
                await self.bodies.read(scope, protocol, 0)
            raise
        body = b"" if method in ("GET", "HEAD") else await self.bodies.read(scope, protocol, route.max_body)
        if route.request is not None:
            try:
                decoded = route.decode(body)
            except RecursionError:
                raise ProblemError(ProblemCode.INVALID_JSON, "The body is nested too deeply.") from None
            argument = (argument, decoded) if "{" in path else decoded
        result = route.handler(argument)
        if isinstance(result, CoroutineType):
            result = await result
        return result if isinstance(result, tuple) else (200, JSON_HEADERS, encode(result))

    def _no_route(self, method: str, path: str) -> ProblemError:
        methods = [method for method, known in self._table if known == path]
        if not methods:
            detail = f"There is no path {path:.100}; /openapi.json lists all paths."
            return ProblemError(ProblemCode.UNKNOWN_PATH, detail)
        allowed = ", ".join(methods)
        detail = f"{path:.100} does not accept {method}; it accepts {allowed}."
        return ProblemError(ProblemCode.METHOD_NOT_ALLOWED, detail, ("allow", allowed))

    async def drain(self) -> None:
        """Wait for the open requests, but not for bodies that have not arrived."""
        await self.bodies.stop()
        while self.open_requests:
            await asyncio.sleep(POLL_SECONDS)


def _match(scope: Any) -> tuple[str, str]:
    """Return the path as in the route table, and the argument of routes without a body: path parameter or query."""
    path: str = scope.path
    if path.startswith(WITH_PARAMETER) and (path != RETIRE or scope.method == "DELETE"):
        start = next(start for start in WITH_PARAMETER if path.startswith(start))
        return start + PARAMETERS[start], path[len(start) :]
    return path, scope.query_string
