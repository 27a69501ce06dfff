"""The study of peers: exact values of tables of probabilities, simulated users, and the environment of PPO."""

import numpy as np
import pytest
from benchmarks.peer_learners.block import Block, States
from benchmarks.peer_learners.features import text, vectors
from benchmarks.peer_learners.protocol import COVERED, FrozenPolicy, run_blocks, run_online

import departing as dp
from departing.model.examples import blog, hard

UNSURE = dp.Instance([0.3, 0.7], [[0.6, 0.2], [0.3, 0.5]], [[0.8, 0.5], [0.4, 0.9]])
SURE = dp.Instance([0.5, 0.3, 0.2], [[0.6, 0.2, 0.3], [0.3, 0.5, 0.1], [0.4, 0.4, 0.7]])
BOTH = pytest.mark.parametrize("instance", [SURE, UNSURE], ids=["sure", "unsure"])


def random_table(block, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(block.instance.n_categories), len(block.states))


def table_of(policy, block):
    categories, states = block.instance.n_categories, block.states
    counts = np.zeros((len(states), categories, 4), np.int64)
    counts[:, :, 0] = states.digits[:, :categories]
    if states.stays:
        counts[:, :, 1] = states.digits[:, categories:]
    return np.eye(categories)[policy.recommend(counts)]


def enumerated(block, table, steps):
    """Expected clicks within `steps` steps: all counts of a user one by one, without a cap."""
    instance, states = block.instance, block.states
    probabilities, total = instance.outcome_probabilities, 0.0
    caps = np.repeat(states.caps, instance.n_categories)[: states.digits.shape[1]]
    for m in range(instance.n_types):
        level = {(0,) * states.digits.shape[1]: instance.prior[m]}
        for _ in range(steps):
            after = {}
            for counts, weight in level.items():
                s = int(np.flatnonzero((states.digits == np.minimum(counts, caps)).all(axis=1))[0])
                for a in range(instance.n_categories):
                    total += weight * table[s, a] * instance.click[a, m]
                    for outcome in (0, 1) if states.stays else (0,):
                        key = list(counts)
                        key[states.columns[outcome, a]] += 1
                        mass = weight * table[s, a] * probabilities[a, outcome, m]
                        after[tuple(key)] = after.get(tuple(key), 0.0) + mass
            level = {counts: weight for counts, weight in after.items() if weight > 1e-9}
    return total


@pytest.mark.parametrize("instance", [blog(), hard(), SURE, UNSURE])
def test_the_value_of_a_policy_is_that_of_evaluate(instance):
    block = Block(instance)
    for policy in (dp.Fixed(1), dp.Threshold(first=0, steps=3, then=1)):
        if isinstance(policy, dp.Fixed) or not block.states.stays:
            assert block.value(table_of(policy, block)) == pytest.approx(
                dp.evaluate(instance, policy).value, abs=1e-9
            )


def test_the_best_policy_of_the_examples_needs_no_larger_counts():
    for instance in (blog(), hard()):
        block, plan = Block(instance), dp.plan(instance, gap=1e-9)
        assert block.value(table_of(plan.policy, block)) == pytest.approx(plan.value, abs=1e-7)


@BOTH
def test_the_value_of_a_random_table_is_that_of_an_enumeration(instance):
    block = Block(instance, States.of(instance, caps=(3, 2)))
    table = random_table(block)
    assert block.value(table) == pytest.approx(enumerated(block, table, 60), abs=2e-5)


@BOTH
def test_states_number_counts_as_users_move(instance):
    block = Block(instance)
    states, rng = block.states, np.random.default_rng(5)
    assert len(np.unique(states.digits, axis=0)) == len(states)
    for type_ in range(instance.n_types):
        counts, state = np.zeros((instance.n_categories, 4), np.int64), 0
        while state >= 0:
            assert state == states.index(counts[None])[0]
            a, u = int(rng.integers(instance.n_categories)), rng.random()
            clicked, state = block.step(state, a, type_, u)
            counts[a, 0 if clicked else 1] += 1


@BOTH
def test_simulated_users_have_the_expected_clicks_and_visits(instance):
    block, users = Block(instance), 40_000
    table = random_table(block)
    rows = block.simulate(table, users, np.random.default_rng(1), weight=10)
    assert rows[:, 2].max() == 10
    first = rows[rows[:, 0] == 0]
    assert first[:, 2].sum() == users
    assert first[:, 4].sum() == rows[:, 3].sum()  # the clicks from the first step on are all clicks
    shares = np.bincount(first[:, 1], weights=first[:, 2], minlength=instance.n_categories) / users
    assert np.abs((shares - table[0]) / np.sqrt(table[0] * (1 - table[0]) / users)).max() < 4
    single = block.simulate(table, users, np.random.default_rng(1), weight=1)
    returns = single[single[:, 0] == 0][:, 4]
    z = (returns.mean() - block.value(table)) / (returns.std() / np.sqrt(users))
    assert abs(z) < 4
    for column in (2, 3, 4):  # the same users, in rows of another weight
        assert single[:, column].sum() == rows[:, column].sum()


class Known:
    """A peer with fixed probabilities, which records what it learns."""

    reward, full_weight = "return", 100

    def __init__(self, table):
        self.table, self.rows = table, []

    def probabilities(self, states):
        return self.table[states]

    def learn(self, states, categories, users, rewards, probabilities):
        fresh = probabilities == self.table[states, categories]
        assert (fresh | (probabilities == 0.5)).all()  # rare states keep the uniform policy at first
        self.rows += list(zip(states, categories, users, rewards, strict=True))


@BOTH
def test_a_frozen_policy_is_up_to_date_where_users_go(instance):
    block = Block(instance)
    table = random_table(block)
    policy = FrozenPolicy(block, Known(table))
    assert policy.update() == pytest.approx(block.value(table), rel=2 * (1 - COVERED))
    visits = block.visits(policy.table).sum(axis=1)
    stale = (policy.table != table).any(axis=1)
    assert visits[stale].sum() <= (1 - COVERED) * visits.sum()


@pytest.mark.parametrize("run", [run_blocks, run_online])
def test_regret_is_that_of_the_policy_and_every_user_is_observed(run):
    block = Block(hard())
    table, users = random_table(block), 300
    peer, optimum = Known(table), dp.plan(hard()).value
    regret = run(block, peer, optimum, users, np.random.default_rng(2))
    # The uniform policy stands in for rare states at first, within the tolerance of the test above.
    assert regret[-1] == pytest.approx(users * (optimum - block.value(table)), rel=0.05)
    states, _, numbers, _ = np.array(peer.rows).T
    assert numbers[states == 0].sum() == users


def test_features_are_those_of_the_counts():
    states = States.of(SURE)
    state = int(states.index(np.array([[[2, 0, 0, 0], [0, 0, 0, 0], [5, 0, 0, 0]]]))[0])
    assert vectors(states, "linear")[state].tolist() == [1, 2, 0, 5]
    assert vectors(states, "log")[state] == pytest.approx([1, np.log(3), 0, np.log(6)])
    assert vectors(states, "onehot")[state].sum() == 3  # the constant, two clicks, four clicks or more
    digits = states.digits[state].tolist()
    assert text(digits, "linear") == "c0:2 c2:5"
    assert text(digits, "joint") == "c0_2 c1_0 c2_4 j2_0_4"


@pytest.mark.filterwarnings("ignore")
def test_a_row_of_vowpal_wabbit_weighs_as_much_as_its_steps():
    vowpal = pytest.importorskip("benchmarks.peer_learners.vowpal", exc_type=ImportError)
    states, one, table = States.of(hard()), np.ones(1, np.int64), []
    for rows in ([6], [1] * 6):
        peer = vowpal.Vowpal(states, 2, 1, explore="--epsilon 0.1", features="onehot", options="--noconstant")
        for n in rows:
            peer.learn(0 * one, one, n * one, np.array([0.5]), np.array([0.5]))
        peer.learn(0 * one, 0 * one, one, np.array([0.25]), np.array([0.5]))
        table.append(peer.probabilities([0, 1]))
        peer.close()
    assert table[0] == pytest.approx(table[1])
    assert table[0][0] == pytest.approx([0.05, 0.95])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("weights", "same"), [("equal", True), ("inverse", False)])
def test_vowpal_wabbit_with_equal_weights_does_not_read_propensities(weights, same):
    vowpal = pytest.importorskip("benchmarks.peer_learners.vowpal", exc_type=ImportError)
    states, one, costs = States.of(hard()), np.ones(1, np.int64), []
    for propensity in (0.9, 0.02):
        peer = vowpal.Vowpal(states, 2, 1, explore="--softmax --lambda 1", features="joint", weights=weights)
        for reward in (1.0, 0.0, 0.5):
            peer.learn(0 * one, one, one, np.array([reward]), np.array([propensity]))
        costs.append(peer.probabilities([0]))
        peer.close()
    assert np.allclose(*costs, atol=1e-6) == same


@pytest.mark.filterwarnings("ignore")
def test_a_scaled_row_of_mabwiser_is_a_repeated_row():
    mab = pytest.importorskip("benchmarks.peer_learners.mab", exc_type=ImportError)
    states, results = States.of(hard()), []
    for steps, rewards, n in (([4, 2], [0.25, 1.0], [4, 2]), ([1] * 6, [1.0, 0, 0, 0, 1, 1], [1] * 6)):
        peer = mab.LinUCB(states, 2, 1, 0.5, "log")
        at = np.repeat([3, 7], [1, 1] if len(steps) == 2 else [4, 2])
        peer.learn(at, np.zeros(len(at), np.int64), np.array(n), np.array(rewards), np.ones(len(at)))
        results.append(peer._mab.predict_expectations(vectors(states, "log")[[0, 3, 5]])[1][0])
    assert results[0] == pytest.approx(results[1])


@pytest.mark.filterwarnings("ignore")
@BOTH
def test_the_environment_of_ppo_is_that_of_gymnasium(instance):
    ppo = pytest.importorskip("benchmarks.peer_learners.ppo", exc_type=ImportError)
    from departing.simulation.gym import UserEnv

    block = Block(instance)
    observations, single = vectors(block.states, "log"), UserEnv(instance)
    many = ppo.UsersVecEnv(block, observations, 1, np.random.default_rng(3))
    counts, _ = single.reset(seed=3)
    seen, actions = many.reset(), np.random.default_rng(4)
    for _ in range(300):
        expected = observations[block.states.index(counts[None])]
        assert seen == pytest.approx(expected.astype(np.float32))
        action = int(actions.integers(instance.n_categories))
        counts, reward, over, _, _ = single.step(action)
        seen, rewards, overs, _ = many.step(np.array([action]))
        assert (rewards[0], overs[0]) == (reward, over)
        if over:
            counts, _ = single.reset()
    assert many.arrived > 50
