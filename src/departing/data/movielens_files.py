"""Files of a MovieLens release, in the formats in which they are published."""

import csv
import glob
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import copyfileobj

import duckdb
import numpy as np
import numpy.typing as npt

from departing.data.sources import input_errors
from departing.model.errors import InputError
from departing.model.tables import disable_progress_bar

NO_GENRE = "(no genres listed)"
MAX_ID = 10**8  # of a user or a film; bounds the index arrays, published IDs are below 300,000
AnyPath = str | os.PathLike[str]
Indices = npt.NDArray[np.int32]
HalfStars = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Layout:
    """Files of a release, and the delimiter and header of its ratings."""

    releases: str
    files: tuple[str, ...]  # ratings first, films second
    delimiter: str
    header: str = ""


LAYOUTS = (
    Layout("latest, 20M, 25M, 32M", ("ratings.csv", "movies.csv"), ",", "userId,movieId,rating,timestamp"),
    Layout("1M, 10M", ("ratings.dat", "movies.dat"), "::"),
    Layout("100K", ("u.data", "u.item", "u.genre"), "\t"),
)


@contextmanager
def open_release(path: AnyPath) -> Iterator[tuple[Layout, Path]]:
    """The layout of a release and a folder with its files, temporary if they come from a zip file."""
    place = Path(path)
    if place.is_dir():
        yield _layout({name: name for name in os.listdir(place)}, path), place
        return
    if not place.exists():
        raise InputError(f"There is no file or folder {str(path)!r}.")
    if not zipfile.is_zipfile(place):
        raise InputError(f"{str(path)!r} is neither a folder nor a zip file; {_expected()}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(place) as archive:
                inside = sorted(archive.namelist(), key=lambda name: (-name.count("/"), name))
                members = {PurePosixPath(name).name: name for name in inside if not name.endswith("/")}
                layout = _layout(members, path)
                for name in layout.files:
                    with archive.open(members[name]) as packed, open(Path(folder, name), "wb") as unpacked:
                        copyfileobj(packed, unpacked, 2**20)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise InputError(f"The zip {str(path)!r} cannot be unpacked: {error}.") from error
        yield layout, Path(folder)


def _layout(names: dict[str, str], path: AnyPath) -> Layout:
    for layout in LAYOUTS:
        if all(name in names for name in layout.files):
            return layout
    raise InputError(f"{str(path)!r} is not a MovieLens release; {_expected()}")


def _expected() -> str:
    known = [f"{' and '.join(layout.files)} ({layout.releases})" for layout in LAYOUTS]
    return f"expected {', or '.join(known)}."


def read_films(layout: Layout, folder: Path, path: AnyPath) -> tuple[tuple[str, ...], Indices, Flags]:
    """Names of the G genres, sorted IDs of the F films, and flags `[F, G]`: True if the film has the genre."""
    file = layout.files[1]
    try:
        genres_of = _film_genres(layout, folder)
    except (ValueError, IndexError, csv.Error) as error:
        raise InputError(f"{file} in {str(path)!r} is not in the format of a MovieLens release: {error}.") from error
    if not genres_of:
        raise InputError(f"{file} in {str(path)!r} holds no films.")
    if not 0 <= min(genres_of) <= max(genres_of) <= MAX_ID:
        raise InputError(f"{file} in {str(path)!r} contains a film ID that is not from 0 to {MAX_ID}.")
    names = sorted({name for has in genres_of.values() for name in has} - {NO_GENRE, ""})
    ids = np.array(sorted(genres_of), np.int32)
    member = np.array([[name in genres_of[film] for name in names] for film in ids.tolist()], bool)
    return tuple(names), ids, member.reshape(len(ids), len(names))


def _film_genres(layout: Layout, folder: Path) -> dict[int, list[str]]:
    """Genres of every film by its ID. Only titles, which are not used, contain characters beyond ASCII."""
    with open(folder / layout.files[1], encoding="utf-8-sig", errors="replace", newline="") as file:
        if layout.delimiter == ",":
            rows = csv.reader(file)
            if (header := next(rows, [])) != ["movieId", "title", "genres"]:
                raise ValueError(f"its first line is {','.join(header)!r:.60}")
            return {int(row[0]): row[2].split("|") for row in rows if row}
        lines = [line.rstrip("\r\n") for line in file if line.strip()]
    if layout.delimiter == "::":
        return {int(line.split("::")[0]): line.split("::")[-1].split("|") for line in lines}
    known = _genre_names(folder)
    flags = {int(line.split("|")[0]): line.split("|")[-len(known) :] for line in lines}
    return {film: [name for name, flag in zip(known, has, strict=True) if flag == "1"] for film, has in flags.items()}


def _genre_names(folder: Path) -> list[str]:
    """Genres of 100K in the order of their columns."""
    lines = (folder / "u.genre").read_text(encoding="latin-1").splitlines()
    pairs = [line.rsplit("|", 1) for line in lines if line.strip()]
    return [name for name, _ in sorted(pairs, key=lambda pair: int(pair[1]))]


def read_ratings(layout: Layout, folder: Path, path: AnyPath) -> tuple[Indices, Indices, HalfStars]:
    """User IDs, film IDs and half stars of all ratings."""
    file = layout.files[0]
    where = f"{file} in {str(path)!r}"
    if layout.header:
        with open(folder / file, encoding="utf-8-sig", errors="replace") as opened:
            if (header := opened.readline(200).strip()) != layout.header:
                raise InputError(f"{where} starts with {header!r:.60}; expected {layout.header!r}.")
    source = "read_csv(?, delim = ?, header = ?, quote = '', escape = '', comment = '', auto_detect = false, "
    source += "columns = {'user_id': 'INTEGER', 'film': 'INTEGER', 'rating': 'FLOAT', 'at': 'BIGINT'})"
    is_valid = f"user_id BETWEEN 0 AND {MAX_ID} AND film BETWEEN 0 AND {MAX_ID} AND rating BETWEEN 0.5 AND 5"
    half_stars = (
        f"CASE WHEN {is_valid} AND 2 * rating = round(2 * rating) THEN 2 * rating ELSE 0 END::TINYINT AS half_stars"
    )
    query = f"SELECT coalesce(user_id, 0) AS user_id, coalesce(film, 0) AS film, {half_stars} FROM {source}"
    with duckdb.connect() as connection, input_errors(where):
        disable_progress_bar(connection)
        name = glob.escape(str(folder / file))  # DuckDB reads a file name as a glob pattern
        columns = connection.execute(query, [name, layout.delimiter, bool(layout.header)]).fetchnumpy()
    ratings: HalfStars = columns["half_stars"]
    if not len(ratings):
        raise InputError(f"{where} holds no ratings.")
    wrong = ratings == 0
    if wrong.any():
        raise InputError(
            f"{where} has {int(wrong.sum())} invalid ratings, the first in row {int(wrong.argmax()) + 1}; expected "
            "user and film IDs, and half stars from 0.5 to 5."
        )
    return columns["user_id"], columns["film"], ratings
