"""Uploaded policies: checks, the order of categories, and numbers beside those of a trainer."""

import json
import threading

import pytest

import departing as dp
from departing.model.errors import InputError
from departing.model.examples import magazine
from departing.model.files import read_document
from departing.policy.files import policy_to_dict
from departing.service.experiments.manager import Experiments
from departing.service.policy_version import PolicyVersion
from helpers.services import NAMES, publish_as_trainer, recommend, run, service


def upload(served, document):
    return run(Experiments(served).upload(document))


def document(policy, **fields):
    return policy_to_dict(policy) | fields


def test_an_upload_is_a_version_that_no_user_gets_until_it_is_pinned(address):
    with service(address, explore=0.0) as served:
        version = upload(served, document(dp.Threshold("sports", 1, "music")))
        assert (version.version, version.source, version.current) == (1, "uploaded", False)
        assert version.description == "sports × 1, then music"
        assert recommend(served, "ann").version == 0
        assert upload(served, document(dp.Threshold("sports", 1, "music"))) == version  # repeated
        run(served.pin(1))
        assert [recommend(served, "bob").category for _ in range(2)] == ["sports", "music"]
    with service(address, names=[], explore=0.0) as served:
        assert recommend(served, "cat").category == "sports"


def test_uploads_leave_the_trials_of_a_trainer_alone(address):
    with service(address, explore=0.0) as served:
        publish_as_trainer(address, {1: dp.Fixed(1), 2: dp.Fixed(2)}, [(1, 4)])
        run(served.refresh())
        first = [recommend(served, f"a{i}").version for i in range(3)]
        assert upload(served, document(dp.Fixed("news"))).version == 3
        later = [recommend(served, f"b{i}").version for i in range(3)]
        assert first + later == [1] * 4 + [2] * 2
        publish_as_trainer(address, {4: dp.Fixed(1)})
        run(served.refresh())
        assert run(served.policy()).version == 4


def test_an_upload_gets_a_number_after_one_that_a_trainer_published_meanwhile(address):
    with service(address) as served:
        publish_as_trainer(address, {1: dp.Fixed(1)})  # not adopted yet
        assert upload(served, document(dp.Fixed("news"))).version == 2


def test_policies_are_not_parsed_in_the_event_loop(tmp_path, monkeypatch):
    """The largest take a second, in which no request would be answered."""
    threads, from_row = [], PolicyVersion.from_row

    def recorded(*row):
        threads.append(threading.current_thread())
        return from_row(*row)

    path = tmp_path / "s.sqlite"
    with service(path) as served:
        monkeypatch.setattr(PolicyVersion, "from_row", recorded)
        assert upload(served, document(dp.Fixed("news"))).version == 1
        assert not threads  # the version that was checked is used
        publish_as_trainer(path, {2: dp.Fixed(1)})
        assert run(served.refresh())
        assert threads
        assert threading.main_thread() not in threads


def test_categories_are_brought_into_the_order_of_the_store(tmp_path):
    site = magazine()
    turned = site.relabel([2, 0, 1])
    best = dp.plan(turned, gap=0.5)
    best.save(tmp_path / "policy.json")
    with service(tmp_path / "s.sqlite", names=list(site.categories), explore=0.0) as served:
        for name in ("policy.json", "policy.toml"):
            best.save(tmp_path / name)
            version = upload(served, read_document(tmp_path / name, "policy"))
        raw = json.loads((tmp_path / "policy.json").read_text())
        assert upload(served, raw).version == version.version == 1
        run(served.pin(1))
        counts = [[0] * 4] * turned.n_categories
        assert recommend(served, "ann").category == turned.categories[int(best.policy.recommend(counts))]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "The policy has the policy kind None; expected one of alpha, by-segment, fixed"),
        ({"kind": "fixed", "category": 7, "names": NAMES}, "The policy"),
        ({"kind": "fixed", "category": "food"}, "The policy: .*food"),
        (
            document(dp.Fixed(0), names=["news", "sport", "music"]),
            "names are 'news', 'sport', 'music'; expected the cat",
        ),
        (document(dp.Fixed(0), names=["news", "music"]), "names are 'news', 'music'; expected the categories of"),
        (document(dp.Fixed(0), names="news"), "The policy has names 'news'; expected a list"),
        (document(dp.Fixed(0), format="departing-instance"), "has format 'departing-instance'"),
        ({"kind": "table", "rows": "x"}, "The policy"),
    ],
)
def test_invalid_policies_are_rejected_and_nothing_is_written(tmp_path, given, message):
    with service(tmp_path / "s.sqlite") as served:
        with pytest.raises(InputError, match=message):
            upload(served, given)
        assert len(run(served.policies()).versions) == 1


def test_a_policy_may_lack_the_categories_that_were_added_last(tmp_path):
    with service(tmp_path / "s.sqlite", explore=0.0) as served:
        run(served.add_category("food"))
        version = upload(served, document(dp.Fixed(2), names=["music", "sports", "news"]))
        run(served.pin(version.version))
        assert recommend(served, "ann").category == "news"


def table(n_categories, fallback, category=0):
    return {"kind": "table", "counts": [[[0] * 4] * n_categories], "categories": [category], "fallback": fallback}


def nested(depth, innermost):
    for _ in range(depth):
        innermost = table(3, innermost)
    return innermost


def greedy(n_types, n_categories=3):
    row = [1 / n_types] * n_types
    names = {"categories": NAMES} if n_categories == len(NAMES) else {}
    return {"kind": "greedy", "instance": {"prior": row, "click": [row] * n_categories} | names}


WALK = [0, 1] * 6000
LARGE = [
    (greedy(8000), "Greedy has 8,000 types; at most 64 are accepted"),
    (table(3, greedy(65)), "Greedy has 65 types; at most 64 are accepted"),
    ({"kind": "walk", "categories": WALK, "then": 2}, "Walk has 12,001 phases; at most 10,000 are accepted"),
    (nested(21, {"kind": "fixed", "category": 0}), "has 21 fallbacks inside each other; at most 20 are accepted"),
    (nested(300, {"kind": "fixed", "category": 0}), "has 300 fallbacks inside each other"),
    (table(3, table(2, {"kind": "fixed", "category": 0})), "Table is for 2 categories; expected 3"),
    (table(3, greedy(2, 4)), "names are .*; expected the categories of the service"),
    (table(3, {"kind": "fixed", "category": 9}), "Fixed recommends category 9; expected one from 0 to 2"),
    (table(3, {"kind": "fixed", "category": 0}, 3), "Table recommends category 3; expected one from 0 to 2"),
    (
        {"kind": "threshold", "first": 0, "steps": 9, "then": 7, "names": NAMES[::-1]},
        "Threshold recommends category 7; expected one from 0 to 2",
    ),
    (
        greedy(2) | {"kind": "alpha", "vectors": [[10**400, 1.0]], "categories": [0]},
        "vectors are .*; expected numbers",
    ),
    ({"kind": "\x7f" * 100_000}, "has the policy kind '.{,100}; expected one of"),
    ({"kind": "fixed", "category": 0, "x" * 100_000: 0}, "has the unknown field 'x{79}; expected one of"),
    ({"kind": "fixed", "category": 0, "format": "x" * 100_000}, "has format 'x{79}; expected"),
    (document(dp.Fixed(0), names=["x" * 100_000]), "names are 'x{199}; expected"),
]


@pytest.mark.parametrize(("given", "message"), LARGE, ids=[message for _, message in LARGE])
def test_policies_that_are_too_large_or_do_not_fit_are_rejected(tmp_path, given, message):
    with service(tmp_path / "s.sqlite") as served, pytest.raises(InputError, match=message):
        upload(served, given)


def test_nested_fallbacks_and_long_walks_within_the_limits_are_accepted(tmp_path):
    with service(tmp_path / "s.sqlite", explore=0.0) as served:
        for given in (nested(20, greedy(64)), {"kind": "walk", "categories": WALK[:9000], "then": 2}):
            version = upload(served, given)
            assert len(version.description) < 1000
            run(served.pin(version.version))
            assert recommend(served, f"user {version.version}", allowed=["music"]).category == "music"


def test_every_policy_of_a_policy_by_segment_is_checked(tmp_path):
    with service(str(tmp_path / "s.sqlite")) as served:
        experiments = Experiments(served)
        for policy in (
            dp.BySegment({"mobile": dp.Fixed(7)}, default=dp.Fixed(0)),
            dp.BySegment({"mobile": dp.Fixed(0)}, default=dp.BySegment({"a": dp.Fixed(7)}, default=dp.Fixed(0))),
        ):
            with pytest.raises(dp.InputError, match="recommends category 7; expected one from 0 to 2"):
                run(experiments.upload(policy_to_dict(policy)))
        site = dp.Instance([1.0], [[0.5], [0.4], [0.3]], 0.5, horizon=2)
        greedy = dp.BySegment({"mobile": dp.Greedy(site)}, default=dp.Fixed(0))
        with pytest.raises(dp.InputError, match=r"names are 'category 0', .*; expected the categories"):
            run(experiments.upload(policy_to_dict(greedy)))
        site = site.replace(categories=["news", "sports", "music"])
        greedy = dp.BySegment({"mobile": dp.Greedy(site)}, default=dp.Fixed(0))
        version = run(experiments.upload(policy_to_dict(greedy))).version
        assert served.rollout.state.versions[version].horizon == 2
