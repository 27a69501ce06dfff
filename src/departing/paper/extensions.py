"""Extensions of the paper: a counterexample to a conjecture, and measurements."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import combinations
from math import log
from pathlib import Path

import numpy as np

from departing.data.movielens import MovieLens
from departing.evaluation.evaluate import evaluate
from departing.learning.bayes import Bayes
from departing.learning.lattice import LatticeUCB
from departing.learning.ucb import UCBHybrid, proved_tau
from departing.model.examples import blog, hard
from departing.model.families import random_instance
from departing.model.instance import Instance
from departing.paper.exact import best_to_counts, walk_value
from departing.paper.item import Finding, Scale, check
from departing.paper.plot import draw_survival
from departing.planning.plan import plan
from departing.plotting.figures import svg
from departing.policy.greedy import Greedy
from departing.policy.schedule import Schedule
from departing.simulation.simulate import simulate
from departing.studies.plot import draw_regret
from departing.studies.results import Curves

COUNTER_PRIOR = (Fraction(73, 100), Fraction(27, 100))
COUNTER_CLICK = (
    (Fraction(52, 100), Fraction(73, 100)),
    (Fraction(35, 100), Fraction(82, 100)),
    (Fraction(42, 100), Fraction(80, 100)),
)
DEPTH = 30  # steps after which the value of policies of two categories is bounded: 0.82^30 of the users are active


@check("two-categories")
def check_counter_example(_: Scale) -> Finding:
    """A counterexample in exact fractions, with an upper bound for every policy of two categories."""
    value = walk_value(COUNTER_PRIOR, COUNTER_CLICK, [0, 2], 1)
    bounds = {}
    for pair in combinations(range(3), 2):
        click = [COUNTER_CLICK[a] for a in pair]
        known = [max(p / (1 - p) for p in column) for column in zip(*click, strict=True)]
        reached = best_to_counts(COUNTER_PRIOR, click, DEPTH).values()
        bounds[pair] = max(now + sum(w * v for w, v in zip(weights, known, strict=True)) for now, weights in reached)
    lead = value - max(bounds.values())
    rows = [["policies", "value"], ["0, 2, 1, 1, 1, …", f"{float(value):.6f} (exact)"]]
    rows += [[f"all of categories {a} and {b}", f"at most {float(bound):.6f}"] for (a, b), bound in bounds.items()]
    return Finding.of(
        lead <= 0,
        "Counterexample: with the prior (0.73, 0.27) and the click probabilities (0.52, 0.73), (0.35, 0.82), "
        f"(0.42, 0.80), the walk 0, 2, 1, 1, … beats every policy of two categories by more than {float(lead):.5f}. "
        f"These are bounded by their best {DEPTH} steps, after which the type is assumed to be known.",
        rows,
    )


@check("how-often")
def check_how_often(scale: Scale) -> Finding:
    """Plans with all categories and with every pair of categories, on random instances."""
    rows, n = (
        [["categories", "instances", "need three or more", "mean loss without", "maximum"]],
        scale.of(10_000, 500),
    )
    for k in (3, 4, 6, 10, 20):
        losses = np.array([_two_category_loss(random_instance("uniform", 2, k, s, depart=1.0)) for s in range(n)])
        needs = losses > 1e-6
        mean = losses[needs].mean() if needs.any() else 0.0
        rows.append([str(k), f"{n:,}", f"{needs.mean():.2%}", f"{mean:.2%}", f"{losses.max():.2%}"])
    return Finding.measured(
        "With two types and sure departure, three categories are rarely needed; more often if there are many "
        "categories, and their effect is small.",
        rows,
    )


def _two_category_loss(instance: Instance) -> float:
    """Share of the optimum that every policy of two categories certainly loses."""
    best = plan(instance, 1e-8)
    if isinstance(best.policy, Schedule) and len(set(best.policy.phase_categories.tolist())) <= 2:
        return 0.0
    pairs = (plan(instance, 1e-8, allowed=list(pair)).upper for pair in combinations(range(instance.n_categories), 2))
    return max(best.lower - max(pairs), 0.0) / best.lower


@check("constants")
def check_constants(scale: Scale) -> Finding:
    """Confidence radius in closed form, and one run."""
    rows = [["instance", "τ", "largest loss", "users until the radius is half of it", "regret (users)", "in turn"]]
    users = scale.of(3 * 10**8, 10**6)
    for name, instance in (("the paper's example", blog()), ("hard", hard())):
        tau = proved_tau(1 - float(instance.click.max()))
        learner = UCBHybrid.thresholds(users, epsilon=1 - float(instance.click.max()))
        best = plan(instance, 1e-9)
        gaps = np.array([best.value - evaluate(instance, policy).value for policy in learner.policies])
        gap = float(gaps.max())
        needed = 1e6
        for _ in range(50):
            needed = len(gaps) * 32 * tau**2 * log(needed) / gap**2
        run = simulate(instance, learner, users, 1, optimum=best)
        regret, in_turn = f"{run.regret[-1]:,.0f} ({users:.0e})", f"{float(gaps.mean()) * users:,.0f}"
        rows.append([name, f"{tau:.1f}", f"{gap:.4f}", f"{needed:.1e}", regret, in_turn])
    return Finding.measured(
        "With the proved constants, UCB-Hybrid uses its policies almost in turn for that many users, until the "
        "confidence radius of a policy falls below half of the largest loss.",
        rows,
    )


@check("open-problems")
def check_open_problems(scale: Scale) -> Finding:
    """Two learners on one instance of each kind on which planning matters."""
    users = scale.of(10**6, 30_000)
    rows = [["problem", "learner", "users", "regret", "best fixed category"]]
    plots = []
    problems = (("three categories, sure departure", 3, 1.0), ("uncertain departure", 2, None))
    for name, k, depart in problems:
        instance = _instance_that_needs_planning(k, depart)
        best = plan(instance, 1e-7)
        loss = best.value - instance.best_fixed[1]
        curves = []
        for learner in (Bayes(2, k, seed=1, users=users), LatticeUCB(k, users=users, seed=1)):
            run = simulate(instance, learner, users, 1, optimum=best)
            label = "Bayes" if isinstance(learner, Bayes) else "lattice"
            curves.append(Curves.of_run(label, run, name, loss))
            rows.append([name, label, f"{users:,}", f"{run.regret[-1]:,.0f}", f"{loss * users:,.0f}"])
        plots.append(svg(draw_regret(f"Regret with {name}", curves)))
    return Finding.measured(
        "Both open problems can be learned. The regret of Bayes, which knows the number of types, levels off soon. "
        "The lattice learner does not know it and needs far more users to beat the best fixed category. The study "
        "open-problems covers many instances, seeds and users.",
        rows,
        "".join(plots),
        "Regret against users.",
    )


def _instance_that_needs_planning(categories: int, depart: float | None) -> Instance:
    """First random instance on which the best fixed category loses 2%."""
    for seed in range(10_000):
        instance = random_instance("uniform", types=2, categories=categories, seed=seed, depart=depart)
        best = plan(instance, 1e-4).lower
        if best > 1.02 * instance.best_fixed[1]:
            return instance
    raise AssertionError


def like_film_ratings(seed: int) -> Instance:
    """Random instance like those of the paper's scheme for three genres of MovieLens and three types.

    The click probability has a mean of 0.65 and standard deviations of 0.083 between types (generous and harsh
    raters), 0.02 between genres, and 0.014 between the tastes of types.
    """
    rng = np.random.default_rng(seed)
    generosity, genre, taste = rng.normal(0, 0.083, 3), rng.normal(0, 0.02, (3, 1)), rng.normal(0, 0.014, (3, 3))
    return Instance(rng.dirichlet([2, 2, 2]), 0.65 + generosity + genre + taste, rng.uniform(0.2, 0.9))


def of_film_ratings(path: Path, n: int) -> Iterator[Instance]:
    """Instances from random triples of the twelve most rated genres of a MovieLens release."""
    ratings, rng = MovieLens.read(path), np.random.default_rng(0)
    names = [genre.name for genre in ratings.genres[:12]]
    for seed in range(n):
        genres = rng.choice(names, min(3, len(names)), replace=False).tolist()
        yield ratings.semi_synthetic(genres, 3, depart=rng.uniform(0.2, 0.9), seed=seed).instance


@check("planning-gain")
def check_planning_gain(scale: Scale) -> Finding:
    """Plans, greedy and fixed policies on random instances of several families."""
    rows = [["instances", "gain over greedy: median", "90%", "max", "gain over fixed: median", "90%", "max"]]
    curves, n = [], scale.of(400, 40)
    families: dict[str, Iterable[Instance]] = {
        "uniform": (random_instance("uniform", 3, 3, seed) for seed in range(n)),
        "sure departure": (random_instance("uniform", 3, 3, seed, depart=1.0) for seed in range(n)),
        "specialists": (random_instance("specialists", 3, 3, seed) for seed in range(n)),
        "long stays": (random_instance("sticky", 2, 3, seed) for seed in range(n)),
        "like film ratings": (like_film_ratings(seed) for seed in range(n)),
    }
    if scale.movielens is not None:
        families["film ratings"] = of_film_ratings(scale.movielens, scale.of(40, 10))
    for name, instances in families.items():
        gains = np.array([_gains(instance) for instance in instances])
        cells = [
            f"{x:.1%}" for column in gains.T for x in (np.median(column), np.quantile(column, 0.9), column.max())
        ]
        rows.append([name, *cells])
        curves.append((name, gains[:, 0]))
    return Finding.measured(
        "Planning gains most if types differ in their preferences and users stay long. Film raters differ in "
        "generosity but hardly in preferences, so planning gains almost nothing there.",
        rows,
        svg(draw_survival("Gain of the optimal policy over greedy", "gain over greedy, %", curves)),
        "Share of random instances with at least this gain.",
    )


def _gains(instance: Instance) -> tuple[float, float]:
    """Certain relative gains of the optimal policy over greedy and over the best fixed category."""
    best = plan(instance, 1e-3, seconds=2.0).lower
    greedy = evaluate(instance, Greedy(instance), 1e-4, 20_000).upper
    fixed = instance.best_fixed[1]
    return max(best / greedy - 1, 0.0), max(best / fixed - 1, 0.0)


@check("after-clicks")
def check_departing_after_clicks(scale: Scale) -> Finding:
    """Plans with and without departures after clicks, on random instances."""
    rows, n = [["P(departure after a click)", "instances with a loss", "mean loss", "max"]], scale.of(200, 25)
    for mean in (0.02, 0.1, 0.3):
        losses = []
        for seed in range(n):
            plain = random_instance("specialists", types=2, categories=3, seed=seed)
            rng = np.random.default_rng(seed)
            real = Instance(plain.prior, plain.click, plain.depart, rng.uniform(0, 2 * mean, plain.click.shape))
            best, blind = plan(real, 1e-4, seconds=2.0), plan(plain, 1e-4, seconds=2.0)
            losses.append(max(1 - evaluate(real, blind.policy, 1e-5, 20_000).upper / best.lower, 0.0))
        loss = np.array(losses)
        cells = [f"{(loss > 1e-4).mean():.0%}", f"{loss.mean():.2%}", f"{loss.max():.1%}"]
        rows.append([f"{mean:.0%} on average", *cells])
    return Finding.measured(
        "Real users depart after clicks too (a third of the departures in OULAD). A plan that ignores this is good "
        "if such departures are rare, and loses a few percent otherwise.",
        rows,
    )
