import json
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager, suppress

import duckdb
import numpy as np
import pytest

from departing.model.errors import InputError
from departing.model.files import write_document
from departing.studies.definition import load_study
from departing.studies.plot import band, spread, write_plots
from departing.studies.results import Curves
from departing.studies.runner import run_study

COMMAND = [sys.executable, "-c", "from departing.cli import main; main()", "study"]
STUDY = {
    "title": "A trial",
    "users": 1000,
    "seeds": 3,
    "instances": [{"example": "hard"}, {"name": "drawn", "types": 2, "categories": 2, "draws": 2}],
    "learners": [{"kind": "frozen", "category": 0}, {"kind": "oracle"}],
}

SLOW = {"users": 300, "open_users": 1, "instances": [{"example": "hard"}]}  # user by user


def study(folder, **fields):
    document = STUDY | fields
    write_document(folder / "trial.toml", "study", document)
    return load_study(folder / "trial.toml")


def run(definition, folder, **options):
    return run_study(definition, folder, backend="threading", jobs=1, **options)


def table(path):
    with duckdb.connect() as database:
        return database.execute(f"SELECT * FROM '{path}'").fetchnumpy()


def stored_parts(folder):
    """Times of change of the finished parts; a name that begins with a point is a part that is being written."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "parts").glob("[!.]*.json")}


def test_study_is_run_and_gathered(tmp_path):
    definition = study(tmp_path)
    seen = []
    results = run(definition, tmp_path / "out", progress=lambda *numbers: seen.append(numbers))
    assert seen == [(done, 18) for done in range(1, 19)]
    rows = table(tmp_path / "out" / "results.parquet")
    assert list(rows) == [
        *("study", "instance", "group", "learner", "seed", "users"),
        *("regret", "realised", "clicks", "unit", "optimum", "fixed_value", "final"),
    ]
    assert rows["final"].sum() == 18
    assert set(rows["users"][rows["final"]]) == {1000}
    assert list(dict.fromkeys(rows["instance"])) == ["hard", "drawn-00", "drawn-01"]
    assert np.allclose(rows["realised"], rows["users"] * rows["optimum"] - rows["clicks"])
    oracle = rows["learner"] == "oracle"
    assert abs(rows["regret"][oracle]).max() < 0.05
    fixed = (rows["learner"] == "frozen:category=0") & (rows["instance"] == "hard")
    loss = rows["users"] * (rows["optimum"] - rows["fixed_value"])
    assert np.allclose(rows["regret"][fixed], loss[fixed])
    assert len(table(tmp_path / "out" / "timings.parquet")["seconds"]) == 18
    statistics = {(row["group"], row["learner"]): row for row in results.statistics()}
    assert statistics["hard", "frozen:category=0"]["share_of_fixed_loss"] == pytest.approx(1)
    assert statistics["hard", "frozen:category=0"]["slope"] == pytest.approx(1)
    assert statistics["hard", "oracle"]["slope"] is None
    assert statistics["drawn", "oracle"]["runs"] == 6


def test_only_missing_runs_are_executed(tmp_path):
    run(study(tmp_path), tmp_path / "out")
    before, seen = stored_parts(tmp_path / "out"), []
    more = study(tmp_path, title="More", seeds=4, learners=[*STUDY["learners"], {"kind": "frozen", "category": 1}])
    run(more, tmp_path / "out", progress=lambda *numbers: seen.append(numbers))
    after = stored_parts(tmp_path / "out")
    assert seen == [(done, 18) for done in range(1, 19)]
    assert {name: after[name] for name in before} == before
    assert len(table(tmp_path / "out" / "timings.parquet")["seconds"]) == 36
    fewer = run(study(tmp_path, seeds=1), tmp_path / "out")
    assert len(fewer.runs) == 6
    assert stored_parts(tmp_path / "out") == after


def test_equal_learners_with_two_names_run_once(tmp_path):
    twins = [{"name": name, "kind": "frozen", "category": 0} for name in ("a", "b")]
    results = run(study(tmp_path, instances=[{"example": "blog"}], learners=twins), tmp_path / "out")
    assert len(stored_parts(tmp_path / "out")) == 3
    assert [row["mean"] for row in results.statistics()] == [results.statistics()[0]["mean"]] * 2


def test_folders_with_other_contents_are_rejected(tmp_path):
    run(study(tmp_path), tmp_path / "out")
    before = (tmp_path / "out" / "results.parquet").read_bytes()
    with pytest.raises(InputError, match=r"holds another study, 'A trial', with no run in common"):
        run(study(tmp_path, users=999), tmp_path / "out")
    with pytest.raises(InputError, match="is not empty and holds no study"):
        run(study(tmp_path), tmp_path)
    assert (tmp_path / "out" / "results.parquet").read_bytes() == before
    with pytest.raises(InputError, match=r"Cannot write '.*trial.toml/out': Not a directory\."):
        run(study(tmp_path), tmp_path / "trial.toml" / "out")


def test_invalid_options_are_rejected(tmp_path):
    definition = study(tmp_path)
    with pytest.raises(InputError, match="backend is 'magic'; expected one of loky, threading, dask, ray"):
        run_study(definition, tmp_path / "out", backend="magic")
    with pytest.raises(InputError, match="scheduler is 'tcp://a:1'; it requires `backend` dask, not loky"):
        run_study(definition, tmp_path / "out", scheduler="tcp://a:1")
    with pytest.raises(InputError, match="jobs is 0"):
        run_study(definition, tmp_path / "out", jobs=0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("backend", "package"), [("dask", "dask.distributed"), ("ray", "ray")])
def test_missing_extras_are_reported(backend, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        InputError, match=rf"The backend '{backend}' needs .* pip install 'departing-bandits\[cluster\]'"
    ):
        run_study(study(tmp_path), tmp_path / "out", backend=backend)


def test_failed_runs_do_not_stop_the_others(tmp_path):
    learners = [{"kind": "frozen", "category": category} for category in ("golf", 1)]
    odd = study(tmp_path, seeds=1, learners=learners)
    with pytest.raises(InputError, match=r"3 of 6 runs failed; the first: .*There is no category 'golf'"):
        run(odd, tmp_path / "out")
    assert set(table(tmp_path / "out" / "results.parquet")["learner"]) == {"frozen:category=1"}


@contextmanager
def file_size_limit(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_is_reported_and_damages_nothing(tmp_path):
    definition = study(tmp_path, users=10**6, instances=[{"example": "hard"}])
    run(definition, tmp_path / "full")
    room = (tmp_path / "full" / "study.json").stat().st_size
    with file_size_limit(room), pytest.raises(InputError, match=r"Cannot write '.*json': File too large\."):
        run(definition, tmp_path / "out")
    assert stored_parts(tmp_path / "out") == {}
    run(definition, tmp_path / "out")
    assert_equal_results(tmp_path)
    with (
        file_size_limit(room),
        pytest.raises(InputError, match=r"Cannot write '.*results.parquet': File too large\."),
    ):
        run(definition, tmp_path / "out")
    assert_equal_results(tmp_path)


def assert_equal_results(folder):
    assert (folder / "out" / "results.parquet").read_bytes() == (folder / "full" / "results.parquet").read_bytes()
    assert [path.name for path in (folder / "out").rglob(".*")] == []


def test_damaged_part_is_reported(tmp_path):
    run(study(tmp_path), tmp_path / "out")
    (part, *_) = (tmp_path / "out" / "parts").glob("*.json")
    part.write_text("{")
    with pytest.raises(InputError, match="remove it and start the study again"):
        run(study(tmp_path), tmp_path / "out")


@pytest.fixture
def start():
    started = []

    def start(folder):
        arguments = [str(folder / "trial.toml"), "--output", str(folder / "out"), "--jobs", "2", "--json"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([*COMMAND, *arguments], **pipes, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


@pytest.mark.slow
def test_killed_study_resumes_with_equal_results(tmp_path, start):
    definition = study(tmp_path, **SLOW, seeds=20)
    run(definition, tmp_path / "full")
    kept, rng = {}, random.Random(1)
    for _ in range(2):
        enough, process = len(kept) + rng.randint(1, 12), start(tmp_path)
        while len(now := stored_parts(tmp_path / "out")) < enough:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        time.sleep(rng.random() / 20)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        now = stored_parts(tmp_path / "out")
        assert {name: now[name] for name in kept} == kept
        kept = now
        assert not (tmp_path / "out" / "results.parquet").exists()
    out, error = start(tmp_path).communicate(timeout=60)
    assert error == ""
    assert json.loads(out)["summary"][0]["runs"] == 20
    assert {name: stored_parts(tmp_path / "out")[name] for name in kept} == kept
    assert len(stored_parts(tmp_path / "out")) == len(definition.jobs)
    assert_equal_results(tmp_path)


@pytest.mark.slow
def test_ctrl_c_reports_how_to_resume(tmp_path, start):
    study(tmp_path, **SLOW, seeds=1000)
    process = start(tmp_path)
    while not stored_parts(tmp_path / "out"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted. Finished runs are kept in " in error  # a worker may end while it imports a compiled library
    assert error.endswith("; run the same command to resume.\n")
    assert out == ""


@pytest.mark.slow
def test_study_runs_on_a_dask_cluster(tmp_path):
    pytest.importorskip("distributed")
    run(study(tmp_path), tmp_path / "full")
    script = textwrap.dedent(
        """
        import sys
        from dask.distributed import LocalCluster
        from departing.studies.definition import load_study
        from departing.studies.runner import run_study

        if __name__ == "__main__":
            with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
                definition = load_study(sys.argv[1])
                run_study(definition, sys.argv[2], backend="dask", scheduler=cluster.scheduler_address)
        """
    )
    (tmp_path / "on_a_cluster.py").write_text(script)
    done = subprocess.run(
        [sys.executable, tmp_path / "on_a_cluster.py", tmp_path / "trial.toml", tmp_path / "out"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert_equal_results(tmp_path)


def test_every_group_is_plotted(tmp_path):
    results = run(study(tmp_path), tmp_path / "out")
    names = write_plots(results, tmp_path / "out")
    assert names == ["regret-hard.svg", "regret-hard.png", "regret-drawn.svg", "regret-drawn.png"]
    drawn = {name: (tmp_path / "out" / name).read_bytes() for name in names}
    assert all(len(plot) > 10_000 for plot in drawn.values())
    write_plots(results, tmp_path / "out")
    assert {name: (tmp_path / "out" / name).read_bytes() for name in names} == drawn


def test_labels_do_not_overlap_and_stay_inside():
    places = spread([0.0, 0.1, 0.1, 3.0, 3.0], 0.5, 3.0)
    assert np.diff(places).min() >= 0.5 - 1e-12
    assert places[0] >= 0
    assert places[-1] <= 3.0


def test_band_resamples_instances_if_there_are_several():
    regret = np.repeat([[1.0], [3.0]], 50, axis=0)
    users = np.array([10.0])
    names = ("a",) * 50 + ("b",) * 50
    low, high = band(Curves("x", users, regret, names, 0.0, 0.0))
    assert (low[0], high[0]) == (1.0, 3.0)
    low, high = band(Curves("x", users, regret, ("a",) * 100, 0.0, 0.0))
    assert 1.7 < low[0] < 2 < high[0] < 2.3


@pytest.mark.slow
def test_study_runs_on_ray(tmp_path):
    pytest.importorskip("ray")
    run(study(tmp_path), tmp_path / "full")
    arguments = [tmp_path / "trial.toml", "--output", tmp_path / "out", "--jobs", "2", "--backend", "ray", "--json"]
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["summary"]) == 4
    assert_equal_results(tmp_path)


@pytest.mark.slow
def test_killed_workers_are_reported(tmp_path, start):
    study(tmp_path, **SLOW, seeds=1000)
    process = start(tmp_path)
    while not stored_parts(tmp_path / "out"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid,args", "--ppid", str(process.pid)], capture_output=True, text=True
    ).stdout
    workers = [int(line.split()[0]) for line in listed.splitlines() if "LokyProcess" in line]
    os.kill(workers[0], signal.SIGKILL)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert error.splitlines()[-1].startswith("Error: A worker process was killed")


@pytest.mark.slow
def test_missing_scheduler_is_reported(tmp_path):
    pytest.importorskip("distributed")
    study(tmp_path)
    arguments = [
        tmp_path / "trial.toml",
        "--output",
        tmp_path / "out",
        "--backend",
        "dask",
        "--scheduler",
        "odd:address",
    ]
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "Error: There is no Dask scheduler at 'odd:address'; expected tcp://"
    )


def test_a_study_shows_the_lower_bound(tmp_path):
    definition = study(tmp_path, bound=True, seeds=1)
    results = run(definition, tmp_path / "out")
    assert len(list((tmp_path / "out" / "bounds").glob("*.json"))) == 3
    rows = results.statistics()
    assert all(row["bound"] > 0 for row in rows)
    assert len({row["bound"] for row in rows if row["group"] == "hard"}) == 1
    assert "lower bound" in results.summary()
    curves = results.curves("hard")[0]
    assert curves.bound.shape == curves.users.shape
    assert (np.diff(curves.bound) >= 0).all()
    assert results.plot("drawn", tmp_path / "regret.svg") is not None
    changed = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "bounds").iterdir()}
    again = run(load_study(tmp_path / "out" / "study.json"), tmp_path / "out")
    assert again.statistics() == rows
    assert changed == {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "bounds").iterdir()}
    without = run(study(tmp_path, seeds=1), tmp_path / "out")
    assert all(row["bound"] is None for row in without.statistics())


def test_the_bound_of_a_study_is_true_or_false(tmp_path):
    with pytest.raises(InputError, match="bound is 3; expected true or false"):
        study(tmp_path, bound=3)
