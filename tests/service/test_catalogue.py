"""Categories that are added and retired while a service runs."""

from contextlib import closing

import pytest

import departing as dp
from departing.service import messages as m
from departing.service.experiments.manager import Experiments
from departing.service.store.connection import connect
from departing.service.workers.trainer import Trainer
from helpers.experiments import start, with_versions
from helpers.services import NAMES, publish, recommend, run, service

LEARN = {"learn": True, "departures_reported": True, "explore": 0.0}


def test_changes_are_idempotent_and_logged(address, caplog):
    caplog.set_level("INFO")
    with service(address) as served:
        for _ in range(2):
            run(served.add_category("golf"))
        for _ in range(2):
            run(served.retire_category("golf"))
        run(served.add_category("golf"))
        changes = [(line.getMessage(), line.fields) for line in caplog.records if "category" in line.getMessage()]
    assert changes == [
        ("category_added", {"category": "golf", "available": 4}),
        ("category_retired", {"category": "golf", "available": 3}),
        ("category_restored", {"category": "golf", "available": 4}),
    ]


def test_a_retired_category_is_not_shown_to_users_of_old_versions(address):
    with service(address, explore=0.0) as served:
        publish(served, dp.Fixed(1))
        assert recommend(served, "ann").category == "sports"
        publish(served, dp.BySegment({"a": dp.Fixed(1)}, default=dp.Fixed(1)))
        assert recommend(served, "bob", segment="a").category == "sports"
        run(served.retire_category("sports"))
        shown = [recommend(served, name) for name in ("ann", "bob", "eve") for _ in range(5)]
        assert {row.version for row in shown} == {1, 2}
        assert "sports" not in {row.category for row in shown}
        assert run(served.user_state("ann")).history[-1].category == "sports"
    with service(address, explore=0.0) as served:
        assert recommend(served, "ann").category != "sports"


def test_the_only_category_of_a_running_arm_is_kept(address):
    with service(address) as served:
        with_versions(served)
        start(Experiments(served))
        for name, arm in (("sports", "control"), ("music", "treatment")):
            with pytest.raises(dp.InputError, match=f"'{name}', the last category that .* shows, the {arm} of"):
                run(served.retire_category(name))
        assert not any(each.retired for each in run(served.categories()).categories)
        run(served.retire_category("news"))


def train(served, trainer, users, start=0, click=lambda name: name == "music"):
    """Let users visit for one recommendation, and train."""

    async def calls():
        for i in range(start, start + users):
            shown = await served.recommend(m.RecommendRequest(f"u{i}"))
            clicked = click(shown.category)
            await served.feedback([m.Feedback(shown.event, clicked, not clicked or i % 3 == 0)])
        await served.flush()

    run(calls())
    assert trainer.step()
    run(served.refresh())


def test_a_new_category_is_planned_for_at_once(address):
    with service(address, **LEARN) as served, closing(connect(address)) as training:
        trainer = Trainer(training, types=1)
        train(served, trainer, 60)
        run(served.add_category("golf"))
        run(served.flush())
        assert trainer.step()
        assert trainer.learner.n_categories == 4
        assert run(served.refresh())
        current = served.rollout.state.current
        assert current.instance.categories == (*NAMES, "golf")
        versions = served.rollout.state.versions.values()
        assert any(3 in version.shows for version in versions if version.n_categories == 4)
        again = Trainer(training, types=1)  # after a restart
        assert again.learner.n_categories == 4
        assert not again.step()
        train(served, again, 200, 100, click=lambda name: name == "golf")
        run(served.retire_category("golf"))
        assert again.step()
        run(served.refresh())
        shown = {recommend(served, f"u{i}").category for i in range(30)}
        assert "golf" not in shown
        assert again.learner.n_categories == 4
        assert served.rollout.state.current.instance.categories[3] == "golf"  # it keeps teaching about types


def test_before_the_first_user_nothing_is_learned(address):
    with service(address, **LEARN) as served, closing(connect(address)) as training:
        trainer = Trainer(training, types=2)
        assert trainer.step()
        assert run(served.refresh())
        version = served.rollout.state.current
        assert (version.uniform, version.is_learned, version.instance) == (True, True, None)
        assert recommend(served, "ann").propensity == pytest.approx(1 / 3)
        assert not trainer.step() or trainer.learner.arrived == 1
