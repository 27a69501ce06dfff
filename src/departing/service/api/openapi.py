"""The OpenAPI document, derived from the route table."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from departing import __version__
from departing.service.api.auth import ADMIN, CLIENT, PUBLIC
from departing.service.api.headers import JSON, PROBLEM
from departing.service.api.problems import ProblemCode, ProblemDetails
from departing.service.api.routes import Route

TAGS = {
    "users": "Recommendations, feedback and the state of users.",
    "policies": "Policy versions.",
    "experiments": "Experiments: rollout of a policy version to a share of the users.",
    "categories": "Categories.",
    "shadow": "Shadow mode: the caller decides, the policy is compared with it.",
    "monitoring": "Logs, metrics, checks and the data of the pages.",
}
REQUEST_ID = "X-Request-Id"
HEADERS = {
    REQUEST_ID: ("ID of the request: that of the request's header, or a new one.", True),
    "Allow": ("Methods that the path accepts.", True),
    "Retry-After": ("Seconds until a retry may succeed.", False),
    "WWW-Authenticate": ("Authentication that the call needs.", True),
}
STATUS_HEADERS = {401: "WWW-Authenticate", 405: "Allow", 429: "Retry-After", 503: "Retry-After"}
KEYS = {
    "clientKey": "For recommendations, feedback, departures, categories and metrics.",
    "adminKey": "For all calls.",
}
# Keys with which a call is allowed, by its access level; a service without keys accepts local calls without one.
SECURITY: dict[int, list[dict[str, list[str]]]] = {
    PUBLIC: [],
    CLIENT: [{"clientKey": []}, {"adminKey": []}],
    ADMIN: [{"adminKey": []}],
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
        "components": {
            "schemas": components,
            "headers": {
                name: {"description": text, "required": required, "schema": {"type": "string"}}
                for name, (text, required) in HEADERS.items()
            },
            "responses": {
                f"Problem{status}": _problem_response(status, schema_of[ProblemDetails])
                for status in sorted({code.status for code in ProblemCode})
            },
            "securitySchemes": {
                name: {"type": "http", "scheme": "bearer", "description": text} for name, text in KEYS.items()
            },
        },
    }


def _problem_response(status: int, schema: Any) -> dict[str, Any]:
    """Return the response of all problems with a status."""
    codes = ", ".join(f"`{code}`" for code in ProblemCode if code.status == status)
    return {
        "description": f"{HTTPStatus(status).phrase}: {codes}.",
        "headers": _headers(status),
        "content": {PROBLEM: {"schema": schema}},
    }


def _headers(status: int) -> dict[str, Any]:
    names = [REQUEST_ID] + ([STATUS_HEADERS[status]] if status in STATUS_HEADERS else [])
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _operation(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    texts = {kind: {"schema": {"type": "string"}} if kind.startswith("text/") else {} for kind in route.media}
    content = {kind: {"schema": schema_of[route.response]} for kind in route.media} if route.response else texts
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "tags": [route.tag],
        "summary": route.summary,
        "security": SECURITY[route.access],
        "responses": {"200": {"description": "Success.", "headers": _headers(200), "content": content}},
        "parameters": [
            {"name": name, "in": "query", "schema": {"enum": list(values)}} for name, values in route.query.items()
        ],
    }
    for status in _problem_statuses(route):
        operation["responses"][str(status)] = {"$ref": f"#/components/responses/Problem{status}"}
    if route.request is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema_of[route.request]}}}
    if "{" in route.path:
        name = route.path.partition("{")[2].rstrip("}")
        is_number = name == "experiment"
        schema = {"type": "integer", "minimum": 1} if is_number else {"type": "string", "minLength": 1}
        operation["parameters"].append({"name": name, "in": "path", "required": True, "schema": schema})
    if route.access == PUBLIC:
        failed = {"description": "The check failed.", "headers": {REQUEST_ID: _headers(200)[REQUEST_ID]}}
        operation["responses"]["503"] = failed | {"content": content}
    return operation


def _problem_statuses(route: Route) -> list[int]:
    """Return the statuses of the problems that a call may cause."""
    statuses = {403, 405, 500} if route.access == PUBLIC else {401, 403, 405, 429, 500, 503}
    statuses |= {404, 422} if "{" in route.path else set()
    statuses |= {422} if route.query else set()
    statuses |= {409} if route.operation == "recommend" else set()
    statuses |= {400, 408} if route.method != "GET" else set()
    statuses |= {404, 413, 422} if route.request is not None else set()
    return sorted(statuses)
