"""Rollout of policy versions to users."""

import asyncio
from dataclasses import replace

import pytest

import departing as dp
from departing.model.errors import InputError
from departing.model.examples import magazine
from departing.service.rollout import NotFoundError
from helpers.services import publish, publish_as_trainer, recommend, run, service


def test_versions_are_published_pinned_and_adopted(address):
    with service(address, instance=magazine(), explore=0.0) as served:
        assert run(served.policy()).source == "instance"
        publish(served, dp.Fixed(1), description="always sport", source="test")
        assert recommend(served, "ann").category == "sport"
        pinned = run(served.pin(0))
        assert (pinned.version, pinned.pinned) == (0, True)
        assert recommend(served, "bob").category == "music"
        assert recommend(served, "ann").category == "sport"  # a user keeps the first version
        assert [row.version for row in run(served.policies()).versions] == [1, 0]
        with pytest.raises(NotFoundError, match="version is 7; expected the number of a published version"):
            run(served.pin(7))
        publish_as_trainer(address, {2: dp.Fixed(2)})
        assert run(served.refresh())
        assert not run(served.refresh())
        assert run(served.policy()).version == 0  # still pinned
    with service(address, names=[]) as served:
        assert run(served.policy()).version == 0
        assert run(served.pin(None)).version == 2


def test_adding_a_category_again_changes_nothing(address):
    with service(address) as served:
        added = run(served.add_category("golf"))
        assert run(served.add_category("golf")) == added
        assert len(added.categories) == 4


def test_of_two_processes_only_one_retires_one_of_the_last_two_categories(postgres):
    address = postgres.new()
    with service(address) as one, service(address) as two:
        run(one.retire_category("news"))

        async def retire():
            calls = one.retire_category("sports"), two.retire_category("music")
            return await asyncio.gather(*calls, return_exceptions=True)

        (error,) = (result for result in run(retire()) if isinstance(result, Exception))
        assert "add another category" in str(error)
        for served in (one, two):
            run(served.refresh())
            assert len(served.rollout.state.available) == 1


def test_without_an_available_category_a_request_is_rejected(address):
    """As after a release that let two processes retire the last two."""
    with service(address) as served:
        retired = frozenset(range(3))
        served.rollout.state = replace(served.rollout.state, retired=retired)
        for allowed in (None, ["news"]):
            with pytest.raises(InputError, match="All categories are retired"):
                recommend(served, "ann", allowed)


def test_a_trial_gets_its_number_of_users_despite_a_restart(address):
    with service(address, explore=0.0) as served:
        publish_as_trainer(address, {1: dp.Fixed(1), 2: dp.Fixed(2)}, [(1, 5)])
        recommend(served, "early")
        assert run(served.refresh())
        first = [recommend(served, f"a{i}").version for i in range(3)]
    with service(address, names=[]) as served:
        later = [recommend(served, f"b{i}").version for i in range(4)]
    assert first + later == [1] * 5 + [2] * 2
