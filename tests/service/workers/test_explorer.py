"""The explorer: its results equal those of planning, evaluation and beliefs."""

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
from departing.planning.baselines import evaluate_baselines
from departing.policy.library import describe
from departing.service import messages as m
from departing.service.policy_version import TREE_DEPTH
from departing.service.workers import explorer as exploring
from departing.service.workers.explorer import GAP, MIN_SHARE, PATH_STEPS, Explorer, explore
from departing.service.workers.process import answer_requests
from helpers.strategies import ORDINARY, InputError, instances

HARD = {"prior": [0.5, 0.5], "click": [[0.6, 0.3], [0.3, 0.6]], "depart": 0.5}


def explored(instance, **options):
    return explore(m.ExploreRequest(instance=instance.to_dict(), **options))


def overlap(lower, upper, other_lower, other_upper, slack):
    return max(lower, other_lower) <= min(upper, other_upper) + slack


@settings(max_examples=30)
@given(instances(ORDINARY, most=3))
def test_bounds_and_baselines_agree_with_the_package(instance):
    result = explored(instance)
    exact = dp.plan(instance, gap=1e-7 * instance.fixed_values.max(), seconds=5)
    slack = 1e-12 * result.upper
    assert overlap(result.lower, result.upper, exact.lower, exact.upper, slack)
    assert result.upper - result.lower <= 2e-4 * result.upper or not result.converged
    expected = evaluate_baselines(exact)
    assert [baseline.policy for baseline in result.baselines] == [
        describe(rival.policy, instance) for rival in expected
    ]
    for baseline, rival in zip(result.baselines, expected, strict=True):
        width = result.upper - result.lower + baseline.loss_upper - baseline.loss_lower
        assert baseline.value == pytest.approx(rival.evaluation.value, abs=width + rival.evaluation.gap + slack)
        assert overlap(baseline.loss_lower, baseline.loss_upper, rival.loss.lower, rival.loss.upper, slack)


@settings(max_examples=30)
@given(instances(most=3))
def test_extreme_instances_can_be_explored_and_encoded(instance):
    result = explored(instance, seconds=0.02)
    decoded = msgspec.json.decode(msgspec.json.encode(result), type=m.ExploreResult)
    assert decoded == result
    assert 0 <= result.lower <= result.upper < np.inf


@pytest.mark.parametrize("seed", range(4))
def test_belief_paths_follow_the_policy_and_the_belief(seed):
    instance = random_instance("specialists", types=3, categories=3, seed=seed)
    plan = dp.plan(instance, 1e-4 * instance.best_fixed[1])
    result = explored(instance)
    for name, outcome in (("stay", STAY), ("click", CLICK)):
        counts, share = np.zeros((3, 4), int), 1.0
        for step in result.belief_paths[name]:
            shown = int(plan.policy.recommend(counts))
            assert step.category == instance.categories[shown]
            assert list(step.belief) == list(instance.types)
            expected = belief(instance, counts)
            assert list(step.belief.values()) == pytest.approx(expected)
            assert step.share == pytest.approx(share)
            share *= float(expected @ instance.outcome_probabilities[shown, outcome])
            counts[shown, outcome] += 1
        assert len(result.belief_paths[name]) == PATH_STEPS or share < MIN_SHARE


def test_the_policy_tree_splits_users_by_outcome():
    result = explored(magazine())

    def check(branch, depth):
        assert sum(branch.belief.values()) == pytest.approx(1)
        assert sum(then.share for then in branch.children) <= branch.share
        assert depth <= TREE_DEPTH
        for then in branch.children:
            assert then.after in ("click", "stay")
            check(then, depth + 1)

    assert result.tree.share == pytest.approx(1)
    assert [then.after for then in result.tree.children] == ["click", "stay"]
    check(result.tree, 1)


@pytest.mark.parametrize("name", EXAMPLES)
def test_toml_and_json_documents_round_trip(name, tmp_path):
    instance = EXAMPLES[name]()
    result = explored(instance)
    assert result.instance == instance.to_dict()
    path = tmp_path / "instance.toml"
    path.write_text(result.toml, encoding="utf-8")
    assert dp.Instance.load(path) == instance
    instance.save(tmp_path / "saved.toml")
    assert (tmp_path / "saved.toml").read_text(encoding="utf-8") == result.toml
    again = explore(m.ExploreRequest(toml=result.toml))
    assert (again.instance, again.description, again.lower) == (result.instance, result.description, result.lower)
    instance.save(tmp_path / "saved.json")
    assert explore(m.ExploreRequest(instance=json.loads((tmp_path / "saved.json").read_text()))).toml == result.toml


@pytest.mark.parametrize(
    ("request_fields", "message"),
    [
        ({}, "Give either `instance` (JSON) or `toml` (the text of a TOML file)."),
        ({"instance": HARD, "toml": "prior = [1.0]"}, "Give either `instance`"),
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
        ({"instance": {"prior": [1.0], "click": 6 * [[0.5]]}}, "6 categories; the explorer accepts at most 5"),
        ({"instance": {"prior": 8 * [0.125], "click": [8 * [0.5]]}}, "8 types; the explorer accepts at most 5"),
    ],
)
def test_an_invalid_request_is_rejected_with_one_sentence(request_fields, message):
    with pytest.raises(InputError) as caught:
        explore(m.ExploreRequest(**request_fields))
    assert message in str(caught.value)
    assert str(caught.value).endswith(".")


def test_the_bounds_hold_however_little_time_there_is():
    instance = random_instance("sticky", types=4, categories=4, seed=1)
    quick, long = explored(instance, seconds=0.01), explored(instance)
    assert not quick.converged
    assert quick.lower <= long.upper
    assert long.lower <= quick.upper
    assert long.upper - long.lower <= max(quick.upper - quick.lower, GAP * long.upper)


def test_the_helper_process_answers_line_by_line(monkeypatch):
    requests = [m.ExploreRequest(instance=blog().to_dict()), m.ExploreRequest(), m.ExploreRequest(instance=HARD)]
    lines, output = b"".join(msgspec.json.encode(request) + b"\n" for request in requests), io.BytesIO()
    monkeypatch.setattr(os, "nice", lambda by: by)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output))
    exploring.main()
    first, second, third = output.getvalue().splitlines()
    assert msgspec.json.decode(first, type=m.ExploreResult).description == "sports × 6, then economics"
    assert second.startswith(b'!"Give either')
    assert msgspec.json.decode(third, type=m.ExploreResult).instance["depart"] == 0.5


@pytest.mark.slow
def test_requests_are_answered_in_turn_and_a_killed_helper_is_replaced():
    request = m.ExploreRequest(instance=blog().to_dict())

    async def main():
        explorer = Explorer()
        results = await asyncio.gather(*(explorer.explore(request) for _ in range(3)))
        assert {result.description for result in results} == {"sports × 6, then economics"}
        with pytest.raises(InputError, match="Give either"):
            await explorer.explore(m.ExploreRequest())
        waiting = asyncio.create_task(explorer.explore(request))
        await asyncio.sleep(0)
        waiting.cancel()  # the next request still gets its own response
        assert (await explorer.explore(m.ExploreRequest(instance=HARD))).instance["depart"] == 0.5
        explorer.helper.process.kill()
        assert (await explorer.explore(request)).description == results[0].description
        pid = explorer.helper.process.pid
        await explorer.close()
        await explorer.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "timeout", "message"),
    [
        ("import sys; sys.stdin.readline(); sys.exit(1)", 60.0, "Planning failed for this instance"),
        ("input(); print('a warning')", 60.0, "Planning failed for this instance"),
        ("input(); print('{}')", 60.0, "Planning failed for this instance"),
        ("input(); print('!no string')", 60.0, "Planning failed for this instance"),
        ("import time; time.sleep(60)", 0.2, "Planning took too long"),
    ],
)
def test_a_helper_that_does_not_answer_is_an_error(monkeypatch, code, timeout, message):
    monkeypatch.setattr(exploring, "ARGUMENTS", ("-c", code))
    monkeypatch.setattr(exploring, "TIMEOUT", timeout)

    async def main():
        explorer = Explorer()
        with pytest.raises(InputError, match=message):
            await explorer.explore(m.ExploreRequest(instance=HARD))
        assert explorer.helper.process is None

    asyncio.run(main())


def test_a_request_that_is_nested_too_deeply_for_the_helper_is_an_error_of_its_own(monkeypatch):
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}\n")))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output))

    def nested(request):
        raise RecursionError

    answer_requests(nested, m.ExploreRequest)
    monkeypatch.setattr(exploring, "ARGUMENTS", ("-c", f"input(); print({output.getvalue().decode().strip()!r})"))

    async def main():
        explorer = Explorer()
        with pytest.raises(m.NestingError, match="nested too deeply"):
            await explorer.explore(m.ExploreRequest(instance=HARD))
        await explorer.close()

    asyncio.run(main())
