"""Instances made from MovieLens ratings, for the terminal and as JSON values."""

from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from departing.cli.tables.layout import new_table
from departing.data.movielens import MovieLens, SemiSynthetic
from departing.formatting import format_percent, json_fields


def genre_table(ratings: MovieLens, data: SemiSynthetic) -> RichTable:
    """All genres of the release; for the chosen ones, the mean click probability of the users kept."""
    instance = data.instance
    means = dict(zip(instance.categories, (instance.click @ instance.prior).tolist(), strict=True))
    title = f"{len(ratings):,} ratings by {len(ratings.ids):,} users"
    table = new_table(title, "genre", "films", "ratings", "mean stars", "mean click probability")
    for genre in ratings.genres:
        mean = f"{means[genre.name]:.3f}" if genre.name in means else ""
        table.add_row(escape(genre.name), f"{genre.films:,}", f"{genre.ratings:,}", f"{genre.stars:.2f}", mean)
    return table


def movielens_notes(data: SemiSynthetic) -> list[str]:
    """Sentences about excluded users, the types or best genres, and dominance."""
    if not data.is_replay:
        return [data.describe(), *_type_descriptions(data), data.dominance]
    shares = sorted(data.best_genre_shares.items(), key=lambda item: -item[1])
    best = ", ".join(f"{name} for {format_percent(share)}" for name, share in shares)
    return [data.describe(), f"Every user is a type. Best genre: {best} of users."]


def _type_descriptions(data: SemiSynthetic) -> list[str]:
    """One sentence per type: its share, and the genres it clicks most and least."""
    instance = data.instance
    sentences = []
    for x, name in enumerate(instance.types):
        click = instance.click[:, x]
        best, worst = int(click.argmax()), int(click.argmin())
        sentence = f"clicks most on {instance.categories[best]} ({click[best]:.2f})"
        if best != worst:
            sentence += f", least on {instance.categories[worst]} ({click[worst]:.2f})"
        sentences.append(f"{name}, {format_percent(float(instance.prior[x]))} of users: {sentence}.")
    return sentences


def movielens_values(ratings: MovieLens, data: SemiSynthetic) -> dict[str, Any]:
    """The same as JSON values; without the instance of a replay, which has as many types as users."""
    return {
        "ratings": len(ratings),
        "genres": [*map(json_fields, ratings.genres)],
        "excluded": json_fields(data, "missing_genre"),
        **json_fields(data, "users", "imputed", "dominant", "best_genre_shares"),
    } | ({} if data.is_replay else {"instance": data.instance.to_dict()})
