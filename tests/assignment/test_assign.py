"""Types of users as data: the fast path over distinct histories against a loop over users."""

import duckdb
import numpy as np
import pytest

import departing as dp
from departing.data import sources as module
from departing.model.examples import magazine
from departing.policy.library import to_policy
from helpers.commands import call, json_output, output
from helpers.users import random_events, slow_rows

pandas = pytest.importorskip("pandas")
SITE = dp.Instance(
    [0.5, 0.3, 0.2],
    [[0.8, 0.3, 0.2], [0.3, 0.7, 0.4], [0.2, 0.4, 0.9]],
    [[0.5, 0.2, 0.6], [0.3, 0.3, 0.5], [0.7, 0.4, 0.2]],
    depart_on_click=0.05,
    categories=["news", "sport", "film"],
    types=["readers", "fans", "listeners"],
)
READINGS = {
    "logged": {},
    "inactive": {"inactive_after": 6, "departed": None},
    "both": {"inactive_after": 4, "duplicates": "keep"},
}


def read(events, **options):
    return dp.read_log(events, max_rejected=1.0, **options)


def table_of(log, *arguments):
    return dp.assign(log, *arguments).to_frame()


def same(one, two):
    pandas.testing.assert_frame_equal(one, two, check_dtype=False, rtol=1e-12)


@pytest.mark.parametrize("policy", ["fixed:sport", "greedy"])
@pytest.mark.parametrize("reading", READINGS)
def test_the_table_equals_a_loop_over_users(reading, policy):
    events = random_events(len(reading), users=60).rename(
        columns={"departed": READINGS[reading].get("departed") or "departed"}
    )
    log = read(events, **READINGS[reading])
    users = dp.assign(log, SITE, policy)
    table = users.to_frame()
    rows = list(slow_rows(log, events, SITE, to_policy(policy, SITE.categories, SITE)))
    assert len(table) == len(users) == len(rows) == log.users
    assert list(table["user"]) == sorted(set(events["user"]) & set(table["user"]))
    assert table["departed"].sum() == log.report.departed
    assert table["censored"].sum() == log.report.censored
    for row, slow in zip(table.itertuples(index=False), rows, strict=True):
        assert (row.events, row.clicks, row.departed) == (slow.events, slow.clicks, slow.departed)
        np.testing.assert_allclose(row[-3:], slow.posterior, rtol=1e-9)
        assert row.active_probability == pytest.approx(slow.active, rel=1e-9)
        assert row.type == SITE.types[int(np.argmax(slow.posterior))]
        assert row.type_probability == max(row[-3:])
        assert (row.recommendation if isinstance(row.recommendation, str) else None) == slow.recommendation
        assert abs(row.expected_remaining_clicks - slow.remaining) <= 1e-3 * SITE.best_fixed[1] + 1e-9


def test_the_summary_counts_users_by_type():
    log = read(random_events(3, users=80))
    users = dp.assign(log, SITE, "greedy")
    table = users.to_frame()
    for each in users.types:
        own = table[table["type"] == each.type]
        assert (each.users, each.departed) == (len(own), own["departed"].sum())
        assert each.expected_users == pytest.approx(table[f"posterior_{each.type}"].sum())
        assert each.probability == pytest.approx(own["type_probability"].mean())
        assert each.remaining == pytest.approx(own["expected_remaining_clicks"].sum())
        assert each.type in users.summary()
    assert users.describe() in users.summary()
    assert users.describe() in users._repr_html_()


def test_the_default_policy_is_the_optimal_one():
    log = read(random_events(4))
    same(table_of(log, SITE), table_of(log, SITE, dp.plan(SITE, gap=1e-3 * SITE.best_fixed[1])))
    planned = dp.plan(SITE, gap=0.1)
    same(table_of(log, planned), table_of(log, SITE, planned.policy))


def test_a_fit_is_accepted():
    log = read(random_events(4, users=400))
    model = dp.fit(log, types=2)
    same(table_of(log, model, "greedy"), table_of(log, model.instance, "greedy"))


def test_categories_are_matched_by_name():
    log = read(random_events(5))
    other = SITE.relabel(categories=[2, 0, 1])
    same(table_of(log, SITE, "greedy"), table_of(log, other, "greedy"))
    same(table_of(log, SITE, "fixed:film"), table_of(log, other, "fixed:film"))
    unused = dp.Instance(
        SITE.prior,
        np.vstack([[[0.1, 0.1, 0.1]], SITE.click]),
        np.vstack([[[0.9, 0.9, 0.9]], SITE.depart]),
        depart_on_click=0.05,
        categories=["unused", *SITE.categories],
        types=SITE.types,
    )
    same(table_of(log, SITE, "fixed:film"), table_of(log, unused, "fixed:film"))


def test_unknown_categories_are_an_error():
    log = read(random_events(6))
    site = dp.Instance([1.0], [[0.5], [0.5]], categories=["sport", "opera"])
    with pytest.raises(dp.InputError, match=r"does not know: 'film' \(\d+ events\), 'news' .*`categories` sport"):
        dp.assign(log, site)
    with pytest.raises(dp.InputError, match="choose a fit of this log"):
        dp.assign(log, dp.Instance([1.0], [[0.5]], categories=["opera"]))
    with pytest.raises(dp.InputError, match="expected a fit, a decision, a plan or an instance"):
        dp.assign(log, 3)
    with pytest.raises(dp.InputError, match="expected a log that read_log returned, with user IDs"):
        dp.assign(dp.Histories(log.counts), SITE)
    with pytest.raises(dp.InputError, match="pass inactive_after to read_log instead"):
        dp.assign(log, SITE, inactive_after=3)


def test_a_source_is_read():
    events = random_events(6)
    options = {"inactive_after": 6, "max_rejected": 1.0}
    same(
        dp.assign(events, SITE, "greedy", **options).to_frame(),
        table_of(dp.read_log(events, **options), SITE, "greedy"),
    )


def test_impossible_histories_have_no_type():
    log = read(random_events(7))
    sure = SITE.replace(depart=1.0, depart_on_click=0.0)
    users = dp.assign(log, sure, "greedy")
    table = users.to_frame()
    stayed = table["events"] - table["clicks"] - table["departed"] > 0
    assert 0 < users.impossible == (table["type"].isna()).sum()
    assert table.loc[stayed, "type"].isna().all()
    assert table.loc[table["type"].isna(), ["posterior_fans", "expected_remaining_clicks"]].isna().all(axis=None)
    assert "impossible under every type" in users.summary()


SOURCES = {
    "pandas": lambda events, folder: events,
    "arrow": lambda events, folder: pytest.importorskip("pyarrow").Table.from_pandas(events),
    "polars": lambda events, folder: pytest.importorskip("polars").from_pandas(events),
    "csv": lambda events, folder: events.to_csv(folder / "events.csv", index=False) or folder / "events.csv",
    "parquet": lambda events, folder: events.to_parquet(folder / "events.parquet") or folder / "events.parquet",
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_all_sources_give_the_same_file(kind, ending, tmp_path):
    events = random_events(8).assign(user=lambda frame: frame["user"].map("user {:03}".format))
    expected = table_of(read(events), SITE, "greedy")
    path = tmp_path / f"users.{ending}"
    users = dp.assign(read(SOURCES[kind](events, tmp_path)), SITE, "greedy", path)
    again = tmp_path / f"again.{ending}"
    users.save(again)
    assert path.read_bytes() == again.read_bytes()
    same(pandas.read_csv(path) if ending == "csv" else pandas.read_parquet(path), expected)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("('00000000-0000-0000-0000-00000000000' || number)::UUID", "UUID"),
        ("number::UTINYINT", "UTINYINT"),
        ("DATE '2026-01-01' + number::INTEGER", "DATE"),
    ],
)
def test_user_ids_keep_their_type(value, kind, tmp_path):
    events = random_events(9, users=9).rename(columns={"user": "number"})
    path = tmp_path / "events.parquet"
    with duckdb.connect() as database:
        database.register("events", events)
        database.execute(f"COPY (SELECT *, {value} AS user FROM events) TO '{path}'")
        dp.assign(read(path), SITE, "greedy", tmp_path / "users.parquet")
        columns = database.execute(f"DESCRIBE FROM '{tmp_path}/users.parquet'").fetchall()
    assert columns[0][:2] == ("user", kind)


def test_odd_names_are_fine(tmp_path):
    names = ["<b>it's</b>", 'a "quoted" one', 'A "QUOTED" one']
    categories = ["'; DROP TABLE users", "<script>", "\N{SNOWMAN}"]
    site = SITE.replace(types=names, categories=categories)
    events = random_events(10)
    events["category"] = events["category"].map(dict(zip(SITE.categories, categories, strict=True)))
    log = read(events)
    users = dp.assign(log, site, "greedy", tmp_path / "users.csv")
    frames = users.to_frame(), pandas.read_csv(tmp_path / "users.csv")
    assert [list(frame.columns) for frame in frames] == [list(users.columns)] * 2
    assert users.columns[-1] == 'posterior_A "QUOTED" one_'
    assert set(users.to_frame()["type"].dropna()) <= set(names)
    assert "<b>" not in users._repr_html_()


def test_nothing_is_left_after_an_error(tmp_path, monkeypatch):
    log = read(random_events(11))
    with pytest.raises(dp.InputError, match=r"ends in '.txt'; expected one of .parquet, .csv"):
        dp.assign(log, SITE, "greedy", tmp_path / "users.txt")
    with pytest.raises(dp.InputError, match="Cannot write"):
        dp.assign(log, SITE, "greedy", tmp_path / "none" / "users.csv")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "copy_rows", interrupt)
    with pytest.raises(KeyboardInterrupt):
        dp.assign(log, SITE, "greedy", tmp_path / "users.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_changed_log_is_refused(tmp_path):
    path = tmp_path / "events.csv"
    random_events(12).to_csv(path, index=False)
    log = read(path)
    users = dp.assign(log, SITE, "greedy")
    random_events(13).to_csv(path, index=False)
    with pytest.raises(dp.InputError, match="changed since the log was read"):
        dp.assign(log, SITE, "greedy", tmp_path / "users.csv")
    with pytest.raises(dp.InputError, match="changed since the log was read"):
        users.save(tmp_path / "users.csv")
    frame = random_events(12)
    log = read(frame)
    frame["clicked"] = ~frame["clicked"]
    with pytest.raises(dp.InputError, match="changed since they were read"):
        dp.assign(log, SITE, "greedy")
    assert [file.name for file in tmp_path.iterdir()] == ["events.csv"]


def simulated_users(site, users, days, seed):
    """Events of users who arrive at random times and return after a day on average; their types and departures."""
    random = np.random.default_rng(seed)
    types = random.choice(site.n_types, users, p=site.normalised_prior)
    time, gone, rows, active = random.random(users) * days, np.zeros(users, bool), [], np.arange(users)
    while len(active := active[time[active] < days]):
        shown = random.integers(0, site.n_categories, len(active))
        clicked = random.random(len(active)) < site.click[shown, types[active]]
        left = ~clicked & (random.random(len(active)) < site.depart[shown, types[active]])
        names = np.array(site.categories)[shown]
        events = {"user": active, "time": time[active], "category": names, "clicked": clicked, "departed": left}
        rows.append(pandas.DataFrame(events))
        gone[active[left]] = True
        active = active[~left]
        time[active] += random.exponential(1.0, len(active))
    return pandas.concat(rows), types, gone


def z_score(happened, probability):
    return (happened - probability).sum() / np.sqrt((probability * (1 - probability)).sum())


def assert_calibrated(happened, probability):
    for low in np.arange(0, 1, 0.1):
        inside = (probability >= low) & (probability < low + 0.1)
        assert abs(z_score(happened[inside], probability[inside])) < 4 or inside.sum() < 20


def test_posteriors_are_calibrated():
    site = magazine()
    events, types, _ = simulated_users(site, 20_000, days=8, seed=14)
    table = table_of(dp.read_log(events), site, "greedy")
    posterior = table.filter(like="posterior_").to_numpy()
    correct = types[table["user"], None] == np.arange(site.n_types)
    assert_calibrated(correct.ravel(), posterior.ravel())
    near = (posterior > 0.75) & (posterior < 0.85)
    assert correct[near].mean() == pytest.approx(0.8, abs=0.03)


def test_inactive_users_are_calibrated():
    site = dp.Instance([0.5, 0.5], [[0.7, 0.3], [0.4, 0.6]], [[0.2, 0.8], [0.2, 0.8]], categories=["news", "film"])
    events, types, gone = simulated_users(site, 20_000, days=40, seed=15)
    table = dp.assign(events.drop(columns="departed"), site, "greedy", inactive_after=8).to_frame()
    users = table[table["censored"]]
    correct, posterior = types[users["user"]] == 0, users["posterior_type 0"].to_numpy()
    here, active = ~gone[users["user"]], users["active_probability"].to_numpy()
    assert len(users) > 2000
    # The return times are estimated and in steps of 5 %, so that the sums are compared instead of the bins.
    assert correct.mean() == pytest.approx(posterior.mean(), abs=0.02)
    assert here.mean() == pytest.approx(active.mean(), abs=0.02)
    for low in (0.0, 0.25, 0.5, 0.75):
        for happened, probability in ((correct, posterior), (here, active)):
            inside = (probability >= low) & (probability < low + 0.25)
            assert happened[inside].mean() == pytest.approx(probability[inside].mean(), abs=0.05)


def test_the_command_equals_the_function(tmp_path):
    random_events(15).to_csv(tmp_path / "events.csv", index=False)
    SITE.save(tmp_path / "found.toml")
    users = dp.assign(read(tmp_path / "events.csv"), SITE, "fixed:news", tmp_path / "one.csv")
    arguments = ["assign", tmp_path / "events.csv", "--fit", tmp_path / "found.toml", "--policy", "fixed:news"]
    arguments += ["--max-rejected", "1"]
    values = json_output(*arguments, "-o", tmp_path / "two.csv")
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert values["users"] == len(users)
    assert [each["users"] for each in values["types"]] == [each.users for each in users.types]
    printed = output(*arguments, "-o", tmp_path / "two.parquet")
    assert "readers" in printed
    assert "Policy: always news." in printed
    assert f"Saved to {tmp_path / 'two.parquet'}" in printed.replace("\n", "")
    failed = call("assign", tmp_path / "events.csv", "--fit", "blog", "-o", tmp_path / "three.csv", *arguments[-2:])
    assert failed.exit_code == 2
    assert "does not know" in failed.stderr
    assert not (tmp_path / "three.csv").exists()
