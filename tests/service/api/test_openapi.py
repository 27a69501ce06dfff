"""The service against its own OpenAPI document: whatever the document allows or forbids, feedback are as it says."""

import http.client
import json
import warnings
from contextlib import closing

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from helpers.load import LONG, ask
from helpers.servers import serving

KEYS = {"DEPARTING_CLIENT_KEY": "for clients", "DEPARTING_ADMIN_KEY": "for admins"}
EXAMPLES = 300 if LONG else 20

with warnings.catch_warnings():  # of what it imports
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        ignored_auth,
        negative_data_rejection,
        response_schema_conformance,
        status_code_conformance,
    )

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    options = ("--learn", "--categories", "news,sports,music")
    with serving(tmp_path_factory.mktemp("server"), *options, environment=KEYS) as running:
        yield running


def operations(server):
    status, document = ask(server.port, "GET", "/openapi.json")
    assert status == 200
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    return [found.ok() for found in schema.get_all_operations()]


def hold(operation, mode, checks, key):
    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
        derandomize=True,
        database=None,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def holds(case):
        case.call_and_validate(headers={"Authorization": f"Bearer {key}"}, checks=checks, timeout=60)

    holds()


def test_what_the_document_allows_is_answered_as_it_says(server):
    for operation in operations(server):
        hold(operation, GenerationMode.POSITIVE, [*CHECKS, ignored_auth], "for admins")


def test_what_the_document_forbids_is_refused_as_it_says(server):
    for operation in operations(server):
        refused = [negative_data_rejection] if operation.body else []  # other parameters than it knows are ignored
        if operation.body or operation.path_parameters or operation.query:
            hold(operation, GenerationMode.NEGATIVE, [*CHECKS, *refused], "for admins")


def test_a_path_takes_the_methods_that_the_document_names(server):
    _, document = ask(server.port, "GET", "/openapi.json")
    for path, methods in document["paths"].items():
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
            connection.request("PUT", path.replace("{user}", "ann"), b"{}")
            answer = connection.getresponse()
            assert answer.status == 405, path
            assert sorted(answer.headers["allow"].split(", ")) == sorted(map(str.upper, methods))
            assert "does not accept PUT" in json.loads(answer.read())["detail"]
