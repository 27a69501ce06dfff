"""`fit`: maximum-likelihood estimation of an instance from histories."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np

from departing.data.log import Log
from departing.data.read_source import read_source
from departing.fitting.concentration import SegmentOptimum, fit_segments
from departing.fitting.estimation import (
    SelectionCriteria,
    candidate_types,
    free_departures,
    initial_points,
    segment_criteria,
    selection_criteria,
)
from departing.fitting.fit_rows import FitRows, has_weights
from departing.fitting.identifiability import assess_identifiability
from departing.fitting.optimisation import LARGER_SAMPLE_USERS, SAMPLE_USERS, Optimum, maximise
from departing.fitting.quasi_newton import LARGE_ROWS
from departing.fitting.result import Fit as Fit
from departing.fitting.segment_errors import MIN_CURVATURE, segment_errors
from departing.fitting.segment_estimates import SegmentEstimates
from departing.fitting.standard_errors import prior_logit_stderr, robust_covariance
from departing.fitting.type_matching import permute_types, type_order
from departing.formatting import format_count
from departing.model import random_streams
from departing.model.blas import one_blas_thread
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.instance import Instance
from departing.model.progress import Progress
from departing.model.segments import Segments
from departing.model.validation import check_choice, check_float, check_int, check_seed

CRITERIA = ("sabic", "bic", "held-out")
SEGMENT_STREAM = 1  # of random numbers, beside those of a fit without segments
SMALLEST_CONCENTRATION = 1e-3  # in the place of 0: far below a user, but priors stay off 0
# Effective users below which a half-life leaves too little: those of one type and two categories with 100 responses.
FEW_EFFECTIVE_USERS = 200


@one_blas_thread
def fit(
    source: Any,
    types: int | Iterable[int] = range(1, 6),
    *,
    criterion: str = CRITERIA[0],
    depart: float | None = None,
    depart_on_click: float | None = None,
    pseudocount: float = 1.0,
    n_init: int = 12,
    seed: int = 0,
    half_life: str | float | timedelta | None = None,
    concentration: float | None = None,
    progress: Progress | None = None,
    **read_options: Any,
) -> Fit:
    """Estimate an instance from an event log by maximum likelihood.

    Histories with segments give each segment a prior over types of its own, shrunk towards the common prior. Rewards,
    unit and horizon of the source become those of the instance; those of plain histories are their fields `reward`,
    `unit` and `horizon`.

    Parameters
    ----------
    source : Histories, data frame or path
        A `Log` from `read_log` or other histories; or a source that `read_log` reads, such as a frame or a file.
    types : int or iterable of int
        Number of types, or candidates from which `criterion` chooses.
    criterion : {"sabic", "bic", "held-out"}
        Choose the smallest sample-size adjusted BIC, the smallest BIC, or the largest log-likelihood of held-out
        users.
    depart : 1, optional
        Assume that every no-click ends the visit. By default departures are estimated if some user stayed after a
        no-click.
    depart_on_click : 0, optional
        Assume that nobody departs after a click. By default such departures are estimated if any was observed.
    pseudocount : float
        Successes and failures added to every response of every type (a Beta prior); keeps estimates off 0 and 1.
    n_init : int
        Number of random initial points. Each type of the solution with one type fewer, split in two, adds another.
    seed : int
        Seed of the random numbers.
    half_life : str, float or timedelta, optional
        Age at which a user counts half, such as "30 days" [default: all users count alike]. Needs a log with times.
    concentration : float, optional
        Users of the common prior that are added to every segment. 0 estimates each segment by itself, and infinity
        gives all the common prior [default: estimated from the data].
    progress : callable, optional
        Called with the number of finished candidates and their total.
    **read_options
        Arguments of `read_log` for a source that is not read yet, such as `user`, `time` and `inactive_after`.

    Returns
    -------
    Fit
        Estimate, with types in order of decreasing share.

    Raises
    ------
    InputError
        If the source cannot be read, the histories are empty or contradict `depart` or `depart_on_click`, or an
        argument is invalid.

    Examples
    --------
    >>> from departing.simulation.sample_log import sample_log
    >>> site = Instance([0.7, 0.3], [[0.9, 0.2], [0.3, 0.8]], depart=1.0)
    >>> result = fit(sample_log(site, users=20000, seed=1).histories, types=[1, 2, 3])
    >>> result
    <Fit of 20000 users: 2 types (70%, 30%), 2 categories>
    >>> result.instance.click.round(1)
    array([[0.9, 0.2],
           [0.3, 0.8]])
    """
    check_choice("criterion", criterion, CRITERIA)
    pseudocount = check_float("pseudocount", pseudocount, 1e-6, 1e6)
    n_init, rng = check_int("n_init", n_init), np.random.default_rng([check_seed(seed), random_streams.FIT])
    log = read_source(source, read_options, fit)
    histories = _weighted(log, half_life)
    free, notes = free_departures(histories.confirmed_totals, depart, depart_on_click, histories.horizon)
    rows = FitRows.of(histories, free)
    pooled, estimate = rows.merged, rows.several_segments
    candidates = candidate_types(types, histories, len(pooled.likelihood.users))
    notes += _notes(histories, pooled)
    given = _check_concentration(concentration, rows)
    held_out = pooled.held_out(rng)
    if estimate:  # other random numbers, so that the model without segments is fitted as it is without them
        held_out = rows.held_out(np.random.default_rng([seed, random_streams.FIT, SEGMENT_STREAM]))
    optima: dict[int, Optimum] = {}
    in_segments: dict[int, SegmentOptimum] = {}
    criteria: list[SelectionCriteria] = []
    for done, m in enumerate(candidates):
        likelihood = replace(pooled.likelihood, n_types=m)
        initial = initial_points(likelihood, optima.get(m - 1), n_init, rng)
        optima[m] = maximise(likelihood, initial, pseudocount, rng, nearly=True)
        if estimate:
            in_segments[m] = fit_segments(optima[m], rows.segmented(m), pseudocount, given)
            criteria.append(segment_criteria(in_segments[m], rows, held_out, pseudocount))
        else:
            criteria.append(selection_criteria(optima[m], held_out, pseudocount))
        if progress is not None:
            progress(done + 1, len(candidates))
    scores = {row.types: -row.held_out if criterion == "held-out" else getattr(row, criterion) for row in criteria}
    chosen = min(scores, key=scores.__getitem__)
    result = _result(rows, optima[chosen], in_segments.get(chosen), pseudocount)
    if log.reward is not None or log.horizon is not None:
        rewards, reward = log.rewards if isinstance(log, Log) else None, log.reward
        if isinstance(log, Log) and half_life is not None and histories is not log:
            rewards = log.weighted_rewards(half_life)
        if rewards is not None:
            reward = rewards.mean
        instance = result.instance.replace(reward=reward, unit=log.unit, horizon=log.horizon)
        result = replace(result, instance=instance, rewards=rewards)
    identified, warnings = assess_identifiability(result.instance, optima[chosen], result.logits, result.covariance)
    result = replace(result, log=log, half_life=None if histories is log else half_life)
    return replace(result, criteria=tuple(criteria), identified=identified, warnings=(*notes, *warnings))


def _weighted(histories: Histories, half_life: str | float | timedelta | None) -> Histories:
    """The histories with weights of a half-life."""
    if half_life is None:
        return histories
    if not isinstance(histories, Log):
        raise InputError(
            "half_life needs the times of a log; pass a log from read_log, or histories with `weight`.", "half_life"
        )
    weighted = histories.weighted(half_life)
    if not weighted.confirmed.effective_users:
        sentence = f"half_life is {half_life!r:.40}; no user has any weight left; use a longer one."
        raise InputError(sentence, "half_life")
    return weighted if has_weights(weighted) else histories  # an infinite half-life weights all users alike


def _check_concentration(concentration: float | None, rows: FitRows) -> float | None:
    """`concentration` if it is valid, at least the smallest one."""
    if concentration is None:
        return None
    if rows.segment is None:
        raise InputError(f"concentration is {concentration!r}; omit it, because there are no segments.")
    if concentration == np.inf:
        return np.inf
    return max(check_float("concentration", concentration, 0.0, 1e12), SMALLEST_CONCENTRATION)


def _notes(histories: Histories, rows: FitRows) -> list[str]:
    """Sentences about weights and about fits in stages."""
    notes = []
    if has_weights(histories):
        effective = format_count(round(histories.effective_users), "user")
        note = (
            f"Older users count less: {format_count(histories.users, 'user')} are worth {effective} of equal weight"
        )
        few = histories.effective_users < FEW_EFFECTIVE_USERS
        notes.append(note + ("; use a longer half-life." if few else "."))
    if len(rows.likelihood.users) > LARGE_ROWS:
        notes.append(
            f"{histories.users:,} users have up to {len(rows.likelihood.users):,} distinct histories: maxima are "
            f"chosen on samples of {SAMPLE_USERS:,} and {LARGER_SAMPLE_USERS:,} users, and refined with all users."
        )
    return notes


def _result(rows: FitRows, optimum: Optimum, in_segments: SegmentOptimum | None, pseudocount: float) -> Fit:
    """The fit at an optimum, with types in order; criteria and warnings are to be added."""
    if in_segments is not None and np.isfinite(in_segments.likelihood.concentration):
        return _segmented_result(rows, in_segments, pseudocount)
    refined = maximise(optimum.likelihood, optimum.logits[None], pseudocount)
    parameters = permute_types(refined.parameters, type_order(refined.parameters))
    logits = optimum.likelihood.to_logits(parameters)
    curvature, directions = np.linalg.eigh(optimum.likelihood.derivatives(logits[None], pseudocount)[2][0])
    covariance = (directions / np.maximum(curvature, MIN_CURVATURE)) @ directions.T
    likelihood = replace(rows.likelihood, n_types=optimum.likelihood.n_types)
    estimates, segments = None, None
    if rows.segment is not None:
        robust = robust_covariance(likelihood, logits, covariance, pseudocount)
        segments = _segments(rows, np.tile(parameters.prior, (rows.n_segments, 1)))
        stderr = np.tile(prior_logit_stderr(parameters.prior, robust), (rows.n_segments, 1))
        estimates = SegmentEstimates(segments, rows.histories.segment_users, np.inf, stderr, rows.segment)
    fields = vars(parameters) | ({} if segments is None else {"prior": None, "segments": segments})
    instance = Instance(**fields, categories=rows.histories.categories)
    return Fit(instance, (), (), parameters, rows.histories, likelihood, logits, covariance, pseudocount, estimates)


def _segmented_result(rows: FitRows, optimum: SegmentOptimum, pseudocount: float) -> Fit:
    """The fit with a prior for each segment."""
    likelihood = replace(rows.likelihood, n_types=optimum.likelihood.n_types)
    optimum = optimum.with_types(type_order(likelihood.from_logits(optimum.all_logits)))
    errors = segment_errors(optimum, pseudocount)
    segments = _segments(rows, optimum.prior)
    users, concentration = rows.histories.segment_users, optimum.likelihood.concentration
    row = rows.segment
    assert row is not None
    estimates = SegmentEstimates(segments, users, concentration, errors.stderr, row, optimum, errors.robust)
    logits = optimum.all_logits
    parameters = likelihood.from_logits(logits)
    names = rows.histories.categories
    tables = {name: getattr(parameters, name) for name in ("click", "depart", "depart_on_click")}
    instance = Instance(None, **tables, categories=names, segments=segments)
    return Fit(
        instance, (), (), parameters, rows.histories, likelihood, logits, errors.covariance, pseudocount, estimates
    )


def _segments(rows: FitRows, prior: np.ndarray[Any, Any]) -> Segments:
    """Segments of the histories with these priors `[S, M]`."""
    histories = rows.histories
    prior = prior / prior.sum(axis=1, keepdims=True)
    return Segments(histories.segments or (), rows.share, prior, histories.segment_columns)
