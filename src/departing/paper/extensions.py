"""What was found beyond the paper, each with a proof or with measured evidence."""

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
from departing.paper.claim import Claim, Finding, Scale
from departing.paper.exact import best_to_counts, walk_value
from departing.paper.plot import draw_shares
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
DEPTH = 30  # steps of the policies of two categories; what comes later is bounded


def check_counter_example(_: Scale) -> Finding:
    """The value of the three-category walk against an upper bound of every policy of two categories, in fractions."""
    value = walk_value(COUNTER_PRIOR, COUNTER_CLICK, [0, 2], 1)
    rivals = {}
    for pair in combinations(range(3), 2):
        click = [COUNTER_CLICK[a] for a in pair]
        known = [max(p / (1 - p) for p in column) for column in zip(*click, strict=True)]
        reached = best_to_counts(COUNTER_PRIOR, click, DEPTH).values()
        rivals[pair] = max(now + sum(w * v for w, v in zip(weights, known, strict=True)) for now, weights in reached)
    lead = value - max(rivals.values())
    rows = [["policies", "value"], ["0, 2, 1, 1, 1, …", f"{float(value):.6f}, exactly"]]
    rows += [[f"any of categories {a} and {b}", f"at most {float(most):.6f}"] for (a, b), most in rivals.items()]
    return Finding.of(
        lead <= 0,
        "With prior (0.73, 0.27) and click chances (0.52, 0.73), (0.35, 0.82), (0.42, 0.80) the walk 0, 2, 1, 1, … "
        f"beats every policy of two categories by more than {float(lead):.5f}; these are bounded by their best "
        f"{DEPTH} steps, after which the type is taken to be known.",
        rows,
    )


def check_how_often(scale: Scale) -> Finding:
    """How often three categories or more are needed, and for how much, as there are more of them."""
    rows, n = (
        [["categories", "instances", "need three or more", "they lose without, mean", "at most"]],
        scale.of(10_000, 500),
    )
    for k in (3, 4, 6, 10, 20):
        lost = np.array([_without_a_third(random_instance("uniform", 2, k, seed, depart=1.0)) for seed in range(n)])
        needs = lost > 1e-6
        mean = lost[needs].mean() if needs.any() else 0.0
        rows.append([str(k), f"{n:,}", f"{needs.mean():.2%}", f"{mean:.2%}", f"{lost.max():.2%}"])
    return Finding.seen(
        "With two types and sure departure three categories are seldom needed, more often where there are many, and "
        "matter little where they are.",
        rows,
    )


def _without_a_third(instance: Instance) -> float:
    """The share of the optimum that every policy of two categories certainly loses."""
    best = plan(instance, 1e-8)
    if isinstance(best.policy, Schedule) and len(set(best.policy.phase_categories.tolist())) <= 2:
        return 0.0
    pairs = (plan(instance, 1e-8, allowed=list(pair)).upper for pair in combinations(range(instance.n_categories), 2))
    return max(best.lower - max(pairs), 0.0) / best.lower


def check_when_constants_bite(scale: Scale) -> Finding:
    """How many users it takes until the proved radii tell the policies of an instance apart."""
    rows = [
        [
            "instance",
            "τ",
            "worst policy loses",
            "users until the radius is half of that",
            "regret at so many",
            "in turn",
        ]
    ]
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
        turn = float(gaps.mean()) * users
        rows.append(
            [
                name,
                f"{tau:.1f}",
                f"{gap:.4f}",
                f"{needed:.1e}",
                f"{run.regret[-1]:,.0f} ({users:.0e})",
                f"{turn:,.0f}",
            ]
        )
    return Finding.seen(
        "With the constants that are proved, UCB-Hybrid plays its policies almost in turn until that many users have "
        "come: the radius of a policy must shrink below half of what the worst policy loses.",
        rows,
    )


def check_open_problems(scale: Scale) -> Finding:
    """Regret of learners for any number of categories and uncertain departure, on random instances of both."""
    users = scale.of(10**6, 30_000)
    rows = [["problem", "learner", "users", "regret", "best fixed category"]]
    pictures = []
    problems = (("three categories, sure departure", 3, 1.0), ("uncertain departure", 2, None))
    for name, k, depart in problems:
        instance = _that_needs_planning(k, depart)
        best = plan(instance, 1e-7)
        lost = best.value - instance.best_fixed[1]
        curves = []
        for learner in (Bayes(2, k, seed=1, users=users), LatticeUCB(k, users=users, seed=1)):
            run = simulate(instance, learner, users, 1, optimum=best)
            label = "Bayes" if isinstance(learner, Bayes) else "lattice"
            curves.append(Curves(label, run.checkpoints.astype(float), run.regret[None], (name,), lost, 0.0))
            rows.append([name, label, f"{users:,}", f"{run.regret[-1]:,.0f}", f"{lost * users:,.0f}"])
        pictures.append(svg(draw_regret(f"Regret with {name}", curves)))
    found = Finding.seen(
        "Both problems that the paper leaves open can be learned. Bayes, which is told the number of types, soon "
        "stops losing; the lattice learner is told nothing and takes far more users to beat the best fixed category. "
        "The study open-problems has many instances, seeds and users.",
        rows,
    )
    return found.with_picture("".join(pictures), "Clicks lost against users.")


def _that_needs_planning(categories: int, depart: float | None) -> Instance:
    """The first random instance whose best fixed category loses 2 %."""
    for seed in range(10_000):
        instance = random_instance("uniform", types=2, categories=categories, seed=seed, depart=depart)
        best = plan(instance, 1e-4).lower
        if best > 1.02 * instance.best_fixed[1]:
            return instance
    raise AssertionError


def like_film_ratings(seed: int) -> Instance:
    """A random instance like those that the paper's scheme makes of three genres of MovieLens and three types.

    Raters differ in how generous they are (a standard deviation of 0.083), genres little (0.02), and what a type
    likes more than others even less (0.014); the mean chance is 0.65.
    """
    rng = np.random.default_rng(seed)
    generous, genre, taste = rng.normal(0, 0.083, 3), rng.normal(0, 0.02, (3, 1)), rng.normal(0, 0.014, (3, 3))
    return Instance(rng.dirichlet([2, 2, 2]), 0.65 + generous + genre + taste, rng.uniform(0.2, 0.9))


def of_film_ratings(path: Path, n: int) -> Iterator[Instance]:
    """Instances of random triples of the twelve most rated genres of a MovieLens release."""
    read, rng = MovieLens.read(path), np.random.default_rng(0)
    names = [genre.name for genre in read.genres[:12]]
    for seed in range(n):
        genres = rng.choice(names, min(3, len(names)), replace=False).tolist()
        yield read.semi_synthetic(genres, 3, depart=rng.uniform(0.2, 0.9), seed=seed).instance


def check_myopia(scale: Scale) -> Finding:
    """What the best policy brings more than greedy and than the best fixed category, over families of instances."""
    rows = [
        ["instances", "more than greedy: median", "9 in 10", "most", "more than fixed: median", "9 in 10", "most"]
    ]
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
        over = np.array([_gains(instance) for instance in instances])
        shown = [f"{x:.1%}" for column in over.T for x in (np.median(column), np.quantile(column, 0.9), column.max())]
        rows.append([name, *shown])
        curves.append((name, over[:, 0]))
    figure = draw_shares("What planning brings more than greedy", "more clicks than greedy, %", curves)
    found = Finding.seen(
        "Planning pays where types differ in what they like and users stay long. Film ratings differ in how generous "
        "raters are, and hardly in what they like: there it brings next to nothing.",
        rows,
    )
    return found.with_picture(svg(figure), "Shares of random instances.")


def _gains(instance: Instance) -> tuple[float, float]:
    """What the best policy certainly brings more than greedy and than the best fixed category, as shares."""
    best = plan(instance, 1e-3, seconds=2.0).lower
    greedy = evaluate(instance, Greedy(instance), 1e-4, 20_000).upper
    fixed = instance.best_fixed[1]
    return max(best / greedy - 1, 0.0), max(best / fixed - 1, 0.0)


def check_departing_after_clicks(scale: Scale) -> Finding:
    """What is lost by a plan that does not know that some users leave after a click."""
    rows, n = (
        [["chance to depart after a click", "best policy differs", "loss of a plan without it, mean", "most"]],
        scale.of(200, 25),
    )
    for chance in (0.02, 0.1, 0.3):
        losses = []
        for seed in range(n):
            plain = random_instance("specialists", types=2, categories=3, seed=seed)
            rng = np.random.default_rng(seed)
            real = Instance(plain.prior, plain.click, plain.depart, rng.uniform(0, 2 * chance, plain.click.shape))
            best, blind = plan(real, 1e-4, seconds=2.0), plan(plain, 1e-4, seconds=2.0)
            losses.append(max(1 - evaluate(real, blind.policy, 1e-5, 20_000).upper / best.lower, 0.0))
        lost = np.array(losses)
        rows.append(
            [f"{chance:.0%} on average", f"{(lost > 1e-4).mean():.0%}", f"{lost.mean():.2%}", f"{lost.max():.1%}"]
        )
    return Finding.seen(
        "Real users leave after clicks too (a third of the departures in OULAD). A plan that does not know it is "
        "still good where that is rare, and loses some percent where it is not.",
        rows,
    )


CLAIMS = (
    Claim(
        "two-categories",
        "Section 6, first future direction",
        "With two types and sure departure an optimal policy mixes two categories only (a conjecture).",
        "A counter-example in fractions, with every policy of two categories bounded from above.",
        check_counter_example,
    ),
    Claim(
        "how-often",
        "Beyond the paper",
        "How often are three categories or more needed, and what do they bring?",
        "Plans with all categories and with every two of them, on random instances.",
        check_how_often,
    ),
    Claim(
        "constants",
        "Beyond the paper",
        "How many users must come before UCB-Hybrid's constants bite?",
        "The radius in closed form, and a run.",
        check_when_constants_bite,
    ),
    Claim(
        "open-problems",
        "Section 6, both future directions",
        "Can more than two categories, and uncertain departure, be learned?",
        "Two learners on an instance of each where planning matters.",
        check_open_problems,
    ),
    Claim(
        "myopia",
        "Beyond the paper",
        "What does planning bring more than being greedy?",
        "Plans, greedy and fixed categories on random instances of several families.",
        check_myopia,
    ),
    Claim(
        "after-clicks",
        "Beyond the paper",
        "What changes if users may depart after a click?",
        "Plans that know it and plans that do not, on random instances.",
        check_departing_after_clicks,
    ),
)
