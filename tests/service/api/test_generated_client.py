"""A client generated from the OpenAPI document, against a real server."""

import http.client
import importlib
import json
import re
import shutil
import subprocess
from contextlib import closing

import pytest
from openapi_spec_validator import validate

from departing.service.api.problems import ProblemCode
from helpers.servers import request, serving

KEYS = {"DEPARTING_CLIENT_KEY": "for clients", "DEPARTING_ADMIN_KEY": "for admins"}
# Media types of the log, which the generator does not know.
CONFIG = """
content_type_overrides:
  application/x-ndjson: application/octet-stream
  application/vnd.apache.parquet: application/octet-stream
post_hooks: []
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    options = ("--instance", "magazine", "--departures", "reported")
    with serving(tmp_path_factory.mktemp("server"), *options, environment=KEYS) as running:
        yield running


@pytest.fixture(scope="module")
def document(server):
    return json.loads(request(server, "/openapi.json")[1])


def operations(document):
    return [operation for methods in document["paths"].values() for operation in methods.values()]


def test_the_document_is_valid(document):
    validate(document)


def test_every_operation_documents_its_problems_headers_and_keys(document):
    responses = document["components"]["responses"]
    assert set(responses) == {f"Problem{code.status}" for code in ProblemCode}
    for status, header in ((401, "WWW-Authenticate"), (405, "Allow"), (429, "Retry-After"), (503, "Retry-After")):
        assert header in responses[f"Problem{status}"]["headers"]
    used = set()
    for operation in operations(document):
        public = operation["operationId"] in ("getLiveness", "getReadiness", "getHealth")
        assert bool(operation["security"]) != public
        expected = {"200", "403", "405", "500", "503"} | (set() if public else {"401", "429"})
        expected |= {"400", "408", "413", "422"} if "requestBody" in operation else set()
        assert expected <= set(operation["responses"]), operation["operationId"]
        for response in operation["responses"].values():
            name = response.get("$ref", "").rpartition("/")[2]
            used.add(name)
            assert "X-Request-Id" in (responses[name] if name else response)["headers"]
    assert set(responses) <= used


def test_responses_have_the_documented_headers(server):
    for method, path, status, header in (
        ("GET", "/v1/policy", 401, "www-authenticate"),
        ("PUT", "/v1/policy", 405, "allow"),
        ("GET", "/live", 200, "x-request-id"),
    ):
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
            connection.request(method, path)
            response = connection.getresponse()
            assert (response.status, header in response.headers) == (status, True)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("openapi-python-client") is None,
    reason="openapi-python-client is not installed (pip install openapi-python-client, in an environment of its own)",
)
def test_a_generated_client_recommends_and_sends_feedback(server, document, tmp_path, monkeypatch):
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    (tmp_path / "config.yaml").write_text(CONFIG)
    command = "openapi-python-client generate --path openapi.json --config config.yaml --meta none --fail-on-warning"
    done = subprocess.run(
        [*command.split(), "--output-path", "generated"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.syspath_prepend(tmp_path)
    models, package = importlib.import_module("generated.models"), importlib.import_module("generated")

    def call(operation, key="for admins", **arguments):
        (tag,) = [each["tags"][0] for each in operations(document) if each["operationId"] == operation]
        name = re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", operation)
        module = importlib.import_module(f"generated.api.{tag}.{name}")
        with package.AuthenticatedClient(server.url, key, raise_on_unexpected_status=True) as client:
            return module.sync(client=client, **arguments)

    shown = call("recommend", "for clients", body=models.RecommendRequest("ann", explain=True))
    assert shown.category in ("news", "sport", "music")
    assert 0 < shown.propensity <= 1
    feedback = models.Feedback(shown.event, True)
    assert call("sendFeedback", "for clients", body=feedback).accepted
    (repeated, unknown) = call("sendFeedback", body=[feedback, models.Feedback("none", False)])
    assert repeated.accepted
    assert unknown.code.value == "unknown_event"
    state = call("getUser", user="ann")
    assert state.counts[shown.category].click == 1
    assert call("departUser", body=models.DepartRequest("ann")).ok
    assert call("getHealth").ok
    assert call("getLiveness").ok
    assert call("getPolicy").current
    assert [each.name for each in call("listCategories").categories]
    assert "departing_recommendations_total 1" in call("getMetrics")
    assert call("listExperiments").experiments == []
    problem = call("getUser", user="bob")
    assert (problem.status, problem.code.value) == (404, "not_found")
    assert problem.request_id
    assert call("getPolicy", "for clients").code.value == "admin_key_required"
    assert call("recommend", body=models.RecommendRequest("")).status == 422
