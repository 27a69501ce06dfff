"""How likely what users did is, as a function of prior, click and depart, with gradient and information."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from departing.kernels.fitting.mixture import expect_and_maximise, log_posterior
from departing.model.counts import Integers
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats

EMPTY = np.zeros((0, 0)), np.zeros((0, 0, 0))


@dataclass(frozen=True)
class Parameters:
    """What is to be found out: `prior[M]`, `click[K, M]`, `depart[K, M]`, `depart_on_click[K, M]`."""

    prior: Floats
    click: Floats
    depart: Floats
    depart_on_click: Floats


@dataclass(frozen=True, eq=False)
class Evidence:
    """What users did, as answers to questions: does a user click, depart after a no-click, depart after a click?

    `yes[n, F]` of `asked[n, F]` for `users[n]` alike users. The first K questions are the clicks; then come the
    departures after a no-click of the categories `departing`, and those after a click of `leaving`. A category where
    nobody ever stayed is not among `departing`: departure is sure as far as anybody knows. A category where nobody
    departed after a click is not among `leaving`.
    """

    n_types: int
    n_categories: int
    users: Floats
    yes: Floats
    asked: Floats
    departing: Integers
    leaving: Integers

    @classmethod
    def of(
        cls,
        counts: Integers,
        users: Integers,
        n_types: int,
        departing: Integers | None = None,
        leaving: Integers | None = None,
    ) -> Self:
        """The evidence of `users[n]` users with `counts[n, K, 4]`.

        Other categories than the data tell may be taken for `departing` and `leaving`.
        """
        click, stay, depart, last = (counts[..., outcome] for outcome in (CLICK, STAY, DEPART, CLICK_DEPART))
        departing = np.flatnonzero(stay.sum(axis=0) > 0) if departing is None else departing
        leaving = np.flatnonzero(last.sum(axis=0) > 0) if leaving is None else leaving
        yes = np.concatenate([click + last, depart[:, departing], last[:, leaving]], axis=1)
        trials = [click + stay + depart + last, (stay + depart)[:, departing], (click + last)[:, leaving]]
        asked = np.concatenate(trials, axis=1)
        told = asked.any(axis=1)
        return cls(
            n_types,
            counts.shape[1],
            np.ascontiguousarray(users[told], np.float64),
            np.ascontiguousarray(yes[told], np.float64),
            np.ascontiguousarray(asked[told], np.float64),
            departing,
            leaving,
        )

    @property
    def n_questions(self) -> int:
        """K clicks and the departures that are not sure."""
        return int(self.yes.shape[1])

    @property
    def n_parameters(self) -> int:
        """Of every type and question, and of the prior."""
        return self.n_questions * self.n_types + self.n_types - 1

    @cached_property
    def asked_in_all(self) -> Floats:
        """How often every category was shown, `[K]`."""
        return np.asarray(self.users @ self.asked[:, : self.n_categories])

    @cached_property
    def never_stayed(self) -> Integers:
        """How many no-clicks every category had, all of them departures; 0 where users stayed, `[K]`."""
        misses = self.users @ (self.asked - self.yes)[:, : self.n_categories]
        misses[self.departing] = 0
        return np.asarray(misses, np.int64)

    def pack(self, parameters: Parameters) -> Floats:
        """Parameters as logits."""
        chances = [parameters.click, parameters.depart[self.departing], parameters.depart_on_click[self.leaving]]
        chance = np.clip(np.concatenate(chances), 1e-6, 1 - 1e-6)
        prior = np.clip(parameters.prior, 1e-9, None)
        return np.concatenate([np.log(chance / (1 - chance)).reshape(-1), np.log(prior[:-1] / prior[-1])])

    def unpack(self, eta: Floats) -> Parameters:
        """Logits as parameters; departure is sure where no user ever stayed."""
        m, k = self.n_types, self.n_categories
        chance = (0.5 * (1 + np.tanh(0.5 * eta[: self.n_questions * m]))).reshape(self.n_questions, m)
        weight = np.append(eta[self.n_questions * m :], 0.0)
        weight = np.exp(weight - weight.max())
        depart, last = np.ones((k, m)), np.zeros((k, m))
        depart[self.departing] = chance[k : k + len(self.departing)]
        last[self.leaving] = chance[k + len(self.departing) :]
        return Parameters(weight / weight.sum(), chance[:k], depart, last)

    def value(self, etas: Floats, pseudo: float) -> Floats:
        """The log-likelihood at `etas[B, d]`, as if every question had `pseudo` yes and no of each type besides."""
        values = np.empty(len(etas))
        log_posterior(etas, self.users, self.yes, self.asked, self.n_types, pseudo, values, *EMPTY)
        return values

    def slopes(self, etas: Floats, pseudo: float) -> tuple[Floats, Floats, Floats]:
        """The same, its gradient `[B, d]` and the observed information `[B, d, d]`."""
        b, d = etas.shape
        values, gradients, informations = np.empty(b), np.empty((b, d)), np.empty((b, d, d))
        arrays = (values, gradients, informations)
        log_posterior(etas, self.users, self.yes, self.asked, self.n_types, pseudo, *arrays)
        return arrays

    def beliefs(self, eta: Floats) -> Floats:
        """How likely every row is of every type, `[n, M]`."""
        found = self.unpack(eta)
        chance = np.concatenate([found.click, found.depart[self.departing], found.depart_on_click[self.leaving]])
        with np.errstate(divide="ignore"):
            yes, no, prior = np.log(chance), np.log1p(-chance), np.log(found.prior)
        weight = self.yes @ np.maximum(yes, -1e290) + (self.asked - self.yes) @ np.maximum(no, -1e290) + prior
        weight = np.exp(weight - weight.max(axis=1, keepdims=True))
        return np.asarray(weight / weight.sum(axis=1, keepdims=True))

    def approach(self, etas: Floats, pseudo: float, rounds: int) -> Floats:
        """`etas` after some rounds of EM: quickly near a maximum, hardly ever at it."""
        near = np.array(etas)
        expect_and_maximise(near, self.users, self.yes, self.asked, self.n_types, pseudo, rounds)
        return near


@dataclass(frozen=True)
class Peaks:
    """Where Newton's method ended: `etas[B, d]` with values, gradients and informations there."""

    etas: Floats
    values: Floats
    informations: Floats


def climb(evidence: Evidence, etas: Floats, pseudo: float, basis: Floats | None = None, rounds: int = 60) -> Peaks:
    """Go uphill from `etas[B, d]` by Newton's method, each on its own, within the span of `basis[d, r]` if given.

    Damped, and saddle-free: directions of negative curvature are gone up as well.
    """
    etas = np.array(etas)
    values, gradients, informations = evidence.slopes(etas, pseudo)
    damping = np.ones(len(etas))
    going = np.ones(len(etas), bool)
    for _ in range(rounds):
        rows = np.flatnonzero(going)
        if not len(rows):
            break
        curvature, directions, pull = _axes(gradients[rows], informations[rows], basis)
        promise = (pull**2 / np.maximum(np.abs(curvature), 1e-3)).sum(axis=1)
        arrived = (promise < (1e-6 if basis is None else 1e-2)) & ((curvature[:, 0] > 0) | (basis is not None))
        going[rows[arrived]] = False
        rows, curvature, directions, pull = (part[~arrived] for part in (rows, curvature, directions, pull))
        waiting = np.arange(len(rows))
        for _ in range(12):
            if not len(waiting):
                break
            at = rows[waiting]
            steps = _steps(curvature[waiting], directions[waiting], pull[waiting], damping[at])
            tried = etas[at] + steps
            reached = evidence.value(tried, pseudo)
            better = reached > values[at]
            etas[at[better]], values[at[better]] = tried[better], reached[better]
            damping[at[better]] = np.maximum(damping[at[better]] / 5, 1e-9)
            damping[at[~better]] = np.maximum(damping[at[~better]], 1e-3) * 6
            waiting = waiting[~better]
        going[rows[waiting]] = False  # no step is uphill, as far as can be told
        moved = np.setdiff1d(rows, rows[waiting])
        if len(moved):
            values[moved], gradients[moved], informations[moved] = evidence.slopes(etas[moved], pseudo)
    return Peaks(etas, values, informations)


def _axes(gradients: Floats, informations: Floats, basis: Floats | None) -> tuple[Floats, Floats, Floats]:
    """Curvatures `[B, r]`, their directions `[B, d, r]` and the gradient along them `[B, r]`."""
    if basis is not None:
        curvature, inside = np.linalg.eigh(basis.T @ informations @ basis)
        directions = basis @ inside
    else:
        curvature, directions = np.linalg.eigh(informations)
    return curvature, directions, np.einsum("bdr,bd->br", directions, gradients)


def _steps(curvature: Floats, directions: Floats, pull: Floats, damping: Floats) -> Floats:
    """Newton's steps, none longer than 2 in any parameter."""
    along = pull / (np.abs(curvature) + damping[:, None])
    steps = np.einsum("bdr,br->bd", directions, along)
    longest = np.abs(steps).max(axis=1, initial=0.0)
    return np.asarray(steps * np.where(longest > 2, 2 / np.maximum(longest, 1e-300), 1.0)[:, None])
