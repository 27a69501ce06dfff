"""What every learner promises; to hold one more to it, add a line to LEARNERS."""

import json

import numpy as np
import pytest

import departing as dp
from departing.learning.baselines import ULCB, Thompson, Uniform
from departing.learning.bayes import Bayes, ExploreThenCommit, RefittedGreedy
from departing.learning.blocks import BlockLearner, Frozen
from departing.learning.lattice import LatticeUCB
from departing.learning.protocol import Learner
from departing.learning.ucb import UCBHybrid
from departing.model.errors import InputError
from departing.model.instance import CLICK, DEPART, STAY

# name -> a fresh learner for k categories
LEARNERS = {
    "frozen": lambda k, seed: Frozen(dp.Walk([0, 1, 0], then=1), k),
    "uniform": lambda k, seed: Uniform(k, seed),
    "thompson": lambda k, seed: Thompson(k, seed),
    "ulcb": lambda k, seed: ULCB(k, seed=seed),
    "kl-ulcb": lambda k, seed: ULCB(k, kl=True, seed=seed),
    "bayes": lambda k, seed: Bayes(2, k, seed, growth=1.0),
    "bayes, thompson": lambda k, seed: Bayes(2, k, seed, explore="thompson", growth=1.0),
    "bayes, none": lambda k, seed: Bayes(1, k, seed, explore="none", growth=1.0),
    "greedy": lambda k, seed: RefittedGreedy(2, k, seed, growth=1.0),
    "explore-then-commit": lambda k, seed: ExploreThenCommit(2, k, 500, seed, explore_users=40),
    "lattice": lambda k, seed: LatticeUCB(k, 500, seed),
    "lattice, proved": lambda k, seed: LatticeUCB(k, 500, seed, scale="proved"),
    "ucb-hybrid": lambda k, seed: UCBHybrid.fixed(k, users=500, epsilon=0.4),
    "ucb-hybrid, estimated": lambda k, seed: UCBHybrid.fixed(k, users=500, scale="estimated"),
}
K = 3
SMALL = dp.Instance([0.3, 0.7], [[0.6, 0.2], [0.4, 0.5], [0.1, 0.7]], depart=[[0.5, 0.9], [0.8, 0.4], [1.0, 0.6]])
ENDS = {0: 0.4, 1: 0.25, 2: 0.3, 3: 0.05}  # chances of the outcomes of made-up users


def make(name, seed=7):
    return LEARNERS[name](K, seed)


def story(seed, length=120, first=0, names=int):
    """Things that happen to a learner, whatever it recommends: users who ask and outcomes that are told.

    Users interleave; some ask twice, some answers come late, some never.
    """
    rng = np.random.default_rng(seed)
    events, idle, waiting, silent, come = [], [], [], [], first
    for _ in range(length):
        if rng.random() < 0.5 or not waiting:
            new = list(range(come, come + rng.integers(1, 4)))
            come += len(new)
            again = [user for user in idle if rng.random() < 0.5]
            idle = [user for user in idle if user not in again]
            twice = waiting[:1] if rng.random() < 0.3 else []
            events.append(("ask", [names(user) for user in [*again, *new, *twice]]))
            for user in again + new:
                (silent if rng.random() < 0.05 else waiting).append(user)
        else:
            told = [user for user in waiting if rng.random() < 0.6]
            waiting = [user for user in waiting if user not in told]
            outcomes = rng.choice(4, len(told), p=list(ENDS.values())).tolist()
            events.append(("tell", [names(user) for user in told], outcomes))
            idle += [user for user, outcome in zip(told, outcomes, strict=True) if outcome < DEPART]
    return events


class Teller:
    """Tells a story to a learner, and keeps what it recommended."""

    def __init__(self, learner):
        self.learner, self.shown, self.answers = learner, {}, []

    def tell(self, events):
        for event in events:
            if event[0] == "ask":
                answer = self.learner.recommend(event[1]).tolist()
                self.shown.update(zip(event[1], answer, strict=True))
                self.answers.append(answer)
            else:
                self.learner.observe(event[1], [self.shown[user] for user in event[1]], event[2])
        return self.answers


@pytest.fixture
def snapshot(tmp_path):
    """All that a learner knows, as it saves it; those who are gone are a set."""

    def take(learner):
        learner.save(tmp_path / "snapshot.json")
        document = json.loads((tmp_path / "snapshot.json").read_text())
        document["state"]["fields"]["gone"].sort(key=str)
        return document

    return take


@pytest.fixture(params=LEARNERS)
def name(request):
    return request.param


def test_it_is_a_learner(name):
    assert isinstance(make(name), Learner)


@pytest.mark.parametrize("names", [int, "user {}".format], ids=["numbers", "strings"])
def test_recommendations_are_categories(name, names):
    for answer in Teller(make(name)).tell(story(1, names=names)):
        assert all(0 <= category < K for category in answer)


@pytest.mark.parametrize("users", [[], np.array([], int), [5], np.array([5, 6]), ["ann", 5], range(3)])
def test_users_come_in_any_sequence(name, users):
    answer = make(name).recommend(users)
    assert isinstance(answer, np.ndarray)
    assert answer.shape == (len(users),)
    assert answer.dtype.kind == "i"


def test_asked_twice_it_says_the_same(name):
    learner = make(name)
    Teller(learner).tell(story(2))
    first = learner.recommend(["ann", "bob", "ann"]).tolist()
    assert first[0] == first[2]
    assert learner.recommend(["bob", "ann"]).tolist() == [first[1], first[0]]


def test_being_told_nothing_changes_nothing(name, snapshot):
    learner = make(name)
    Teller(learner).tell(story(2))
    before = snapshot(learner)
    assert learner.recommend([]).tolist() == []
    learner.observe([], [], [])
    assert snapshot(learner) == before


class TestMistakes:
    """Each is one sentence, and nothing is learned."""

    @pytest.fixture
    def prepared(self, name, snapshot):
        """A learner with users who wait, who were told of, and who have departed."""
        learner = make(name)
        Teller(learner).tell(story(3, length=40, first=100))
        shown = dict(zip("wtdx", learner.recommend(list("wtdx")).tolist(), strict=True))
        learner.observe(["t", "d"], [shown["t"], shown["d"]], [CLICK, DEPART])
        before = snapshot(learner)
        yield learner, shown
        assert snapshot(learner) == before

    def wrong(self, call):
        with pytest.raises(InputError) as error:
            call()
        sentence = str(error.value)
        assert "\n" not in sentence
        assert sentence.endswith(".")

    def test_a_user_who_is_unknown(self, prepared):
        learner, shown = prepared
        self.wrong(lambda: learner.observe(["w", "nobody"], [shown["w"], 0], [CLICK, CLICK]))

    def test_feedback_twice(self, prepared):
        learner, shown = prepared
        self.wrong(lambda: learner.observe(["w", "t"], [shown["w"], shown["t"]], [CLICK, STAY]))

    def test_after_departure(self, prepared):
        learner, shown = prepared
        self.wrong(lambda: learner.observe(["w", "d"], [shown["w"], shown["d"]], [CLICK, STAY]))
        self.wrong(lambda: learner.recommend(["w", "new", "d"]))

    def test_a_category_that_was_not_recommended(self, prepared):
        learner, shown = prepared
        self.wrong(lambda: learner.observe(["w", "x"], [shown["w"], (shown["x"] + 1) % K], [CLICK, STAY]))
        self.wrong(lambda: learner.observe(["w"], [K], [STAY]))
        self.wrong(lambda: learner.observe(["w"], [-1], [STAY]))

    @pytest.mark.parametrize("outcome", [-1, 4, 0.5, "click", None, True])
    def test_an_outcome_out_of_range(self, prepared, outcome):
        learner, shown = prepared
        self.wrong(lambda: learner.observe(["w"], [shown["w"]], [outcome]))

    @pytest.mark.parametrize("outcomes", [[], [0, 0], [[0]], 0, [[0], [0, 1]]])
    def test_wrong_shapes(self, prepared, outcomes):
        learner, shown = prepared
        self.wrong(lambda: learner.observe(["w"], [shown["w"]], outcomes))
        self.wrong(lambda: learner.observe(["w"], outcomes if outcomes != [] else [], [0]))

    def test_a_user_twice_at_once(self, prepared):
        learner, shown = prepared
        self.wrong(lambda: learner.observe(["w", "w"], [shown["w"]] * 2, [CLICK, CLICK]))

    @pytest.mark.parametrize("users", ["w", 3, None, [1.5], [None], [True], [("a",)]])
    def test_users_who_are_not_named(self, prepared, users):
        learner, _ = prepared
        self.wrong(lambda: learner.recommend(users))
        self.wrong(lambda: learner.observe(users, [0], [0]))

    def test_an_instance_of_other_categories(self, prepared):
        learner, _ = prepared
        self.wrong(lambda: dp.simulate(dp.Instance([1.0], [[0.5], [0.4]]), learner, users=5))


def test_same_seed_same_answers(name, snapshot):
    one, two = make(name), make(name)
    assert Teller(one).tell(story(4)) == Teller(two).tell(story(4))
    assert snapshot(one) == snapshot(two)


def test_nothing_is_learned_from_the_future(name):
    past = story(5, length=60)
    other = story(6, length=60, first=10**6)
    later = story(5, length=120)
    assert later[:60] == past
    known = Teller(make(name)).tell(past)
    for future in (later, past + other):
        assert Teller(make(name)).tell(future)[: len(known)] == known


@pytest.mark.parametrize("moment", [0, 1, 37, 80])
def test_a_saved_learner_goes_on_alike(name, moment, tmp_path, snapshot):
    events = story(8, names=lambda user: user if user % 2 else f"user {user}")
    teller = Teller(make(name))
    teller.tell(events[:moment])
    teller.learner.save(tmp_path / "learner.json")
    other = Teller(type(teller.learner).load(tmp_path / "learner.json"))
    other.shown = dict(teller.shown)
    assert snapshot(other.learner) == snapshot(teller.learner)
    teller.answers = []
    assert other.tell(events[moment:]) == teller.tell(events[moment:])
    assert snapshot(other.learner) == snapshot(teller.learner)


def test_a_state_goes_on_alike(name):
    events = story(9)
    teller = Teller(make(name))
    teller.tell(events[:50])
    state = teller.learner.state()
    shown, teller.answers = dict(teller.shown), []
    expected = teller.tell(events[50:])
    for _ in range(2):  # a state is not changed by the learners that go on from it
        other = Teller(type(teller.learner).from_state(state))
        other.shown = dict(shown)
        assert other.tell(events[50:]) == expected


@pytest.mark.parametrize("options", [{}, {"engine": "step"}, {"open_users": 7}, {"delay": 5}])
def test_it_runs(name, options):
    learner = make(name)
    run = dp.simulate(SMALL, learner, users=200, seed=3, **options)
    assert run.users == run.checkpoints[-1] == run.histories.users == 200
    assert run.engine == ("step" if options else "blocks" if isinstance(learner, BlockLearner) else "arms")
    assert np.isfinite(run.regret).all()
    assert (np.diff(run.regret, prepend=0) > -1e-6).all()
    assert sum(piece.users for piece in run.regret_curve.policy_segments) == 200
    assert run.realised_regret[-1] == pytest.approx(200 * run.regret_curve.optimum.value - run.clicks)


def test_a_run_is_the_same_for_a_seed(name, snapshot):
    def play():
        learner = make(name)
        return dp.simulate(SMALL, learner, users=300, seed=4), snapshot(learner)

    (one, known), (two, again) = play(), play()
    assert known == again
    assert one.regret.tolist() == two.regret.tolist()
    assert one.regret_curve.clicks.tolist() == two.regret_curve.clicks.tolist()


@pytest.mark.parametrize("options", [{}, {"engine": "step"}, {"open_users": 4}])
def test_a_second_run_goes_on(name, options):
    learner = make(name)
    for seed in range(2):
        assert dp.simulate(SMALL, learner, users=50, seed=seed, **options).users == 50


def test_engines_agree_in_distribution(name):
    clicks = {"auto": [], "step": []}
    runs, bound = (8, 5.5) if name.startswith("bayes") else (25, 4.5)  # few have heavier tails
    for engine, seen in clicks.items():
        for seed in range(runs):
            seen.append(dp.simulate(SMALL, make(name, seed), users=60, seed=seed, engine=engine).clicks)
    one, other = np.array(clicks["auto"], float), np.array(clicks["step"], float)
    assert abs(one.mean() - other.mean()) < bound * np.sqrt((one.var(ddof=1) + other.var(ddof=1)) / runs)
