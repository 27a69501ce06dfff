"""What MovieLens ratings tell: genres, types in words, and pictures of both products."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table as RichTable

from departing.data.movielens import MovieLens, SemiSynthetic
from departing.plotting.figures import PALETTE, panels, save


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


def favourites(made: SemiSynthetic) -> dict[str, float]:
    """The share of users for whom every genre is the best to show."""
    best = made.instance.fixed_values.argmax(axis=0)
    shares = np.bincount(best, weights=made.instance.prior, minlength=made.instance.n_categories)
    return dict(zip(made.instance.categories, shares.tolist(), strict=True))


def notes(made: SemiSynthetic, replay: bool) -> list[str]:
    """Who was left out, the types or favourites, and whether a genre is best for everybody."""
    if not replay:
        return [made.dropped, *type_words(made), made.dominance]
    shares = sorted(favourites(made).items(), key=lambda one: -one[1])
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
        "favourites": favourites(made),
    } | ({} if replay else {"instance": made.instance.to_dict()})


def write_plot(made: SemiSynthetic, replay: bool, path: str | os.PathLike[str]) -> None:
    """Draw types, or the users of a replay, to a file that ends in .svg, .png or .pdf."""
    save(draw_replay(made) if replay else draw_types(made), path, 130)


def draw_types(made: SemiSynthetic) -> Figure:
    """By genre and type: the chance of a click, and the clicks if it is shown for ever."""
    instance = made.instance
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    at = np.arange(instance.n_categories)
    for axes, values, words in zip(
        panels(figure, 2),
        (instance.click, instance.fixed_values),
        ("chance of a click", "clicks if shown for ever"),
        strict=True,
    ):
        for x, name in enumerate(instance.types):
            colour, width = PALETTE[x % len(PALETTE)], 1 + 4 * float(instance.prior[x])
            label = f"{name}, {instance.prior[x]:.0%} of users"
            axes.plot(at, values[:, x], "o-", color=colour, linewidth=width, label=label)
        axes.set_xticks(at, instance.categories)
        axes.set_xlim(-0.4, len(at) - 0.6)
        axes.set_ylabel(words)
        axes.set_ylim(bottom=0)
    figure.axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def draw_replay(made: SemiSynthetic) -> Figure:
    """How users spread: their chances of a click in every genre, and which genre is the best to show to how many."""
    instance = made.instance
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    spread, best = panels(figure, 2)
    edges = np.linspace(0, 1, 11).tolist()
    colours = [PALETTE[a % len(PALETTE)] for a in range(instance.n_categories)]
    for a, name in enumerate(instance.categories):
        spread.hist(instance.click[a], edges, histtype="step", color=colours[a], label=name, linewidth=1.6)
    spread.set_xlabel("a user's chance of a click")
    spread.set_ylabel("users")
    spread.legend(frameon=False, fontsize=8, loc="upper left")
    shares = favourites(made)
    best.bar(list(shares), [100 * share for share in shares.values()], 0.5, color=colours)
    best.set_ylabel("best to show, % of users")
    return figure
