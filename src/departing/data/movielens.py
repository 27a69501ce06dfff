"""MovieLens: ratings of films, and the paper's scheme that makes instances of them (appendix on experiments).

Genres are categories. A film of several genres counts for each of them. A user shown a genre is suggested a random
film of it among those the user has rated, with replacement, and clicks with a chance that comes from the rating.
Ratings do not tell when people leave, so the chances of departing are the caller's.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from departing.data.clusters import clusters
from departing.data.movielens_files import AnyPath, Flags, Grades, Indices, read_films, read_ratings, release
from departing.data.sources import suggest
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.model.validation import check_int, check_seed

MOST_RATED = 3  # genres, unless the caller names some
CLICKS = ("stars", "paper")


class DominantGenreWarning(UserWarning):
    """One genre is best for every type: showing it always is optimal, and planning trivial."""


def movielens(
    path: AnyPath,
    genres: Sequence[str] | None = None,
    types: int = 3,
    *,
    depart: npt.ArrayLike = 1.0,
    seed: int = 0,
    click: str = "stars",
) -> Instance:
    """The semi-synthetic instance of a MovieLens release, a folder or a zip; see `MovieLens.semi_synthetic`.

    Warns by a `DominantGenreWarning` where one genre is best for every type.
    """
    made = MovieLens.read(path).semi_synthetic(genres, types, depart=depart, seed=seed, click=click)
    if made.dominant is not None:
        warnings.warn(made.dominance, DominantGenreWarning, stacklevel=2)
    return made.instance


@dataclass(frozen=True)
class Genre:
    """A genre: how many films it has, how many ratings these have, and the mean of them in stars."""

    name: str
    films: int
    ratings: int
    stars: float


@dataclass(frozen=True)
class SemiSynthetic:
    """An instance made of ratings, and who had to be left out.

    Of the users of the release, `lacking` have no rating in some of the genres, and `thin` have too few for one in
    each half; the other `users` are those the instance tells of.
    """

    instance: Instance
    users: int
    lacking: int
    thin: int

    @cached_property
    def dominant(self) -> str | None:
        """The genre that is best for every type, if there is one: showing it always is then optimal."""
        values = self.instance.fixed_values
        best = np.flatnonzero((values >= values.max(axis=0)).all(axis=1))
        return self.instance.categories[best[0]] if len(best) else None

    @property
    def dominance(self) -> str:
        """A sentence about the dominant genre."""
        if self.dominant is None:
            return "No genre is best for every type, so there is something to plan."
        return f"{self.dominant} is best for every type: showing it always is optimal, and planning trivial."

    @property
    def best_genre_shares(self) -> dict[str, float]:
        """Share of users for whom each genre is the best one to show always."""
        best = self.instance.fixed_values.argmax(axis=0)
        shares = np.bincount(best, weights=self.instance.prior, minlength=self.instance.n_categories)
        return dict(zip(self.instance.categories, shares.tolist(), strict=True))

    @property
    def dropped(self) -> str:
        """A sentence about the users."""
        thin = f", {self.thin} more have too few for both halves" if self.thin else ""
        return f"{self.users} users; {self.lacking} were left out who lack a rating in some genre{thin}."


@dataclass(frozen=True, eq=False, repr=False)
class MovieLens:
    """The ratings of a release, as columns: `users[R]` and `films[R]` by index, and `grades[R]` in half stars.

    `ids[N]` are the numbers of the users in the release, `member[F, G]` tells which genres every film has.
    """

    names: tuple[str, ...]
    ids: Indices
    users: Indices
    films: Indices
    grades: Grades
    member: Flags

    @classmethod
    def read(cls, path: AnyPath) -> "MovieLens":
        """The ratings of a release: a folder, or the zip as it is published."""
        try:
            with release(path) as (layout, folder):
                names, film_ids, member = read_films(layout, folder, path)
                users, films, grades = read_ratings(layout, folder, path)
        except OSError as error:
            raise InputError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from error
        places = np.full(max(film_ids.max(), films.max()) + 1, -1, np.int32)
        places[film_ids] = np.arange(len(film_ids))
        films_at = places[films]
        unknown = films_at < 0
        if unknown.any():
            raise InputError(
                f"{layout.files[0]} in {str(path)!r} rates film {films[unknown.argmax()]}, "
                f"which {layout.files[1]} does not have."
            )
        here = np.zeros(users.max() + 1, bool)
        here[users] = True
        ids, order = np.flatnonzero(here).astype(np.int32), (here.cumsum(dtype=np.int32) - 1)
        return cls(names, ids, order[users], films_at, grades, member)

    def __len__(self) -> int:
        return len(self.grades)

    def __repr__(self) -> str:
        return f"<MovieLens of {len(self)} ratings by {len(self.ids)} users>"

    @cached_property
    def genres(self) -> tuple[Genre, ...]:
        """All genres, the most rated first."""
        often = np.bincount(self.films, minlength=len(self.member)) @ self.member
        sums = np.bincount(self.films, weights=self.grades, minlength=len(self.member)) @ self.member
        films = self.member.sum(axis=0)
        order = sorted(range(len(self.names)), key=lambda g: (-often[g], self.names[g]))
        return tuple(
            Genre(self.names[g], int(films[g]), int(often[g]), float(sums[g] / max(often[g], 1)) / 2) for g in order
        )

    @cached_property
    def chances(self) -> Floats:
        """The normalised rating of every grade from none to ten half stars: the middle of its share of 0 to 1.

        Of ten grades 5 stars are 0.95 and half a star is 0.05; of five (a release without half stars) 5 stars are 0.9
        and one star is 0.1. So a chance is never 0 or 1: somebody sure to click would stay for ever.
        """
        whole = not (self.grades % 2).any()
        return (np.arange(11) - (1.0 if whole else 0.5)) / 10

    def semi_synthetic(
        self,
        genres: Sequence[str] | None = None,
        types: int = 3,
        *,
        depart: npt.ArrayLike = 1.0,
        seed: int = 0,
        click: str = "stars",
    ) -> SemiSynthetic:
        """An instance with `types` types of users, found on one half of each user's ratings, measured on the other.

        The ratings of every user are split at random. On one half users are brought together (k-means) by their mean
        normalised ratings of the `genres` (the three most rated unless told); on the other a type's chance of a click
        is the mean over its users of each one's mean. So what made a user look like a type does not count twice. The
        prior is the share of users. Types are in the order of their mean chance, the most generous first.

        Left out are users who lack a rating in some genre, as in the paper, or in one of the halves. `depart` is a
        chance, one for every genre `[K]`, or `[K, M]`. `click` is `stars`, the normalised rating r, or `paper`, what
        the paper writes: 1 − r, so that the films users like are those they do not click.
        """
        chosen, types, rng = self._chosen(genres), check_int("types", types), np.random.default_rng(check_seed(seed))
        table = self._click_table(click)
        some: Flags = np.asarray(self.member[:, chosen].any(axis=1))[self.films]
        users, films, grades = self.users[some], self.films[some], self.grades[some]
        first = _half(users, len(self.ids), rng)
        found, rated = self._means(chosen, users[first], films[first], grades[first], table)
        measured, rated_again = self._means(chosen, users[~first], films[~first], grades[~first], table)
        full: Flags = np.asarray((rated | rated_again).all(axis=0))
        kept = (rated & rated_again).all(axis=0)
        self._check_any(full, chosen)
        n, thin = int(kept.sum()), int(full.sum() - kept.sum())
        points, answers = found[:, kept].T, measured[:, kept]
        distinct = len(np.unique(points, axis=0))
        if types > distinct:
            raise InputError(
                f"types is {types}; {n} users have enough ratings for both halves, {distinct} of them different, "
                "and every type needs one."
            )
        labels = clusters(points, types, rng)
        sizes = np.bincount(labels, minlength=types)
        means = np.stack([np.bincount(labels, weights=row, minlength=types) for row in answers]) / sizes
        order = np.lexsort([*means[::-1], -means.mean(axis=0)])
        instance = Instance(
            (sizes / n)[order],
            means[:, order],
            _departures(depart, means.shape),
            categories=[self.names[g] for g in chosen],
        )
        return SemiSynthetic(instance, n, len(self.ids) - int(full.sum()), thin)

    def replay(
        self, genres: Sequence[str] | None = None, *, depart: npt.ArrayLike = 1.0, click: str = "stars"
    ) -> SemiSynthetic:
        """The environment that draws a real user, and for every recommendation a random film of the genre.

        It is an instance in which every user is a type of its own: films are drawn with replacement, so whatever was
        drawn before, the chance of a click is the user's mean over the rated films of the genre. All that takes an
        instance takes it: `simulate`, learners, Gymnasium. `depart` is a chance, one for every genre `[K]`, or one
        for every genre and user; see `semi_synthetic` for the rest.
        """
        chosen = self._chosen(genres)
        means, rated = self._means(chosen, self.users, self.films, self.grades, self._click_table(click))
        full: Flags = np.asarray(rated.all(axis=0))
        self._check_any(full, chosen)
        n = int(full.sum())
        instance = Instance(
            np.full(n, 1 / n),
            means[:, full],
            _departures(depart, (len(chosen), n)),
            categories=[self.names[g] for g in chosen],
            types=[f"user {user}" for user in self.ids[full].tolist()],
        )
        return SemiSynthetic(instance, n, len(self.ids) - n, 0)

    def _chosen(self, genres: Sequence[str] | None) -> list[int]:
        """The indices of `genres`, or of the most rated."""
        if genres is None:
            return [self.names.index(genre.name) for genre in self.genres[:MOST_RATED]]
        if isinstance(genres, str) or not isinstance(genres, Sequence) or not len(genres):
            raise InputError(
                f"genres is {genres!r:.80}; expected a list of genres, such as ['Drama', 'Comedy'].", "genres"
            )
        for i, name in enumerate(genres):
            if name not in self.names:
                raise InputError(f"There is no genre {name!r:.40}; {suggest(str(name), self.names)}")
            if name in genres[:i]:
                raise InputError(f"genres has {name!r} twice; genres must differ.", "genres")
        return [self.names.index(name) for name in genres]

    def _click_table(self, click: str) -> Floats:
        """The chance of a click for every grade."""
        if click not in CLICKS:
            raise InputError(f"click is {click!r:.40}; allowed are {', '.join(CLICKS)}.", "click")
        return self.chances if click == "stars" else 1 - self.chances

    def _means(
        self, chosen: list[int], users: Indices, films: Indices, grades: Grades, table: Floats
    ) -> tuple[Floats, Flags]:
        """The mean chance of every user in every chosen genre, `[K, N]`, and whether there is any rating."""
        n, k = len(self.ids), len(chosen)
        means, rated = np.zeros((k, n)), np.zeros((k, n), bool)
        for a, g in enumerate(chosen):
            rows = self.member[films, g]
            mine = users[rows]
            often = np.bincount(mine, minlength=n)
            sums = np.bincount(mine, weights=table[grades[rows]], minlength=n)
            rated[a] = often > 0
            np.divide(sums, often, out=means[a], where=rated[a])
        return means, rated

    def _check_any(self, full: Flags, chosen: list[int]) -> None:
        if not full.any():
            names = ", ".join(self.names[g] for g in chosen)
            raise InputError(f"No user has a rating in each of the genres {names}; choose others, or fewer.")


def _half(users: Indices, n: int, rng: np.random.Generator) -> Flags:
    """Whether a rating falls into the first half of its user's, drawn at random; an odd one falls into the second."""
    order = np.argsort(users + rng.random(len(users), np.float32))  # by user, then at random: the sums are exact
    often = np.bincount(users, minlength=n)
    rank = np.arange(len(users)) - np.repeat(often.cumsum() - often, often)
    first = np.empty(len(users), bool)
    first[order] = rank < np.repeat(often // 2, often)
    return first


def _departures(depart: npt.ArrayLike, shape: tuple[int, ...]) -> npt.ArrayLike:
    """`depart`, with one chance for every genre made one for every genre and type."""
    try:
        given = np.asarray(depart)
    except ValueError:  # rows of different lengths: the instance tells
        return depart
    return np.broadcast_to(given[:, None], shape) if given.shape == shape[:1] else depart
