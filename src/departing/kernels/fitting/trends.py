"""Compiled scores of linear trends of the responses with time, summed over users.

Responses and parameters are numbered as in `forecasts.py`.
"""

import math

import numpy as np

from departing.kernels.compiling import kernel
from departing.kernels.fitting.forecasts import CLICK, CLICK_DEPART, DEPART, KNOWN, _beliefs, _observe


@kernel
def add_trends(
    first, end, category, outcome, known, time, prior, log_prior, log_outcomes, responses, impossible,
    times, totals, squares, products, slopes, scores,
):  # fmt: skip
    """Add the users with steps `first[n]:end[n]`.

    The score of a user for the level (0) or the slope with `time` (1) of the logits of a response is the posterior
    mean over types of observed minus expected successes, each times 1 or its time, over responses that are `known`.
    At the other steps, the last ones of a user, it is observed minus forecast clicks: departures there are unknown,
    and so is the posterior. Added to are `times[3, 4]` (sums of 1, time, its square and the variance given
    the type over the steps with each response), `totals[3, 2]` (of the scores), `squares[3, 2, 2]` (products of the
    two), `products[3, 2, P]` (with the scores of the parameters), `slopes[2, P]` (derivatives of the forecasts) and
    `scores[P]`.
    """
    n_categories, n_types = responses.shape[1:]
    belief, weight = np.empty(n_types), np.empty(n_types)
    residual = np.zeros((3 * n_categories, n_types))
    touched, is_touched = np.empty(3 * n_categories, np.int64), np.zeros(3 * n_categories, np.bool_)
    moments, score, excess = np.empty((3, 3, n_types)), np.empty((3, 2)), np.empty(2)
    later = np.zeros((3 * n_categories, n_types))
    late, is_late = np.empty(3 * n_categories, np.int64), np.zeros(3 * n_categories, np.bool_)
    for n in range(len(first)):
        weight[:] = log_prior
        moments[:] = 0.0
        excess[:] = 0.0
        n_touched, n_known = 0, 0
        for i in range(first[n], end[n]):
            if not known[i]:
                continue
            n_known += 1
            a, t = category[i], time[i]
            clicked = outcome[i] == CLICK or outcome[i] == CLICK_DEPART
            departed = outcome[i] >= DEPART
            for x in range(n_types):
                own = log_outcomes[4 * a + outcome[i], x]
                if known[i] != KNOWN:  # the click alone: log of the sum of the outcomes with and without departure
                    other = log_outcomes[4 * a + outcome[i] + (3 if clicked else 1), x]
                    own = max(own, other) + math.log1p(math.exp(-abs(own - other)))
                weight[x] += own
            for place in range(2 if known[i] == KNOWN else 1):
                response = 0 if place == 0 else 2 if clicked else 1
                success = clicked if place == 0 else departed
                prob = responses[response, a]
                n_touched = _observe(
                    response * n_categories + a, success, prob, residual, is_touched, touched, n_touched
                )
                times[response, 0] += 1.0
                times[response, 1] += t
                times[response, 2] += t * t
                for x in range(n_types):
                    moments[response, 0, x] += success - prob[x]
                    moments[response, 1, x] += t * (success - prob[x])
                    moments[response, 2, x] += prob[x] * (1 - prob[x])
        _beliefs(weight, prior, impossible, belief)
        if n_known < end[n] - first[n]:
            _add_pending(
                first[n], end[n], category, outcome, known, time, prior, weight, log_outcomes, responses, impossible,
                residual, touched[:n_touched], later, late, is_late, times, excess, slopes,
            )  # fmt: skip
        for response in range(3):
            for x in range(n_types):
                times[response, 3] += belief[x] * moments[response, 2, x]
            for k in range(2):
                score[response, k] = 0.0
                for x in range(n_types):
                    score[response, k] += belief[x] * moments[response, k, x]
                if response == 0:
                    score[response, k] += excess[k]
                totals[response, k] += score[response, k]
                for j in range(k + 1):
                    squares[response, j, k] += score[response, j] * score[response, k]
        for j in touched[:n_touched]:
            for x in range(n_types):
                _add_score(j * n_types + x, belief[x] * residual[j, x], score, products, scores)
            residual[j] = 0.0
            is_touched[j] = False
        for x in range(n_types - 1):
            _add_score(3 * n_categories * n_types + x, belief[x] - prior[x], score, products, scores)


@kernel
def _add_score(parameter, own, score, products, scores):
    scores[parameter] += own
    for response in range(3):
        for k in range(2):
            products[response, k, parameter] += score[response, k] * own


@kernel
def _add_pending(
    first, end, category, outcome, known, time, prior, weight, log_outcomes, responses, impossible,
    residual, touched, later, late, is_late, times, excess, slopes,
):  # fmt: skip
    """Add observed minus forecast clicks at the pending steps of a user to `excess[2]`, and their derivatives.

    `weight[M]` are the log weights of the types after the known steps, and `residual[j, M]` observed minus expected
    successes there, for j in `touched`. A pending step before another one is a step after which the user stayed.
    """
    n_categories, n_types = responses.shape[1:]
    weight, belief = weight.copy(), np.empty(n_types)
    n_late = 0
    for j in touched:
        later[j] = residual[j]
        is_late[j] = True
        late[n_late] = j
        n_late += 1
    for i in range(first, end):
        if known[i]:
            continue
        a, t = category[i], time[i]
        clicked = outcome[i] == CLICK or outcome[i] == CLICK_DEPART
        _beliefs(weight, prior, impossible, belief)
        prob, forecast = responses[0, a], 0.0
        for x in range(n_types):
            forecast += belief[x] * prob[x]
        excess[0] += clicked - forecast
        excess[1] += t * (clicked - forecast)
        times[0, 0] += 1.0
        times[0, 1] += t
        times[0, 2] += t * t
        for x in range(n_types):
            within = belief[x] * prob[x] * (1 - prob[x])
            times[0, 3] += within
            slopes[0, a * n_types + x] += within
            slopes[1, a * n_types + x] += t * within
            lever = belief[x] * (prob[x] - forecast)
            for j in late[:n_late]:
                slopes[0, j * n_types + x] += lever * later[j, x]
                slopes[1, j * n_types + x] += t * lever * later[j, x]
            if x < n_types - 1:
                slopes[0, 3 * n_categories * n_types + x] += lever
                slopes[1, 3 * n_categories * n_types + x] += t * lever
            weight[x] += log_outcomes[4 * a + outcome[i], x]
        response = 2 if clicked else 1
        n_late = _observe(a, clicked, prob, later, is_late, late, n_late)
        n_late = _observe(response * n_categories + a, False, responses[response, a], later, is_late, late, n_late)
    for j in late[:n_late]:
        later[j] = 0.0
        is_late[j] = False
