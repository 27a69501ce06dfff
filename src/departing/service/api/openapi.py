"""The calls of the API, and the OpenAPI document that describes them."""

from collections.abc import Callable
from typing import Any

import msgspec

from departing import __version__
from departing.service.api import messages as m
from departing.service.export import TYPES

CLIENT, ADMIN, OPEN = "client", "admin", "open"  # who may call
Handler = Callable[[Any], Any]


OTHERS: tuple[tuple[str, tuple[str, ...], str, dict[str, list[str]]], ...] = (
    ("/v1/log", tuple(TYPES.values()), "All decisions; ?format=parquet for Parquet.", {"format": list(TYPES)}),
    ("/metrics", ("text/plain",), "Counters for Prometheus.", {}),
)


class Route:
    """A method and a path: who may call it, what it takes and gives."""

    def __init__(self, handler: Handler, right: str, takes: Any = None, gives: Any = None) -> None:
        self.handler, self.right, self.takes, self.gives = handler, right, takes, gives
        self.decode: Callable[[bytes], Any] | None = None if takes is None else msgspec.json.Decoder(takes).decode


def openapi(routes: dict[tuple[str, str], Route]) -> dict[str, Any]:
    """The OpenAPI document of the routes."""
    types = {t for route in routes.values() for t in (route.takes, route.gives) if t is not None} | {m.ProblemDetails}
    listed = sorted(types, key=str)
    schemas, components = msgspec.json.schema_components(listed, ref_template="#/components/schemas/{name}")
    of = dict(zip(listed, schemas, strict=True))
    paths: dict[str, Any] = {}
    problem = _described("Refused.", of[m.ProblemDetails])
    asked: list[dict[str, list[str]]] = [{"key": []}]
    for (method, path), route in routes.items():
        entry: dict[str, Any] = {
            "summary": (getattr(route.gives, "__doc__", None) or path).strip().splitlines()[0],
            "responses": {"200": _described("Done.", of[route.gives])},
        }
        entry["responses"] |= {str(status): problem for status in _refusals(method, path, route)}
        if route.takes is not None:
            entry["requestBody"] = {"required": True, "content": {"application/json": {"schema": of[route.takes]}}}
        if "{user}" in path:
            name = {"type": "string", "minLength": 1}
            entry["parameters"] = [{"name": "user", "in": "path", "required": True, "schema": name}]
        if route.right == OPEN:
            entry["responses"]["503"] = _described("Not at present.", of[route.gives])
        else:
            entry["security"] = asked
        paths.setdefault(path, {})[method.lower()] = entry
    for path, kinds, words, options in OTHERS:
        responses = {"200": {"description": words, "content": {kind: {} for kind in kinds}}}
        responses |= {str(status): problem for status in (401, 403, *([422] if options else []), 429, 503)}
        parameters = [{"name": k, "in": "query", "schema": {"enum": values}} for k, values in options.items()]
        paths[path] = {"get": {"summary": words, "parameters": parameters, "responses": responses, "security": asked}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "departing",
            "version": __version__,
            "description": "Recommend, and be told what users do.",
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _described(words: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": words, "content": {"application/json": {"schema": schema}}}


def _refusals(method: str, path: str, route: Route) -> list[int]:
    """The statuses with which a call may be refused."""
    found = {401, 403, 429, 503} if route.right != OPEN else {403}
    found |= {404, 422} if "{user}" in path else set()
    found |= {408} if method != "GET" else set()  # a body that does not come
    found |= {400, 404, 413, 422} if route.takes is not None else set()
    return sorted(found)
