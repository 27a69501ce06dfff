"""One rule for names and IDs, whatever the database: no NUL and no lone surrogates."""

import json
import re
import urllib.parse

import msgspec
import pytest

import departing as dp
from departing.service.names import RULE, decode_body
from departing.service.service import Settings
from departing.service.startup import open_service
from helpers.load import request
from helpers.servers import serving

ACCEPTED = ["a\\u0000", "\\", "é", "\U0001f600", "\x01", "\x7f", "a\\ud800", "١"]
REJECTED = ["\0", "a\0b", "\\\0", "\ud800", "a\udc00", "\udc00\ud800", "\ud800\ud800"]
decode = msgspec.json.Decoder(dict[str, str]).decode


@pytest.mark.parametrize("name", ACCEPTED)
def test_other_text_is_accepted(name):
    assert decode_body(decode, json.dumps({"user": name}).encode()) == {"user": name}


@pytest.mark.parametrize("name", REJECTED)
def test_nul_and_lone_surrogates_are_rejected(name):
    with pytest.raises(msgspec.ValidationError, match=re.escape(RULE)):
        decode_body(decode, json.dumps({"user": name}).encode())


def test_other_invalid_bodies_are_not_blamed_on_surrogates():
    with pytest.raises(msgspec.DecodeError, match="malformed"):
        decode_body(decode, b'{"user": "\\ud83d\\ude00" x}')


def test_the_rule_holds_in_every_call(tmp_path, address):
    with serving(tmp_path, "--instance", "magazine", store=address) as server:

        def send(method, path, body=None):
            status, document = request(server.port, method, path, body)
            return status, document.get("code"), RULE in document.get("detail", "")

        refused = (422, "invalid_request", True)
        for name in ("a\0", "\ud800"):
            assert send("POST", "/v1/recommend", {"user": name}) == refused
            assert send("POST", "/v1/recommend", {"user": "ann", "event": name}) == refused
            assert send("POST", "/v1/feedback", [{"event": name, "clicked": True}]) == refused
            assert send("POST", "/v1/depart", {"user": name}) == refused
            assert send("POST", "/v1/categories", {"name": name}) == refused
        for method in ("GET", "DELETE"):
            assert send(method, "/v1/users/" + urllib.parse.quote("a\0")) == refused
        for name in ACCEPTED:
            event = name + " 1"
            assert send("POST", "/v1/recommend", {"user": name, "event": event})[0] == 200
            assert request(server.port, "POST", "/v1/feedback", {"event": event, "clicked": True})[1]["accepted"]
            status, state = request(server.port, "GET", "/v1/users/" + urllib.parse.quote(name))
            assert (status, state["user"], len(state["history"])) == (200, name, 1)


def test_the_rule_holds_for_categories_of_a_new_store(address):
    for name in ("news\0", "news\udcff"):
        with pytest.raises(dp.InputError, match=r"categories is 'news.*cannot contain NUL"):
            open_service(address, ["sports", name], None, Settings())
    open_service(address, ["sports", "news"], None, Settings()).store.close()
