"""Compiled log-posterior of a latent class model, with gradient, observed information and EM.

A user of type x answers binary response f (click, depart after a no-click, depart after a click, by category)
positively with a probability that depends on f and x. Row n stands for `users[n]` users with the same successes and
trials. Only responses with trials are stored, by increasing response: entries `start[n]:start[n + 1]` of `response`,
`successes` and `trials`. Parameters are logits `[F * M + M - 1]`: first `f * M + x` for response f of type x, then
the M - 1 log-ratios of the prior to its last entry.
"""

import math

import numpy as np

from departing.kernels.compiling import kernel


@kernel
def _log_sigmoid(z):
    return -math.log1p(math.exp(-z)) if z > 0 else z - math.log1p(math.exp(z))


@kernel
def _log_probabilities(logits, n_types, log_success, log_failure, log_prior):
    """Fill the log probabilities of success and failure, `[F, M]`, and of the prior, `[M]`."""
    n_responses = log_success.shape[0]
    for f in range(n_responses):
        for x in range(n_types):
            log_success[f, x] = _log_sigmoid(logits[f * n_types + x])
            log_failure[f, x] = _log_sigmoid(-logits[f * n_types + x])
    largest = 0.0
    for x in range(n_types - 1):
        largest = max(largest, logits[n_responses * n_types + x])
    total = 0.0
    for x in range(n_types):
        log_prior[x] = (logits[n_responses * n_types + x] if x < n_types - 1 else 0.0) - largest
        total += math.exp(log_prior[x])
    for x in range(n_types):
        log_prior[x] -= math.log(total)


@kernel
def _responsibilities(n, start, response, successes, trials, log_success, log_failure, log_prior, resp):
    """Return the log-likelihood of a user of row n; fill `resp[M]` with the posterior over types."""
    n_types = log_success.shape[1]
    for x in range(n_types):
        resp[x] = log_prior[x]
    for i in range(start[n], start[n + 1]):
        f, failures = response[i], trials[i] - successes[i]
        for x in range(n_types):
            resp[x] += successes[i] * log_success[f, x] + failures * log_failure[f, x]
    largest = resp[0]
    for x in range(1, n_types):
        largest = max(largest, resp[x])
    total = 0.0
    for x in range(n_types):
        resp[x] = math.exp(resp[x] - largest)
        total += resp[x]
    for x in range(n_types):
        resp[x] /= total
    return largest + math.log(total)


@kernel
def log_posterior(
    logits,
    users,
    start,
    response,
    successes,
    trials,
    n_responses,
    n_types,
    pseudocount,
    values,
    gradients,
    information,
):
    """Fill `values[B]` with the log-posterior at `logits[B, d]`.

    Every response of every type has `pseudocount` additional successes and failures, every type `pseudocount`
    additional users. Unless these arrays are empty, also fill `gradients[B, d]` and the observed information
    `information[B, d, d]`, by Louis's formula: complete-data information less missing information.
    """
    n_rows, d = len(users), logits.shape[1]
    first = n_responses * n_types
    want_gradient, want_information = gradients.shape[0] > 0, information.shape[0] > 0
    log_success, log_failure = np.empty((n_responses, n_types)), np.empty((n_responses, n_types))
    log_prior, resp, weight = np.empty(n_types), np.empty(n_types), np.empty(n_types)
    prob, prior = np.empty((n_responses, n_types)), np.empty(n_types)
    success_sum, trial_sum = np.empty((n_responses, n_types)), np.empty((n_responses, n_types))
    type_sum = np.empty(n_types)
    score, active = np.empty((n_responses + 1, n_types)), np.empty(n_responses + 1, np.int64)
    for b in range(logits.shape[0]):
        _log_probabilities(logits[b], n_types, log_success, log_failure, log_prior)
        total, n_users = 0.0, 0.0
        for x in range(n_types):
            prior[x] = math.exp(log_prior[x])
            type_sum[x] = 0.0
            total += pseudocount * log_prior[x]
            for f in range(n_responses):
                prob[f, x] = math.exp(log_success[f, x])
                success_sum[f, x] = trial_sum[f, x] = 0.0
                total += pseudocount * (log_success[f, x] + log_failure[f, x])
        if want_information:
            information[b] = 0.0
        for n in range(n_rows):
            total += users[n] * _responsibilities(
                n, start, response, successes, trials, log_success, log_failure, log_prior, resp
            )
            if not want_gradient:
                continue
            n_users += users[n]
            for x in range(n_types):
                weight[x] = users[n] * resp[x]
                type_sum[x] += weight[x]
            for i in range(start[n], start[n + 1]):
                f = response[i]
                for x in range(n_types):
                    success_sum[f, x] += weight[x] * successes[i]
                    trial_sum[f, x] += weight[x] * trials[i]
            if not want_information:
                continue
            n_active = 0
            for i in range(start[n], start[n + 1]):
                f = response[i]
                for x in range(n_types):
                    score[n_active, x] = successes[i] - trials[i] * prob[f, x]
                active[n_active] = f
                n_active += 1
            for x in range(n_types):
                score[n_active, x] = 1.0
            active[n_active] = n_responses
            n_active += 1
            for x in range(n_types):
                for y in range(x + 1):
                    missing = users[n] * resp[x] * ((1.0 if x == y else 0.0) - resp[y])
                    for i in range(n_active):
                        row = active[i] * n_types + x
                        if row >= d:
                            continue
                        part = missing * score[i, x]
                        for j in range(n_active):
                            column = active[j] * n_types + y
                            if column < d:
                                information[b, row, column] -= part * score[j, y]
        values[b] = total
        if not want_gradient:
            continue
        for x in range(n_types):
            for f in range(n_responses):
                trials_of_type = trial_sum[f, x] + 2 * pseudocount
                gradients[b, f * n_types + x] = success_sum[f, x] + pseudocount - trials_of_type * prob[f, x]
            if x < n_types - 1:
                gradients[b, first + x] = type_sum[x] + pseudocount - (n_users + n_types * pseudocount) * prior[x]
        if not want_information:
            continue
        for i in range(d):  # only pairs of types x >= y were filled
            for j in range(d):
                if i % n_types > j % n_types:
                    information[b, j, i] = information[b, i, j]
        for x in range(n_types):
            for f in range(n_responses):
                i = f * n_types + x
                trials_of_type = trial_sum[f, x] + 2 * pseudocount
                information[b, i, i] += trials_of_type * prob[f, x] * (1 - prob[f, x])
        for x in range(n_types - 1):
            for y in range(n_types - 1):
                expected = prior[x] * ((1.0 if x == y else 0.0) - prior[y])
                information[b, first + x, first + y] += (n_users + n_types * pseudocount) * expected


@kernel
def em(logits, users, start, response, successes, trials, n_responses, n_types, pseudocount, iterations):
    """Run EM iterations on each of `logits[B, d]`, in place."""
    n_rows = len(users)
    first = n_responses * n_types
    log_success, log_failure = np.empty((n_responses, n_types)), np.empty((n_responses, n_types))
    log_prior, resp, weight = np.empty(n_types), np.empty(n_types), np.empty(n_types)
    success_sum, failure_sum = np.empty((n_responses, n_types)), np.empty((n_responses, n_types))
    type_sum = np.empty(n_types)
    for b in range(logits.shape[0]):
        for _ in range(iterations):
            _log_probabilities(logits[b], n_types, log_success, log_failure, log_prior)
            for x in range(n_types):
                type_sum[x] = pseudocount
                for f in range(n_responses):
                    success_sum[f, x] = failure_sum[f, x] = pseudocount
            for n in range(n_rows):
                _responsibilities(n, start, response, successes, trials, log_success, log_failure, log_prior, resp)
                for x in range(n_types):
                    weight[x] = users[n] * resp[x]
                    type_sum[x] += weight[x]
                for i in range(start[n], start[n + 1]):
                    f, failures = response[i], trials[i] - successes[i]
                    for x in range(n_types):
                        success_sum[f, x] += weight[x] * successes[i]
                        failure_sum[f, x] += weight[x] * failures
            for x in range(n_types):
                for f in range(n_responses):
                    logits[b, f * n_types + x] = math.log(success_sum[f, x] / failure_sum[f, x])
                if x < n_types - 1:
                    logits[b, first + x] = math.log(type_sum[x] / type_sum[n_types - 1])
