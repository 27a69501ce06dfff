"""Simulated users and their regret, without a service."""

import json
from contextlib import suppress

import numpy as np
import pytest

import departing as dp
from departing.client import ServiceError
from departing.loadtest.regret import StepRegret, optimum_and_regret, uniform_value
from departing.loadtest.run import LoadTestResult
from departing.loadtest.simulated_users import SimulatedUsers
from departing.model.examples import blog, magazine

SITE = dp.Instance(
    prior=[0.5, 0.5], click=[[0.7, 0.1], [0.1, 0.6]], depart=[[0.6, 0.7], [0.6, 0.7]], categories=["news", "music"]
)
DEPART_ON_CLICK = dp.Instance(
    prior=[0.3, 0.3, 0.4],
    click=[[0.8, 0.3, 0.2], [0.2, 0.7, 0.3]],
    depart=[[0.4, 0.5, 0.6], [0.3, 0.4, 0.9]],
    depart_on_click=0.1,
)
INSTANCES = {
    "site": SITE,
    "blog": blog(),
    "magazine": magazine(),
    "depart on click": DEPART_ON_CLICK,
    "horizon 1": SITE.replace(horizon=1),
    "horizon 3": SITE.replace(horizon=3),
    "schedule within a horizon": blog().replace(horizon=9),
    "horizon 5": DEPART_ON_CLICK.replace(horizon=5),
}


def serve(users, recommend, horizon=None):
    """Answer the requests of simulated users by `recommend`, a function from counts to a category."""
    session, response, counts, shown = users.session(), None, {}, {}
    while True:
        try:
            request = session.send(response)
        except StopIteration:
            return
        if not isinstance(request, bytes):
            response = None
            continue
        head, _, text = request.partition(b"\r\n\r\n")
        body = json.loads(text)
        if head.startswith(b"POST /v1/recommend "):
            event = body["event"]
            own = counts.setdefault(body["user"], np.zeros((users.instance.n_categories, 4), np.int64))
            if horizon is not None and own.sum() >= horizon:
                response = ServiceError("finished", 409, "All recommendations of the horizon.")
                continue
            assert own.sum() < (users.instance.horizon or np.inf)
            shown[event] = own, recommend(own)
            response = {"event": event, "category": users.instance.categories[shown[event][1]]}
        else:
            own, category = shown[body["event"]]
            own[category, 2 * body["departed"] + (body["clicked"] == body["departed"])] += 1
            response = {"event": body["event"], "accepted": True}


def z_score(values, expected):
    return (values.mean() - expected) / (values.std(ddof=1) / np.sqrt(len(values)))


@pytest.mark.parametrize("name", INSTANCES)
@pytest.mark.parametrize("optimal", [True, False], ids=["optimal vectors", "suboptimal vectors"])
@pytest.mark.slow
def test_mean_regret_is_the_optimum_minus_the_value_of_the_policy(name, optimal):
    instance = INSTANCES[name]
    step_regret = optimum_and_regret(instance)[1] if optimal else StepRegret(instance)
    if optimal:
        assert step_regret.start == pytest.approx(dp.plan(instance).value, abs=2e-5)
    for policy in (dp.Fixed(0), dp.Walk([1, 0, 0, 1], then=1), dp.Greedy(instance)):
        value = dp.evaluate(instance, policy, 1e-6).value
        users = SimulatedUsers(instance, 2000, step_regret, seed=3)
        serve(users, lambda counts, policy=policy: int(policy.recommend(counts)))
        assert abs(z_score(users.clicks.astype(float), value)) < 4
        if users.regrets.std() < 1e-9:  # the policy is optimal, or as good as the first vector
            assert users.regrets.mean() == pytest.approx(step_regret.start - value, abs=1e-6)
        else:
            assert abs(z_score(users.regrets, step_regret.start - value)) < 4


def test_the_optimal_policy_has_no_regret_and_the_uniform_policy_its_exact_regret():
    optimum, step_regret = optimum_and_regret(magazine())
    plan = dp.plan(magazine())
    users = SimulatedUsers(magazine(), 1000, step_regret)
    serve(users, lambda counts: int(plan.policy.recommend(counts)))
    assert abs(users.regrets.mean()) < 1e-4
    rng = np.random.default_rng(0)
    users = SimulatedUsers(magazine(), 3000, step_regret)
    serve(users, lambda counts: int(rng.integers(3)))
    assert abs(z_score(users.regrets, optimum.value - uniform_value(magazine()))) < 4


@pytest.mark.parametrize("name", ["horizon 3", "schedule within a horizon"])
def test_regret_is_against_the_optimum_of_the_horizon(name):
    instance = INSTANCES[name]
    optimum, step_regret = optimum_and_regret(instance)
    plan = dp.plan(instance)
    assert step_regret.start == pytest.approx(plan.value, abs=1e-5)
    assert optimum.lower <= plan.upper + 1e-9
    users = SimulatedUsers(instance, 300, step_regret)
    serve(users, lambda counts: int(plan.policy.recommend(counts)))
    assert abs(users.regrets.mean()) < 1e-4
    rng = np.random.default_rng(0)
    users = SimulatedUsers(instance, 2000, step_regret)
    serve(users, lambda counts: int(rng.integers(2)))
    assert abs(z_score(users.regrets, optimum.value - uniform_value(instance))) < 4
    assert abs(z_score(users.clicks.astype(float), uniform_value(instance))) < 4


@pytest.mark.parametrize("horizon", [None, 5])
def test_visits_that_the_service_cuts_short_have_the_regret_of_what_they_miss(horizon):
    instance = SITE.replace(horizon=horizon)
    optimum, step_regret = optimum_and_regret(instance)
    users = SimulatedUsers(instance, 2000, step_regret)
    serve(users, lambda counts: 0, horizon=2)
    value = dp.evaluate(SITE.replace(horizon=2), dp.Fixed(0)).value
    assert abs(z_score(users.regrets, optimum.value - value)) < 4
    assert 0 < users.cut_visits < 1000


def test_the_seed_fixes_types_and_outcomes():
    results = []
    for seed in (1, 1, 2):
        users = SimulatedUsers(SITE, 200, StepRegret(SITE), seed=seed)
        serve(users, lambda counts: 0)
        results.append((users.clicks.tolist(), users.regrets.tolist()))
    assert results[0] == results[1] != results[2]


def test_users_arrive_at_the_pace_at_most():
    users = SimulatedUsers(SITE, 4, StepRegret(SITE), pace=10)
    assert isinstance(next(users.session()), bytes)
    assert 0 < next(users.session()) <= 0.1
    assert 0.1 < next(users.session()) <= 0.2


def test_rejected_feedback_is_sent_again_after_a_new_recommendation_and_then_counted():
    users = SimulatedUsers(SITE, 1, StepRegret(SITE))
    session = users.session()
    request = next(session)
    feedback = session.send({"category": "news"})
    assert session.send({"accepted": False}) == request
    assert session.send({"category": "news"}) == feedback
    assert users.rejected_feedback == 0
    with suppress(StopIteration):  # if the outcome was a departure
        assert session.send({"accepted": False}) != request
    assert users.rejected_feedback == 1
    result = LoadTestResult(
        SITE, dp.plan(SITE), users.clicks, users.rewards, users.regrets, users.rejected_feedback, np.ones(4), 1.0
    )
    assert result.summary().splitlines()[-1] == "Rejected feedback: 1."
