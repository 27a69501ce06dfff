"""Distribution of the clicks and steps at which users depart, with geometric tails in closed form."""

import numpy as np

from departing.model.counts import Integers
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats, Instance

MAX_TAIL = 2**18  # rows of a tail; bounds its memory at 2^18 * 8 * M bytes
MAX_WORK = 2**26  # rows of committed users followed to a horizon, over all steps: some seconds


class Departures:
    """Probabilities, for every type, of finishing after each number of clicks and of steps: rows of `[M]`.

    Levels of active users are added step by step. Users who are recommended one category from some step on are
    *committed*: their remaining clicks and steps are geometric, and `finish` adds them in closed form.

    Attributes
    ----------
    returns : array [C, M]
        Probability of finishing after c clicks.
    steps : array [N, M]
        Probability of finishing at step n.
    survival : array [N, M]
        Probability of being active after n steps.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.returns, self.steps, self.survival = (np.zeros((0, instance.n_types)) for _ in range(3))
        self._levels: list[Floats] = []  # active users after each step, [M]
        self._departing: list[Floats] = [np.zeros(instance.n_types)]
        self._by_step: dict[int, Floats] = {}  # committed users by category and step, [N, M]
        self._by_clicks: dict[int, Floats] = {}  # and by category and clicks so far, [C, M]

    def commit(self, clicks: Integers, categories: Integers, weights: Floats) -> None:
        """Recommend `categories[n]` from this step on to users `weights[n, M]` with `clicks[n]` so far."""
        empty, step = np.zeros((0, self.instance.n_types)), len(self._levels)
        for a in np.unique(categories).tolist():
            rows = categories == a
            self._by_step[a] = _add_rows(self._by_step.get(a, empty), weights[rows].sum(axis=0)[None], step)
            self._by_clicks[a] = _add_at(self._by_clicks.get(a, empty), clicks[rows], weights[rows])

    def add_level(self, clicks: Integers, categories: Integers, weights: Floats, lost: Floats | float = 0.0) -> None:
        """Add one step of all other users, `weights[n, M]`; users `lost[M]` are active and not followed."""
        departing, clicking = (
            weights * self.instance.outcome_probabilities[categories, outcome] for outcome in (DEPART, CLICK_DEPART)
        )
        self.returns = _add_at(_add_at(self.returns, clicks, departing), clicks + 1, clicking)
        self._levels.append(weights.sum(axis=0) + lost)
        self._departing.append((departing + clicking).sum(axis=0))

    def end(self, clicks: Integers, weights: Floats) -> None:
        """Add users `weights[n, M]` who are active at the horizon."""
        raise AssertionError("The instance has no horizon.")

    def finish(self, gap: float, lost: Floats) -> float:
        """Add all committed users until at most `gap` of them remain; return the share of users not followed.

        Users `lost[M]` are active and not followed.
        """
        self.survival = np.array(self._levels).reshape(-1, self.instance.n_types)
        self.steps = np.array(self._departing)
        probabilities, departure = self.instance.outcome_probabilities, self.instance.departure_probabilities
        prior, remaining = self.instance.normalised_prior, np.zeros(2)
        budget = gap / max(len(self._by_step), 1)
        for a, entering in self._by_step.items():
            active, left = _chain(entering, 1 - departure[a], prior, budget)
            self.survival = _add_rows(self.survival, active)
            self.steps = _add_rows(self.steps, active * departure[a], 1)
            remaining[0] += left
            moving = self.instance.click[a] + probabilities[a, DEPART]  # not a stay
            active, left = _chain(self._by_clicks[a], probabilities[a, CLICK] / moving, prior, budget)
            self.returns = _add_rows(self.returns, active * (probabilities[a, DEPART] / moving))
            self.returns = _add_rows(self.returns, active * (probabilities[a, CLICK_DEPART] / moving), 1)
            remaining[1] += left
        self.survival[len(self._levels) :] += lost
        return float(remaining.max() + prior @ lost)


class DeparturesWithin(Departures):
    """Departures within a horizon, at which all active users finish.

    The clicks of a committed user depend on the steps left, so committed users are followed step by step.
    """

    def __init__(self, instance: Instance, horizon: int) -> None:
        super().__init__(instance)
        self.horizon = horizon
        self._committed: dict[int, Floats] = {}  # active users by category and clicks so far, [C, M]

    def commit(self, clicks: Integers, categories: Integers, weights: Floats) -> None:
        """Recommend `categories[n]` from this step on to users `weights[n, M]` with `clicks[n]` so far."""
        for a in np.unique(categories).tolist():
            rows, active = categories == a, self._committed.get(a, np.zeros((0, self.instance.n_types)))
            self._committed[a] = _add_at(active, clicks[rows], weights[rows])

    def add_level(self, clicks: Integers, categories: Integers, weights: Floats, lost: Floats | float = 0.0) -> None:
        """Add one step of all users, those of `weights[n, M]` and the committed ones."""
        for a, active in self._committed.items():
            clicks = np.concatenate([clicks, np.arange(len(active))])
            categories = np.concatenate([categories, np.full(len(active), a)])
            weights = np.concatenate([weights, active])
            moved = np.zeros((len(active) + 1, active.shape[1]))
            moved[1:] = active * self.instance.outcome_probabilities[a, CLICK]
            moved[:-1] += active * self.instance.outcome_probabilities[a, STAY]
            self._committed[a] = moved
        super().add_level(clicks, categories, weights, lost)

    def end(self, clicks: Integers, weights: Floats) -> None:
        """Add users `weights[n, M]` who are active at the horizon."""
        self.returns = _add_at(self.returns, clicks, weights)
        self._departing[-1] = self._departing[-1] + weights.sum(axis=0)

    def finish(self, gap: float, lost: Floats) -> float:
        """Follow the committed users until the horizon, or until at most `gap` of them remain."""
        prior, rows = self.instance.normalised_prior, 0
        nobody = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, self.instance.n_types))
        while len(self._levels) < self.horizon and self._active @ prior > gap and rows <= MAX_WORK:
            self.add_level(*nobody, lost)
            rows += sum(map(len, self._committed.values()))
        remaining = self._active
        if len(self._levels) == self.horizon:
            for active in self._committed.values():
                self.end(np.arange(len(active)), active)
            remaining = np.zeros_like(prior)
        self.survival, self.steps = np.array(self._levels), np.array(self._departing)
        return float(prior @ (remaining + lost))

    @property
    def _active(self) -> Floats:
        """Committed users of every type, `[M]`."""
        nobody = np.zeros((1, self.instance.n_types))
        return np.asarray(np.concatenate([nobody, *self._committed.values()]).sum(axis=0))


def new_departures(instance: Instance) -> Departures:
    """Departures of no user yet, within the horizon if there is one."""
    return Departures(instance) if instance.horizon is None else DeparturesWithin(instance, instance.horizon)


def _chain(entering: Floats, ratio: Floats, prior: Floats, budget: float) -> tuple[Floats, float]:
    """Rows `x[n] = entering[n] + ratio x[n - 1]`, `[N, M]`, until the share that goes on is at most `budget`."""
    rows = np.array(entering)
    for n in range(1, len(rows)):
        rows[n] += ratio * rows[n - 1]
    with np.errstate(divide="ignore", invalid="ignore"):  # logarithms of 0
        decay = np.log(ratio)
        lengths = (np.log(budget / len(prior)) - np.log(prior * rows[-1])) / decay
    length = np.ceil(np.where((prior * rows[-1] > budget / len(prior)) & (ratio > 0), lengths, 0.0).max())
    tail = rows[-1] * np.exp(np.arange(1, min(length, MAX_TAIL) + 1)[:, None] * decay)
    rows = np.vstack([rows, tail])
    return rows, float(prior @ (rows[-1] * ratio))


def _add_at(total: Floats, positions: Integers, rows: Floats) -> Floats:
    """Add `rows[i]` to row `positions[i]` of `total`, which is extended if it is too short."""
    total = _add_rows(total, total[:0], int(positions.max(initial=-1)) + 1)
    np.add.at(total, positions, rows)
    return total


def _add_rows(total: Floats, rows: Floats, start: int = 0) -> Floats:
    """Add `rows` to `total` from row `start` on; `total` is extended if it is too short."""
    missing = start + len(rows) - len(total)
    if missing > 0:
        total = np.vstack([total, np.zeros((missing, total.shape[1]))])
    total[start : start + len(rows)] += rows
    return total
