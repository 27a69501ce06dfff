"""Dockerfile, compose.yaml and the Kubernetes manifest, as far as they can be checked without a container runtime."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from departing.cli import app
from helpers.servers import serving

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "howto" / "deploy.md").read_text(encoding="utf-8")
SERVE = typer.main.get_command(app).commands["serve"]


def instructions():
    """The instructions of the Dockerfile with their arguments."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line]


def last(name):
    return [argument for instruction, argument in instructions() if instruction == name][-1]


def check_options(arguments):
    """Check that `departing serve` accepts these arguments, without running it."""
    SERVE.make_context("serve", list(arguments))


def test_the_entrypoint_is_a_valid_command_that_gets_signals():
    program, command, *options = json.loads(last("ENTRYPOINT"))  # exec form: no shell between signals and the service
    assert (program, command) == ("departing", "serve")
    check_options([*options, *COMPOSE["services"]["departing"]["command"]])
    with pytest.raises(Exception, match="no-such-option"):
        check_options([*options, "--no-such-option"])


def test_the_image_has_a_fixed_user_and_volumes_but_no_key():
    assert last("USER") == "10001:10001"
    volumes = json.loads(last("VOLUME"))
    environment = dict(re.findall(r"(\w+)=(\S+)", last("ENV")))
    assert any(environment["DEPARTING_STORE"].startswith(f"{folder}/") for folder in volumes)
    assert environment["NUMBA_CACHE_DIR"] in volumes  # the root may be read-only
    assert "KEY" not in TEXT
    assert "PASSWORD" not in TEXT
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    copied = {part for name, argument in instructions() if name == "COPY" for part in argument.split()[:-1]}
    for name in {line.removeprefix("!") for line in ignored if line.startswith("!")}:
        assert (ROOT / name).exists()
        assert name in copied


def test_the_extras_of_the_image_exist():
    (extras,) = re.findall(r"'\.\[(.*?)\]'", TEXT)
    declared = (ROOT / "pyproject.toml").read_text()
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", declared, re.MULTILINE)


def test_the_health_check_succeeds_while_a_server_runs(tmp_path):
    program, *arguments = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert program == "python"
    with serving(tmp_path, "--instance", "blog", "--departures", "reported") as server:
        check, environment = [sys.executable, *arguments], os.environ | {"DEPARTING_PORT": str(server.port)}
        assert subprocess.run(check, env=environment).returncode == 0
        server.stop()
    assert subprocess.run(check, env=environment, stderr=subprocess.DEVNULL).returncode != 0


def test_the_service_listens_on_the_port_that_the_health_check_requests(monkeypatch):
    environment = dict(re.findall(r"(\w+)=(\S+)", last("ENV")))
    assert environment["DEPARTING_PORT"] == last("EXPOSE")
    monkeypatch.setenv("DEPARTING_PORT", "8123")
    assert SERVE.make_context("serve", ["--instance", "blog"]).params["port"] == 8123


def test_dependencies_are_installed_before_the_source_is_copied():
    names = [(name, argument) for name, argument in instructions() if name in ("RUN", "COPY")]
    install = next(i for i, (name, argument) in enumerate(names) if "-r requirements.txt" in argument)
    assert install < names.index(("COPY", "src src"))
    code = re.search(r'python -c "(.*?)" > requirements.txt', names[install][1])[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    found = {re.split(r"[\[>;]", line)[0] for line in done.stdout.splitlines()}
    assert {"numpy", "granian", "psycopg", "opentelemetry-sdk"} <= found
    assert not any(name.startswith("departing") for name in found)


def test_the_services_have_limits_and_rotate_their_logs():
    for name, service in COMPOSE["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["mem_limit"], name
        assert service["cpus"], name
        assert service["logging"]["options"]["max-size"], name


def test_the_services_are_read_only_and_take_secrets_from_the_environment():
    services = COMPOSE["services"]
    for name, service in services.items():
        assert service["read_only"], name
        assert "/tmp" in service["tmpfs"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        for key, value in service["environment"].items():
            if "KEY" in key or "PASSWORD" in key:
                assert re.fullmatch(r"\$\{\w+:\?.*\}", value), key
    assert services["departing"]["depends_on"]["database"]["condition"] == "service_healthy"
    assert services["database"]["healthcheck"]["test"][:2] == ["CMD", "pg_isready"]
    named = {volume.partition(":")[0] for service in services.values() for volume in service["volumes"]}
    assert named == set(COMPOSE["volumes"])


def test_the_user_of_the_image_can_write_to_temporary_file_systems():
    """A runtime mounts a tmpfs as root, with the mode of the folder that it covers."""
    user, group = last("USER").split(":")
    private = json.loads(last("VOLUME"))  # mode 0700
    mounts = dict(each.partition(":")[::2] for each in COMPOSE["services"]["departing"]["tmpfs"])
    assert set(mounts) - {"/tmp"} <= set(private)
    for folder, options in mounts.items():
        if folder in private:
            assert set(options.split(",")) == {f"uid={user}", f"gid={group}", "mode=0700"}


def test_the_manifest_has_probes_and_time_to_drain():
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    documents = list(yaml.safe_load_all(block))
    (deployment,) = [document for document in documents if document["kind"] == "Deployment"]
    (budget,) = [document for document in documents if document["kind"] == "PodDisruptionBudget"]
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    assert budget["spec"]["maxUnavailable"] < deployment["spec"]["replicas"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/live"
    assert container["startupProbe"]["httpGet"]["path"] == "/live"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    check_options(container["args"])
    delay = float(SERVE.make_context("serve", list(container["args"])).params["drain_delay"])
    assert delay > 0
    assert pod["terminationGracePeriodSeconds"] > delay + 20
    assert pod["securityContext"]["runAsUser"] == int(last("USER").partition(":")[0])
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    folder = dict(re.findall(r"(\w+)=(\S+)", last("ENV")))["DEPARTING_STORE"].rpartition("/")[0]
    assert mounted == {"/tmp", *json.loads(last("VOLUME"))} - {folder}  # no place for a SQLite file in each pod
    (store,) = container["env"]
    assert store["name"] == store["valueFrom"]["secretKeyRef"]["key"] == "DEPARTING_STORE"  # required, not optional
    assert (
        deployment["spec"]["selector"]["matchLabels"].items()
        <= deployment["spec"]["template"]["metadata"]["labels"].items()
    )


def test_the_commands_of_the_page_are_valid():
    runs = re.findall(r"docker run (.*) departing (--.*)$", PAGE.replace("\\\n", " "), re.MULTILINE)
    assert runs
    for options, arguments in runs:
        assert {"--name", "--read-only"} <= set(options.split())
        check_options(shlex.split(arguments))
