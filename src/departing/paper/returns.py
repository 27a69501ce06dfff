"""Claims on the distributions of steps and clicks: geometric and sub-exponential (sections 3, 4 and 5.3)."""

from collections.abc import Iterator
from math import e, exp, log

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.learning.ucb import proved_tau
from departing.model.families import random_instance
from departing.model.instance import Floats, Instance
from departing.paper.exact import random_instances
from departing.paper.item import Finding, Scale, check
from departing.planning.plan import plan
from departing.policy.schedule import Fixed, Threshold

POWERS = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0)  # of the moments
SUMMABLE = 1e-3  # departure probability per step below which a distribution is too long to sum
ROUNDING = 1e-9  # allowance for sums in floating point


def _grid(scale: Scale, smallest: float = 0.0) -> Iterator[tuple[float, float, float]]:
    """Click and departure probabilities over their whole range, and Λ(1 − P) where it is at least `smallest`."""
    n = scale.of(40, 14)
    edges = np.concatenate([[1e-4, 1e-3, 0.01], np.linspace(0.03, 0.97, n), [0.99, 0.999]])
    for click in edges.tolist():
        for depart in [*edges.tolist(), 1.0]:
            leave = depart * (1 - click)
            if leave >= smallest:
                yield click, depart, leave


def _geometric_moment(leave: float, power: float) -> float:
    """E[X^power]^(1/power) of a geometric variable on 1, 2, …, summed until the remainder is negligible."""
    n = int(min(60 / -np.log1p(-leave) if leave < 1 else 1, 3e6)) + 40
    x = np.arange(1, n + 1)
    return _norm((x - 1) * np.log1p(-leave) + log(leave) + power * np.log(x), power)


def _norm(logs: Floats, power: float) -> float:
    """(Σ exp(logs))^(1/power) without overflow."""
    return exp((logs.max() + log(np.exp(logs - logs.max()).sum())) / power)


@check("geometric")
def check_geometric(scale: Scale) -> Finding:
    """Exact distribution of steps on random instances."""
    worst = 0.0
    for instance in random_instances("uniform", scale.of(200, 30), types=1, categories=1):
        leave = float(instance.departure_probabilities[0, 0])
        steps = evaluate(instance, Fixed(0), 1e-12).distribution.steps
        geometric = np.append(0.0, leave * (1 - leave) ** np.arange(len(steps) - 1))
        worst = max(worst, float(np.abs(steps - geometric).max()))
    return Finding.of(
        worst < 1e-10,
        f"The largest difference of a probability is {worst:.1e}. The parameter Λ(1 − P) may exceed 1 − ε, unlike "
        "the paper states: with P = 0.1, Λ = 1 and ε = 0.5 it is 0.9. No other result depends on this.",
    )


@check("best-category")
def check_best_category(scale: Scale) -> Finding:
    """The general planner on random instances."""
    n, wrong = scale.of(1000, 100), 0
    for seed in range(n):
        instance = random_instance("uniform", types=1, categories=2 + seed % 5, seed=seed)
        ratio = instance.click[:, 0] / (instance.depart[:, 0] * (1 - instance.click[:, 0]))
        planned = plan(instance, 1e-7, method="search")
        wrong += not planned.lower - 1e-9 <= ratio.max() <= planned.upper + 1e-9
    return Finding.of(
        wrong == 0,
        f"max P/(Λ(1 − P)) lies within the bounds of the general planner, which does not use it, on {n - wrong} of "
        f"{n} random instances with 2 to 6 categories.",
    )


@check("recurrence")
def check_recurrence(scale: Scale) -> Finding:
    """dp.evaluate on random instances."""
    worst = 0.0
    for instance in random_instances("uniform", scale.of(500, 100), types=1, categories=2):
        leave, later = float(instance.departure_probabilities[0, 0]), evaluate(instance, Fixed(1)).value
        now = evaluate(instance, Threshold(first=0, steps=1, then=1)).value
        worst = max(worst, abs(now - later * (1 - leave) - float(instance.click[0, 0])))
    return Finding.of(worst < 1e-9, f"The largest difference is {worst:.1e}.")


@check("geometric-moments")
def check_geometric_moments(scale: Scale) -> Finding:
    """Summed moments, r from 0.01 to 0.99 and p from 1 to 20."""
    worst = {}
    for r in np.linspace(0.01, 0.99, scale.of(197, 50)).tolist():
        constant = -2 / np.log1p(-r)
        worst[r] = max((_geometric_moment(r, p) / (constant * p), p) for p in POWERS)
    failing = [r for r, (ratio, _) in worst.items() if ratio > 1 + ROUNDING]
    rows = [["r", "E[X]", "−2 / ln(1 − r)"]]
    rows += [[f"{r:g}", f"{1 / r:.4f}", f"{-2 / np.log1p(-r):.4f}"] for r in (0.5, 0.75, 0.8, 0.9, 0.99)]
    holding, first = max(r for r in worst if r not in failing), min(failing, default=1.0)
    return Finding.of(
        not failing,
        f"The bound holds for r up to {holding:.2f} and fails from r = {first:.2f} on, even for the mean: a "
        "geometric variable is at least 1, while the bound tends to 0. For powers p below 1, which the lemma "
        "includes, it fails for every r as p tends to 0. The results that use the lemma hold nevertheless (below), "
        "because their constants are larger.",
        rows,
    )


@check("length-moments")
def check_length_moments(scale: Scale) -> Finding:
    """Mean and tails in closed form, over a grid of probabilities."""
    leaves = [leave for *_, leave in _grid(scale)]
    failing = [leave for leave in leaves if 1 / leave > -2 / np.log1p(-leave) * (1 + ROUNDING)]
    tails = True
    for leave in leaves:
        # P[N > v] = (1 − r)^floor(v) ≤ exp(1 − v / C) with C = max(1, −1 / ln(1 − r))
        constant = max(1.0, -1 / np.log1p(-leave))
        v = np.linspace(0, 50 * constant, 500)
        tails &= bool(np.all(np.floor(v) * np.log1p(-leave) <= 1 - v / constant + 1e-9))
    return Finding.of(
        not failing and tails,
        f"The constant −2 / ln(1 − Λ(1 − P)) fails for Λ(1 − P) above 0.797, on {len(failing)} of {len(leaves)} "
        "pairs, like the lemma before. The bound on the tails holds everywhere with some constant.",
    )


@check("mean-return")
def check_mean(scale: Scale) -> Finding:
    """Closed form over a grid of probabilities."""
    pairs = list(_grid(scale))
    worst = max(click / leave * np.log1p(-leave) / -2 for click, _, leave in pairs)
    return Finding.of(worst < 1, f"At most {worst:.3f} of the bound over {len(pairs):,} pairs of probabilities.")


def _click_distribution(click: float, depart: float) -> Floats:
    """Distribution of the clicks of one type under one category: geometric on 0, 1, …"""
    stop = depart * (1 - click) / (depart * (1 - click) + click)
    n = int(min(50 / -np.log1p(-stop), 2e5)) + 2
    return np.asarray(stop * (1 - stop) ** np.arange(n))


@check("return-moments")
def check_return_moments(scale: Scale) -> Finding:
    """Central moments, powers 1 to 20, over a grid of probabilities."""
    worst, n = 0.0, 0
    for click, depart, leave in _grid(scale, SUMMABLE):
        n += 1
        law = _click_distribution(click, depart)
        apart = np.abs(np.arange(len(law)) - click / leave)
        for p in POWERS:
            logs = np.log(np.maximum(law, 1e-300)) + p * np.log(np.maximum(apart, 1e-300))
            worst = max(worst, _norm(logs, p) / (-4 / np.log1p(-leave) * p))
    return Finding.of(
        worst <= 1 + ROUNDING, f"At most {worst:.3f} of the bound over {n:,} pairs and {len(POWERS)} powers."
    )


@check("return-scale")
def check_return_scale(scale: Scale) -> Finding:
    """Moment condition in closed form, over a grid of probabilities and γ."""
    worst, n = -np.inf, 0
    for click, _, leave in _grid(scale):
        tau = -8 * e / np.log1p(-leave)
        stop = leave / (leave + click)
        gamma = np.linspace(-1, 1, 81) / tau * 0.999
        gamma = gamma[gamma != 0]
        inside = 1 - (1 - stop) * np.exp(gamma)
        logs = np.log(stop) - np.log(inside) - gamma * click / leave
        worst, n = max(worst, float((logs / (gamma**2 * tau**2 / 2)).max())), n + 1
    return Finding.of(
        worst <= 1,
        f"The exponent is at most {worst:.4f} of the bound over {n:,} pairs; the constant is not tight.",
    )


@check("bernstein")
def check_bernstein(scale: Scale) -> Finding:
    """Exact tails of the returns of fixed categories, with the constants of the lemma on one type."""
    worst = 0.0
    for click, depart, leave in _grid(scale, SUMMABLE):
        law, tau = _click_distribution(click, depart), -8 * e / np.log1p(-leave)
        apart = np.abs(np.arange(len(law)) - click / leave)
        for v in np.linspace(0, 3 * tau, 40)[1:]:
            bound = 2 * exp(-(v**2) / (2 * tau**2)) if v <= tau else 2 * exp(-v / (2 * tau))
            worst = max(worst, float(law[apart >= v].sum()) / bound)
    return Finding.of(worst <= 1, f"Tails are at most {worst:.3f} of the bound.")


@check("threshold-scale")
def check_threshold_scale(scale: Scale) -> Finding:
    """Moment condition with exact distributions, on random instances with probabilities down to 10⁻⁴."""
    worst, n = -np.inf, scale.of(1000, 150)
    rng = np.random.default_rng(5)
    for _ in range(n):
        click = (
            rng.uniform(0.001, 0.97, (2, 2)) if rng.random() < 0.5 else rng.beta(0.4, 0.4, (2, 2)).clip(1e-4, 0.97)
        )
        instance = Instance(rng.dirichlet([0.5, 0.5]), click)
        tau = proved_tau(1 - float(click.max()))
        policy = Threshold(first=int(rng.integers(2)), steps=int(rng.integers(0, 20)), then=int(rng.integers(2)))
        law = evaluate(instance, policy, 1e-13).distribution.returns
        clicks = np.arange(len(law))
        mean = float(law @ clicks)
        for gamma in np.linspace(-1, 1, 21) / tau * 0.999:
            if gamma:
                logs = log(float(law @ np.exp(gamma * (clicks - mean))))
                worst = max(worst, logs / (gamma**2 * tau**2 / 2))
    return Finding.of(
        worst <= 1 + 1e-6,
        f"The exponent is at most {worst:.4f} of the bound over {n:,} random instances and policies.",
    )
