"""Compiled log-posterior of a latent class model whose prior over types depends on the segment of a user.

Rows, responses and logits are those of `kernels.fitting.mixture`; segments share the rows. Segment s has `users[i]`
users of row `row[i]` for i from `bounds[s]` to `bounds[s + 1]`. Its prior π is drawn to the common prior π⁰, the last
M - 1 logits, by the log-density -c KL(π⁰ | π) with concentration c: that of c further users of the common prior. The
priors are maximised over for given logits, where the log-density of the segment is concave in π.
"""

import math

import numpy as np

from departing.kernels.compiling import kernel
from departing.kernels.fitting.mixture import _log_probabilities
from departing.kernels.fitting.segment_prior import add_row, finish_information, solve_positive

MIN_SHARE = 1e-12  # of a type in a segment; keeps logarithms finite
MAX_STEP = 2.0  # of log-ratios; longer steps leave the quadratic model
MAX_ITERATIONS = 100  # of one segment; far above what Newton's method takes
HALVINGS = 6  # of a step that does not increase the value, before an EM step is made
CONVERGED = 1e-9  # nats that a step promises, for each user of the segment


@kernel
def _moments(first, end, row, users, weight, concentration, common, prior, counts, information):
    """Return the log-density of a segment; fill the expected users by type `[M]` and the information `[M, M]`."""
    value, total = 0.0, concentration
    information[:] = 0.0
    for x in range(len(prior)):
        counts[x] = concentration * common[x]
        value += counts[x] * math.log(prior[x] / common[x])
    for i in range(first, end):
        value += add_row(users[i], prior, weight[row[i]], counts, information)
        total += users[i]
    finish_information(total, prior, information)
    return value


@kernel
def _log_integral(users, prior):
    """Log of the integral of exp(-users KL(prior | π)), a Dirichlet density, over the log-ratios of π."""
    value = -math.lgamma(users)
    for x in range(len(prior)):
        value += math.lgamma(users * prior[x]) - users * prior[x] * math.log(prior[x])
    return value


@kernel
def _newton(counts, information, prior, matrix, ratio):
    """Fill `ratio[M - 1]` with Newton's step of the log-ratios; return the nats that it promises.

    Where the log-density is not concave in the log-ratios, the result is infinite.
    """
    n_types, total, promised = len(prior), counts.sum(), 0.0
    for x in range(n_types - 1):
        ratio[x] = counts[x] - total * prior[x]
        for y in range(n_types - 1):
            matrix[x, y] = information[x, y]
    if math.isnan(solve_positive(matrix, ratio)):
        return math.inf
    for x in range(n_types - 1):
        promised += ratio[x] * (counts[x] - total * prior[x])
    return promised


@kernel
def _move(prior, ratio, scale, out):
    """Fill `out[M]` with the prior after a step of `scale` times `ratio[M - 1]`."""
    n_types, largest, norm = len(prior), 0.0, 0.0
    for x in range(n_types):
        out[x] = math.log(prior[x]) + (scale * ratio[x] if x < n_types - 1 else 0.0)
        largest = out[x] if x == 0 else max(largest, out[x])
    for x in range(n_types):
        out[x] = math.exp(out[x] - largest)
        norm += out[x]
    for x in range(n_types):
        out[x] = max(out[x] / norm, MIN_SHARE)


@kernel
def _maximise(first, end, row, users, weight, concentration, common, prior, counts, information, scratch, matrix):
    """Maximise the log-density of a segment over its `prior[M]`, from the common one, and return the maximum."""
    n_types, total = len(prior), concentration
    ratio, safe, new = scratch[0, : n_types - 1], scratch[1], scratch[2]
    arrays = row, users, weight, concentration, common
    for i in range(first, end):
        total += users[i]
    for x in range(n_types):
        prior[x] = common[x]
    value = _moments(first, end, *arrays, prior, counts, information)
    for _ in range(MAX_ITERATIONS):
        for x in range(n_types):
            safe[x] = max(counts[x] / total, MIN_SHARE)  # an EM step, which never decreases the value
        promised = _newton(counts, information, prior, matrix, ratio)
        if promised < CONVERGED * total:
            break
        scale, longest, current = 1.0, 0.0, -math.inf
        for x in range(n_types - 1):
            longest = max(longest, abs(ratio[x]))
        if promised < math.inf:
            scale = min(1.0, MAX_STEP / max(longest, MAX_STEP))
            for _ in range(HALVINGS):
                _move(prior, ratio, scale, new)
                current = _moments(first, end, *arrays, new, counts, information)
                if current >= value:
                    break
                scale /= 2
        if current < value:
            for x in range(n_types):
                new[x] = safe[x]
            current = _moments(first, end, *arrays, new, counts, information)
        value = current
        for x in range(n_types):
            prior[x] = new[x]
    return value


@kernel
def _add_derivatives(
    start, response, successes, trials, sums, missing, prob, active, score, gradient, information
):  # fmt: skip
    """Add the derivatives by the logits of responses, from the expected users by type and row, `sums[n, M]`.

    `missing[n, M, M]` sums up users × (covariance of the type of a user) over the segments.
    """
    n_types = prob.shape[1]
    for n in range(len(sums)):
        n_active = 0
        for i in range(start[n], start[n + 1]):
            f = response[i]
            active[n_active] = f
            for x in range(n_types):
                score[n_active, x] = successes[i] - trials[i] * prob[f, x]
                gradient[f * n_types + x] += sums[n, x] * score[n_active, x]
                j = f * n_types + x
                information[j, j] += sums[n, x] * trials[i] * prob[f, x] * (1 - prob[f, x])
            n_active += 1
        for i in range(n_active):
            for x in range(n_types):
                j = active[i] * n_types + x
                for k in range(n_active):
                    for y in range(n_types):
                        information[j, active[k] * n_types + y] -= missing[n, x, y] * score[i, x] * score[k, y]


@kernel
def segmented_posterior(
    logits, start, response, successes, trials, bounds, row, users, concentration, n_responses, n_types, pseudocount,
    values, corrections, priors, own, gradients, information, cross,
):  # fmt: skip
    """Fill `values[B]` with the log-posterior at `logits[B, d]`, maximised over the priors of the segments.

    Every response of every type has `pseudocount` additional successes and failures, every type `pseudocount`
    additional users of the common prior. Also filled are `priors[B, S, M]`, the information about their log-ratios
    `own[B, S, M - 1, M - 1]`, and `corrections[B]`, by which the integral over these differs from the maximum. It is
    that of the Dirichlet density with the same maximum and determinant of the information, and so exact for segments
    without users and for users of known type. Unless empty, `gradients[B, d]`, and the observed information about
    the logits, `information[B, d, d]`, and its part with the log-ratios, `cross[B, S, d, M - 1]`.
    """
    n_rows, n_segments = len(start) - 1, len(bounds) - 1
    first, r = n_responses * n_types, n_types - 1
    derivatives = gradients.shape[0] > 0
    log_success, log_failure = np.empty((n_responses, n_types)), np.empty((n_responses, n_types))
    log_prior, counts, moments = np.empty(n_types), np.empty(n_types), np.empty((n_types, n_types))
    scratch, matrix, common = np.empty((3, n_types)), np.empty((r, r)), np.empty(n_types)
    weight, top, pooled = np.empty((n_rows, n_types)), np.empty(n_rows), np.zeros(n_rows)
    sums, missing = np.empty((n_rows, n_types)), np.empty((n_rows, n_types, n_types))
    prob, resp = np.empty((n_responses, n_types)), np.empty(n_types)
    score, active = np.empty((n_responses, n_types)), np.empty(n_responses, np.int64)
    for i in range(len(row)):
        pooled[row[i]] += users[i]
    for b in range(logits.shape[0]):
        _log_probabilities(logits[b], n_types, log_success, log_failure, log_prior)
        total = 0.0
        for x in range(n_types):
            common[x] = max(math.exp(log_prior[x]), MIN_SHARE)
            total += pseudocount * log_prior[x]
            for f in range(n_responses):
                prob[f, x] = math.exp(log_success[f, x])
                total += pseudocount * (log_success[f, x] + log_failure[f, x])
        for n in range(n_rows):
            for x in range(n_types):
                weight[n, x] = 0.0
            for i in range(start[n], start[n + 1]):
                f, failures = response[i], trials[i] - successes[i]
                for x in range(n_types):
                    weight[n, x] += successes[i] * log_success[f, x] + failures * log_failure[f, x]
            top[n] = weight[n].max()
            total += pooled[n] * top[n]
            for x in range(n_types):
                weight[n, x] = math.exp(weight[n, x] - top[n])
        if derivatives:
            sums[:], missing[:] = 0.0, 0.0
            gradients[b], information[b], cross[b] = 0.0, 0.0, 0.0
        corrections[b] = 0.0
        for s in range(n_segments):
            prior = priors[b, s]
            total += _maximise(
                bounds[s], bounds[s + 1], row, users, weight, concentration, common, prior, counts, moments, scratch,
                matrix,
            )  # fmt: skip
            for x in range(r):
                for y in range(r):
                    own[b, s, x, y] = matrix[x, y] = moments[x, y]
                scratch[0, x] = 0.0
            determinant = solve_positive(matrix, scratch[0, :r])
            if not math.isnan(determinant):  # at the boundary there is no approximation
                for x in range(n_types):
                    determinant -= math.log(prior[x])
                # The information of a Dirichlet density of n users has the determinant n^(M - 1) Π prior.
                own_users = math.exp(determinant / r) if r else concentration
                corrections[b] += _log_integral(own_users, prior) - _log_integral(concentration, common)
            if not derivatives:
                continue
            divergence = 0.0
            for x in range(n_types):
                divergence += common[x] * math.log(common[x] / prior[x])
            for x in range(r):
                excess = math.log(common[x] / prior[x]) - divergence
                gradients[b, first + x] -= concentration * common[x] * excess
                for y in range(r):
                    covariance = common[x] * ((1.0 if x == y else 0.0) - common[y])
                    other = math.log(common[y] / prior[y]) - divergence
                    information[b, first + x, first + y] += concentration * (
                        covariance * (1.0 + excess) - common[x] * common[y] * other
                    )
                    cross[b, s, first + x, y] -= concentration * covariance
            for i in range(bounds[s], bounds[s + 1]):
                n, likelihood = row[i], 0.0
                for x in range(n_types):
                    resp[x] = prior[x] * weight[n, x]
                    likelihood += resp[x]
                for x in range(n_types):
                    resp[x] /= likelihood
                    sums[n, x] += users[i] * resp[x]
                for x in range(n_types):
                    for y in range(n_types):
                        covariance = users[i] * resp[x] * ((1.0 if x == y else 0.0) - resp[y])
                        missing[n, x, y] += covariance
                        if y == r:
                            continue
                        for k in range(start[n], start[n + 1]):
                            f = response[k]
                            cross[b, s, f * n_types + x, y] -= covariance * (successes[k] - trials[k] * prob[f, x])
        values[b] = total
        if not derivatives:
            continue
        _add_derivatives(
            start, response, successes, trials, sums, missing, prob, active, score, gradients[b], information[b]
        )
        for x in range(n_types):
            for f in range(n_responses):
                j = f * n_types + x
                gradients[b, j] += pseudocount * (1 - 2 * prob[f, x])
                information[b, j, j] += 2 * pseudocount * prob[f, x] * (1 - prob[f, x])
        for x in range(r):
            gradients[b, first + x] += pseudocount * (1 - n_types * common[x])
            for y in range(r):
                covariance = common[x] * ((1.0 if x == y else 0.0) - common[y])
                information[b, first + x, first + y] += n_types * pseudocount * covariance
