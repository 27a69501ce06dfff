"""Items of appendix D: proofs for one type."""

from fractions import Fraction
from math import factorial, log

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.paper import formulas
from departing.paper.distributions import (
    POWERS,
    ROUNDING,
    SUMMABLE,
    click_distribution,
    geometric_moment,
    grid,
    moment,
    psi_norm,
    return_moments,
)
from departing.paper.exact import random_instances
from departing.paper.item import Finding, Scale, check
from departing.policy.schedule import Fixed, Threshold

LN10_LOWER = Fraction(230258509, 10**8)  # below ln 10


def _random_pairs(n: int) -> list[tuple[Fraction, Fraction]]:
    """Random click and departure probabilities in hundredths."""
    rng = np.random.default_rng(4)
    return [(Fraction(int(p), 100), Fraction(int(d), 100)) for p, d in rng.integers(1, 100, (n, 2))]


@check("return-from-step")
def check_return_from_step(scale: Scale) -> Finding:
    """Means and variances of the printed sum P N and of the return V in exact fractions."""
    pairs, means, variances = _random_pairs(scale.of(300, 60)), 0, 0
    for p, depart in pairs:
        leave, (_, mean, square) = formulas.leave_probability(p, depart), return_moments(p, depart, 2)
        means += p / leave == mean  # N is geometric: its mean is 1/leave
        variances += p**2 * (1 - leave) / leave**2 == square - mean**2
    return Finding.repaired(
        variances == len(pairs),
        means == len(pairs),
        f"The printed sum is P N, with N steps. Its mean equals that of the return for {means} of {len(pairs)} pairs "
        f"of P and Λ, its variance for {variances}.",
    )


@check("recurrence")
def check_recurrence(scale: Scale) -> Finding:
    """dp.evaluate on random instances: one step of category 0 before category 1."""
    worst = 0.0
    for instance in random_instances("uniform", scale.of(500, 100), types=1, categories=2):
        later = evaluate(instance, Fixed(1)).value
        now = evaluate(instance, Threshold(first=0, steps=1, then=1)).value
        printed = formulas.value_before(later, float(instance.click[0, 0]), float(instance.depart[0, 0]))
        worst = max(worst, abs(now - printed))
    return Finding.of(worst < 1e-9, f"The largest difference is {worst:.1e}.")


@check("best-category-proof")
def check_best_category_proof(scale: Scale) -> Finding:
    """Exact fractions: one step of every category before the largest fixed value, on random pairs of categories."""
    n, natural, constant = scale.of(300, 60), 0, 0
    pairs = _random_pairs(2 * n)
    for categories in zip(pairs[::2], pairs[1::2], strict=True):
        best = max(return_moments(p, depart, 1)[1] for p, depart in categories)
        natural += best.denominator == 1
        constant += max(formulas.value_before(best, p, depart) for p, depart in categories) == best
    return Finding.repaired(
        natural == n,
        constant == n,
        f"With two categories the value of the optimal policy is the same one iteration later on {constant} of {n} "
        f"random instances, and a natural number on {natural}.",
    )


@check("fixed-value")
def check_fixed_value(scale: Scale) -> Finding:
    """Partial sums of the series in exact fractions, and conditioning on the first step."""
    pairs, equal = _random_pairs(scale.of(300, 60)), 0
    for p, depart in pairs:
        value, stay, n = formulas.fixed_value(p, depart), 1 - depart * (1 - p), 12
        partial = sum((p * stay**j for j in range(n)), Fraction(0))
        # The rest of the series is its value times stayⁿ.
        equal += partial == value - value * stay**n and value == return_moments(p, depart, 1)[1]
    return Finding.of(equal == len(pairs), f"Equal in fractions for {equal} of {len(pairs)} pairs of P and Λ.")


@check("geometric-moments")
def check_geometric_moments(scale: Scale) -> Finding:
    """A counterexample with rational bounds; summed moments, r from 0.01 to 0.99 and p from 1 to 20."""
    r = Fraction(9, 10)
    refuted = 1 / r > 2 / LN10_LOWER  # E[X] = 1/r, and −2 / ln(1 − r) = 2 / ln 10 is smaller than the right side
    failing = [
        leave
        for leave in np.linspace(0.01, 0.99, scale.of(197, 50)).tolist()
        if any(
            geometric_moment(leave, p, 1)
            > formulas.moment_property(p, formulas.length_constant(leave)) * (1 + ROUNDING)
            for p in POWERS
        )
    ]
    rows = [["r", "E[X]", "−2 / ln(1 − r)"]]
    rows += [[f"{x:g}", f"{1 / x:.4f}", f"{formulas.length_constant(x):.4f}"] for x in (0.5, 0.75, 0.8, 0.9, 0.99)]
    return Finding.of(
        not refuted and not failing,
        f"For r = {r} and p = 1 the moment is {1 / r} and the bound less than {float(2 / LN10_LOWER):.4f}. The bound "
        f"fails from r = {min(failing, default=1.0):.2f} on: a geometric variable is at least 1, but the bound tends "
        "to 0. For powers p below 1, which the lemma includes, it fails for every r as p tends to 0.",
        rows,
    )


@check("geometric-moments-repaired")
def check_geometric_moments_repaired(scale: Scale) -> Finding:
    """Summed moments, r from 0.01 to 0.99 and p from 1 to 20."""
    worst = max(
        geometric_moment(leave, p, 0) / formulas.moment_property(p, formulas.repaired_length_constant(leave))
        for leave in np.linspace(0.01, 0.99, scale.of(197, 50)).tolist()
        for p in POWERS
    )
    return Finding.of(worst <= 1, f"The moment is at most {worst:.4f} of the bound.")


@check("length-moments")
def check_length_moments(scale: Scale) -> Finding:
    """The mean 1/(Λ(1 − P)) in closed form, over a grid of probabilities."""
    leaves = [leave for *_, leave in grid(scale)]
    failing = [leave for leave in leaves if 1 / leave > formulas.length_constant(leave) * (1 + ROUNDING)]
    mean = 1 / formulas.leave_probability(Fraction(1, 10), Fraction(1))
    return Finding.of(
        mean <= 2 / LN10_LOWER and not failing,
        f"For P = 1/10 and Λ = 1 the mean is {mean}, and −2 / ln(1 − Λ(1 − P)) = 2 / ln 10 less than "
        f"{float(2 / LN10_LOWER):.4f}. The constant fails for the mean on {len(failing)} of {len(leaves)} pairs, "
        f"from Λ(1 − P) = {min(failing, default=1.0):.3f} on, like the lemma before.",
    )


@check("length-tails")
def check_length_tails(scale: Scale) -> Finding:
    """Pr[N > v] = (1 − r)^⌊v⌋ in closed form with C₁ = max(1, −1/ln(1 − r)), over a grid of probabilities."""
    worst, n = -np.inf, 0
    for *_, leave in grid(scale):
        constant, n = max(1.0, formulas.repaired_length_constant(leave)), n + 1
        v = np.linspace(0, 50 * constant, 500)
        logs = np.floor(v) * np.log1p(-leave) - np.log(formulas.tail_property(v, constant))
        worst = max(worst, float(logs.max()))
    return Finding.of(worst <= ROUNDING, f"The bound on the tails holds for all {n} pairs of P and Λ.")


@check("mean-return-step")
def check_mean_return_step(scale: Scale) -> Finding:
    """Closed form over a grid of probabilities, and the inequality of the logarithm that it uses."""
    worst = max((1 - leave) / leave / formulas.length_constant(leave) for *_, leave in grid(scale))
    x = np.linspace(-0.999, 50, 5000)
    logarithm = bool(np.all(x / (1 + x) <= np.log1p(x) + 1e-15))
    return Finding.of(
        worst < 1 and logarithm, f"(1 − r)/r is at most {worst:.4f} of −2/ln(1 − r); half the constant suffices."
    )


@check("mean-return")
def check_mean_return(scale: Scale) -> Finding:
    """Exact means by conditioning on the first step, over a grid of probabilities."""
    pairs = list(grid(scale))
    worst = max(
        float(return_moments(Fraction(click), Fraction(depart), 1)[1]) / formulas.length_constant(leave)
        for click, depart, leave in pairs
    )
    return Finding.of(worst < 1, f"At most {worst:.4f} of the bound over {len(pairs):,} pairs of probabilities.")


@check("tail-domination")
def check_tail_domination(scale: Scale) -> Finding:
    """Exact distributions of returns and steps on random instances."""
    worst = -np.inf
    for seed, instance in enumerate(random_instances("uniform", scale.of(200, 30), types=1, categories=1)):
        sure = instance.replace(depart=1.0) if seed % 2 else instance
        law = evaluate(sure, Fixed(0), 1e-12).distribution
        returns, lengths = 1 - law.returns.cumsum(), 1 - law.steps.cumsum()  # Pr[V > v], Pr[N > v]
        for v in range(min(len(returns), len(lengths) - 2)):
            worst = max(worst, float(returns[v] - lengths[int(formulas.length_needed(v))]))
    return Finding.of(worst <= 1e-11, f"Pr[V > v] exceeds Pr[N > v + 1] by at most {worst:.0e}; equal if Λ = 1.")


@check("uncentred-moments")
def check_uncentred_moments(scale: Scale) -> Finding:
    """Moments of exact distributions, powers 1 to 20, over a grid of probabilities."""
    worst, n = 0.0, 0
    for click, depart, leave in grid(scale, SUMMABLE):
        law, n = click_distribution(click, depart), n + 1
        for p in POWERS:
            bound = formulas.moment_property(p, formulas.length_constant(leave))
            worst = max(worst, moment(law, np.arange(float(len(law))), p) / bound)
    return Finding.of(worst <= 1, f"At most {worst:.4f} of the bound over {n:,} pairs and {len(POWERS)} powers.")


@check("centring-step")
def check_centring_step(scale: Scale) -> Finding:
    """Exact fractions for P = 99/100, Λ = 1 and p = 4; with the factor p, exact distributions over a grid."""
    p = Fraction(99, 100)
    fourth = return_moments(p, Fraction(1), 4)[4]
    bound = 2 / (1 - p)  # above −2/ln(1 − Λ(1 − P))
    worst = 0.0
    for click, depart, leave in grid(scale, SUMMABLE):
        law = click_distribution(click, depart)
        for power in POWERS:
            total = moment(law, np.arange(float(len(law))), power) + click / leave
            worst = max(worst, total / formulas.moment_property(power, formulas.return_constant(leave)))
    return Finding.repaired(
        fourth <= bound**4,
        worst <= 1,
        f"For P = {p}, Λ = 1 and p = 4 the moment E[V⁴]^(1/4) is {float(fourth) ** 0.25:.1f}, but "
        f"−2/ln(1 − Λ(1 − P)) is less than {bound}: the factor p is missing. With it, the sum is at most {worst:.3f} "
        "of −4p/ln(1 − Λ(1 − P)).",
    )


@check("return-moments")
def check_return_moments(scale: Scale) -> Finding:
    """Central moments of exact distributions, powers 1 to 20, over a grid of probabilities."""
    worst, n = 0.0, 0
    for click, depart, leave in grid(scale, SUMMABLE):
        law, n = click_distribution(click, depart), n + 1
        apart = np.arange(float(len(law))) - click / leave
        for p in POWERS:
            bound = formulas.moment_property(p, formulas.return_constant(leave))
            worst = max(worst, moment(law, apart, p) / bound)
    return Finding.of(
        worst <= 1 + ROUNDING, f"At most {worst:.3f} of the bound over {n:,} pairs and {len(POWERS)} powers."
    )


@check("psi-equality")
def check_psi_equality(scale: Scale) -> Finding:
    """Norms of exact distributions over a grid of probabilities."""
    ratios = []
    for click, depart, leave in grid(scale, SUMMABLE):
        law = click_distribution(click, depart)
        ratios.append(psi_norm(law, np.arange(float(len(law))) - click / leave) / formulas.return_constant(leave))
    return Finding.repaired(
        min(ratios) > 1 - 1e-6,
        max(ratios) <= 1,
        f"The norm is {min(ratios):.1e} to {max(ratios):.3f} of −4/ln(1 − Λ(1 − P)) over {len(ratios):,} pairs of P "
        "and Λ, never equal to it.",
    )


@check("mgf-series")
def check_mgf_series(scale: Scale) -> Finding:
    """A variable of two values against the printed series; the series with |y| and its bounds, also on returns."""
    law, values = np.array([0.1, 0.9]), np.array([-5.0, 5 / 9])  # mean 0 and norm 1, attained at p = 1
    y = -0.18  # above −1/2e
    left = float(law @ np.exp(y * values))
    worst = left / (1 + _power_series(abs(y)))
    for click, depart, leave in grid(scale, 0.01):
        distribution = click_distribution(click, depart)
        apart = np.arange(float(len(distribution))) - click / leave
        scaled = apart / psi_norm(distribution, apart)
        for z in (-0.18, -0.05, 0.05, 0.18):
            worst = max(worst, float(distribution @ np.exp(z * scaled)) / (1 + _power_series(abs(z))))
    zs = [Fraction(i, 1000) for i in range(1, 500)]
    series = sum(z**2 / (1 - z) >= formulas.geometric_series_bound(z) for z in zs)
    factorials = sum(log(factorial(p)) < formulas.log_factorial_bound(p) for p in range(1, 1001))
    x = np.linspace(0, 5, 1001)
    return Finding.repaired(
        left <= 1 + _power_series(y),
        worst <= 1 and series == 0 and factorials == 0 and bool(np.all(1 + x <= np.exp(x))),
        f"X = −5 with probability 1/10 and 5/9 otherwise has mean 0 and norm {psi_norm(law, values):.4f}; at y = {y} "
        f"E exp(yX) is {left:.4f}, the printed series {1 + _power_series(y):.4f}. With |y| the left side is at most "
        f"{worst:.3f} of it on returns too, z²/(1 − z) < 2z² for {len(zs) - series} of {len(zs)} values of z = e|y|, "
        f"and p! ≥ (p/e)ᵖ for {1000 - factorials:,} of 1,000 powers.",
    )


def _power_series(y: float) -> float:
    """Sum of yᵖpᵖ/p! over p ≥ 2, until its terms are negligible for |y| ≤ 0.18."""
    return sum((y * p) ** p / factorial(p) for p in range(2, 100))


@check("zero-departure")
def check_zero_departure(_: Scale) -> Finding:
    """The tail Pr[N > v] = 1 of users who never depart, against the bound with constants up to 10⁶."""
    constants = [10.0**i for i in range(7)]
    met = [constant for constant in constants if formulas.tail_property(np.array([2 * constant]), constant)[0] >= 1]
    return Finding.of(
        bool(met),
        "With Λ = 0 a user never departs, so N is infinite and Pr[N > v] = 1 for every v, while exp(1 − v/C₁) is 1/e "
        "at v = 2C₁, for every constant C₁.",
    )
