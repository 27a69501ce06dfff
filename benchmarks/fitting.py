"""Fitting: how fast beside general latent-class packages, and how well a hundred known instances are found again."""

import sys
import time
import warnings
from statistics import median

import numpy as np

import departing as dp
from benchmarks.common import Row, cpu_seconds
from departing.fitting.likelihood import Parameters
from departing.fitting.type_matching import match_types

USERS = 10**6
LOGS, LOG_USERS = 25, 10**5  # for each of four sizes
STARTS = 12


def rows():
    return [*speed(), *recovery()]


def once_each(instance, users, seed):
    """Histories of users who are shown every category once at most, in any order, until they depart."""
    rng = np.random.default_rng(seed)
    k = instance.n_categories
    types = rng.choice(instance.n_types, users, p=instance.prior)
    order = rng.permuted(np.tile(np.arange(k), (users, 1)), axis=1)
    counts, here = np.zeros((users, k, 4), np.int64), np.arange(users)
    for step in range(k):
        category = order[here, step]
        ends = instance.outcome_probabilities[category, :, types[here]].cumsum(axis=1)
        outcome = (rng.random(len(here))[:, None] >= ends[:, :3]).sum(axis=1)
        counts[here, category, outcome] = 1
        here = here[outcome < 2]
    return dp.Histories(counts).distinct


def items(histories):
    """The same as items of a questionnaire: clicked?, departed?, each not a number where it was not asked."""
    click, stay, depart, _ = (histories.counts[..., o] > 0 for o in range(4))
    clicked = np.where(click, 1.0, np.where(stay | depart, 0.0, np.nan))
    departed = np.where(depart, 1.0, np.where(stay, 0.0, np.nan))
    return np.concatenate([clicked, departed], axis=1), histories.multiplicity.astype(float)


def speed():
    """A click and a departure of five categories are ten yes-or-no items, which general packages can fit."""
    rng = np.random.default_rng(1)
    instance = dp.Instance([0.5, 0.3, 0.2], rng.uniform(0.1, 0.9, (5, 3)), rng.uniform(0.2, 0.8, (5, 3)))
    histories = once_each(instance, USERS, 1)
    answers, weights = items(histories)
    fit = dp.fit(histories, types=3, n_init=STARTS, pseudocount=1e-6)
    (ours,) = cpu_seconds(lambda: dp.fit(histories, types=3, n_init=STARTS, pseudocount=1e-6), repeats=5)
    found = []
    for name, peer in (("stepmix", _stepmix), ("pomegranate", _pomegranate)):
        try:
            seconds, value = peer(answers, weights)
        except ImportError:
            print(f"{name} is not installed; pip install {name} to compare with it.", file=sys.stderr)
            continue
        note = f"{len(histories):,} rows of {USERS:,} users; {ours:.3f} s against {seconds:.1f} s"
        above = fit.log_likelihood - value
        arrived = above < 10  # how fast a package stops elsewhere is no measure of anything
        note += "" if arrived else f", where it stops {above:,.0f} nats lower"
        found.append(Row(f"faster than {name}, M = 3, K = 5", seconds / ours, "×", 50 if arrived else 0, note=note))
        found.append(Row(f"log-likelihood above {name}", above, "nats", -0.01))
    return found


def _stepmix(answers, weights):
    from stepmix.stepmix import StepMix

    model = StepMix(
        3, measurement="bernoulli_nan", n_init=STARTS, max_iter=10_000, abs_tol=1e-9, random_state=1, progress_bar=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = time.process_time()
        model.fit(answers, sample_weight=weights)
        seconds = time.process_time() - started
        return seconds, float(model.score(answers, sample_weight=weights) * weights.sum())


def _pomegranate(answers, weights):
    """Its yes-or-no distribution does not take missing answers; three outcomes of a category are the same model."""
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
        for seed in range(STARTS):
            torch.manual_seed(seed)
            drawn = torch.rand(3, k, 3, dtype=torch.float64) + 0.2
            parts = [Categorical(probs=chances) for chances in drawn / drawn.sum(dim=2, keepdim=True)]
            model = GeneralMixtureModel(parts, max_iter=10_000, tol=1e-3)
            model.fit(data, sample_weight=shares)
            best = max(best, float((model.log_probability(data) * shares).sum()))
        return time.process_time() - started, best


def recovery():
    """Instances found again from logs of a hundred thousand users, some of whom are still here when the log ends."""
    inside = asked = right = logs = 0
    biases, ours, losses = [], [], []
    for types in (2, 3):
        for categories in (3, 5):
            for seed in range(LOGS):
                instance = drawn(types, categories, seed)
                visits = dp.sample_log(instance, LOG_USERS, seed=seed, days=30)
                fit = dp.fit(visits.histories, types=range(1, types + 2))
                logs += 1
                right += fit.instance.n_types == types
                if fit.instance.n_types != types:
                    fit = dp.fit(visits.histories, types=types)
                held, known = covered(instance, fit)
                inside, asked = inside + held, asked + known
                wrong = dp.fit(all_departed(visits), types=types)
                true = truth(instance, fit)
                ours.append(float(np.abs(fit.instance.depart - true.depart).mean()))
                biases.append(float(np.abs(wrong.instance.depart - truth(instance, wrong).depart).mean()))
                losses.append(loss(instance, fit.instance))
    share = 100 * inside / asked
    return [
        Row("95 % intervals that hold the truth", share, "%", 92, note=f"{inside} of {asked} in {logs} logs"),
        Row("the same, not too often", share, "%", 98, at_least=False),
        Row("number of types found", 100 * right / logs, "%", 90, note=f"{right} of {logs}"),
        Row("policy planned on the fit loses, median", 100 * median(losses), "%", 1, at_least=False),
        Row(
            "error of depart, mean",
            float(np.mean(ours)),
            "",
            0.05,
            at_least=False,
            note=f"{np.mean(biases):.3f} if censored users were taken for departed",
        ),
    ]


def drawn(types, categories, seed):
    rng = np.random.default_rng([types, categories, seed])
    shape = (categories, types)
    return dp.Instance(rng.dirichlet(np.full(types, 5.0)), rng.uniform(0.1, 0.9, shape), rng.uniform(0.2, 0.8, shape))


def truth(instance, fit):
    own = Parameters(instance.prior, instance.click, instance.depart, instance.depart_on_click)
    return match_types(own, fit.instance)


def covered(instance, fit):
    (low, high), true = fit.intervals(), truth(instance, fit)
    inside = asked = 0
    for name in ("prior", "click", "depart"):
        ends = getattr(low, name), getattr(true, name), getattr(high, name)
        known = np.asarray(getattr(fit.identified, name), bool)
        inside += int(((ends[0] <= ends[1]) & (ends[1] <= ends[2]))[known].sum())
        asked += int(known.sum())
    return inside, asked


def all_departed(visits):
    """The histories if everybody had departed after the last step."""
    last = np.zeros(len(visits.user), bool)
    last[len(visits.user) - 1 - np.unique(visits.user[::-1], return_index=True)[1]] = True
    outcome = np.where(last & (visits.outcome < 2), np.where(visits.outcome == 0, 3, 2), visits.outcome)
    users, row = np.unique(visits.user, return_inverse=True)
    counts = np.zeros((len(users), visits.instance.n_categories, 4), np.int64)
    np.add.at(counts, (row, visits.category, outcome), 1)
    return dp.Histories(counts).distinct


def loss(instance, found):
    best = dp.plan(instance, 1e-3)
    played = dp.plan(found, 1e-3).policy
    return max(1 - dp.evaluate(instance, played, 1e-3).value / best.value, 0.0)
