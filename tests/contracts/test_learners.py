"""Promises of every learner; learners and their options are discovered from the registry."""

import json
from importlib import import_module
from inspect import isabstract, signature
from itertools import count
from pkgutil import iter_modules

import numpy as np
import pytest

import departing as dp
import departing.learning
from departing.learning.base import LearnerBase
from departing.learning.blocks import BlockLearner
from departing.learning.library import learner_class, short_form
from departing.learning.model_learner import ModelLearner
from departing.learning.protocol import AssignsPolicies, Learner, SupportsArms, SupportsBlocks
from departing.learning.registry import LEARNERS
from departing.model.errors import InputError
from departing.model.instance import CLICK, DEPART, STAY

THREE = dp.Instance([0.3, 0.7], [[0.6, 0.2], [0.4, 0.5], [0.1, 0.7]], depart=[[0.5, 0.9], [0.8, 0.4], [1.0, 0.6]])
TWO = dp.Instance([0.3, 0.7], [[0.6, 0.2], [0.4, 0.5]], depart=[[0.5, 0.9], [0.8, 0.4]])
USERS = 500
OUTCOME_PROBABILITIES = {0: 0.4, 1: 0.25, 2: 0.3, 3: 0.05}  # of made-up users


def specs(kind):
    """The default learner of a kind, and one with each other choice of each option."""
    learner = learner_class(kind)
    default = {"kind": kind} | dict.fromkeys(learner.required, 1)
    choices = [
        (name, choice)
        for name, option in learner.options.items()
        if isinstance(option, tuple)
        for choice in option[1:]
    ]
    return [default, *(default | {name: choice} for name, choice in choices)]


def create(spec, instance, seed):
    learner, options = learner_class(spec["kind"]), {name: spec[name] for name in spec if name != "kind"}
    if issubclass(learner, ModelLearner) and "growth" in signature(learner).parameters:
        options["growth"] = 1.0  # few blocks, since each takes inference and plans
    return learner.from_options(options, instance, USERS, seed)


def instance_for(spec):
    """An instance of three categories, or of two where the learner requires that."""
    try:
        create(spec, THREE, 0)
    except InputError:
        return TWO
    return THREE


CASES = {short_form(spec): (spec, instance_for(spec)) for kind in LEARNERS for spec in specs(kind)}
# Learners that know segments and rewards of the instance.
SEGMENTS = dp.Segments(["mobile", "desktop"], [0.4, 0.6], [[0.8, 0.2], [0.1, 0.9]])
EXTENDED = dp.Instance(None, TWO.click, TWO.depart, segments=SEGMENTS, reward=[1, 3], unit="euro")
CASES |= {f"{kind}, extended": ({"kind": kind}, EXTENDED) for kind in ("bayes", "explore-then-commit", "thompson")}
CASES |= {"ulcb, segments": ({"kind": "ulcb"}, EXTENDED.replace(reward=None, unit="clicks"))}
CASES |= {"bayes, forgetting": ({"kind": "bayes", "half_life": "auto", "change_detection": True}, TWO)}


def make(name, seed=7):
    return create(*CASES[name], seed)


def test_every_concrete_learner_is_registered_under_its_kind():
    defined = {
        value
        for module in iter_modules(departing.learning.__path__, "departing.learning.")
        for value in vars(import_module(module.name)).values()
        if isinstance(value, type) and issubclass(value, LearnerBase) and not isabstract(value)
    }
    assert defined == {learner_class(kind) for kind in LEARNERS}
    assert all(learner_class(kind).kind == kind for kind in LEARNERS)


@pytest.mark.parametrize("name", CASES)
def test_the_clock_does_not_change_a_run(name, monkeypatch):
    """Neither the policies of a learner nor the optimum that its regret refers to."""

    def regret():
        run = dp.simulate(CASES[name][1], make(name), users=USERS, seed=1)
        return run.clicks, run.regret.tolist(), run.regret_curve.optimum.upper

    expected, now = regret(), count(step=10**6)
    monkeypatch.setattr("departing.planning.problem.perf_counter", lambda: float(next(now)))
    assert regret() == expected


def events_of(seed, length=120, first=0, names=int):
    """Events that do not depend on what is recommended: recommend requests, and outcomes.

    Users interleave; some request twice, some outcomes are delayed, some never arrive.
    """
    rng = np.random.default_rng(seed)
    events, idle, waiting, silent, arrived = [], [], [], [], first
    for _ in range(length):
        if rng.random() < 0.5 or not waiting:
            new = list(range(arrived, arrived + rng.integers(1, 4)))
            arrived += len(new)
            again = [user for user in idle if rng.random() < 0.5]
            idle = [user for user in idle if user not in again]
            twice = waiting[:1] if rng.random() < 0.3 else []
            events.append(("recommend", [names(user) for user in [*again, *new, *twice]]))
            for user in again + new:
                (silent if rng.random() < 0.05 else waiting).append(user)
        else:
            observed = [user for user in waiting if rng.random() < 0.6]
            waiting = [user for user in waiting if user not in observed]
            outcomes = rng.choice(4, len(observed), p=list(OUTCOME_PROBABILITIES.values())).tolist()
            events.append(("observe", [names(user) for user in observed], outcomes))
            idle += [user for user, outcome in zip(observed, outcomes, strict=True) if outcome < DEPART]
    return events


class Replay:
    """Replays events to a learner, and keeps its recommendations."""

    def __init__(self, learner):
        self.learner, self.shown, self.answers = learner, {}, []

    def run(self, events):
        for event in events:
            if event[0] == "recommend":
                answer = self.learner.recommend(event[1]).tolist()
                self.shown.update(zip(event[1], answer, strict=True))
                self.answers.append(answer)
            else:
                self.learner.observe(event[1], [self.shown[user] for user in event[1]], event[2])
        return self.answers


@pytest.fixture
def snapshot(tmp_path):
    """The state of a learner, as it is saved."""

    def take(learner):
        learner.save(tmp_path / "snapshot.json")
        return json.loads((tmp_path / "snapshot.json").read_text())

    return take


@pytest.fixture(params=CASES)
def name(request):
    return request.param


def test_it_satisfies_the_protocols(name):
    learner = make(name)
    assert isinstance(learner, Learner)
    assert isinstance(learner, AssignsPolicies)
    assert (
        isinstance(learner, SupportsBlocks) == isinstance(learner, BlockLearner) != isinstance(learner, SupportsArms)
    )


@pytest.mark.parametrize("names", [int, "user {}".format], ids=["numbers", "strings"])
def test_recommendations_are_categories(name, names):
    learner = make(name)
    for answer in Replay(learner).run(events_of(1, names=names)):
        assert all(0 <= category < learner.n_categories for category in answer)


@pytest.mark.parametrize("users", [[], np.array([], int), [5], np.array([5, 6]), ["ann", 5], range(3)])
def test_users_are_any_sequence_of_ids(name, users):
    answer = make(name).recommend(users)
    assert isinstance(answer, np.ndarray)
    assert answer.shape == (len(users),)
    assert answer.dtype.kind == "i"


def test_segments_of_users_may_be_given_to_every_learner(name):
    learner = make(name)
    shown = learner.recommend(["ann", "bob", "eve"], segments=["mobile", None, "tablet"])
    again = learner.recommend(["eve", "ann"], segments=["desktop", "desktop"])  # ignored for known users
    assert again.tolist() == [shown[2], shown[0]]
    for wrong in (["mobile"], "mobile"):
        with pytest.raises(InputError, match="segments is"):
            learner.recommend(["ann", "bob"], segments=wrong)


def test_finished_users_are_forgotten(name):
    learner = make(name)
    shown = learner.recommend(["ann", "bob"])
    with pytest.raises(InputError, match="open recommendation"):
        learner.finish(["ann"])
    learner.observe(["ann", "bob"], shown, [CLICK, STAY])
    learner.finish(["ann", "bob"])
    assert learner.active_users == 0
    with pytest.raises(InputError, match="has departed"):
        learner.recommend(["ann"])


def test_a_second_request_gets_the_same_category(name):
    learner = make(name)
    Replay(learner).run(events_of(2))
    first = learner.recommend(["ann", "bob", "ann"]).tolist()
    assert first[0] == first[2]
    assert learner.recommend(["bob", "ann"]).tolist() == [first[1], first[0]]


def test_empty_calls_change_nothing(name, snapshot):
    learner = make(name)
    Replay(learner).run(events_of(2))
    before = snapshot(learner)
    assert learner.recommend([]).tolist() == []
    learner.observe([], [], [])
    assert snapshot(learner) == before


class TestInvalidInput:
    """Each error is one sentence, and nothing is learned."""

    @pytest.fixture
    def prepared(self, name, snapshot):
        """A learner with users w and x without an outcome, t with one, and d who departed."""
        learner = make(name)
        Replay(learner).run(events_of(3, length=40, first=100))
        shown = dict(zip("wtdx", learner.recommend(list("wtdx")).tolist(), strict=True))
        learner.observe(["t", "d"], [shown["t"], shown["d"]], [CLICK, DEPART])
        before = snapshot(learner)
        yield learner, shown
        assert snapshot(learner) == before

    def rejects(self, call):
        with pytest.raises(InputError) as error:
            call()
        sentence = str(error.value)
        assert "\n" not in sentence
        assert sentence.endswith(".")

    def test_an_unknown_user(self, prepared):
        learner, shown = prepared
        self.rejects(lambda: learner.observe(["w", "nobody"], [shown["w"], 0], [CLICK, CLICK]))

    def test_a_second_outcome(self, prepared):
        learner, shown = prepared
        self.rejects(lambda: learner.observe(["w", "t"], [shown["w"], shown["t"]], [CLICK, STAY]))

    def test_anything_after_departure(self, prepared):
        learner, shown = prepared
        self.rejects(lambda: learner.observe(["w", "d"], [shown["w"], shown["d"]], [CLICK, STAY]))
        self.rejects(lambda: learner.recommend(["w", "new", "d"]))

    def test_a_category_that_was_not_recommended(self, prepared):
        learner, shown = prepared
        self.rejects(
            lambda: learner.observe(["w", "x"], [shown["w"], (shown["x"] + 1) % learner.n_categories], [CLICK, STAY])
        )
        self.rejects(lambda: learner.observe(["w"], [learner.n_categories], [STAY]))
        self.rejects(lambda: learner.observe(["w"], [-1], [STAY]))

    @pytest.mark.parametrize("outcome", [-1, 4, 0.5, "wow!", None, True])
    def test_an_invalid_outcome(self, prepared, outcome):
        learner, shown = prepared
        self.rejects(lambda: learner.observe(["w"], [shown["w"]], [outcome]))

    @pytest.mark.parametrize("outcomes", [[], [0, 0], [[0]], 0, [[0], [0, 1]]])
    def test_wrong_shapes(self, prepared, outcomes):
        learner, shown = prepared
        self.rejects(lambda: learner.observe(["w"], [shown["w"]], outcomes))
        self.rejects(lambda: learner.observe(["w"], outcomes if outcomes != [] else [], [0]))

    def test_a_user_twice_in_one_call(self, prepared):
        learner, shown = prepared
        self.rejects(lambda: learner.observe(["w", "w"], [shown["w"]] * 2, [CLICK, CLICK]))

    @pytest.mark.parametrize("users", ["w", 3, None, [1.5], [None], [True], [("a",)]])
    def test_ids_that_are_neither_integers_nor_strings(self, prepared, users):
        learner, _ = prepared
        self.rejects(lambda: learner.recommend(users))
        self.rejects(lambda: learner.observe(users, [0], [0]))

    def test_an_instance_with_another_number_of_categories(self, prepared):
        learner, _ = prepared
        self.rejects(lambda: dp.simulate(dp.Instance([1.0], [[0.5]]), learner, users=5))


def test_the_same_seed_gives_the_same_recommendations(name, snapshot):
    one, two = make(name), make(name)
    assert Replay(one).run(events_of(4)) == Replay(two).run(events_of(4))
    assert snapshot(one) == snapshot(two)


def test_recommendations_do_not_depend_on_the_future(name):
    past = events_of(5, length=60)
    other = events_of(6, length=60, first=10**6)
    later = events_of(5, length=120)
    assert later[:60] == past
    known = Replay(make(name)).run(past)
    for future in (later, past + other):
        assert Replay(make(name)).run(future)[: len(known)] == known


@pytest.mark.parametrize("moment", [0, 1, 37, 80])
def test_a_loaded_learner_continues_exactly(name, moment, tmp_path, snapshot):
    events = events_of(8, names=lambda user: user if user % 2 else f"user {user}")
    replay = Replay(make(name))
    replay.run(events[:moment])
    replay.learner.save(tmp_path / "learner.json")
    other = Replay(type(replay.learner).load(tmp_path / "learner.json"))
    other.shown = dict(replay.shown)
    assert snapshot(other.learner) == snapshot(replay.learner)
    replay.answers = []
    assert other.run(events[moment:]) == replay.run(events[moment:])
    assert snapshot(other.learner) == snapshot(replay.learner)


def test_a_state_is_restored_exactly_and_more_than_once(name):
    events = events_of(9)
    replay = Replay(make(name))
    replay.run(events[:50])
    state = replay.learner.state()
    shown, replay.answers = dict(replay.shown), []
    expected = replay.run(events[50:])
    for _ in range(2):  # restoring does not change the state
        other = Replay(type(replay.learner).from_state(state))
        other.shown = dict(shown)
        assert other.run(events[50:]) == expected


@pytest.mark.parametrize("options", [{}, {"engine": "step"}, {"open_users": 7}, {"delay": 5}])
def test_it_runs_in_every_engine(name, options):
    learner, instance = make(name), CASES[name][1]
    run = dp.simulate(instance, learner, users=200, seed=3, **options)
    assert run.users == run.checkpoints[-1] == run.histories.users == 200
    assert run.engine == ("step" if options else "blocks" if isinstance(learner, BlockLearner) else "arms")
    assert np.isfinite(run.regret).all()
    assert (np.diff(run.regret, prepend=0) > -1e-6).all()
    assert sum(piece.users for piece in run.regret_curve.policy_segments) == 200
    assert run.realised_regret[-1] == pytest.approx(200 * run.regret_curve.optimum.value - run.reward)
    if instance.segments is not None:
        assert run.histories.segments == instance.segments.names


def test_a_run_is_reproducible(name, snapshot):
    def play():
        learner = make(name)
        return dp.simulate(CASES[name][1], learner, users=300, seed=4), snapshot(learner)

    (one, known), (two, again) = play(), play()
    assert known == again
    assert one.regret.tolist() == two.regret.tolist()
    assert one.regret_curve.clicks.tolist() == two.regret_curve.clicks.tolist()


def test_users_in_batches_who_change(name):
    """All users of a batch arrive before any outcome of them is observed."""
    learner, rng, batch = make(name), np.random.default_rng(1), 70
    for first in range(0, 1000, batch):
        users = list(range(first, first + batch))
        for _ in range(2):
            shown = learner.recommend(users)
            clicked = rng.random(batch) < (0.9 if first < 500 else 0.05)
            learner.observe(users, shown, np.where(clicked, CLICK, STAY))
        learner.observe(users, learner.recommend(users), [DEPART] * batch)
    assert learner.active_users == 0


@pytest.mark.parametrize("options", [{}, {"engine": "step"}, {"open_users": 4}])
def test_a_second_run_continues(name, options):
    learner = make(name)
    for seed in range(2):
        assert dp.simulate(CASES[name][1], learner, users=50, seed=seed, **options).users == 50


@pytest.mark.slow
def test_engines_agree_in_distribution(name):
    clicks = {"auto": [], "step": []}
    runs, bound = (8, 5.5) if name.startswith("bayes") else (25, 4.5)  # fewer runs, heavier tails
    for engine, seen in clicks.items():
        for seed in range(runs):
            seen.append(dp.simulate(CASES[name][1], make(name, seed), users=60, seed=seed, engine=engine).clicks)
    one, other = np.array(clicks["auto"], float), np.array(clicks["step"], float)
    assert abs(one.mean() - other.mean()) < bound * np.sqrt((one.var(ddof=1) + other.var(ddof=1)) / runs)


@pytest.mark.parametrize("engine", ["step", "auto"])
def test_departed_users_of_a_simulation_take_no_memory(name, engine):
    learner = make(name)
    dp.simulate(CASES[name][1], learner, users=60, engine=engine)
    assert not learner._departed
    assert learner.next_user_id == (60 if engine == "step" else 0)


def test_the_record_of_departed_users_is_bounded(name, monkeypatch, tmp_path):
    monkeypatch.setattr("departing.learning.base.MAX_DEPARTED", 5)
    learner = make(name)
    for user in range(20):
        shown = learner.recommend([f"user {user}", 2 * user])
        learner.observe([f"user {user}", 2 * user], shown, [DEPART, DEPART])
    assert len(learner._departed) == 5
    assert learner.next_user_id == 39
    assert len(learner._slots) == 0
    assert len(learner._counts) <= 4
    with pytest.raises(InputError, match="'user 19' has departed"):
        learner.recommend(["user 19"])
    with pytest.raises(InputError, match="'user 0' is unknown"):
        learner.observe(["user 0"], [0], [CLICK])
    assert learner.recommend(["user 0"]).shape == (1,)  # taken for a new user
    learner.save(tmp_path / "learner.json")
    assert list(type(learner).load(tmp_path / "learner.json")._departed) == list(learner._departed)


def test_a_state_with_a_set_of_departed_users_is_restored(name):
    """Files of earlier versions have all departed users, in no order."""
    learner = make(name)
    Replay(learner).run(events_of(9, length=40))
    state = learner.state()
    before = {key: value for key, value in state.items() if key != "next_user_id"}
    restored = type(learner).from_state(before | {"departed": {*state["departed"], "ann", 10**6}})
    assert set(restored._departed) == {*state["departed"], "ann", 10**6}
    assert restored.next_user_id == 10**6 + 1


def test_categories_and_outcomes_are_accepted_by_name(name):
    if "categories" not in signature(type(make(name))).parameters:
        pytest.skip("the categories come from the instance")
    arguments = make(name)._arguments()
    names = ["news", "sport", "music"][: make(name).n_categories]
    by_name, by_index = (type(make(name))(**arguments | {"categories": each}) for each in (names, len(names)))
    assert by_name.category_names == tuple(names)
    for step, outcome in enumerate(["click", "stay", "depart", "click_and_depart"]):
        users = [f"user {step}"]
        shown = by_name.recommend(users)
        assert shown.tolist() == by_index.recommend(users).tolist()
        by_name.observe(users, [names[int(shown[0])]], [outcome])
        by_index.observe(users, shown, [step])
    assert by_name.state()["counts"].tolist() == by_index.state()["counts"].tolist()
    message = r"categories contains 'opera'; expected integers .* or names \('news', 'sport"
    with pytest.raises(InputError, match=message):
        by_name.recommend(["new"])
        by_name.observe(["new"], ["opera"], [0])
