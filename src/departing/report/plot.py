"""Pictures of an instance with two categories and two types: what switching is worth, and what is believed."""

import numpy as np
from matplotlib.figure import Figure

from departing.evaluation.evaluate import evaluate
from departing.model.belief import belief, predict
from departing.model.instance import CLICK, Floats, Instance
from departing.plotting.figures import BLUE, GREY, ORANGE, PALE_BLUE, panels
from departing.policy.schedule import Threshold


def switching_values(instance: Instance, first: int, then: int, most: int) -> Floats:
    """The value of `first` for n steps, then `then`, for n from 0 to `most`."""
    policies = (Threshold(first=first, steps=n, then=then) for n in range(most + 1))
    return np.array([evaluate(instance, policy).value for policy in policies])


def draw_switching(instance: Instance, first: int, then: int, most: int = 16) -> Figure:
    """Clicks per user against the number of steps before switching: all of it, and the top enlarged."""
    values = switching_values(instance, first, then, most)
    always = evaluate(instance, Threshold(first=then, steps=0, then=first)).value
    best = int(values.argmax())
    names = instance.categories
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    whole, top = panels(figure, 2)
    steps = np.arange(most + 1)
    whole.plot(steps, values, "o-", color=BLUE, markersize=4)
    whole.axhline(always, color=ORANGE, linewidth=1, linestyle="--")
    whole.annotate(
        f"always {names[first]}", (most, always), (0, -12), textcoords="offset points", ha="right", color=ORANGE
    )
    whole.annotate(f"always {names[then]}", (0, values[0]), (8, 0), textcoords="offset points", color=BLUE)
    whole.set_xticks(steps[::2])
    whole.set_xlabel(f"steps of {names[first]} before switching to {names[then]}")
    whole.set_ylabel("clicks per user")
    gain = (values - always) * 1e6
    shown = gain >= -abs(gain[best])
    top.bar(steps[shown], gain[shown], color=[BLUE if n == best else PALE_BLUE for n in steps[shown]])
    top.axhline(0, color=ORANGE, linewidth=1, linestyle="--")
    top.annotate(f"{gain[best]:.1f}", (best, gain[best]), (0, 2), textcoords="offset points", ha="center", color=BLUE)
    top.set_ylim(top=gain[best] * 1.12)
    top.set_xticks(steps[shown])
    top.set_xlabel(f"steps of {names[first]} before switching, enlarged")
    top.set_ylabel(f"gain over always {names[first]},\nclicks per million users")
    return figure


def draw_beliefs(instance: Instance, walk: Threshold, most: int = 14) -> Figure:
    """Along a walk on which every step is clicked: the belief in the first type, and the next chances."""
    counts = np.zeros((most + 1, instance.n_categories, 4), np.int64)
    for step in range(most):
        counts[step + 1] = counts[step]
        counts[step + 1, int(walk.recommend(counts[step])), CLICK] += 1
    beliefs, chances = belief(instance, counts)[:, 0], predict(instance, counts)[..., CLICK]
    shown = walk.recommend(counts)
    steps = np.arange(most + 1)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = panels(figure, 2)
    left.plot(steps, beliefs, color=GREY, linewidth=1)
    for a, colour in ((walk.first, ORANGE), (walk.then, BLUE)):
        rows = shown == a
        left.plot(steps[rows], beliefs[rows], "o", color=colour, label=f"shows {instance.categories[a]}")
        right.plot(steps, chances[:, a], color=colour)
        last = (most, chances[-1, a])
        right.annotate(instance.categories[a], last, (4, 0), textcoords="offset points", color=colour, va="center")
    left.set_ylabel(f"belief in type {instance.types[0]}")
    left.set_ylim(0, 1)
    left.legend(frameon=False, loc="upper left")
    right.axvline(walk.steps, color=GREY, linewidth=1, linestyle=":")
    right.set_ylabel("chance of a click now")
    right.set_xlim(0, most * 1.22)
    for axes in (left, right):
        axes.set_xlabel("clicks so far")
    return figure
