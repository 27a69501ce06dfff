"""Segments of users: in requests, in the store, in the log, and in policies."""

import json
from contextlib import closing

import duckdb
import msgspec
import pytest

import departing as dp
from departing.model.examples import magazine
from departing.service import messages as m
from departing.service.dashboard import DashboardReader
from departing.service.export import log_parts
from departing.service.policy_version import PolicyVersion
from departing.service.segment_names import SegmentLimitError
from departing.service.settings import Settings
from departing.service.startup import open_service
from helpers.services import NAMES, publish, recommend, run, service

BY_SEGMENT = dp.BySegment({"de/mobile": dp.Fixed(1), "us/desktop": dp.Fixed(2)}, default=dp.Fixed(0))
COLUMNS = {"segment_columns": ("country", "device"), "explore": 0.0}


def shop():
    segments = dp.Segments(["mobile", "desktop"], [0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], ["device"])
    return dp.Instance(None, [[0.8, 0.1], [0.1, 0.8], [0.1, 0.1]], 0.5, categories=NAMES, segments=segments)


def exported(served):
    run(served.flush())
    lines = b"".join(log_parts(served.store.read, "no-click", "jsonl")).splitlines()
    return [json.loads(line) for line in lines]


def test_the_policy_of_the_segment_recommends(address):
    with service(address, **COLUMNS) as served:
        publish(served, BY_SEGMENT)
        assert recommend(served, "ann", segment="de/mobile").category == "sports"
        assert recommend(served, "bob", segment={"device": "desktop", "country": "us"}).category == "music"
        assert recommend(served, "eve", segment="fr/mobile").category == "news"
        assert recommend(served, "joe").category == "news"
        assert recommend(served, "ann").category == "sports"  # without a segment in later requests
        assert recommend(served, "ann", ["news", "music"]).category == "news"
        assert [row["segment"] for row in exported(served)] == [
            *("de/mobile", "us/desktop", "fr/mobile", None, "de/mobile", "de/mobile")
        ]
        assert run(served.user_state("bob")).segment == "us/desktop"


def test_the_belief_starts_from_the_prior_of_the_segment(address):
    instance = shop()
    with service(address, explore=0.0) as served:
        publish(served, dp.Greedy(instance), instance=instance.to_dict())
        shown = recommend(served, "ann", segment="desktop", explain=True)
        assert (shown.category, shown.belief) == ("sports", pytest.approx({"type 0": 0.1, "type 1": 0.9}))
        assert recommend(served, "bob", segment="mobile").category == "news"
        assert recommend(served, "eve", segment="tablet", explain=True).belief == pytest.approx(
            {"type 0": 0.5, "type 1": 0.5}
        )
        assert run(served.user_state("ann")).belief == pytest.approx({"type 0": 0.1, "type 1": 0.9})
        figures = run(DashboardReader(served).read())
        assert [(row.name, row.users) for row in figures.segments] == [("desktop", 1), ("mobile", 1), ("tablet", 1)]
        assert figures.segments[1].prior == pytest.approx({"type 0": 0.9, "type 1": 0.1})
        assert figures.segments[2].prior is None


def test_the_segment_of_the_first_request_counts(address):
    with service(address, inactive_after=5.0, explore=0.0) as served:
        publish(served, dp.BySegment({"mobile": dp.Fixed(1)}, default=dp.Fixed(0)))
        first = recommend(served, "ann", segment="mobile", event="1")
        assert (first.category, first.code, first.segment) == ("sports", m.UNSET, m.UNSET)
        later = recommend(served, "ann", segment="desktop")
        assert (later.category, later.code, later.segment) == ("sports", "segment_kept", "mobile")
        repeated = recommend(served, "ann", segment="desktop", event="1")
        assert (repeated.category, repeated.code) == ("sports", "segment_kept")
        recommend(served, "bob")
        assert recommend(served, "bob", segment="mobile").segment is None
        assert run(served.totals())["kept_segments"] == 2
        served.clock.time += 10.0
        returned = recommend(served, "ann", segment="desktop")
        assert (returned.category, returned.code) == ("news", m.UNSET)  # a new visit has a segment of its own
        assert [row["segment"] for row in exported(served)] == ["mobile", "mobile", None, None, "desktop"]


@pytest.mark.parametrize(
    ("segment", "sentence"),
    [
        ("de", "segment is 'de'; expected 2 features joined by '/', country/device"),
        ("de/", "segment is 'de/'; expected 2 features joined by '/', country/device"),
        ({"country": "de", "os": "x"}, "segment has the features 'country', 'os'; expected 'country', 'device'"),
        ({"country": "de/at", "device": "tv"}, "segment.country is 'de/at'; expected a value without '/'"),
        ({"country": "d" * 150, "device": "t" * 150}, "segment has 301 characters; at most 200"),
    ],
)
def test_invalid_segments_are_refused(tmp_path, segment, sentence):
    with service(str(tmp_path / "s.sqlite"), **COLUMNS) as served:
        with pytest.raises(dp.InputError, match=sentence):
            recommend(served, "ann", segment=segment)
        with pytest.raises(dp.InputError, match="expected a user who has requested"):
            run(served.user_state("ann"))


def test_features_require_columns(tmp_path):
    with (
        service(str(tmp_path / "s.sqlite")) as served,
        pytest.raises(dp.InputError, match="segment is an object; expected a name, or restart with --segment"),
    ):
        recommend(served, "ann", segment={"country": "de"})


def test_the_number_of_segments_is_limited(address):
    with service(address, max_segments=2) as served:
        for name in ("a", "b", "a"):
            recommend(served, f"user of {name}", segment=name)
        with pytest.raises(SegmentLimitError, match=r"segment is 'c'; the store has 2 distinct segments.*coarser"):
            recommend(served, "ann", segment="c")
        recommend(served, "ann")
        recommend(served, "ann", segment="c")  # it is not stored
    with service(address, max_segments=2) as served, pytest.raises(SegmentLimitError):
        recommend(served, "bob", segment="c")


def test_processes_share_segments(postgres):
    address = postgres.new()
    with service(address, max_segments=2) as served, service(address, max_segments=2) as other:
        recommend(served, "ann", segment="a")
        recommend(other, "bob", segment="b")
        recommend(other, "eve", segment="a")
        with pytest.raises(SegmentLimitError):
            recommend(served, "joe", segment="c")
        assert recommend(served, "bob", segment="a").segment == "b"


def test_a_store_remembers_the_columns(address):
    with service(address, **COLUMNS) as served:
        recommend(served, "ann", segment={"country": "de", "device": "tv"})
    with service(address) as served:
        assert served.settings.segment_columns == ("country", "device")
        assert recommend(served, "ann", segment={"country": "de", "device": "tv"}).code is m.UNSET
    settings = Settings(segment_columns=("country",))
    with pytest.raises(dp.InputError, match="segment is 'country'; expected 'device', as in the instance"):
        open_service(address, [], shop(), settings)


def test_a_refused_instance_leaves_no_store(tmp_path):
    for columns in (("country",), ("device", "version")):
        with pytest.raises(dp.InputError, match="segment "):
            open_service(tmp_path / "s.sqlite", [], shop(), Settings(segment_columns=columns))
    assert list(tmp_path.iterdir()) == []


def fitted_segments(names, columns):
    share = [1 / len(names)] * len(names)
    segments = dp.Segments(names, share, [[0.5, 0.5]] * len(names), columns)
    return dp.Instance(None, [[0.8, 0.1], [0.1, 0.8], [0.1, 0.1]], 0.5, categories=NAMES, segments=segments)


FEATURES = {"country": "de", "device": "mobile"}


@pytest.mark.parametrize("columns", [("segment",), ()], ids=["of the export", "unnamed"])
def test_an_instance_without_features_leaves_those_of_the_store(address, columns):
    with service(address, **COLUMNS) as served:
        recommend(served, "ann", segment=FEATURES)
    instance = fitted_segments(["de/mobile", "fr/mobile"], columns)
    for options in ({}, COLUMNS):
        with service(address, instance=instance, **options) as served:
            assert served.settings.segment_columns == ("country", "device")
            assert recommend(served, f"bob{len(options)}", segment=FEATURES).segment_known is m.UNSET


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        (("device", "country"), (), r"composed of 'device,country', those of the store of 'country,device'; give an"),
        (("land", "device"), (), r"--segment country,device, or change the store by --segment land,device\."),
        (
            ("device", "country"),
            ("device", "country"),
            r"segment is 'device,country'; expected 'country,device', of",
        ),
        (
            ("segment",),
            ("country", "device", "os"),
            r"The segments of the instance, such as 'de/mobile', are not",
        ),
        (None, ("device",), r"such as 'de/mobile'\. Use another store"),
        (None, ("country", "Version"), r"segment has 'Version', a column of the exported log; rename"),
        (None, ("os", "OS"), r"segment has 'os', twice, in another case; rename"),
    ],
)
def test_features_that_do_not_fit_the_store_are_refused(address, columns, given, message):
    with service(address, **COLUMNS) as served:
        recommend(served, "ann", segment=FEATURES)
    instance = None if columns is None else fitted_segments(["de/mobile"], columns)
    with pytest.raises(dp.InputError, match=message):
        open_service(address, [], instance, Settings(segment_columns=given))
    with service(address) as served:
        assert served.settings.segment_columns == ("country", "device")


def test_features_are_exported(address, tmp_path):
    with service(address, **COLUMNS) as served:
        recommend(served, "ann", segment=FEATURES)
        recommend(served, "bob", segment={"country": "de"})
    with service(address, segment_columns=("country", "device", "it's")) as served:
        recommend(served, "cat", segment="fr/tablet/ä")
        run(served.flush())
        columns = served.settings.segment_columns
        expected = [("de/mobile", None, None, None), (None,) * 4, ("fr/tablet/ä", "fr", "tablet", "ä")]
        for log_format in ("jsonl", "parquet"):
            data = b"".join(log_parts(served.store.read, "no-click", log_format, features=columns))
            (tmp_path / f"log.{log_format}").write_bytes(data)
            log = duckdb.sql(f"FROM '{tmp_path}/log.{log_format}'")
            assert log.select(*map(duckdb.ColumnExpression, ("segment", *columns))).fetchall() == expected


def test_policies_by_segment_survive_a_restart(address):
    with service(address, explore=0.0) as served:
        publish(served, BY_SEGMENT)
    with closing(open_service(address, [], None, Settings(explore=0.0)).store) as store:
        assert store.counters["recommendations"] == 0
    with service(address, explore=0.0) as served:
        assert recommend(served, "ann", segment="de/mobile").category == "sports"


def test_policies_without_segments_ignore_them(address):
    with service(address, instance=magazine(), explore=0.0) as served:
        shown = {recommend(served, f"u{name}", segment=name).category for name in ("a", "b")}
        assert shown == {recommend(served, "ann").category}


@pytest.mark.parametrize(
    "segment",
    ["", " ", {"country": "de"}, {"country": None, "device": "mobile"}, {"country": "de", "device": " "}, {}],
)
def test_a_missing_feature_makes_the_segment_unknown(tmp_path, segment):
    with service(str(tmp_path / "s.sqlite"), **COLUMNS) as served:
        publish(served, BY_SEGMENT)
        shown = recommend(served, "ann", segment=segment)
        assert (shown.category, shown.segment_known, shown.code) == ("news", False, m.UNSET)
        assert run(served.user_state("ann")).segment is None
        totals = run(served.totals())
        assert (totals["missing_segments"], totals.get("unknown_segments", 0)) == (1, 0)
        assert [row["segment"] for row in exported(served)] == [None]


def test_spaces_around_features_are_removed(tmp_path):
    with service(str(tmp_path / "s.sqlite"), **COLUMNS) as served:
        publish(served, BY_SEGMENT)
        for i, segment in enumerate(({"country": " de", "device": "mobile "}, " de/mobile\n", "de / mobile")):
            assert recommend(served, f"user {i}", segment=segment).category == "sports"
        assert served.rollout.state.segments == {"de/mobile"}
        with pytest.raises(dp.InputError, match=r"segment is 'de/ '; expected 2 features"):
            recommend(served, "ann", segment="de/ ")
    with service(str(tmp_path / "t.sqlite")) as served:
        recommend(served, "ann", segment=" north east ")
        assert served.rollout.state.segments == {"north east"}


def test_a_segment_that_the_policy_does_not_know_is_reported(address):
    with service(address, **COLUMNS) as served:
        before = recommend(served, "zoe", segment="DE/mobile")  # of the first policy, which has no segments
        assert before.segment_known is m.UNSET
        publish(served, BY_SEGMENT)
        shown = recommend(served, "ann", segment={"country": "DE", "device": "mobile"}, event="1")
        assert (shown.category, shown.segment_known) == ("news", False)
        assert recommend(served, "ann", segment="DE/mobile", event="1").segment_known is False
        assert recommend(served, "ann").segment_known is m.UNSET
        assert recommend(served, "bob", segment="de/mobile").segment_known is m.UNSET
        assert run(served.totals())["unknown_segments"] == 1
        assert b'"segment_known":false' in msgspec.json.encode(shown)
    instance = shop()
    for policy in (dp.Greedy(instance), dp.plan(instance).policy):
        known = PolicyVersion(1, 0.0, policy, 3, {})
        assert [known.knows_segment(name) for name in ("mobile", "tablet", None)] == [True, False, False]
    assert PolicyVersion(1, 0.0, dp.Fixed(1), 3, {"instance": instance.to_dict()}).knows_segment("tablet") is None
