import pickle

import numpy as np
import pytest

import departing as dp
from departing.model.examples import blog, magazine
from departing.simulation import automaton, lanes
from helpers.strategies import Opaque

ENGINES = ["step", "lanes", "aggregate"]


def same(one, two):
    return (
        (one.users, one.clicks, one.steps, one.truncated) == (two.users, two.clicks, two.steps, two.truncated)
        and (one.returns == two.returns).all()
        and (one.returns_users == two.returns_users).all()
        and (one.histories.counts == two.histories.counts).all()
        and (one.histories.multiplicity == two.histories.multiplicity).all()
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_seed_gives_the_same_run_and_another_seed_another(engine):
    one, two, other = (
        dp.simulate(magazine(), dp.Greedy(magazine()), users=3000, seed=seed, engine=engine) for seed in (5, 5, 6)
    )
    assert same(one, two)
    assert not np.array_equal(one.returns_users, other.returns_users)


def test_the_number_of_threads_changes_nothing():
    runs = [
        dp.simulate(magazine(), dp.Greedy(magazine()), users=300_000, seed=1, engine="lanes", threads=n)
        for n in (1, 2, 3)
    ]
    assert same(runs[0], runs[1])
    assert same(runs[0], runs[2])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("users", [1, 2, 63, 64, 65, 129, 70_001])
def test_every_user_is_counted_once(engine, users):
    run = dp.simulate(magazine(), dp.Walk([0, 1], then=2), users=users, seed=3, engine=engine)
    assert run.users == users == run.histories.users == run.returns_users.sum()
    assert run.clicks == run.histories.clicks @ run.histories.multiplicity == run.returns @ run.returns_users
    assert run.steps == run.histories.steps @ run.histories.multiplicity
    assert run.truncated == 0
    assert not run.histories.censored.any()
    assert len(run.histories.distinct) == len(run.histories)


@pytest.mark.parametrize("open_users", [1, 2, 7, 1000])
@pytest.mark.parametrize("engine", ["step", "lanes"])
def test_any_number_of_users_may_be_open_at_once(engine, open_users):
    run = dp.simulate(blog(), dp.Greedy(blog()), users=4000, seed=2, engine=engine, open_users=open_users)
    assert abs(run.mean - 0.6502732) < 4 * run.stderr
    assert run.histories.users == 4000


def test_open_users_are_at_most_the_requested_number(tmp_path):
    dp.simulate(blog(), dp.Fixed(0), users=200, seed=1, open_users=5, log=tmp_path / "log.csv")
    rows = [line.split(",") for line in (tmp_path / "log.csv").read_text().splitlines()[1:]]
    times = np.array([int(row[1]) for row in rows])
    assert np.bincount(times).max() == 5


@pytest.mark.parametrize("policy", [dp.Fixed(0), dp.Walk([0, 1, 1], then=2), "greedy", "table"], ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_truncated_and_terminated_never_mix(engine, policy):
    if policy == "greedy":
        policy = dp.Greedy(magazine())
    if policy == "table":
        policy = dp.Table(np.zeros((1, 3, 4), int), [2], fallback=dp.Fixed(1))
    run = dp.simulate(magazine(), policy, users=5000, seed=2, engine=engine, max_steps=4)
    seen = run.histories
    assert seen.steps.max() == 4
    assert (seen.steps[seen.censored] == 4).all()
    assert (seen.counts[~seen.censored][..., 2:].sum(axis=(1, 2)) == 1).all()
    assert (seen.counts[seen.censored][..., 2:] == 0).all()
    assert 0 < run.truncated == seen.multiplicity[seen.censored].sum() < 5000


@pytest.mark.slow
def test_auto_uses_the_aggregate_engine_until_the_graph_is_too_large(monkeypatch):
    monkeypatch.setattr("departing.simulation.simulate.AUTO_MEMORY", 2**25)
    assert dp.simulate(blog(), dp.Greedy(blog()), users=1000).engine == "aggregate"
    instance = dp.random_instance("sticky", types=6, categories=6, seed=1)
    seen = []
    run = dp.simulate(instance, Opaque(dp.Greedy(instance)), users=100_000, progress=seen.append)
    assert run.engine == "lanes"
    assert sum(seen) == 100_000
    exact = dp.evaluate(instance, dp.Greedy(instance), gap=0.1, max_nodes=10**6)
    assert exact.lower - 4 * run.stderr < run.mean < exact.upper + 4 * run.stderr


def test_users_at_exits_of_the_automaton_are_played_to_the_end(monkeypatch):
    """With a tiny automaton nearly all users come to an exit and are finished by the reference engine."""
    exact = {p: dp.evaluate(magazine(), p, gap=1e-6).value for p in (dp.Greedy(magazine()), dp.Fixed(2))}
    monkeypatch.setattr(automaton, "MAX_NODES", 3)
    monkeypatch.setattr(lanes, "EXIT_BATCH", 1000)
    walk = dp.Walk([0, 1, 2, 1, 0, 0, 1, 2], then=2)
    exact[walk] = dp.evaluate(magazine(), walk).value
    for policy, value in exact.items():
        run = dp.simulate(magazine(), policy, users=20_000, seed=4, engine="lanes")
        again = dp.simulate(magazine(), policy, users=20_000, seed=4, engine="lanes", threads=1)
        assert same(run, again)
        assert abs(run.mean - value) < 4 * run.stderr
        assert run.clicks == run.histories.clicks @ run.histories.multiplicity
        assert run.steps == run.histories.steps @ run.histories.multiplicity


def test_very_long_stays_are_counted():
    instance = dp.Instance([0.5, 0.5], [[0.999, 0.9], [0.5, 0.5]], 0.5)
    run = dp.simulate(instance, dp.Fixed(0), users=3000, seed=1, engine="lanes")
    assert run.returns.max() > 4096
    assert abs(run.mean - dp.evaluate(instance, dp.Fixed(0)).value) < 4 * run.stderr
    assert run.clicks == run.histories.clicks @ run.histories.multiplicity


def test_tiny_departure_probabilities_are_accurate():
    instance = dp.Instance([1.0], [[0.5]], depart=1e-5)
    run = dp.simulate(instance, dp.Fixed(0), users=2000, seed=3, engine="lanes")
    assert abs(run.mean - 1e5) < 4 * run.stderr


def test_certain_and_impossible_outcomes_happen_always_and_never():
    instance = dp.Instance([0.0, 1.0], [[0.0, 1.0], [1.0, 0.0]], depart=1.0, depart_on_click=0.5)
    for engine in ENGINES:
        run = dp.simulate(instance, dp.Fixed(0), users=2000, seed=1, engine=engine)
        assert run.steps == run.clicks  # type 0 never comes; type 1 clicks until departing on a click
        assert dp.simulate(instance, dp.Fixed(1), users=2000, seed=1, engine=engine).clicks == 0


def test_the_interval_covers_the_value_as_often_as_it_says():
    covered = 0
    for seed in range(400):
        low, high = dp.simulate(blog(), dp.Fixed(1), users=2000, seed=seed).interval(0.9)
        covered += low <= 0.650273224 <= high
    assert abs(covered - 360) < 4 * np.sqrt(400 * 0.9 * 0.1)


def test_the_standard_error_is_the_textbook_one():
    run = dp.simulate(blog(), dp.Fixed(1), users=500, seed=1)
    returns = np.repeat(run.returns, run.returns_users)
    assert run.stderr == pytest.approx(returns.std(ddof=1) / np.sqrt(500))
    assert np.isnan(dp.simulate(blog(), dp.Fixed(1), users=1).stderr)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("max_steps", [None, 2])
def test_progress_adds_up_to_the_users(engine, max_steps):
    for policy in (dp.Fixed(1), dp.Greedy(blog())):
        seen = []
        dp.simulate(blog(), policy, users=150_000, engine=engine, max_steps=max_steps, progress=seen.append)
        assert sum(seen) == 150_000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"users": 0}, "users is 0; expected an integer ≥ 1"),
        ({"users": -5}, "users is -5"),
        ({"users": 1.5}, "users is 1.5"),
        ({"users": 10**16}, r"expected at most 1e\+15"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": "a"}, "seed is 'a'"),
        ({"engine": "warp"}, "engine is 'warp'; expected one of auto, aggregate, lanes, step for a policy"),
        ({"open_users": 0}, "open_users is 0"),
        ({"max_steps": 0}, "max_steps is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"engine": "lanes", "log": "a.csv"}, "an event log is written by the engine step"),
        ({"policy": 3}, "policy is 3; expected an object with a method recommend"),
        ({"policy": dp.Fixed(9)}, "Fixed recommends category 9"),
        ({"instance": dp.Instance([1.0], [[0.5]], 1e-12)}, "stays 2e\\+12 steps on average .*set `max_steps`"),
    ],
)
def test_invalid_arguments_raise_clear_errors(arguments, sentence):
    with pytest.raises(dp.InputError, match=sentence):
        dp.simulate(**({"instance": blog(), "policy": dp.Fixed(0), "users": 10} | arguments))
    with pytest.raises(dp.InputError, match="confidence is 1"):
        dp.simulate(blog(), dp.Fixed(0), users=10).interval(1)


def test_practically_endless_visits_can_be_truncated():
    instance = dp.Instance([1.0], [[0.5]], 1e-12)
    for engine in ENGINES:
        run = dp.simulate(instance, dp.Fixed(0), users=100, max_steps=50, engine=engine)
        assert run.truncated == 100
        assert run.steps == 5000


def test_too_many_counts_for_the_aggregate_engine_raise_an_error(monkeypatch):
    monkeypatch.setattr("departing.simulation.simulate.MAX_MEMORY", 2**16)
    with pytest.raises(
        dp.InputError, match="have more than 682 distinct counts; use fewer users, or the engine lanes"
    ):
        dp.simulate(magazine(), dp.Greedy(magazine()), users=10**6, engine="aggregate")
    chain = dp.Instance([1.0], [[0.999], [0.5], [0.5]])
    with pytest.raises(dp.InputError, match="distinct counts"):
        dp.simulate(chain, dp.Fixed(0), users=10**9, engine="aggregate")


@pytest.mark.parametrize("seed", range(30))
def test_huge_populations_contain_no_impossible_users(seed):
    """The remainder of a multinomial must not go to a rare cell: probability 0.3**50, a type of prior 0."""
    fast = dp.Instance([1.0, 0.0], [[0.3, 0.9999]])
    assert dp.simulate(fast, dp.Fixed(0), users=10**15, seed=seed).returns.max() < 50
    third = dp.Instance([1 / 3, 1 / 3, 1 / 3, 0.0], [[0.0, 0.0, 0.0, 0.9]])
    assert dp.simulate(third, dp.Fixed(0), users=10**15, seed=seed).clicks == 0


def test_a_policy_cannot_modify_the_counts_of_users():
    class Meddler:
        def recommend(self, counts):
            counts[...] = 0
            return np.zeros(len(counts), int)

    for engine in ENGINES:
        with pytest.raises(ValueError, match="read-only"):
            dp.simulate(blog(), Meddler(), users=100, engine=engine)


def test_a_policy_may_return_an_array_that_it_keeps():
    class Lender:
        kept = np.zeros(10**6, np.int64)

        def recommend(self, counts):
            return self.kept[: len(counts)]

    class Broadcaster:
        def recommend(self, counts):
            return np.broadcast_to(np.int64(1), len(counts))

    for engine in ENGINES:
        assert dp.simulate(magazine(), Lender(), users=1000, engine=engine).users == 1000
        assert dp.simulate(magazine(), Broadcaster(), users=1000, engine=engine).users == 1000
    assert not Lender.kept.any()


@pytest.mark.parametrize("engine", ENGINES)
def test_runs_can_be_pickled(engine):
    run = dp.simulate(magazine(), dp.Greedy(magazine()), users=2000, seed=1, engine=engine)
    again = pickle.loads(pickle.dumps(run))
    assert same(run, again)


@pytest.mark.slow
def test_large_instances_have_small_automata():
    wide = dp.random_instance("uniform", types=2000, categories=2, seed=1)
    run = dp.simulate(wide, dp.Greedy(wide), users=500, seed=1, engine="lanes")
    tall = dp.random_instance("uniform", types=2, categories=1000, seed=1)
    other = dp.simulate(tall, dp.Threshold(first=0, steps=200_000, then=1), users=500, seed=1, engine="lanes")
    assert run.users == other.users == 500
    assert automaton.max_nodes(wide) * 2000 < 2**23


def test_auto_avoids_the_aggregate_engine_where_single_steps_are_cheaper():
    """One user who stays for a million steps is one lane, not a million levels."""
    patient = dp.Instance([0.5, 0.5], [[0.5, 0.4], [0.5, 0.5]], depart=1e-5)
    assert dp.simulate(patient, dp.Fixed(0), users=1, seed=1).engine == "lanes"
    assert dp.simulate(magazine(), dp.Greedy(magazine()), users=10**6).engine == "aggregate"
    assert dp.simulate(magazine(), dp.Walk([0, 1], then=2), users=10**9).engine == "aggregate"


def test_auto_avoids_the_aggregate_engine_with_very_many_types():
    rng = np.random.default_rng(0)
    many = dp.Instance(np.full(20_000, 1 / 20_000), rng.uniform(0.1, 0.9, (2, 20_000)), 0.5)
    one = dp.simulate(many, dp.Fixed(0), users=2000, seed=1)
    assert one.engine == "lanes"
    value = float(many.fixed_values[0].mean())
    assert abs(one.mean - value) < 5 * one.stderr
    learnt = dp.simulate(many, dp.LatticeUCB(categories=2, users=200), users=200, seed=1)
    assert learnt.engine == "step"
    assert dp.simulate(many, dp.Fixed(0), users=2000, seed=1, engine="aggregate").engine == "aggregate"
