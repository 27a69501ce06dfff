"""Likelihood of the latent class model: users' counts given prior, click and departure probabilities."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from departing.kernels.fitting.mixture import em, log_posterior
from departing.model.counts import Booleans, Integers
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats

# Probabilities nearer to 0 or 1, and shares of types nearer to 0, are clipped, so that logits are finite.
MIN_PROBABILITY, MIN_SHARE = 1e-6, 1e-9
LOG_ZERO = -1e290  # in the place of log 0: times a count it stays finite, and far below any other sum
NO_DERIVATIVES = np.zeros((0, 0)), np.zeros((0, 0, 0))
BATCH_ROWS = 2**18  # rows whose entries are copied at a time, by 64-bit indices
BATCH_CELLS = 2**22  # numbers of a matrix over rows at a time: 32 MiB


@dataclass(frozen=True)
class Parameters:
    """Parameters of an instance: `prior[M]` and `click`, `depart`, `depart_on_click`, each `[K, M]`."""

    prior: Floats
    click: Floats
    depart: Floats
    depart_on_click: Floats


class Entries(NamedTuple):
    """Responses with trials: those of row n are `start[n]:start[n + 1]`, by increasing response.

    `response`, `successes` and `trials` are small integers for the counts of a large log, which are stored so, and
    otherwise 64-bit numbers.
    """

    start: Integers
    response: npt.NDArray[Any]
    successes: npt.NDArray[Any]
    trials: npt.NDArray[Any]

    def rows(self, chosen: Integers) -> Self:
        """Entries of the rows `chosen[n]`."""
        lengths = np.diff(self.start)[chosen]
        start = np.append(0, np.cumsum(lengths))
        columns = [np.empty(start[-1], column.dtype) for column in self[1:]]
        for first in range(0, len(chosen), BATCH_ROWS):
            end = min(first + BATCH_ROWS, len(chosen))
            inside = slice(int(start[first]), int(start[end]))
            place = np.repeat(self.start[chosen[first:end]] - start[first:end], lengths[first:end])
            place += np.arange(inside.start, inside.stop)
            for column, values in zip(columns, self[1:], strict=True):
                column[inside] = values[place]
        return type(self)(start, *columns)

    def slice(self, first: int, end: int) -> Self:
        """Entries of the rows `first` to `end - 1`, as views."""
        inside = slice(int(self.start[first]), int(self.start[end]))
        return type(self)(self.start[first : end + 1] - self.start[first], *(column[inside] for column in self[1:]))


@dataclass(frozen=True, eq=False)
class MixtureLikelihood:
    """Likelihood of a mixture of `n_types` types, each a product of independent binary responses.

    Row n stands for `users[n]` users with the same successes and trials of the F responses, those with trials in
    `entries`. The responses are a click for each of the K categories, then a departure after a no-click for each of
    `depart_categories`, then a departure after a click for each of `depart_on_click_categories`. In other categories
    a departure after a no-click is sure (no user stayed), and there is none after a click (no user departed so).
    A step at the horizon, after which it is unknown whether the user stayed, is a trial of the click only.
    Users with weights count by the sum of these; `squares[n]` is then the sum of their squares.
    """

    n_types: int
    n_categories: int
    users: Floats
    entries: Entries
    depart_categories: Integers
    depart_on_click_categories: Integers
    squares: Floats | None = None

    @classmethod
    def from_counts(
        cls,
        counts: Integers,
        users: Integers | Floats,
        n_types: int,
        depart_categories: Integers | None = None,
        depart_on_click_categories: Integers | None = None,
        final: Integers | None = None,
    ) -> Self:
        """Likelihood for `users[n]` users with `counts[n, K, 4]`; by default departures are free where observed.

        `final[n, K, 2]` are the clicks and stays at the horizon, none by default.
        """
        if depart_categories is None:
            depart_categories = np.flatnonzero(counts[..., STAY].sum(axis=0) > 0)
        if depart_on_click_categories is None:
            depart_on_click_categories = np.flatnonzero(counts[..., CLICK_DEPART].sum(axis=0) > 0)
        free = depart_categories, depart_on_click_categories
        if final is None:
            final = np.broadcast_to(np.zeros((), counts.dtype), (*counts.shape[:2], 2))
        return cls.from_parts([(counts, users, final)], counts.shape[1], n_types, *free)

    @classmethod
    def from_parts(
        cls,
        parts: Iterable[tuple[Integers, Floats | Integers, Integers]],
        n_categories: int,
        n_types: int,
        depart_categories: Integers,
        depart_on_click_categories: Integers,
    ) -> Self:
        """Likelihood for all `parts`, each `counts[n, K, 4]` of `users[n]` users with `final[n, K, 2]`."""
        free = depart_categories, depart_on_click_categories
        n_responses = n_categories + len(free[0]) + len(free[1])
        users, lengths = [np.zeros(0)], [np.zeros(1, np.int64)]
        columns: list[list[npt.NDArray[Any]]] = []
        for counts, times, final in parts:
            successes, trials = _responses(counts, final, *free)
            kept = trials.any(axis=1)
            row, response = np.nonzero(trials[kept])
            columns.append([response, successes[kept][row, response], trials[kept][row, response]])
            if counts.dtype == np.int64:
                columns[-1][1:] = [column.astype(np.float64) for column in columns[-1][1:]]
            else:
                small = np.min_scalar_type(n_responses), counts.dtype, counts.dtype
                columns[-1] = [each.astype(dtype) for each, dtype in zip(columns[-1], small, strict=True)]
            users.append(times[kept].astype(np.float64))
            lengths.append(np.bincount(row, minlength=len(users[-1])))
        columns = columns or [[np.zeros(0, np.int64), np.zeros(0), np.zeros(0)]]
        joined = [np.concatenate([part.pop(0) for part in columns]) for _ in range(3)]
        start = np.cumsum(np.concatenate(lengths))
        return cls(n_types, n_categories, np.concatenate(users), Entries(start, *joined), *free)

    @property
    def successes(self) -> Floats:
        """Successes of a user of each row, `[n, F]`."""
        return self._dense(self.entries.successes)

    @property
    def trials(self) -> Floats:
        """Trials of a user of each row, `[n, F]`."""
        return self._dense(self.entries.trials)

    def _dense(self, values: npt.NDArray[Any]) -> Floats:
        dense = np.zeros((len(self.users), self.n_responses))
        dense[np.repeat(np.arange(len(dense)), np.diff(self.entries.start)), self.entries.response] = values
        return dense

    @property
    def n_responses(self) -> int:
        """Number of responses F: K clicks and the departures that are estimated."""
        return self.n_categories + len(self.depart_categories) + len(self.depart_on_click_categories)

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
    def totals(self) -> Floats:
        """Numbers of successes and of trials of each response, `[2, F]`."""
        totals = np.zeros((2, self.n_responses))
        for part in self.batches():
            users = np.repeat(part.users, np.diff(part.entries.start))
            for total, values in zip(totals, part.entries[2:], strict=True):
                total += np.bincount(part.entries.response, users * values, self.n_responses)
        return totals

    @property
    def impressions(self) -> Floats:
        """Number of times each category was shown, `[K]`."""
        return self.totals[1, : self.n_categories]

    @property
    def sure_departures(self) -> Integers:
        """Number of no-clicks of each category in which no user stayed after one, 0 for the others, `[K]`."""
        no_clicks = (self.totals[1] - self.totals[0])[: self.n_categories]
        no_clicks[self.depart_categories] = 0
        return np.asarray(no_clicks, np.int64)

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
        log_posterior(
            logits, self.users, *self.entries, self.n_responses, self.n_types, pseudocount, values, *NO_DERIVATIVES
        )
        return values

    def gradient(self, logits: Floats, pseudocount: float) -> tuple[float, Floats]:
        """Log-posterior at `logits[d]` and its gradient `[d]`."""
        value, gradient = np.empty(1), np.empty((1, len(logits)))
        arrays = value, gradient, NO_DERIVATIVES[1]
        log_posterior(logits[None], self.users, *self.entries, self.n_responses, self.n_types, pseudocount, *arrays)
        return float(value[0]), gradient[0]

    def derivatives(self, logits: Floats, pseudocount: float) -> tuple[Floats, Floats, Floats]:
        """Log-posterior `[B]`, its gradient `[B, d]` and the observed information `[B, d, d]`."""
        b, d = logits.shape
        arrays = np.empty(b), np.empty((b, d)), np.empty((b, d, d))
        log_posterior(logits, self.users, *self.entries, self.n_responses, self.n_types, pseudocount, *arrays)
        return arrays

    def _log_likelihoods(self, logits: Floats) -> Floats:
        """Log-likelihood of one user of each row by type, `[n, M]`."""
        prob = self.response_probabilities(logits)
        with np.errstate(divide="ignore"):
            success, failure = np.log(prob), np.log1p(-prob)
        successes = self.successes
        weight = successes @ np.maximum(success, LOG_ZERO)
        return np.asarray(weight + (self.trials - successes) @ np.maximum(failure, LOG_ZERO))

    def type_likelihoods(self, logits: Floats) -> Floats:
        """Likelihood of one user of each row by type, divided by the largest, `[n, M]`."""
        weight = self._log_likelihoods(logits)
        return np.asarray(np.exp(weight - weight.max(axis=1, keepdims=True)))

    def responsibilities(self, logits: Floats) -> Floats:
        """Posterior probability of every type for every row, `[n, M]`."""
        with np.errstate(divide="ignore"):
            weight = self._log_likelihoods(logits) + np.log(self.from_logits(logits).prior)
        weight = np.exp(weight - weight.max(axis=1, keepdims=True))
        return np.asarray(weight / weight.sum(axis=1, keepdims=True))

    def rows(self, chosen: slice | Integers | Booleans) -> Self:
        """Likelihood of some of the rows."""
        numbers = np.arange(len(self.users))[chosen]
        squares = None if self.squares is None else self.squares[numbers]
        return replace(self, users=self.users[numbers], entries=self.entries.rows(numbers), squares=squares)

    def batches(self, width: int = 0) -> Iterator[Self]:
        """Likelihoods of the rows in order, so many that a matrix of `width` (or F) numbers per row is small."""
        size = max(BATCH_CELLS // (width or self.n_responses), 1)
        for first in range(0, len(self.users), size):
            end = min(first + size, len(self.users))
            squares = None if self.squares is None else self.squares[first:end]
            yield replace(self, users=self.users[first:end], entries=self.entries.slice(first, end), squares=squares)

    def reweighted(self, users: Floats) -> Self:
        """Likelihood with other numbers of users of the rows, without the rows that have none."""
        return replace(self, users=users, squares=None).rows(users > 0)

    def scores(self, logits: Floats) -> Floats:
        """Gradient of the log-likelihood of one user of each row, `[n, d]`."""
        shares = self.responsibilities(logits)
        away = (shares - self.from_logits(logits).prior)[:, :-1]
        return np.concatenate([self.response_scores(logits, shares), away], axis=1)

    def response_scores(self, logits: Floats, shares: Floats) -> Floats:
        """The same by the logits of the responses, `[n, F * M]`, given the posterior probabilities `[n, M]`."""
        errors = self.successes[:, :, None] - self.trials[:, :, None] * self.response_probabilities(logits)
        return np.asarray((errors * shares[:, None, :]).reshape(len(shares), -1))

    def run_em(self, logits: Floats, pseudocount: float, iterations: int) -> Floats:
        """`logits[B, d]` after EM iterations: fast at first, slow near a maximum."""
        logits = np.array(logits)
        em(logits, self.users, *self.entries, self.n_responses, self.n_types, pseudocount, iterations)
        return logits


def _responses(
    counts: Integers, final: Integers, free: Integers, free_on_click: Integers
) -> tuple[Integers, Integers]:
    """Successes and trials `[n, F]` of `counts[n, K, 4]`, whose integers hold their sums over outcomes.

    The clicks and stays at the horizon, `final[n, K, 2]`, are trials of the click only.
    """
    click, stay, depart, click_depart = (counts[..., outcome] for outcome in (CLICK, STAY, DEPART, CLICK_DEPART))
    clicks, no_clicks = click + click_depart, stay + depart
    successes = np.concatenate([clicks, depart[:, free], click_depart[:, free_on_click]], axis=1)
    known_clicks, known_no_clicks = clicks - final[..., CLICK], no_clicks - final[..., STAY]
    return successes, np.concatenate(
        [clicks + no_clicks, known_no_clicks[:, free], known_clicks[:, free_on_click]], axis=1
    )
