"""Categories added and retired while a learner runs."""

import numpy as np
import pytest

import departing as dp
from departing.learning.hierarchical import with_hierarchical_prior
from departing.learning.library import learner_class
from departing.learning.registry import LEARNERS
from departing.learning.transition_counts import TransitionCounts
from departing.model.errors import InputError
from departing.model.instance import CLICK, DEPART

NAMES = ["news", "sport", "music"]
THREE = dp.Instance(
    [0.4, 0.6], [[0.6, 0.2], [0.3, 0.5], [0.2, 0.3]], [[0.5, 0.6], [0.4, 0.7], [0.5, 0.5]], categories=NAMES
)
TWO = dp.Instance([0.4, 0.6], [[0.6, 0.2], [0.3, 0.5]], [[0.5, 0.6], [0.4, 0.7]], categories=NAMES[:2])


def trained(users=300, types=2, **options):
    learner = dp.Bayes(types, NAMES[:2], seed=1, growth=1.0, **options)
    dp.simulate(TWO, learner, users, seed=1)
    return learner


def test_adding_before_the_first_user_is_starting_with_the_category():
    added, started = dp.Bayes(2, NAMES[:2], seed=3, growth=1.0), dp.Bayes(2, NAMES, seed=3, growth=1.0)
    assert added.add_category("music") == 2
    first, second = (dp.simulate(THREE, learner, 300, seed=4) for learner in (added, started))
    assert first.regret.tolist() == second.regret.tolist()


@pytest.mark.parametrize("types", [2, "auto"])
def test_a_new_category_is_tried_at_once(types):
    learner = trained(types=types)
    assert learner.add_category("music") == 2
    assert learner.category_names == tuple(NAMES)
    run = dp.simulate(THREE, learner, 2000, seed=2)
    assert run.histories.counts[:, 2].sum() > 0
    assert learner.instance().n_categories == 3


def test_active_users_keep_their_policies():
    learner = trained()
    learner.recommend(["ann", "bob"])
    version = learner.versions(["ann"])[0]
    policy = learner.policy(version)
    learner.add_category("music")
    assert learner.policy(version) is policy
    shown = learner.recommend(["ann", "bob", "eve"])
    learner.observe(["ann", "bob", "eve"], shown, ["click", "click", "click"])
    assert learner.recommend(["ann", "bob"]).max() < 2
    learner.observe(["ann", "bob"], learner.recommend(["ann", "bob"]), ["depart", "depart"])
    assert learner.active_users == 1


def test_retired_categories_are_not_recommended_but_their_outcomes_count():
    learner = trained()
    learner.add_category("music")
    learner.recommend(range(10**6, 10**6 + 20))
    before = learner.transitions.outcomes[:, 0].sum()
    users = list(range(10**6, 10**6 + 20))
    shown = learner.recommend(users)
    assert learner.retire_category("news") == 0
    learner.observe(users, shown, [CLICK] * 20)  # also of users who were shown it before
    assert learner.transitions.outcomes[:, 0].sum() == before + (shown == 0).sum()
    assert 0 not in learner.recommend(users).tolist()
    run = dp.simulate(THREE, learner, 2000, seed=2)
    assert run.histories.counts[:, 0].sum() == 0
    assert learner.add_category("news") == 0  # available again
    assert learner.retired == ()


def test_state_is_saved_exactly(tmp_path):
    learner = trained(types="auto")
    learner.recommend(["ann", "bob"])
    learner.add_category("music")
    learner.retire_category("sport")
    learner.save(tmp_path / "learner.json")
    loaded = dp.load_learner(tmp_path / "learner.json")
    assert loaded.category_names == tuple(NAMES)
    users = ["ann", "bob", *range(10**6, 10**6 + 300)]
    for _ in range(2):
        shown = learner.recommend(users)
        assert loaded.recommend(users).tolist() == shown.tolist()
        for each in (learner, loaded):
            each.observe(users, shown, [CLICK] * len(users))
    assert loaded.instance() == learner.instance()


def test_a_retired_category_keeps_its_reward():
    learner = dp.Bayes(2, ["news", "sport"], reward=[1, 5])
    learner.retire_category("sport")
    with pytest.raises(dp.InputError, match="expected 5 as before"):
        learner.add_category("sport", reward=7)
    assert learner.add_category("sport", reward=5) == 1
    learner.retire_category("sport")
    assert learner.add_category("sport") == 1


def test_the_last_category_cannot_be_retired():
    learner = trained()
    learner.retire_category(0)
    with pytest.raises(InputError, match="last one"):
        learner.retire_category("sport")
    with pytest.raises(InputError, match="retired already"):
        learner.retire_category("news")
    with pytest.raises(InputError, match="no category 'opera'"):
        learner.retire_category("opera")
    with pytest.raises(InputError, match="no category True"):
        learner.retire_category(True)
    with pytest.raises(InputError, match="twice"):
        learner.add_category("sport")


def test_restrictions_are_saved(tmp_path):
    learner = dp.Bayes(2, NAMES, seed=1)
    learner.restrict((0, 2))
    learner.save(tmp_path / "learner.json")
    loaded = dp.load_learner(tmp_path / "learner.json")
    assert loaded.allowed == (0, 2)
    loaded.retire_category("news")
    assert loaded.allowed == (2,)
    loaded.save(tmp_path / "learner.json")
    again = dp.load_learner(tmp_path / "learner.json")
    assert again.allowed == (2,)
    with pytest.raises(InputError, match="'music' is the last one allowed by restrict; allow another before"):
        again.retire_category("music")
    with pytest.raises(InputError, match="retired categories only: news; allow another"):
        again.restrict((0,))
    with pytest.raises(InputError, match="allowed is empty"):
        again.restrict(())
    assert again.allowed == (2,)
    for wrong in (3, -1, "news", True):
        with pytest.raises(InputError, match="expected indices from 0 to 2"):
            again.restrict((wrong,))
    again.restrict(None)
    assert again.allowed == (1, 2)
    before = {name: value for name, value in learner.state().items() if name != "restricted"}
    assert dp.Bayes.from_state(before).allowed is None  # files of earlier versions have no restriction


def test_the_budget_of_exploration_is_in_the_rewards_of_all_categories():
    segments = ["mobile", "desktop"]
    learner = dp.Bayes(2, NAMES[:2], reward=[1, 1], unit="euro", segments=segments)
    learner.add_category("music", reward=100)
    fresh = dp.Bayes(2, NAMES, reward=[1, 1, 100], unit="euro", segments=segments)
    assert learner._budget.available == pytest.approx(fresh._budget.available)
    assert learner._segment_budget.available == pytest.approx(fresh._segment_budget.available)


@pytest.mark.parametrize("kind", [kind for kind in LEARNERS if not hasattr(learner_class(kind), "retired")])
def test_other_learners_refuse(kind):
    learner = learner_class(kind).from_options(dict.fromkeys(learner_class(kind).required, 1), TWO, 100, 0)
    for change in (learner.add_category, learner.retire_category):
        with pytest.raises(InputError, match="fixed catalogue"):
            change("music")


class TestHierarchicalPrior:
    """Its derivatives, and what it learns from the other categories."""

    @pytest.fixture
    def evidence(self):
        learner = trained(5000)
        learner.add_category("music")
        dp.simulate(THREE, learner, 50, seed=2)
        return learner._prepare(learner.evidence(), 2)

    def test_derivatives(self, evidence):
        logits = np.random.default_rng(0).normal(size=(2, evidence.n_parameters))
        _, gradients, information = evidence.derivatives(logits, 2.0)
        for i, step in enumerate(1e-5 * np.eye(evidence.n_parameters)):
            ahead, back = (evidence.derivatives(logits + sign * step, 2.0) for sign in (1, -1))
            np.testing.assert_allclose((ahead[0] - back[0]) / 2e-5, gradients[:, i], rtol=1e-4, atol=1e-2)
            np.testing.assert_allclose((back[1] - ahead[1]) / 2e-5, information[:, i], rtol=1e-3, atol=0.1)

    def test_it_does_not_depend_on_the_order_of_types(self, evidence):
        logits = np.random.default_rng(0).normal(size=(1, evidence.n_parameters))
        responses = logits[:, :-1].reshape(-1, 2)[:, ::-1].reshape(1, -1)
        swapped = np.concatenate([responses, -logits[:, -1:]], axis=1)
        np.testing.assert_allclose(evidence.log_posterior(logits, 2.0), evidence.log_posterior(swapped, 2.0))

    def test_without_data_the_mode_is_the_mean_of_the_other_categories(self):
        learner = trained(20_000)
        learner.add_category("music")
        instance = learner.instance()
        mean = np.exp(np.log(instance.click[:2] / (1 - instance.click[:2])).sum(axis=0) / 3)
        np.testing.assert_allclose(instance.click[2], mean / (1 + mean), atol=1e-3)
        assert (instance.depart[2] < 1).all()

    def test_sure_departure_stays_sure(self):
        learner = dp.Bayes(2, NAMES[:2], seed=1, growth=1.0)
        dp.simulate(TWO.replace(depart=1.0), learner, 300, seed=1)
        learner.add_category("music")
        assert learner.instance().sure_departure

    def test_no_category_added_is_the_likelihood_itself(self):
        evidence = trained().evidence()
        assert with_hierarchical_prior(evidence, (), None) is evidence


def test_transition_counts_with_one_more_category():
    counts = TransitionCounts(2, 10)
    start = np.zeros((1, 2, 4), np.int64)
    counts.add(start, np.array([1]), np.array([[5, 3, 2, 1]]))
    counts.add_category()
    wider = np.zeros((1, 3, 4), np.int64)
    counts.add(wider, np.array([2]), np.array([[0, 0, 4, 0]]))
    rows, users = counts.histogram()
    assert rows.shape[1:] == (3, 4)
    assert users.sum() == 15
    assert users[rows[:, 2, DEPART] == 1].tolist() == [4]
