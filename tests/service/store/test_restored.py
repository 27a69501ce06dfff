"""Backups restored beneath connected processes: policy versions, experiments and the trainer follow the tables."""

import subprocess
from contextlib import closing

import pytest

import departing as dp
from departing.service.experiments.manager import Experiments
from departing.service.store.connection import connect
from departing.service.workers.trainer import Trainer
from helpers.experiments import metric, start, with_versions
from helpers.postgres import program
from helpers.services import publish, recommend, run, service


@pytest.fixture
def dumped(postgres, tmp_path):
    """A new database, and functions that dump and restore it while processes are connected."""
    address, dump = postgres.new(), tmp_path / "dump"

    def save():
        subprocess.run([program("pg_dump"), "-Fc", "-f", dump, address], check=True)

    def restore():
        command = [program("pg_restore"), "--clean", "--if-exists", "--single-transaction", "-d", address, dump]
        subprocess.run(command, check=True)

    return address, save, restore


def test_a_worker_does_not_serve_a_version_that_was_deleted(dumped):
    address, save, restore = dumped
    with service(address) as first, service(address) as second:
        save()
        publish(first, dp.Fixed(1))
        restore()
        run(second.refresh())
        publish(second, dp.Fixed(2))
        run(first.refresh())
        shown = recommend(first, "ann")
        assert (shown.version, shown.category) == (1, recommend(second, "bob").category)


def test_an_experiment_does_not_inherit_the_users_of_one_that_was_deleted(dumped):
    address, save, restore = dumped
    with service(address) as served:
        with_versions(served)
        save()
        experiments = Experiments(served)
        start(experiments, share=0.5, window=1.0, return_period=1.0)
        for i in range(20):
            recommend(served, f"user {i}")
        served.clock.time += 10
        before = run(experiments.readout("1"))
        assert sum(each.users for each in before.arms) == 20
        clicks = metric(before)
        assert clicks.treatment_users + clicks.control_users == 20
        restore()
        run(served.refresh())
        start(experiments, share=0.5, window=1.0, return_period=1.0)
        after = run(experiments.readout("1"))
        clicks = metric(after)
        assert [each.users for each in after.arms] == [0, 0, 0]
        assert clicks.treatment_users + clicks.control_users == 0


def test_the_trainer_learns_on_after_a_backup_with_fewer_users_was_restored(dumped):
    address, save, restore = dumped
    with service(address) as served, closing(connect(address)) as database:
        for i in range(2):
            recommend(served, f"early {i}")
        save()
        for i in range(10):
            recommend(served, f"late {i}")
        trainer = Trainer(database, types=1)
        assert trainer.step()
        assert not trainer.step()
        restore()
        recommend(served, "new")
        assert trainer.step()
