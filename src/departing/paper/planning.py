"""Claims on planning: the three structures, N*, finite horizons and the dynamic program (section 5, appendix A)."""

import time
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from math import ceil, floor, inf

import numpy as np

from departing.data.movielens import MovieLens
from departing.evaluation.evaluate import evaluate
from departing.learning.ucb import UCBHybrid
from departing.model.families import random_instance
from departing.model.instance import Floats, Instance
from departing.paper.exact import best_walk_value, random_instances, recursion, tail_bound
from departing.paper.item import SKIPPED, Finding, Scale, check
from departing.planning.closed_form import two_by_two
from departing.planning.plan import plan
from departing.policy.schedule import Schedule, Threshold

# Steps of the recursion over counts, which does not use the structures: with click probabilities up to 0.9 later
# steps add less than 1e-9, the rounding allowance.
STEPS = 220
ROUNDING = 1e-9


@check("partition")
def check_partition(scale: Scale) -> Finding:
    """All matrices on a grid."""
    grid = np.linspace(0.05, 0.95, scale.of(13, 7))
    wrong, several, n = 0, 0, 0
    for entries in product(grid.tolist(), repeat=4):
        click, structures = np.array(entries).reshape(2, 2), set()
        for a, x in np.argwhere(click == click.max()):
            (_, p1y), (p2x, p2y) = click[[a, 1 - a]][:, [x, 1 - x]]
            conditions = [p1y >= p2y, p2x >= p2y > p1y, p2y > p1y and p2y > p2x]
            wrong += sum(conditions) != 1
            structures.add(conditions.index(True))
        several += len(structures) > 1
        n += 1
    return Finding.of(
        wrong == 0,
        f"Exactly one structure for all {n:,} matrices on a grid. If the largest entry occurs twice, the structure "
        f"can depend on the relabelling ({several:,} matrices); the policies of both are then optimal.",
    )


def _instances(structure: str, scale: Scale) -> Iterator[Instance]:
    """Random instances of a structure, and some on a coarse grid, where ties are frequent."""
    n = scale.of(3000, 250)
    yield from random_instances(structure, n)
    rng, coarse = np.random.default_rng(7), 0
    while coarse < n // 3:
        click = rng.integers(1, 10, (2, 2)) / 10
        instance = Instance(rng.multinomial(10, [0.5, 0.5]) / 10, click)
        if instance.structure == structure:
            coarse += 1
            yield instance


def beaten_by_any_walk(instances: list[Instance], values: Floats) -> tuple[int, float]:
    """Number of instances on which some walk has a value above `values`, and the largest excess."""
    largest, wrong = 0.0, 0
    for first in range(0, len(instances), 500):
        batch = instances[first : first + 500]
        prior, click = (np.array([getattr(instance, field) for instance in batch]) for field in ("prior", "click"))
        steps = STEPS if click.max() <= 0.9 else 3 * STEPS
        excess = recursion(prior, click, steps)[0] - values[first : first + 500]
        largest, wrong = max(largest, float(excess.max())), wrong + int((excess > ROUNDING).sum())
    return wrong, largest


def _check_structure(structure: str, scale: Scale) -> Finding:
    """Compare the value of the paper's policies with the best value of all walks."""
    instances = list(_instances(structure, scale))
    values = np.array([_value_of_the_paper(instance) for instance in instances])
    wrong, excess = beaten_by_any_walk(instances, values)
    ties = sum(len(np.unique(instance.click)) < 4 for instance in instances)
    tail = max(tail_bound(float(instance.click.max()), STEPS) for instance in instances)
    return Finding.of(
        wrong == 0,
        f"No walk has a higher value on {len(instances) - wrong:,} of {len(instances):,} instances, {ties:,} of them "
        f"with ties (largest difference {excess:.1e}; walks of {STEPS} steps, later steps add at most {tail:.0e}).",
    )


for _structure in ("row", "column", "diagonal"):

    @check(_structure)
    def check_structure(scale: Scale, structure: str = _structure) -> Finding:
        """The policies of the paper against all walks (recursion over counts), on random instances and ties."""
        return _check_structure(structure, scale)


def _value_of_the_paper(instance: Instance) -> float:
    """Value of the best of the policies that the paper names, with N* as printed."""
    solution = two_by_two(instance)
    a, b = solution.first, solution.second
    policies: list[Schedule] = [Threshold(first=b, steps=0, then=a)]
    if solution.structure != "row":
        policies.append(Threshold(first=a, steps=0, then=b))
    if solution.n_star is not None and solution.n_star < inf:
        policies += [Threshold(first=b, steps=n, then=a) for n in {floor(solution.n_star), ceil(solution.n_star)}]
    return max(evaluate(instance, policy).value for policy in policies)


@check("switching-condition")
def check_switching_condition(scale: Scale) -> Finding:
    """The condition along the best walk, on random instances."""
    wrong, met, n = 0, 0, scale.of(1000, 150)
    for instance in random_instances("column", n):
        policy = two_by_two(instance).best[0]
        walk = _walk_of(policy, 40)
        for j in range(25):
            if _condition(instance, walk, policy.final_category, j):
                met += 1
                wrong += any(walk[j:])  # category 2 of the paper has index 1
                break
    return Finding.of(
        wrong == 0,
        f"The condition is met on {met} of {n} random instances; its conclusion fails on {wrong} of them.",
    )


def _walk_of(policy: Schedule, steps: int) -> list[int]:
    walk = [category for category, length in policy.phases for _ in range(min(length, steps))]
    return (walk + [policy.final_category] * steps)[:steps]


def _condition(instance: Instance, walk: list[int], then: int, j: int) -> bool:
    """Compare Σ over later steps of P(type x is active) with the same sum of type y times the constant."""
    sums = []
    for column in (0, 1):
        powers = np.cumprod([instance.click[a, column] for a in walk])
        last = instance.click[then, column]
        sums.append(float(powers[j:].sum() + powers[-1] * last / (1 - last)))
    return bool(sums[0] > _constant(instance) * sums[1])


def _constant(instance: Instance) -> float:
    """Constant of the lemma and of the corollary on dominant columns."""
    (p1x, p1y), (p2x, p2y) = instance.click
    b = instance.prior[0]
    return float((1 - b) / b * (p2y - p1y) / (p1x - p2x) * p2x / p2y)


@check("most-switches")
def check_most_switches(scale: Scale) -> Finding:
    """The optimal policy against the bound as printed, on random instances."""
    wrong, n, example = 0, scale.of(2000, 300), ""
    for instance in random_instances("column", n):
        best = two_by_two(instance).best[0]
        steps = best.phases[0][1] if best.phases else (0 if best.final_category == 0 else inf)
        bound = _corollary_bound(instance)
        if steps > bound:
            wrong += 1
            example = example or f"; it fails for {instance.click.tolist()} and {instance.prior.tolist()}"
    return Finding.of(
        wrong == 0,
        f"The bound holds on {n - wrong:,} of {n:,} random instances with a dominant column{example}.",
    )


def _corollary_bound(instance: Instance) -> float:
    """Smallest N with Σ P2x^i > constant Σ P2y^i, both sums to N; infinite if there is none."""
    p2x, p2y = instance.click[1]
    powers = np.arange(1, 2000)
    met = np.cumsum(p2x**powers) > _constant(instance) * np.cumsum(p2y**powers)
    return float(met.argmax() + 1) if met.any() else inf


@check("constant-time")
def check_constant_time(scale: Scale) -> Finding:
    """Time on instances with N* from 10 to 10⁵."""
    rows = [["N*", "milliseconds"]]
    times = []
    for gap in (0.1, 1e-2, 1e-3, 1e-4, 1e-5):
        instance = Instance([1e-3, 1 - 1e-3], [[0.9, 0.5], [0.8, 0.8 - gap]])
        started = time.process_time()
        n = scale.of(200, 50)
        for _ in range(n):
            solution = two_by_two(instance)
        times.append((time.process_time() - started) / n)
        rows.append([f"{solution.n_star:,.1f}", f"{times[-1] * 1e3:.3f}"])
    ratio = max(times) / min(times)
    return Finding.of(ratio < 5, f"The slowest takes {ratio:.1f} times as long as the fastest.", rows)


@check("horizon")
def check_horizon(scale: Scale) -> Finding:
    """Exact values on random instances of all structures, H from 0 to 30."""
    worst, n = 0.0, scale.of(1000, 150)
    for seed in range(n):
        instance = random_instance(("column", "row", "diagonal")[seed % 3], seed=seed)
        best = two_by_two(instance).best[1].value
        click = float(instance.click.max())
        reached = -inf
        for h in range(31):
            policies = (Threshold(first=a, steps=h, then=1 - a) for a in (0, 1))
            reached = max(reached, *(evaluate(instance, policy).value for policy in policies))
            worst = max(worst, (best - reached) / (click**h / (1 - click)))
    return Finding.of(worst <= 1, f"At most {worst:.3f} of (1 − ε)^H / ε, for H up to 30 on {n:,} random instances.")


@check("size-of-set")
def check_size_of_set(_: Scale) -> Finding:
    """Enumeration."""
    sizes = {h: len(set(UCBHybrid.thresholds(10, epsilon=0.5, horizon=h).policies)) for h in (0, 1, 2, 5, 14, 100)}
    holds = all(size == 2 * h + 2 for h, size in sizes.items())
    return Finding.of(holds, ", ".join(f"H = {h}: {size}" for h, size in sizes.items()) + ", all distinct.")


@check("recursion")
def check_recursion(scale: Scale) -> Finding:
    """Enumeration of all walks in exact fractions."""
    rng, worst, n = np.random.default_rng(9), 0.0, scale.of(60, 12)
    for _ in range(n):
        k, m = int(rng.integers(2, 4)), int(rng.integers(2, 5))
        click = [[Fraction(int(i), 100) for i in rng.integers(1, 100, m)] for _ in range(k)]
        shares = rng.integers(1, 50, m)
        prior = [Fraction(int(i), int(shares.sum())) for i in shares]
        steps = 9 if k == 2 else 6
        exact = best_walk_value(prior, click, steps)
        values, _ = recursion(np.array([prior], np.float64), np.array([click], np.float64), steps)
        worst = max(worst, abs(float(values[0]) - float(exact)))
    return Finding.of(
        worst < 1e-12,
        f"Equal to the best walk on {n} random instances with 2 to 4 types (largest difference {worst:.0e}).",
    )


@check("recursion-time")
def check_recursion_time(scale: Scale) -> Finding:
    """Number of counts visited; the time is reported."""
    rng = np.random.default_rng(10)
    rows, slopes = [["categories", "horizon", "counts", "seconds"]], []
    for k, horizons in ((2, (50, 100, 200, 400)), (3, (10, 20, 40, 80)), (4, (5, 10, 20))):
        counts = []
        for h in horizons if not scale.quick else horizons[:3]:
            prior, click = rng.dirichlet([1, 1], 1), rng.uniform(0.1, 0.9, (1, k, 2))
            started = time.process_time()
            counts.append(recursion(prior, click, h)[1])
            rows.append([str(k), str(h), f"{counts[-1]:,}", f"{time.process_time() - started:.3f}"])
        slopes.append((k, float(np.log2(counts[-1] / counts[-2]))))
    holds = all(exponent <= k + 0.01 for k, exponent in slopes)
    exponents = ", ".join(f"{exponent:.2f} for {k} categories" for k, exponent in slopes)
    return Finding.of(holds, f"The number of counts grows like the horizon to the power {exponents}.", rows)


@check("recursion-error")
def check_recursion_error(scale: Scale) -> Finding:
    """Plans with certified bounds."""
    worst, n = 0.0, scale.of(150, 25)
    for seed in range(n):
        instance = random_instance("uniform", types=2 + seed % 4, categories=2 + seed % 2, seed=seed, depart=1.0)
        upper = plan(instance, 1e-9).upper
        click = float(instance.click.max())
        for h in (5, 10, 20, 30):
            value = float(recursion(instance.prior[None], instance.click[None], h)[0][0])
            worst = max(worst, (upper - value) / (click**h / (1 - click)))
    return Finding.of(worst <= 1, f"At most {worst:.3f} of (1 − ε)^H / ε, on {n} random instances with 2 to 5 types.")


@check("movielens")
def check_movielens(scale: Scale) -> Finding:
    """The scheme on a MovieLens release."""
    if scale.movielens is None:
        return Finding(SKIPPED, "No film ratings; use --movielens with the folder or zip of a MovieLens release.")
    ratings = MovieLens.read(scale.movielens)
    rows = [["genres", "users", "types", "best fixed genre", "optimal policy", "gain"]]
    for genres in (None, ["Sci-Fi", "Drama", "Comedy"], ["Horror", "Romance", "Documentary"]):
        data = ratings.semi_synthetic(genres, 3, depart=1.0)
        fixed, best = data.instance.best_fixed[1], plan(data.instance, 1e-6).value
        gain = max(best / fixed - 1, 0.0)
        names = ", ".join(data.instance.categories)
        rows.append([names, f"{data.users:,}", "3", f"{fixed:.4f}", f"{best:.4f}", f"{gain:.2%}"])
    return Finding.measured(
        "The scheme works. With the rating r as the click probability (with the paper's 1 − r, liked films are less "
        "likely to be clicked), the types are generous and harsh raters with the same favourite: planning gains "
        "little.",
        rows,
    )
