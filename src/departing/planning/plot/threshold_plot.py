"""Plots of threshold policies: value against the switching step, and belief along a run of clicks."""

import numpy as np
from matplotlib.figure import Figure

from departing.evaluation.evaluate import evaluate
from departing.model.belief import belief, predict
from departing.model.instance import CLICK, Floats, Instance
from departing.plotting.figures import BLUE, GREY, ORANGE, PALE_BLUE, panels
from departing.policy.schedule import Threshold


def threshold_values(instance: Instance, first: int, then: int, max_steps: int) -> Floats:
    """Values of showing `first` for n steps and `then` from then on, for n from 0 to `max_steps`."""
    policies = (Threshold(first=first, steps=n, then=then) for n in range(max_steps + 1))
    return np.array([evaluate(instance, policy).value for policy in policies])


def draw_thresholds(instance: Instance, first: int, then: int, max_steps: int = 16) -> Figure:
    """Clicks per user against the number of steps before switching: the full range, and the maximum enlarged."""
    values = threshold_values(instance, first, then, max_steps)
    fixed = evaluate(instance, Threshold(first=then, steps=0, then=first)).value
    best = int(values.argmax())
    names = instance.categories
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    full, top = panels(figure, 2)
    steps = np.arange(max_steps + 1)
    full.plot(steps, values, "o-", color=BLUE, markersize=4)
    full.axhline(fixed, color=ORANGE, linewidth=1, linestyle="--")
    full.annotate(
        f"always {names[first]}", (max_steps, fixed), (0, -12), textcoords="offset points", ha="right", color=ORANGE
    )
    full.annotate(f"always {names[then]}", (0, values[0]), (8, 0), textcoords="offset points", color=BLUE)
    full.set_xticks(steps[::2])
    full.set_xlabel(f"steps of {names[first]} before switching to {names[then]}")
    full.set_ylabel("clicks per user")
    gain = (values - fixed) * 1e6
    shown = gain >= -abs(gain[best])
    top.bar(steps[shown], gain[shown], color=[BLUE if n == best else PALE_BLUE for n in steps[shown]])
    top.axhline(0, color=ORANGE, linewidth=1, linestyle="--")
    top.annotate(f"{gain[best]:.1f}", (best, gain[best]), (0, 2), textcoords="offset points", ha="center", color=BLUE)
    top.set_ylim(top=gain[best] * 1.12)
    top.set_xticks(steps[shown])
    top.set_xlabel(f"steps of {names[first]} before switching (enlarged)")
    top.set_ylabel(f"gain over always {names[first]},\nclicks per million users")
    return figure


def draw_beliefs(instance: Instance, policy: Threshold, max_steps: int = 14) -> Figure:
    """Belief in the first type and click probabilities of both categories while every recommendation is clicked."""
    counts = np.zeros((max_steps + 1, instance.n_categories, 4), np.int64)
    for step in range(max_steps):
        counts[step + 1] = counts[step]
        counts[step + 1, int(policy.recommend(counts[step])), CLICK] += 1
    beliefs, click = belief(instance, counts)[:, 0], predict(instance, counts)[..., CLICK]
    recommended = policy.recommend(counts)
    steps = np.arange(max_steps + 1)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = panels(figure, 2)
    left.plot(steps, beliefs, color=GREY, linewidth=1)
    for a, colour in zip(policy.phase_categories, (ORANGE, BLUE), strict=True):
        rows = recommended == a
        left.plot(steps[rows], beliefs[rows], "o", color=colour, label=f"recommends {instance.categories[a]}")
        right.plot(steps, click[:, a], color=colour)
        last = (max_steps, click[-1, a])
        right.annotate(instance.categories[a], last, (4, 0), textcoords="offset points", color=colour, va="center")
    left.set_ylabel(f"belief in type {instance.types[0]}")
    left.set_ylim(0, 1)
    left.legend(frameon=False, loc="upper left")
    right.axvline(policy.steps, color=GREY, linewidth=1, linestyle=":")
    right.set_ylabel("click probability at this step")
    right.set_xlim(0, max_steps * 1.22)
    for axes in (left, right):
        axes.set_xlabel("clicks so far")
    return figure
