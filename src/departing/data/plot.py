"""Plots of the instances built from MovieLens ratings."""

import numpy as np
from matplotlib.figure import Figure

from departing.data.movielens import SemiSynthetic
from departing.plotting.figures import PALETTE, panels


def draw_types(data: SemiSynthetic) -> Figure:
    """By genre and type: the click probability, and the value of the fixed policy."""
    instance = data.instance
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    positions = np.arange(instance.n_categories)
    for axes, values, label in zip(
        panels(figure, 2),
        (instance.click, instance.fixed_values),
        ("click probability", "value of the fixed policy"),
        strict=True,
    ):
        for x, name in enumerate(instance.types):
            colour, width = PALETTE[x % len(PALETTE)], 1 + 4 * float(instance.prior[x])
            entry = f"{name}, {instance.prior[x]:.0%} of users"
            axes.plot(positions, values[:, x], "o-", color=colour, linewidth=width, label=entry)
        axes.set_xticks(positions, instance.categories)
        axes.set_xlim(-0.4, len(positions) - 0.6)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    figure.axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def draw_replay(data: SemiSynthetic) -> Figure:
    """Distribution of the users' click probabilities by genre, and the share of users for whom each genre is best."""
    instance = data.instance
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    spread, best = panels(figure, 2)
    edges = np.linspace(0, 1, 11).tolist()
    colours = [PALETTE[a % len(PALETTE)] for a in range(instance.n_categories)]
    for a, name in enumerate(instance.categories):
        spread.hist(instance.click[a], edges, histtype="step", color=colours[a], label=name, linewidth=1.6)
    spread.set_xlabel("click probability of a user")
    spread.set_ylabel("users")
    spread.legend(frameon=False, fontsize=8, loc="upper left")
    shares = data.best_genre_shares
    best.bar(list(shares), [100 * share for share in shares.values()], 0.5, color=colours)
    best.set_ylabel("best genre, % of users")
    return figure
