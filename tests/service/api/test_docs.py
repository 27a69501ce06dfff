"""The examples of docs/howto/serve.md."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from departing.service.api.problems import ProblemCode
from departing.service.user import RejectionCode
from helpers.servers import request, serving

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "serve.md").read_text(encoding="utf-8")
SHOWN_EPOCH = "62047183"  # in the event IDs of the page
START = ("--learn", "--categories", "news,sport,music", "--types", "3", "--inactive-after", "14 days")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed (Debian: curl)")
def test_the_curl_examples_print_what_the_page_shows(tmp_path):
    block = PAGE.split("<!-- served -->")[1].split("<!-- end of served -->")[0]
    lines = block.strip().strip("`").strip().splitlines()
    assert len(lines) == 10
    epoch = None
    with serving(tmp_path, *START, "--seed", "2") as server:
        for command, shown in zip(lines[::2], lines[1::2], strict=True):
            if epoch is not None:
                command = command.replace(SHOWN_EPOCH, epoch)
            parts = shlex.split(command.replace("localhost:8080", f"127.0.0.1:{server.port}"))
            printed = subprocess.run(parts, capture_output=True, text=True, check=True).stdout
            epoch = epoch or json.loads(printed)["event"].split("-")[1]
            assert _without_times(printed) == _without_times(shown).replace(SHOWN_EPOCH, epoch)


def _without_times(text):
    return re.sub(r'"time":[0-9.]+', '"time":0', text)


def test_the_python_example_runs(tmp_path):
    [block] = re.findall(r"```\n(from departing\.client.*?)```", PAGE, re.DOTALL)
    with serving(tmp_path, *START) as server:
        names = {}
        exec(block.replace("http://127.0.0.1:8080", server.url), names)
        assert names["shown"]["category"] in ("news", "sport", "music")


def _has_fetch():
    node = shutil.which("node")
    return node and subprocess.run([node, "-p", "typeof fetch"], capture_output=True).stdout.strip() == b"function"


@pytest.mark.skipif(not _has_fetch(), reason="Node.js 18 or later is not installed (Debian: nodejs)")
def test_the_javascript_example_runs(tmp_path):
    [block] = re.findall(r"```\n(const post = .*?)```", PAGE, re.DOTALL)
    with serving(tmp_path, *START) as server, server.client() as client:
        site = f"const real = fetch; globalThis.fetch = (path, more) => real(new URL(path, {server.url!r}), more);\n"
        script = tmp_path / "lines.mjs"
        script.write_text(f"{site}{block}console.log(JSON.stringify(shown));\n", encoding="utf-8")
        done = subprocess.run(["node", script], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
        [past] = client.user("ann")["history"]
    assert (past["event"], past["category"], past["clicked"]) == (shown["event"], shown["category"], True)


def test_the_page_lists_every_call_and_shows_a_problem(tmp_path):
    with serving(tmp_path, *START) as server, server.client() as client:
        document = client.call("GET", "/openapi.json")
        problem = request(server, "/v1/users/bob", headers={"x-request-id": "checkout-7"})[1].decode()
    assert problem in PAGE
    routes = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    for method, path in routes:
        for name in ("user", "experiment", "category"):
            path = path.replace(f"{{{name}}}", name.upper())
        assert f"`{method} {path}`" in PAGE


def test_the_page_lists_every_problem_and_every_rejection_of_feedback():
    table = {code: int(status) for code, status in re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE, re.MULTILINE)}
    assert table == {code: code.status for code in ProblemCode}
    for code in RejectionCode:
        assert f"| `{code}` | " in PAGE
