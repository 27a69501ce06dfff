"""The RSGI application: dispatches requests to routes, and limits the size of bodies."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import CoroutineType
from typing import Any

from departing.service.api.auth import PUBLIC, ApiKeys, check_local
from departing.service.api.openapi import openapi
from departing.service.api.problems import BODY_TIMEOUT, ProblemCode, ProblemError, as_problem
from departing.service.api.routes import JSON, USERS, Endpoints, Response, Route, encode
from departing.service.service import Service

MAX_BODY = 1 << 20  # bytes; 1,000 feedback rows whose event IDs are 100 escaped characters take 645 kB
# Bytes that are read of a body that is too large: most callers then get a response instead of a broken connection.
MAX_READ = 8 * MAX_BODY
MAX_DISCARDED = 1 << 16  # bytes of a body without a valid key that are read, so that the connection stays usable
JSON_HEADERS = [("content-type", JSON)]


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
    """

    def __init__(
        self,
        service: Service,
        keys: ApiKeys | None = None,
        ready: Callable[[], bool] = lambda: True,
        learning: bool = False,
    ) -> None:
        self.service, self.keys = service, keys or ApiKeys()
        self.endpoints = Endpoints(service, ready, learning)
        self.routes = self.endpoints.table()
        document = 200, JSON_HEADERS, json.dumps(openapi(self.routes)).encode()
        self.routes.append(Route("GET", "/openapi.json", PUBLIC, lambda _: document))
        self._table = {(route.method, route.path): route for route in self.routes}

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answer one request."""
        status, headers, body = await self.respond(scope, protocol)
        if isinstance(body, Path):
            protocol.response_file(status, headers, str(body))
        else:
            protocol.response_bytes(status, headers, body)

    async def respond(self, scope: Any, protocol: Any) -> Response:
        """Return the response to a request; problem details for every exception."""
        try:
            return await self._dispatch(scope, protocol)
        except Exception as error:
            problem = as_problem(error)
            self.service.store.counters[f"problems_{problem.code.status}"] += 1
            headers = [("content-type", "application/problem+json"), *problem.headers]
            return problem.code.status, headers, encode(problem.details())

    async def _dispatch(self, scope: Any, protocol: Any) -> Response:
        method, (path, argument) = scope.method, _match(scope)
        route = self._table.get((method, path))
        if not self.keys.required:
            check_local(scope.headers)
        if route is not None:
            try:
                self.keys.check(route.access, scope.headers.get("authorization"))
            except ProblemError:
                if 0 < int(scope.headers.get("content-length") or 0) <= MAX_DISCARDED:
                    await self._body(scope, protocol)
                raise
        body = b"" if method == "GET" else await self._body(scope, protocol)
        if route is None:
            raise self._no_route(method, path)
        if route.request is not None:
            if len(body) > MAX_BODY:
                detail = f"The body exceeds 1 MiB ({MAX_BODY:,} bytes); split the batch."
                raise ProblemError(ProblemCode.BODY_TOO_LARGE, detail)
            argument = route.decode(body)
        result = route.handler(argument)
        if isinstance(result, CoroutineType):
            result = await result
        return result if isinstance(result, tuple) else (200, JSON_HEADERS, encode(result))

    def _no_route(self, method: str, path: str) -> ProblemError:
        methods = [route.method for route in self.routes if route.path == path]
        if not methods:
            detail = f"There is no path {path:.100}; /openapi.json lists all paths."
            return ProblemError(ProblemCode.UNKNOWN_PATH, detail)
        allowed = ", ".join(methods)
        detail = f"{path:.100} does not accept {method}; it accepts {allowed}."
        return ProblemError(ProblemCode.METHOD_NOT_ALLOWED, detail, ("allow", allowed))

    async def _body(self, scope: Any, protocol: Any) -> bytes:
        """Return the body, cut off after `MAX_READ`; where keys are used, it must arrive within `BODY_TIMEOUT`."""
        if not self.keys.required:
            return await _read(scope, protocol)  # a timeout costs 2 µs per request
        async with asyncio.timeout(BODY_TIMEOUT):
            return await _read(scope, protocol)


def _match(scope: Any) -> tuple[str, str]:
    """Return the path as in the route table, and the argument of routes without a body: path parameter or query."""
    path: str = scope.path
    if path.startswith(USERS):
        return USERS + "{user}", path[len(USERS) :]
    return path, scope.query_string


async def _read(scope: Any, protocol: Any) -> bytes:
    if int(scope.headers.get("content-length") or MAX_BODY) < MAX_BODY:
        return bytes(await protocol())
    body = bytearray()
    async for part in protocol:
        body += part
        if len(body) > MAX_READ:
            break
    return bytes(body)
