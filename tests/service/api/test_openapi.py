"""The service against its own OpenAPI document."""

import http.client
import json
import re
import warnings
from contextlib import closing

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from departing.service.api.problems import ProblemCode
from helpers.load import LONG, request, wait_until
from helpers.servers import serving

KEYS = {"DEPARTING_CLIENT_KEY": "for clients", "DEPARTING_ADMIN_KEY": "for admins"}
EXAMPLES = 300 if LONG else 20

with warnings.catch_warnings():  # its imports raise deprecation warnings
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        negative_data_rejection,
        response_schema_conformance,
        status_code_conformance,
    )

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    options = ("--learn", "--departures", "reported", "--categories", "news,sports,music")
    with serving(tmp_path_factory.mktemp("server"), *options, environment=KEYS) as running:
        wait_until(lambda: request(running.port, "GET", "/ready")[0] == 200, 300)  # the first policy
        yield running


def operations(server):
    status, document = request(server.port, "GET", "/openapi.json")
    assert status == 200
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    return [operation.ok() for operation in schema.get_all_operations()]


def check_operation(operation, mode, checks, key):
    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
        derandomize=True,
        database=None,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def responses_conform(case):
        case.call_and_validate(headers={"Authorization": f"Bearer {key}"}, checks=checks, timeout=60)

    responses_conform()


@pytest.mark.slow
def test_valid_requests_get_the_documented_responses(server):
    for operation in operations(server):
        check_operation(operation, GenerationMode.POSITIVE, CHECKS, "for admins")


@pytest.mark.slow
def test_invalid_requests_are_rejected_as_documented(server):
    for operation in operations(server):
        rejected = [negative_data_rejection] if operation.body else []  # unknown query parameters are ignored
        if operation.body or operation.path_parameters or operation.query:
            check_operation(operation, GenerationMode.NEGATIVE, [*CHECKS, *rejected], "for admins")


def test_calls_without_the_right_key_are_rejected_as_documented(server):
    _, document = request(server.port, "GET", "/openapi.json")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            keys = [next(iter(scheme)) for scheme in operation["security"]]
            given = {"": not keys, "guess": not keys, "for clients": not keys or "clientKey" in keys}
            for key, accepted in given.items():
                with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
                    headers = {"authorization": f"Bearer {key}"} if key else {}
                    connection.request(method.upper(), re.sub(r"{\w+}", "7", path), headers=headers)
                    status = connection.getresponse().status
                # A wrong key beyond the rate limit gets 429; an accepted call has no body and may be invalid.
                assert (status not in (401, 403, 429)) if accepted else (status in (401, 403, 429)), (path, key)


def test_a_path_accepts_only_the_documented_methods(server):
    _, document = request(server.port, "GET", "/openapi.json")
    for path, methods in document["paths"].items():
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
            connection.request("PUT", path.replace("{user}", "ann"), b"{}")
            answer = connection.getresponse()
            assert answer.status == 405, path
            head = ["HEAD"] if "get" in methods else []
            assert sorted(answer.headers["allow"].split(", ")) == sorted([*map(str.upper, methods), *head])
            assert "does not accept PUT" in json.loads(answer.read())["detail"]


def test_the_document_has_every_message_an_operation_id_and_a_tag(server):
    _, document = request(server.port, "GET", "/openapi.json")
    assert document["openapi"] == "3.1.0"
    text = json.dumps(document)
    for schema in document["components"]["schemas"]:
        assert f"#/components/schemas/{schema}" in text
    assert document["components"]["schemas"]["RecommendRequest"]["additionalProperties"] is False
    assert document["components"]["schemas"]["ProblemCode"]["enum"] == sorted(ProblemCode)
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    tags = {tag["name"] for tag in document["tags"]}
    assert all(set(operation["tags"]) <= tags for operation in operations)
