"""Rewards of clicks in logs."""

import numpy as np
import pytest

import departing as dp
from departing.data.rewards import reward_scale

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

COLUMNS = ["user", "time", "category", "clicked", "departed", "revenue"]


def write_events(path, rows):
    path.write_text("\n".join([",".join(COLUMNS), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def random_events(seed, n=400):
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(n):
        for step in range(rng.integers(1, 4)):
            clicked = rng.random() < 0.5
            rows.append(
                (
                    f"u{user:03}",
                    step,
                    rng.choice(["news", "film", "music"]),
                    int(clicked),
                    0,
                    round(rng.lognormal(1, 1), 2) if clicked else "",
                )
            )
    return rows


def test_means_are_those_of_used_clicks(tmp_path):
    rows = random_events(1)
    late = [("u000", 9, "news", 1, 1, 5.0), ("u000", 10, "news", 1, 0, 1000.0)]  # after the departure
    rows += [*late, rows[0], *[row for row in rows[:20] if row[3]]]  # duplicates
    log = dp.read_log(write_events(tmp_path / "events.csv", rows), reward="revenue", unit="euro", max_rejected=0.2)
    used = set(rows) - {late[1]}
    values = {
        name: np.array([row[5] for row in used if row[2] == name and row[3]]) for name in ("film", "music", "news")
    }
    stats = log.rewards
    assert stats.categories == log.categories == tuple(values)
    assert stats.clicks.tolist() == [len(each) for each in values.values()]
    assert stats.mean == pytest.approx([each.mean() for each in values.values()], rel=1e-11)
    assert stats.sd == pytest.approx([each.std(ddof=1) for each in values.values()], rel=1e-9)
    assert stats.stderr == pytest.approx([each.std(ddof=1) / len(each) ** 0.5 for each in values.values()], rel=1e-9)
    assert (log.unit, stats.unit) == ("euro", "euro")
    assert log.report.columns["reward"] == "revenue"
    assert stats.to_dict()["mean"] == stats.mean.tolist()
    assert list(stats.to_frame().columns) == ["category", "mean", "stderr", "sd", "clicks"]
    assert stats.describe().startswith("Mean reward of a click in euro (± standard error): film ")
    assert "film" in stats._repr_html_()
    plain = dp.read_log(tmp_path / "events.csv", max_rejected=0.2)
    assert (plain.counts == log.counts).all()
    assert plain.rewards is None


def test_steps_carry_rewards(tmp_path):
    rows = random_events(2, n=50)
    log = dp.read_log(write_events(tmp_path / "events.csv", rows), reward="revenue")
    (steps,) = log.episodes()
    expected = [float(row[5]) if row[3] else 0.0 for row in sorted(rows, key=lambda row: row[:2])]
    assert steps.reward.tolist() == expected
    (sample,) = log.sample_episodes(100, 100)
    assert sorted(sample.reward.tolist()) == sorted(expected)
    with log.walks(None) as reduce:
        (walks,) = reduce(lambda arrays, _: arrays, {})
    assert sorted(walks["reward"].tolist()) == sorted(np.array(expected)[~steps.pending].tolist())
    assert log.unit == "revenue"  # the name of the column


def test_unit_rewards_have_the_mean_one_to_the_bit(tmp_path):
    rows = [(*row[:5], 1 if row[3] else "") for row in random_events(3)]
    log = dp.read_log(write_events(tmp_path / "events.csv", rows), reward="revenue")
    assert log.rewards.mean.tolist() == [1.0] * 3
    assert log.rewards.sd.tolist() == [0.0] * 3
    prices = [(*row[:5], 12.99 if row[3] else "") for row in random_events(3)]
    log = dp.read_log(write_events(tmp_path / "prices.csv", prices), reward="revenue")
    assert log.rewards.mean.tolist() == [12.99] * 3


def test_missing_and_invalid_rewards_are_counted(tmp_path):
    rows = random_events(4)
    clicks = [i for i, row in enumerate(rows) if row[3]]
    wrong = dict(zip(clicks[:4], ["", "-1", "12 euro", "inf"], strict=True))
    rows = [(*row[:5], wrong.get(i, row[5])) for i, row in enumerate(rows)]
    others = [i for i, row in enumerate(rows) if not row[3]]
    rows[others[0]] = (*rows[others[0]][:5], 3.5)
    rows[others[1]] = (*rows[others[1]][:5], 0)
    log = dp.read_log(write_events(tmp_path / "events.csv", rows), reward="revenue")
    kinds = {each.kind: each for each in log.report.irregularities}
    assert kinds["reward of a click is missing"].count == 1
    assert kinds["reward of a click is not a number ≥ 0"].count == 3
    assert "12 euro" in " ".join(kinds["reward of a click is not a number ≥ 0"].examples)
    assert kinds["reward without a click"].count == 1
    assert not any(each.rejected for each in kinds.values())
    assert log.rewards.clicks.sum() == len(clicks) - 4
    (steps,) = log.episodes()
    assert np.isnan(steps.reward).sum() == 4


def test_a_column_that_holds_no_rewards_is_refused(tmp_path):
    rows = [(*row[:5], "" if i % 4 else row[5]) for i, row in enumerate(random_events(5))]
    path = write_events(tmp_path / "missing.csv", rows)
    sentence = r"Column 'revenue' for reward holds no number ≥ 0 in \d+ of \d+ clicks .* Write 0 for clicks without"
    with pytest.raises(dp.InputError, match=sentence):
        dp.read_log(path, reward="revenue")
    assert dp.read_log(path, reward="revenue", max_rejected=0.9).rewards.clicks.sum() > 0
    with pytest.raises(dp.InputError, match="Column 'category' is named for reward and for another field"):
        dp.read_log(path, reward="category")
    zeros = write_events(tmp_path / "zeros.csv", [(*row[:5], 0) for row in random_events(5)])
    with pytest.raises(dp.InputError, match="Column 'revenue' for reward is 0 for every click"):
        dp.read_log(zeros, reward="revenue")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"reward": "revenu"}, "no column 'revenu' for reward in .* `reward`='revenue'"),
        ({"reward": "reward"}, "no column 'reward' for reward"),
        ({"reward": 3}, "reward is 3; expected the name of a column"),
        ({"unit": "euro"}, "unit is 'euro', but there is no reward"),
        ({"reward": "revenue", "unit": " "}, "unit is ' '; expected a name such as 'euro'"),
    ],
)
def test_invalid_arguments_raise_a_clear_error(tmp_path, options, sentence):
    path = write_events(tmp_path / "events.csv", random_events(6, n=20))
    with pytest.raises(dp.InputError, match=sentence):
        dp.read_log(path, **options)


def test_a_category_without_clicks_has_the_mean_of_all_clicks(tmp_path):
    rows = [("ann", 1, "news", 1, 1, 4), ("bob", 1, "film", 1, 1, 2), ("cy", 1, "sport", 0, 1, "")]
    stats = dp.read_log(write_events(tmp_path / "events.csv", rows), reward="revenue").rewards
    assert stats.mean.tolist() == [2.0, 4.0, 3.0]
    assert stats.clicks.tolist() == [1, 1, 0]
    assert np.isnan(stats.sd).all()
    assert stats.to_dict()["sd"] == [None] * 3


def test_large_and_small_rewards_keep_their_precision(tmp_path):
    values = [1e9, 1e9 + 1, 0.001, 0.002]
    table = {
        "user": [1, 2, 3, 4],
        "time": [1] * 4,
        "category": ["a", "a", "b", "b"],
        "clicked": [True] * 4,
        "departed": [True] * 4,
        "revenue": values,
    }
    parquet.write_table(arrow.table(table), tmp_path / "events.parquet")
    stats = dp.read_log(tmp_path / "events.parquet", reward="revenue").rewards
    assert stats.mean == pytest.approx([1e9 + 0.5, 0.0015], rel=1e-1)
    assert stats.mean[0] == pytest.approx(1e9 + 0.5, rel=1e-11)
    assert stats.sd[0] == pytest.approx(np.std(values[:2], ddof=1), rel=1e-3)
    assert reward_scale(0) == 1
