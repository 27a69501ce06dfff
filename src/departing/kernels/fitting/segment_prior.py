"""Common parts of the likelihoods of segments in fits and in learners: users by type, and small linear systems."""

import math

from departing.kernels.compiling import kernel


@kernel
def add_row(users, prior, weight, counts, information):
    """Add `users` with the likelihoods `weight[M]` to a segment; return their log-likelihood.

    Added to are the expected users by type, `counts[M]`, and the lower triangle of the `information[M, M]`, which
    `finish_information` completes.
    """
    n_types, likelihood = len(prior), 0.0
    for x in range(n_types):
        likelihood += prior[x] * weight[x]
    for x in range(n_types):
        share = prior[x] * weight[x] / likelihood
        counts[x] += users * share
        information[x, x] -= users * share
        for y in range(x + 1):
            information[x, y] += users * share * prior[y] * weight[y] / likelihood
    return users * math.log(likelihood)


@kernel
def finish_information(total, prior, information):
    """Add the information of the `total` users about their types to that of `add_row`, and fill both triangles."""
    for x in range(len(prior)):
        information[x, x] += total * prior[x]
        for y in range(x + 1):
            information[x, y] -= total * prior[x] * prior[y]
            information[y, x] = information[x, y]


@kernel
def solve_positive(matrix, vector):
    """Solve a symmetric system in place by Cholesky's method; return the log-determinant, NaN if not positive."""
    n, log_determinant = len(vector), 0.0
    for i in range(n):
        for j in range(i + 1):
            entry = matrix[i, j]
            for k in range(j):
                entry -= matrix[i, k] * matrix[j, k]
            if i == j:
                if not entry > 0.0:
                    return math.nan
                matrix[i, i] = math.sqrt(entry)
                log_determinant += math.log(entry)
            else:
                matrix[i, j] = entry / matrix[j, j]
    for i in range(n):
        for k in range(i):
            vector[i] -= matrix[i, k] * vector[k]
        vector[i] /= matrix[i, i]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            vector[i] -= matrix[k, i] * vector[k]
        vector[i] /= matrix[i, i]
    return log_determinant
