"""Reading MovieLens: a release with the size of 25M, generated at random, as a folder and as a zip."""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import duckdb

from benchmarks.common import Row

RATINGS, USERS, FILMS = 25_000_000, 162_541, 62_423
GENRES = ("Action", "Adventure", "Comedy", "Crime", "Drama", "Horror", "Romance", "Sci-Fi", "Thriller", "War")

CODE = """
import resource, sys, time
from departing.data.movielens import MovieLens
started = time.perf_counter()
read = MovieLens.read(sys.argv[1])
seconds = time.perf_counter() - started
started = time.perf_counter()
replay = read.replay(["Drama", "Comedy", "Action"], depart=0.5)
made = read.semi_synthetic(["Drama", "Comedy", "Action"], 3, depart=0.5)
print(len(read), len(read.ids), seconds, time.perf_counter() - started, made.users, end=" ")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def _write(folder):
    """A release in the format of 25M: users and films drawn with long tails, stars from both."""
    genres = "[" + ", ".join(f"'{name}'" for name in GENRES) + "]"
    number = "1 + floor({} * pow(random(), {}))::INTEGER"
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1; SELECT setseed(0.5)")
        connection.execute(
            f"COPY (SELECT {number.format(USERS, 2)} AS userId, {number.format(FILMS, 3)} AS movieId, "
            "greatest(1, round(10 * pow(random(), 0.5))) / 2 AS rating, 1000000000 + range AS timestamp "
            f"FROM range({RATINGS})) TO '{folder}/ratings.csv' (HEADER)"
        )
        connection.execute(
            f"COPY (SELECT range + 1 AS movieId, 'Film, ' || range AS title, "
            f"list_aggregate({genres}[1 + range % 5 : 2 + range % 9], 'string_agg', '|') AS genres "
            f"FROM range({FILMS})) TO '{folder}/movies.csv' (HEADER)"
        )


def rows():
    results = []
    with tempfile.TemporaryDirectory() as place:
        folder, packed = Path(place, "ml-25m"), Path(place, "ml-25m.zip")
        folder.mkdir()
        _write(folder)
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for file in sorted(folder.iterdir()):
                archive.write(file, f"ml-25m/{file.name}")
        size = os.path.getsize(folder / "ratings.csv") / 1e6
        for name, path in (("a folder", folder), ("a zip", packed)):
            done = subprocess.run([sys.executable, "-c", CODE, path], capture_output=True, text=True, check=True)
            ratings, users, read, made, kept, peak = done.stdout.split()
            note = f"{int(ratings) / 1e6:.0f} M ratings by {int(users):,} users, {size:.0f} MB"
            results.append(Row(f"reading 25M from {name}", float(read), "s", 60, at_least=False, note=note))
            note = f"with {int(kept):,} users, three genres"
            results.append(Row("replay and semi-synthetic instance", float(made), "s", 60, at_least=False, note=note))
            bytes_each = int(peak) * 1024 / int(ratings)
            note = f"peak RSS, {bytes_each:.0f} bytes a rating"
            results.append(Row(f"memory, from {name}", int(peak) / 1024, "MB", 1500, at_least=False, note=note))
    return results
