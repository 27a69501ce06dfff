"""Extensions of the paper: a counterexample to a conjecture, and measurements."""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, count, islice
from math import ceil, floor, log
from pathlib import Path

import numpy as np

from departing.data.movielens import MovieLens
from departing.evaluation.evaluate import evaluate
from departing.learning.bayes import Bayes
from departing.learning.lattice import LatticeUCB
from departing.learning.ucb import UCBHybrid, proved_tau
from departing.model.examples import blog, hard
from departing.model.families import random_instance
from departing.model.instance import Floats, Instance
from departing.paper import formulas
from departing.paper.exact import BLOG, best_to_counts, walk_value
from departing.paper.item import Finding, Scale, check
from departing.paper.plot import draw_survival
from departing.planning.plan import Plan, plan
from departing.plotting.figures import svg
from departing.policy.greedy import Greedy
from departing.policy.schedule import Schedule
from departing.simulation.run import Run
from departing.simulation.simulate import simulate
from departing.studies.plot import draw_regret
from departing.studies.results import Curves

COUNTER_PRIOR = (Fraction(73, 100), Fraction(27, 100))
COUNTER_CLICK = (
    (Fraction(52, 100), Fraction(73, 100)),
    (Fraction(35, 100), Fraction(82, 100)),
    (Fraction(42, 100), Fraction(80, 100)),
)
GROWTH = 0.5  # block size of learners as a share of the users so far: larger than the default, for speed
QUICK_GROWTH = 2.0  # of quick runs
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
    rows = [["policies", "value"], ["1, 3, 2, 2, 2, …", f"{float(value):.6f} (exact)"]]
    rows += [
        [f"all of categories {a + 1} and {b + 1}", f"at most {ceil(bound * 10**6) / 10**6:.6f}"]
        for (a, b), bound in bounds.items()
    ]
    return Finding.of(
        lead <= 0,
        "Counterexample: with the prior (0.73, 0.27) and the click probabilities (0.52, 0.73), (0.35, 0.82), "
        f"(0.42, 0.80), the walk 1, 3, 2, 2, … beats every policy of two categories by more than "
        f"{floor(lead * 10**5) / 10**5:.5f}. "
        f"These are bounded by their best {DEPTH} steps, after which the type is assumed to be known.",
        rows,
    )


@check("how-often")
def check_how_often(scale: Scale) -> Finding:
    """Plans with all categories and with every pair of categories, on random instances."""
    rows, n = (
        [["categories", "instances", "need three or more", "mean loss without", "maximum"]],
        scale.of(10_000, 200),
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
        epsilon = float(instance.departure_probabilities.min())
        tau = proved_tau(epsilon)
        learner = UCBHybrid.thresholds(users, epsilon=epsilon, horizon="paper")
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
    """Two learners on random instances on which the best fixed category loses 2% or more, with several seeds each."""
    users, n, seeds = scale.of(10**5, 300), scale.of(5, 2), range(scale.of(5, 2))
    growth = QUICK_GROWTH if scale.quick else GROWTH
    rows = [
        ["problem", "learner", "regret: mean", "standard deviation", "of best fixed category: mean", "min", "max"]
    ]
    plots, evidence = [], []
    for name, k, depart in (("three categories, sure departure", 3, 1.0), ("uncertain departure", 2, None)):
        instances = list(islice(_instances_that_need_planning(k, depart), n))
        best = [plan(instance, 1e-7) for instance in instances]
        losses = np.repeat([one.value - one.instance.best_fixed[1] for one in best], len(seeds))
        curves, shares = [], []
        for label in ("Bayes", "lattice"):
            runs = [_learn(label, one, users, seed, growth) for one in best for seed in seeds]
            regret = np.array([run.regret for run in runs])
            checkpoints, names = runs[0].checkpoints.astype(float), (name,) * len(runs)
            curves.append(Curves(label, checkpoints, regret, names, float(losses.mean()), 0.0))
            share = regret[:, -1] / (losses * users)
            shares.append(f"{share.mean():.2f} ± {share.std(ddof=1):.2f} ({label})")
            cells = [f"{regret[:, -1].mean():,.0f}", f"{regret[:, -1].std(ddof=1):,.0f}"]
            rows.append([name, label, *cells, *(f"{x:.2f}" for x in (share.mean(), share.min(), share.max()))])
        evidence.append(f"{name}: {' and '.join(shares)}")
        plots.append(svg(draw_regret(f"Regret with {name}", curves)))
    return Finding.measured(
        f"Regret as a share of that of the best fixed category, mean and standard deviation over {n} instances, each "
        f"with {len(seeds)} seeds and {users:,} users: {'; '.join(evidence)}. Bayes knows the number of "
        "types, the lattice learner does not. "
        + (f"A quick run of {users:,} users is too short to judge a learner. " if scale.quick else "")
        + "The study open-problems covers more instances and users.",
        rows,
        "".join(plots),
        "Regret against users, mean over instances and seeds.",
    )


def _learn(label: str, best: Plan, users: int, seed: int, growth: float) -> Run:
    """Simulate users with a learner."""
    k = best.instance.n_categories
    learner = (
        Bayes(2, k, seed=seed, users=users, growth=growth)
        if label == "Bayes"
        else LatticeUCB(k, users=users, seed=seed, growth=growth)
    )
    return simulate(best.instance, learner, users, seed, optimum=best)


def _instances_that_need_planning(categories: int, depart: float | None) -> Iterator[Instance]:
    """Random instances on which the best fixed category loses 2%."""
    for seed in count():
        instance = random_instance("uniform", types=2, categories=categories, seed=seed, depart=depart)
        if plan(instance, 1e-4).lower > 1.02 * instance.best_fixed[1]:
            yield instance


@check("uncertain-walks")
def check_uncertain_walks(_: Scale) -> Finding:
    """All histories of the example under the greedy policy, with their beliefs, in exact fractions."""
    uncertain = formulas.UNCERTAIN_DEPARTURE
    rows = [["steps", "histories with Λ = 1", "beliefs", f"histories with Λ = {uncertain}", "beliefs"]]
    reached = {depart: [BLOG[0]] for depart in (Fraction(1), uncertain)}
    most = 0
    for steps in range(1, 7):
        cells = [str(steps)]
        for depart, histories in reached.items():
            reached[depart] = [after for weights in histories for after in _active_after(weights, depart)]
            beliefs = {x / (x + y) for x, y in reached[depart]}
            cells += [str(len(reached[depart])), str(len(beliefs))]
        most = len(beliefs)
        rows.append(cells)
    first = " and ".join(str(x / (x + y)) for x, y in _active_after(BLOG[0], uncertain))
    return Finding.of(
        most > 1,
        f"In the example with Λ = {uncertain} the beliefs in type x of active users after one step, by whether they "
        f"clicked, are {first}. After six steps of the greedy policy there are {most} beliefs; with sure departure "
        "there is one.",
        rows,
    )


def _active_after(weights: Sequence[Fraction], depart: Fraction) -> list[tuple[Fraction, Fraction]]:
    """Weights of the types after the category with the larger probability of a click: clicked, and stayed."""
    row = max(BLOG[1], key=lambda row: sum(w * p for w, p in zip(weights, row, strict=True)))
    (x, y), (p, q) = weights, row
    after = [(x * p, y * q), (x * (1 - p) * (1 - depart), y * (1 - q) * (1 - depart))]
    return [pair for pair in after if any(pair)]


@check("arms-cost")
def check_arms_cost(scale: Scale) -> Finding:
    """UCB over 2 to 64 fixed categories and one type, one of them best and all others alike, with several gaps."""
    users, seeds = scale.of(10**6, 10**5), range(scale.of(10, 2))
    arms, gaps = (2, 4, 8, 16, 32, 64), (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
    regrets = np.array(
        [[np.mean([_bandit_regret(k, gap, users, seed) for seed in seeds]) for gap in gaps] for k in arms]
    )
    rows = [["arms", *(f"gap {gap}" for gap in gaps), "largest"]]
    rows += [[str(k), *(f"{x:,.0f}" for x in (*row, row.max()))] for k, row in zip(arms, regrets, strict=True)]
    given, worst = (_growth(arms, column) for column in (regrets[:, -1], regrets.max(axis=1)))
    return Finding.measured(
        f"With a gap of {gaps[-1]} the regret of UCB grows like (K − 1)^{given:.2f} with the number of arms K. The "
        f"largest over all gaps grows like (K − 1)^{worst:.2f} ({users:,} users, mean of {len(seeds)} runs).",
        rows,
    )


def _growth(arms: Sequence[int], regret: Floats) -> float:
    """Exponent of the growth of regret with the number of other arms, from a line through the logarithms."""
    return float(np.polyfit(np.log(np.subtract(arms, 1)), np.log(regret), 1)[0])


def _bandit_regret(arms: int, gap: float, users: int, seed: int) -> float:
    """Regret of UCB with one arm of value 1 and all others of value 1 − `gap`, in clicks."""
    values = np.array([[1.0], *[[1 - gap]] * (arms - 1)])
    instance = Instance([1.0], values / (1 + values))
    learner = UCBHybrid.fixed(arms, users, scale="estimated")
    return float(simulate(instance, learner, users, seed, optimum=1.0).regret[-1])


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
    curves, n = [], scale.of(400, 8)
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
    rows, n = [["P(departure after a click)", "instances with a loss", "mean loss", "max"]], scale.of(200, 12)
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
