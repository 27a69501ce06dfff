"""OpenTelemetry traces: exported if the extra `otel` is installed and an OTLP endpoint is configured.

The standard environment variables `OTEL_*` configure the exporter, the sampler and the resource. Without an endpoint
nothing of OpenTelemetry is imported, and requests take no extra time.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
MISSING = "Traces need OpenTelemetry; install it with: pip install '.[otel]'"

tracer: Any = None  # None while traces are off
_provider: Any = None


def start(process: str) -> str | None:
    """Start to export spans if an endpoint is configured; return why that is impossible, None if it is not.

    Parameters
    ----------
    process
        Name of this process, such as "server": attribute `departing.process` of the resource.
    """
    global tracer, _provider
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if (
        disabled
        or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
        or not any(map(os.environ.get, ENDPOINTS))
    ):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        return MISSING
    if "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        os.environ.setdefault("OTEL_SERVICE_NAME", "departing")
    resource = Resource.create({"departing.process": process, "process.pid": os.getpid()})
    _provider = TracerProvider(resource=resource)
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = _provider.get_tracer("departing")
    return None


def stop() -> None:
    """Export the remaining spans."""
    global tracer, _provider
    if _provider is not None:
        _provider.shutdown()
    tracer = _provider = None


@contextmanager
def span(name: str, **attributes: Any) -> Iterator[None]:
    """Context of work that is a trace of its own, if traces are on."""
    if tracer is None:
        yield
        return
    names = {f"departing.{key}": value for key, value in attributes.items()}
    with tracer.start_as_current_span(name, attributes=names):
        yield
