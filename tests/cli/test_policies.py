import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import typer
from typer.testing import CliRunner

import departing as dp
from departing.cli import app
from departing.cli.errors import raise_terminated, report_errors
from departing.model.errors import interruptible_query
from departing.model.examples import blog, magazine
from departing.planning.certificate import CertificateCheck, Verification
from helpers.commands import call, json_output, output

COMMAND = [sys.executable, "-c", "from departing.cli import main; main()"]


def test_instance_is_shown_sampled_and_saved(tmp_path):
    assert "economics" in output("instance", "blog")
    assert "Saved to" in output(
        "instance", "--random", "uniform", "--types", 3, "--seed", 4, "--output", tmp_path / "a.toml"
    )
    saved = dp.Instance.load(tmp_path / "a.toml")
    assert saved == dp.random_instance("uniform", types=3, seed=4)
    assert dp.Instance(**json_output("instance", tmp_path / "a.toml")) == saved
    assert json_output("instance", "--random", "sticky", "--depart", 0.5, "-o", tmp_path / "b.json")["depart"] == 0.5


def test_policies_are_evaluated():
    text = output("evaluate", "blog", "threshold:sports,6,economics", "fixed:0", "--distribution")
    assert "0.6502905844" in text
    assert "sports × 6, then economics" in text
    assert "P(active after n)" in text
    rows = json_output("evaluate", "blog")["policies"]
    assert [row["policy"] for row in rows] == ["always economics", "always sports", "greedy"]
    assert rows[0]["lower"] <= 0.6333333333333333 <= rows[0]["upper"]
    assert sum(
        json_output("evaluate", "blog", "fixed:0", "--distribution")["policies"][0]["returns"]
    ) == pytest.approx(1)


def test_an_invalid_certificate_is_an_internal_error(monkeypatch):
    failed = Verification((CertificateCheck("edges", 1, 2.0), CertificateCheck("leaves", 1, 0.0)), 1e-12)
    monkeypatch.setattr("departing.planning.plan.Plan.verify", lambda plan: failed)
    result = call("plan", "blog", "--verify")
    assert result.exit_code == 1
    assert "The certificate is invalid: 1 checks failed." in result.stderr


def test_plan_is_printed_and_saved(tmp_path):
    text = output("plan", "blog", "--verify")
    assert "sports × 6, then economics" in text
    assert "N* = 5.801" in text
    assert "loss compared with the optimal policy" in text
    assert "violated" not in text
    dp.Instance([0.73, 0.27], [[0.52, 0.73], [0.35, 0.82], [0.42, 0.80]]).save(tmp_path / "three.toml")
    assert "category 0 × 1, category 2 × 1, then category 1" in output("plan", tmp_path / "three.toml")
    magazine().save(tmp_path / "magazine.toml")
    arguments = ["plan", tmp_path / "magazine.toml", "--gap", "1e-4"]
    text = output(
        *arguments, "--sensitivity", 0.05, "--verify", "--output", tmp_path / "p.json", "--plot", tmp_path / "p.png"
    )
    assert "first → music" in text
    assert "no click, stays → news  29% of users" in text
    assert "loss of keeping the plan" in text
    assert "alpha vectors" in text
    assert (tmp_path / "p.png").stat().st_size > 10_000
    saved = json_output("evaluate", tmp_path / "magazine.toml", tmp_path / "p.json", "--gap", "1e-4")["policies"][0]
    plan = json_output(*arguments)
    assert saved["upper"] >= plan["lower"]
    assert plan["upper"] - plan["lower"] <= 1e-4
    assert plan["tree"]["category"] == "music"
    assert [then["after"] for then in plan["tree"]["children"]] == ["click", "stay"]
    assert [row["policy"] for row in plan["baselines"]] == ["greedy", "always news"]
    checked = json_output(*arguments, "--verify", "--sensitivity", 0.1)
    assert checked["verified"] is True
    assert len(checked["sensitivity"]["shifts"]) == 10 + 10 + 11
    masked = json_output(*arguments, "--allowed", "news, 1")
    assert masked["allowed"] == ["news", "sport"]
    assert masked["upper"] < plan["lower"]
    assert "was not reached" in output("plan", tmp_path / "magazine.toml", "--gap", "1e-8", "--seconds", "1e-3")


def test_users_are_simulated(tmp_path):
    result = json_output("simulate", "blog", "greedy", "--users", "1e12", "--seed", 3)
    assert result["users"] == 10**12
    assert abs(result["mean"] - 0.65027322) < 4 * result["stderr"]
    assert "1,000,000,000,000" in output("simulate", "blog", "fixed:1", "--users", "1_000_000_000_000")
    assert "truncated" in output("simulate", "blog", "fixed:1", "--users", 1000, "--max-steps", 2)
    text = output("simulate", "blog", "fixed:1", "--users", 1000, "--log", tmp_path / "a.csv")
    assert f"Saved to {tmp_path / 'a.csv'}" in text.replace("\n", "")
    assert json_output("simulate", "blog", "fixed:1", "--users", 1)["stderr"] is None


def test_two_policies_are_compared_on_the_same_users():
    arguments = ("simulate", "blog", "fixed:1", "--against", "fixed:0", "--users", 20000)
    assert "on the same 20,000 users" in output(*arguments)
    result = json_output(*arguments)
    assert abs(result["difference"] - 0.01694) < 4 * result["stderr"]
    assert result["policies"] == ["always sports", "always economics"]


def test_help_and_version():
    assert "quickstart" in output("--help")
    for command in ("instance", "evaluate", "simulate", "quickstart"):
        assert "--json" in output(command, "--help")
    assert output("--version").strip() == f"departing {dp.__version__}"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["instance"], "Expected either INSTANCE or --random FAMILY"),
        (["instance", "blog", "--random", "uniform"], "Expected either"),
        (["instance", "--random", "odd"], "--random is 'odd'"),
        (["instance", "blog", "--output", "/nowhere/a.toml"], "Cannot write '/nowhere/a.toml'"),
        (["evaluate", "gone.toml"], "There is no file 'gone.toml'"),
        (["evaluate", "blog", "fixed:golf"], "There is no category 'golf'; expected one of 'economics', 'sports'"),
        (["evaluate", "blog", "best"], "There is no policy 'best'"),
        (["evaluate", "blog", "--gap", "nan"], "--gap is nan"),
        (["simulate", "blog", "greedy", "--users", "0"], "--users is 0"),
        (["simulate", "blog", "greedy", "--users", "-1e3"], "--users is -1000"),
        (["simulate", "blog", "greedy", "--users", "few"], "--users is 'few'; expected an integer"),
        (["simulate", "blog", "greedy", "--users", "2.5"], "--users is '2.5'"),
        (["simulate", "blog", "greedy", "--users", "1/0"], "--users is '1/0'"),
        (["simulate", "blog", "greedy", "--users", "1e99999999"], "--users is '1e99999999'"),
        (["simulate", "blog", "greedy", "--users", "1e16"], "--users is 10000000000000000; expected at most 1e+15"),
        (
            ["simulate", "blog", "greedy", "--engine", "lanes", "--against", "fixed:0"],
            "--against and --engine cannot be combined",
        ),
        (["instance", "blog", "--types", "3"], "--types requires --random"),
        (["instance", "--random", "uniform", "--types", "1000000000"], "are too many"),
        (["evaluate", "blogg"], "There is no instance 'blogg'; expected a .toml or .json file, or one of blog"),
        (["evaluate", "blog", "--nodes", "0"], "--nodes is 0; expected an integer"),
        (["evaluate", "blog", "--nodes", "x"], "--nodes is 'x'; expected an integer"),
        (["evaluate", "blog", "threshold:0," + "9" * 5000 + ",1"], "steps is '9"),
        (["simulate", "blog", "greedy", "--confidence", "2"], "--confidence is 2.0"),
        (["simulate", "blog", "greedy", "--log", "a.txt"], "'a.txt' ends in '.txt'"),
        (["simulate", "blog", "greedy", "--log", "a.csv", "--against", "fixed:0"], "cannot be combined"),
        (["quickstart", "--output", "/nowhere/a.html"], "Cannot write"),
        (["plan", "blog", "--gap", "0"], "--gap is 0.0; expected a number above 0"),
        (["plan", "blog", "--seconds", "-1"], "--seconds is -1.0"),
        (
            ["plan", "blog", "--method", "magic"],
            "--method is 'magic'; expected one of auto, closed-form, lattice",
        ),
        (["plan", "blog", "--allowed", "golf"], "There is no category 'golf'"),
        (["plan", "blog", "--depth", "0"], "--depth is 0"),
        (["plan", "blog", "--sensitivity", "2"], "--sensitivity is 2.0; expected a number above 0 and below 1"),
        (["plan", "blog", "--output", "a.txt"], "'a.txt' ends in '.txt'"),
        (["plan", "blog", "--plot", "a.gif"], "'a.gif' ends in '.gif'; expected one of .svg, .png, .pdf"),
        (["simulate", "blog"], "Missing argument"),
        (["simulate", "blog", "greedy", "--seed", "x"], "--seed"),
        (["conquer"], "No such command"),
    ],
)
def test_invalid_input_prints_one_message_and_exits_with_code_2(arguments, sentence):
    done = call(*arguments)
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.output
    assert done.stdout == ""


def test_a_real_process_prints_one_json_object_and_nothing_else():
    done = subprocess.run([*COMMAND, "evaluate", "blog", "--json"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(json.loads(done.stdout)["policies"]) == 3


def test_ctrl_c_removes_partial_files(tmp_path):
    blog().save(tmp_path / "blog.toml")
    arguments = [
        "simulate",
        str(tmp_path / "blog.toml"),
        "greedy",
        "--users",
        "1e10",
        "--log",
        str(tmp_path / "a.parquet"),
    ]
    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(600):  # until it is running
        if len(list(tmp_path.iterdir())) > 1:
            break
        time.sleep(0.1)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.strip() == "Interrupted. No partial files were written."
    assert out == ""
    assert os.listdir(tmp_path) == ["blog.toml"]


@pytest.mark.slow
def test_ctrl_c_stops_the_lanes_engine():
    arguments = ["simulate", "blog", "greedy", "--users", "1e11", "--engine", "lanes"]
    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True)
    time.sleep(5)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error.strip() == "Interrupted. No partial files were written."


def test_closed_pipe_is_not_an_error():
    done = subprocess.run(
        f"{sys.executable} -c 'from departing.cli import main; main()' evaluate blog --json | true",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr


def test_policies_with_overlapping_bounds_are_not_ranked():
    text = output("evaluate", "blog", "greedy", "threshold:sports,6,economics", "--nodes", "3", "--distribution")
    assert text.count("undecided") == 2
    assert "The gap of greedy is 0.0144; raise --nodes" in text
    assert "of the users is truncated" in " ".join(text.split())
    assert "≤ 0.155" in text


def test_tables_fit_a_narrow_terminal(tmp_path):
    dp.random_instance("uniform", types=12, categories=2, seed=1).save(tmp_path / "a.toml")
    for command in (
        ["instance", str(tmp_path / "a.toml")],
        ["evaluate", str(tmp_path / "a.toml"), "fixed:0", "greedy"],
    ):
        done = CliRunner().invoke(app, command, env={"COLUMNS": "80"})
        assert done.exit_code == 0
        assert "…" not in done.stdout
        assert all(f"type {x}" in done.stdout for x in range(12))
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_names_with_brackets_are_not_markup(tmp_path):
    dp.Instance([1.0], [[0.5], [0.4]], categories=["[promo] shoes", "[/b]"], types=["[/x]"]).save(tmp_path / "a.toml")
    for command in (["instance"], ["evaluate", "--distribution"]):
        text = output(command[0], tmp_path / "a.toml", *command[1:])
        assert "[promo] shoes" in text
        assert "[/x]" in text
    assert "[promo] shoes" in output(
        "simulate", tmp_path / "a.toml", "fixed:0", "--users", 10, "--against", "fixed:1"
    )


@pytest.mark.parametrize("command", [["instance", "blog"], ["fit", "oulad", "--types", "1", "--bootstrap", "0"]])
def test_unwritable_output_is_reported(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *command], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.strip() == "Error: Cannot write the output: No space left on device."


def test_other_errors_of_the_system_name_their_file(capsys):
    def command() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "events.parquet")

    with pytest.raises(typer.Exit) as exit_code:
        report_errors(command)()
    assert exit_code.value.exit_code == 2
    assert capsys.readouterr().err == "Error: Permission denied: events.parquet.\n"


def test_ascii_terminals_get_replacement_characters():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*COMMAND, "evaluate", "blog", "threshold:sports,6,economics"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0
    assert "sports ? 6, then economics" in done.stdout


def test_sigterm_removes_partial_files(tmp_path):
    path = tmp_path / "a.csv"
    process = subprocess.Popen(
        [*COMMAND, "simulate", "blog", "greedy", "--users", "1e10", "--log", str(path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(600):
        if os.listdir(tmp_path):
            break
        time.sleep(0.1)
    process.terminate()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 143
    assert error.strip() == "Interrupted. No partial files were written."
    assert os.listdir(tmp_path) == []


def test_sigterm_during_a_query_has_its_own_exit_code(monkeypatch):
    """DuckDB raises a RuntimeError in the place of the exception of the signal handler."""

    def terminated(*arguments, **options):
        with interruptible_query():
            try:
                raise_terminated(signal.SIGTERM, None)
            except KeyboardInterrupt:
                raise RuntimeError("Query interrupted") from None

    monkeypatch.setattr("departing.cli.errors._received", [])
    monkeypatch.setattr("departing.simulation.simulate.simulate", terminated)
    assert call("simulate", "blog", "greedy").exit_code == 143


def test_ctrl_c_during_the_start_of_compiled_code_is_an_interrupt(monkeypatch):
    """Numba then raises a SystemError caused by the KeyboardInterrupt."""

    def interrupted(*arguments, **options):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            try:
                raise TypeError("cannot unbox")
            except TypeError as error:
                raise SystemError("returned a result with an exception set") from error

    monkeypatch.setattr("departing.simulation.simulate.simulate", interrupted)
    done = call("simulate", "blog", "greedy")
    assert done.exit_code == 130
    assert done.stderr.strip() == "Interrupted. No partial files were written."


def test_internal_errors_are_not_hidden(monkeypatch):
    def broken(*arguments, **options):
        raise SystemError("a bug")

    monkeypatch.setattr("departing.simulation.simulate.simulate", broken)
    assert isinstance(call("simulate", "blog", "greedy").exception, SystemError)


def test_closed_stdout_gives_no_traceback():
    command = " ".join([sys.executable, "-c", "'from departing.cli import main; main()'", "evaluate blog --json"])
    done = subprocess.run(f"{command} >&-", shell=True, stderr=subprocess.PIPE, text=True)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_background_jobs_can_be_terminated():
    command = " ".join([sys.executable, "-c", "'from departing.cli import main; main()'"])
    script = (
        f"{command} simulate blog greedy --users 1e12 --engine lanes & p=$!; sleep 8; kill -TERM $p; wait $p; exit $?"
    )
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 143
    assert done.stderr.strip() == "Interrupted. No partial files were written."
