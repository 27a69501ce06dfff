"""Instances from MovieLens ratings by the paper's scheme (appendix on experiments).

Genres are categories; a film of several genres counts for each of them. A user who is shown a genre is recommended a
random film of it among those the user has rated, with replacement, and clicks with a probability derived from the
rating. Ratings carry no information about departures, so departure probabilities are an argument.

`MovieLens.replay` is the paper's procedure. The paper also selects a number of types but leaves open how users become
types: the clusters and halves of `MovieLens.semi_synthetic` are an addition of this package.
"""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from departing.data.clusters import kmeans
from departing.data.movielens_files import AnyPath, Flags, HalfStars, Indices, open_release, read_films, read_ratings
from departing.formatting import format_count
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.model.names import check_names, suggest
from departing.model.validation import check_choice, check_int, check_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_GENRES = 3  # the most rated ones; the paper's experiments have three categories
CLICK_RULES = ("stars", "paper")


class DominantGenreWarning(UserWarning):
    """One genre is best for every type: always showing it is optimal, and there is nothing to plan."""


def movielens(
    path: AnyPath,
    genres: Sequence[str] | None = None,
    types: int = 3,
    *,
    depart: npt.ArrayLike = 1.0,
    seed: int = 0,
    click: str = "stars",
) -> Instance:
    """Build a semi-synthetic instance from a MovieLens release.

    Parameters
    ----------
    path : path
        Folder or zip file of a release.
    genres, types, depart, seed, click
        See `MovieLens.semi_synthetic`.

    Returns
    -------
    Instance
        K genres and M types of users.

    Warns
    -----
    DominantGenreWarning
        If one genre is best for every type.

    Examples
    --------
    >>> cinema = movielens("ml-latest-small", ["Children", "Horror"], types=3, depart=0.5)  # doctest: +SKIP
    """
    data = MovieLens.read(path).semi_synthetic(genres, types, depart=depart, seed=seed, click=click)
    if data.dominant is not None:
        warnings.warn(data.dominance, DominantGenreWarning, stacklevel=2)
    return data.instance


@dataclass(frozen=True)
class Genre:
    """A genre: the number of its films, the number of their ratings, and the mean rating in stars."""

    name: str
    films: int
    ratings: int
    stars: float


@dataclass(frozen=True)
class SemiSynthetic:
    """An instance built from ratings.

    Attributes
    ----------
    instance : Instance
        Genres as categories; clusters of users, or the users of a replay, as types.
    users : int
        Number of users that the instance is built from.
    missing_genre : int
        Number of users excluded because they rated no film of some genre.
    imputed : int
        Number of users with too few ratings of some genre for two halves, clustered by their other genres.
    is_replay : bool
        True if every user is a type.
    """

    instance: Instance
    users: int
    missing_genre: int
    imputed: int
    is_replay: bool

    @cached_property
    def dominant(self) -> str | None:
        """The genre that is best for every type, if there is one."""
        values = self.instance.fixed_values
        best = np.flatnonzero((values >= values.max(axis=0)).all(axis=1))
        return self.instance.categories[best[0]] if len(best) else None

    @property
    def dominance(self) -> str:
        """Sentence about the dominant genre."""
        if self.dominant is None:
            return "No genre is best for every type, so planning can gain."
        return f"{self.dominant} is best for every type: always showing it is optimal, and planning gains nothing."

    @property
    def best_genre_shares(self) -> dict[str, float]:
        """Share of users for whom each genre is the best one to show always."""
        best = self.instance.fixed_values.argmax(axis=0)
        shares = np.bincount(best, weights=self.instance.prior, minlength=self.instance.n_categories)
        return dict(zip(self.instance.categories, shares.tolist(), strict=True))

    def describe(self) -> str:
        """Sentence about the users included and excluded."""
        text = f"{format_count(self.users, 'user')}; excluded: {self.missing_genre:,} without a rating in some genre."
        if not self.imputed:
            return text
        return f"{text} {format_count(self.imputed, 'user is', 'users are')} clustered by some of the genres only."

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Plot click probabilities by type, or of a replay by user.

        Parameters
        ----------
        path : path, optional
            File to write as well (.svg, .png or .pdf).

        Returns
        -------
        matplotlib.figure.Figure
        """
        from departing.data.plot import draw_replay, draw_types
        from departing.plotting.figures import save

        return save((draw_replay if self.is_replay else draw_types)(self), path, 130)


@dataclass(frozen=True, eq=False, repr=False)
class MovieLens:
    """Ratings of a MovieLens release as columns.

    Attributes
    ----------
    names : tuple of str
        Names of the G genres.
    ids : int array [N]
        IDs of the users in the release.
    users, films : int array [R]
        Index of the user and of the film of every rating.
    half_stars : int array [R]
        Ratings in half stars, 1 to 10.
    has_genre : bool array [F, G]
        True if a film has a genre.
    """

    names: tuple[str, ...]
    ids: Indices
    users: Indices
    films: Indices
    half_stars: HalfStars
    has_genre: Flags

    @classmethod
    def read(cls, path: AnyPath) -> "MovieLens":
        """Read a release: a folder, or the zip file as it is published."""
        try:
            with open_release(path) as (layout, folder):
                names, film_ids, has_genre = read_films(layout, folder, path)
                users, films, half_stars = read_ratings(layout, folder, path)
        except OSError as error:
            raise InputError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from error
        index_of_film = np.full(max(film_ids.max(), films.max()) + 1, -1, np.int32)
        index_of_film[film_ids] = np.arange(len(film_ids))
        film_indices = index_of_film[films]
        unknown = film_indices < 0
        if unknown.any():
            raise InputError(
                f"{layout.files[0]} in {str(path)!r} rates film {films[unknown.argmax()]}, "
                f"which {layout.files[1]} does not contain."
            )
        is_user = np.zeros(users.max() + 1, bool)
        is_user[users] = True
        ids, index_of_user = np.flatnonzero(is_user).astype(np.int32), is_user.cumsum(dtype=np.int32) - 1
        return cls(names, ids, index_of_user[users], film_indices, half_stars, has_genre)

    def __len__(self) -> int:
        return len(self.half_stars)

    def __repr__(self) -> str:
        return f"<MovieLens of {len(self)} ratings by {len(self.ids)} users>"

    @cached_property
    def genres(self) -> tuple[Genre, ...]:
        """All genres, the most rated first."""
        films, n = self.has_genre.sum(axis=0), len(self.has_genre)
        ratings = np.bincount(self.films, minlength=n) @ self.has_genre
        sums = np.bincount(self.films, weights=self.half_stars, minlength=n) @ self.has_genre
        means = sums / np.maximum(ratings, 1) / 2
        genres = map(Genre, self.names, films.tolist(), ratings.tolist(), means.tolist())
        return tuple(sorted(genres, key=lambda genre: (-genre.ratings, genre.name)))

    @cached_property
    def normalised_ratings(self) -> Floats:
        """Normalised rating r by half stars, `[11]`: the midpoint of the rating's share of the interval from 0 to 1.

        With ten possible ratings, 5 stars are 0.95 and half a star is 0.05; with five (a release without half stars),
        5 stars are 0.9 and one star is 0.1. So no click probability is 0 or 1; a user certain to click would never
        depart.
        """
        is_whole = not (self.half_stars % 2).any()
        return (np.arange(11) - (1.0 if is_whole else 0.5)) / 10

    @property
    def epsilon(self) -> float:
        """Lower bound of the probability 1 − P of no click, with r and with 1 − r: the lowest normalised rating."""
        return float(self.normalised_ratings[self.normalised_ratings > 0].min())

    def semi_synthetic(
        self,
        genres: Sequence[str] | None = None,
        types: int = 3,
        *,
        depart: npt.ArrayLike = 1.0,
        seed: int = 0,
        click: str = "stars",
    ) -> SemiSynthetic:
        """Build an instance whose types are clusters of users.

        The ratings of every user are split at random, stratified by genre. Types are clusters (k-means) of the users'
        mean normalised ratings by genre in one half; a type's click probability is the mean over its users of their
        means in the other half. Selection and measurement are thus independent. A user with too few ratings of a
        genre for two halves has them in the second; the mean to cluster by is then the one of all users, plus the
        user's mean deviation in other genres. The prior is the share of users. Types are sorted by their mean click
        probability, the largest first. Users without a rating of some genre are excluded, as in the paper.

        Parameters
        ----------
        genres : list of str, optional
            The K genres. Default: the three most rated.
        types : int
            Number M of types.
        depart : float or array [K] or [K, M]
            Departure probabilities after a no-click.
        seed : int
            Seed of the split and of the clustering.
        click : {"stars", "paper"}
            Click probability of a rating: the normalised rating r, or 1 − r as written in the paper, by which users
            do not click the films they like.

        Returns
        -------
        SemiSynthetic
            The instance, and the numbers of users included, excluded, and clustered by some genres only.

        Raises
        ------
        InputError
            If an argument is invalid, or no user rated films of every genre.
        """
        chosen, types, rng = self._chosen(genres), check_int("types", types), np.random.default_rng(check_seed(seed))
        probabilities = self._click_probabilities(click)
        selected: Flags = np.asarray(self.has_genre[:, chosen].any(axis=1))[self.films]
        users, films, half_stars = self.users[selected], self.films[selected], self.half_stars[selected]
        first = _first_half(users, films, self.has_genre[:, chosen], rng)
        _, measurable = self._means(chosen, users[~first], films[~first], half_stars[~first], probabilities)
        for rated, g in zip(measurable, chosen, strict=True):
            first &= rated[users] | ~self.has_genre[films, g]
        clustered, rated = self._means(chosen, users[first], films[first], half_stars[first], probabilities)
        measured, measurable = self._means(chosen, users[~first], films[~first], half_stars[~first], probabilities)
        kept: Flags = np.asarray(measurable.all(axis=0))
        self._check_any(kept, chosen)
        clustered = _imputed(clustered, rated)
        n, points = int(kept.sum()), clustered[:, kept].T
        distinct = len(np.unique(points, axis=0))
        if types > distinct:
            raise InputError(
                f"types is {types}; expected at most {distinct}, the number of distinct means of "
                f"{format_count(n, 'user')} with ratings in each genre."
            )
        labels = kmeans(points, types, rng)
        sizes = np.bincount(labels, minlength=types)
        means = np.stack([np.bincount(labels, row, types) for row in measured[:, kept]]) / sizes
        order = np.lexsort([*means[::-1], -means.mean(axis=0)])
        categories = [self.names[g] for g in chosen]
        instance = Instance(
            (sizes / n)[order], means[:, order], _departures(depart, means.shape), categories=categories
        )
        imputed = int((kept & ~rated.all(axis=0)).sum())
        return SemiSynthetic(instance, n, len(self.ids) - n, imputed, False)

    def replay(
        self, genres: Sequence[str] | None = None, *, depart: npt.ArrayLike = 1.0, click: str = "stars"
    ) -> SemiSynthetic:
        """Build the instance in which every user is a type: a user is drawn, then a film for every recommendation.

        Films are drawn with replacement, so the click probability is always the user's mean over the rated films of
        the genre, whatever was drawn before.

        Parameters
        ----------
        genres, click
            See `semi_synthetic`.
        depart : float or array [K] or [K, N]
            Departure probabilities after a no-click.

        Returns
        -------
        SemiSynthetic
            The instance with N types, named "user 17" by user ID, and the number of users excluded.
        """
        chosen = self._chosen(genres)
        probabilities = self._click_probabilities(click)
        means, rated = self._means(chosen, self.users, self.films, self.half_stars, probabilities)
        complete: Flags = np.asarray(rated.all(axis=0))
        self._check_any(complete, chosen)
        n = int(complete.sum())
        instance = Instance(
            np.full(n, 1 / n),
            means[:, complete],
            _departures(depart, (len(chosen), n)),
            categories=[self.names[g] for g in chosen],
            types=[f"user {user}" for user in self.ids[complete].tolist()],
        )
        return SemiSynthetic(instance, n, len(self.ids) - n, 0, True)

    def _chosen(self, genres: Sequence[str] | None) -> list[int]:
        """Indices of `genres`, or of the most rated ones."""
        if genres is None:
            return [self.names.index(genre.name) for genre in self.genres[:DEFAULT_GENRES]]
        for name in check_names("genres", genres):
            if name not in self.names:
                raise InputError(f"There is no genre {name!r:.40}; {suggest(name, self.names)}")
        return [self.names.index(name) for name in genres]

    def _click_probabilities(self, click: str) -> Floats:
        """Click probability by half stars, `[11]`."""
        return (
            self.normalised_ratings
            if check_choice("click", click, CLICK_RULES) == "stars"
            else 1 - self.normalised_ratings
        )

    def _means(
        self, chosen: list[int], users: Indices, films: Indices, half_stars: HalfStars, probabilities: Floats
    ) -> tuple[Floats, Flags]:
        """Mean click probability by chosen genre and user `[K, N]`, and flags `[K, N]`: True if there are ratings."""
        n, k = len(self.ids), len(chosen)
        means, rated = np.zeros((k, n)), np.zeros((k, n), bool)
        for a, g in enumerate(chosen):
            rows = self.has_genre[films, g]
            ratings = np.bincount(users[rows], minlength=n)
            sums = np.bincount(users[rows], weights=probabilities[half_stars[rows]], minlength=n)
            rated[a] = ratings > 0
            np.divide(sums, ratings, out=means[a], where=rated[a])
        return means, rated

    def _check_any(self, complete: Flags, chosen: list[int]) -> None:
        if not complete.any():
            names = ", ".join(self.names[g] for g in chosen)
            raise InputError(f"No user has a rating in each of the genres {names}; choose others, or fewer.")


def _first_half(users: Indices, films: Indices, has_genre: Flags, rng: np.random.Generator) -> Flags:
    """True if a rating falls into the first half of its user's ratings; `has_genre[F, K]` are the chosen genres.

    The ratings of a user are ordered by the genres of the film and then at random, and fall into the two halves in
    turn, the first at random. Sets of genres are in the order of a Gray code, so that the ratings of each of the two
    rarest genres follow one another: if there are two of them, both halves get one.
    """
    n, k = has_genre.shape
    position, odd = np.zeros(n, np.int64), np.zeros(n, bool)
    for g in (np.bincount(films, minlength=n) @ has_genre).argsort(kind="stable"):  # the rarest first
        odd ^= has_genre[:, g]
        position = 2 * position + odd
    order = np.argsort((users.astype(np.int64) << k) + position[films] + rng.random(len(users)))
    turn = np.arange(len(users)) + rng.integers(0, 2, users.max(initial=0) + 1)[users[order]]
    first = np.empty(len(users), bool)
    first[order] = turn % 2 == 0
    return first


def _imputed(means: Floats, rated: Flags) -> Floats:
    """Means by genre and user `[K, N]`; missing ones are the mean of all users plus the user's mean deviation."""
    genre = means.sum(axis=1, keepdims=True) / np.maximum(rated.sum(axis=1, keepdims=True), 1)
    deviation = np.where(rated, means - genre, 0.0).sum(axis=0) / np.maximum(rated.sum(axis=0), 1)
    return np.where(rated, means, genre + deviation)


def _departures(depart: npt.ArrayLike, shape: tuple[int, ...]) -> npt.ArrayLike:
    """`depart`, with one probability per genre repeated for every type."""
    try:
        given = np.asarray(depart)
    except ValueError:  # rows of different lengths: Instance raises the error
        return depart
    return np.broadcast_to(given[:, None], shape) if given.shape == shape[:1] else depart
