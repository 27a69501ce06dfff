"""Types as a mixture: the likelihood of what users did, its gradient and its information.

Every user answers questions with yes or no: the chance of yes depends on the question and the type. `yes[n, F]` and
`asked[n, F]` are the answers of `users[n]` alike users. Parameters are logits: `eta[f * M + x]` of the chance that
type x answers question f with yes, then M - 1 of the prior against the last type.
"""

import math

import numpy as np

from departing.kernels.compiling import kernel


@kernel
def _log_sigmoid(z):
    return -math.log1p(math.exp(-z)) if z > 0 else z - math.log1p(math.exp(z))


@kernel
def _unpack(eta, n_types, log_yes, log_no, log_prior):
    """The logarithms of the chances of yes and of no, `[F, M]`, and of the prior, `[M]`."""
    n_questions = log_yes.shape[0]
    for f in range(n_questions):
        for x in range(n_types):
            log_yes[f, x] = _log_sigmoid(eta[f * n_types + x])
            log_no[f, x] = _log_sigmoid(-eta[f * n_types + x])
    largest = 0.0
    for x in range(n_types - 1):
        largest = max(largest, eta[n_questions * n_types + x])
    total = 0.0
    for x in range(n_types):
        log_prior[x] = (eta[n_questions * n_types + x] if x < n_types - 1 else 0.0) - largest
        total += math.exp(log_prior[x])
    for x in range(n_types):
        log_prior[x] -= math.log(total)


@kernel
def _responsibility(u, yes, asked, log_yes, log_no, log_prior, share):
    """The log-likelihood of row u; `share[M]` becomes the posterior over types."""
    n_questions, n_types = log_yes.shape
    for x in range(n_types):
        share[x] = log_prior[x]
    for f in range(n_questions):
        if asked[u, f] > 0:
            no = asked[u, f] - yes[u, f]
            for x in range(n_types):
                share[x] += yes[u, f] * log_yes[f, x] + no * log_no[f, x]
    largest = share[0]
    for x in range(1, n_types):
        largest = max(largest, share[x])
    total = 0.0
    for x in range(n_types):
        share[x] = math.exp(share[x] - largest)
        total += share[x]
    for x in range(n_types):
        share[x] /= total
    return largest + math.log(total)


@kernel
def log_posterior(etas, users, yes, asked, n_types, pseudo, values, gradients, informations):
    """The log-likelihood at every one of `etas[B, d]` into `values[B]`, with `pseudo` yes and no of every question.

    Also the gradient into `gradients[B, d]` and the observed information into `informations[B, d, d]` (by Louis's
    formula: that of complete data less what is missing), unless these are empty. The prior has `pseudo` of each type.
    """
    n_rows, n_questions = yes.shape
    d = etas.shape[1]
    first = n_questions * n_types
    want_gradient, want_information = gradients.shape[0] > 0, informations.shape[0] > 0
    log_yes, log_no = np.empty((n_questions, n_types)), np.empty((n_questions, n_types))
    log_prior, share = np.empty(n_types), np.empty(n_types)
    chance, prior = np.empty((n_questions, n_types)), np.empty(n_types)
    said, heard, of_type = np.empty((n_questions, n_types)), np.empty((n_questions, n_types)), np.empty(n_types)
    score, active = np.empty((n_questions + 1, n_types)), np.empty(n_questions + 1, np.int64)
    for b in range(etas.shape[0]):
        _unpack(etas[b], n_types, log_yes, log_no, log_prior)
        total, everyone = 0.0, 0.0
        for x in range(n_types):
            prior[x] = math.exp(log_prior[x])
            of_type[x] = 0.0
            total += pseudo * log_prior[x]
            for f in range(n_questions):
                chance[f, x] = math.exp(log_yes[f, x])
                said[f, x] = heard[f, x] = 0.0
                total += pseudo * (log_yes[f, x] + log_no[f, x])
        if want_information:
            for i in range(d):
                for j in range(d):
                    informations[b, i, j] = 0.0
        for u in range(n_rows):
            total += users[u] * _responsibility(u, yes, asked, log_yes, log_no, log_prior, share)
            if not want_gradient:
                continue
            everyone += users[u]
            n_active = 0
            for x in range(n_types):
                of_type[x] += users[u] * share[x]
            for f in range(n_questions):
                if asked[u, f] > 0:
                    for x in range(n_types):
                        said[f, x] += users[u] * share[x] * yes[u, f]
                        heard[f, x] += users[u] * share[x] * asked[u, f]
                        score[n_active, x] = yes[u, f] - asked[u, f] * chance[f, x]
                    active[n_active] = f
                    n_active += 1
            if not want_information:
                continue
            for x in range(n_types):
                score[n_active, x] = 1.0
            active[n_active] = n_questions
            n_active += 1
            for x in range(n_types):
                for y in range(x + 1):
                    missing = users[u] * share[x] * ((1.0 if x == y else 0.0) - share[y])
                    for i in range(n_active):
                        row = active[i] * n_types + x
                        if row >= d:
                            continue
                        part = missing * score[i, x]
                        for j in range(n_active):
                            column = active[j] * n_types + y
                            if column < d:
                                informations[b, row, column] -= part * score[j, y]
        values[b] = total
        if not want_gradient:
            continue
        for x in range(n_types):
            for f in range(n_questions):
                weight = heard[f, x] + 2 * pseudo
                gradients[b, f * n_types + x] = said[f, x] + pseudo - weight * chance[f, x]
            if x < n_types - 1:
                gradients[b, first + x] = of_type[x] + pseudo - (everyone + n_types * pseudo) * prior[x]
        if not want_information:
            continue
        for i in range(d):  # the lower triangle by types was filled: mirror what belongs to pairs of different types
            for j in range(d):
                if i % n_types > j % n_types:
                    informations[b, j, i] = informations[b, i, j]
        for x in range(n_types):
            for f in range(n_questions):
                i = f * n_types + x
                weight = heard[f, x] + 2 * pseudo
                informations[b, i, i] += weight * chance[f, x] * (1 - chance[f, x])
        for x in range(n_types - 1):
            for y in range(n_types - 1):
                expected = prior[x] * ((1.0 if x == y else 0.0) - prior[y])
                informations[b, first + x, first + y] += (everyone + n_types * pseudo) * expected


@kernel
def expect_and_maximise(etas, users, yes, asked, n_types, pseudo, rounds):
    """Some rounds of EM for every one of `etas[B, d]`, in place."""
    n_rows, n_questions = yes.shape
    first = n_questions * n_types
    log_yes, log_no = np.empty((n_questions, n_types)), np.empty((n_questions, n_types))
    log_prior, share = np.empty(n_types), np.empty(n_types)
    said, denied, of_type = np.empty((n_questions, n_types)), np.empty((n_questions, n_types)), np.empty(n_types)
    for b in range(etas.shape[0]):
        for _ in range(rounds):
            _unpack(etas[b], n_types, log_yes, log_no, log_prior)
            for x in range(n_types):
                of_type[x] = pseudo
                for f in range(n_questions):
                    said[f, x] = denied[f, x] = pseudo
            for u in range(n_rows):
                _responsibility(u, yes, asked, log_yes, log_no, log_prior, share)
                for x in range(n_types):
                    of_type[x] += users[u] * share[x]
                for f in range(n_questions):
                    if asked[u, f] > 0:
                        for x in range(n_types):
                            said[f, x] += users[u] * share[x] * yes[u, f]
                            denied[f, x] += users[u] * share[x] * (asked[u, f] - yes[u, f])
            for x in range(n_types):
                for f in range(n_questions):
                    etas[b, f * n_types + x] = math.log(said[f, x] / denied[f, x])
                if x < n_types - 1:
                    etas[b, first + x] = math.log(of_type[x] / of_type[n_types - 1])
