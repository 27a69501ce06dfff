"""Categories and outcomes by name: recommendations, beliefs and feedback without counts made by hand."""

import numpy as np
import pytest

import departing as dp
from departing.model.events import OUTCOME_NAMES, count_events, find_outcome

SITE = dp.Instance([0.6, 0.4], [[0.8, 0.3], [0.3, 0.7]], 0.4, categories=["news", "music"])


def random_events(rng: np.random.Generator, n: int) -> list[tuple[str, str]]:
    return [(SITE.categories[a], ("click", "no-click")[o]) for a, o in rng.integers(0, 2, (n, 2))]


@pytest.mark.parametrize("policy", [dp.Greedy(SITE), dp.plan(SITE).policy, dp.Walk(["news", "music"], then="news")])
def test_events_and_counts_give_the_same_category(policy):
    rng = np.random.default_rng(3)
    for n in range(12):
        events = random_events(rng, n)
        counts = np.zeros((2, 4), np.int64)
        for name, outcome in events:
            counts[SITE.categories.index(name), 0 if outcome == "click" else 1] += 1
        resolved = policy.resolve(SITE.categories)
        name = policy.recommend(events=events)
        assert name == SITE.categories[int(resolved.recommend(counts))]
        assert policy.recommend(events=events, allowed=["music"]) == "music"
        assert np.array_equal(dp.belief(SITE, events=events), dp.belief(SITE, counts))
        assert np.array_equal(dp.predict(SITE, events=events), dp.predict(SITE, counts))


def test_policies_that_know_names_return_names(tmp_path):
    plan = dp.plan(SITE)
    plan.save(tmp_path / "policy.json")
    assert dp.load_policy(tmp_path / "policy.json").recommend(events=[]) == plan.policy.recommend(events=[])
    assert dp.Fixed("music").recommend(events=[("news", True)]) == "music"
    assert dp.Threshold("news", 1, "music").recommend(events=[]) == "news"
    assert (
        dp.Table(np.zeros((1, 2, 4), int), [1], dp.Greedy(SITE)).resolve(SITE.categories).recommend(events=[])
        == "music"
    )


def test_outcomes_have_names():
    assert [find_outcome(name) for name in OUTCOME_NAMES] == [0, 1, 2, 3]
    assert [find_outcome(name) for name in ("No-click", "no click", "no_click", "departed", np.True_)] == [
        1,
        1,
        1,
        2,
        0,
    ]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([("news", "click"), ("music", "departed")], "the user departed"),
        ([("news", "clik")], "did you mean 'click'"),
        ([("musik", "click")], "did you mean 'music'"),
        ([("news", 1)], "outcome is 1; expected one of 'click'"),
        ("news", "events is 'news'; expected .category, outcome. pairs"),
        (["news"], "events contain 'news'"),
        (None, "Give either counts or events"),
    ],
)
def test_bad_events_are_explained(events, message):
    with pytest.raises(dp.InputError, match=message):
        dp.Greedy(SITE).recommend(events=events)
    with pytest.raises(dp.InputError, match=message):
        dp.belief(SITE, events=events)


def test_counts_and_events_exclude_each_other():
    with pytest.raises(dp.InputError, match=r"counts contain text; expected integers. Pass names"):
        dp.Greedy(SITE).recommend([("news", "click")])
    with pytest.raises(dp.InputError, match="Give either counts or events"):
        dp.Greedy(SITE).recommend(np.zeros((2, 4), int), events=[])
    with pytest.raises(dp.InputError, match="does not know the names"):
        dp.Fixed(1).recommend(events=[])


def test_learners_accept_names():
    by_name, by_code = (dp.Bayes(types=1, categories=["news", "music"], seed=2) for _ in range(2))
    names = ["no-click", "click", "stay", "departed"]
    for name in names:
        for learner, outcome in ((by_name, name), (by_code, find_outcome(name))):
            (category,) = learner.recommend(["ann"])
            learner.observe(["ann"], [learner.category_names[category]], [outcome])
    assert by_name.active_users == by_code.active_users == 0
    with pytest.raises(dp.InputError, match="outcome is 'clack'; did you mean 'click'"):
        by_name.recommend(["bob"])
        by_name.observe(["bob"], ["news"], ["clack"])


def test_learners_accept_short_forms_of_policies():
    names = ["news", "music"]
    frozen = dp.Frozen("fixed:music", categories=names)
    assert frozen.category_names[frozen.recommend(["ann"])[0]] == "music"
    assert dp.UCBHybrid(["fixed:news", dp.plan(SITE)], users=10, epsilon=0.1, categories=names).policies[
        0
    ] == dp.Fixed(0)


def test_bayes_needs_no_more_than_the_names():
    assert dp.Bayes(categories=["news", "music"]).types == "auto"
    with pytest.raises(dp.InputError, match=r"categories is .*; expected nonempty names"):
        dp.Bayes()


def test_counts_of_events_ignore_their_order():
    events = random_events(np.random.default_rng(1), 20)
    assert np.array_equal(count_events(events, SITE.categories), count_events(events[::-1], SITE.categories))
