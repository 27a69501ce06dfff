"""Exploring: what it says of an instance is what planning, evaluating and beliefs say."""

import asyncio
import io
import json
import os
import signal
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

import departing as dp
from departing.model.belief import belief
from departing.model.examples import EXAMPLES, blog, magazine
from departing.model.families import random_instance
from departing.model.instance import CLICK, STAY
from departing.planning.baselines import rivals
from departing.policy.library import describe
from departing.service.api import messages as m
from departing.service.workers import explorer as exploring
from departing.service.workers.explorer import LEAST, WALK, Answer, Explorer, explore
from helpers.strategies import ORDINARY, InputError, instances

HARD = {"prior": [0.5, 0.5], "click": [[0.6, 0.3], [0.3, 0.6]], "depart": 0.5}


def explored(instance, **options):
    return explore(m.ExploreRequest(instance=instance.to_dict(), **options))


def overlap(low, high, other_low, other_high, slack):
    return max(low, other_low) <= min(high, other_high) + slack


@settings(max_examples=30)
@given(instances(ORDINARY, most=3))
def test_it_says_what_the_package_says(instance):
    found = explored(instance)
    exact = dp.plan(instance, gap=1e-7 * instance.fixed_values.max(), seconds=5)
    slack = 1e-12 * found.upper
    assert overlap(found.lower, found.upper, exact.lower, exact.upper, slack)
    assert found.upper - found.lower <= 2e-4 * found.upper or not found.converged
    held = rivals(exact)
    assert [way.policy for way in found.baselines] == [describe(rival.policy, instance) for rival in held]
    for way, rival in zip(found.baselines, held, strict=True):
        width = found.upper - found.lower + way.loss_upper - way.loss_lower
        assert way.value == pytest.approx(rival.found.value, abs=width + rival.found.gap + slack)
        assert overlap(way.loss_lower, way.loss_upper, rival.loss.lower, rival.loss.upper, slack)


@settings(max_examples=30)
@given(instances(most=3))
def test_ends_of_all_ranges_can_be_explored_and_told(instance):
    found = explored(instance, seconds=0.02)
    told = msgspec.json.decode(msgspec.json.encode(found), type=m.ExploreResult)
    assert told == found
    assert 0 <= found.lower <= found.upper < np.inf


@pytest.mark.parametrize("seed", range(4))
def test_walks_follow_the_policy_and_the_belief(seed):
    instance = random_instance("specialists", types=3, categories=3, seed=seed)
    plan = dp.plan(instance, 1e-4 * instance.best_fixed[1])
    found = explored(instance)
    for name, outcome in (("stay", STAY), ("click", CLICK)):
        counts, share = np.zeros((3, 4), int), 1.0
        for place in found.belief_paths[name]:
            shown = int(plan.policy.recommend(counts))
            assert place.category == instance.categories[shown]
            assert list(place.belief) == list(instance.types)
            expected = belief(instance, counts)
            assert list(place.belief.values()) == pytest.approx(expected)
            assert place.share == pytest.approx(share)
            share *= float(expected @ instance.outcome_probabilities[shown, outcome])
            counts[shown, outcome] += 1
        assert len(found.belief_paths[name]) == WALK or share < LEAST


def test_the_graph_splits_users_by_what_they_do():
    found = explored(magazine())

    def check(branch, depth):
        assert sum(branch.belief.values()) == pytest.approx(1)
        assert sum(then.share for then in branch.then) <= branch.share
        assert depth <= exploring.DEPTH
        for then in branch.then:
            assert then.after in ("click", "stay")
            check(then, depth + 1)

    assert found.tree.share == pytest.approx(1)
    assert [then.after for then in found.tree.then] == ["click", "stay"]
    check(found.tree, 1)


@pytest.mark.parametrize("name", EXAMPLES)
def test_files_come_back_as_they_were(name, tmp_path):
    instance = EXAMPLES[name]()
    found = explored(instance)
    assert found.instance == instance.to_dict()
    path = tmp_path / "instance.toml"
    path.write_text(found.toml, encoding="utf-8")
    assert dp.Instance.load(path) == instance
    instance.save(tmp_path / "saved.toml")
    assert (tmp_path / "saved.toml").read_text(encoding="utf-8") == found.toml
    again = explore(m.ExploreRequest(toml=found.toml))
    assert (again.instance, again.description, again.lower) == (found.instance, found.description, found.lower)
    instance.save(tmp_path / "saved.json")
    assert explore(m.ExploreRequest(instance=json.loads((tmp_path / "saved.json").read_text()))).toml == found.toml


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ({}, "Give either an instance, or the text of a TOML file."),
        ({"instance": HARD, "toml": "prior = [1.0]"}, "Give either an instance"),
        ({"toml": "prior = "}, "The file is not valid TOML"),
        ({"toml": "a = " + 6000 * "["}, "not valid TOML"),
        ({"toml": 'format = "departing-policy"'}, "has format 'departing-policy'"),
        ({"instance": {}}, "lacks the field 'click'"),
        ({"instance": HARD | {"leaves": 1}}, "unknown field 'leaves'"),
        ({"instance": HARD | {"version": 99}}, "has version 99"),
        ({"instance": HARD | {"prior": [0.5, 0.4]}}, "prior sums to 0.9"),
        ({"instance": HARD | {"depart": 0.0}}, "never departs"),
        ({"instance": HARD | {"types": [1, 2]}}, "types is [1, 2]"),
        ({"instance": HARD | {"types": ["a", "b" * 300]}}, "has 300 characters"),
        ({"instance": {"prior": [1.0], "click": 6 * [[0.5]]}}, "6 categories; the explorer takes up to 5"),
        ({"instance": {"prior": 8 * [0.125], "click": [8 * [0.5]]}}, "8 types; the explorer takes up to 5"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(ask, words):
    with pytest.raises(InputError) as caught:
        explore(m.ExploreRequest(**ask))
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")


def test_little_time_gives_an_honest_bracket():
    instance = random_instance("sticky", types=4, categories=4, seed=1)
    quick, long = explored(instance, seconds=0.01), explored(instance)
    assert not quick.converged
    assert quick.lower <= long.upper
    assert long.lower <= quick.upper
    assert long.upper - long.lower <= quick.upper - quick.lower


def test_the_helper_answers_line_by_line(monkeypatch):
    asks = [m.ExploreRequest(instance=blog().to_dict()), m.ExploreRequest(), m.ExploreRequest(instance=HARD)]
    lines, answers = b"".join(msgspec.json.encode(ask) + b"\n" for ask in asks), io.BytesIO()
    monkeypatch.setattr(os, "nice", lambda by: by)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(answers))
    exploring.main()
    first, second, third = (msgspec.json.decode(line, type=Answer) for line in answers.getvalue().splitlines())
    assert first.found.description == "sports × 6, then economics"
    assert second.found is None
    assert "Give either" in second.problem
    assert third.found.instance["depart"] == 0.5


def test_a_helper_explores_in_turn_is_made_anew_and_ends():
    ask = m.ExploreRequest(instance=blog().to_dict())

    async def main():
        explorer = Explorer()
        many = await asyncio.gather(*(explorer.explore(ask) for _ in range(3)))
        assert {found.description for found in many} == {"sports × 6, then economics"}
        with pytest.raises(InputError, match="Give either"):
            await explorer.explore(m.ExploreRequest())
        waiting = asyncio.create_task(explorer.explore(ask))
        await asyncio.sleep(0)
        waiting.cancel()  # nobody waits any more; the next answer is its own nonetheless
        assert (await explorer.explore(m.ExploreRequest(instance=HARD))).instance["depart"] == 0.5
        explorer._helper.kill()
        assert (await explorer.explore(ask)).description == many[0].description
        helper = explorer._helper.pid
        await explorer.close()
        await explorer.close()
        with pytest.raises(ProcessLookupError):
            os.kill(helper, 0)

    asyncio.run(main())


def test_a_helper_that_cannot_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(exploring, "HELPER", "import sys; sys.stdin.readline(); sys.exit(1)")

    async def dies():
        with pytest.raises(InputError, match="died of this instance"):
            await Explorer().explore(m.ExploreRequest(instance=HARD))

    asyncio.run(dies())
    monkeypatch.setattr(exploring, "HELPER", "import time; time.sleep(60)")
    monkeypatch.setattr(exploring, "PATIENCE", 0.2)

    async def hangs():
        with pytest.raises(InputError, match="took too long"):
            await Explorer().explore(m.ExploreRequest(instance=HARD))

    asyncio.run(hangs())
