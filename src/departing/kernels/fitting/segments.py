"""Compiled likelihood of a latent class model whose prior over types depends on a known segment of the user.

Rows and responses are those of `mixture.py`, sorted by segment: segment s has the rows `bounds[s]:bounds[s + 1]`, and
the last one holds users of unknown segment, whose prior is the `target`. The priors of the other segments have a
Dirichlet distribution with the parameters `concentration * target`: the density of their log-ratios is largest where
the users' types and `concentration` users of the target would put them.
"""

import math

import numpy as np

from departing.kernels.compiling import kernel
from departing.kernels.fitting.mixture import _log_sigmoid
from departing.kernels.fitting.segment_prior import add_row, finish_information, solve_positive

MIN_SHARE = 1e-12  # of a type in a segment; keeps logarithms finite
MAX_STEP = 2.0  # of log-ratios; longer steps leave the quadratic model
MAX_ITERATIONS = 200  # of one segment; reached only at the boundary
# A step stops the iterations if it promises less than this many nats for each user of the segment: the sum over all
# segments then stays far below the limits of the outer iterations.
CONVERGED = 1e-12


@kernel
def row_likelihoods(logits, start, response, successes, trials, n_responses, n_types, weight, top):
    """Fill `weight[N, M]` with the likelihood of a user of each row by type over its largest, `exp(top[N])`."""
    log_success, log_failure = np.empty((n_responses, n_types)), np.empty((n_responses, n_types))
    for f in range(n_responses):
        for x in range(n_types):
            log_success[f, x] = _log_sigmoid(logits[f * n_types + x])
            log_failure[f, x] = _log_sigmoid(-logits[f * n_types + x])
    for n in range(len(top)):
        row = weight[n]
        row[:] = 0.0
        for i in range(start[n], start[n + 1]):
            f, failures = response[i], trials[i] - successes[i]
            for x in range(n_types):
                row[x] += successes[i] * log_success[f, x] + failures * log_failure[f, x]
        top[n] = row.max()
        for x in range(n_types):
            row[x] = math.exp(row[x] - top[n])


@kernel
def _moments(first, end, weight, users, concentration, target, prior, counts, information):
    """Return the log-posterior of a segment; fill the expected users by type `[M]` and the information `[M, M]`."""
    value, total = 0.0, concentration
    for x in range(len(prior)):
        counts[x] = concentration * target[x]
        value += concentration * target[x] * math.log(prior[x])
    information[:] = 0.0
    for n in range(first, end):
        value += add_row(users[n], prior, weight[n], counts, information)
        total += users[n]
    finish_information(total, prior, information)
    return value


@kernel
def _newton(counts, information, prior, step):
    """Fill `step[M]` with the next prior; return the nats that it promises, negative if it is an EM step."""
    n_types, total = len(prior), counts.sum()
    matrix = information[: n_types - 1, : n_types - 1].copy()
    gradient = counts[:-1] - total * prior[:-1]
    ratio = gradient.copy()
    if math.isnan(solve_positive(matrix, ratio)):
        step[:] = counts / total
        return -1.0
    longest, promised = 0.0, 0.0
    for x in range(n_types - 1):
        longest = max(longest, abs(ratio[x]))
        promised += ratio[x] * gradient[x]
    largest, scale = 0.0, min(1.0, MAX_STEP / max(longest, MAX_STEP))
    for x in range(n_types):
        step[x] = math.log(prior[x]) + (scale * ratio[x] if x < n_types - 1 else 0.0)
        largest = step[x] if x == 0 else max(largest, step[x])
    for x in range(n_types):
        step[x] = math.exp(step[x] - largest)
    step /= step.sum()
    return promised


@kernel
def segment_modes(bounds, weight, users, concentration, target, prior, values, determinants):
    """Maximise the log-posterior of every segment over its `prior[S + 1, M]`, which holds the initial points.

    Fill `values[S + 1]` with the maxima and `determinants[S]` with the log-determinants of the information about the
    log-ratios. The log-likelihood is concave in the prior, so the maximum is unique. Steps are Newton's in the
    log-ratios, and EM where these do not increase the value.
    """
    n_types = len(target)
    counts, information = np.empty(n_types), np.empty((n_types, n_types))
    safe, step, last = np.empty(n_types), np.empty(n_types), np.empty(n_types)
    n_segments = len(bounds) - 2
    for s in range(n_segments + 1):
        own, first, end = prior[s], bounds[s], bounds[s + 1]
        if s == n_segments:
            own[:] = target
            values[s] = _moments(first, end, weight, users, 0.0, target, own, counts, information)
            continue
        limit = CONVERGED * (1.0 + users[first:end].sum() + concentration)
        value = -math.inf
        for _ in range(MAX_ITERATIONS):
            for x in range(n_types):
                own[x] = max(own[x], MIN_SHARE)
            current = _moments(first, end, weight, users, concentration, target, own, counts, information)
            if current < value:  # return, and take the EM step from there
                if np.abs(safe - last).max() == 0.0:
                    own[:] = last
                    value = _moments(first, end, weight, users, concentration, target, own, counts, information)
                    break
                own[:] = safe
                value = -math.inf
                continue
            value = current
            if n_types == 1:
                break
            last[:] = own
            safe[:] = counts / counts.sum()
            promised = _newton(counts, information, own, step)
            if 0.0 <= promised < limit:
                break
            own[:] = step
        values[s] = value
        matrix, ratio = information[:-1, :-1].copy(), np.zeros(n_types - 1)
        determinants[s] = solve_positive(matrix, ratio)


@kernel
def add_derivatives(
    logits, users, bounds, start, response, successes, trials, n_responses, n_types, prior, weight,
    gradient, information, cross,
):  # fmt: skip
    """Add the derivatives of the log-likelihood by the logits of the responses.

    `prior[S + 1, M]` are the priors of the segments and `weight[N, M]` the likelihoods by type. Added to are
    `gradient[d]` and, unless empty, the observed `information[d, d]` and its part with the log-ratios of each
    segment's prior, `cross[S, M - 1, d]`.
    """
    d = n_responses * n_types
    prob, resp = np.empty((n_responses, n_types)), np.empty(n_types)
    for f in range(n_responses):
        for x in range(n_types):
            prob[f, x] = math.exp(_log_sigmoid(logits[f * n_types + x]))
    score, active = np.empty((n_responses, n_types)), np.empty(n_responses, np.int64)
    want_information, n_segments = information.shape[0] > 0, len(bounds) - 2
    for s in range(n_segments + 1):
        for n in range(bounds[s], bounds[s + 1]):
            total = 0.0
            for x in range(n_types):
                resp[x] = prior[s, x] * weight[n, x]
                total += resp[x]
            for x in range(n_types):
                resp[x] /= total
            n_active = 0
            for i in range(start[n], start[n + 1]):
                f = response[i]
                active[n_active] = f
                for x in range(n_types):
                    score[n_active, x] = successes[i] - trials[i] * prob[f, x]
                    gradient[f * n_types + x] += users[n] * resp[x] * score[n_active, x]
                    if want_information:
                        j = f * n_types + x
                        information[j, j] += users[n] * resp[x] * trials[i] * prob[f, x] * (1 - prob[f, x])
                n_active += 1
            if not want_information:
                continue
            for x in range(n_types):
                for y in range(n_types):
                    missing = users[n] * resp[x] * ((1.0 if x == y else 0.0) - resp[y])
                    for i in range(n_active):
                        part, row = missing * score[i, x], active[i] * n_types + x
                        if y < n_types - 1 and s < n_segments:
                            cross[s, y, row] -= part
                        if y > x:
                            continue
                        for j in range(n_active):
                            information[row, active[j] * n_types + y] -= part * score[j, y]
    if want_information:
        for i in range(d):  # only pairs of types x >= y were filled
            for j in range(d):
                if i % n_types > j % n_types:
                    information[j, i] = information[i, j]
