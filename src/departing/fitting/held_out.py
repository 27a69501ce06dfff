"""Cross-fitting: fits to each half of the users of a log, to forecast the other half."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from departing.data.log import Episodes
from departing.data.sample import CLICK_ONLY, PENDING, step_evidence
from departing.fitting.concentration import SegmentOptimum, maximise_segmented
from departing.fitting.forecast_cells import TIME_BINS, half_of, time_bins
from departing.fitting.likelihood import MixtureLikelihood
from departing.fitting.optimisation import maximise
from departing.fitting.segments import SegmentedLikelihood
from departing.model.counts import Integers, merge
from departing.model.instance import DEPART, Floats, Instance

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
        None if chunk.segment is None else chunk.segment.astype(np.int32),
    ]
    return Episodes(*small)


def thin(chunk: Episodes, half_life: float, rng: np.random.Generator) -> Episodes:
    """Keep each user with the probability of its weight: 0.5 to the power of its age over the half-life.

    The half-life is a fraction of the length of the log. The users kept are those that a fit with this half-life
    describes.
    """
    if not len(chunk):
        return chunk
    first = np.append(True, np.diff(chunk.user) != 0)
    weight = 0.5 ** ((1 - chunk.time[first].astype(np.float64)) / half_life)
    kept = (rng.random(len(weight)) < weight)[np.cumsum(first) - 1]
    columns: list[Any] = [getattr(chunk, each.name) for each in fields(chunk)]
    columns = [None if each is None else each[kept] if len(each) else each for each in columns]
    return Episodes(*columns)


@dataclass(frozen=True, eq=False)
class Half:
    """Users of one half of a log: rows with known steps, `arrivals[N, TIME_BINS]` and, if known, their segments."""

    likelihood: MixtureLikelihood
    arrivals: Integers
    segment: Integers | None

    def priors(self, prior: Floats | None, instance: Instance) -> Floats | None:
        """Priors of the rows `[N, M]`, given those of the segments `[S, M]`; None without."""
        if prior is None or self.segment is None:
            return None
        return np.append(prior, instance.prior[None], axis=0)[self.segment]


def cross_fit(
    halves: list[Half], logits: Floats, pseudocount: float, optimum: SegmentOptimum | None
) -> tuple[list[Floats], list[Floats | None]]:
    """Logits and priors of segments for the users of each half, fitted to those of the other.

    Both fits start at `logits[d]`, those of all users, so that their types correspond. With the `optimum` of a fit
    with segments, its concentration and common prior are kept.
    """
    if optimum is None:
        zero, one = (maximise(half.likelihood, logits[None], pseudocount).logits for half in halves)
        return [one, zero], [None, None]
    given, fits = optimum.likelihood, []
    for half in halves:
        assert half.segment is not None
        own = SegmentedLikelihood.of(half.likelihood, half.segment, given.n_segments, given.target)
        own = own.with_prior(given.target, given.concentration)
        responses = maximise_segmented(own, optimum.logits, pseudocount)
        moved = SegmentOptimum(own, responses, own.priors(responses), np.nan)
        fits.append((moved.all_logits, moved.prior))
    return [fits[1][0], fits[0][0]], [fits[1][1], fits[0][1]]


def arrivals(likelihood: MixtureLikelihood, chunks: Iterable[Episodes], horizon: int | None = None) -> list[Half]:
    """Users of each half with a known step, by their arrival."""
    n_categories, with_segments = likelihood.n_categories, False
    # One more category has the segment and the step at the horizon, each plus 1.
    empty: tuple[Any, Integers] = np.zeros((0, n_categories + 1, 4), np.uint8), np.zeros((0, TIME_BINS), np.int64)
    parts = [[empty], [empty]]
    batch = max(BATCH_COUNTS // (4 * n_categories), 1)
    for chunk in chunks:
        if not len(chunk.user):
            continue
        evidence = step_evidence(chunk.user, chunk.pending, horizon)
        known = evidence != PENDING
        first = np.flatnonzero(np.append(True, np.diff(chunk.user) != 0))
        row = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(chunk.user))))[known]
        cell = chunk.category[known].astype(np.int64) * 4 + chunk.outcome[known]
        last_cell = np.zeros(len(first), np.int64)
        is_final = evidence[known] == CLICK_ONLY
        last_cell[row[is_final]] = cell[is_final] + 1
        half, arrival = half_of(chunk.user[first]), time_bins(chunk.time[first])
        for start in range(0, len(first), batch):
            size = min(batch, len(first) - start)
            within = slice(*np.searchsorted(row, (start, start + size)).tolist())
            place = (row[within] - start) * (4 * n_categories) + cell[within]
            flat = np.bincount(place, minlength=size * 4 * n_categories).reshape(size, n_categories, 4)
            counts = flat.astype(np.min_scalar_type(int(flat.max(initial=0))))
            known_steps = counts.any(axis=(1, 2))
            others = np.zeros((size, 1, 4), np.int64)
            others[:, 0, 1] = last_cell[start : start + size]
            if chunk.segment is not None:
                with_segments = True
                others[:, 0, 0] = chunk.segment[first[start : start + size]] + 1
            dtype = np.min_scalar_type(int(max(others.max(), counts.max(initial=0))))
            counts = np.concatenate([counts.astype(dtype), others.astype(dtype)], axis=1)
            users = (arrival[start : start + size, None] == np.arange(TIME_BINS)).astype(np.int64)
            for h in (0, 1):
                own = (half[start : start + size] == h) & known_steps
                parts[h].append(merge(counts[own], users[own]))
    free = likelihood.depart_categories, likelihood.depart_on_click_categories
    halves = []
    for part in parts:
        small, users = merge(*(np.concatenate(each) for each in zip(*part, strict=True)))
        counts = small.astype(np.int64)  # small integers would overflow in sums of outcomes
        segment, last = counts[:, -1, 0] - 1 if with_segments else None, counts[:, -1, 1] - 1
        counts = counts[:, :n_categories]
        final = np.zeros((len(counts), 4 * n_categories), np.int64)
        final[np.flatnonzero(last >= 0), last[last >= 0]] = 1
        final = final.reshape(counts.shape)[..., :DEPART]
        rows = MixtureLikelihood.from_counts(counts, users.sum(axis=1), likelihood.n_types, *free, final)
        halves.append(Half(rows, users, segment))
    return halves
