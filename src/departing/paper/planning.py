"""Claims on planning: the three structures, N*, finite horizons and the dynamic programme (section 5, appendix A)."""

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
from departing.paper.claim import SKIPPED, Claim, Finding, Scale
from departing.paper.exact import best_first_steps, recursion, tail
from departing.planning.closed_form import two_by_two
from departing.planning.plan import plan
from departing.policy.schedule import Schedule, Threshold

STEPS = 220  # of the recursion that knows nothing of structures
EXACT = 1e-9


def check_partition(scale: Scale) -> Finding:
    """Every matrix on a grid, ties included, has exactly one structure under every labelling the paper allows."""
    grid = np.linspace(0.05, 0.95, scale.of(13, 7))
    wrong, several, n = 0, 0, 0
    for entries in product(grid.tolist(), repeat=4):
        click, found = np.array(entries).reshape(2, 2), set()
        for a, x in np.argwhere(click == click.max()):
            (_, p1y), (p2x, p2y) = click[[a, 1 - a]][:, [x, 1 - x]]
            held = [p1y >= p2y, p2x >= p2y > p1y, p2y > p1y and p2y > p2x]
            wrong += sum(held) != 1
            found.add(held.index(True))
        several += len(found) > 1
        n += 1
    return Finding.of(
        wrong == 0,
        f"Exactly one of the three for all of {n:,} matrices on a grid. Where the largest entry is there twice it "
        f"may depend on the labelling which one ({several:,} of them); both answers are then optimal.",
    )


def instances_of(structure: str, scale: Scale) -> Iterator[Instance]:
    """Random instances of a structure, and some from a coarse grid, where ties are frequent."""
    n = scale.of(3000, 250)
    for seed in range(n):
        yield random_instance(structure, seed=seed)
    rng, coarse = np.random.default_rng(7), 0
    while coarse < n // 3:
        click = rng.integers(1, 10, (2, 2)) / 10
        found = Instance(rng.multinomial(10, [0.5, 0.5]) / 10, click)
        if found.structure == structure:
            coarse += 1
            yield found


def beaten_by_any_walk(instances: list[Instance], values: Floats) -> tuple[int, float]:
    """How many instances have a walk of any kind that is worth more than `values`, and by how much at most."""
    most, wrong = 0.0, 0
    for first in range(0, len(instances), 500):
        some = instances[first : first + 500]
        prior, click = np.array([one.prior for one in some]), np.array([one.click for one in some])
        steps = STEPS if click.max() <= 0.9 else 3 * STEPS
        best = recursion(prior, click, steps)[0]
        over = best - values[first : first + 500]
        most, wrong = max(most, float(over.max())), wrong + int((over > EXACT).sum())
    return wrong, most


def check_structure(structure: str, scale: Scale) -> Finding:
    """What the paper says is best for a structure, against the best of all walks by the recursion over counts."""
    instances = list(instances_of(structure, scale))
    values = np.array([_best_of_the_paper(instance) for instance in instances])
    wrong, most = beaten_by_any_walk(instances, values)
    ties = sum(len(np.unique(one.click)) < 4 for one in instances)
    left = max(float(tail(one.click[None], STEPS)[0]) for one in instances)
    return Finding.of(
        wrong == 0,
        f"No walk is worth more in {len(instances) - wrong:,} of {len(instances):,} instances, {ties:,} with equal "
        f"entries (largest difference {most:.1e}; walks of {STEPS} steps, later ones bring at most {left:.0e}).",
    )


def _best_of_the_paper(instance: Instance) -> float:
    """The value of the best of the policies that the paper names, with N* as it stands there."""
    found = two_by_two(instance)
    a, b = found.first, found.second
    policies: list[Schedule] = [Threshold(first=b, steps=0, then=a)]
    if found.structure != "row":
        policies.append(Threshold(first=a, steps=0, then=b))
    if found.n_star is not None and found.n_star < inf:
        policies += [Threshold(first=b, steps=n, then=a) for n in {floor(found.n_star), ceil(found.n_star)}]
    return max(evaluate(instance, policy).value for policy in policies)


def check_switching_condition(scale: Scale) -> Finding:
    """The condition of the lemma, along the walk of the best threshold policy: category 1 from there on."""
    wrong, met, n = 0, 0, scale.of(1000, 150)
    for seed in range(n):
        instance = random_instance("column", seed=seed)
        policy = two_by_two(instance).best[0]
        walk = _walk_of(policy, 40)
        for j in range(25):
            if _condition(instance, walk, policy.final_category, j):
                met += 1
                wrong += any(walk[j:])  # the paper's category 2 is category 1 here
                break
    return Finding.of(
        wrong == 0,
        f"The condition is met somewhere in {met} of {n} random instances, and violated in {wrong} of them.",
    )


def _walk_of(policy: Schedule, steps: int) -> list[int]:
    shown = [category for category, times in policy.phases for _ in range(min(times, steps))]
    return (shown + [policy.final_category] * steps)[:steps]


def _condition(instance: Instance, walk: list[int], then: int, j: int) -> bool:
    """Σ over later steps of the chance that type x is still here, against the same for type y times a constant."""
    (p1x, p1y), (p2x, p2y) = instance.click
    b = instance.prior[0]
    sums = []
    for column in (0, 1):
        powers = np.cumprod([instance.click[a, column] for a in walk])
        last = instance.click[then, column]
        sums.append(float(powers[j:].sum() + powers[-1] * last / (1 - last)))
    constant = (1 - b) / b * (p2y - p1y) / (p1x - p2x) * p2x / p2y
    return bool(sums[0] > constant * sums[1])


def check_most_switches(scale: Scale) -> Finding:
    """How long the best policy recommends category 2, against the bound of the corollary."""
    wrong, n, example = 0, scale.of(2000, 300), ""
    for seed in range(n):
        instance = random_instance("column", seed=seed)
        best = two_by_two(instance).best[0]
        steps = best.phases[0][1] if best.phases else (0 if best.final_category == 0 else inf)
        bound = _corollary_bound(instance)
        if steps > bound:
            wrong += 1
            example = example or f"; not for {instance.click.tolist()} and {instance.prior.tolist()}"
    return Finding.of(
        wrong == 0,
        f"The bound holds in {n - wrong:,} of {n:,} random instances with a dominant column{example}.",
    )


def _corollary_bound(instance: Instance) -> float:
    """The least N with Σ P2x^i > constant Σ P2y^i, both sums to N; infinite if there is none."""
    (p1x, p1y), (p2x, p2y) = instance.click
    b = instance.prior[0]
    constant = (1 - b) / b * (p2y - p1y) / (p1x - p2x) * p2x / p2y
    powers = np.arange(1, 2000)
    met = np.cumsum(p2x**powers) > constant * np.cumsum(p2y**powers)
    return float(met.argmax() + 1) if met.any() else inf


def check_constant_time(scale: Scale) -> Finding:
    """The time of the closed form for instances whose best switching time is short and long."""
    rows = [["N*", "milliseconds"]]
    spent = []
    for gap in (0.1, 1e-2, 1e-3, 1e-4, 1e-5):
        instance = Instance([1e-3, 1 - 1e-3], [[0.9, 0.5], [0.8, 0.8 - gap]])
        started = time.process_time()
        n = scale.of(200, 50)
        for _ in range(n):
            found = two_by_two(instance)
        spent.append((time.process_time() - started) / n)
        rows.append([f"{found.n_star:,.1f}", f"{spent[-1] * 1e3:.3f}"])
    times = max(spent) / min(spent)
    return Finding.of(times < 5, f"The slowest takes {times:.1f} times as long as the fastest.", rows)


def check_horizon(scale: Scale) -> Finding:
    """What the best threshold policy with at most H steps loses against the best of all, for every H."""
    worst, n = 0.0, scale.of(1000, 150)
    for seed in range(n):
        instance = random_instance(("column", "row", "diagonal")[seed % 3], seed=seed)
        best = two_by_two(instance).best[1].value
        most = float(instance.click.max())
        reached = -inf
        for h in range(31):
            walks = (Threshold(first=a, steps=h, then=1 - a) for a in (0, 1))
            reached = max(reached, *(evaluate(instance, walk).value for walk in walks))
            worst = max(worst, (best - reached) / (most**h / (1 - most)))
    return Finding.of(worst <= 1, f"At most {worst:.3f} of (1 − ε)^H / ε, for H up to 30 in {n:,} random instances.")


def check_size_of_set(_: Scale) -> Finding:
    """The number of different threshold policies."""
    sizes = {h: len(set(UCBHybrid.thresholds(10, epsilon=0.5, horizon=h).policies)) for h in (0, 1, 2, 5, 14, 100)}
    holds = all(size == 2 * h + 2 for h, size in sizes.items())
    return Finding.of(holds, ", ".join(f"H = {h}: {size}" for h, size in sizes.items()) + ", all different.")


def check_recursion(scale: Scale) -> Finding:
    """The recursion over counts against all walks, in fractions."""
    rng, worst, n = np.random.default_rng(9), 0.0, scale.of(60, 12)
    for _ in range(n):
        k, m = int(rng.integers(2, 4)), int(rng.integers(2, 5))
        click = [[Fraction(int(i), 100) for i in rng.integers(1, 100, m)] for _ in range(k)]
        shares = rng.integers(1, 50, m)
        prior = [Fraction(int(i), int(shares.sum())) for i in shares]
        steps = 9 if k == 2 else 6
        exact = best_first_steps(prior, click, steps)
        found = recursion(
            np.array([[float(q) for q in prior]]), np.array([[[float(p) for p in row] for row in click]]), steps
        )
        worst = max(worst, abs(float(found[0][0]) - float(exact)))
    return Finding.of(
        worst < 1e-12,
        f"Equal to the best of all walks on {n} random instances with 2 to 4 types (difference {worst:.0e}).",
    )


def check_recursion_time(scale: Scale) -> Finding:
    """The number of counts the recursion meets, and its time, as the horizon doubles."""
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
    holds = all(found <= k + 0.01 for k, found in slopes)
    shown = ", ".join(f"{found:.2f} for {k} categories" for k, found in slopes)
    return Finding.of(holds, f"Counts grow like the horizon to the power {shown}.", rows)


def check_recursion_error(scale: Scale) -> Finding:
    """What the first H steps leave out, against plans with a proven bracket, for many types and categories."""
    worst, n = 0.0, scale.of(150, 25)
    for seed in range(n):
        instance = random_instance("uniform", types=2 + seed % 4, categories=2 + seed % 2, seed=seed, depart=1.0)
        upper = plan(instance, 1e-9).upper
        most = float(instance.click.max())
        for h in (5, 10, 20, 30):
            found = float(recursion(instance.prior[None], instance.click[None], h)[0][0])
            worst = max(worst, (upper - found) / (most**h / (1 - most)))
    return Finding.of(worst <= 1, f"At most {worst:.3f} of (1 − ε)^H / ε, in {n} random instances with 2 to 5 types.")


def check_movielens(scale: Scale) -> Finding:
    """The scheme on film ratings, if there are any: instances, their plans, and a dominant genre."""
    if scale.movielens is None:
        return Finding(SKIPPED, "Film ratings are not at hand: give a MovieLens folder or zip with --movielens.")
    read = MovieLens.read(scale.movielens)
    rows = [["genres", "users", "types", "best fixed genre", "best policy", "gain"]]
    for genres in (None, ["Sci-Fi", "Drama", "Comedy"], ["Horror", "Romance", "Documentary"]):
        made = read.semi_synthetic(genres, 3, depart=1.0)
        instance = made.instance
        fixed, best = instance.best_fixed[1], plan(instance, 1e-6).value
        names = ", ".join(instance.categories or ())
        rows.append(
            [names, f"{made.users:,}", "3", f"{fixed:.4f}", f"{best:.4f}", f"{max(best / fixed - 1, 0.0):.2%}"]
        )
    return Finding.seen(
        "The scheme runs. With the rating itself as the chance of a click (the paper's 1 − r makes liked films less "
        "likely to be clicked) types are generous and harsh raters with the same favourite: planning gains little.",
        rows,
    )


def _structure_claim(structure: str, where: str, claim: str) -> Claim:
    return Claim(
        structure,
        where,
        claim,
        "The paper's policies against all walks (the recursion over counts), random instances and ties.",
        lambda scale: check_structure(structure, scale),
    )


CLAIMS = (
    Claim(
        "partition",
        "Section 5.2",
        "Every two by two matrix, relabelled so that P₁ₓ is its largest entry, has exactly one of three structures.",
        "All matrices on a grid.",
        check_partition,
    ),
    _structure_claim(
        "row",
        "Section 5.2, lemma on a dominant row",
        "With a dominant row the fixed policy of that category is optimal.",
    ),
    _structure_claim(
        "column",
        "Section 5.2, theorem on a dominant column",
        "With a dominant column one of always 1, always 2, and 2 for ⌊N*⌋ or ⌈N*⌉ steps and then 1 is optimal.",
    ),
    Claim(
        "switching-condition",
        "Appendix E, lemma on dominant columns",
        "Once Σ P₁ₓ^m₁P₂ₓ^m₂ over later steps exceeds a constant times that of type y, an optimal policy stays with "
        "category 1.",
        "The condition along the best walk of random instances.",
        check_switching_condition,
    ),
    Claim(
        "most-switches",
        "Appendix E, corollary",
        "The best policy recommends category 2 at most argmin_N times, where N is the first at which "
        "Σᵢ≤ₙ P₂ₓⁱ exceeds the constant times Σᵢ≤ₙ P₂ᵧⁱ.",
        "The best policy of random instances against the bound, taken as it is written.",
        check_most_switches,
    ),
    _structure_claim(
        "diagonal",
        "Section 5.2, theorem on a dominant diagonal",
        "With a dominant diagonal always 1 or always 2 is optimal.",
    ),
    Claim(
        "constant-time",
        "Section 5.2",
        "The best policy for two by two is found in constant time.",
        "The time for instances with N* from 10 to 10⁵.",
        check_constant_time,
    ),
    Claim(
        "size-of-set",
        "Section 5.3",
        "There are 2H + 2 threshold policies with at most H steps.",
        "They are counted.",
        check_size_of_set,
    ),
    Claim(
        "horizon",
        "Section 5.3, lemma on finite horizons",
        "The best threshold policy with at most H steps loses at most (1 − ε)^H / ε.",
        "Exact values on random instances of all structures, H from 0 to 30.",
        check_horizon,
    ),
    Claim(
        "recursion",
        "Appendix A",
        "The integer programme of the first H steps is solved by a recursion over counts.",
        "All walks, in fractions.",
        check_recursion,
    ),
    Claim(
        "recursion-time",
        "Appendix A and section 6",
        "The recursion takes O(H²) for two categories and O(H^K) for K.",
        "Counts are counted; the time is shown.",
        check_recursion_time,
    ),
    Claim(
        "recursion-error",
        "Appendix A",
        "For many types it loses at most 1/2^O(H), that is (1 − ε)^H / ε.",
        "Plans with a proven bracket.",
        check_recursion_error,
    ),
    Claim(
        "movielens",
        "Appendix B",
        "Instances can be made of rating data: genres are categories, users without a rating in one are dropped.",
        "The scheme on the MovieLens release that is given.",
        check_movielens,
    ),
)
