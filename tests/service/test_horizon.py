"""A horizon: at most so many recommendations to a user."""

import json
from contextlib import closing
from io import BytesIO

import pytest

import departing as dp
from departing.model.files import read_document
from departing.service import messages as m
from departing.service.experiments.manager import Experiments
from departing.service.experiments.messages import ExperimentStart
from departing.service.export import write_log
from departing.service.service import FinishedError
from departing.service.settings import Settings
from departing.service.startup import open_service
from departing.service.workers.evidence import histogram
from helpers.services import NAMES, publish, recommend, rows, run, service

SITE = dp.Instance([1.0], [[0.5], [0.4], [0.3]], 0.5, categories=NAMES, horizon=2)


def served_with_horizon(address, **options):
    return service(address, inactive_after=5.0, grace_period=100.0, explore=0.0, **options)


def visit(served, name, *outcomes):
    """Recommend to a user once for each outcome, a pair of a click and a departure; return the events."""
    events = []
    for clicked, departed in outcomes:
        events.append(recommend(served, name).event)
        assert run(served.feedback([m.Feedback(events[-1], clicked, departed)]))[0].accepted
    return events


def training_counts(served):
    run(served.flush())
    with served.store.read() as snapshot:
        counts, users = histogram(snapshot, 3)
    return counts.sum(axis=1).repeat(users, axis=0).tolist()


def test_a_user_gets_no_more_than_the_horizon(address):
    with served_with_horizon(address) as served:
        publish(served, dp.Fixed(0), instance=SITE.to_dict())
        for i in range(2):
            recommend(served, "ann", event=f"{i}")
        with pytest.raises(FinishedError, match=r"user 'ann' has had all 2 recommendations of the horizon"):
            recommend(served, "ann")
        assert recommend(served, "ann", event="1").category == "news"  # repeated
        assert recommend(served, "bob").category == "news"
        served.clock.time += 10.0
        assert recommend(served, "ann").category == "news"  # another visit
        assert len(run(served.user_state("ann")).history) == 1


@pytest.mark.parametrize("clicked", [True, False])
def test_a_finished_user_is_censored(address, clicked):
    with served_with_horizon(address) as served:
        publish(served, dp.Fixed(0), instance=SITE.to_dict())
        events = visit(served, "ann", (True, None), (clicked, None))
        served.clock.time += 10.0
        run(served.flush())
        assert run(served.sweep()) == 1
        totals = run(served.totals())
        assert (totals["finished_users"], totals.get("departures", 0)) == (1, 0)
        assert served.store.active_users == 0
        assert rows(served, "SELECT count(*) FROM departures") == [(0,)]
        assert training_counts(served) == [[1, 0, 0, 0]]  # whether the user would have stayed is not known
        assert rows(served, "SELECT departed, clicks FROM users") == [(1, 1 + clicked)]
        file = BytesIO()
        write_log(served.store.read, "no-click", "jsonl", file)
        assert [json.loads(line)["departed"] for line in file.getvalue().splitlines()] == [False, None]
        row = m.Feedback(events[1], clicked, True)
        assert run(served.feedback([row]))[0].accepted  # late, and still the only evidence
        assert training_counts(served) == [[1, 0, 1 - clicked, int(clicked)]]
        assert rows(served, "SELECT count(*) FROM departures") == [(1,)]
        assert served.store.active_users == 0


@pytest.mark.parametrize("late", [True, False])
def test_a_finished_user_can_depart(address, late):
    with served_with_horizon(address) as served:
        publish(served, dp.Fixed(0), instance=SITE.to_dict())
        visit(served, "ann", (True, None), (False, None))
        if late:
            served.clock.time += 10.0
            run(served.flush())
            run(served.sweep())
        assert run(served.depart("ann")).ok
        assert training_counts(served) == [[1, 0, 1, 0]]
        assert rows(served, "SELECT cause FROM departures") == [("reported",)]
        assert served.store.active_users == 0
        assert run(served.totals())["departures"] == 1


def test_a_late_click_reopens_a_finished_user(address):
    with served_with_horizon(address) as served:
        publish(served, dp.Fixed(0), instance=SITE.to_dict())
        visit(served, "ann", (True, None))
        event = recommend(served, "ann").event
        served.clock.time += 10.0
        run(served.flush())
        run(served.sweep())
        assert run(served.feedback([m.Feedback(event, True)]))[0].accepted
        assert not run(served.user_state("ann")).departed
        assert run(served.totals()).get("reopened_users", 0) == 0  # no departure was withdrawn
        with pytest.raises(FinishedError):
            recommend(served, "ann")


def test_the_horizon_does_not_apply_to_the_caller(address):
    with served_with_horizon(address, shadow=True) as served:
        publish(served, dp.Fixed(0), instance=SITE.to_dict())
        assert [recommend(served, "ann", shown="music").category for _ in range(3)] == ["music"] * 3


def pin_upload(served, document):
    """Publish a policy document and give it to all new users."""
    version = run(Experiments(served).upload(document)).version
    run(served.pin(version))
    return version


def recommendations(served, name):
    """Number of recommendations that a new user gets, at most 5."""
    for i in range(5):
        try:
            recommend(served, name)
        except FinishedError:
            return i
    return 5


def test_a_published_plan_has_the_horizon_that_it_was_made_for(address, tmp_path):
    plan = dp.plan(SITE)
    assert isinstance(plan.policy, dp.Fixed)  # which has no instance
    plan.save(tmp_path / "plan.json")
    assert dp.load_policy(tmp_path / "plan.json", NAMES) == plan.policy
    document = read_document(tmp_path / "plan.json", "policy")
    without = {name: value for name, value in document.items() if name != "horizon"}
    with served_with_horizon(address) as served:
        version = pin_upload(served, document)
        assert recommendations(served, "ann") == 2
        assert pin_upload(served, without) == version + 1  # another version
        assert recommendations(served, "bob") == 5
        assert pin_upload(served, document) == version
    with closing(open_service(address, [], None, Settings(explore=0.0)).store):
        pass
    with served_with_horizon(address) as served:
        assert recommendations(served, "cat") == 2


@pytest.mark.parametrize("horizon", [0, "2", True])
def test_an_invalid_horizon_of_a_policy_is_refused(address, tmp_path, horizon):
    document = {"kind": "fixed", "category": "news", "horizon": horizon}
    with (
        served_with_horizon(address) as served,
        pytest.raises(dp.InputError, match=r"The policy: horizon is .*integer"),
    ):
        run(Experiments(served).upload(document))
    (tmp_path / "policy.json").write_text(json.dumps(document))
    with pytest.raises(dp.InputError, match=r"policy.json': horizon is .*integer"):
        dp.load_policy(tmp_path / "policy.json")


@pytest.mark.parametrize("horizon", [None, 1, 3], ids=["none", "shorter", "longer"])
def test_the_horizon_of_the_site_limits_every_version(address, horizon):
    document = {"kind": "fixed", "category": "news"} | ({} if horizon is None else {"horizon": horizon})
    expected = min(2, horizon or 2)
    with served_with_horizon(address, instance=SITE) as served:
        pin_upload(served, document)
        assert recommendations(served, "ann") == expected
    with served_with_horizon(address) as served:  # which the store remembers
        assert recommendations(served, "bob") == expected
    with served_with_horizon(address, instance=SITE.replace(horizon=None)) as served:
        assert recommendations(served, "cat") == (horizon or 5)
        run(served.pin(0))  # the plan for two recommendations
        assert recommendations(served, "dan") == 2


def test_an_arm_of_an_experiment_has_the_horizon_of_the_site(tmp_path):
    with served_with_horizon(tmp_path / "s.sqlite", instance=SITE) as served:
        experiments = Experiments(served)
        version = run(experiments.upload({"kind": "threshold", "first": "news", "steps": 1, "then": "music"})).version
        run(experiments.start(ExperimentStart(version, share=0.5)))
        assert {recommendations(served, f"user {i}") for i in range(20)} == {2}
        run(served.flush())
        assert {version for (version,) in rows(served, "SELECT DISTINCT version FROM users")} == {0, version}


def test_processes_share_the_horizon(postgres):
    address = postgres.new()
    with served_with_horizon(address) as other:
        with served_with_horizon(address, instance=SITE):
            pass
        run(other.refresh())
        run(other.pin(0))  # the uniform policy
        assert recommendations(other, "ann") == 2


def test_the_plan_of_an_instance_with_rewards_is_served_in_their_unit(tmp_path):
    site = dp.Instance([1.0], [[0.5], [0.4]], 0.5, categories=["news", "music"], reward=[1, 10], unit="euro")
    with service(str(tmp_path / "s.sqlite"), instance=site, explore=0.0) as served:
        shown = recommend(served, "ann", explain=True)
        assert (shown.category, shown.expected_remaining_clicks) == ("music", pytest.approx(site.best_fixed[1]))
        assert (run(served.policy()).unit, served.unit) == ("euro", "euro")
        assert run(served.policy()).lower == pytest.approx(site.best_fixed[1])
