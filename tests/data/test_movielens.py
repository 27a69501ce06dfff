import os
import re
import shutil
import warnings
import zipfile
from collections import defaultdict
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import departing as dp
from departing.data.clusters import _lloyd, kmeans
from departing.data.movielens import DominantGenreWarning, MovieLens, _first_half
from departing.model.instance import CLICK, DEPART, STAY
from helpers.commands import check_block
from helpers.releases import draw, write, zipped

SMALL = Path(__file__).parents[3] / "shared" / "data" / "ml-latest-small"
real = pytest.mark.skipif(not SMALL.exists(), reason="MovieLens is not redistributed; put it into ../shared/data")
THREE = ["Action", "Comedy", "Drama"]


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    ratings, genres = draw(1)
    return write(tmp_path_factory.mktemp("ml") / "ml-latest", ratings, genres, "latest"), ratings, genres


def slow_means(ratings, genres, genre, probability):
    """Mean click probability of every user in a genre, in exact fractions."""
    by_user = defaultdict(list)
    for user, film, stars in ratings:
        if genre in genres[film]:
            by_user[user].append(probability(stars))
    return {user: sum(values) / len(values) for user, values in by_user.items()}


@pytest.mark.parametrize("form", ["latest", "1m", "100k"])
@pytest.mark.parametrize("half_stars", [True, False])
def test_every_release_format_gives_the_same_ratings_as_folder_and_as_zip(tmp_path, form, half_stars):
    ratings, genres = draw(2, half_stars=half_stars)
    folder = write(tmp_path / form, ratings, genres, form)
    expected = MovieLens.read(write(tmp_path / "other", ratings, genres, "latest")).replay(THREE).instance
    for path in (folder, str(folder), zipped(folder, tmp_path / "ml.zip")):
        data = MovieLens.read(path)
        assert len(data) == len(ratings)
        assert data.replay(THREE).instance == expected


@given(
    st.integers(0, 10**6),
    st.sampled_from(["latest", "1m", "100k"]),
    st.booleans(),
    st.sampled_from(["stars", "paper"]),
)
@pytest.mark.slow
def test_replay_is_the_mean_of_each_users_ratings(tmp_path_factory, seed, form, half_stars, click):
    ratings, genres = draw(seed, users=12, half_stars=half_stars)
    half_stars = any(stars % 1 for _, _, stars in ratings)
    folder = write(tmp_path_factory.mktemp("ml"), ratings, genres, form)
    data = MovieLens.read(folder).replay(THREE, depart=0.5, click=click)

    def probability(stars):
        r = (Fraction(stars) * 2 - Fraction(1, 2)) / 10 if half_stars else (Fraction(stars) - Fraction(1, 2)) / 5
        return r if click == "stars" else 1 - r

    means = [slow_means(ratings, genres, genre, probability) for genre in THREE]
    everyone = {user for user, _, _ in ratings}
    kept = sorted(user for user in everyone if all(user in one for one in means))
    assert data.instance.types == tuple(f"user {user}" for user in kept)
    assert (data.users, data.missing_genre, data.imputed) == (len(kept), len(everyone) - len(kept), 0)
    expected = [[float(one[user]) for user in kept] for one in means]
    np.testing.assert_allclose(data.instance.click, expected, rtol=1e-14)
    np.testing.assert_allclose(data.instance.prior, 1 / len(kept))


def test_replay_is_drawing_a_user_a_film_and_a_click(release):
    folder, ratings, genres = release
    replay = MovieLens.read(folder).replay(THREE, depart=0.5).instance
    rated = defaultdict(list)
    for user, film, stars in ratings:
        for genre in genres[film]:
            rated[f"user {user}", genre].append((2 * stars - 0.5) / 10)
    rng, users, policy = np.random.default_rng(4), 20_000, dp.Walk([0, 2, 2], then=1)
    tally = defaultdict(int)
    for _ in range(users):
        user, counts, here = rng.choice(replay.types), np.zeros((3, 4), np.int64), True
        while here:
            a = int(policy.recommend(counts))
            films = rated[user, THREE[a]]
            clicked = rng.random() < films[rng.integers(len(films))]
            here = clicked or rng.random() >= 0.5
            counts[a, CLICK if clicked else STAY if here else DEPART] += 1
        tally[min(counts.sum(), 12), min(counts[:, CLICK].sum(), 12)] += 1
    for engine in ("step", "lanes", "aggregate"):
        seen = dp.simulate(replay, policy, users=users, seed=5, engine=engine).histories
        other = defaultdict(int)
        for n, steps, clicks in zip(seen.multiplicity, seen.steps, seen.clicks, strict=True):
            other[min(steps, 12), min(clicks, 12)] += int(n)
        cells = [cell for cell in {*tally, *other} if tally[cell] + other[cell] >= 20]
        z = [(tally[cell] - other[cell]) / np.sqrt(tally[cell] + other[cell]) for cell in cells]
        assert len(cells) > 30
        assert np.square(z).sum() < len(z) + 4 * np.sqrt(2 * len(z))


def test_types_are_clustered_on_one_half_and_measured_on_the_other(release):
    folder, ratings, genres = release
    read = MovieLens.read(folder)
    mine = [row for row in ratings if set(genres[row[1]]) & set(THREE)]
    numbers = sorted({user for user, _, _ in ratings})
    indices = np.array([numbers.index(user) for user, _, _ in mine], np.int32)
    films = np.array([sorted(genres).index(film) for _, film, _ in mine], np.int32)
    has_genre = np.array([[genre in genres[film] for genre in THREE] for film in sorted(genres)])
    first = _first_half(indices, films, has_genre, np.random.default_rng(3))
    second = {
        (user, genre) for (user, film, _), one in zip(mine, first, strict=True) if not one for genre in genres[film]
    }
    first = [  # a genre without a rating in the second half has all of them there
        one and all((user, genre) in second for genre in set(genres[film]) & set(THREE))
        for (user, film, _), one in zip(mine, first, strict=True)
    ]
    halves = [[row for row, flag in zip(mine, first, strict=True) if flag == side] for side in (True, False)]
    clustered, measured = (
        [slow_means(half, genres, genre, lambda stars: (2 * stars - 0.5) / 10) for genre in THREE] for half in halves
    )
    averages = [np.mean(list(by_user.values())) for by_user in clustered]
    deviations = {
        user: np.mean([one[user] - x for one, x in zip(clustered, averages, strict=True) if user in one] or [0.0])
        for user in numbers
    }
    clustered = [
        {user: by_user.get(user, x + deviations[user]) for user in numbers}
        for by_user, x in zip(clustered, averages, strict=True)
    ]
    kept = [user for user in numbers if all(user in one for one in measured)]
    one = read.semi_synthetic(THREE, 1, seed=3)
    assert (one.users, one.missing_genre) == (len(kept), read.replay(THREE).missing_genre)
    assert one.users + one.missing_genre == len(numbers)
    expected = np.array([[by_user[user] for user in kept] for by_user in measured])
    np.testing.assert_allclose(one.instance.click[:, 0], expected.mean(axis=1))
    many = read.semi_synthetic(THREE, len(kept), seed=3).instance  # nothing is merged
    np.testing.assert_allclose(np.sort(many.click, axis=1), np.sort(expected, axis=1))
    assert (np.diff(many.click.mean(axis=0)) <= 1e-15).all()
    two = read.semi_synthetic(THREE, 2, seed=3).instance
    points = np.array([[by_user[user] for by_user in clustered] for user in kept])
    best = min((two_means(points, a, b) for a in points for b in points), key=lambda one: one[0])[1]
    sides = sorted((expected[:, side].mean(axis=1) for side in (best, ~best)), key=lambda column: -column.mean())
    np.testing.assert_allclose(two.click, np.transpose(sides))
    assert sorted(two.prior) == pytest.approx(sorted([best.mean(), 1 - best.mean()]))


def two_means(points, a, b):
    """Two clusters from two centres: the sum of squares, and which points are in the first."""
    for _ in range(50):
        near = ((points - a) ** 2).sum(axis=1) <= ((points - b) ** 2).sum(axis=1)
        if near.all():
            return np.inf, near
        a, b = points[near].mean(axis=0), points[~near].mean(axis=0)
    return ((points - np.where(near[:, None], a, b)) ** 2).sum(), near


def test_halves_are_of_equal_size_and_random():
    rng = np.random.default_rng(0)
    users = rng.integers(0, 50, 1001).astype(np.int32)
    films = rng.integers(0, 80, 1001).astype(np.int32)
    has_genre = rng.random((80, 3)) < 0.5
    ratings = np.bincount(users, minlength=50)
    times = np.zeros(len(users))
    for seed in range(400):
        first = _first_half(users, films, has_genre, np.random.default_rng(seed))
        assert (np.abs(2 * np.bincount(users[first], minlength=50) - ratings) <= 1).all()
        times += first
    assert np.abs(times - 200).max() < 5 * np.sqrt(400 / 4)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_halves_are_stratified_by_genre(k):
    rng = np.random.default_rng(k)
    users = np.sort(rng.integers(0, 300, 300 * 2 * k)).astype(np.int32)  # few ratings each
    films = rng.integers(0, 200, len(users)).astype(np.int32)
    has_genre = rng.random((200, k)) < np.linspace(0.2, 0.5, k)
    has_genre[~has_genre.any(axis=1), 0] = True
    first, anyhow = _first_half(users, films, has_genre, rng), rng.random(len(users)) < 0.5
    missing = []
    for g in (np.bincount(films, minlength=200) @ has_genre).argsort():
        of_genre = has_genre[films, g]
        ratings = np.bincount(users[of_genre], minlength=300)
        halves = [np.bincount(users[of_genre & half], minlength=300) for half in (first, anyhow)]
        missing.append([int(((ratings > 1) & ((n == 0) | (n == ratings))).sum()) for n in halves])
    assert [n for n, _ in missing[:2]] == [0] * min(k, 2)  # the two rarest genres: two ratings are enough
    assert sum(n for n, _ in missing) < sum(n for _, n in missing) / 4


@given(st.integers(0, 10**6))
def test_types_keep_every_user_of_the_replay(seed):
    read = small_ratings(seed)
    rated = [any(read.has_genre[f, g] for f in read.films) for g in range(3)]
    assume(all(rated))
    try:
        replay = read.replay(THREE)
    except dp.InputError:  # nobody rated all genres
        assume(False)
    data = read.semi_synthetic(THREE, 1, seed=seed)
    assert (data.users, data.missing_genre) == (replay.users, replay.missing_genre)
    single = 0  # users with one rating of a genre
    for user in range(len(read.ids)):
        films = read.films[read.users == user]
        single += f"user {user + 1}" in replay.instance.types and read.has_genre[films].sum(axis=0).min() == 1
    assert single <= data.imputed <= data.users
    assert ("clustered by some of the genres" in data.describe()) == (data.imputed > 0)


def small_ratings(seed):
    """Ratings of 8 users who rated 2 to 8 films each."""
    rng = np.random.default_rng(seed)
    films = [rng.choice(20, rng.integers(2, 9), replace=False) for _ in range(8)]
    users = np.repeat(np.arange(8, dtype=np.int32), [len(rated) for rated in films])
    half_stars = rng.integers(1, 11, len(users)).astype(np.uint8)
    has_genre = rng.random((20, 3)) < 0.5
    ids, films = np.arange(1, 9, dtype=np.int32), np.concatenate(films).astype(np.int32)
    return MovieLens(tuple(THREE), ids, users, films, half_stars, has_genre)


def test_generous_and_harsh_raters_are_separated_for_every_seed(tmp_path):
    rng = np.random.default_rng(6)
    genres = {f: [THREE[f % 3]] for f in range(1, 61)}
    level = {u: 4.5 if u <= 30 else 3.0 if u <= 80 else 1.5 for u in range(1, 101)}  # 30, 50 and 20 of them
    ratings = [
        (u, f, float(np.clip(round(2 * (level[u] + 0.5 * (f % 3 == 2) + rng.normal(0, 0.5))) / 2, 0.5, 5)))
        for u in level
        for f in genres
    ]
    read = MovieLens.read(write(tmp_path, ratings, genres, "latest"))
    for seed in range(5):
        data = read.semi_synthetic(THREE, 3, seed=seed)
        assert data.instance.prior == pytest.approx([0.3, 0.5, 0.2])
        assert (np.diff(data.instance.click, axis=1) < -0.1).all()
        assert data.dominant == "Drama"
        assert "planning gains nothing" in data.dominance
    again = read.semi_synthetic(THREE, 3, seed=4)
    assert again.instance == data.instance
    with pytest.warns(DominantGenreWarning, match="Drama is best for every type"):
        instance = dp.movielens(tmp_path, THREE, 3, seed=4)
    assert instance == data.instance
    assert dp.plan(instance).describe() == "always Drama"
    # Who departs more surely from the best genre may be better off with another one.
    varied = read.semi_synthetic(THREE, 3, depart=[0.5, 0.5, 1.0]).instance
    assert varied.depart.tolist() == [[0.5] * 3, [0.5] * 3, [1.0] * 3]
    assert read.semi_synthetic(THREE, 2, depart=[[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]).instance.depart[2, 1] == 0.6


def test_there_is_no_warning_without_a_dominant_genre(tmp_path):
    genres = {f: [THREE[f % 2]] for f in range(1, 21)}
    ratings = [(u, f, 4.5 if f % 2 == u % 2 else 2.0) for u in range(1, 21) for f in genres]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        instance = dp.movielens(write(tmp_path, ratings, genres, "latest"), THREE[:2], types=2)
    assert np.sort(instance.click, axis=None) == pytest.approx([0.35, 0.35, 0.85, 0.85])
    assert instance.prior == pytest.approx([0.5, 0.5])


def test_the_default_genres_are_the_most_rated(release):
    folder, ratings, genres = release
    read = MovieLens.read(folder)
    often = {g: sum(g in genres[film] for _, film, _ in ratings) for g in THREE}
    assert {genre.name: genre.ratings for genre in read.genres} == often
    assert [genre.name for genre in read.genres] == sorted(often, key=lambda g: -often[g])
    first = read.genres[0]
    stars = [s for _, film, s in ratings if first.name in genres[film]]
    assert first.stars == pytest.approx(np.mean(stars))
    assert first.films == sum(first.name in has for has in genres.values())
    assert set(read.replay().instance.categories) == set(THREE)
    assert repr(read) == f"<MovieLens of {len(ratings)} ratings by 30 users>"


def test_a_folder_may_have_any_name_and_an_unreadable_file_raises_an_error(release, tmp_path):
    strange = tmp_path / "ml [25m]* ? 'é'"
    shutil.copytree(release[0], strange)
    assert len(MovieLens.read(strange)) == len(release[1])
    (strange / "movies.csv").unlink()
    (strange / "movies.csv").mkdir()
    with pytest.raises(dp.InputError, match=r"Cannot read .*: Is a directory"):
        MovieLens.read(strange)


@pytest.mark.slow
def test_learners_and_environments_accept_a_replay(release):
    gymnasium = pytest.importorskip("gymnasium")
    import departing.simulation.gym  # noqa: F401

    replay = MovieLens.read(release[0]).replay(THREE, depart=0.5).instance
    best = dp.plan(replay, gap=0.05, seconds=20)
    for learner in (dp.LatticeUCB(categories=3, users=300), dp.Bayes(types=2, categories=3, seed=0)):
        for options in ({}, {"engine": "step"}):
            run = dp.simulate(replay, learner, users=300, seed=1, optimum=best.upper, **options)
            assert run.users == 300
            assert 0 < run.mean < best.upper + 5 * run.stderr
            assert run.regret[-1] > -0.1
    env = gymnasium.make("departing/User-v0", instance=replay, reveal_type=True)
    seen = {env.reset(seed=seed)[1]["type"] for seed in range(300)}
    assert len(seen) > 0.9 * replay.n_types
    assert env.step(2)[1] in (0.0, 1.0)


def changed(folder, target, file, change):
    shutil.copytree(folder, target)
    path = target / file
    path.write_bytes(change(path.read_bytes()))
    return target


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("ratings.csv", lambda text: text + b"7,4", "Cannot read ratings.csv in .*: .*Line: "),
        ("ratings.csv", lambda text: text + b"7,4,,964982703\n", "has 1 invalid ratings, the first in row "),
        ("ratings.csv", lambda text: text + b",4,3.0,964982703\n", "has 1 invalid ratings"),
        (
            "ratings.csv",
            lambda text: text + b"7,4,3.7,964982703\n",
            "half stars from 0.5 to 5",
        ),
        (
            "ratings.csv",
            lambda text: text + b"7,4,5.5,964982703\n",
            "half stars from 0.5 to 5",
        ),
        ("ratings.csv", lambda text: text + b"7,4,good,964982703\n", "Cannot read"),
        ("ratings.csv", lambda text: text + b"7,999,3.0,964982703\n", "rates film 999, which movies.csv does"),
        ("ratings.csv", lambda text: text.split(b"\n")[0] + b"\n", "holds no ratings"),
        ("ratings.csv", lambda text: b"", "starts with ''; expected 'userId,movieId,rating,timestamp'"),
        ("ratings.csv", lambda text: text.replace(b"userId", b"user"), "starts with 'user,movieId"),
        ("movies.csv", lambda text: b"movieId,title,genres\n", "movies.csv in .* holds no films"),
        ("movies.csv", lambda text: b"id,title\n1,x\n", "movies.csv in .* its first line is 'id,title'"),
        (
            "movies.csv",
            lambda text: text + b"x,y,Drama\n",
            "movies.csv in .* is not in the format of",
        ),
        (
            "ratings.csv",
            lambda text: text + b"-7,4,3.0,964982703\n",
            "half stars from 0.5 to 5",
        ),
        (
            "ratings.csv",
            lambda text: text + b"2000000000,4,3.0,964982703\n",
            "half stars from 0.5 to 5",
        ),
        ("movies.csv", lambda text: text + b"99999999999,y,Drama\n", "film ID that is not from 0 to 100000000"),
        ("movies.csv", lambda text: text + b"5\n", "movies.csv in .* is not in the format of"),
    ],
)
def test_a_damaged_release_raises_an_error_of_one_sentence(release, tmp_path, file, change, words):
    with pytest.raises(dp.InputError, match=words) as error:
        MovieLens.read(changed(release[0], tmp_path / "ml", file, change))
    assert "\n" not in str(error.value)


def test_a_path_that_is_no_release_raises_an_error(release, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.zip").write_text("no zip")
    good = zipped(release[0], tmp_path / "good.zip")
    whole = good.read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    with zipfile.ZipFile(good) as archive:
        at = archive.getinfo("ml/ratings.csv").header_offset + 200
    (tmp_path / "bent.zip").write_bytes(whole[:at] + bytes(b ^ 255 for b in whole[at : at + 50]) + whole[at + 50 :])
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("holiday/photo.txt", "x")
    for name, words in {
        "nowhere": "There is no file or folder '.*nowhere'",
        "empty": "is not a MovieLens release; expected ratings.csv and movies.csv .latest, 20M, 25M, 32M., or ",
        "other.zip": "is not a MovieLens release; expected ",
        "text.zip": "is neither a folder nor a zip file; expected ",
        "cut.zip": "is neither a folder nor a zip file; expected ",
        "bent.zip": "The zip '.*bent.zip' cannot be unpacked: ",
    }.items():
        with pytest.raises(dp.InputError, match=words) as error:
            dp.movielens(tmp_path / name)
        assert "\n" not in str(error.value)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("tmp")]


def test_an_invalid_argument_raises_an_error_of_one_sentence(release, tmp_path):
    read = MovieLens.read(release[0])
    for choices, words in (
        ({"genres": ["Drama", "comedi"]}, "There is no genre 'comedi'; did you mean 'Comedy'"),
        ({"genres": ["drama"]}, "There is no genre 'drama'; did you mean 'Drama'"),
        ({"genres": [7]}, r"genres is \[7\]; expected nonempty names"),
        ({"genres": "Drama"}, "genres is 'Drama'; expected nonempty names"),
        ({"genres": []}, r"genres is \[\]; expected nonempty names"),
        ({"genres": ["Drama", "Drama"]}, "genres has the name 'Drama' twice"),
        ({"types": 0}, "types is 0; expected an integer ≥ 1"),
        ({"types": 2.5}, "types is 2.5; expected an integer ≥ 1"),
        ({"types": 31}, "types is 31; expected at most .* users with ratings in each genre"),
        ({"seed": -1}, "seed is -1"),
        ({"click": "start"}, "click is 'start'; expected one of stars, paper"),
        ({"depart": 1.5}, "depart is 1.5|depart.* is 1.5"),
        ({"depart": [0.5, 0.5]}, "depart has shape"),
        ({"depart": [[0.5], [0.5, 0.2]]}, "depart is"),
        ({"depart": 0.0}, "never departs"),
    ):
        with pytest.raises(dp.InputError, match=words):
            read.semi_synthetic(**choices)
    apart = [(1, 1, 3.0), (2, 2, 3.5)]
    alone = MovieLens.read(write(tmp_path, apart, {1: ["Drama"], 2: ["Comedy"]}, "latest"))
    for make in (alone.semi_synthetic, alone.replay):
        with pytest.raises(dp.InputError, match="No user has a rating in each of the genres Comedy, Drama; choose"):
            make(["Comedy", "Drama"])
    with pytest.raises(dp.InputError, match="at most 1, the number of distinct means of 1 user with ratings"):
        alone.semi_synthetic(["Comedy"])


def test_kmeans_finds_the_best_of_all_partitions():
    rng = np.random.default_rng(7)
    for _ in range(10):
        points = rng.random((3, 2))[[0, 0, 0, 1, 1, 1, 2, 2]] + rng.normal(0, 0.15, (8, 2))
        labels = kmeans(points, 3, rng)
        assert set(labels) == {0, 1, 2}

        def spread(split, points=points):
            parts = [points[np.array(split) == x] for x in range(3)]
            return sum(((part - part.mean(axis=0)) ** 2).sum() for part in parts if len(part))

        assert spread(labels) == pytest.approx(min(map(spread, product(range(3), repeat=8))))


def test_no_cluster_is_empty():
    points = np.repeat([[0.0], [1.0], [1.0 + 1e-9], [5.0]], [50, 1, 1, 3], axis=0)
    for n in range(1, 5):
        assert set(kmeans(points, n, np.random.default_rng(n))) == set(range(n))
    labels, _ = _lloyd(points, np.array([[0.0], [1.0], [100.0], [-100.0]]))  # two centres that no point is near
    assert set(labels) == {0, 1, 2, 3}


@real
def test_drama_is_dominant_in_the_small_release():
    read = MovieLens.read(SMALL)
    assert (len(read), len(read.ids), read.genres[0].name) == (100836, 610, "Drama")
    data = read.semi_synthetic(["Drama", "Comedy", "Action"], 3, depart=0.5)
    assert (data.users, data.missing_genre) == (607, 3)
    assert data.dominant == "Drama"
    assert (np.diff(data.instance.click, axis=1) < 0).all()
    replay = read.replay(["Drama", "Comedy", "Action"], depart=0.5)
    assert replay.users == 607
    assert replay.dominant is None


@pytest.mark.slow
@real
@pytest.mark.slow
def test_the_commands_of_the_page_print_the_output_shown(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "howto" / "movielens.md").read_text(encoding="utf-8")
    (tmp_path / "ml-latest-small").symlink_to(SMALL.resolve())
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```console ml-latest-small\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        check_block(block)
