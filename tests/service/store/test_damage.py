"""Damaged, missing, replaced and shared files: a clear refusal, never a silent fresh start or a raw error."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import departing as dp
from departing.service import messages as m
from departing.service.service import Settings
from departing.service.startup import open_service
from departing.service.store.base import StoreError
from departing.service.store.connection import SqliteDatabase
from helpers.load import request, wait_until
from helpers.servers import serving
from helpers.services import NAMES, recommend, run, service

NEXT_STEP = r"Restore a backup, or start with --accept-loss to go on without what is missing\."


def fill(served, users=20):
    """Recommend and send feedback; return the event IDs."""

    async def calls():
        shown = [await served.recommend(m.RecommendRequest(f"user {i}", event=f"mine {i:04}")) for i in range(users)]
        await served.feedback([m.Feedback(row.event, i % 2 == 0) for i, row in enumerate(shown)])

    run(calls())


@pytest.fixture
def crashed(tmp_path):
    """The files of a store as a killed process leaves them."""
    (tmp_path / "served").mkdir()
    with service(tmp_path / "served" / "s.sqlite") as served:
        fill(served)
        shutil.copytree(tmp_path / "served", tmp_path / "crashed")
    return tmp_path / "crashed" / "s.sqlite"


def beside(path, suffix):
    return path.with_name(path.name + suffix)


def totals(path, **options):
    """The counters of a store that is opened, and closed again."""
    opened = open_service(path, NAMES, None, Settings(), **options)
    with closing(opened.store):
        return run(opened.totals())


def refused(path, match):
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(dp.InputError, match=match):
        totals(path)
    assert (path.read_bytes() if path.exists() else None) == before


def test_a_store_continues_after_a_kill(crashed):
    assert totals(crashed) == {"new_users": 20, "recommendations": 20, "feedback": 20, "clicks": 10}


@pytest.mark.parametrize("loss", ["deleted", "emptied", "cut", "scribbled over"])
def test_a_lost_write_ahead_log_is_noticed(crashed, loss):
    wal = beside(crashed, "-wal")
    content = wal.read_bytes()
    if loss == "deleted":
        wal.unlink()
    else:
        wal.write_bytes({"emptied": b"", "cut": content[:-5000]}.get(loss, content[:-5000] + b"x" * 5000))
    with pytest.raises(
        dp.InputError, match=rf"lacks \d+ commits with \d+ recommendations and 20 rows of feedback .*{NEXT_STEP}"
    ):
        totals(crashed)
    assert totals(crashed, accept_loss=True).get("feedback", 0) == 0
    totals(crashed)  # it was accepted once and for all


@pytest.mark.parametrize("loss", ["deleted", "emptied"])
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_lost_store_is_not_replaced_by_a_new_one(crashed, tmp_path, loss, end):
    path = crashed if end == "kill" else tmp_path / "served" / "s.sqlite"
    path.unlink() if loss == "deleted" else path.write_bytes(b"")
    refused(path, f"is {'missing' if loss == 'deleted' else 'empty'}, but it was served here before. {NEXT_STEP}")
    assert totals(path, accept_loss=True) == {}


def test_a_replaced_store_is_noticed(crashed, tmp_path):
    with service(tmp_path / "other.sqlite") as other:
        fill(other, 30)
    shutil.copy(tmp_path / "other.sqlite", crashed)
    beside(crashed, "-wal").unlink()
    refused(crashed, f"is another one than was served here before. {NEXT_STEP}")
    assert totals(crashed, accept_loss=True)["recommendations"] == 30


@pytest.mark.parametrize("content", ["text", "database", "header", "cut", "first page", "all pages"])
def test_a_file_that_is_no_store_is_refused_unchanged(tmp_path, content):
    path = tmp_path / "served.sqlite"
    with service(path) as served:
        fill(served, 300)
    beside(path, ".lock").unlink()
    if content == "text":
        path.write_text("news, sports and music\n" * 500)
    elif content == "database":
        path.unlink()
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE meta (key, value)")
            other.execute("CREATE TABLE orders (number INTEGER)")
    else:
        data = bytearray(path.read_bytes())
        damage = {"header": slice(0, 16), "first page": slice(100, 4096), "all pages": slice(4096, None)}
        if content == "cut":
            del data[len(data) // 2 :]
        else:
            data[damage[content]] = b"\xff" * len(data[damage[content]])
        path.write_bytes(data)
    refused(path, r"(cannot be (opened|read): .*|another application, .*)(Restore|restore|Give another file)")


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(dp.InputError, match="Check that the folder exists and is mounted"):
        totals(tmp_path / "nowhere" / "s.sqlite")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux locks the file itself")
@pytest.mark.parametrize("way", ["hard link", "symbolic link", "removed lock file"])
def test_a_second_service_cannot_open_the_store(tmp_path, way):
    path = other = tmp_path / "s.sqlite"
    with service(path) as served:
        if way == "removed lock file":
            beside(path, ".lock").unlink()
        else:
            other = tmp_path / "elsewhere" / "t.sqlite"
            other.parent.mkdir()
            os.link(path, other) if way == "hard link" else other.symlink_to(path)
        for _ in range(2):
            with pytest.raises(dp.InputError, match="already in use by another process"):
                open_service(other, NAMES, None, Settings())
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        held = {row[1] for row in locks if row[5].endswith(f":{path.stat().st_ino}") and row[4] == str(os.getpid())}
        assert held == {"FLOCK", "POSIX"}  # SQLite's own locks were not dropped
        assert recommend(served, "ann").category in NAMES
    if other != path:
        other.unlink()
    assert totals(path)["recommendations"] == 1


def test_descriptors_are_closed_with_the_store(tmp_path):
    def opened():
        return [name for name in map(_target, os.listdir("/proc/self/fd")) if "s.sqlite" in name]

    with service(tmp_path / "s.sqlite") as served:
        fill(served)
        assert opened()
    assert opened() == []


def _target(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_file_that_is_deleted_while_in_use_stops_writes(tmp_path, suffix):
    with serving(tmp_path, "--instance", "magazine") as server:
        assert request(server.port, "POST", "/v1/recommend", {"user": "ann"})[0] == 200
        wait_until(lambda: request(server.port, "GET", "/health")[1]["unwritten"] == 0)
        beside(server.store, suffix).unlink()
        request(server.port, "POST", "/v1/recommend", {"user": "bob"})
        wait_until(lambda: request(server.port, "GET", "/health")[0] == 503)
        wait_until(lambda: request(server.port, "POST", "/v1/recommend", {"user": "bob"})[0] == 503)
        status, problem = request(server.port, "POST", "/v1/recommend", {"user": "bob"})
        assert (status, problem["code"]) == (503, "store_unavailable")
        assert "was deleted, cut or replaced while in use. Restart the service;" in problem["detail"]


def test_reading_a_deleted_store_does_not_create_it(tmp_path):
    path = tmp_path / "s.sqlite"
    with service(path) as served:
        path.unlink()
        with pytest.raises(dp.InputError, match="cannot be opened: the file or its folder is missing"):
            served.store.read().__enter__()
        assert not path.exists()


def test_a_damaged_page_fails_the_whole_batch(tmp_path):
    path = tmp_path / "s.sqlite"
    with service(path) as served:
        run(_recommend(served, 1500))
    data = bytearray(path.read_bytes())
    for start in range(4096, len(data), 4096):
        if b"mine 0700" in data[start : start + 4096]:
            data[start : start + 8] = b"\xff" * 8
    path.write_bytes(data)
    with service(path) as served:
        rows = [m.Feedback("mine 0001", True), m.Feedback("mine 0700", True), m.Feedback("mine 1400", True)]
        with pytest.raises(StoreError, match=r"cannot be read: it is damaged \(.*\)\. Restore a backup\."):
            run(served.feedback(rows))
        assert "is damaged" in served.warnings()[0]
        totals = run(served.totals())
        assert "feedback" not in totals
        with served.store.read() as snapshot:
            assert snapshot.execute("SELECT count(*) FROM feedback") == [(0,)]
        assert [row.accepted for row in run(served.feedback([rows[0], rows[2]]))] == [True, True]


async def _recommend(served, users):
    for i in range(users):
        await served.recommend(m.RecommendRequest(f"user {i}", event=f"mine {i:04}"))
    await served.flush()


def test_a_damaged_state_of_a_user_is_no_invalid_request(tmp_path):
    path = tmp_path / "s.sqlite"
    with service(path) as served:
        fill(served)
    with closing(SqliteDatabase(path)) as database:
        database.execute("UPDATE users SET state = ? WHERE name = 'user 7'", b"\xc1")
        database.execute("DELETE FROM users WHERE name = 'user 8'")
    with service(path) as served:
        with pytest.raises(StoreError, match="is damaged: the state of a user is invalid"):
            recommend(served, "user 7")
        with pytest.raises(StoreError, match="is damaged: user 8 is missing"):
            run(served.feedback([m.Feedback("mine 0001", False), m.Feedback("mine 0008", True)]))


# Backups


def backup(store, target):
    code = "from departing.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, "backup", str(store), str(target)], check=True, capture_output=True)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_backup_is_restored_by_copying_it_over_the_store(tmp_path, end):
    path, copy = tmp_path / "s.sqlite", tmp_path / "copy.sqlite"
    with service(path) as served:
        fill(served)
        backup(path, copy)
        fill(served, 25)
        (tmp_path / "crashed").mkdir()
        for suffix in ("", "-wal", ".lock"):
            shutil.copy(beside(path, suffix), tmp_path / "crashed")
    if end == "kill":
        path = tmp_path / "crashed" / "s.sqlite"
        shutil.copy(copy, path)
        refused(path, r"is a backup, but '.*s\.sqlite-wal' belongs to the store before it .* Delete that file")
        beside(path, "-wal").unlink()
    else:
        shutil.copy(copy, path)
    with service(path) as served:
        (warning,) = [text for text in served.warnings() if "is older than the one" in text]
        assert "with 5 recommendations and 5 rows of feedback" in warning
    with service(path) as served:
        assert not any("is older than the one" in text for text in served.warnings())
    assert totals(path)["recommendations"] == 20


def test_files_are_for_their_owner_only(tmp_path):
    before = os.umask(0)
    try:
        path, copy = tmp_path / "s.sqlite", tmp_path / "copy.sqlite"
        with service(path) as served, closing(SqliteDatabase(path)) as training:
            assert training.acquire_trainer_lock()
            fill(served)
            backup(path, copy)
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(
        ("s.sqlite", "s.sqlite-wal", "s.sqlite-shm", "s.sqlite.lock", "s.sqlite.trainer.lock", "copy.sqlite"), 0o600
    )


@pytest.mark.parametrize("damage", ["cut", "copied over"])
def test_probes_fail_when_files_of_a_running_store_are_changed(tmp_path, damage):
    with serving(tmp_path, "--instance", "magazine") as server:
        assert request(server.port, "POST", "/v1/recommend", {"user": "ann"})[0] == 200
        wait_until(lambda: request(server.port, "GET", "/health")[1]["unwritten"] == 0)
        if damage == "cut":
            os.truncate(beside(server.store, "-wal"), 0)
        else:
            backup(server.store, tmp_path / "copy.sqlite")
            shutil.copyfile(tmp_path / "copy.sqlite", server.store)
        for probe in ("/ready", "/health"):
            status, body = request(server.port, "GET", probe)
            assert status == 503
            assert "was deleted, cut or replaced while in use" in body["reason"]


def test_a_lost_commit_without_recommendations_is_noticed(tmp_path):
    (tmp_path / "crashed").mkdir()
    path = tmp_path / "crashed" / "s.sqlite"
    with service(tmp_path / "s.sqlite") as served:
        fill(served)
        run(served.flush())
        shutil.copy(tmp_path / "s.sqlite-wal", tmp_path / "crashed" / "s.sqlite-wal")
        shutil.copy(tmp_path / "s.sqlite", path)
        run(served.add_category("late"))
        shutil.copy(tmp_path / "s.sqlite.lock", tmp_path / "crashed" / "s.sqlite.lock")
    lacks = r"lacks [1-9]\d* commits with 0 recommendations and 0 rows of feedback that were on disk .*"
    with pytest.raises(dp.InputError, match=lacks + NEXT_STEP):
        totals(path)


def test_names_forgotten_before_a_crash_are_erased_after_the_start(tmp_path):
    (tmp_path / "crashed").mkdir()
    path = tmp_path / "crashed" / "s.sqlite"
    with service(tmp_path / "s.sqlite") as served:
        recommend(served, "somebody unforgettable")
        run(served.forget("somebody unforgettable"))
        for suffix in ("", "-wal", ".lock"):
            shutil.copy(beside(tmp_path / "s.sqlite", suffix), beside(path, suffix))
    beside(path, "-wal").write_bytes(beside(path, "-wal").read_bytes())

    def remaining():
        return [file.name for file in path.parent.iterdir() if b"somebody unforgettable" in file.read_bytes()]

    with service(path):
        wait_until(lambda: not remaining())


@pytest.mark.parametrize("meanwhile", ["commit", "truncation"])
def test_a_probe_during_a_commit_or_a_truncation_reports_no_damage(tmp_path, monkeypatch, meanwhile):
    with service(tmp_path / "s.sqlite") as served:
        fill(served)
        guarded, status_of = served.store._files, os.stat
        wal, changed = beside(tmp_path / "s.sqlite", "-wal"), []

        def changing(path, *options, **more):
            status = status_of(path, *options, **more)
            if path == wal and not changed:
                changed.append(True)
                if meanwhile == "commit":  # after the size was read
                    recommend(served, "another user")
                    run(served.flush())
                    assert status_of(path).st_size > status.st_size
                else:  # before it was read
                    guarded.expect_truncation()
                    fields = list(status)
                    fields[stat.ST_SIZE] = 0
                    return os.stat_result(fields)
            return status

        run(served.flush())
        monkeypatch.setattr(os, "stat", changing)
        assert guarded.problem() is None
        assert changed
