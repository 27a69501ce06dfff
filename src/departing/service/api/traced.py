"""The application with a span for each request."""

from typing import Any

from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from departing.service.api.app import App

_extract = TraceContextTextMapPropagator().extract


class TracedApp:
    """An RSGI application that continues the trace of the caller (header `traceparent`).

    Spans are not made current: the server may run the steps of several requests in one context.
    """

    def __init__(self, app: App, tracer: Any) -> None:
        self._app, self._tracer = app, tracer

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answer one request."""
        names = ("traceparent", "tracestate")
        carrier = {name: value for name in names if (value := scope.headers.get(name)) is not None}
        span = self._tracer.start_span(scope.method, _extract(carrier), SpanKind.SERVER)
        try:
            path, status, request_id = await self._app.__rsgi__(scope, protocol)
        except BaseException as error:  # such as a client that has closed the connection
            span.record_exception(error)
            span.set_status(StatusCode.ERROR)
            raise
        else:
            route = self._app.route_name(scope.method, path)
            span.update_name(f"{scope.method} {route}")
            span.set_attributes(
                {
                    "http.request.method": scope.method,
                    "http.route": route,
                    "http.response.status_code": status,
                    "departing.request_id": request_id,
                }
            )
            if status >= 500:
                span.set_status(StatusCode.ERROR)
        finally:
            span.end()
