"""Progress of learners and studies: the time left, the regret so far, and what a terminal shows."""

import json
import os
import pty
import re
import subprocess
import sys
import threading
from math import log

import pytest

from departing.cli.learning_progress import LearningProgress, StudyProgress, TimeLeft
from departing.studies.definition import study_from_dict
from departing.studies.runner import run_study

COMMAND = [sys.executable, "-c", "from departing.cli import main; main()"]
USERS = 10**6
CHECKPOINTS = [round(10 ** (i / 10)) for i in range(61)]
STUDY = {
    "users": 100,
    "seeds": 4,
    "instances": [{"example": "blog"}, {"example": "hard"}],
    "learners": [{"name": "[/b]", "kind": "frozen", "category": 0}, {"kind": "oracle"}],
}


class Clock:
    """Clock that the test sets."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    "duration",
    [lambda n: 10 * log(1 + n), lambda n: n / 1000, lambda n: n**0.5],
    ids=["blocks", "single users", "between"],
)
def test_the_time_left_follows_the_growth_of_the_time_per_user(duration):
    clock = Clock()
    time_left, errors = TimeLeft(USERS, clock), []
    for users in CHECKPOINTS[:-1]:
        clock.now = duration(users)
        time_left.reached(users)
        if users >= 2500:
            errors.append(time_left.seconds() / (duration(USERS) - duration(users)))
    assert errors == pytest.approx([1] * len(errors), rel=0.15)
    before = time_left.seconds()
    clock.now += before / 2
    assert time_left.seconds() == pytest.approx(before / 2)
    clock.now += before
    assert time_left.seconds() == 0


def test_there_is_no_estimate_of_the_first_users():
    clock = Clock()
    time_left = TimeLeft(USERS, clock)
    for users in CHECKPOINTS[:24]:
        clock.now = users / 10
        time_left.reached(users)
        assert time_left.seconds() is None
    time_left.reached(300)
    assert time_left.seconds() is not None


class Bars:
    """Bars that record their tasks."""

    def __init__(self):
        self.tasks = []

    def add_task(self, description, **fields):
        self.tasks.append({"description": description, "completed": 0} | fields)
        return len(self.tasks) - 1

    def update(self, task, **fields):
        self.tasks[task] |= fields

    def advance(self, task):
        self.tasks[task]["completed"] += 1


def test_runs_of_a_learner_show_users_regret_and_time_left():
    clock, bars = Clock(), Bars()
    progress = LearningProgress(bars, USERS, 3, clock)
    (task,) = bars.tasks
    assert (task["description"], task["status"]()) == ("planning", "")
    for number in (1, 2):
        progress.start()
        assert task["description"] == f"run {number} of 3"
        start = clock.now
        for users in CHECKPOINTS:
            clock.now = start + 10 * log(1 + users)
            progress.advance(users - progress._done)
            progress.regret_progress(users, 100.0 * number + log(users))
        assert task["completed"] == pytest.approx(number / 3)
        progress.finish()
        assert task["status"]() == ""
    progress.start()
    assert task["status"]() == "0 users, regret 0, mean of 2 runs 164"
    for users in CHECKPOINTS[:31]:
        clock.now += 4
        progress.advance(users - progress._done)
        progress.regret_progress(users, float(users))
    assert task["status"]() == "1,000 users, regret 1,000, mean of 2 runs 164, 2:00 left"


def test_without_a_terminal_no_regret_is_computed():
    progress = LearningProgress(None, USERS, 1)
    progress.start()
    progress.advance(10)
    progress.finish()
    assert progress.regret_progress is None


def test_a_study_shows_the_mean_regret_of_each_learner(tmp_path):
    clock, bars = Clock(), Bars()
    study = study_from_dict(STUDY, tmp_path, "trial", "'a.toml'")
    progress = StudyProgress(bars, [each.name for each in study.learners], True, clock)
    assert [task["visible"] for task in bars.tasks[:2]] == [False, False]
    progress.start(study.jobs)
    assert [task["total"] for task in bars.tasks] == [8, 8, 16]
    for i, job in enumerate(study.jobs[:12]):  # all of blog, and the first learner of hard
        clock.now += 1 if job.learner.name == "oracle" else 3
        seconds = 2.0 if job.learner.name == "oracle" else 6.0  # two at a time
        progress.finish(job, {"seconds": seconds, "regret": [1.0, float(i)], "realised": [0.0, 0.0]})
    assert bars.tasks[0]["status"]() == "8 runs, mean regret 5.5"
    assert bars.tasks[2]["status"]() == "12 of 16 runs, 0:04 left"
    assert [task["completed"] for task in bars.tasks] == [8, 4, 12]
    clock.now += 1
    assert bars.tasks[2]["status"]() == "12 of 16 runs, 0:03 left"
    for job in study.jobs[12:]:
        progress.finish(job, None)
    assert bars.tasks[1]["status"]() == "4 runs, mean regret 5.5"
    assert bars.tasks[2]["status"]() == "computing the lower bounds"


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_every_backend_reports_finished_runs(tmp_path, backend):
    study = study_from_dict(STUDY, tmp_path, "trial", "'a.toml'")
    progress = StudyProgress(Bars(), [each.name for each in study.learners])
    run_study(study, tmp_path / "out", backend=backend, jobs=2, monitor=progress)
    assert progress.status() == "16 of 16 runs, 0:00 left"
    assert progress.of("oracle").startswith("8 runs, mean regret ")


def on_terminal(*arguments):
    """Run a command whose stderr is a terminal: what it prints, and what the terminal shows."""
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=inner,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(inner)
    shown = []

    def read():
        try:
            while part := os.read(outer, 2**16):
                shown.append(part)
        except OSError:  # the other end was closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    printed, _ = process.communicate(timeout=300)
    reader.join()
    os.close(outer)
    assert process.returncode == 0, b"".join(shown).decode()
    return printed.decode(), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(shown).decode())


def test_a_terminal_shows_progress_and_json_stays_one_object(tmp_path):
    printed, shown = on_terminal("learn", "blog", "thompson", "--users", 30_000, "--runs", 2)
    assert re.search(r"run 2 of 2 .* users, regret [\d,.]+, mean of 1 run [\d,.]+", shown)
    assert "run 2 of 2" not in printed
    printed, shown = on_terminal("learn", "blog", "oracle", "--users", 100, "--json")
    assert json.loads(printed)["runs"] == 1
    assert shown == ""


def test_a_terminal_shows_the_progress_of_a_study(tmp_path):
    (tmp_path / "trial.json").write_text(json.dumps(STUDY))
    arguments = ("study", tmp_path / "trial.json", "--output", tmp_path / "out", "--backend", "threading")
    printed, shown = on_terminal(*arguments)
    assert re.search(r"\[/b\] .*8 runs, mean regret", shown)
    assert "16 of 16 runs" in shown
    assert "16 of 16 runs" not in printed
