"""Compiled scores of linear trends of the responses with time, summed over users.

Responses and parameters are numbered as in `forecasts.py`.
"""

import numpy as np

from departing.kernels.compiling import kernel
from departing.kernels.fitting.forecasts import CLICK, CLICK_DEPART, DEPART, _beliefs, _observe


@kernel
def add_trends(
    first, end, category, outcome, known, time, prior, log_prior, log_outcomes, responses, impossible,
    times, totals, squares, products, scores,
):  # fmt: skip
    """Add the users with steps `first[n]:end[n]` whose departure is known.

    The score of a user for the level (0) or the slope with `time` (1) of the logits of a response is the posterior
    mean over types of observed minus expected successes, each times 1 or its time. Added to are `times[3, 4]` (sums
    of 1, time, its square and the variance given the type over the steps with each response), `totals[3, 2]` (of the scores), `squares[3, 2, 2]`
    (products of the two), `products[3, 2, P]` (with the scores of the parameters) and `scores[P]`.
    """
    n_categories, n_types = responses.shape[1:]
    belief, weight = np.empty(n_types), np.empty(n_types)
    residual = np.zeros((3 * n_categories, n_types))
    touched, is_touched = np.empty(3 * n_categories, np.int64), np.zeros(3 * n_categories, np.bool_)
    moments, score = np.empty((3, 3, n_types)), np.empty((3, 2))
    for n in range(len(first)):
        weight[:] = log_prior
        moments[:] = 0.0
        n_touched = 0
        for i in range(first[n], end[n]):
            if not known[i]:
                continue
            a, t = category[i], time[i]
            clicked = outcome[i] == CLICK or outcome[i] == CLICK_DEPART
            departed = outcome[i] >= DEPART
            for x in range(n_types):
                weight[x] += log_outcomes[4 * a + outcome[i], x]
            for place in range(2):
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
        if n_touched == 0:
            continue
        _beliefs(weight, prior, impossible, belief)
        for response in range(3):
            for x in range(n_types):
                times[response, 3] += belief[x] * moments[response, 2, x]
            for k in range(2):
                score[response, k] = 0.0
                for x in range(n_types):
                    score[response, k] += belief[x] * moments[response, k, x]
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
