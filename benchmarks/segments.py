"""Priors of segments: likelihood and CPU time compared with StepMix with covariates, and the effect of shrinkage.

StepMix has no departures. The histories here show every category once, in random order, until the user departs, so
that clicks and departures are binary items with missing values: the likelihood is the same, and StepMix can fit it.
A covariate for each segment but the first makes its model as large as ours. It gets one row for each user: with
weighted rows its covariates stop thousands of nats below the maximum.
"""

import sys
import time
import warnings

import numpy as np

import departing as dp
from benchmarks.common import Row, cpu_seconds
from benchmarks.fitting import items, once_each

USERS, SEGMENTS, TYPES, CATEGORIES = 50_000, 8, 3, 5
N_INIT = 3  # of both: StepMix takes minutes for each initial point
SMALL_SEGMENTS, SMALL_USERS = 200, 20


def rows():
    return [*against_stepmix(), *shrinkage()]


def users_of_segments(priors, sizes, seed):
    """Histories with segments of users who see every category at most once."""
    rng = np.random.default_rng(1)
    shape = (CATEGORIES, TYPES)
    click, depart = rng.uniform(0.1, 0.9, shape), rng.uniform(0.2, 0.8, shape)
    parts = [
        once_each(dp.Instance(prior, click, depart), int(n), seed + s)
        for s, (prior, n) in enumerate(zip(priors, sizes, strict=True))
    ]
    return dp.Histories(
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.multiplicity for part in parts]),
        segment=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        segments=[f"segment {s}" for s in range(len(parts))],
    )


def against_stepmix():
    """Fit the same users by maximum likelihood; the estimated shrinkage is measured beside it."""
    rng = np.random.default_rng(2)
    priors = rng.dirichlet(np.full(TYPES, 2.0), SEGMENTS)
    histories = users_of_segments(priors, rng.multinomial(USERS, rng.dirichlet(np.full(SEGMENTS, 2.0))), 10)
    options = {"types": TYPES, "n_init": N_INIT, "pseudocount": 1e-6}
    fit, shrunk = dp.fit(histories, **options, concentration=0.0), dp.fit(histories, **options)
    (ours,) = cpu_seconds(lambda: dp.fit(histories, **options), repeats=3)
    try:
        seconds, value = _stepmix(histories)
    except ImportError:
        print("stepmix is not installed; pip install stepmix to compare with it.", file=sys.stderr)
        return []
    size = (
        f"{len(histories):,} rows of {USERS:,} users, {SEGMENTS} segments; {ours:.2f} s against {seconds:.0f} s CPU"
    )
    note = f"{fit.log_likelihood:,.3f} against {value:,.3f}; shrunk {shrunk.log_likelihood:,.3f}"
    return [
        Row("segments: faster than stepmix with covariates", seconds / ours, "×", 20, note=size),
        Row("segments: log-likelihood above stepmix", fit.log_likelihood - value, "nats", -0.01, note=note),
    ]


def _stepmix(histories):
    from stepmix.stepmix import StepMix

    answers, users = items(histories)
    place = np.repeat(np.arange(len(answers)), users.astype(int))
    answers = answers[place]
    covariates = (histories.segment[place, None] == np.arange(1, SEGMENTS)).astype(float)
    model = StepMix(
        TYPES,
        n_steps=1,
        measurement="bernoulli_nan",
        structural="covariate",
        structural_params={"method": "newton-raphson", "max_iter": 1},
        n_init=N_INIT,
        max_iter=1_000,
        abs_tol=1e-7,
        random_state=1,
        progress_bar=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = time.process_time()
        model.fit(answers, covariates)
        seconds = time.process_time() - started
        return seconds, float(model.score(answers, covariates) * len(answers))


def shrinkage():
    """Log-likelihood of new users under priors of many small segments, compared with the common prior."""
    rows = []
    for name, concentration in (("informative", 4.0), ("uninformative", 1e6)):
        rng = np.random.default_rng(3)
        priors = rng.dirichlet(np.full(TYPES, concentration / TYPES), SMALL_SEGMENTS)
        sizes = np.full(SMALL_SEGMENTS, SMALL_USERS)
        known, new = users_of_segments(priors, sizes, 1000), users_of_segments(priors, sizes, 5000)
        values = []
        for each in (None, 0.0, np.inf):
            fit = dp.fit(known, types=TYPES, concentration=each)
            values.append(new_users(fit, new) / new.users)
        note = f"{known.users:,} users; unshrunk priors {values[1] - values[2]:+.5f}"
        limit = 0.0 if concentration < 10 else -1e-3
        title = f"gain on new users, {SMALL_SEGMENTS} {name} segments"
        rows.append(Row(title, values[0] - values[2], "nats", limit, note=note))
    return rows


def new_users(fit, histories):
    """Log-likelihood of histories under a fit, each user with the prior of its segment."""
    total = 0.0
    for name in histories.segments:
        part, own = histories.in_segment(name), fit.instance.in_segment(name)
        likelihood = fit.likelihood.from_counts(
            part.counts,
            part.multiplicity,
            own.n_types,
            fit.likelihood.depart_categories,
            fit.likelihood.depart_on_click_categories,
        )
        total += likelihood.log_likelihood(likelihood.to_logits(own))
    return total
