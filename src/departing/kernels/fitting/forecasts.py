"""Compiled forecasts of every step of a log, summed in cells, with their derivatives by the parameters.

Responses are numbered 0 click, 1 departure after a no-click, 2 departure after a click. The parameters are logits of
the responses by category and type, `(response * K + category) * M + type`, then the M - 1 log-ratios of the prior to
its last entry.
"""

import math

import numpy as np

from departing.kernels.compiling import kernel

CLICK, DEPART, CLICK_DEPART = 0, 2, 3  # outcomes, as in departing.model.instance
KNOWN = 1  # evidence of a step with a known departure, as in departing.data.sample; 0 is none, 2 the click alone


@kernel
def _beliefs(log_weight, prior, impossible, belief):
    """Fill `belief[M]` with the normalised weights, or the prior where no type is possible."""
    n_types = len(prior)
    largest = log_weight[0]
    for x in range(1, n_types):
        largest = max(largest, log_weight[x])
    total = 0.0
    for x in range(n_types):
        belief[x] = math.exp(log_weight[x] - largest)
        total += belief[x]
    for x in range(n_types):
        belief[x] = belief[x] / total if largest > impossible else prior[x]


@kernel
def _add_response(response, category, success, belief, prob, cells, residual, touched, gradient, sums, slopes):
    """Add one response to its cell of every family, and return its forecast.

    `belief[M]` are the probabilities of the types before the response, `prob[M]` those of a success by type, and
    `residual[j, M]` observed minus expected successes so far of response j, for j in `touched`.
    """
    n_types, n_categories = len(belief), residual.shape[0] // 3
    forecast = 0.0
    for x in range(n_types):
        forecast += belief[x] * prob[x]
    own = response * n_categories + category
    for cell in cells:
        row = sums[response, cell]
        row[0] += 1
        row[1] += success
        row[2] += forecast
        row[3] += forecast * (1 - forecast)
        if gradient:
            row[4] += 1
            slope = slopes[response, cell]
            for x in range(n_types):
                lever = belief[x] * (prob[x] - forecast)
                for j in touched:
                    slope[j * n_types + x] += lever * residual[j, x]
                slope[own * n_types + x] += belief[x] * prob[x] * (1 - prob[x])
                if x < n_types - 1:
                    slope[3 * n_categories * n_types + x] += lever
    return forecast


@kernel
def add_forecasts(
    first, end, category, outcome, known, time, prior, log_prior, log_outcomes, responses, impossible,
    step_group, max_count, category_group, offsets, n_groups, with_gradient, n_bins, sums, slopes, bins, totals,
):  # fmt: skip
    """Add the steps `first[n]:end[n]` of users to the cells of all families, as far as they are `known`.

    `responses[3, K, M]` are the probabilities of the responses, `log_outcomes[4 * K, M]` those of the outcomes.
    A cell is `(offset of the family + group) * n_groups + category group`, and the families are: step, previous
    clicks and no-clicks, the same of the category shown, previous response, and the bins `time[i]` of the user's
    first step and of the step. Added to are `sums[3, cells, 5]` (steps, successes, expected successes, their
    variance, steps with derivatives), `slopes[3, cells, parameters]`, `bins[3, n_bins, 4]` by the forecast, and
    `totals[steps, 5]`: steps, clicks, steps whose departure is known, departures, and expected departures.
    """
    n_categories, n_types = responses.shape[1:]
    belief, weight = np.empty(n_types), np.empty(n_types)
    residual = np.zeros((3 * n_categories, n_types))
    seen = np.zeros((n_categories, 2), np.int64)
    touched = np.empty(3 * n_categories, np.int64)
    is_touched = np.zeros(3 * n_categories, np.bool_)
    cells = np.empty(6, np.int64)
    for n in range(len(first)):
        weight[:] = log_prior
        n_touched, clicks, no_clicks, previous = 0, 0, 0, 0
        for i in range(first[n], end[n]):
            a, step = category[i], i - first[n]
            clicked = outcome[i] == CLICK or outcome[i] == CLICK_DEPART
            departed = outcome[i] >= DEPART
            groups = (
                step_group[min(step, len(step_group) - 1)],
                min(clicks, max_count) * (max_count + 1) + min(no_clicks, max_count),
                min(seen[a, 0], max_count) * (max_count + 1) + min(seen[a, 1], max_count),
                previous,
                time[first[n]],
                time[i],
            )
            for family in range(6):
                cells[family] = (offsets[family] + groups[family]) * n_groups + category_group[a]
            totals[step, 0] += 1
            totals[step, 1] += clicked
            gradient, response = with_gradient[n], 2 if clicked else 1
            if known[i]:
                _beliefs(weight, prior, impossible, belief)
                forecast = _add_response(
                    0,
                    a,
                    clicked,
                    belief,
                    responses[0, a],
                    cells,
                    residual,
                    touched[:n_touched],
                    gradient,
                    sums,
                    slopes,
                )
                _add_to_bin(bins[0], forecast, clicked, n_bins)
                if gradient:
                    n_touched = _observe(a, clicked, responses[0, a], residual, is_touched, touched, n_touched)
            if known[i] == KNOWN:
                total = 0.0
                for x in range(n_types):
                    belief[x] *= responses[0, a, x] if clicked else 1 - responses[0, a, x]
                    total += belief[x]
                for x in range(n_types):
                    belief[x] = belief[x] / total if total > 0 else prior[x]
                prob = responses[response, a]
                forecast = _add_response(
                    response, a, departed, belief, prob, cells, residual, touched[:n_touched], gradient, sums, slopes
                )
                _add_to_bin(bins[response], forecast, departed, n_bins)
                if gradient:
                    own = response * n_categories + a
                    n_touched = _observe(own, departed, prob, residual, is_touched, touched, n_touched)
                totals[step, 2] += 1
                totals[step, 3] += departed
                totals[step, 4] += forecast
            for x in range(n_types):
                weight[x] += log_outcomes[4 * a + outcome[i], x]
            clicks += clicked
            no_clicks += not clicked
            seen[a, 0 if clicked else 1] += 1
            previous = 1 if clicked else 2
        for i in range(first[n], end[n]):
            seen[category[i]] = 0
        for j in touched[:n_touched]:
            residual[j] = 0.0
            is_touched[j] = False


@kernel
def _observe(j, success, prob, residual, is_touched, touched, n_touched):
    """Add an observed response to the residuals; returns the number of responses touched so far."""
    if not is_touched[j]:
        is_touched[j] = True
        touched[n_touched] = j
        n_touched += 1
    for x in range(len(prob)):
        residual[j, x] += success - prob[x]
    return n_touched


@kernel
def _add_to_bin(bins, forecast, success, n_bins):
    row = bins[min(int(forecast * n_bins), n_bins - 1)]
    row[0] += 1
    row[1] += success
    row[2] += forecast
    row[3] += forecast * (1 - forecast)
