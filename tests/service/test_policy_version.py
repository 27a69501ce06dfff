"""Policy versions: the memory of their choices."""

import random

import departing as dp
from departing.service import policy_version
from departing.service.policy_version import PolicyVersion


def test_the_choices_of_many_versions_take_bounded_memory_and_stay_the_same(monkeypatch):
    monkeypatch.setattr(policy_version, "MAX_MEMO_BYTES", 50_000)
    rng, memo = random.Random(1), policy_version._memo
    for number in range(40):
        version = PolicyVersion(number, 0.0, dp.Fixed(number % 3), 3, {})
        for _ in range(100):
            counts = [rng.randrange(9) for _ in range(12)]
            first, again = (version.choose(counts, [0, 1, 2], 0.0, rng) for _ in range(2))
            assert first == again == (number % 3, 1.0, number % 3)
    assert 200 < len(memo) + len(memo.old) < 600


def test_where_a_schedule_is_not_allowed_the_best_of_the_others_is_shown():
    site = dp.Instance([0.5, 0.5], [[0.2, 0.2], [0.9, 0.9], [0.6, 0.1], [0.3, 0.5]], 0.5)
    rng, new, liked = random.Random(1), [0] * 16, [0] * 16
    liked[4 * 2] = 5  # clicks on category 2
    planned = PolicyVersion(1, 0.0, dp.Fixed(1), 4, {"instance": site.to_dict()})
    assert planned.choose(new, [0, 1, 2, 3], 0.0, rng)[2] == 1
    assert planned.choose(new, [0, 2, 3], 0.0, rng)[2] == 2  # 1.61 clicks on average, against 0.5 and 1.43
    assert planned.choose(liked, [0, 3], 0.0, rng)[2] == 3
    assert planned.choose(new, [0], 0.0, rng)[2] == 0
    uploaded = PolicyVersion(1, 0.0, dp.Fixed(1), 4, {})
    assert uploaded.choose(new, [0, 2, 3], 0.0, rng)[2] == 0
    walk = PolicyVersion(1, 0.0, dp.Walk([0], then=1), 4, {"instance": site.to_dict()})
    assert walk.choose(new, [1, 2], 0.0, rng)[2] == 1  # the next phase
