"""The paper's scheme for rating data, step by step, on a table of eight users small enough to compute by hand."""

from collections import defaultdict

import numpy as np
import pytest

import departing as dp
from departing.data.movielens import MovieLens
from departing.model.instance import CLICK, DEPART
from departing.paper.item import MEASURED, SKIPPED, Scale
from departing.paper.movielens import check_movielens, check_movielens_clicks, check_movielens_run
from helpers.commands import json_output
from helpers.releases import draw, write

GENRES = {1: ["Sci-Fi"], 2: ["Sci-Fi", "Drama"], 3: ["Drama"], 4: ["Comedy"], 5: ["Comedy", "Drama"], 6: ["Horror"]}
STARS = {  # by user and film
    1: {1: 5.0, 2: 4.0, 3: 3.0, 4: 2.0},
    2: {1: 0.5, 2: 1.0, 3: 4.5, 5: 4.0},
    3: {2: 3.5, 5: 2.5},
    4: {1: 4.0, 4: 3.0},  # no drama
    5: {3: 5.0, 4: 5.0},  # no science fiction
    6: {1: 2.0, 3: 3.0, 4: 4.0, 5: 5.0},
    7: {6: 5.0},
    8: {1: 1.0, 2: 1.5, 3: 2.0, 4: 2.5, 5: 3.0, 6: 3.5},
}
CHOSEN = ["Sci-Fi", "Drama", "Comedy"]  # the paper's example


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    ratings = [(user, film, stars) for user, by_film in STARS.items() for film, stars in by_film.items()]
    return write(tmp_path_factory.mktemp("ml") / "table", ratings, GENRES, "latest")


def rated(user, genre):
    """Normalised ratings of the films of a genre that a user rated."""
    return [(2 * stars - 0.5) / 10 for film, stars in STARS[user].items() if genre in GENRES[film]]


def test_users_without_a_rating_in_a_chosen_genre_are_removed(path):
    replay = MovieLens.read(path).replay(CHOSEN)
    assert replay.instance.types == ("user 1", "user 2", "user 3", "user 6", "user 8")
    assert (replay.users, replay.missing_genre) == (5, 3)
    types = MovieLens.read(path).semi_synthetic(CHOSEN, 2)
    assert (types.users, types.missing_genre) == (5, 3)


def test_click_probability_is_one_minus_the_normalised_rating(path):
    ratings = MovieLens.read(path)
    kept = [1, 2, 3, 6, 8]
    means = np.array([[np.mean(rated(user, genre)) for user in kept] for genre in CHOSEN])
    np.testing.assert_allclose(ratings.replay(CHOSEN, click="paper").instance.click, 1 - means)
    np.testing.assert_allclose(ratings.replay(CHOSEN, click="stars").instance.click, means)
    assert ratings.replay(CHOSEN).instance.click[0, 0] == pytest.approx((0.95 + 0.75) / 2)


def test_ucb_hybrid_on_drawn_users_and_films_is_ucb_hybrid_on_the_replay(path):
    genres, users = CHOSEN[:2], 600
    kept = [user for user in STARS if all(rated(user, genre) for genre in genres)]
    rng, clicks, runs = np.random.default_rng(0), [], 4
    for _ in range(runs):
        learner, total = dp.UCBHybrid.thresholds(users, tau=0.5, horizon=3), 0
        for t in range(users):
            user, active = kept[rng.integers(len(kept))], True
            while active:
                a = int(learner.recommend([t])[0])
                films = rated(user, genres[a])
                active = rng.random() < 1 - films[rng.integers(len(films))]
                learner.observe([t], [a], [CLICK if active else DEPART])
                total += active
        clicks.append(total / users)
    replay = MovieLens.read(path).replay(genres, click="paper").instance
    assert replay.n_types == len(kept)
    same = [
        dp.simulate(replay, dp.UCBHybrid.thresholds(users, tau=0.5, horizon=3), users, seed, optimum=1.0).mean
        for seed in range(40)
    ]
    spread = np.sqrt(np.var(same, ddof=1) * (1 / runs + 1 / len(same)))
    assert abs(np.mean(clicks) - np.mean(same)) < 4 * spread


def test_checks_run_both_readings_on_users_of_the_data(path):
    scale = Scale(quick=True, movielens=path)
    types = check_movielens(scale)
    assert [row[:3] for row in types.table[1:]] == [
        ["Sci-Fi, Drama, Comedy", "5", "3"],
        ["Drama, Comedy, Sci-Fi, Horror", "1", "1"],  # only user 8 rated all genres
    ]
    assert "up to 4 genres and 3 types" in types.evidence
    clicks = check_movielens_clicks(scale)
    assert clicks.verdict == MEASURED
    assert [row[0] for row in clicks.table[1:]] == CHOSEN
    run = check_movielens_run(scale)
    assert [row[:2] for row in run.table[1:]] == [
        ["Sci-Fi, Drama", "1 − r"],
        ["Sci-Fi, Drama", "r"],
        ["Sci-Fi, Drama, Comedy", "1 − r"],
        ["Sci-Fi, Drama, Comedy", "r"],
    ]
    by_column = defaultdict(list)
    for row in run.table[1:]:
        for name, cell in zip(run.table[0], row, strict=True):
            by_column[name].append(cell)
    assert by_column["removed"] == ["3"] * 4
    assert by_column["policies"][2:] == ["3", "3"]
    for regret, in_turn in zip(by_column["UCB-Hybrid"], by_column["in turn"], strict=True):
        assert 0 < float(regret.split(" ± ")[0].replace(",", "")) < 1.01 * float(in_turn.replace(",", ""))


@pytest.mark.parametrize(("form", "half_stars", "epsilon"), [("latest", True, 0.05), ("100k", False, 0.1)])
def test_command_checks_the_scheme_on_a_release_without_the_papers_genres(tmp_path, form, half_stars, epsilon):
    folder = write(tmp_path / "ml", *draw(1, users=60, half_stars=half_stars), form)
    keys = "movielens,movielens-clicks,movielens-run"
    values = json_output("paper", "--quick", "--only", keys, "--movielens", folder, "-o", tmp_path / "report.html")
    assert [row["verdict"] for row in values["items"]] == [MEASURED] * 3
    assert all(f"ε = {epsilon}" in row["evidence"] for row in values["items"][1:])
    assert values["changed"] == []


@pytest.mark.parametrize("stars", [[0.5, 4.0], [1.0, 5.0], [2.0, 5.0], [1.5, 2.0]])
def test_no_click_probability_exceeds_one_minus_epsilon(tmp_path, stars):
    ratings = MovieLens.read(write(tmp_path, [(1, 1, stars[0]), (2, 1, stars[1])], {1: ["Drama"]}, "latest"))
    assert ratings.epsilon == (0.05 if any(x % 1 for x in stars) else 0.1)
    for click in ("stars", "paper"):
        assert ratings.replay(["Drama"], click=click).instance.click.max() <= 1 - ratings.epsilon


def test_checks_choose_genres_that_some_user_rated(tmp_path):
    rated = [(1, 1, 4.0), (1, 2, 3.0), (2, 1, 2.0), (2, 2, 5.0), (3, 3, 1.0)]  # nobody rated all three
    scale = Scale(quick=True, movielens=write(tmp_path, rated, {f: [CHOSEN[f - 1]] for f in (1, 2, 3)}, "latest"))
    assert check_movielens(scale).table[1][:3] == ["Drama, Sci-Fi", "2", "1"]  # one film each: means do not differ
    assert [row[0] for row in check_movielens_clicks(scale).table[1:]] == ["Drama", "Sci-Fi"]
    assert {row[0] for row in check_movielens_run(scale).table[1:]} == {"Drama, Sci-Fi", "Sci-Fi, Drama"}


def test_checks_are_skipped_without_ratings():
    for check in (check_movielens, check_movielens_clicks, check_movielens_run):
        assert check(Scale(quick=True)).verdict == SKIPPED
