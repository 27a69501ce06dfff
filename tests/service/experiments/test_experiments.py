"""Experiments on both stores: who gets which policy, changes, restarts, and what is recorded."""

import asyncio
from collections import Counter
from contextlib import closing

import pytest
from msgspec import UNSET

import departing as dp
from departing.model.errors import InputError
from departing.model.examples import magazine
from departing.service.experiments import manager
from departing.service.experiments import messages as em
from departing.service.experiments.experiment import GUARDRAIL
from departing.service.experiments.manager import Experiments
from departing.service.policy_version import UPLOADED, PolicyVersion
from departing.service.rollout import NotFoundError
from departing.service.store.connection import connect
from helpers import experiments as helpers
from helpers.experiments import arm, stored, with_versions
from helpers.services import NAMES, publish, publish_as_trainer, recommend, run, service


def start(served, treatment=2, **fields):
    return helpers.start(Experiments(served), treatment, **fields)


def change(served, action, share=None, number=1, **fields):
    return helpers.change(Experiments(served), action, share, number, **fields)


def test_arms_get_their_policies_and_every_decision_records_them(address):
    with service(address, explore=0.0) as served:
        with_versions(served)
        started = start(served, share=0.3, holdout=0.2)
        assert (started.experiment, started.state, started.control, started.share) == (1, "running", 1, 0.3)
        shown = {f"u{i}": recommend(served, f"u{i}") for i in range(60)}
        for name, response in shown.items():
            expected = arm(name, 0.3, 0.2)
            assert (response.experiment, response.arm) == (1, expected)
            assert response.version == (2 if expected == "treatment" else 1)
            assert response.category == ("music" if expected == "treatment" else "sports")
        recorded = stored(served, "SELECT experiment, arm, version, propensity FROM decisions ORDER BY event")
        assert recorded == [(1, each.arm, each.version, 1.0) for each in shown.values()]
        assert {each.arm for each in shown.values()} == {"treatment", "control", "holdout"}


def test_a_ramp_up_keeps_the_treatment_and_a_ramp_down_removes_the_top(address):
    users = [f"u{i}" for i in range(40)]
    with service(address, explore=0.0) as served:
        with_versions(served)
        start(served, share=0.2, holdout=0.1)
        for share, prefix in ((0.2, "a"), (0.8, "b"), (0.5, "c")):
            if share != 0.2:
                assert change(served, "ramp", share, actor="page").share == share
            for user in users:
                assert recommend(served, prefix + user).arm == arm(prefix + user, share, 0.1)
        stages = stored(served, "SELECT stage, count(*) FROM assignments GROUP BY stage ORDER BY stage")
        assert stages == [(0, 40), (1, 40), (2, 40)]
        for prefix, share in (("a", 0.2), ("b", 0.8)):  # active users keep their arm
            assert all(recommend(served, prefix + user).arm == arm(prefix + user, share, 0.1) for user in users)
        with pytest.raises(InputError, match=r"share is 0.95 and holdout 0.1; expected a share of at most 0.9"):
            change(served, "ramp", 0.95)


def test_a_user_who_returns_keeps_the_arm_and_does_not_count_again(address):
    with service(address, explore=0.0, inactive_after=10.0) as served:
        with_versions(served)
        start(served, share=0.5)
        first = {f"u{i}": recommend(served, f"u{i}").arm for i in range(20)}
        change(served, "ramp", 0.1)
        served.clock.time += 100.0
        assert {user: recommend(served, user).arm for user in first} == first
        assert "treatment" in first.values()
        entries = stored(served, "SELECT number, entry, stage FROM assignments ORDER BY number")
        assert [entry for _, entry, _ in entries] == [number for number, *_ in entries[:20]] * 2
        entered = stored(served, "SELECT arm, count(*) FROM assignments WHERE entry = number GROUP BY arm")
        assert Counter(dict(entered)) == Counter(first.values())


def test_users_who_arrived_before_the_start_keep_their_version_and_are_not_in_it(address):
    with service(address, explore=0.0) as served:
        with_versions(served)
        recommend(served, "early")
        start(served, share=1.0)
        response = recommend(served, "early")
        assert (response.version, response.arm, response.experiment) == (1, UNSET, UNSET)
        assert recommend(served, "late").version == 2
        assert stored(served, "SELECT count(*) FROM assignments") == [(1,)]


def test_a_stop_keeps_the_policy_of_active_users_and_a_rollback_does_not(address):
    for action, versions in (("stop", (2, 1)), ("rollback", (1, 1))):
        with service(address, names=[] if action == "rollback" else NAMES, explore=0.0) as served:
            if action == "stop":
                with_versions(served)
            number = start(served, share=1.0).experiment
            assert recommend(served, f"{action} ann").arm == "treatment"
            ended = change(served, action, number=number, reason="a test")
            assert ended.changes[-1].reason == "a test"
            assert ended.ended_at == served.now()
            after = recommend(served, f"{action} ann")
            assert (after.version, recommend(served, f"{action} bob").version) == versions
            assert (
                stored(served, "SELECT arm, experiment FROM decisions ORDER BY event DESC LIMIT 2")
                == [(None, None)] * 2
            )
            assert change(served, action, number=number) == ended  # repeated
            with pytest.raises(InputError, match="only a running experiment can be completed"):
                change(served, "complete", number=number)
    with service(address, names=[]) as served:
        listed = run(Experiments(served).experiments()).experiments
        assert [(each.experiment, each.state) for each in listed] == [(2, "rolled_back"), (1, "stopped")]
        assert run(served.policy()).version == 1


def test_completion_makes_the_treatment_current(address):
    with service(address, explore=0.0) as served:
        with_versions(served)
        start(served, share=0.5)
        change(served, "complete")
        policy = run(served.policy())
        assert (policy.version, policy.pinned) == (2, True)
        assert recommend(served, "ann").version == 2


def test_an_experiment_survives_a_restart(address):
    with service(address, explore=0.0) as served:
        with_versions(served)
        before = start(served, share=0.5, holdout=0.1, name="spring")
        recommend(served, "ann")
    with service(address, names=[], explore=0.0) as served:
        assert run(Experiments(served).experiments()).experiments == [before]
        assert [recommend(served, user).arm for user in ("ann", "bob")] == [arm(u, 0.5, 0.1) for u in ("ann", "bob")]


def test_one_experiment_runs_at_a_time_and_a_repeated_start_returns_it(address):
    with service(address) as served:
        with_versions(served)
        first = start(served)
        assert start(served) == first
        assert run(Experiments(served).start(em.ExperimentStart(2))) == first  # any salt
        with pytest.raises(InputError, match="Experiment 1 is running; stop or complete it before you start another"):
            start(served, share=0.2)
        for call in (served.pin(2), served.set_shadow(True)):
            with pytest.raises(InputError, match="Experiment 1 is running; stop or complete it before you"):
                run(call)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"treatment": 7}, "treatment is 7; expected the number of a published version"),
        ({"control": 7}, "control is 7; expected the number of a published version"),
        ({"treatment": 1}, "treatment and control are both version 1"),
        ({"treatment": "latest", "control": 2}, "treatment and control are both version 2"),
        ({"control": "caller"}, "control is 'caller' and shadow mode is off. To turn it on, send POST /v1/shadow"),
        ({"share": 0.9, "holdout": 0.2}, "expected a share of at most 0.8"),
    ],
)
def test_a_start_that_makes_no_sense_is_rejected(tmp_path, fields, message):
    with service(tmp_path / "s.sqlite") as served:
        with_versions(served)
        with pytest.raises(InputError, match=message):
            start(served, **fields)
        assert not served.rollout.state.experiments
        assert not stored(served, "SELECT * FROM experiments")


def test_unknown_experiments_and_actions_without_a_share_are_rejected(tmp_path):
    with service(tmp_path / "s.sqlite") as served:
        for number in ("1", "x", "١", "-1"):
            with pytest.raises(NotFoundError, match="none was started yet"):
                change(served, "stop", number=number)
        with_versions(served)
        start(served)
        with pytest.raises(InputError, match="action is 'ramp', which requires `share`"):
            change(served, "ramp")
        with pytest.raises(InputError, match="action is 'stop', which takes no `share`"):
            change(served, "stop", 0.5)


def test_the_caller_decides_in_the_control_of_a_shadow_experiment(address):
    with service(address, shadow=True, explore=0.0) as served:
        publish(served, dp.Fixed(2))
        recommend(served, "early", shown="sports")
        version = run(served.policy()).version
        with pytest.raises(InputError, match="shadow mode is on; expected 'caller'"):
            start(served, treatment="latest", control=version)
        assert start(served, treatment=version, share=0.5, holdout=0.1).control == "caller"
        users = [f"u{i}" for i in range(30)]
        for user in users:
            response = recommend(served, user, shown="sports", propensity=0.5)
            assert response.arm == arm(user, 0.5, 0.1)
            if response.arm == "treatment":
                assert (response.category, response.propensity) == ("music", 1.0)
            else:
                assert (response.category, response.propensity, response.shadow_category) == ("sports", 0.5, "music")
        assert recommend(served, "early", shown="sports").category == "sports"
        treated = next(user for user in users if arm(user, 0.5) == "treatment")
        other = next(user for user in users if arm(user, 0.5, 0.1) == "control")
        assert recommend(served, treated).category == "music"  # does not need `shown`
        before = stored(served, "SELECT count(*) FROM decisions")
        with pytest.raises(InputError, match="the user is in the control of experiment 1, where the caller"):
            recommend(served, other)
        assert stored(served, "SELECT count(*) FROM decisions") == before
        change(served, "rollback")
        assert recommend(served, treated, shown="sports").category == "sports"
        number = start(served, treatment=version, share=0.5).experiment
        change(served, "complete", number=number)
        assert not served.rollout.state.shadow
        assert recommend(served, "new").category == "music"


def test_a_restart_without_the_option_keeps_the_caller_in_control(address):
    users = [f"u{i}" for i in range(20)]
    with service(address, shadow=True, explore=0.0) as served:
        publish(served, dp.Fixed(2))
        start(served, treatment=run(served.policy()).version, share=0.3)
    with service(address, explore=0.0) as served:
        assert served.rollout.state.shadow
        other = next(user for user in users if arm(user, 0.3) == "control")
        assert recommend(served, other, shown="sports").category == "sports"
        change(served, "rollback")
        assert {recommend(served, user, shown="sports").category for user in users} == {"sports"}


@pytest.mark.parametrize("action", ["stop", "rollback"])
def test_users_get_the_control_although_a_restart_published_another_plan(address, action):
    site = magazine()
    other = dp.Instance([1.0], [[0.2], [0.3], [0.7]], 0.5, categories=site.categories)
    treated = next(f"u{i}" for i in range(30) if arm(f"u{i}", 0.5) == "treatment")
    with service(address, instance=site, explore=0.0) as served:
        document = {"kind": "fixed", "category": site.categories[1], "names": list(site.categories)}
        assert run(Experiments(served).upload(document)).version == 1
        assert start(served, treatment=1, share=0.5).control == 0
        assert recommend(served, treated).version == 1
    with service(address, instance=other, explore=0.0) as served:
        assert run(served.policy()).version == 2
        change(served, action)
        assert recommend(served, "new").version == 0
        assert recommend(served, treated).version == (0 if action == "rollback" else 1)
        run(served.pin(2))
        change(served, "rollback")  # of the ended experiment: moves users of the treatment, and keeps the pin
        assert recommend(served, "newer").version == 2
        assert recommend(served, treated).version == 0


def test_the_option_does_not_turn_shadow_mode_on_again(address, caplog):
    with service(address, shadow=True, explore=0.0) as served:
        publish(served, dp.Fixed(2))
        start(served, treatment=run(served.policy()).version, share=0.3)
        change(served, "complete")
    with caplog.at_level("WARNING"), service(address, shadow=True, explore=0.0) as served:
        assert recommend(served, "ann").category == "music"
    assert any("--shadow has no effect" in record.fields["text"] for record in caplog.records)


def test_after_a_stop_users_of_the_treatment_do_not_need_the_caller(tmp_path):
    with service(tmp_path / "s.sqlite", shadow=True, explore=0.0) as served:
        publish(served, dp.Fixed(2))
        start(served, treatment=run(served.policy()).version, share=1.0)
        assert recommend(served, "ann").category == "music"
        change(served, "stop")
        assert recommend(served, "ann").category == "music"
        with pytest.raises(InputError, match="in shadow mode it must name the category"):
            recommend(served, "bob")


def test_latest_follows_the_trainer_and_a_version_does_not(address):
    with service(address, explore=0.0) as served:
        with_versions(served)
        start(served, treatment="latest", control=1, share=0.5)
        users = [f"u{i}" for i in range(30)]
        treated, other = (next(user for user in users if arm(user, 0.5) == each) for each in ("treatment", "control"))
        publish_as_trainer(address, {3: dp.Fixed(0), 4: dp.Fixed(1)}, [(3, 5)])
        run(served.refresh())
        assert (recommend(served, treated).version, recommend(served, other).version) == (3, 1)
        change(served, "complete")
        assert not run(served.policy()).pinned
        assert run(served.policy()).version == 4


def test_changes_reach_other_workers(postgres):
    address = postgres.new()
    with service(address, explore=0.0) as one, service(address, names=[], explore=0.0) as two:
        with_versions(one)
        run(two.refresh())
        start(one, share=1.0)
        assert recommend(one, "ann").arm == "treatment"
        assert recommend(two, "ann").arm == "treatment"  # does not know the experiment before
        assert two.rollout.state.running is not None
        change(two, "ramp", 0.5)
        with pytest.raises(InputError, match="Experiment 1 is running"):
            start(two, share=0.9)
        change(one, "stop")
        run(two.refresh())
        assert two.rollout.state.running is None
        assert [each.action for each in two.rollout.state.experiments[1].changes] == ["start", "ramp", "stop"]


def test_two_workers_do_not_start_two_experiments(postgres):
    address = postgres.new()
    with service(address) as one, service(address, names=[]) as two:
        with_versions(one)
        run(two.refresh())

        async def both():
            requests = [
                Experiments(served).start(em.ExperimentStart(2, share=share))
                for served, share in ((one, 0.1), (two, 0.2))
            ]
            return await asyncio.gather(*requests, return_exceptions=True)

        results = run(both())
        assert sorted(isinstance(result, InputError) for result in results) == [False, True]
        assert stored(one, "SELECT count(*) FROM experiments") == [(1,)]


def test_a_stopped_experiment_can_be_rolled_back_which_moves_active_users(address):
    with service(address, explore=0.0) as served:
        with_versions(served)
        start(served, share=1.0)
        assert recommend(served, "u").version == 2
        stopped = change(served, "stop")
        assert recommend(served, "u").version == 2
        served.clock.time += 10.0
        rolled_back = change(served, "rollback")
        assert recommend(served, "u").version == 1
        assert [each.action for each in rolled_back.changes] == ["start", "stop", "rollback"]
        assert rolled_back.ended_at == stopped.ended_at
        with pytest.raises(InputError, match="only a running experiment can be completed"):
            change(served, "complete")


def test_a_version_that_the_guardrail_rolled_back_starts_by_force_only(address):
    with service(address) as served:
        with_versions(served)
        start(served)
        run(Experiments(served)._change(1, "rollback", None, GUARDRAIL))
        with pytest.raises(InputError, match="treatment is 2, which the guardrail rolled back in experiment 1"):
            start(served)
        assert start(served, force=True).experiment == 2
        change(served, "rollback", number=2)
        with pytest.raises(InputError, match="rolled back in experiment 1"):
            start(served)


def test_errors_name_the_next_step(address):
    with service(address) as served:
        with_versions(served)
        with pytest.raises(
            InputError, match=r"both version 1; expected two policies. Publish another with `departing"
        ):
            start(served, 1)
        with pytest.raises(
            InputError, match=r'shadow mode is off. To turn it on, send POST /v1/shadow with {"enabled": tr'
        ):
            start(served, control="caller")
        run(served.set_shadow(True))
        with pytest.raises(InputError, match=r"""on; expected 'caller'. To turn it off, .* {"enabled": false}"""):
            start(served, control=1)
        with pytest.raises(
            InputError, match=r"share is 10; expected a share above 0 and at most 1, such as 0.1 for 10 %"
        ):
            start(served, share=10.0)
        with pytest.raises(
            InputError, match=r"holdout is 5; expected a share from 0 to below 1, such as 0.05 for 5 %"
        ):
            start(served, holdout=5.0)


def worse_after(served, happens):
    """Experiments in which the treatment is worse, and something happens before the guardrail reacts."""
    experiments = Experiments(served)
    read = experiments._read

    async def read_then(experiment):
        readout = await read(experiment)
        for outcomes in experiments._outcomes[experiment.id]:
            outcomes.worse = (0, -2.0, -1.0)
        await happens()
        return readout

    experiments._read = read_then
    return experiments


@pytest.mark.parametrize("action", ["stop", "complete", "rollback"])
def test_the_guardrail_does_not_overrule_an_operator(address, action, caplog, monkeypatch):
    monkeypatch.setattr(manager, "describe_worse", lambda *_: "worse")
    with service(address) as served, caplog.at_level("INFO", "departing"):
        with_versions(served)
        started = Experiments(served)
        helpers.start(started)

        async def operate():
            await started.change("1", em.ExperimentAction(action, reason="by hand"))

        run(worse_after(served, operate).check())
        run(served.refresh())
        (ended,) = served.rollout.state.experiments.values()
        assert [(each.action, each.actor) for each in ended.changes] == [("start", "api"), (action, "api")]
        change(served, action)  # repeated
        logged = [each for each in caplog.messages if each.startswith("experiment_") and each != "experiment_started"]
        assert logged == [f"experiment_{action}"]


def test_the_guardrail_rolls_a_worse_treatment_back(address, caplog, monkeypatch):
    monkeypatch.setattr(manager, "describe_worse", lambda *_: "worse")
    with service(address) as served, caplog.at_level("INFO", "departing"):
        with_versions(served)
        start(served)

        async def nothing():
            pass

        run(worse_after(served, nothing).check())
        (ended,) = served.rollout.state.experiments.values()
        assert [(each.action, each.actor) for each in ended.changes] == [("start", "api"), ("rollback", GUARDRAIL)]
        assert "experiment_rollback" in caplog.messages


def test_an_experiment_that_a_restored_backup_lacks_is_not_found(postgres, monkeypatch):
    monkeypatch.setattr(manager, "describe_worse", lambda *_: "worse")
    address = postgres.new()
    with service(address) as served:
        with_versions(served)
        start(served)

        async def restore():
            with closing(connect(address)) as database:
                database.execute("DELETE FROM experiments")

        known = served.rollout.state
        run(worse_after(served, restore).check())  # there is nothing to roll back
        served.rollout.state = known
        with pytest.raises(NotFoundError, match="experiment is '1'; expected the number of an experiment"):
            change(served, "stop")


def test_a_latest_treatment_that_the_guardrail_rolled_back_starts_by_force_only(address):
    with service(address) as served:
        with_versions(served)  # versions 1 and 2, of which 2 is the latest
        start(served, treatment="latest")
        run(Experiments(served)._change(1, "rollback", None, GUARDRAIL))
        for treatment in ("latest", 2):
            with pytest.raises(InputError, match="treatment is 2, which the guardrail rolled back in experiment 1"):
                start(served, treatment=treatment)
        served.clock.time += 10.0
        version = PolicyVersion(-1, served.now(), dp.Fixed(0), 3, {})
        run(served.store.transaction(lambda tx: served.rollout.publish(tx, version)))
        assert start(served, treatment="latest").experiment == 2


def test_a_latest_control_unpins_the_version_before(address):
    with service(address, explore=0.0) as served:
        with_versions(served)  # version 1 is pinned, 2 is the latest
        publish(served, dp.Fixed(0))
        start(served, treatment=2, control="latest", share=1.0)
        assert recommend(served, "ann").version == 2
        change(served, "rollback")
        assert (recommend(served, "ann").version, recommend(served, "bob").version) == (3, 3)


def test_the_default_control_is_a_version_that_a_restart_does_not_change(address):
    with service(address, instance=magazine(), explore=0.0) as served:
        run(Experiments(served).upload({"kind": "fixed", "category": "sport"}))
        assert start(served, treatment=1, share=1e-9).control == 0
        run(served.retire_category("news"))
    with service(address, instance=magazine(), explore=0.0) as served:
        assert max(served.rollout.state.versions) == 2  # the plan without the retired category
        assert recommend(served, "ann").version == 0


def test_the_default_control_of_a_learning_service_follows_the_trainer(address):
    with service(address, learn=True, departures_reported=True) as served:
        publish(served, dp.Fixed(2), source=UPLOADED)
        publish(served, dp.Fixed(1))
        assert start(served, treatment=1).control == "latest"


def test_a_repeated_start_is_not_logged(tmp_path, caplog):
    with service(tmp_path / "s.sqlite") as served, caplog.at_level("INFO", "departing"):
        with_versions(served)
        assert start(served) == start(served)
        assert caplog.messages.count("experiment_started") == 1


def test_a_share_of_all_users_is_explained(tmp_path):
    with service(tmp_path / "s.sqlite") as served:
        with_versions(served)
        assert start(served, share=0.5).note == ""
        ramped = change(served, "ramp", 1.0)
        assert ramped.note.startswith("The share is 100 %, so no new user is in the control")
        assert helpers.readout(Experiments(served)).summary.endswith(ramped.note)
        assert change(served, "stop").note == ""
        assert start(served, share=0.9, holdout=0.1).note == ""  # the holdout counts as control


def test_a_completed_experiment_names_the_way_back(tmp_path):
    with service(tmp_path / "s.sqlite", shadow=True) as served:
        publish(served, dp.Fixed(1))
        for number, call in enumerate(('shadow with {"enabled": true}', 'policy with {"version": 1}'), 1):
            start(served, treatment=2 - number)
            experiments = Experiments(served)
            helpers.readout(experiments, number)
            completed = helpers.change(experiments, "complete", number=number)
            assert completed.note.startswith("Completed without a result: fewer than 100 users per arm")
            with pytest.raises(
                InputError, match=f"only a running or stopped .* rolled back. To return new users .*/v1/{call}"
            ):
                change(served, "rollback", number=number)


def test_a_version_that_was_rolled_back_does_not_start_as_the_latest(tmp_path):
    with service(tmp_path / "s.sqlite") as served:
        with_versions(served)  # 2 is the latest version
        start(served, treatment=2)
        run(Experiments(served)._change(1, "rollback", None, GUARDRAIL))
        with pytest.raises(InputError, match="treatment is 2, which the guardrail rolled back in experiment 1"):
            start(served, treatment="latest")
