"""The OpenAPI document, derived from the route table."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from departing import __version__
from departing.service.api.auth import PUBLIC
from departing.service.api.problems import ProblemCode, ProblemDetails
from departing.service.api.routes import JSON, Route

PROBLEM = "application/problem+json"
TAGS = {
    "users": "Recommendations, feedback and the state of users.",
    "policies": "Policy versions.",
    "categories": "Categories.",
    "shadow": "Shadow mode: the caller decides, the policy is compared with it.",
    "monitoring": "Logs, metrics, checks and the data of the pages.",
}


def openapi(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of all routes that have a tag."""
    documented = [route for route in routes if route.tag]
    types = {t for route in documented for t in (route.request, route.response) if t is not None}
    listed = sorted(types | {ProblemDetails}, key=str)
    schemas, components = msgspec.json.schema_components(listed, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(listed, schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in documented:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "departing",
            "version": __version__,
            "description": "Recommend categories to users and learn from their feedback.",
        },
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    content = {kind: {"schema": schema_of[route.response]} if route.response else {} for kind in route.media}
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "tags": [route.tag],
        "summary": route.summary,
        "responses": {"200": {"description": "Success.", "content": content}},
        "parameters": [
            {"name": name, "in": "query", "schema": {"enum": list(values)}} for name, values in route.query.items()
        ],
    }
    problem = {PROBLEM: {"schema": schema_of[ProblemDetails]}}
    for status in _problem_statuses(route):
        codes = ", ".join(f"`{code}`" for code in ProblemCode if code.status == status)
        description = f"{HTTPStatus(status).phrase}: {codes}."
        operation["responses"][str(status)] = {"description": description, "content": problem}
    if route.request is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema_of[route.request]}}}
    if "{user}" in route.path:
        user = {"name": "user", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        operation["parameters"].append(user)
    if route.access == PUBLIC:
        operation["responses"]["503"] = {"description": "Check failed.", "content": content}
    else:
        operation["security"] = [{"key": []}]
    return operation


def _problem_statuses(route: Route) -> list[int]:
    """Return the statuses of the problems that a call may cause."""
    statuses = {403, 500} if route.access == PUBLIC else {401, 403, 429, 500, 503}
    statuses |= {404, 422} if "{user}" in route.path else set()
    statuses |= {422} if route.query else set()
    statuses |= {408} if route.method != "GET" else set()
    statuses |= {400, 404, 413, 422} if route.request is not None else set()
    return sorted(statuses)
