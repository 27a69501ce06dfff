"""The sample of users whose steps a log keeps, and the number of readings of an analysis."""

import numpy as np
import pytest

import departing as dp
from departing.data import sample as samples
from departing.data.sample import Sample
from departing.data.sources import LogSource
from helpers.logs import steps_of

SITE = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.6]], 0.5, categories=["news", "film"])


def steps_in(log, users=10**6, chunk=7):
    """Steps of the sample of a log, by user."""
    found = {}
    for part in log.sample_episodes(users, chunk):
        assert len(np.unique(part.user)) <= chunk
        columns = (part.user, part.category, part.outcome, part.propensity, part.pending)
        for t, (user, *step) in zip(part.step, zip(*(c.tolist() for c in columns), strict=True), strict=True):
            found.setdefault(user, [])
            assert t == len(found[user])
            found[user].append(tuple(step))
    assert list(found) == list(range(len(found)))
    return list(found.values())


@pytest.fixture
def path(tmp_path):
    dp.sample_log(SITE, users=400, seed=1, days=60).save(tmp_path / "events.parquet")
    return tmp_path / "events.parquet"


def test_the_sample_of_a_small_log_is_the_log(path):
    log = dp.read_log(path, inactive_after="14 days")
    assert sorted(steps_in(log)) == sorted(steps_of(log))
    times = np.concatenate([part.time for part in log.sample_episodes(10**6, 50)])
    assert sorted(times) == sorted(np.concatenate([part.time for part in log.episodes()]).astype(np.float32))


def test_a_sample_is_part_of_a_larger_one(path, monkeypatch):
    log = dp.read_log(path, inactive_after="14 days")
    monkeypatch.setattr("departing.data.rules.SAMPLE_EVENTS", log.report.events // 4)
    part = dp.read_log(path, inactive_after="14 days")
    assert 50 < len(part.sample) < 150
    assert steps_in(part) == steps_in(log)[: len(part.sample)]
    assert steps_in(log, users=20) == steps_in(log)[:20]


def test_a_sample_has_at_most_the_users_that_a_check_needs(path, monkeypatch):
    log = dp.read_log(path, inactive_after="14 days")
    monkeypatch.setattr("departing.data.rules.SAMPLE_USERS", 100)
    monkeypatch.setattr(Sample.merge.__func__, "__defaults__", (100,))
    part = dp.read_log(path, inactive_after="14 days")
    assert len(part.sample) == 100
    assert steps_in(part) == steps_in(log)[:100]


def test_parts_of_a_sample_are_merged_by_hash():
    def rows(*users):
        steps = [(h, t) for h, n in users for t in range(n)]
        h, t = (np.array(column) for column in zip(*steps, strict=True))
        codes = dict.fromkeys(("category", "outcome", "propensity", "pending", "time"), h * 10 + t)
        return {"h": h, "step": t} | codes

    merged = Sample.merge([rows((1, 2), (5, 1)), rows((3, 3), (7, 2))], most=3)
    assert merged.lengths.tolist() == [2, 3, 1]
    assert merged.category.tolist() == [10, 11, 30, 31, 32, 50]
    assert merged.time.tolist() == merged.category.tolist()
    assert samples.SAMPLE_USERS == 200_000
    empty = {name: values[:0] for name, values in rows((1, 2)).items()}
    assert len(Sample.merge([empty])) == 0
    assert list(Sample.merge([empty]).episodes(5, 5)) == []


def test_an_analysis_reads_the_source_twice(path, monkeypatch):
    """Once for reading, fitting and checking, and once for off-policy evaluation."""
    readings, opened = [], LogSource.open

    def open_source(self):
        readings.append(self.source)
        return opened(self)

    monkeypatch.setattr(LogSource, "open", open_source)
    log = dp.read_log(path, inactive_after="14 days")
    model = dp.fit(log, types=2)
    model.check()
    assert len(readings) == 1
    value = dp.off_policy_value(log, "fixed:news", fit=model, bootstrap=20)
    assert value.dr is not None
    assert len(readings) == 2
    model_only = dp.read_log(path, inactive_after="14 days", propensity=None)
    assert dp.off_policy_value(model_only, "fixed:news", fit=model, bootstrap=20).dr is None
    assert len(readings) == 3  # a log without propensities is not read again
