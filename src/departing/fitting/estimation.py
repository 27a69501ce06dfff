"""Parts of `fit`: candidate numbers of types, free parameters, initial points and selection criteria."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from departing.fitting.concentration import SegmentOptimum, maximise_segmented
from departing.fitting.fit_rows import FitRows
from departing.fitting.likelihood import MixtureLikelihood, Parameters
from departing.fitting.optimisation import MAX_NEWTON_PARAMETERS, Optimum, maximise
from departing.fitting.quasi_newton import LARGE_ROWS
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.instance import CLICK_DEPART, DEPART, STAY, Floats
from departing.model.validation import MAX_TYPES, check_int

LOGIT_INTERVAL = (1e-12, 1 - 1e-12)  # probabilities outside have no usable logit
# Random initial points are divided by this number for a model with many parameters if there is a solution with one
# type fewer: its types split in two lead to the same or a higher maximum as a rule.
FEWER_INITIAL = 6
MIN_PENALTY = 2.0  # per parameter, that of AIC; the formula of the adjusted BIC gives less below 176 users


@dataclass(frozen=True)
class SelectionCriteria:
    """Criteria for one number of types.

    Attributes
    ----------
    types : int
        Number of types.
    parameters : int
        Number of free parameters.
    log_likelihood : float
        Of all users, in nats.
    bic : float
        Bayesian information criterion, `parameters * log(users) - 2 * log_likelihood`; smaller is better.
    sabic : float
        Sample-size adjusted BIC, with `(users + 2) / 24` in the place of `users`; smaller is better.
    held_out : float
        Mean log-likelihood of a held-out user under a fit to the other users, in nats; larger is better.
    """

    types: int
    parameters: int
    log_likelihood: float
    bic: float
    sabic: float
    held_out: float


def candidate_types(types: int | Iterable[int], histories: Histories, distinct: int) -> list[int]:
    """Numbers of types to try, in increasing order, at most the number of `distinct` confirmed histories."""
    if not distinct:
        if histories.pending.any():
            raise InputError(
                "No step has a known outcome, so nothing can be fitted; the log must be longer than `inactive_after`."
            )
        raise InputError("histories contain no user with a step; there is nothing to fit.")
    given = list(types) if isinstance(types, Iterable) else [types]
    candidates = sorted({check_int("types", m, 1, MAX_TYPES) for m in given})
    if not candidates:
        raise InputError("types is empty; expected a number of types, or several to choose from.", "types")
    if histories.horizon == 1:  # few histories, which do not determine types
        candidates = [m for m in candidates if m <= distinct] or candidates
    if candidates[-1] > distinct:
        message = f"types is {candidates[-1]}; expected at most {distinct}, the number of distinct histories."
        raise InputError(message, "types")
    return candidates


def free_departures(
    totals: Integers, depart: float | None, depart_on_click: float | None, horizon: int | None = None
) -> tuple[tuple[Integers, Integers], list[str]]:
    """Categories whose departures after a no-click and after a click are estimated, and notes for the user.

    `totals[K, 4]` are the counts of all users, without pending steps.
    """
    every, none = np.arange(len(totals)), np.zeros(0, np.int64)
    stays, click_departs = int(totals[:, STAY].sum()), int(totals[:, CLICK_DEPART].sum())
    departures = int(totals[:, DEPART:].sum())  # a user departs at most once
    if depart is not None and depart != 1:
        raise InputError(f"depart is {depart!r}; expected 1 (sure departure) or None (estimated).")
    if depart_on_click is not None and depart_on_click != 0:
        raise InputError(f"depart_on_click is {depart_on_click!r}; expected 0 (never) or None (estimated).")
    if depart == 1 and stays:
        raise InputError(
            f"depart is 1, but users stayed after {stays:,} no-clicks; omit it for an estimate.", "depart"
        )
    if depart_on_click == 0 and click_departs:
        raise InputError(
            f"depart_on_click is 0, but {click_departs} users departed after a click; use None to estimate it."
        )
    notes = []
    if horizon == 1 and not totals.any():
        note = "Every visit ends after one recommendation, so departures are unknown; no value depends on them."
        return (none, none), [note]
    if click_departs:
        notes.append(
            f"{click_departs} of {departures} departures follow a click, so departure after a click is estimated."
        )
    if not stays and depart is None:
        notes.append("No user is known to have stayed after a no-click, so departure is assumed to be sure.")
    if not departures:
        notes.append("No user departed in these histories; departure probabilities rest on the pseudocount.")
    return (every if stays else none, every if click_departs else none), notes


def initial_points(
    likelihood: MixtureLikelihood, fewer: Optimum | None, n_init: int, rng: np.random.Generator
) -> Floats:
    """Random logits, and the optimum with one type fewer with each of its types split, `[n, d]`."""
    k, m = likelihood.n_categories, likelihood.n_types
    points = []
    few = fewer is not None and likelihood.n_parameters > MAX_NEWTON_PARAMETERS
    for _ in range(1 if m == 1 else -(-n_init // FEWER_INITIAL) if few else n_init):
        # Spread over (0, 1) but rarely at its ends, where EM is slow; departures after a click are rarer than others.
        click, depart, depart_on_click = rng.beta(2, 2, (3, k, m))
        points.append(Parameters(rng.dirichlet(np.full(m, 4.0)), click, depart, 0.2 * depart_on_click))
    if fewer is not None:
        points += [_split_type(fewer.parameters, x, rng) for x in range(m - 1)]
    return np.array([likelihood.to_logits(point) for point in points])


def _split_type(parameters: Parameters, x: int, rng: np.random.Generator) -> Parameters:
    """Parameters with type x replaced by two of half its share, their logits shifted in opposite directions."""
    prior = np.append(parameters.prior, parameters.prior[x] / 2)
    prior[x] /= 2
    parts = []
    for part in (parameters.click, parameters.depart, parameters.depart_on_click):
        shift = rng.normal(0.0, 0.5, len(part))  # large enough to leave the saddle point of two equal types
        wider = np.concatenate([part, shift_logit(part[:, [x]], shift[:, None])], axis=1)
        wider[:, x] = shift_logit(part[:, x], -shift)
        parts.append(wider)
    return Parameters(prior, *parts)


def shift_logit(prob: Floats, shift: Floats) -> Floats:
    """Probabilities with their logits shifted."""
    prob = np.clip(prob, *LOGIT_INTERVAL)
    return np.asarray(1 / (1 + (1 - prob) / prob * np.exp(-shift)))


def sabic_penalty(users: float) -> float:
    """Penalty per parameter of the sample-size adjusted BIC (Sclove 1987).

    BIC itself selects too few types in logs of a few thousand users.
    """
    return max(float(np.log((users + 2) / 24)), MIN_PENALTY)


def selection_criteria(optimum: Optimum, held_out: Floats | Integers, pseudocount: float) -> SelectionCriteria:
    """Criteria at an optimum; `held_out[n]` users of each row are predicted from the others."""
    likelihood, logits = optimum.likelihood, optimum.logits
    training, test = likelihood.users - held_out, held_out.astype(np.float64)
    held_out_mean = np.nan
    if training.any() and test.any():
        # Rows without users take time, and copies of the others memory.
        parts = [
            replace(likelihood, users=users) if len(users) > LARGE_ROWS else likelihood.reweighted(users)
            for users in (training, test)
        ]
        trained = maximise(parts[0], logits[None], pseudocount, nearly=True).logits
        held_out_mean = parts[1].log_likelihood(trained) / float(test.sum())
    value, users = likelihood.log_likelihood(logits), float(likelihood.users.sum())
    return _criteria(likelihood.n_types, likelihood.n_parameters, users, value, held_out_mean)


def segment_criteria(
    optimum: SegmentOptimum, rows: FitRows, held_out: Floats | Integers, pseudocount: float
) -> SelectionCriteria:
    """Criteria of a model with segments; the log-likelihood is integrated over their priors.

    Its parameters are those of a model without segments and the concentration.
    """
    likelihood = optimum.likelihood
    m, total = likelihood.n_types, float(rows.likelihood.users.sum())
    training, test = rows.likelihood.users - held_out, held_out.astype(np.float64)
    held_out_mean = np.nan
    if training.any() and test.any():
        parts = []
        for users in (training, test):
            part = replace(rows, likelihood=replace(rows.likelihood, users=users, squares=None)).segmented(m)
            parts.append(part.reweighted(part.users).with_prior(likelihood.target, likelihood.concentration))
        trained = maximise_segmented(parts[0], optimum.logits, pseudocount, nearly=True)
        held_out_mean = parts[1].log_likelihood(trained, parts[0].priors(trained)) / float(test.sum())
    d = rows.likelihood.n_responses * m + m - 1 + (m > 1)
    return _criteria(m, d, total, optimum.evidence, held_out_mean)


def _criteria(types: int, d: int, users: float, value: float, held_out: float) -> SelectionCriteria:
    bic, sabic = (float(d * penalty - 2 * value) for penalty in (np.log(users), sabic_penalty(users)))
    return SelectionCriteria(types, d, value, bic, sabic, held_out)
