"""Likelihood of the latent class model: users' counts given prior, click and departure probabilities."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from departing.kernels.fitting.mixture import em, log_posterior
from departing.model.counts import Booleans, Integers
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats

# Probabilities nearer to 0 or 1, and shares of types nearer to 0, are clipped, so that logits are finite.
MIN_PROBABILITY, MIN_SHARE = 1e-6, 1e-9
LOG_ZERO = -1e290  # in the place of log 0: times a count it stays finite, and far below any other sum
NO_DERIVATIVES = np.zeros((0, 0)), np.zeros((0, 0, 0))


@dataclass(frozen=True)
class Parameters:
    """Parameters of an instance: `prior[M]` and `click`, `depart`, `depart_on_click`, each `[K, M]`."""

    prior: Floats
    click: Floats
    depart: Floats
    depart_on_click: Floats


@dataclass(frozen=True, eq=False)
class MixtureLikelihood:
    """Likelihood of a mixture of `n_types` types, each a product of independent binary responses.

    Row n stands for `users[n]` users with `successes[n, F]` out of `trials[n, F]`. The F responses are a click for
    each of the K categories, then a departure after a no-click for each of `depart_categories`, then a departure
    after a click for each of `depart_on_click_categories`. In other categories a departure after a no-click is sure
    (no user stayed), and there is none after a click (no user departed so).
    """

    n_types: int
    n_categories: int
    users: Floats
    successes: Floats
    trials: Floats
    depart_categories: Integers
    depart_on_click_categories: Integers

    @classmethod
    def from_counts(
        cls,
        counts: Integers,
        users: Integers,
        n_types: int,
        depart_categories: Integers | None = None,
        depart_on_click_categories: Integers | None = None,
    ) -> Self:
        """Likelihood for `users[n]` users with `counts[n, K, 4]`; by default departures are free where observed."""
        click, stay, depart, click_depart = (counts[..., outcome] for outcome in (CLICK, STAY, DEPART, CLICK_DEPART))
        if depart_categories is None:
            depart_categories = np.flatnonzero(stay.sum(axis=0) > 0)
        if depart_on_click_categories is None:
            depart_on_click_categories = np.flatnonzero(click_depart.sum(axis=0) > 0)
        free, free_on_click = depart_categories, depart_on_click_categories
        successes = np.concatenate([click + click_depart, depart[:, free], click_depart[:, free_on_click]], axis=1)
        trials = np.concatenate(
            [
                click + stay + depart + click_depart,
                (stay + depart)[:, free],
                (click + click_depart)[:, free_on_click],
            ],
            axis=1,
        )
        kept = trials.any(axis=1)
        rows = [np.ascontiguousarray(array[kept], np.float64) for array in (users, successes, trials)]
        return cls(n_types, counts.shape[1], rows[0], rows[1], rows[2], free, free_on_click)

    @property
    def n_responses(self) -> int:
        """Number of responses F: K clicks and the departures that are estimated."""
        return int(self.successes.shape[1])

    @property
    def n_parameters(self) -> int:
        """Number of free parameters d: one per response and type, and M - 1 of the prior."""
        return self.n_responses * self.n_types + self.n_types - 1

    @property
    def parameter_numbers(self) -> Integers:
        """Number of every parameter `[d]` if those of all three responses in all categories are numbered."""
        k, m = self.n_categories, self.n_types
        responses = np.concatenate(
            [np.arange(k), k + self.depart_categories, 2 * k + self.depart_on_click_categories]
        )
        return np.append((responses[:, None] * m + np.arange(m)).reshape(-1), 3 * k * m + np.arange(m - 1))

    @cached_property
    def impressions(self) -> Floats:
        """Number of times each category was shown, `[K]`."""
        return np.asarray(self.users @ self.trials[:, : self.n_categories])

    @cached_property
    def sure_departures(self) -> Integers:
        """Number of no-clicks of each category in which no user stayed after one, 0 for the others, `[K]`."""
        no_clicks = self.users @ (self.trials - self.successes)[:, : self.n_categories]
        no_clicks[self.depart_categories] = 0
        return np.asarray(no_clicks, np.int64)

    @cached_property
    def _entries(self) -> tuple[Floats, Integers, Integers, Floats, Floats]:
        """Users of the rows, and the responses with trials: first entry of each row, response, successes, trials."""
        row, response = np.nonzero(self.trials)
        start = np.searchsorted(row, np.arange(len(self.users) + 1))
        return self.users, start, response, self.successes[row, response], self.trials[row, response]

    def responses(self, parameters: Parameters) -> Floats:
        """Entries of `parameters` that are estimated, `[F, M]`."""
        depart, click_depart = parameters.depart[self.depart_categories], parameters.depart_on_click
        return np.concatenate([parameters.click, depart, click_depart[self.depart_on_click_categories]])

    def parameters(self, prior: Floats, responses: Floats, depart: float, depart_on_click: float) -> Parameters:
        """Parameters from `responses[F, M]`, with given values for departures that are not estimated."""
        k, n = self.n_categories, self.n_categories + len(self.depart_categories)
        all_depart = np.full((k, self.n_types), depart, responses.dtype)
        all_depart_on_click = np.full((k, self.n_types), depart_on_click, responses.dtype)
        all_depart[self.depart_categories] = responses[k:n]
        all_depart_on_click[self.depart_on_click_categories] = responses[n:]
        return Parameters(prior, responses[:k], all_depart, all_depart_on_click)

    def to_logits(self, parameters: Parameters) -> Floats:
        """Logits `[d]` of parameters, clipped to finite values."""
        prob = np.clip(self.responses(parameters), MIN_PROBABILITY, 1 - MIN_PROBABILITY)
        prior = np.clip(parameters.prior, MIN_SHARE, None)
        return np.concatenate([np.log(prob / (1 - prob)).reshape(-1), np.log(prior[:-1] / prior[-1])])

    def from_logits(self, logits: Floats) -> Parameters:
        """Parameters at `logits[d]`."""
        weight = np.append(logits[self.n_responses * self.n_types :], 0.0)
        weight = np.exp(weight - weight.max())
        return self.parameters(weight / weight.sum(), self.response_probabilities(logits), 1.0, 0.0)

    def response_probabilities(self, logits: Floats) -> Floats:
        """Success probabilities `[F, M]` at `logits[d]`."""
        shape = self.n_responses, self.n_types
        return np.asarray((0.5 * (1 + np.tanh(0.5 * logits[: shape[0] * shape[1]]))).reshape(shape))

    def log_likelihood(self, logits: Floats) -> float:
        """Log-likelihood of all users at `logits[d]`, in nats."""
        return float(self.log_posterior(logits[None], 0.0)[0])

    def log_posterior(self, logits: Floats, pseudocount: float) -> Floats:
        """Log-likelihood `[B]` at `logits[B, d]` with `pseudocount` added successes and failures per response."""
        values = np.empty(len(logits))
        log_posterior(logits, *self._entries, self.n_responses, self.n_types, pseudocount, values, *NO_DERIVATIVES)
        return values

    def gradient(self, logits: Floats, pseudocount: float) -> tuple[float, Floats]:
        """Log-posterior at `logits[d]` and its gradient `[d]`."""
        value, gradient = np.empty(1), np.empty((1, len(logits)))
        arrays = value, gradient, NO_DERIVATIVES[1]
        log_posterior(logits[None], *self._entries, self.n_responses, self.n_types, pseudocount, *arrays)
        return float(value[0]), gradient[0]

    def derivatives(self, logits: Floats, pseudocount: float) -> tuple[Floats, Floats, Floats]:
        """Log-posterior `[B]`, its gradient `[B, d]` and the observed information `[B, d, d]`."""
        b, d = logits.shape
        arrays = np.empty(b), np.empty((b, d)), np.empty((b, d, d))
        log_posterior(logits, *self._entries, self.n_responses, self.n_types, pseudocount, *arrays)
        return arrays

    def responsibilities(self, logits: Floats) -> Floats:
        """Posterior probability of every type for every row, `[n, M]`."""
        parameters = self.from_logits(logits)
        prob = self.responses(parameters)
        with np.errstate(divide="ignore"):
            success, failure, prior = np.log(prob), np.log1p(-prob), np.log(parameters.prior)
        weight = self.successes @ np.maximum(success, LOG_ZERO)
        weight = weight + (self.trials - self.successes) @ np.maximum(failure, LOG_ZERO) + prior
        weight = np.exp(weight - weight.max(axis=1, keepdims=True))
        return np.asarray(weight / weight.sum(axis=1, keepdims=True))

    def rows(self, chosen: slice | Integers | Booleans) -> Self:
        """Likelihood of some of the rows."""
        users, successes, trials = (part[chosen] for part in (self.users, self.successes, self.trials))
        return replace(self, users=users, successes=successes, trials=trials)

    def reweighted(self, users: Floats) -> Self:
        """Likelihood with other numbers of users of the rows, without the rows that have none."""
        return replace(self, users=users).rows(users > 0)

    def with_types(self, n_types: int) -> Self:
        """Likelihood of the same rows with another number of types."""
        return self._sharing(replace(self, n_types=n_types))

    def with_users(self, users: Floats) -> Self:
        """Likelihood with other numbers of users of the same rows, some perhaps 0."""
        return self._sharing(replace(self, users=users))

    def _sharing(self, other: Self) -> Self:
        """`other`, which has the same rows, with their entries."""
        vars(other)["_entries"] = (other.users, *self._entries[1:])
        return other

    def scores(self, logits: Floats) -> Floats:
        """Gradient of the log-likelihood of one user of each row, `[n, d]`."""
        shares = self.responsibilities(logits)
        errors = self.successes[:, :, None] - self.trials[:, :, None] * self.response_probabilities(logits)
        of_responses = (errors * shares[:, None, :]).reshape(len(shares), -1)
        return np.concatenate([of_responses, (shares - self.from_logits(logits).prior)[:, :-1]], axis=1)

    def run_em(self, logits: Floats, pseudocount: float, iterations: int) -> Floats:
        """`logits[B, d]` after EM iterations: fast at first, slow near a maximum."""
        logits = np.array(logits)
        em(logits, *self._entries, self.n_responses, self.n_types, pseudocount, iterations)
        return logits
