"""Retries of the HTTP client."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from departing import client as clients
from departing.client import Client, ServiceError


@contextmanager
def rejecting(code):
    """The URL of a server that rejects every request with 503 and `code`, and the paths of the requests."""
    paths = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            body = json.dumps({"code": code, "detail": "Not now."}).encode()
            self.send_response(503)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("code", "requests"), [("store_unavailable", 3), ("user_limit", 1)])
def test_only_problems_that_may_pass_are_retried(monkeypatch, code, requests):
    monkeypatch.setattr(clients, "RETRY_PAUSES", (0.0, 0.0))
    with rejecting(code) as (url, paths), Client(url) as client:
        with pytest.raises(ServiceError, match="Not now") as caught:
            client.policy()
        assert caught.value.code == code
        assert len(paths) == requests
