"""The route table: every path of the service with its access level and its handler."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any
from urllib.parse import parse_qs

import msgspec

from departing.model.errors import InputError
from departing.service import messages as m
from departing.service.api.auth import ADMIN, CLIENT, PUBLIC
from departing.service.api.bodies import MAX_BODY
from departing.service.api.connection_usage import ConnectionUsage
from departing.service.api.exports import Export, Exports
from departing.service.api.headers import JSON, JSON_HEADERS, METRICS_HEADERS, PAGE_HEADERS, response_headers
from departing.service.api.latency import Latency
from departing.service.api.metrics import metrics_text
from departing.service.api.pages import page
from departing.service.api.problems import ProblemCode, ProblemError
from departing.service.api.validation import explain
from departing.service.dashboard import DashboardReader
from departing.service.experiments import messages as em
from departing.service.experiments.manager import Experiments
from departing.service.export import CONTENT_TYPES, check_format
from departing.service.names import check_name, decode_body
from departing.service.service import Service
from departing.service.store.base import StoreError
from departing.service.workers.explorer import Explorer
from departing.service.workers.shadow import ShadowReporter

Response = tuple[int, list[tuple[str, str]], bytes | Export]  # status, headers, body
PAGE_MEDIA = ("text/html",)
# Start of a path with a parameter, and the name of the parameter.
PARAMETERS = {"/v1/users/": "{user}", "/v1/experiments/": "{experiment}", "/v1/categories/": "{category}"}
RETIRE = "/v1/categories/retire"  # a path of its own, except for DELETE: a category may have that name
MAX_POLICY = 8 * MAX_BODY  # bytes of a policy document: a hundred times that of a plan for five types and categories
encode = msgspec.json.Encoder().encode
_skip = msgspec.json.Decoder(msgspec.Raw).decode


@dataclass(frozen=True)
class Route:
    """A method and a path with its access level, handler and documentation.

    The handler gets the decoded body if there is a `request` type, the path parameter and the body if there are both,
    else the path parameter or the query string.
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
    max_body: int = MAX_BODY

    @cached_property
    def decode(self) -> Callable[[bytes], Any]:
        """Decoder of the body; raises `RecursionError` if it is nested too deeply."""
        return partial(_decode, self.request, msgspec.json.Decoder(self.request).decode)


class Endpoints:
    """Handlers of the API around one service."""

    latency: Latency  # histograms of all routes, this table included
    usage: ConnectionUsage | None = None  # None without a server of this process

    def __init__(self, service: Service, ready: Callable[[], bool], learning: bool) -> None:
        self._service, self._ready = service, ready
        self._dashboard, self._shadow = DashboardReader(service, learning), ShadowReporter(service)
        self._explorer, self.experiments = Explorer(), Experiments(service)
        self.exports = Exports(service)
        self._totals: dict[str, int] = {}
        self.draining = False  # True once the service has been asked to stop

    def table(self) -> list[Route]:
        """Return all routes except that of the OpenAPI document, which is derived from them."""
        pages = [_page("/", "dashboard.html"), _page("/explorer", "explorer.html")]
        pages.append(_page("/experiments", "experiments.html"))
        return [*self._user_routes(), *self._policy_routes(), *self._monitoring_routes(), *pages]

    def _user_routes(self) -> list[Route]:
        """Return the routes of users."""
        s = self._service
        return [
            Route("POST", "/v1/recommend", CLIENT, s.recommend, "recommend", "users",
                  "Recommend a category to a user.", m.RecommendRequest, m.Recommendation),
            Route("POST", "/v1/feedback", CLIENT, self._feedback, "sendFeedback", "users",
                  "Record the outcomes of up to 1,000 events.",
                  m.Feedback | m.FeedbackBatch, m.FeedbackResult | list[m.FeedbackResult]),
            Route("POST", "/v1/depart", CLIENT, lambda body: s.depart(body.user), "departUser", "users",
                  "Record the departure of a user.", m.DepartRequest, m.Status),
            Route("GET", "/v1/users/{user}", ADMIN, lambda name: s.user_state(check_name("user", name)),
                  "getUser", "users",
                  "Get the state of a user.", None, m.UserState),
            Route("DELETE", "/v1/users/{user}", ADMIN, lambda name: s.forget(check_name("user", name)),
                  "forgetUser", "users",
                  "Anonymise a user; the counts stay.", None, m.Status),
        ]  # fmt: skip

    def _policy_routes(self) -> list[Route]:
        """Return the routes of policies, experiments, categories and shadow mode."""
        s, shadow, e = self._service, self._shadow, self.experiments
        return [
            Route("GET", "/v1/policy", ADMIN, lambda _: s.policy(), "getPolicy", "policies",
                  "Get the policy version of new users.", None, m.PolicyVersionInfo),
            Route("GET", "/v1/policies", ADMIN, lambda _: s.policies(), "listPolicies", "policies",
                  "List all policy versions.", None, m.PolicyList),
            Route("POST", "/v1/policy", ADMIN, lambda body: s.pin(body.version), "switchPolicy", "policies",
                  "Pin a policy version for new users, or unpin.", m.PolicySwitch, m.PolicyVersionInfo),
            Route("POST", "/v1/policies", ADMIN, e.upload, "uploadPolicy", "policies",
                  "Publish a policy document as a version that no user gets yet.", dict[str, Any],
                  m.PolicyVersionInfo, max_body=MAX_POLICY),
            Route("GET", "/v1/experiments", ADMIN, lambda _: e.experiments(), "listExperiments", "experiments",
                  "List all experiments.", None, em.ExperimentList),
            Route("POST", "/v1/experiments", ADMIN, e.start, "startExperiment", "experiments",
                  "Start an experiment.", em.ExperimentStart, em.ExperimentInfo),
            Route("GET", "/v1/experiments/{experiment}", ADMIN, e.readout, "getExperiment", "experiments",
                  "Get the readout of an experiment.", None, em.ExperimentReadout),
            Route("POST", "/v1/experiments/{experiment}", ADMIN, lambda pair: e.change(*pair), "changeExperiment",
                  "experiments", "Ramp, stop, roll back or complete an experiment.",
                  em.ExperimentAction, em.ExperimentInfo),
            Route("GET", "/v1/categories", CLIENT, lambda _: s.categories(), "listCategories", "categories",
                  "List all categories.", None, m.CategoryList),
            Route("POST", "/v1/categories", ADMIN, lambda body: s.add_category(body.name, body.reward), "addCategory",
                  "categories", "Add a category, or restore a retired one.", m.NewCategory, m.CategoryList),
            Route("DELETE", "/v1/categories/{category}", ADMIN,
                  lambda name: s.retire_category(check_name("category", name)), "deleteCategory", "categories",
                  "Stop showing a category; its history stays.", None, m.CategoryList),
            Route("POST", RETIRE, ADMIN, lambda body: s.retire_category(body.name), "retireCategory",
                  "categories", "Stop showing a category.", m.CategoryRequest, m.CategoryList),
            Route("GET", "/v1/shadow", ADMIN, lambda _: shadow.report(), "getShadowReport", "shadow",
                  "Compare the policy with the caller's decisions.", None, m.ShadowReport),
            Route("POST", "/v1/shadow", ADMIN, self._set_shadow, "setShadowMode", "shadow",
                  "Turn shadow mode on or off.", m.ShadowMode, m.ShadowReport),
        ]  # fmt: skip

    def _monitoring_routes(self) -> list[Route]:
        """Return the routes of the log, the pages' data, metrics and probes."""
        return [
            Route("GET", "/v1/log", ADMIN, self._log, "getLog", "monitoring",
                  "Download the decision log.", media=tuple(CONTENT_TYPES.values()),
                  query={"format": tuple(CONTENT_TYPES)}),
            Route("GET", "/v1/dashboard", ADMIN, lambda _: self._dashboard.read(), "getDashboard", "monitoring",
                  "Get the figures of the dashboard page.", None, m.Dashboard),
            Route("POST", "/v1/explore", ADMIN, self._explorer.explore, "explore", "monitoring",
                  "Plan for an instance; used by the explorer page.", m.ExploreRequest, m.ExploreResult),
            Route("GET", "/metrics", CLIENT, self._metrics, "getMetrics", "monitoring",
                  "Get counters for Prometheus.", media=("text/plain",)),
            Route("GET", "/live", PUBLIC, lambda _: _status(None), "getLiveness", "monitoring",
                  "Check that the process runs.", None, m.Status),
            Route("GET", "/ready", PUBLIC, lambda _: _status(self._unready()), "getReadiness", "monitoring",
                  "Check that the service can answer requests.", None, m.Status),
            Route("GET", "/health", PUBLIC, lambda _: self._health(), "getHealth", "monitoring",
                  "Get the state of the store, and warnings.", None, m.Health),
        ]  # fmt: skip

    async def close(self) -> None:
        """Stop work in other processes and threads."""
        await self._shadow.close()
        await self._explorer.close()

    async def _feedback(self, body: m.Feedback | list[m.Feedback]) -> m.FeedbackResult | list[m.FeedbackResult]:
        if isinstance(body, m.Feedback):
            return (await self._service.feedback([body]))[0]
        return await self._service.feedback(body)

    async def _set_shadow(self, body: m.ShadowMode) -> m.ShadowReport:
        await self._service.set_shadow(body.enabled)
        return await self._shadow.report()

    def _unready(self) -> str | None:
        """Return why the service should get no requests, None if it should."""
        if self.draining:
            return "The service is stopping."
        return self._service.store.problem() or (None if self._ready() else "No policy is published yet.")

    def _health(self) -> Response:
        store = self._service.store
        age, unwritten = round(store.oldest_unwritten, 3), store.unwritten
        problem = store.problem()
        health = m.Health(problem is None, problem, age, unwritten, self._service.warnings())
        return 200 if health.ok else 503, JSON_HEADERS, encode(health)

    async def _metrics(self, _: str) -> Response:
        store = self._service.store
        if store.failure is None:
            with suppress(StoreError):  # the last totals are better than none
                self._totals = await self._service.totals()
        more = [] if self.usage is None else await asyncio.to_thread(self.usage.metrics)
        text = metrics_text(self._totals, self._service, self.latency, more)
        return 200, METRICS_HEADERS, text.encode()

    async def _log(self, query: str) -> Response:
        fields = parse_qs(query, keep_blank_values=True)
        for name in fields.keys() - {"format"}:
            raise InputError(f"{name:.60} is an unknown query parameter; expected only format.")
        log_format = check_format(fields.get("format", ["jsonl"])[0])
        return 200, response_headers(CONTENT_TYPES[log_format]), await self.exports.start(log_format)


def _decode(request: Any, decode: Callable[[bytes], Any], body: bytes) -> Any:
    """Decode a body. One that is nested too deeply is not valid JSON, whatever else is wrong with it."""
    try:
        return decode_body(decode, body)
    except msgspec.ValidationError as error:
        try:
            _skip(body)
        except msgspec.DecodeError:
            raise error from None
        raise msgspec.ValidationError(explain(error, body, request)) from error
    except msgspec.DecodeError as error:
        if not body.strip():
            raise ProblemError(
                ProblemCode.INVALID_JSON, "The body is empty; expected JSON, see /openapi.json."
            ) from error
        raise


def _status(reason: str | None) -> Response:
    """Return the response of a probe that fails for a reason."""
    status = m.Status(True) if reason is None else m.Status(False, reason)
    return 200 if status.ok else 503, JSON_HEADERS, encode(status)


def _page(path: str, name: str) -> Route:
    response = 200, PAGE_HEADERS, page(name)
    return Route("GET", path, PUBLIC, lambda _: response, media=PAGE_MEDIA)
