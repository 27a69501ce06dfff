"""Claims on how long users stay and how much they click: geometric and sub-exponential (sections 3, 4 and 5.3)."""

from collections.abc import Iterator
from math import e, exp, log

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.learning.ucb import proved_tau
from departing.model.families import random_instance
from departing.model.instance import Floats, Instance
from departing.paper.claim import Claim, Finding, Scale
from departing.planning.plan import plan
from departing.policy.schedule import Fixed, Threshold

POWERS = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0)
ROUNDING = 1e-9


def chances(scale: Scale) -> Iterator[tuple[float, float]]:
    """Chances of a click and of departing, over all of their range."""
    n = scale.of(40, 14)
    edges = np.concatenate([[1e-4, 1e-3, 0.01], np.linspace(0.03, 0.97, n), [0.99, 0.999]])
    for click in edges.tolist():
        for depart in [*edges.tolist(), 1.0]:
            yield click, depart


def geometric_moment(leave: float, power: float) -> float:
    """E[X^power]^(1/power) of a geometric number from 1 on, summed to the end."""
    n = int(min(60 / -np.log1p(-leave) if leave < 1 else 1, 3e6)) + 40
    x = np.arange(1, n + 1)
    logs = (x - 1) * np.log1p(-leave) + log(leave) + power * np.log(x)
    return exp((logs.max() + log(np.exp(logs - logs.max()).sum())) / power)


def check_geometric(scale: Scale) -> Finding:
    """The distribution of steps under a fixed category against the geometric one."""
    worst = 0.0
    for seed in range(scale.of(200, 30)):
        instance = random_instance("uniform", types=1, categories=1, seed=seed)
        leave = float(instance.departure_probabilities[0, 0])
        steps = evaluate(instance, Fixed(0), 1e-12).distribution.steps
        geometric = np.append(0.0, leave * (1 - leave) ** np.arange(len(steps) - 1))
        worst = max(worst, float(np.abs(steps - geometric).max()))
    return Finding.of(
        worst < 1e-10,
        f"The largest difference of a chance is {worst:.1e}. The parameter Λ(1 − P) need not be at most 1 − ε, as "
        "the paper adds: with P = 0.1, Λ = 1 and ε = 0.5 it is 0.9. Nothing else rests on that.",
    )


def check_best_category(scale: Scale) -> Finding:
    """Plans for one type against the largest ratio."""
    n, wrong = scale.of(1000, 100), 0
    for seed in range(n):
        instance = random_instance("uniform", types=1, categories=2 + seed % 5, seed=seed)
        ratio = instance.click[:, 0] / (instance.depart[:, 0] * (1 - instance.click[:, 0]))
        made = plan(instance, 1e-7, method="search")
        wrong += not made.lower - 1e-9 <= ratio.max() <= made.upper + 1e-9
    return Finding.of(
        wrong == 0,
        f"max P/(Λ(1 − P)) lies in the bracket of the general planner, which knows nothing of it, for {n - wrong} of "
        f"{n} random instances with 2 to 6 categories.",
    )


def check_recurrence(scale: Scale) -> Finding:
    """E[V_j] = E[V_{j+1}](1 − Λ(1 − P)) + P, for a category that is shown once and another for ever."""
    worst = 0.0
    for seed in range(scale.of(500, 100)):
        instance = random_instance("uniform", types=1, categories=2, seed=seed)
        leave, later = float(instance.departure_probabilities[0, 0]), evaluate(instance, Fixed(1)).value
        now = evaluate(instance, Threshold(first=0, steps=1, then=1)).value
        worst = max(worst, abs(now - later * (1 - leave) - float(instance.click[0, 0])))
    return Finding.of(worst < 1e-9, f"The largest difference is {worst:.1e}.")


def check_geometric_moments(scale: Scale) -> Finding:
    """Moments of geometric numbers against −2p / ln(1 − r)."""
    worst = {}
    for r in np.linspace(0.01, 0.99, scale.of(197, 50)).tolist():
        constant = -2 / np.log1p(-r)
        worst[r] = max((geometric_moment(r, p) / (constant * p), p) for p in POWERS)
    failing = [r for r, (ratio, _) in worst.items() if ratio > 1 + ROUNDING]
    rows = [["r", "E[X]", "−2 / ln(1 − r)"]]
    rows += [[f"{r:g}", f"{1 / r:.4f}", f"{-2 / np.log1p(-r):.4f}"] for r in (0.5, 0.75, 0.8, 0.9, 0.99)]
    holding, first = max(r for r in worst if r not in failing), min(failing, default=1.0)
    return Finding.of(
        not failing,
        f"It holds for r up to {holding:.2f} and fails from r = {first:.2f} on, already for the mean: a geometric "
        "number is at least 1, while the bound goes to 0. For powers p below 1, which the lemma includes, it "
        "fails for every r as p goes to 0. What is built on it holds all the same (below): its constants are larger.",
        rows,
    )


def check_length_moments(scale: Scale) -> Finding:
    """The same for the number of steps under a fixed category; and its tails."""
    pairs = list(chances(scale))
    failing = [(p, q) for p, q in pairs if 1 / (q * (1 - p)) > -2 / np.log1p(-q * (1 - p)) * (1 + ROUNDING)]
    tails = True
    for click, depart in pairs:
        leave = depart * (1 - click)
        # P[N > v] = (1 − r)^floor(v) ≤ exp(1 − v / C) with C = max(1, −1 / ln(1 − r))
        constant = max(1.0, -1 / np.log1p(-leave))
        v = np.linspace(0, 50 * constant, 500)
        tails &= bool(np.all(np.floor(v) * np.log1p(-leave) <= 1 - v / constant + 1e-9))
    return Finding.of(
        not failing and tails,
        f"The constant −2 / ln(1 − Λ(1 − P)) fails for Λ(1 − P) above 0.797, {len(failing)} of {len(pairs)} pairs "
        "here, as the lemma before. The bound on the tails, with some constant, holds everywhere.",
    )


def check_mean(scale: Scale) -> Finding:
    """The mean return against −2 / ln(1 − Λ(1 − P))."""
    pairs = list(chances(scale))
    most = max(p / (q * (1 - p)) * np.log1p(-q * (1 - p)) / -2 for p, q in pairs)
    return Finding.of(most < 1, f"At most {most:.3f} of the bound over {len(pairs):,} pairs of chances.")


def clicks_of(click: float, depart: float) -> Floats:
    """The distribution of clicks of one type under one category: geometric from 0 on."""
    stop = depart * (1 - click) / (depart * (1 - click) + click)
    n = int(min(50 / -np.log1p(-stop), 2e5)) + 2
    return np.asarray(stop * (1 - stop) ** np.arange(n))


def check_return_moments(scale: Scale) -> Finding:
    """Central moments of returns against −4p / ln(1 − Λ(1 − P))."""
    worst, n = 0.0, 0
    for click, depart in chances(scale):
        leave = depart * (1 - click)
        if leave < 1e-3:  # the distribution is too long to be summed
            continue
        n += 1
        law = clicks_of(click, depart)
        apart = np.abs(np.arange(len(law)) - click / leave)
        for p in POWERS:
            logs = np.log(np.maximum(law, 1e-300)) + p * np.log(np.maximum(apart, 1e-300))
            norm = exp((logs.max() + log(np.exp(logs - logs.max()).sum())) / p)
            worst = max(worst, norm / (-4 / np.log1p(-leave) * p))
    return Finding.of(
        worst <= 1 + ROUNDING, f"At most {worst:.3f} of the bound over {n:,} pairs and {len(POWERS)} powers."
    )


def check_return_scale(scale: Scale) -> Finding:
    """The moment condition E exp(γ(V − E V)) ≤ exp(γ²τ²/2) for |γ| < 1/b, with the closed form of the left side."""
    worst, n = -np.inf, 0
    for click, depart in chances(scale):
        leave = depart * (1 - click)
        tau = -8 * e / np.log1p(-leave)
        stop = leave / (leave + click)
        gamma = np.linspace(-1, 1, 81) / tau * 0.999
        gamma = gamma[gamma != 0]
        inside = 1 - (1 - stop) * np.exp(gamma)
        logs = np.log(stop) - np.log(inside) - gamma * click / leave
        worst, n = max(worst, float((logs / (gamma**2 * tau**2 / 2)).max())), n + 1
    return Finding.of(
        worst <= 1, f"The exponent is at most {worst:.4f} of the bound over {n:,} pairs: the constant is generous."
    )


def check_bernstein(scale: Scale) -> Finding:
    """The two-sided tail of returns against Bernstein's inequality with the constants of the lemma."""
    worst = 0.0
    for click, depart in chances(scale):
        leave = depart * (1 - click)
        if leave < 1e-3:
            continue
        law, tau = clicks_of(click, depart), -8 * e / np.log1p(-leave)
        apart = np.abs(np.arange(len(law)) - click / leave)
        for v in np.linspace(0, 3 * tau, 40)[1:]:
            bound = 2 * exp(-(v**2) / (2 * tau**2)) if v <= tau else 2 * exp(-v / (2 * tau))
            worst = max(worst, float(law[apart >= v].sum()) / bound)
    return Finding.of(worst <= 1, f"Tails are at most {worst:.3f} of the bound.")


def check_threshold_scale(scale: Scale) -> Finding:
    """The moment condition for threshold policies, with the exact distribution of their returns."""
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


CLAIMS = (
    Claim(
        "bernstein",
        "Appendix C, Bernstein's inequality",
        "A sub-exponential number is far from its mean with a chance of at most 2 exp(−v²/2τ²), or 2 exp(−v/2b).",
        "Exact tails of the return of fixed categories, with the constants of the lemma on one type.",
        check_bernstein,
    ),
    Claim(
        "best-category",
        "Section 4, lemma on one type",
        "With one type the fixed category with the largest P/(Λ(1 − P)) is optimal.",
        "The general planner on random instances.",
        check_best_category,
    ),
    Claim(
        "recurrence",
        "Appendix D, observation",
        "E[Vⱼ] = E[Vⱼ₊₁](1 − Λ(1 − P)) + P.",
        "dp.evaluate on random instances.",
        check_recurrence,
    ),
    Claim(
        "geometric",
        "Section 4, observation",
        "Under a fixed category the number of steps is geometric with parameter Λ(1 − P).",
        "The exact distribution of steps on random instances.",
        check_geometric,
    ),
    Claim(
        "geometric-moments",
        "Appendix D, lemma from the literature",
        "A geometric number with parameter r has E[Xᵖ]^(1/p) ≤ −2p / ln(1 − r) for all p ≥ 0.",
        "Moments summed to the end, r from 0.01 to 0.99 and p from 1 to 20.",
        check_geometric_moments,
    ),
    Claim(
        "length-moments",
        "Appendix D, corollary",
        "The number of steps is sub-exponential with the constant −2 / ln(1 − Λ(1 − P)), and has exponential tails.",
        "The mean in closed form over all chances; tails in closed form.",
        check_length_moments,
    ),
    Claim(
        "mean-return",
        "Appendix D, proposition",
        "|E[Vᵃ]| ≤ −2 / ln(1 − Λ(1 − P)).",
        "The closed form over all chances.",
        check_mean,
    ),
    Claim(
        "return-moments",
        "Appendix D, lemma on returns",
        "Returns less their mean are sub-exponential with the constant −4 / ln(1 − Λ(1 − P)).",
        "Central moments, powers 1 to 20, over all chances.",
        check_return_moments,
    ),
    Claim(
        "return-scale",
        "Section 4, lemma on τ and b",
        "Returns of fixed categories are sub-exponential with τ = b = −8e / ln(1 − Λ(1 − P)).",
        "The moment condition in closed form, over all chances and γ.",
        check_return_scale,
    ),
    Claim(
        "threshold-scale",
        "Section 5.3, lemma on threshold policies",
        "Returns of threshold policies are sub-exponential with τ ≤ 8e / ln(1 / (1 − ε)) and b²/τ² ≤ 1.",
        "The moment condition with exact distributions, random instances with chances down to 10⁻⁴.",
        check_threshold_scale,
    ),
)
