"""Identifiability of an estimate: parameters and types that the histories do not determine."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood, Parameters
from departing.fitting.optimisation import Optimum
from departing.fitting.type_matching import match_types
from departing.formatting import first_few
from departing.model.counts import Booleans
from departing.model.instance import Floats, Instance

MIN_IMPRESSIONS = 100  # per type and category; then a probability of 0.5 has a standard error of 0.05
MIN_RESPONSES = 10.0  # expected successes and failures per parameter; the usual rule for the normal approximation
MAX_LOGIT_STDERR = 1.0  # a 95 % interval around 0.5 then reaches from 0.12 to 0.88
# A likelihood ratio of e³ = 20 between two local maxima is the conventional limit of "strong" evidence.
COMPETING_NATS = 3.0
# Types closer than this in each of their F parameters are merged: three-sigma limits instead of two, because F
# differences are compared at once.
SAME_TYPE_STDERRS = 3.0
MIN_LONG_SHARE = 0.01  # share of users with 2 M - 1 steps below which types rest on a handful of users


def assess_identifiability(
    instance: Instance, optimum: Optimum, logits: Floats, covariance: Floats
) -> tuple[Parameters, tuple[str, ...]]:
    """Find the parameters of `instance`, at `logits[d]` with `covariance[d, d]`, that are not identifiable.

    Returns booleans in the shape of the parameters, and sentences about those that are False.
    """
    likelihood = optimum.likelihood
    prob = likelihood.response_probabilities(logits)
    variance = np.diag(covariance)
    stderr = np.sqrt(variance[: prob.size]).reshape(prob.shape)
    weak = (_expected_responses(likelihood, logits).min(axis=0) < MIN_RESPONSES) | (stderr > MAX_LOGIT_STDERR)
    same = _indistinguishable(prob, stderr)
    warnings = [*_data_warnings(instance, likelihood), *_weak_parameters(instance, likelihood, weak)]
    warnings += [
        f"Types {instance.types[x]!r} and {instance.types[y]!r} are not distinguishable: all their probabilities "
        "agree within their standard errors; use fewer types."
        for x, y in same
    ]
    responses, shares = ~weak, np.ones(likelihood.n_types, bool)
    for x, y in same:
        responses[:, [x, y]] = False
        shares[[x, y]] = False
    close = np.flatnonzero(optimum.deficits < COMPETING_NATS)
    if len(close):
        other = match_types(likelihood.from_logits(optimum.local_maxima[close[0]]), instance)
        moved = np.abs(likelihood.responses(other) - prob) > 2 * stderr * prob * (1 - prob)
        if moved.any():
            warnings.append(
                f"Another estimate fits nearly as well (log-likelihood {optimum.deficits[close[0]]:.1f} lower): "
                f"{int(moved.sum())} probabilities differ in it by more than two standard errors. Collect "
                "more users or longer histories."
            )
            responses &= ~moved
            shares[:] = False
    if (np.sqrt(variance[prob.size :]) > MAX_LOGIT_STDERR).any():
        shares[:] = False
    return likelihood.parameters(shares, responses, True, True), tuple(warnings)


def _expected_responses(likelihood: MixtureLikelihood, logits: Floats) -> Floats:
    """Expected numbers of successes and failures of every response and type, `[2, F, M]`."""
    expected = np.zeros((2, likelihood.n_responses, likelihood.n_types))
    for part in likelihood.batches():
        weight = part.responsibilities(logits) * part.users[:, None]
        successes = part.successes
        expected += np.stack([successes.T @ weight, (part.trials - successes).T @ weight])
    return expected


def _data_warnings(instance: Instance, likelihood: MixtureLikelihood) -> Iterator[str]:
    """Sentences about categories with few impressions, unconnected categories and short histories."""
    m, k, shown = likelihood.n_types, likelihood.n_categories, likelihood.impressions
    rare = np.flatnonzero(shown < MIN_IMPRESSIONS * m).tolist()
    if rare:
        names = first_few([f"{instance.categories[a]!r} ({int(shown[a])} impressions)" for a in rare], 5)
        yield f"Little data for {names}: fewer than {MIN_IMPRESSIONS} with a known outcome per type."
    if m == 1:
        return
    steps = 2 * m - 1  # responses that identify a mixture of m product distributions
    together, long = np.zeros((k, k)), 0.0
    for part in likelihood.batches():
        trials = part.trials[:, :k]
        shows = (trials > 0).astype(np.float64)
        together += shows.T @ shows
        long += part.users[trials.sum(axis=1) >= steps].sum()
    connected = np.arange(k) == shown.argmax()
    while (more := (together[connected] > 0).any(axis=0) & ~connected).any():
        connected |= more
    apart = (shown > 0) & ~connected
    if apart.any():
        first, other = (instance.categories[int(np.flatnonzero(part)[0])] for part in (connected, apart))
        yield (
            f"No user connects all categories, such as {first!r} and {other!r}: types are matched between them by "
            "their shares alone."
        )
    share = long / likelihood.users.sum()
    if share < MIN_LONG_SHARE:
        yield f"Histories are short: only {share:.1%} of users have the {steps} steps needed to identify {m} types."


def _weak_parameters(instance: Instance, likelihood: MixtureLikelihood, weak: Booleans) -> Iterator[str]:
    """Sentence about probabilities that rest on few users."""
    fields = [("click probability", a) for a in range(likelihood.n_categories)]
    fields += [("departure after a no-click", a) for a in likelihood.depart_categories.tolist()]
    fields += [("departure after a click", a) for a in likelihood.depart_on_click_categories.tolist()]
    names = [
        f"{fields[f][0]} of {instance.categories[fields[f][1]]!r} for {instance.types[x]!r}"
        for f, x in np.argwhere(weak).tolist()
    ]
    if names:
        yield f"Not identifiable: {first_few(names, 3)}; too few users determine it, or it is close to 0 or 1."


def _indistinguishable(prob: Floats, stderr: Floats) -> list[tuple[int, int]]:
    """Pairs of types whose logits all agree within their standard errors."""
    logit = np.log(prob / (1 - prob))
    pairs = []
    for x, y in combinations(range(prob.shape[1]), 2):
        z = np.abs(logit[:, x] - logit[:, y]) / np.sqrt(stderr[:, x] ** 2 + stderr[:, y] ** 2)
        if z.max() < SAME_TYPE_STDERRS:
            pairs.append((x, y))
    return pairs
