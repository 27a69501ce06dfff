"""OpenTelemetry traces of a real server, received by a collector over HTTP."""

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from helpers.load import wait_until
from helpers.servers import request, serving

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextmanager
def collector():
    """A collector for OTLP over HTTP: its URL, and the spans received so far with their process."""
    spans = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            sent = trace_service.ExportTraceServiceRequest.FromString(body)
            for group in sent.resource_spans:
                resource = {each.key: each.value.string_value for each in group.resource.attributes}
                spans.extend((resource, span) for scope in group.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", spans
        finally:
            server.shutdown()
            thread.join()


def test_requests_commits_and_training_are_traced(tmp_path):
    options = ("--learn", "--categories", "news,sports,music", "--departures", "reported")
    with collector() as (url, spans):
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        with serving(tmp_path, *options, environment=environment) as server:
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "shop-1"}
            event = json.loads(request(server, "/v1/recommend", b'{"user": "ann"}', headers=headers)[1])["event"]
            request(server, "/v1/feedback", json.dumps({"event": event, "clicked": True}).encode())
            request(server, "/v1/users/secret")
            names = {
                "POST /v1/recommend",
                "POST /v1/feedback",
                "GET /v1/users/{user}",
                "store.commit",
                "trainer.step",
            }
            wait_until(lambda: names <= {span.name for _, span in spans})
            server.stop()
    resource, span = next(each for each in spans if each[1].name == "POST /v1/recommend")
    attributes = {each.key: each.value for each in span.attributes}
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert attributes["http.response.status_code"].int_value == 200
    assert attributes["departing.request_id"].string_value == "shop-1"
    assert (resource["service.name"], resource["departing.process"]) == ("departing", "server")
    assert {own["departing.process"] for own, each in spans if each.name == "trainer.step"} == {"trainer"}
    assert "secret" not in str(spans)


def test_nothing_is_imported_without_an_endpoint():
    code = "import sys; from departing.service import server, tracing; print(tracing.start('x'), tracing.tracer, "
    code += "any('opentelemetry' in name for name in sys.modules))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["None", "None", "False"]


def test_an_endpoint_without_the_extra_is_a_warning():
    code = "import sys; sys.modules['opentelemetry'] = None; from departing.service import tracing; "
    code += "print(tracing.start('server'))"
    environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert "pip install '.[otel]'" in done.stdout
