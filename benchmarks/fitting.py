"""Fitting: speed compared with packages for latent class analysis, and recovery of 100 known instances."""

import os
import subprocess
import sys
import tempfile
import time
import warnings
from statistics import median

import numpy as np

import departing as dp
from benchmarks.common import Row, cpu_seconds
from departing.fitting import optimisation, quasi_newton
from departing.fitting.likelihood import Parameters
from departing.fitting.type_matching import match_types

USERS = 10**6
LOGS, LOG_USERS = 25, 10**5  # for each of four sizes
N_INIT = 12
LARGE_USERS, LARGE_FILES = 10**7, 20
STAGED_USERS, STAGED_ROWS = 10**6, 10**5  # of the log that is fitted in stages and in one; rows above which
LARGE_FIT = """
import resource, sys, time
import departing as dp
fit = dp.fit(sys.argv[1], types=4, inactive_after="14 days")
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
print(time.process_time(), peak, len(fit.histories), fit.histories.report.events, fit.log_likelihood)
"""


def rows():
    return [*speed(), *many_parameters(), *large_log(), *stages(), *recovery()]


def large_instance():
    """Ten categories and eight types: 167 parameters, and 12 steps per user on average."""
    rng = np.random.default_rng(3)
    shape = (10, 8)
    return dp.Instance(rng.dirichlet(np.full(8, 8.0)), rng.uniform(0.1, 0.9, shape), rng.uniform(0.05, 0.25, shape))


def large_log():
    """Time and memory of reading and fitting a log most of whose users have distinct counts."""
    import duckdb

    instance, users = large_instance(), LARGE_USERS // LARGE_FILES
    with tempfile.TemporaryDirectory() as folder:
        for i in range(LARGE_FILES):
            columns = dp.sample_log(instance, users, seed=100 + i, days=60).columns()
            columns["user"] = columns["user"] + i * users
            with duckdb.connect() as database:
                database.register("events", columns)
                database.execute(f"COPY (SELECT * EXCLUDE propensity FROM events) TO '{folder}/{i:02}.parquet'")
        code = [sys.executable, "-c", LARGE_FIT, folder]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(code, capture_output=True, text=True, check=True, env=environment)
    seconds, peak, distinct, events, value = map(float, done.stdout.split())
    note = f"{distinct:,.0f} distinct counts, {events:,.0f} events, {value / LARGE_USERS:.6f} nats per user"
    size = f"{LARGE_USERS:,} users"
    return [
        Row(f"memory of read and fit, {size}", peak, "MB", 2000, at_least=False, note=note),
        Row(f"CPU time of read and fit, {size}", seconds, "s", 900, at_least=False),
    ]


def stages():
    """Log-likelihood of a fit in stages minus that of a fit in one, from the same initial points."""
    histories = dp.sample_log(large_instance(), STAGED_USERS, seed=3, days=60).histories
    values, seconds = [], []
    for rows in (10**9, STAGED_ROWS):
        optimisation.LARGE_ROWS = quasi_newton.LARGE_ROWS = rows
        started = time.process_time()
        values.append(dp.fit(histories, types=4).log_likelihood / STAGED_USERS)
        seconds.append(time.process_time() - started)
    optimisation.LARGE_ROWS = quasi_newton.LARGE_ROWS = 10**6
    note = (
        f"{len(histories):,} distinct counts; {values[1]:.6f} in {seconds[1]:.0f} s CPU, in one {values[0]:.6f} in "
    )
    note += f"{seconds[0]:.0f} s"
    difference = values[1] - values[0]
    name = f"likelihood of a fit in stages, {STAGED_USERS:,} users"
    return [Row(name, difference, "nats per user", -1e-4, note=note)]


def many_parameters():
    """Time of a fit with 167 parameters, compared with Newton's method and with the choice of the number of types."""
    instance = large_instance()
    histories = dp.sample_log(instance, LOG_USERS, seed=3, days=60).histories
    dp.fit(dp.Histories(histories.counts[:3000], histories.multiplicity[:3000]), types=3)  # compile
    seconds, values = [], []
    for types, largest in ((8, 30), (8, 10**6), (range(1, 9), 30)):
        optimisation.MAX_NEWTON_PARAMETERS, started = largest, time.process_time()
        fit = dp.fit(histories, types=types)
        seconds.append(time.process_time() - started)
        values.append(fit.likelihood.log_posterior(fit.logits[None], 1.0)[0])
    optimisation.MAX_NEWTON_PARAMETERS = 30
    ours, newton, ladder = seconds
    note = f"{ours:.1f} s against {newton:.1f} s"
    return [
        Row("faster than Newton's method, M = 8, K = 10", newton / ours, "×", 5, note=note),
        Row("log-posterior above Newton's method", values[0] - values[1], "nats", -0.01),
        Row(
            "choice among 1 to 8 types against one fit", ladder / ours, "×", 3, at_least=False, note=f"{ladder:.1f} s"
        ),
    ]


def once_each(instance, users, seed):
    """Histories of users who see every category at most once, in random order, until they depart."""
    rng = np.random.default_rng(seed)
    k = instance.n_categories
    types = rng.choice(instance.n_types, users, p=instance.prior)
    order = rng.permuted(np.tile(np.arange(k), (users, 1)), axis=1)
    counts, active = np.zeros((users, k, 4), np.int64), np.arange(users)
    for step in range(k):
        category = order[active, step]
        cumulative = instance.outcome_probabilities[category, :, types[active]].cumsum(axis=1)
        outcome = (rng.random(len(active))[:, None] >= cumulative[:, :3]).sum(axis=1)
        counts[active, category, outcome] = 1
        active = active[outcome < 2]
    return dp.Histories(counts).distinct


def items(histories):
    """The same as binary items, clicked and departed for each category, NaN where not observed."""
    click, stay, depart, _ = (histories.counts[..., o] > 0 for o in range(4))
    clicked = np.where(click, 1.0, np.where(stay | depart, 0.0, np.nan))
    departed = np.where(depart, 1.0, np.where(stay, 0.0, np.nan))
    return np.concatenate([clicked, departed], axis=1), histories.multiplicity.astype(float)


def speed():
    """A click and a departure of five categories are ten binary items, which general packages can fit."""
    rng = np.random.default_rng(1)
    instance = dp.Instance([0.5, 0.3, 0.2], rng.uniform(0.1, 0.9, (5, 3)), rng.uniform(0.2, 0.8, (5, 3)))
    histories = once_each(instance, USERS, 1)
    answers, weights = items(histories)
    fit = dp.fit(histories, types=3, n_init=N_INIT, pseudocount=1e-6)
    (ours,) = cpu_seconds(lambda: dp.fit(histories, types=3, n_init=N_INIT, pseudocount=1e-6), repeats=5)
    rows = []
    for name, peer in (("stepmix", _stepmix), ("pomegranate", _pomegranate)):
        try:
            seconds, value = peer(answers, weights)
        except ImportError:
            print(f"{name} is not installed; pip install {name} to compare with it.", file=sys.stderr)
            continue
        note = f"{len(histories):,} rows of {USERS:,} users; {ours:.3f} s against {seconds:.1f} s"
        above = fit.log_likelihood - value
        converged = above < 10  # the time to stop elsewhere is no measure of speed
        note += "" if converged else f", which stops {above:,.0f} nats lower"
        rows.append(Row(f"faster than {name}, M = 3, K = 5", seconds / ours, "×", 50 if converged else 0, note=note))
        rows.append(Row(f"log-likelihood above {name}", above, "nats", -0.01))
    return rows


def _stepmix(answers, weights):
    from stepmix.stepmix import StepMix

    model = StepMix(
        3, measurement="bernoulli_nan", n_init=N_INIT, max_iter=10_000, abs_tol=1e-9, random_state=1, progress_bar=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = time.process_time()
        model.fit(answers, sample_weight=weights)
        seconds = time.process_time() - started
        return seconds, float(model.score(answers, sample_weight=weights) * weights.sum())


def _pomegranate(answers, weights):
    """Its Bernoulli distribution does not accept missing values; three outcomes per category are the same model."""
    import torch
    from pomegranate.distributions import Categorical
    from pomegranate.gmm import GeneralMixtureModel

    torch.set_num_threads(1)
    k = answers.shape[1] // 2
    clicked, departed = answers[:, :k], answers[:, k:]
    outcome = np.where(clicked == 1, 0, np.where(departed == 1, 2, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = torch.masked.MaskedTensor(torch.tensor(outcome), torch.tensor(~np.isnan(clicked)))
        shares = torch.tensor(weights)
        best, started = -np.inf, time.process_time()
        for seed in range(N_INIT):
            torch.manual_seed(seed)
            drawn = torch.rand(3, k, 3, dtype=torch.float64) + 0.2
            parts = [Categorical(probs=probs) for probs in drawn / drawn.sum(dim=2, keepdim=True)]
            model = GeneralMixtureModel(parts, max_iter=10_000, tol=1e-3)
            model.fit(data, sample_weight=shares)
            best = max(best, float((model.log_probability(data) * shares).sum()))
        return time.process_time() - started, best


def recovery():
    """Recovery of instances from logs of 100,000 users, some of whom are active when the log ends."""
    inside = intervals = correct = logs = 0
    biased, errors, losses = [], [], []
    for types in (2, 3):
        for categories in (3, 5):
            for seed in range(LOGS):
                instance = random_instance(types, categories, seed)
                log = dp.sample_log(instance, LOG_USERS, seed=seed, days=30)
                fit = dp.fit(log.histories, types=range(1, types + 2))
                logs += 1
                correct += fit.instance.n_types == types
                if fit.instance.n_types != types:
                    fit = dp.fit(log.histories, types=types)
                covering, identified = covered(instance, fit)
                inside, intervals = inside + covering, intervals + identified
                wrong = dp.fit(all_departed(log), types=types)
                true = truth(instance, fit)
                errors.append(float(np.abs(fit.instance.depart - true.depart).mean()))
                biased.append(float(np.abs(wrong.instance.depart - truth(instance, wrong).depart).mean()))
                losses.append(loss(instance, fit.instance))
    share = 100 * inside / intervals
    return [
        Row("95% intervals that contain the truth", share, "%", 92, note=f"{inside} of {intervals} in {logs} logs"),
        Row("the same, upper limit", share, "%", 98, at_least=False),
        Row("number of types selected correctly", 100 * correct / logs, "%", 90, note=f"{correct} of {logs}"),
        Row("loss of the policy planned on the fit, median", 100 * median(losses), "%", 1, at_least=False),
        Row(
            "mean absolute error of depart",
            float(np.mean(errors)),
            "",
            0.05,
            at_least=False,
            note=f"{np.mean(biased):.3f} if censored users were counted as departed",
        ),
    ]


def random_instance(types, categories, seed):
    rng = np.random.default_rng([types, categories, seed])
    shape = (categories, types)
    return dp.Instance(rng.dirichlet(np.full(types, 5.0)), rng.uniform(0.1, 0.9, shape), rng.uniform(0.2, 0.8, shape))


def truth(instance, fit):
    own = Parameters(instance.prior, instance.click, instance.depart, instance.depart_on_click)
    return match_types(own, fit.instance)


def covered(instance, fit):
    (low, high), true = fit.intervals(), truth(instance, fit)
    inside = identified = 0
    for name in ("prior", "click", "depart"):
        ends = getattr(low, name), getattr(true, name), getattr(high, name)
        known = np.asarray(getattr(fit.identified, name), bool)
        inside += int(((ends[0] <= ends[1]) & (ends[1] <= ends[2]))[known].sum())
        identified += int(known.sum())
    return inside, identified


def all_departed(log):
    """The histories as if every user had departed after the last step."""
    last = np.zeros(len(log.user), bool)
    last[len(log.user) - 1 - np.unique(log.user[::-1], return_index=True)[1]] = True
    outcome = np.where(last & (log.outcome < 2), np.where(log.outcome == 0, 3, 2), log.outcome)
    users, row = np.unique(log.user, return_inverse=True)
    counts = np.zeros((len(users), log.instance.n_categories, 4), np.int64)
    np.add.at(counts, (row, log.category, outcome), 1)
    return dp.Histories(counts).distinct


def loss(instance, fitted):
    best = dp.plan(instance, 1e-3)
    played = dp.plan(fitted, 1e-3).policy
    return max(1 - dp.evaluate(instance, played, 1e-3).value / best.value, 0.0)
