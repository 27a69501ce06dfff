"""Items on the distributions of steps and returns (sections 3, 4 and 5.3, appendix C)."""

from collections.abc import Iterator
from fractions import Fraction
from math import e, lgamma, log, log1p

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.model.counts import clicks, steps
from departing.model.families import random_instance
from departing.model.instance import Floats, Instance
from departing.paper import formulas
from departing.paper.distributions import (
    E_UPPER,
    LN2_LOWER,
    POWERS,
    ROUNDING,
    SUMMABLE,
    click_distribution,
    grid,
    moment,
    psi_norm,
    return_moments,
)
from departing.paper.exact import BLOG, random_instances, walk_value
from departing.paper.item import Finding, Scale, check
from departing.planning.plan import plan
from departing.policy.schedule import Fixed, Threshold, Walk
from departing.simulation.simulate import simulate


@check("departure-range")
def check_departure_range(_: Scale) -> Finding:
    """Exact fractions: with Λ = 1, as in the paper's example, values by the formula for one type and by the walk."""
    sure, probabilities = Fraction(1), [Fraction(i, 100) for i in range(1, 100)]
    equal = sum(formulas.fixed_value(p, sure) == walk_value([sure], [[p]], [], 0) for p in probabilities)
    return Finding.repaired(
        0 < sure < 1,
        equal == len(probabilities),
        f"The example and section 5 set Λ = 1, which the printed range excludes. With Λ = 1 the formula of section 4 "
        f"and the theorem of section 5.1 agree for {equal} of {len(probabilities)} click probabilities.",
    )


@check("not-sub-gaussian")
def check_not_sub_gaussian(_: Scale) -> Finding:
    """Exact tails Pr[V ≥ v] = Pᵛ of a fixed category with P = 1/2 and sure departure, against sub-Gaussian tails."""
    rows, missing = [["σ", "v", "Pr[V ≥ v]", "sub-Gaussian bound"]], 0
    for sigma in (1, 10, 100):
        # v ln 2 < (v − 1)² / 2σ² holds from 2 σ² ln 2 + 2 on.
        v = next(
            (v for v in range(1, 2 * sigma**2 + 5) if -v * log(2) > formulas.log_sub_gaussian_tail(v - 1, sigma)), 0
        )
        missing += v == 0
        exponents = [x / log(10) for x in (-v * log(2), formulas.log_sub_gaussian_tail(v - 1, sigma))]
        rows.append([str(sigma), str(v), *(f"10^{x:.1f}" for x in exponents)])
    return Finding.of(
        missing == 0,
        "With P = 1/2 and sure departure the mean return is 1 and Pr[V ≥ v] = 2⁻ᵛ, which exceeds the tail of every "
        "sub-Gaussian variable of the same mean for large v: E[exp(γV)] is infinite from γ = ln 2 on.",
        rows,
    )


def _laws(scale: Scale) -> Iterator[tuple[Floats, float]]:
    """Distributions of returns of fixed categories and threshold policies, with τ = b for each."""
    for click, depart, leave in grid(scale, 0.01):
        yield click_distribution(click, depart), formulas.sharp_scale(leave)
    for instance, law in _random_thresholds(scale.of(100, 15)):
        yield law, formulas.sharp_scale(1 - float(instance.click.max()))


@check("tails-moments")
def check_tails_and_moments(scale: Scale) -> Finding:
    """The constants of the proof on the page of the paper, on exact distributions of returns and powers up to 200."""
    powers = (*POWERS, 50.0, 100.0, 200.0)
    worst, n = dict.fromkeys(("moments → tails", "tails → moments", "moments → function", "function → tails"), 0.0), 0
    for law, scale_of_law in _laws(scale):
        values, n = np.arange(float(len(law))), n + 1
        after = 1 - np.minimum(law.cumsum(), 1.0)  # Pr[V > v] at v = 0, 1, …; v just below the next integer is worst
        c2 = psi_norm(law, values)
        reached = after > 1e-12  # below, rounding of the sum dominates
        tails = after[reached] / formulas.tail_property(values[reached] + 1.0, e * c2)
        # The smallest C₁ of the tail property
        c1 = max(((values[reached] + 1) / (1 - np.log(after[reached]))).max(initial=0.0), 1e-12)
        moments = [moment(law, values, p) / formulas.moment_property(p, e * c1) for p in powers]
        tau = 4 * e * c2
        gamma = np.linspace(-1, 1, 20) / tau
        generating = _log_generating_of(law, gamma) / formulas.moment_generating_bound(gamma, tau)
        apart = np.abs(values - float(law @ values))
        distances = np.unique(apart[reached])
        beyond = np.array([law[apart >= v].sum() for v in distances])
        centred = beyond / formulas.tail_property(distances, (log(2) + 0.5) * scale_of_law)
        ratios = (tails.max(initial=0.0), max(moments), generating.max(), centred.max(initial=0.0))
        worst = {name: max(worst[name], float(ratio)) for name, ratio in zip(worst, ratios, strict=True)}
    parts = ", ".join(f"{name} {ratio:.2f}" for name, ratio in worst.items())
    return Finding.of(
        max(worst.values()) <= 1 + ROUNDING,
        "Each property implies the others with C₁ = e C₂, C₂ = e C₁, τ = b = 4e C₂ and, for the centred variable, "
        f"C₁ = (ln 2 + 1/2) max(τ, b). Largest shares of the bounds on {n} distributions: {parts}.",
    )


@check("best-category-extremes")
def check_best_category_extremes(scale: Scale) -> Finding:
    """An example in exact fractions, and random instances."""
    categories = [
        (Fraction(9, 10), Fraction(1)),
        (Fraction(1, 2), Fraction(1, 20)),
        (Fraction(3, 5), Fraction(3, 50)),
    ]
    exact = [return_moments(p, depart, 1)[1] for p, depart in categories]
    best = max(range(3), key=lambda a: formulas.fixed_value(*categories[a]))
    holds = best == exact.index(max(exact)) and best not in (0, 1)  # category 0 has the largest P, 1 the smallest Λ
    neither, n = 0, scale.of(10_000, 1000)
    for seed in range(n):
        instance = random_instance("uniform", types=1, categories=3, seed=seed)
        a = instance.best_fixed[0]
        neither += a not in (int(instance.click.argmax()), int(instance.depart.argmin()))
    return Finding.of(
        holds,
        f"With (P, Λ) = (0.9, 1), (0.5, 0.05) and (0.6, 0.06) the values are {', '.join(map(str, exact))}: the third "
        f"category is best and has neither the largest P nor the smallest Λ. So it is on {neither / n:.1%} of {n:,} "
        "random instances with 3 categories.",
    )


@check("best-category")
def check_best_category(scale: Scale) -> Finding:
    """The general planner on random instances."""
    n, wrong = scale.of(1000, 100), 0
    for seed in range(n):
        instance = random_instance("uniform", types=1, categories=2 + seed % 5, seed=seed)
        best = max(map(formulas.fixed_value, instance.click[:, 0].tolist(), instance.depart[:, 0].tolist()))
        planned = plan(instance, 1e-7, method="search")
        wrong += not planned.lower - 1e-9 <= best <= planned.upper + 1e-9
    return Finding.of(
        wrong == 0,
        f"max P/(Λ(1 − P)) lies within the bounds of the general planner, which does not use it, on {n - wrong} of "
        f"{n} random instances with 2 to 6 categories.",
    )


@check("geometric")
def check_geometric(scale: Scale) -> Finding:
    """Exact distribution of steps on random instances."""
    worst = 0.0
    for instance in random_instances("uniform", scale.of(200, 30), types=1, categories=1):
        leave = formulas.leave_probability(float(instance.click[0, 0]), float(instance.depart[0, 0]))
        lengths = evaluate(instance, Fixed(0), 1e-12).distribution.steps
        geometric = np.append(0.0, leave * (1 - leave) ** np.arange(len(lengths) - 1))
        worst = max(worst, float(np.abs(lengths - geometric).max()))
    return Finding.of(worst < 1e-10, f"The largest difference of a probability is {worst:.1e}.")


@check("geometric-range")
def check_geometric_range(_: Scale) -> Finding:
    """Exact fractions over all P, Λ and ε in tenths with P ≤ 1 − ε."""
    tenths = [Fraction(i, 10) for i in range(1, 11)]
    triples = [(p, depart, epsilon) for p in tenths for depart in tenths for epsilon in tenths if p <= 1 - epsilon]
    outside = [
        triple
        for triple in triples
        if formulas.leave_probability(*triple[:2]) > formulas.largest_leave_probability(triple[2])
    ]
    p, depart, epsilon = max(outside, key=lambda triple: triple[1] * (1 - triple[0]) + triple[2], default=triples[0])
    return Finding.of(
        not outside,
        f"Λ(1 − P) exceeds 1 − ε on {len(outside)} of {len(triples)} triples in tenths. For example, with P = {p}, "
        f"Λ = {depart} and ε = {epsilon} it is {depart * (1 - p)}, above {1 - epsilon}.",
    )


@check("return-below-length")
def check_return_below_length(scale: Scale) -> Finding:
    """Simulated users of random policies, one after the other."""
    above, reached, users = 0, 0, scale.of(20_000, 2000)
    for seed in range(10):
        instance = random_instance("uniform", types=1, categories=2, seed=seed, depart=1.0 if seed % 2 else None)
        policy = Threshold(first=0, steps=seed, then=1)
        histories = simulate(instance, policy, users, seed, "step").histories
        largest = np.array([formulas.largest_return(n) for n in steps(histories.counts).tolist()])
        above += int((clicks(histories.counts) > largest).sum())
        reached += int((clicks(histories.counts) == largest).sum())
    return Finding.of(
        above == 0,
        f"No return exceeds the number of steps minus one among {10 * users:,} users; the bound is attained.",
    )


def _log_generating(gamma: Floats, click: float, leave: float) -> Floats:
    """ln E[exp(γ(V − E[V]))] of a fixed category in closed form."""
    stop = leave / (leave + click)
    inside = 1 - (1 - stop) * np.exp(gamma)
    return np.asarray(np.log(stop) - np.log(inside) - gamma * click / leave)


@check("return-scale")
def check_return_scale(scale: Scale) -> Finding:
    """Moment generating function in closed form, over a grid of probabilities and γ."""
    worst, n = -np.inf, 0
    for click, _, leave in grid(scale):
        tau = formulas.return_scale(leave)
        gamma = np.linspace(-1, 1, 80) / tau * 0.999
        ratio = _log_generating(gamma, click, leave) / formulas.moment_generating_bound(gamma, tau)
        worst, n = max(worst, float(ratio.max())), n + 1
    return Finding.of(
        worst <= 1,
        f"The exponent is at most {worst:.4f} of the bound over {n:,} pairs; the constant is not tight.",
    )


@check("one-type-scale")
def check_one_type_scale(scale: Scale) -> Finding:
    """The variance in exact fractions, which is at most τ² for a variable that is sub-exponential with (τ², b)."""
    p, depart, epsilon = Fraction(1, 2), Fraction(1, 100), Fraction(1, 2)
    _, mean, square = return_moments(p, depart, 2)
    variance = square - mean**2
    largest = (8 * E_UPPER / LN2_LOWER) ** 2  # above τ̃² for ε = 1/2
    wrong, sure, n = 0, 0, 0
    for click, depart_probability, leave in grid(scale):
        n += 1
        tau = formulas.global_scale(1 - click)  # the largest ε that the click probability allows
        exceeds = click * (leave + click) / leave**2 > tau**2
        wrong, sure = wrong + exceeds, sure + (exceeds and depart_probability == 1)
    return Finding.of(
        variance <= largest and wrong == 0,
        f"With P = {p}, Λ = {depart} and ε = {epsilon} the variance of the return is {variance}, but τ̃² is "
        f"{formulas.global_scale(float(epsilon)) ** 2:.1f}. On a grid the variance exceeds τ̃² for {wrong:,} of {n:,} "
        f"pairs of P and Λ, with Λ = 1 for {sure}.",
    )


@check("one-type-scale-repaired")
def check_one_type_scale_repaired(scale: Scale) -> Finding:
    """Constants for all ε up to Λ(1 − P), and the condition on the generating function, over a grid."""
    wrong, worst, n = 0, 0.0, 0
    for click, _, leave in grid(scale):
        for epsilon in (leave, leave / 2, leave / 10):
            tau, n = formulas.global_scale(epsilon), n + 1
            wrong += tau < formulas.return_scale(leave) * (1 - 1e-12)
            gamma = np.linspace(-1, 1, 20) / tau * 0.999
            ratio = _log_generating(gamma, click, leave) / formulas.moment_generating_bound(gamma, tau)
            worst = max(worst, float(ratio.max()))
    return Finding.of(
        wrong == 0 and worst <= 1,
        f"τ̃ ≥ τ for all {n:,} triples with ε ≤ Λ(1 − P); the exponent is at most {worst:.4f} of the bound.",
    )


def _bounded_variables() -> Iterator[tuple[Floats, Floats, float]]:
    """Sums of n independent signs, divided by √n, with probabilities; they are sub-exponential with τ = 1, any b."""
    for n in (1, 2, 5, 20, 100):
        logs = np.array([lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) - n * log(2) for k in range(n + 1)])
        yield np.exp(logs), (2 * np.arange(n + 1) - n) / np.sqrt(n), 1.0


@check("bernstein")
def check_bernstein(scale: Scale) -> Finding:
    """Exact tails of returns with the constants of the lemma on one type, and of sums of signs with τ = 1."""
    worst = 0.0
    for click, depart, leave in grid(scale, SUMMABLE):
        law, tau = click_distribution(click, depart), formulas.return_scale(leave)
        apart = np.abs(np.arange(len(law)) - click / leave)
        for v in np.linspace(0, 3 * tau, 40)[1:].tolist():
            worst = max(worst, float(law[apart >= v].sum()) / formulas.bernstein(v, tau, tau))
    for law, values, tau in _bounded_variables():
        for b in (0.1, 0.5, 1.0, 1.1, 2.0):
            for v in np.unique(np.abs(values)).tolist():
                tail = float(law[np.abs(values) >= v].sum())
                worst = max(worst, tail / formulas.bernstein(v, tau, b))
    return Finding.of(worst <= 1, f"Tails are at most {worst:.3f} of the bound.")


def _random_thresholds(n: int) -> Iterator[tuple[Instance, Floats]]:
    """Random 2 × 2 instances with sure departure, and the distribution of the return of a threshold policy."""
    rng = np.random.default_rng(5)
    for _ in range(n):
        click = (
            rng.uniform(0.001, 0.97, (2, 2)) if rng.random() < 0.5 else rng.beta(0.4, 0.4, (2, 2)).clip(1e-4, 0.97)
        )
        instance = Instance(rng.dirichlet([0.5, 0.5]), click)
        policy = Threshold(first=int(rng.integers(2)), steps=int(rng.integers(0, 20)), then=int(rng.integers(2)))
        yield instance, evaluate(instance, policy, 1e-13).distribution.returns


def _gammas(tau: float, n: int) -> Floats:
    gamma = np.linspace(-1, 1, n) / tau * 0.999
    return np.asarray(gamma[gamma != 0])


@check("threshold-scale")
def check_threshold_scale(scale: Scale) -> Finding:
    """Moment generating function of exact distributions, on random instances with probabilities down to 10⁻⁴."""
    worst, n = -np.inf, scale.of(1000, 40)
    for instance, law in _random_thresholds(n):
        tau = formulas.global_scale(1 - float(instance.click.max()))
        gamma = _gammas(tau, 21)
        logs = _log_generating_of(law, gamma)
        worst = max(worst, float((logs / formulas.moment_generating_bound(gamma, tau)).max()))
    return Finding.of(
        worst <= 1 + 1e-6,
        f"The exponent is at most {worst:.4f} of the bound over {n:,} random instances and policies.",
    )


@check("threshold-mgf-middle")
def check_threshold_mgf_middle(scale: Scale) -> Finding:
    """Both sides at γ = 0 in exact fractions: 1, and the sum of Pr[type ∈ argmax P] over the categories."""
    prior, click = BLOG
    right = sum(prior[max(range(2), key=lambda i: row[i])] for row in click)
    wrong, n = 0, scale.of(2000, 300)
    for instance in random_instances("column", n):
        wrong += float(instance.prior[instance.click.argmax(axis=1)].sum()) < 1
    return Finding.of(
        right >= 1,
        f"In the paper's example type x is the argmax of both categories, so at γ = 0 the left side is 1 and the "
        f"right side {right}; by continuity the inequality fails for small γ too. It fails at γ = 0 on {wrong:,} of "
        f"{n:,} random instances with a dominant column.",
    )


@check("threshold-mgf")
def check_threshold_mgf(scale: Scale) -> Finding:
    """Exact distributions on random instances, for γ over the range of the lemma."""
    worst, n, count = -np.inf, scale.of(2000, 40), 0
    for instance, law in _random_thresholds(n):
        gamma = _gammas(formulas.global_scale(1 - float(instance.click.max())), 11)
        logs = _log_generating_of(law, gamma)
        bars = [formulas.dominating_click(row) for row in instance.click.tolist()]
        dominating = np.max([_log_generating(gamma, p, 1 - p) for p in bars], axis=0)
        worst, count = max(worst, float((logs - dominating).max())), count + len(gamma)
    return Finding.of(
        worst <= 1e-12,
        f"No violation in {count:,} cases: ln E[exp(γ(V − E[V]))] is below the larger of both sides by at least "
        f"{-worst:.0e}.",
    )


def _log_generating_of(law: Floats, gamma: Floats) -> Floats:
    """ln E[exp(γ(V − E[V]))] of a distribution of returns."""
    values = np.arange(len(law))
    return np.asarray(np.log(np.exp(gamma[:, None] * (values - float(law @ values))) @ law))


def _random_schedules(n: int) -> Iterator[tuple[Instance, Floats]]:
    """Random instances with uncertain departure, and the distribution of the return of a random walk."""
    rng = np.random.default_rng(6)
    for seed in range(n):
        instance = random_instance("uniform", types=3, categories=3, seed=seed)
        walk = Walk(rng.integers(0, 3, int(rng.integers(0, 12))).tolist(), then=int(rng.integers(3)))
        yield instance, evaluate(instance, walk, 1e-13).distribution.returns


@check("comparison-lemma")
def check_comparison_lemma(scale: Scale) -> Finding:
    """Exact distributions of returns of random walks, against the geometric variable with the smallest hazard."""
    worst, n = -np.inf, scale.of(1000, 30)
    for instance, law in _random_schedules(n):
        leave, click = instance.departure_probabilities, instance.click
        a, x = np.unravel_index((click / leave).argmax(), click.shape)
        stop = formulas.smallest_hazard(float(click[a, x]), float(leave[a, x]))
        gamma = np.linspace(-3, 0.8, 20) * -log1p(-stop)
        geometric = _log_generating(gamma, 1 - stop, stop)
        worst = max(worst, float((_log_generating_of(law, gamma) - geometric).max()))
    return Finding.of(
        worst <= 1e-9,
        f"No violation for {n:,} random walks on instances with 3 types, 3 categories and uncertain departure: "
        f"ln E[exp(γ(V − E[V]))] is below that of the geometric variable by at least {-worst:.0e}.",
    )


@check("sharp-scale")
def check_sharp_scale(scale: Scale) -> Finding:
    """Moment generating functions of fixed categories in closed form, and of random walks from distributions."""
    worst, n = -np.inf, scale.of(1000, 30)
    for click, _, leave in grid(scale):
        tau = formulas.sharp_scale(leave)
        gamma = _gammas(tau, 80)
        ratio = _log_generating(gamma, click, leave) / formulas.moment_generating_bound(gamma, tau)
        worst = max(worst, float(ratio.max()))
    for instance, law in _random_schedules(n):
        tau = formulas.sharp_scale(float(instance.departure_probabilities.min()))
        gamma = _gammas(tau, 20)
        ratio = _log_generating_of(law, gamma) / formulas.moment_generating_bound(gamma, tau)
        worst = max(worst, float(ratio.max()))
    return Finding.of(
        worst <= 1,
        f"The exponent is at most {worst:.3f} of the bound, for fixed categories over a grid and {n:,} random walks. "
        f"The constant is {8 * e / 1.5:.1f} times smaller than the paper's.",
    )
