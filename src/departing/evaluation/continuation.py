"""What a policy still brings: values to go at all counts that it leads to, by type."""

from dataclasses import dataclass

import numpy as np

from departing.evaluation.closed_form import schedule_values
from departing.evaluation.forward import Frontier, negligible
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.policy.protocol import Policy, recommended, switch_probability_bounds
from departing.policy.schedule import Schedule


@dataclass(frozen=True)
class Level:
    """Counts after some steps under the policy: `values[n, M]` to go, and their rows after a click and a stay.

    `child[n, 2]` are rows of the next level, -1 for counts that are not followed further. `earned` is what an average
    user earns at this step, and later at counts that are not followed further.
    """

    values: Floats
    child: Integers
    earned: float


@dataclass(frozen=True)
class ContinuationValues:
    """The expected clicks from here on of users who are recommended what `policy` says, by type.

    Counts are numbered by level, that is by steps; those so rare that they are in no level have the number -1.
    """

    instance: Instance
    policy: Policy
    levels: tuple[Level, ...]

    def values(self, step: int, rows: Integers, counts: Integers) -> Floats:
        """Values `[n, M]` of users with these rows in the level of a step; rough for those in none."""
        found = np.empty((len(rows), self.instance.n_types))
        inside = rows >= 0
        if inside.any():
            found[inside] = self.levels[step].values[rows[inside]]
        if not inside.all():
            rare = counts[~inside]
            loose = switch_probability_bounds(self.policy, rare, self.instance)
            found[~inside] = _rough(self.instance, recommended(self.policy, rare), loose)
        return found

    def after(self, step: int, rows: Integers, outcomes: Integers) -> Integers:
        """The rows in the next level of users who clicked or stayed."""
        found = np.full(len(rows), -1)
        inside = rows >= 0
        if inside.any():
            found[inside] = self.levels[step].child[rows[inside], outcomes[inside]]
        return found


def continuation_values(
    instance: Instance, policy: Policy, steps: int, tolerance: float, nodes: int
) -> ContinuationValues:
    """Values to go for users of up to `steps` steps.

    Those of a schedule are exact. Another policy is followed through the counts until what is not known is below
    `tolerance` clicks of an average user, or `nodes` counts are reached.
    """
    levels = (
        _by_the_clock(instance, policy, steps)
        if isinstance(policy, Schedule)
        else _by_counts(instance, policy, tolerance, nodes)
    )
    return ContinuationValues(instance, policy, tuple(levels))


def first_steps(instance: Instance, policy: Policy, steps: int, rare: float) -> tuple[Floats, Floats]:
    """The expected clicks of every type in the first steps, and its chance to be still here after them, `[M]`.

    Counts that less than a share `rare` of the users have are left out.
    """
    frontier = Frontier(instance, np.ones(instance.n_types))
    earned, go = np.zeros(instance.n_types), instance.outcome_probabilities[:, [CLICK, STAY]]
    for _ in range(steps):
        frontier.keep(frontier.weights @ instance.prior >= rare)
        categories = recommended(policy, frontier.counts)
        earned += np.einsum("nx,nx->x", frontier.weights, instance.click[categories])
        frontier.advance(categories, frontier.weights[:, None] * go[categories])
    return earned, frontier.weights.sum(axis=0)


def _by_the_clock(instance: Instance, policy: Schedule, steps: int) -> list[Level]:
    """One row a level, for a schedule looks at the number of steps alone."""
    ends = np.cumsum([n for _, n in policy.phases], dtype=np.int64)
    lower, upper = schedule_values(instance, policy, steps)
    shown = policy.phase_categories[np.searchsorted(ends, np.arange(steps), side="right")]
    values = [(lower + upper) / 2]
    for a in shown[::-1]:
        values.append(instance.click[a] + (1 - instance.departure_probabilities[a]) * values[-1])
    levels, here = [], instance.normalised_prior
    for value, a in zip(values[:0:-1], shown, strict=True):
        levels.append(Level(value[None], np.zeros((1, 2), np.int64), float(here @ instance.click[a])))
        here = here * (1 - instance.departure_probabilities[a])
    return [*levels, Level(values[0][None], np.full((1, 2), -1), float(here @ values[0]))]


def _by_counts(instance: Instance, policy: Policy, tolerance: float, nodes: int) -> list[Level]:
    """All counts that matter, forward to find them and backward for their values."""
    spread = instance.fixed_values.max(axis=0) - instance.fixed_values.min(axis=0)
    frontier = Frontier(instance, np.ones(instance.n_types))
    go, prior = instance.outcome_probabilities[:, [CLICK, STAY]], instance.normalised_prior
    found: list[tuple[Integers, Integers, Floats, float]] = []
    expanded, lost, before = 0, 0.0, np.inf
    while len(frontier):
        categories = recommended(policy, frontier.counts)
        loose = switch_probability_bounds(policy, frontier.counts, instance)
        share = (frontier.weights * loose) @ (prior * spread)
        total = float(share.sum())
        if total + lost <= tolerance or expanded >= nodes:
            close = np.ones(len(frontier), bool)
        else:
            close = negligible(share, total, before, tolerance / 2, lost)
        lost, before = lost + float(share[close].sum()), total
        rough = _rough(instance, categories, loose)
        child, here = np.full((len(frontier), 2), -1), np.array(frontier.weights)
        frontier.keep(~close)
        expanded += len(frontier)
        chosen = categories[~close]
        earned = float(np.einsum("nx,nx,x->", frontier.weights, instance.click[chosen], prior))
        earned += float(np.einsum("nx,nx,x->", here[close], rough[close], prior))
        child[~close] = frontier.advance(chosen, frontier.weights[:, None] * go[chosen])
        found.append((np.where(close, -1, categories), child, rough, earned))
    levels: list[Level] = []
    later = np.zeros((0, instance.n_types))
    for categories, child, values, earned in reversed(found):
        rows = np.flatnonzero(categories >= 0)
        if len(rows):
            chosen, ahead = categories[rows], np.concatenate([later, np.zeros((1, instance.n_types))])[child[rows]]
            values[rows] = instance.click[chosen] + (go[chosen] * ahead).sum(axis=1)
        levels.append(Level(values, child, earned))
        later = values
    return levels[::-1]


def _rough(instance: Instance, categories: Integers, loose: Floats) -> Floats:
    """Values to go `[n, M]` without looking ahead: the category of now for ever, or any, as far as it may change."""
    middle = (instance.fixed_values.max(axis=0) + instance.fixed_values.min(axis=0)) / 2
    return np.asarray((1 - loose) * instance.fixed_values[categories] + loose * middle)
