"""Fits to resampled users, starting at a fit."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from departing.fitting.concentration import SegmentOptimum, fit_segments, maximise_segmented, refit_segments
from departing.fitting.fit_rows import FitRows
from departing.fitting.likelihood import Parameters
from departing.fitting.optimisation import maximise
from departing.fitting.segments import SegmentedLikelihood
from departing.fitting.type_matching import match_types, type_assignment
from departing.model.histories import Histories
from departing.model.instance import Floats, Instance
from departing.model.segments import Segments

if TYPE_CHECKING:
    from departing.fitting.result import Fit


def refit(fit: "Fit", sample: Histories) -> Instance:
    """Fit a sample, starting at a fit; the concentration of segments is estimated again."""
    own = fit.likelihood
    rows = FitRows.of(sample, (own.depart_categories, own.depart_on_click_categories))
    several, within = fit.segments is not None and rows.several_segments, None
    if several and fit.segments is not None and fit.segments.optimum is not None:
        within = refit_segments(fit.segments.optimum, rows.segmented(own.n_types), fit.pseudocount)
    if within is None:
        likelihood = replace(rows.merged.likelihood, n_types=own.n_types)
        optimum = maximise(likelihood, fit.logits[None], fit.pseudocount)
        if not several:
            return with_parameters(fit.instance, match_types(optimum.parameters, fit.instance))
        within = fit_segments(optimum, rows.segmented(own.n_types), fit.pseudocount, None)
    within = within.with_types(type_assignment(own.from_logits(within.all_logits), fit.instance))
    return with_segments(fit.instance, own.from_logits(within.all_logits), within.prior, rows.share)


def refit_rows(fit: "Fit", users: Floats) -> Instance:
    """Instance fitted to other numbers of users of the rows of the likelihood of a fit."""
    rows = replace(fit.likelihood, users=users, squares=None)
    within = None if fit.segments is None else fit.segments.optimum
    if fit.segments is None or within is None:
        optimum = maximise(rows.reweighted(users), fit.logits[None], fit.pseudocount)
        return with_parameters(fit.instance, optimum.parameters)
    given = within.likelihood
    own = SegmentedLikelihood.of(rows, fit.segments.row_segment, given.n_segments, given.target)
    own = own.with_prior(given.target, given.concentration).reweighted(own.users)
    logits = maximise_segmented(own, within.logits, fit.pseudocount, nearly=True)
    moved = SegmentOptimum(own, logits, own.priors(logits), np.nan)
    return with_segments(fit.instance, rows.from_logits(moved.all_logits), moved.prior, own.share)


def with_segments(instance: Instance, parameters: Parameters, prior: Floats, share: Floats) -> Instance:
    """The instance with other parameters, and the priors `[S, M]` and shares of its segments."""
    assert instance.segments is not None
    names, columns = instance.segments.names, instance.segments.columns
    segments = Segments(names, share, prior / prior.sum(axis=1, keepdims=True), columns)
    return instance.replace(prior=None, segments=segments, **_tables(parameters))


def with_parameters(instance: Instance, parameters: Parameters) -> Instance:
    """The instance with other parameters, and the same prior in all segments."""
    if instance.segments is None:
        return instance.replace(prior=parameters.prior, **_tables(parameters))
    prior = np.tile(parameters.prior, (len(instance.segments.names), 1))
    return with_segments(instance, parameters, prior, instance.segments.share)


def _tables(parameters: Parameters) -> dict[str, Any]:
    return {name: getattr(parameters, name) for name in ("click", "depart", "depart_on_click")}
