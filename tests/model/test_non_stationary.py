"""NonStationaryInstance: pieces, constructors, files and checks."""

import numpy as np
import pytest

import departing as dp
from departing.model.errors import InputError
from departing.model.non_stationary import load_instance_or_site, mixed

A = dp.Instance([0.4, 0.6], [[0.6, 0.2], [0.3, 0.5]], categories=["news", "sport"])
B = A.replace(click=[[0.2, 0.2], [0.5, 0.3]], prior=[0.2, 0.8])
C = dp.Instance([0.4, 0.6], [[0.6, 0.2], [0.3, 0.5], [0.4, 0.4]], categories=["news", "sport", "music"])


def test_pieces():
    site = dp.NonStationaryInstance([A, C, C], [0, 10, 30], [None, None, ["sport", "music"]])
    pieces = [(piece.instance, piece.start, piece.users, piece.allowed) for piece in site.pieces(35)]
    assert pieces == [(A, 0, 10, None), (C, 10, 20, None), (C, 30, 5, (1, 2))]
    assert len(list(site.pieces(10))) == 1
    assert site.at(9) == A
    assert site.at(10) == C
    assert site.categories == C.categories
    assert not site.constant_catalogue


def test_jump_drift_and_season():
    assert dp.NonStationaryInstance.jump(A, B, 7) == dp.NonStationaryInstance([A, B], [0, 7])
    drift = dp.NonStationaryInstance.drift(A, B, 100, pieces=5)
    assert drift.starts == (0, 20, 40, 60, 80)
    assert drift.instances[0] == A
    np.testing.assert_allclose(drift.instances[-1].click, B.click)
    np.testing.assert_allclose(drift.instances[2].prior, [0.3, 0.7])
    season = dp.NonStationaryInstance.seasonal(A, B, period=40, users=100, pieces=4)
    assert season.starts == tuple(range(0, 100, 10))
    assert season.instances[0] == season.instances[4]
    share = 0.5 - 0.5 * np.cos(np.pi / 4)
    np.testing.assert_allclose(season.instances[0].click, mixed(A, B, share).click)


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_files(tmp_path, suffix):
    site = dp.NonStationaryInstance([A, C, C], [0, 10, 30], [None, None, ["sport", "music"]])
    site.save(tmp_path / f"site.{suffix}")
    assert dp.NonStationaryInstance.load(tmp_path / f"site.{suffix}") == site
    assert load_instance_or_site(tmp_path / f"site.{suffix}") == site
    A.save(tmp_path / f"instance.{suffix}")
    assert load_instance_or_site(tmp_path / f"instance.{suffix}") == A


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], []), "instances"),
        (([A, B], [0]), "expected 2 increasing integers"),
        (([A, B], [5, 6]), "from 0 on"),
        (([A, B], [0, 0]), "increasing"),
        (([A, B], [0, 1.5]), "expected an integer"),
        (([C, A], [0, 5]), "available"),
        (([A, A.replace(horizon=5)], [0, 5]), "horizon"),
        (([A, A.replace(reward=[1.0, 2.0])], [0, 5]), "reward"),
        (([A, B], [0, 5], [None]), "expected 2 lists"),
        (([A, B], [0, 5], [None, []]), "at least one"),
        (([A, B], [0, 5], [None, ["opera"]]), "no category 'opera'"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(InputError, match=message):
        dp.NonStationaryInstance(*arguments)


def test_errors_of_constructors():
    with pytest.raises(InputError, match=r"categories is \['news', 'sport'\] in the first instance and"):
        dp.NonStationaryInstance.drift(A, C, 100)
    with pytest.raises(InputError, match="pieces is 1"):
        dp.NonStationaryInstance.drift(A, B, 100, pieces=1)
    with pytest.raises(InputError, match="period is 3"):
        dp.NonStationaryInstance.seasonal(A, B, 3, 100)
    with pytest.raises(InputError, match=r"users is 100,000, which takes 20,000 pieces, .* at most 10,000 pieces"):
        dp.NonStationaryInstance.seasonal(A, B, 40, 100_000, pieces=8)
    assert len(dp.NonStationaryInstance.seasonal(A, B, 40, 50_000, pieces=8).starts) == 10_000
    with pytest.raises(InputError, match="instances has 10,001 pieces; expected at most 10,000"):
        dp.NonStationaryInstance([A] * 10_001, range(10_001))


SEGMENTS = dp.Segments(["x", "y"], [0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (dp.Instance([0.4, 0.6], [[0.3, 0.5], [0.6, 0.2]], categories=["sport", "news"]), "categories is"),
        (A.replace(types=["fan", "other"]), "types is"),
        (A.replace(reward=[1, 5]), r"reward is \[1.0, 1.0\] in the first instance and \[1.0, 5.0\]"),
        (A.replace(unit="euro"), "unit is clicks in the first instance and euro in the other"),
        (A.replace(horizon=3), "horizon is None in the first instance and 3 in the other"),
        (dp.Instance(None, A.click, segments=SEGMENTS, categories=A.categories), "segments"),
    ],
)
def test_only_probabilities_are_mixed(other, message):
    for build in (dp.NonStationaryInstance.drift, lambda a, b, n: dp.NonStationaryInstance.seasonal(a, b, n, n)):
        with pytest.raises(InputError, match=message):
            build(A, other, 100)


def test_starts_may_be_an_array():
    assert dp.NonStationaryInstance([A, B], np.array([0, 5])) == dp.NonStationaryInstance([A, B], [0, 5])
    for wrong in (np.array(0), np.array([[0], [5]]), np.array([0.5, 5])):
        with pytest.raises(InputError, match="starts is"):
            dp.NonStationaryInstance([A, B], wrong)
