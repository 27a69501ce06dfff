"""Opening services: which stores are accepted, and when a plan is made."""

import logging
from contextlib import closing

import pytest

import departing as dp
from departing.model.examples import magazine
from departing.service.departures import DepartureRule, adopt_rule
from departing.service.policy_version import LEARNED
from departing.service.settings import Settings
from departing.service.startup import open_service
from departing.service.store.connection import connect
from helpers.services import NAMES, publish, run, service


def test_a_store_with_other_contents_is_rejected(address, tmp_path):
    with service(address):
        pass
    with pytest.raises(dp.InputError, match="has the categories 'news', 'sports', 'music', not 'a', 'b'"):
        open_service(address, ["a", "b"], None, Settings())
    (tmp_path / "new").mkdir()
    for names, message in (([], "is new; name its categories"), (["a\0", "b"], "categories")):
        with pytest.raises(dp.InputError, match=message):
            open_service(tmp_path / "new" / "t.sqlite", names, None, Settings())
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "u.sqlite").write_text("no database at all, but text")
    with pytest.raises(dp.InputError, match="cannot be opened"):
        open_service(tmp_path / "u.sqlite", NAMES, None, Settings())
    with closing(connect(address)) as database:
        database.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    with pytest.raises(dp.InputError, match="written by a later release"):
        open_service(address, [], None, Settings())


def test_a_refused_start_leaves_the_definition_of_departure_as_it_was(address):
    with service(address, inactive_after=14 * 86400.0):
        pass
    with pytest.raises(dp.InputError, match="has the categories"):
        open_service(address, ["a", "b"], None, Settings(inactive_after=4 * 86400.0))
    with closing(open_service(address, [], None, Settings()).store) as store:
        assert (
            run(store.transaction(lambda tx: adopt_rule(tx, DepartureRule(), False)))[0].inactive_after == 14 * 86400
        )


def test_an_unreachable_database_is_reported():
    with pytest.raises(dp.InputError, match="cannot be opened"):
        open_service("postgresql://nobody@127.0.0.1:1/nothing", NAMES, None, Settings())


def test_a_restart_plans_without_retired_categories(address):
    site = magazine()
    with service(address, instance=site) as served:
        run(served.retire_category("music"))
    with service(address, instance=site) as served:
        assert "music" not in run(served.policy()).description


def test_an_instance_in_another_order_is_reordered_by_name(address):
    site = magazine()
    with service(address, instance=site) as served:
        first = run(served.policy()).description
    with service(address, instance=site.relabel(categories=[2, 0, 1])) as served:
        assert run(served.policy()).description == first  # nothing is planned again
        assert served.rollout.state.names == list(site.categories)


def test_an_instance_replaces_a_learned_policy_with_a_notice(address, caplog):
    site = magazine()
    with service(address, names=list(site.categories)) as served:
        publish(served, dp.Fixed(0), source=LEARNED)
    with caplog.at_level(logging.WARNING, "departing"):
        with service(address, instance=site, inactive_after=60.0, learn=True) as served:
            planned = run(served.policy())
            publish(served, dp.Fixed(0), source=LEARNED)
        with service(address, instance=site, learn=True) as served:  # continues to learn
            assert run(served.policy()).source == LEARNED
        assert not caplog.messages
        with service(address, instance=site) as served:
            assert run(served.policy()).description == planned.description
            run(served.pin(0))
        assert "holds a learned policy; new users now get the plan" in caplog.records[0].fields["text"]
        with service(address, instance=site) as served:  # what was pinned stays
            assert run(served.policy()).version == 0
        assert len(caplog.messages) == 1
