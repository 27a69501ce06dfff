"""The trainer: learning from a store and publishing to it."""

import json
import time
from contextlib import closing

import numpy as np
import pytest

from departing.model.examples import magazine
from departing.service import messages as m
from departing.service.dashboard import DashboardReader
from departing.service.store import queries
from departing.service.store.connection import connect
from departing.service.workers.trainer import Trainer, histogram
from helpers.services import NAMES, recommend, run, service


@pytest.mark.slow
def test_the_trainer_learns_preferences_and_resumes_after_a_restart(address):
    rng = np.random.default_rng(0)
    with service(address, explore=0.0) as served, closing(connect(address)) as training:
        assert training.acquire_trainer_lock()
        trainer = Trainer(training, types=1)
        assert trainer.step()  # before the first user
        assert not trainer.step()
        assert run(served.refresh())

        async def visit(i):
            shown = await served.recommend(m.RecommendRequest(f"u{i}", [NAMES[i % 3]]))
            clicked = bool(rng.random() < (0.9 if shown.category == "sports" else 0.2))
            await served.feedback([m.Feedback(shown.event, clicked, not clicked)])

        async def visits():
            for i in range(300):
                await visit(i)

        run(visits())
        with served.store.read() as snapshot:
            counts, users = histogram(snapshot, 3)
        assert users.sum() == 300
        assert (users[:, None, None] * counts).sum() == 300
        assert trainer.step()
        assert trainer.learner.loss is not None
        again = Trainer(training, types=1)
        assert again.learner is not None
        assert not again.step()
        assert run(served.refresh())
        assert run(served.policy()).lower > 2
        assert recommend(served, "new", explain=True).category == "sports"
        run(served.retire_category("sports"))
        assert again.step()  # without waiting for more users
        assert not again.step()
        assert run(served.refresh())
        assert "sports" not in run(served.policy()).description
        figures = run(DashboardReader(served, learning=True).read())
        assert figures.learning_curve
        assert figures.learning_curve[-1].users == 301
        assert figures.tree.category != "sports"
        assert [c.name for c in figures.categories if c.retired] == ["sports"]


def test_a_learned_policy_is_kept_by_a_restart_after_a_category_was_retired(address):
    site = magazine()
    with service(address, instance=site) as served, closing(connect(address)) as training:
        trainer = Trainer(training, types=2)

        async def calls():
            for i in range(30):
                shown = await served.recommend(m.RecommendRequest(f"u{i}"))
                await served.feedback([m.Feedback(shown.event, i % 2 == 0, i % 2 == 1)])
            await served.retire_category("sport")

        run(calls())
        assert trainer.step()
        run(served.refresh())
        learned = run(served.policy()).version
    with service(address, instance=site) as served:
        assert run(served.policy()).version == learned


def test_one_trainer_of_a_store_holds_the_lock(address):
    with service(address), closing(connect(address)) as one, closing(connect(address)) as other:
        assert one.acquire_trainer_lock()
        assert one.acquire_trainer_lock()
        assert not other.acquire_trainer_lock()
        one.close()
        deadline = time.monotonic() + 10
        while not other.acquire_trainer_lock():
            assert time.monotonic() < deadline


@pytest.mark.parametrize("state", ['{"items": []}', '{"array": 1}', "[]", "{"])
def test_an_unreadable_learner_is_discarded_and_trained_again(tmp_path, capsys, state):
    address = tmp_path / "s.sqlite"
    with service(address), closing(connect(address)) as training:
        training.execute(queries.SET, queries.LEARNER_KEY, state)
        trainer = Trainer(training, types=1)
        assert json.loads(capsys.readouterr().err)["event"] == "learner_discarded"
        assert trainer.step()
        assert Trainer(training, types=1).learner is not None
