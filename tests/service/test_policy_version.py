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
