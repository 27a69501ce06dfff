"""Small MovieLens releases in the published formats, with ratings drawn from a model."""

import zipfile

import numpy as np

GENRES = ("Action", "Comedy", "Drama", "Film-Noir")
TITLES = ("Misérables, Les (1995)", 'The "Quoted" One', "Twelve | Monkeys (1995)", "Plain (1999)")


def draw(seed, users=30, films=40, half_stars=True):
    """Ratings (user, film, stars) and the genres of films: users like some genres more than others."""
    rng = np.random.default_rng(seed)
    genres = {3 * f + 1: [g for g in GENRES[:3] if rng.random() < 0.5] for f in range(films)}
    taste = rng.uniform(1, 5, (users, 3))
    ratings = []
    for u in range(users):
        for film in rng.choice(list(genres), size=rng.integers(4, films), replace=False).tolist():
            liked = [taste[u, GENRES.index(g)] for g in genres[film]] or [3.0]
            stars = np.clip(np.mean(liked) + rng.normal(0, 0.7), 0.5, 5)
            ratings.append((2 * u + 5, film, round(2 * stars) / 2 if half_stars else float(max(round(stars), 1))))
    return ratings, genres


def write(folder, ratings, genres, form):
    """Write a release in the format of `latest`, `1m` or `100k`."""
    folder.mkdir(parents=True, exist_ok=True)
    titles = {film: TITLES[i % len(TITLES)] for i, film in enumerate(genres)}
    if form == "latest":
        lines = [f"{u},{f},{r},964982703" for u, f, r in ratings]
        films = ['{},"{}",{}'.format(f, titles[f].replace('"', '""'), _joined(has)) for f, has in genres.items()]
        _put(folder / "ratings.csv", ["userId,movieId,rating,timestamp", *lines], "utf-8")
        _put(folder / "movies.csv", ["movieId,title,genres", *films], "utf-8")
    elif form == "1m":
        _put(folder / "ratings.dat", [f"{u}::{f}::{r:g}::978300760" for u, f, r in ratings], "latin-1")
        films = [f"{f}::{titles[f]}::{_joined(has)}" for f, has in genres.items()]
        _put(folder / "movies.dat", films, "latin-1")
    else:
        _put(folder / "u.data", [f"{u}\t{f}\t{r:g}\t881250949" for u, f, r in ratings], "latin-1")
        _put(folder / "u.genre", [*(f"{g}|{i}" for i, g in enumerate(GENRES)), ""], "latin-1")
        flags = {f: "|".join("01"[g in has] for g in GENRES) for f, has in genres.items()}
        films = [f"{f}|{titles[f].replace('|', ' ')}|01-Jan-1995||http://x|{flags[f]}" for f in genres]
        _put(folder / "u.item", films, "latin-1")
    return folder


def zipped(folder, path):
    """The folder as a zip file as it is published: with a top-level folder and files of no use."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ml/", "")
        archive.writestr("__MACOSX/ml/._ratings.csv", "x")
        archive.writestr("ml/old/ratings.csv", "not this one")
        for file in sorted(folder.iterdir()):
            archive.write(file, f"ml/{file.name}")
        archive.writestr("ml/README.txt", "Summary")
    return path


def _joined(genres):
    return "|".join(genres) or "(no genres listed)"


def _put(path, lines, encoding):
    path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
