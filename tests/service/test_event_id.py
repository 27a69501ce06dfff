"""Event IDs of the service: unique after crashes and restored backups, in both stores."""

import shutil
import subprocess

import pytest

from departing.service import messages as m
from departing.service.event_id import format_event_id, new_epoch, parse_event_id
from helpers.load import check
from helpers.postgres import program
from helpers.services import recommend, run, service, wait_for

MALFORMED = [
    "e-",
    "e-x",
    "e-1-",
    "e--1",
    "e-1-2-3",
    "e-01",
    "e-1-02",
    "e-0-1",
    "E-1",
    " e-1",
    "e-1 ",
    "e-1\n",
    "e-+1",
]


@pytest.mark.parametrize("number", [0, 1, 10**18 - 1])
@pytest.mark.parametrize("epoch", [0, 1, 2**47 - 1])
def test_an_id_is_parsed_as_it_was_formatted(epoch, number):
    assert parse_event_id(format_event_id(epoch, number)) == (epoch, number)


@pytest.mark.parametrize("event_id", [*MALFORMED, "e-١", "e-1-١", "e-²", "e-" + "1" * 19, "e-" + "1" * 16 + "-1"])
def test_other_ids_are_not_taken_for_issued_ones(event_id):
    assert parse_event_id(event_id) is None


def test_epochs_are_drawn_at_random():
    epochs = {new_epoch() for _ in range(1000)}
    assert len(epochs) == 1000
    assert all(0 < epoch < 2**47 for epoch in epochs)


def feedback_code(served, event):
    return run(served.feedback([m.Feedback(event, True)]))[0].code


def test_an_id_counts_only_with_its_epoch(address):
    with service(address) as served:
        event = recommend(served, "ann").event
        _, epoch, number = event.split("-")
        assert int(epoch) == served.store.epoch
        for lost in (f"e-{number}", f"e-{int(epoch) + 1}-{number}", f"e-{epoch}-{int(number) + 1}"):
            assert feedback_code(served, lost) == "lost_event"
        for unknown in (f"e-{epoch}-x", "mine", event.replace("1", "١"), f"e-0{epoch}-{number}"):
            assert feedback_code(served, unknown) == "unknown_event"
        assert run(served.totals())["rejected_feedback_lost_event"] == 3
        assert run(served.feedback([m.Feedback(event, True)]))[0].accepted


def test_ids_with_the_prefix_of_the_service_are_reserved(address):
    with service(address) as served, pytest.raises(ValueError, match="IDs that start with 'e-' are reserved"):
        recommend(served, "ann", event="e-1-x")


def test_ids_do_not_repeat_after_restoring_a_backup(tmp_path):
    path, copy = tmp_path / "s.sqlite", tmp_path / "copy.sqlite"
    with service(path) as served:
        before = recommend(served, "ann").event
    shutil.copy(path, copy)
    with service(path) as served:
        lost = recommend(served, "bob").event
    shutil.copy(copy, path)
    with service(path) as served:
        new = recommend(served, "eve").event
        assert new.rpartition("-")[2] == lost.rpartition("-")[2]  # the number repeats, the ID does not
        assert feedback_code(served, lost) == "lost_event"
        assert run(served.feedback([m.Feedback(before, True), m.Feedback(new, False)]))[1].accepted


def test_ids_do_not_repeat_after_a_backup_was_restored_beneath_a_connected_worker(postgres, tmp_path):
    address, dump = postgres.new(), tmp_path / "dump"
    with service(address) as served:
        before = recommend(served, "ann").event
        subprocess.run([program("pg_dump"), "-Fc", "-f", dump, address], check=True)
        lost = [recommend(served, f"user {i}").event for i in range(8)]
        command = [program("pg_restore"), "--clean", "--if-exists", "--single-transaction", "-d", address, dump]
        subprocess.run(command, check=True)
        new = [recommend(served, f"user {i}").event for i in range(4, 12)]
        assert not set(lost) & set(new)
        assert {feedback_code(served, event) for event in lost} == {"lost_event"}
        assert all(
            row.accepted for row in run(served.feedback([m.Feedback(event, True) for event in [before, *new]]))
        )
    check(address, dict.fromkeys([before, *new], (True, None)))


def test_ids_do_not_repeat_after_the_database_was_replaced_beneath_a_worker(postgres):
    """As after pg_restore: all rows and sequences are those of an earlier moment."""
    address = postgres.new()
    with service(address) as served:
        before = recommend(served, "ann").event
    restore = postgres.copy(address)
    with service(address) as served:
        lost = recommend(served, "bob").event
        restore()
        new = wait_for(lambda: served.recommend(m.RecommendRequest("eve"))).event
        assert new.rpartition("-")[2] == lost.rpartition("-")[2]  # the number repeats, the ID does not
        assert feedback_code(served, lost) == "lost_event"
        assert run(served.feedback([m.Feedback(before, True), m.Feedback(new, False)]))[1].accepted
