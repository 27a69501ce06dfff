"""The scheme for rating data (appendix B) on a MovieLens release."""

from collections.abc import Sequence
from functools import wraps
from typing import Any

import numpy as np

from departing.data.movielens import MovieLens, SemiSynthetic
from departing.data.movielens_files import Flags, Indices
from departing.evaluation.evaluate import evaluate
from departing.formatting import format_count
from departing.learning.ucb import UCBHybrid
from departing.model.errors import InputError
from departing.model.instance import Instance
from departing.paper.item import SKIPPED, Check, Finding, Scale, check
from departing.planning.plan import Plan, plan
from departing.simulation.simulate import simulate

READINGS = {"paper": "1 − r", "stars": "r"}  # the click rules of data.movielens as formulas
EXAMPLES = (("Sci-Fi", "Drama", "Comedy"), ("Horror", "Romance", "Documentary"))  # the first is the paper's
PAIRS = (("Sci-Fi", "Drama"), ("Children", "Horror"))
MANY = 8  # genres and types of the largest instance: "many arms and many user types"


def _needs_ratings(measure: Check) -> Check:
    """Skip a check if there are no ratings."""

    @wraps(measure)
    def measure_or_skip(scale: Scale) -> Finding:
        if scale.movielens is None:
            return Finding(SKIPPED, "No film ratings; use --movielens with the folder or zip of a MovieLens release.")
        return measure(scale)

    return measure_or_skip


def _read(scale: Scale) -> MovieLens:
    assert scale.movielens is not None
    return MovieLens.read(scale.movielens)


def _choices(ratings: MovieLens, *examples: tuple[str, ...]) -> list[list[str]]:
    """Those of the sets of genres of which some user rated each; the most rated genres if there are none."""
    chosen = [list(genres) for genres in examples if _rated_together(ratings, genres)]
    return chosen or [_most_rated(ratings, len(examples[0]))]


def _most_rated(ratings: MovieLens, most: int) -> list[str]:
    """The most rated genres: at least two, and at most `most` of which some user rated each."""
    names = [genre.name for genre in ratings.genres[:most]]
    while len(names) > 2 and not _rated_together(ratings, names):
        names.pop()
    return names


def _rated_together(ratings: MovieLens, genres: Sequence[str]) -> bool:
    """True if some user rated films of each of the genres."""
    return set(genres) <= set(ratings.names) and bool(_rating_counts(ratings, genres).all(axis=0).any())


def _rating_counts(ratings: MovieLens, genres: Sequence[str], counted: Flags | bool = True) -> Indices:
    """Number of `counted` ratings by genre and user, `[K, N]`."""
    chosen = [ratings.names.index(name) for name in genres]
    of_genre = ratings.has_genre[:, chosen][ratings.films].T & counted
    return np.array([np.bincount(ratings.users[rows], minlength=len(ratings.ids)) for rows in of_genre])


def _clusters(ratings: MovieLens, genres: list[str], types: int) -> SemiSynthetic:
    """Instance with this number of types, or the largest number that the users allow."""
    try:
        return ratings.semi_synthetic(genres, types)
    except InputError:
        if types == 1:
            raise
        return _clusters(ratings, genres, types - 1)


@check("movielens")
@_needs_ratings
def check_movielens(scale: Scale) -> Finding:
    """Types by k-means and halves, which the paper leaves open; sure departure; plans beside fixed genres."""
    ratings = _read(scale)
    instances: list[Instance] = []
    gains: list[float] = []
    rows: list[list[object]] = [
        ["genres", "users", "types", "best fixed genre", "optimal policy", "gain", "best genre of all types"]
    ]
    choices = [(genres, 3) for genres in _choices(ratings, *EXAMPLES)]
    choices.append((_most_rated(ratings, MANY), MANY))
    for genres, types in choices:
        data = _clusters(ratings, genres, types)
        instances.append(data.instance)
        fixed, best = data.instance.best_fixed[1], plan(data.instance, 1e-6).value
        gains.append(max(best / fixed - 1, 0.0))
        cells = [f"{data.users:,}", data.instance.n_types, f"{fixed:.4f}", f"{best:.4f}", f"{gains[-1]:.2%}"]
        rows.append([", ".join(genres), *cells, data.dominant or "none"])
    return Finding.measured(
        f"The scheme gives instances of up to {max(one.n_categories for one in instances)} genres and "
        f"{max(one.n_types for one in instances)} types. With the rating r as the click probability and sure "
        f"departure, planning gains at most {max(gains):.2%} over the best fixed genre.",
        rows,
    )


@check("movielens-clicks")
@_needs_ratings
def check_movielens_clicks(scale: Scale) -> Finding:
    """The replay of all users with both click probabilities; ratings normalised so that the extremes are 0 and 1."""
    ratings = _read(scale)
    genres = _choices(ratings, *EXAMPLES)[0]
    replays = {click: ratings.replay(genres, click=click).instance for click in READINGS}
    columns = ("mean", "value of the fixed policy")
    rows = [["genre", "mean stars", *(f"{x}, click {y}" for y in READINGS.values() for x in columns)]]
    stars = {genre.name: genre.stars for genre in ratings.genres}
    for a, name in enumerate(genres):
        cells = [
            f"{x:.4f}" for one in replays.values() for x in (one.click[a].mean(), one.fixed_values[a] @ one.prior)
        ]
        rows.append([name, f"{stars[name]:.2f}", *cells])
    best = {click: genres[instance.best_fixed[0]] for click, instance in replays.items()}
    stars_given = ratings.half_stars
    least, most = (_always_rated(ratings, genres, int(stars)) for stars in (stars_given.min(), stars_given.max()))
    return Finding.measured(
        f"With 1 − r the best genre is {best['paper']}, with r {best['stars']}: with 1 − r users click least on what "
        f"they like most. If the lowest rating were r = 0 and the highest r = 1, {format_count(least, 'user')} would "
        f"never depart from some genre with 1 − r, and {most:,} with r, against the assumption P ≤ 1 − ε. Therefore "
        f"r is the midpoint of the share of a rating, and ε = {ratings.epsilon:.2g} at least.",
        rows,
    )


def _always_rated(ratings: MovieLens, genres: list[str], half_stars: int) -> int:
    """Number of users of the replay who gave this rating to all their films of some genre."""
    rated = _rating_counts(ratings, genres)
    so_rated = _rating_counts(ratings, genres, ratings.half_stars == half_stars)
    return int(((rated == so_rated).any(axis=0) & (rated > 0).all(axis=0)).sum())


@check("movielens-run")
@_needs_ratings
def check_movielens_run(scale: Scale) -> Finding:
    """UCB-Hybrid on the replay of all users, sure departure: threshold policies of two genres, or fixed genres."""
    ratings = _read(scale)
    users, seeds = scale.of(10**6, 10**5), range(scale.of(5, 2))
    epsilon = ratings.epsilon
    scales: dict[str, dict[str, Any]] = {"UCB-Hybrid": {}, "estimated τ": {"scale": "estimated"}}
    rows: list[list[object]] = [
        ["genres", "click", "users", "removed", "optimal policy", "value", "policies", *scales, "in turn"]
    ]
    fixed, shares = 0, []
    for genres in _choices(ratings, *PAIRS) + _choices(ratings, *EXAMPLES):
        for click, reading in READINGS.items():
            data = ratings.replay(genres, click=click)
            instance, best = data.instance, plan(data.instance, 1e-6)
            policies = _learner(instance, users, epsilon).policies
            in_turn = users * (best.value - np.mean([evaluate(instance, policy).value for policy in policies]))
            regrets = [
                [_regret(best, users, seed, epsilon, options) for seed in seeds] for options in scales.values()
            ]
            shares.append(np.mean(regrets[0]) / in_turn)
            fixed += best.value < instance.best_fixed[1] + best.gap
            cells = [f"{np.mean(regret):,.0f} ± {np.std(regret, ddof=1):,.0f}" for regret in regrets]
            counts = [f"{data.users:,}", f"{data.missing_genre:,}"]
            solution = [best.describe(), f"{best.value:.4f}", len(policies)]
            rows.append([", ".join(genres), reading, *counts, *solution, *cells, f"{in_turn:,.0f}"])
    return Finding.measured(
        f"Regret over {users:,} users (mean and standard deviation of {len(seeds)} runs) of UCB-Hybrid with "
        f"ε = {epsilon:.2g}, which the normalisation implies, and with an estimated τ. With the proved τ it is "
        f"{min(shares):.0%} to {max(shares):.0%} of the regret of using all policies in turn. A fixed genre is "
        f"optimal in {fixed} of {len(shares)} cases.",
        rows,
    )


def _regret(best: Plan, users: int, seed: int, epsilon: float, options: dict[str, Any]) -> float:
    """Regret of UCB-Hybrid in one run."""
    learner = _learner(best.instance, users, epsilon, **options)
    return float(simulate(best.instance, learner, users, seed, optimum=best).regret[-1])


def _learner(instance: Instance, users: int, epsilon: float, **options: Any) -> UCBHybrid:
    """UCB-Hybrid over the threshold policies of two genres with the paper's horizon, or over all fixed genres."""
    if instance.n_categories == 2:
        return UCBHybrid.thresholds(users, horizon="paper", epsilon=epsilon, **options)
    return UCBHybrid.fixed(instance.n_categories, users, **(options or {"epsilon": epsilon}))
