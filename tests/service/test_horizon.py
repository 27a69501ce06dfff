"""A horizon: at most so many recommendations to a user."""

import json
from io import BytesIO

import pytest

import departing as dp
from departing.service import messages as m
from departing.service.export import write_log
from departing.service.service import FinishedError
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
        with pytest.raises(FinishedError):
            recommend(served, "ann")


def test_the_horizon_does_not_apply_to_the_caller(address):
    with served_with_horizon(address, shadow=True) as served:
        publish(served, dp.Fixed(0), instance=SITE.to_dict())
        assert [recommend(served, "ann", shown="music").category for _ in range(3)] == ["music"] * 3


def test_the_plan_of_an_instance_with_rewards_is_served_in_their_unit(tmp_path):
    site = dp.Instance([1.0], [[0.5], [0.4]], 0.5, categories=["news", "music"], reward=[1, 10], unit="euro")
    with service(str(tmp_path / "s.sqlite"), instance=site, explore=0.0) as served:
        shown = recommend(served, "ann", explain=True)
        assert (shown.category, shown.expected_remaining_clicks) == ("music", pytest.approx(site.best_fixed[1]))
        assert (run(served.policy()).unit, served.unit) == ("euro", "euro")
        assert run(served.policy()).lower == pytest.approx(site.best_fixed[1])
