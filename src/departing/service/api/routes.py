"""The route table: every path of the service with its access level and its handler."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec

from departing.service import messages as m
from departing.service.api.auth import ADMIN, CLIENT, PUBLIC
from departing.service.api.downloads import Downloads
from departing.service.api.metrics import metrics_text
from departing.service.api.pages import page
from departing.service.dashboard import DashboardReader
from departing.service.export import CONTENT_TYPES, check_format
from departing.service.service import Service
from departing.service.workers.explorer import Explorer
from departing.service.workers.shadow import ShadowReporter

Response = tuple[int, list[tuple[str, str]], bytes | Path]  # status, headers, body
JSON = "application/json"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
PAGE_HEADERS = [
    ("content-type", "text/html; charset=utf-8"),
    (
        "content-security-policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
    ),
]
USERS = "/v1/users/"  # the one path with a parameter, as in /v1/users/{user}
encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Route:
    """A method and a path with its access level, handler and documentation.

    The handler gets the decoded body if there is a `request` type, else the path parameter, else the query string.
    It returns a message of the `response` type, or a `Response` as it is. Routes without a `tag` are not part of the
    OpenAPI document.
    """

    method: str
    path: str
    access: int
    handler: Callable[[Any], Any]
    operation: str = ""
    tag: str = ""
    summary: str = ""
    request: Any = None
    response: Any = None
    media: tuple[str, ...] = (JSON,)
    query: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def decode(self) -> Callable[[bytes], Any]:
        """Decoder of the body."""
        return msgspec.json.Decoder(self.request).decode


class Endpoints:
    """Handlers of the API around one service."""

    def __init__(self, service: Service, ready: Callable[[], bool], learning: bool) -> None:
        self._service, self._ready = service, ready
        self._dashboard, self._shadow = DashboardReader(service, learning), ShadowReporter(service)
        self._explorer = Explorer()
        self._downloads = Downloads(service)
        self._totals: dict[str, int] = {}

    def table(self) -> list[Route]:
        """Return all routes except that of the OpenAPI document, which is derived from them."""
        s, shadow = self._service, self._shadow
        return [
            Route("POST", "/v1/recommend", CLIENT, s.recommend, "recommend", "users",
                  "Recommend a category to a user.", m.RecommendRequest, m.Recommendation),
            Route("POST", "/v1/feedback", CLIENT, self._feedback, "sendFeedback", "users",
                  "Record the outcomes of up to 1,000 events.",
                  m.Feedback | m.FeedbackBatch, m.FeedbackResult | list[m.FeedbackResult]),
            Route("POST", "/v1/depart", CLIENT, lambda body: s.depart(body.user), "departUser", "users",
                  "Record the departure of a user.", m.DepartRequest, m.Status),
            Route("GET", "/v1/users/{user}", ADMIN, s.user_state, "getUser", "users",
                  "Get the state of a user.", None, m.UserState),
            Route("DELETE", "/v1/users/{user}", ADMIN, s.forget, "forgetUser", "users",
                  "Anonymise a user; the counts stay.", None, m.Status),
            Route("GET", "/v1/policy", ADMIN, lambda _: s.policy(), "getPolicy", "policies",
                  "Get the policy version of new users.", None, m.PolicyVersionInfo),
            Route("GET", "/v1/policies", ADMIN, lambda _: s.policies(), "listPolicies", "policies",
                  "List all policy versions.", None, m.PolicyList),
            Route("POST", "/v1/policy", ADMIN, lambda body: s.pin(body.version), "switchPolicy", "policies",
                  "Pin a policy version for new users, or unpin.", m.PolicySwitch, m.PolicyVersionInfo),
            Route("GET", "/v1/categories", CLIENT, lambda _: s.categories(), "listCategories", "categories",
                  "List all categories.", None, m.CategoryList),
            Route("POST", "/v1/categories", ADMIN, lambda body: s.add_category(body.name), "addCategory",
                  "categories", "Add a category, or restore a retired one.", m.CategoryRequest, m.CategoryList),
            Route("POST", "/v1/categories/retire", ADMIN, lambda body: s.retire_category(body.name), "retireCategory",
                  "categories", "Stop showing a category.", m.CategoryRequest, m.CategoryList),
            Route("GET", "/v1/shadow", ADMIN, lambda _: shadow.report(), "getShadowReport", "shadow",
                  "Compare the policy with the caller's decisions.", None, m.ShadowReport),
            Route("POST", "/v1/shadow", ADMIN, self._set_shadow, "setShadowMode", "shadow",
                  "Turn shadow mode on or off.", m.ShadowMode, m.ShadowReport),
            Route("GET", "/v1/log", ADMIN, self._log, "getLog", "monitoring",
                  "Download the decision log.", media=tuple(CONTENT_TYPES.values()),
                  query={"format": tuple(CONTENT_TYPES)}),
            Route("GET", "/v1/dashboard", ADMIN, lambda _: self._dashboard.read(), "getDashboard", "monitoring",
                  "Get the figures of the dashboard page.", None, m.Dashboard),
            Route("POST", "/v1/explore", ADMIN, self._explorer.explore, "explore", "monitoring",
                  "Plan for an instance; used by the explorer page.", m.ExploreRequest, m.ExploreResult),
            Route("GET", "/metrics", CLIENT, self._metrics, "getMetrics", "monitoring",
                  "Get counters for Prometheus.", media=("text/plain",)),
            Route("GET", "/health", PUBLIC, lambda _: self._check(True), "getHealth", "monitoring",
                  "Check that the store can be written.", None, m.Status),
            Route("GET", "/ready", PUBLIC, lambda _: self._check(self._ready()), "getReadiness", "monitoring",
                  "Check that a policy is published.", None, m.Status),
            _page("/", "dashboard.html"),
            _page("/explorer", "explorer.html"),
        ]  # fmt: skip

    async def close(self) -> None:
        """Stop work in other processes and threads."""
        self._downloads.close()
        await self._shadow.close()
        await self._explorer.close()

    async def _feedback(self, body: m.Feedback | list[m.Feedback]) -> m.FeedbackResult | list[m.FeedbackResult]:
        if isinstance(body, m.Feedback):
            return (await self._service.feedback([body]))[0]
        return await self._service.feedback(body)

    async def _set_shadow(self, body: m.ShadowMode) -> m.ShadowReport:
        await self._service.set_shadow(body.enabled)
        return await self._shadow.report()

    def _check(self, ready: bool) -> Response:
        reason = self._service.store.failure or (None if ready else "No policy is published yet.")
        status = m.Status(True) if reason is None else m.Status(False, reason)
        return 200 if status.ok else 503, [("content-type", JSON)], encode(status)

    async def _metrics(self, _: str) -> Response:
        failing = self._service.store.failure is not None
        if not failing:
            self._totals = await self._service.totals()
        text = metrics_text(self._totals, self._service.rollout.state.current.number, failing)
        return 200, [("content-type", METRICS)], text.encode()

    async def _log(self, query: str) -> Response:
        log_format = check_format(parse_qs(query).get("format", ["jsonl"])[0])
        return 200, [("content-type", CONTENT_TYPES[log_format])], await self._downloads.write(log_format)


def _page(path: str, name: str) -> Route:
    response = 200, PAGE_HEADERS, page(name)
    return Route("GET", path, PUBLIC, lambda _: response)
