"""The arms engine against a plain Python implementation and the reference loop."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import departing as dp
from departing.kernels.random import stream
from departing.learning.ucb import UCBHybrid
from departing.model.errors import InputError
from departing.model.examples import blog
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY
from departing.simulation.arms import Arms
from helpers.strategies import ORDINARY, Opaque, instances, schedules

WORD = 2**64 - 1


class Generator:
    """xoshiro256++ in Python's integers."""

    def __init__(self, seed):
        root = np.random.SeedSequence([seed, 5]).generate_state(1, np.uint64)[0]
        self.state = [int(word) for word in stream(root, np.uint64(0))]

    def draw(self):
        def rotate(x, k):
            return ((x << k) | (x >> (64 - k))) & WORD

        a, b, c, d = self.state
        word = (rotate((a + d) & WORD, 23) + a) & WORD
        t = (b << 17) & WORD
        c ^= a
        d ^= b
        b ^= c
        a ^= d
        c ^= t
        self.state = [a, b, c, rotate(d, 45)]
        return Fraction(word, 2**64)


def one_user(instance, policy, generator):
    """The final counts of one user, by the reference loop with these random words."""
    u, shares = generator.draw(), 0
    for x in np.argsort(instance.prior):
        shares += Fraction(float(instance.prior[x]))
        if u < shares:
            break
    counts = np.zeros((instance.n_categories, 4), np.int64)
    while True:
        a = int(policy.recommend(counts))
        probabilities = [Fraction(float(each)) for each in instance.outcome_probabilities[a, :, x]]
        u = generator.draw()
        if u < probabilities[CLICK]:
            counts[a, CLICK] += 1
        elif u < 1 - Fraction(float(instance.departure_probabilities[a, x])):
            counts[a, STAY] += 1
        else:
            clicked = probabilities[CLICK_DEPART] > 0 and generator.draw() < probabilities[CLICK_DEPART] / Fraction(
                float(instance.departure_probabilities[a, x])
            )
            counts[a, CLICK_DEPART if clicked else DEPART] += 1
            return counts


def twin(instance, learner, users, seed):
    """The same run, one user after the other, through the interface of the learner."""
    generator, chosen, final = Generator(seed), [], []
    for _ in range(users):
        version = int(learner.bounds.argmax())
        counts = one_user(instance, learner.policies[version], generator)
        learner._finish(np.array([version]), np.array([counts[:, [CLICK, CLICK_DEPART]].sum()]))
        chosen.append(version)
        final.append(counts)
    return chosen, np.array(final)


def agree(instance, make, users, seed):
    fast, slow = make(), make()
    run = dp.simulate(instance, fast, users=users, seed=seed)
    chosen, final = twin(instance, slow, users, seed)
    assert run.engine == "arms"
    assert fast.pulls.tolist() == slow.pulls.tolist() == np.bincount(chosen, minlength=len(fast.policies)).tolist()
    assert fast.bounds.tolist() == slow.bounds.tolist()
    seen = dp.Histories(final)
    assert (run.clicks, run.steps) == (seen.clicks.sum(), seen.steps.sum())
    assert (run.histories.counts == seen.distinct.counts).all()
    assert (run.histories.multiplicity == seen.distinct.multiplicity).all()
    assert run.returns_users.sum() == users
    assert run.returns @ run.returns_users == run.clicks
    ends = np.append(0, run.checkpoints)
    for interval, (first, last) in enumerate(pairwise(ends.tolist())):
        pieces = [piece for piece in run.regret_curve.policy_segments if piece.interval == interval]
        expected = Counter(fast.policies[p] for p in chosen[first:last])
        assert {piece.policy: piece.users for piece in pieces} == expected
        assert len(pieces) == len(expected)
        assert run.regret_curve.clicks[interval] == seen.clicks[:last].sum()


@given(data=st.data(), seed=st.integers(0, 2**32), constants=st.sampled_from(["estimated", "one", "each"]))
@settings(max_examples=25, deadline=None)
def test_a_plain_implementation_gives_the_same_run(data, seed, constants):
    instance = data.draw(instances(ORDINARY, most=3))
    policies = data.draw(st.lists(schedules(instance.n_categories), min_size=1, max_size=4))
    each = {"tau": [0.5, 0.2, 1.0, 0.3][: len(policies)], "eta": [0.1, 3.0, 0.4, 1.0][: len(policies)]}
    scale = {"estimated": {"scale": "estimated"}, "one": {"tau": 0.5, "eta": 0.1}, "each": each}[constants]
    agree(instance, lambda: UCBHybrid(policies, users=80, categories=instance.n_categories, **scale), 80, seed)


def test_a_plain_implementation_agrees_with_belief_policies():
    policies = [dp.Fixed(0), dp.Greedy(blog()), Opaque(dp.Walk([1, 1], then=0))]
    agree(blog(), lambda: UCBHybrid(policies, users=100, tau=0.2, categories=2), 100, 3)


def test_types_with_prior_zero_never_arrive():
    instance = dp.Instance([0.0, 1.0, 0.0], [[0.9, 0.0, 0.9]], depart=1.0)
    run = dp.simulate(instance, UCBHybrid.fixed(1, users=10**5, tau=1.0), users=10**5)
    assert run.clicks == 0


def test_departure_only_after_a_click():
    instance = dp.Instance([1.0], [[0.5]], depart=0.0, depart_on_click=1.0)
    run = dp.simulate(instance, UCBHybrid.fixed(1, users=1000, tau=1.0), users=1000)
    assert run.returns.tolist() == [1]
    assert (run.histories.counts[:, 0, CLICK_DEPART] == 1).all()


SOFT = dp.Instance([0.4, 0.6], [[0.5, 0.28], [0.4, 0.39]], depart=[[0.5, 0.6], [0.7, 0.3]], depart_on_click=0.1)


def z_score(one, other):
    one, other = np.array(one, float), np.array(other, float)
    spread = one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other)
    return abs(one.mean() - other.mean()) / np.sqrt(max(spread, 1e-12))


@pytest.mark.parametrize("options", [{"tau": 0.3}, {"scale": "estimated"}])
@pytest.mark.slow
def test_the_step_engine_agrees_in_distribution(options):
    pulls = {"arms": [], "step": []}
    clicks = {"arms": [], "step": []}
    for engine in pulls:
        for seed in range(30):
            learner = UCBHybrid.thresholds(users=150, horizon=1, **options)
            run = dp.simulate(SOFT, learner, users=150, seed=seed, engine=engine)
            assert run.engine == engine
            pulls[engine].append(learner.pulls)
            clicks[engine].append(run.clicks)
    assert z_score(clicks["arms"], clicks["step"]) < 4
    for p in range(4):
        assert z_score([x[p] for x in pulls["arms"]], [x[p] for x in pulls["step"]]) < 4


class TestExits:
    def run(self, seed, policy, users=3000):
        learner = UCBHybrid([policy], users=users, tau=1.0, categories=2)
        return dp.simulate(SOFT, learner, users=users, seed=seed), learner

    def test_users_who_leave_the_graph_are_simulated_to_the_end(self):
        policy = Opaque(dp.Greedy(SOFT))
        run, learner = self.run(1, policy)
        exits = (Arms(SOFT, learner, 3000, 1).graphs.shown < 0).sum()
        assert exits > 0
        histories = run.histories
        assert not histories.censored.any()
        assert histories.clicks @ histories.multiplicity == run.clicks == learner._clicks[0]
        assert histories.steps @ histories.multiplicity == run.steps
        whole = dp.simulate(SOFT, policy, users=3000, seed=1, engine="step")
        assert abs(run.mean - whole.mean) < 4 * np.hypot(run.stderr, whole.stderr)

    def test_exits_of_schedules(self, monkeypatch):
        import departing.simulation.automaton as automaton

        monkeypatch.setattr(automaton, "MAX_NODES", 2)
        policy = dp.Walk([0, 1, 1, 0, 1], then=0)
        run, learner = self.run(2, policy, users=800)
        assert (Arms(SOFT, learner, 800, 2).graphs.shown < 0).any()
        histories = run.histories
        assert histories.clicks @ histories.multiplicity == run.clicks
        assert histories.steps @ histories.multiplicity == run.steps
        expected = dp.evaluate(SOFT, policy).value
        assert abs(run.mean - expected) < 4 * run.stderr


def test_returns_of_any_size():
    instance = dp.Instance([0.5, 0.5], [[1 - 1e-5, 0.5]], depart=1.0)
    run = dp.simulate(instance, UCBHybrid.fixed(1, users=200, tau=1.0), users=200, seed=1)
    assert run.returns[-1] > 2**16
    assert run.returns @ run.returns_users == run.clicks == run.histories.clicks @ run.histories.multiplicity
    assert abs(run.mean - (99_999 + 1) / 2) < 4 * run.stderr


def test_a_second_run_continues():
    learner = UCBHybrid.thresholds(users=1000, horizon=2, tau=0.3)
    first = dp.simulate(blog(), learner, users=400, seed=1)
    pulls = learner.pulls
    second = dp.simulate(blog(), learner, users=600, seed=2)
    assert (learner.pulls >= pulls).all()
    assert learner.pulls.sum() == 1000
    assert learner._clicks.sum() == first.clicks + second.clicks
    assert second.histories.users == 600  # repeated from the initial statistics
    assert second.histories.clicks @ second.histories.multiplicity == second.clicks


def test_a_saved_learner_continues_exactly(tmp_path):
    learner = UCBHybrid.thresholds(users=1000, horizon=2, scale="estimated")
    dp.simulate(blog(), learner, users=400, seed=1)
    learner.save(tmp_path / "learner.json")
    other = UCBHybrid.load(tmp_path / "learner.json")
    one, two = (dp.simulate(blog(), each, users=500, seed=2) for each in (learner, other))
    assert one.regret_curve.clicks.tolist() == two.regret_curve.clicks.tolist()
    assert learner.bounds.tolist() == other.bounds.tolist()


def test_the_batch_size_does_not_change_a_run(monkeypatch):
    import departing.simulation.arms as arms

    def play():
        learner = UCBHybrid.thresholds(users=5000, horizon=3, tau=0.3)
        return dp.simulate(SOFT, learner, users=5000, seed=1), learner.pulls.tolist()

    one, pulls = play()
    monkeypatch.setattr(arms, "BATCH", 7)
    two, again = play()
    assert pulls == again
    assert one.returns_users.tolist() == two.returns_users.tolist()


def test_progress_counts_all_users():
    reported = []
    dp.simulate(blog(), UCBHybrid.fixed(2, users=10**5, tau=1.0), users=10**5, progress=reported.append)
    assert sum(reported) == 10**5


def test_open_users_use_the_step_engine():
    learner = UCBHybrid.fixed(2, users=50, tau=1.0)
    assert dp.simulate(blog(), learner, users=50, open_users=5).engine == "step"
    learner = UCBHybrid.fixed(2, users=50, tau=1.0)
    learner.recommend(["somebody"])
    assert dp.simulate(blog(), learner, users=50).engine == "step"


@pytest.mark.parametrize("options", [{"open_users": 2}, {"delay": 3}])
def test_the_arms_engine_requires_users_one_after_the_other(options):
    with pytest.raises(InputError, match="engine is 'arms'; it applies to UCB-Hybrid"):
        dp.simulate(blog(), UCBHybrid.fixed(2, users=50, tau=1.0), users=50, engine="arms", **options)


def test_with_the_proved_constants_regret_is_linear():
    learner = UCBHybrid.thresholds(users=10**6, epsilon=0.5, horizon="paper")
    run = dp.simulate(blog(), learner, users=10**6, seed=1)
    assert run.regret[-1] == pytest.approx(11_064, rel=0.01)
    assert run.slope(10**4, 10**6).value == pytest.approx(1, abs=0.01)
