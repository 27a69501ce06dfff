import duckdb
import numpy as np
import pytest

import departing as dp
from departing.model.examples import blog, magazine


def read(path):
    return duckdb.sql(f"SELECT * FROM '{path}'").fetchnumpy()


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_the_event_log_contains_every_step_of_the_run(tmp_path, ending):
    path = tmp_path / f"events.{ending}"
    run = dp.simulate(magazine(), dp.Greedy(magazine()), users=3000, seed=1, log=path, max_steps=6)
    rows = read(path)
    assert list(rows) == ["user", "time", "category", "clicked", "departed"]
    assert len(rows["user"]) == run.steps
    assert rows["clicked"].sum() == run.clicks
    assert rows["departed"].sum() == 3000 - run.truncated
    assert set(rows["category"]) <= set(magazine().categories)
    assert (np.diff(rows["time"]) >= 0).all()
    counts = np.zeros((3000, 3, 4), np.int64)
    category = [magazine().category_index(name) for name in rows["category"]]
    outcome = np.where(rows["clicked"], np.where(rows["departed"], 3, 0), np.where(rows["departed"], 2, 1))
    np.add.at(counts, (rows["user"].astype(int), category, outcome), 1)
    again = dp.Histories(counts).distinct
    assert (again.counts == run.histories.counts).all()
    assert (again.multiplicity == run.histories.multiplicity).all()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_each_user_departs_last_and_truncated_users_never(tmp_path):
    dp.simulate(magazine(), dp.Fixed(0), users=500, seed=1, log=tmp_path / "a.parquet", max_steps=3, open_users=7)
    rows = read(tmp_path / "a.parquet")
    for user in range(500):
        mine = rows["user"] == user
        departed, times = rows["departed"][mine], rows["time"][mine]
        assert (np.diff(times) == 1).all()
        assert not departed[:-1].any()
        assert departed[-1] or len(departed) == 3


def test_category_names_may_contain_any_character(tmp_path):
    names = ['it\'s, "odd"', "Ελλάδα 🎬"]
    instance = dp.Instance([1.0], [[0.5], [0.5]], categories=names)
    for ending in ("csv", "parquet"):
        dp.simulate(instance, dp.Walk([0], then=1), users=50, log=tmp_path / f"it's.{ending}")
        folder = str(tmp_path).replace("'", "''")
        rows = duckdb.sql(f"SELECT DISTINCT category FROM '{folder}/it''s.{ending}'").fetchnumpy()
        assert set(rows["category"]) == set(names)


def test_a_million_events_pass_through_in_chunks(tmp_path):
    run = dp.simulate(blog(), dp.Fixed(1), users=900_000, seed=1, log=tmp_path / "a.parquet")
    total = duckdb.sql(f"SELECT count(*), sum(clicked::int) FROM '{tmp_path}/a.parquet'").fetchall()[0]
    assert total == (run.steps, run.clicks)
    assert run.steps > 2**20


def test_an_interrupted_run_leaves_no_file(tmp_path):
    def stop(users):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dp.simulate(blog(), dp.Fixed(1), users=50_000, log=tmp_path / "a.parquet", progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_paths_raise_clear_errors(tmp_path):
    for path, sentence in ((tmp_path / "no" / "a.csv", "Cannot write"), (tmp_path / "a.xlsx", "expected one of")):
        with pytest.raises(dp.InputError, match=sentence):
            dp.simulate(blog(), dp.Fixed(1), users=50, log=path)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_policy_stays_that_error(tmp_path):
    class Failing:
        def recommend(self, counts):
            raise RuntimeError("query interrupted by me")

    with pytest.raises(RuntimeError, match="by me"):
        dp.simulate(blog(), Failing(), users=50, log=tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []
