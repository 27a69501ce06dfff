"""What MovieLens ratings tell: genres, types in words, and pictures of both products."""

from collections.abc import Iterator
from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from departing.data.movielens import MovieLens, SemiSynthetic


def genre_table(read: MovieLens, made: SemiSynthetic) -> RichTable:
    """All genres of the release; of the chosen ones the mean chance of a click of the users kept."""
    chances = _chances(made)
    table = RichTable(title=f"{len(read):,} ratings by {len(read.ids):,} users", title_justify="left")
    table.add_column("genre", overflow="fold")
    for name in ("films", "ratings", "mean stars", "click, mean of users"):
        table.add_column(name, justify="right", no_wrap=True)
    for genre in read.genres:
        chance = chances.get(genre.name)
        clicked = "" if chance is None else f"{chance:.3f}"
        table.add_row(escape(genre.name), f"{genre.films:,}", f"{genre.ratings:,}", f"{genre.stars:.2f}", clicked)
    return table


def _chances(made: SemiSynthetic) -> dict[str, float]:
    means = made.instance.click @ made.instance.prior
    return dict(zip(made.instance.categories, means.tolist(), strict=True))


def type_words(made: SemiSynthetic) -> Iterator[str]:
    """A sentence for every type: its share, its favourite genre and the one it likes least."""
    instance = made.instance
    for x in range(instance.n_types):
        click = instance.click[:, x]
        best, worst = int(click.argmax()), int(click.argmin())
        words = f"click most on {instance.categories[best]} ({click[best]:.2f})"
        if best != worst:
            words += f", least on {instance.categories[worst]} ({click[worst]:.2f})"
        yield f"{instance.prior[x]:.0%} of users ({instance.types[x]}): {words}."


def notes(made: SemiSynthetic, replay: bool) -> list[str]:
    """Who was left out, the types or favourites, and whether a genre is best for everybody."""
    if not replay:
        return [made.dropped, *type_words(made), made.dominance]
    shares = sorted(made.best_genre_shares.items(), key=lambda one: -one[1])
    best = ", ".join(f"{name} for {share:.0%}" for name, share in shares)
    return [made.dropped, f"Every user is a type of its own; best to show is {best}."]


def movielens_values(read: MovieLens, made: SemiSynthetic, replay: bool) -> dict[str, Any]:
    """All of it as plain values; the instance only where it is of types, a replay being as long as its users."""
    return {
        "ratings": len(read),
        "genres": [vars(genre) for genre in read.genres],
        "users": made.users,
        "dropped": {"lacking": made.lacking, "thin": made.thin},
        "dominant": made.dominant,
        "favourites": made.best_genre_shares,
    } | ({} if replay else {"instance": made.instance.to_dict()})
