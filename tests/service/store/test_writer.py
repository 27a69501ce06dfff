"""Stalled and refused writes of the SQLite store: limits, errors, and what is kept."""

import asyncio
import json
import logging
import os
import sqlite3
import threading
import time
from contextlib import closing, contextmanager

import pytest

from departing.model.examples import magazine
from departing.service import messages as m
from departing.service.store import queries, writer
from departing.service.store.base import OverloadedError, StoreError
from helpers.load import check, request, response_of, wait_until
from helpers.servers import serving
from helpers.services import locked, recommend, run, service


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.sqlite"


@pytest.fixture
def limits(monkeypatch):
    """Limits that a test reaches quickly."""
    monkeypatch.setattr(writer, "MAX_UNWRITTEN", 40)
    monkeypatch.setattr(writer, "MAX_UNWRITTEN_SECONDS", 1.0)
    monkeypatch.setattr(writer, "LOCK_SECONDS", 0.1)


async def recommendations(served, names):
    """Requests at once; the results, exceptions included."""
    calls = [served.recommend(m.RecommendRequest(name)) for name in names]
    return await asyncio.gather(*calls, return_exceptions=True)


def logged(caplog, event):
    return [record.fields for record in caplog.records if record.name == "departing" and record.msg == event]


class TestStall:
    def test_unwritten_rows_are_bounded_in_number_and_age(self, path, limits, caplog):
        with service(path) as served:
            store = served.store
            with locked(path):
                results = run(recommendations(served, [f"u{i}" for i in range(100)]))
                shown = [each for each in results if isinstance(each, m.Recommendation)]
                refused = [each for each in results if isinstance(each, OverloadedError)]
                assert len(shown) + len(refused) == 100
                assert 15 <= len(shown) <= 25  # two rows each
                assert refused[0].retry_after > 0
                assert "another process has locked it" in str(refused[0])
                assert 40 <= store.unwritten <= 50
                assert store.oldest_unwritten > 1.0
                assert store.failure is not None
                assert logged(caplog, "store_stalled")
                started = time.monotonic()
                with pytest.raises(OverloadedError):
                    recommend(served, "late")  # at once
                with pytest.raises(OverloadedError):
                    run(served.feedback([m.Feedback(shown[0].event, True)]))
                assert time.monotonic() - started < 10
            wait_until(lambda: store.failure is None)
            assert (store.unwritten, store.oldest_unwritten) == (0, 0.0)
            assert all(row.accepted for row in run(served.feedback([m.Feedback(each.event, True) for each in shown])))
        check(path, {each.event: (True, None) for each in shown})

    def test_calls_wait_for_room_while_the_stall_is_short(self, path, limits):
        with service(path) as served:

            async def calls():
                with locked(path):
                    waiting = asyncio.create_task(recommendations(served, [f"u{i}" for i in range(100)]))
                    await asyncio.sleep(0.3)
                    assert not waiting.done()
                return await waiting

            assert all(isinstance(each, m.Recommendation) for each in run(calls()))

    def test_durable_calls_that_wait_for_a_stalled_commit_fail_and_can_be_repeated(self, path, limits):
        with service(path) as served:
            shown = recommend(served, "ann")
            run(served.flush())
            row = m.Feedback(shown.event, True)
            with locked(path), pytest.raises(OverloadedError):
                run(served.feedback([row]))
            wait_until(lambda: served.store.failure is None)
            assert run(served.feedback([row]))[0].accepted
            assert run(served.totals())["feedback"] == 1
        check(path, {shown.event: (True, None)})

    def test_stopping_during_a_stall_ends_in_time_and_logs_what_is_lost(self, path, limits, monkeypatch, caplog):
        monkeypatch.setattr(writer, "CLOSE_SECONDS", 0.5)
        caplog.set_level(logging.INFO, "departing")
        with service(path) as served, locked(path):
            recommend(served, "ann")
            served.store.close()
            (line,) = logged(caplog, "stopped_unwritten")
            assert line["rows"] >= 2
            assert "locked" in line["reason"]
        with service(path) as again:
            assert run(again.totals()).get("recommendations", 0) == 0
        assert len(logged(caplog, "stopped_unwritten")) == 1

    @pytest.mark.slow
    def test_a_stalled_service_says_so_and_recovers(self, tmp_path):
        magazine().save(tmp_path / "site.toml")
        with serving(tmp_path, "--instance", tmp_path / "site.toml") as server:
            acknowledged = []
            with locked(server.store):

                def refused():
                    body = {"user": f"u{len(acknowledged)}"}
                    status, headers, answer = response_of(server.port, "POST", "/v1/recommend", body)
                    if status == 200:
                        acknowledged.append(answer["event"])
                        return False
                    assert (status, answer["code"]) == (503, "overloaded")
                    assert 1 <= int(headers["Retry-After"]) <= 10  # whole seconds
                    return True

                wait_until(refused)
                row = {"event": acknowledged[0], "clicked": True}
                for path, body in (("/v1/feedback", row), ("/v1/feedback", [row]), ("/v1/depart", {"user": "u0"})):
                    status, headers, answer = response_of(server.port, "POST", path, body)
                    assert (status, answer["code"], headers["Retry-After"]) == (503, "overloaded", "2")
                status, body = request(server.port, "GET", "/health")
                assert (status, body["ok"]) == (503, False)
                assert body["oldest_unwritten_seconds"] > 4
                assert body["unwritten"] == 2 * len(acknowledged)
                assert "another process has locked it" in body["reason"]
            wait_until(lambda: request(server.port, "GET", "/health")[0] == 200)
            rows = [{"event": event, "clicked": True} for event in acknowledged]
            assert all(row["accepted"] for row in request(server.port, "POST", "/v1/feedback", rows)[1])
            server.stop()
        check(server.store, dict.fromkeys(acknowledged, (True, None)))

    @pytest.mark.slow
    def test_a_stalled_service_stops_on_sigterm_and_logs_what_is_lost(self, tmp_path):
        magazine().save(tmp_path / "site.toml")
        with serving(tmp_path, "--instance", tmp_path / "site.toml") as server:
            with locked(server.store):
                assert request(server.port, "POST", "/v1/recommend", {"user": "ann"})[0] == 200
                server.stop()  # within 20 seconds
            lines = [json.loads(line) for line in (tmp_path / "log.txt").read_text().splitlines() if line[0] == "{"]
            (lost,) = [line for line in lines if line["event"] == "stopped_unwritten"]
            assert (lost["level"], lost["rows"]) == ("error", 2)


class TestWriterThread:
    def test_a_lock_file_that_cannot_be_written_does_not_stop_commits(self, path, caplog):
        with service(path) as served:
            files, read_only = served.store._files, os.open(path, os.O_RDONLY)
            lock_file, files._lock_file = files._lock_file, read_only
            shown = [recommend(served, name) for name in ("ann", "bob")]
            for each in shown:
                assert run(served.feedback([m.Feedback(each.event, True)]))[0].accepted
            assert len(logged(caplog, "lock_file_not_written")) == 1
            assert served.store.failure is None
            files._lock_file = lock_file
            os.close(read_only)
        check(path, {each.event: (True, None) for each in shown})

    def test_a_commit_without_writes_that_fails_is_tried_again(self, path):
        """Nothing is unwritten after it, so nothing else would make the writer try again."""
        with service(path) as served:
            store, committed, released = served.store, threading.Event(), threading.Event()
            commit, problem = store._writer._commit, store._files.problem
            wait_until(lambda: not store._writer._scrub)

            def slow(batch, *more):
                result = commit(batch, *more)
                if batch:
                    committed.set()
                    assert released.wait(60)
                return result

            async def calls():
                first = asyncio.create_task(store.transaction(lambda tx: tx.write(queries.SET, "x", "1")))
                await asyncio.to_thread(committed.wait, 60)
                second = asyncio.create_task(store.transaction(lambda tx: None))
                await asyncio.sleep(0)
                store._files.problem = lambda: "The disk is full."
                released.set()
                await first
                with pytest.raises(StoreError, match="The disk is full"):
                    await second

            store._writer._commit = slow
            run(calls())
            store._files.problem = problem
            assert store.unwritten == 0
            wait_until(lambda: store.failure is None)
            assert recommend(served, "ann").category

    def test_commits_go_on_after_an_unexpected_error(self, path, caplog):
        with service(path) as served:
            shown = recommend(served, "ann")
            run(served.flush())
            served.store._files.problem = lambda: 1 / 0
            row = m.Feedback(shown.event, True)
            with pytest.raises(StoreError, match="cannot be written: division by zero"):
                run(served.feedback([row]))
            assert logged(caplog, "writer_failed")
            del served.store._files.problem
            wait_until(lambda: served.store.failure is None)
            assert run(served.feedback([row]))[0].accepted
        check(path, {shown.event: (True, None)})


class TestConstraints:
    """Another process takes an event ID after the service has seen that it is free."""

    @contextmanager
    def taken(self, path):
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            columns = "event, key, number, time, category, propensity, version, policy_category"
            other.execute("BEGIN IMMEDIATE")
            other.execute(f"INSERT INTO decisions ({columns}) VALUES (1000000, 'taken', 1000000, 0, 0, 1, 0, 0)")
            yield
            other.execute("COMMIT")

    @staticmethod
    def clean_up(path):
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("DELETE FROM decisions WHERE event = 1000000")

    def test_the_transaction_is_dropped_and_the_others_are_kept(self, path, caplog):
        with service(path) as served:

            async def calls():
                await served.recommend(m.RecommendRequest("carl"))
                await served.flush()
                with self.taken(path):
                    shown = [await served.recommend(m.RecommendRequest(name)) for name in ("ann", "bob")]
                    await served.recommend(m.RecommendRequest("carl", event="taken"))  # is refused when it is written
                    await served.recommend(m.RecommendRequest("carl"))  # and so is what builds on it
                    await served.recommend(m.RecommendRequest("dan", event="taken 2"))
                    waiting = asyncio.gather(
                        served.feedback([m.Feedback("taken", True)]),
                        *(served.feedback([m.Feedback(each.event, True)]) for each in shown),
                        return_exceptions=True,
                    )
                    await asyncio.sleep(0.1)
                return shown, await waiting

            shown, (bad, *good) = run(calls())
            assert isinstance(bad, StoreError)
            assert "nothing of it was kept" in str(bad)
            assert all(row.accepted for (row,) in good)
            assert served.store.failure is None
            assert len(logged(caplog, "transaction_dropped")) == served.store.lost_transactions == 3
            assert "3 transactions were dropped" in served.warnings()[0]
            assert run(served.user_state("carl")).history[0].event != "taken"
            assert len(run(served.user_state("carl")).history) == 1
            assert served.store.active_users == 4
            assert recommend(served, "dan", event="taken 2").category
            assert run(served.feedback([m.Feedback(recommend(served, "carl").event, True)]))[0].accepted
            assert run(served.totals())["recommendations"] == 5
        self.clean_up(path)
        check(path, {each.event: (True, None) for each in shown})

    def test_a_new_user_who_was_dropped_is_new_again(self, path):
        with service(path) as served:

            async def calls():
                with self.taken(path):
                    await served.recommend(m.RecommendRequest("ann", event="taken"))
                    assert served.store.unwritten
                await served.flush()  # the call that was dropped has returned

            run(calls())
            assert served.store.lost_transactions == 1
            assert run(served.totals()).get("new_users", 0) == served.store.active_users == 0
            recommend(served, "ann")
            assert run(served.totals())["new_users"] == served.store.active_users == 1
        self.clean_up(path)
        check(path, {})

    def test_a_batch_of_which_a_part_is_dropped_fails_and_can_be_repeated(self, path):
        with service(path) as served:
            events = [recommend(served, f"u{i}").event for i in range(120)]
            run(served.flush())
            rows = [m.Feedback(event, True) for event in events]

            async def calls():
                with closing(sqlite3.connect(path)) as other, other:
                    number = events[7].split("-")[-1]
                    refusal = (
                        f"BEFORE INSERT ON feedback WHEN NEW.event = {number} BEGIN SELECT RAISE(ABORT, 'no'); END"
                    )
                    other.execute(f"CREATE TRIGGER refusal {refusal}")
                others = [served.feedback(rows[100:104]), served.flush()]  # not of the slice that is dropped
                return await asyncio.gather(served.feedback(rows), *others, return_exceptions=True)

            failed, accepted, flushed = run(calls())
            assert isinstance(failed, StoreError)
            assert "Send the whole batch again" in str(failed)
            assert all(row.accepted for row in accepted)
            assert flushed is None
            with pytest.raises(StoreError, match="a part of this batch"):  # not taken for a repetition
                run(served.feedback(rows))
            with closing(sqlite3.connect(path)) as other, other:
                other.execute("DROP TRIGGER refusal")
            assert all(row.accepted for row in run(served.feedback(rows)))
            assert run(served.totals())["feedback"] == 120
        check(path, dict.fromkeys(events, (True, None)))

    def test_a_repetition_of_what_is_dropped_fails_too(self, path):
        with service(path) as served:
            event = recommend(served, "ann").event
            run(served.flush())
            with closing(sqlite3.connect(path)) as other, other:
                other.execute("CREATE TRIGGER no BEFORE INSERT ON feedback BEGIN SELECT RAISE(ABORT, 'no'); END")

            async def calls():
                sent = [served.feedback([m.Feedback(event, True)]) for _ in range(2)]
                return await asyncio.gather(
                    *sent, served.recommend(m.RecommendRequest("bob")), return_exceptions=True
                )

            first, second, shown = run(calls())
            assert isinstance(first, StoreError)
            assert isinstance(second, StoreError)
            assert shown.category
            assert served.store.lost_transactions == 1

    def test_a_statement_that_cannot_be_run_is_not_taken_for_a_full_disk(self, path):
        with service(path) as served:
            with pytest.raises(StoreError, match="nothing of it was kept"):
                run(served.store.transaction(lambda tx: tx.write("INSERT INTO nowhere VALUES (1)")))
            assert served.store.failure is None
            assert recommend(served, "ann").category
            run(served.flush())

    def test_nothing_is_dropped_while_the_tables_do_not_fit(self, path):
        with service(path) as served:
            shown = recommend(served, "ann")
            run(served.flush())
            with closing(sqlite3.connect(path)) as other, other:
                other.execute("ALTER TABLE feedback RENAME TO hidden")
            with pytest.raises(StoreError, match="no such table"):
                run(served.feedback([m.Feedback(shown.event, True)]))
            assert "no such table" in served.store.failure
            with pytest.raises(StoreError):
                recommend(served, "bob")
            with closing(sqlite3.connect(path)) as other, other:
                other.execute("ALTER TABLE hidden RENAME TO feedback")
            wait_until(lambda: served.store.failure is None)
            assert served.store.lost_transactions == 0
            assert run(served.feedback([m.Feedback(shown.event, True)]))[0].accepted
        check(path, {shown.event: (True, None)})
