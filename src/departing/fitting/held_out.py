"""Cross-fitting: fits to each half of the users of a log, to forecast the other half."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from departing.data.log import Episodes
from departing.fitting.forecast_cells import TIME_BINS, half_of, time_bins
from departing.fitting.likelihood import MixtureLikelihood
from departing.fitting.optimisation import maximise
from departing.model.counts import Integers, merge
from departing.model.instance import Floats

BATCH_COUNTS = 2**24  # entries of dense counts at a time: 128 MiB


def compact(chunk: Episodes) -> Episodes:
    """The same steps in small numbers, without propensities: 12 bytes for each step."""
    small: list[Any] = [
        chunk.user.astype(np.int32),
        chunk.step[:0],
        chunk.category.astype(np.int16),  # at most 1,000
        chunk.outcome.astype(np.int8),
        chunk.propensity[:0],
        chunk.pending,
        chunk.time.astype(np.float32),
    ]
    return Episodes(*small)


def cross_fit(halves: list[tuple[MixtureLikelihood, Integers]], logits: Floats, pseudocount: float) -> list[Floats]:
    """Logits for the users of each half, fitted to those of the other.

    Both fits start at `logits[d]`, those of all users, so that their types correspond.
    """
    zero, one = (maximise(likelihood, logits[None], pseudocount).logits for likelihood, _ in halves)
    return [one, zero]


def arrivals(likelihood: MixtureLikelihood, chunks: Iterable[Episodes]) -> list[tuple[MixtureLikelihood, Integers]]:
    """Likelihood of the users of each half with a known step, and the users `[N, TIME_BINS]` of rows by arrival."""
    n_categories = likelihood.n_categories
    empty: tuple[Any, Integers] = np.zeros((0, n_categories, 4), np.uint8), np.zeros((0, TIME_BINS), np.int64)
    parts = [[empty], [empty]]
    batch = max(BATCH_COUNTS // (4 * n_categories), 1)
    for chunk in chunks:
        if not len(chunk.user):
            continue
        known = ~chunk.pending
        first = np.flatnonzero(np.append(True, np.diff(chunk.user) != 0))
        row = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(chunk.user))))[known]
        cell = chunk.category[known].astype(np.int64) * 4 + chunk.outcome[known]
        half, arrival = half_of(chunk.user[first]), time_bins(chunk.time[first])
        for start in range(0, len(first), batch):
            size = min(batch, len(first) - start)
            within = slice(*np.searchsorted(row, (start, start + size)).tolist())
            place = (row[within] - start) * (4 * n_categories) + cell[within]
            flat = np.bincount(place, minlength=size * 4 * n_categories).reshape(size, n_categories, 4)
            counts = flat.astype(np.min_scalar_type(int(flat.max(initial=0))))
            users = (arrival[start : start + size, None] == np.arange(TIME_BINS)).astype(np.int64)
            for h in (0, 1):
                own = (half[start : start + size] == h) & counts.any(axis=(1, 2))
                parts[h].append(merge(counts[own], users[own]))
    free = likelihood.depart_categories, likelihood.depart_on_click_categories
    halves = []
    for part in parts:
        small, users = merge(*(np.concatenate(each) for each in zip(*part, strict=True)))
        counts = small.astype(np.int64)  # small integers would overflow in sums of outcomes
        halves.append((MixtureLikelihood.from_counts(counts, users.sum(axis=1), likelihood.n_types, *free), users))
    return halves
