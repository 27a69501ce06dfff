"""Claims on UCB-Hybrid: the algorithm, and its regret with one type and with two by two (sections 3, 4 and 5.3)."""

from math import inf, log, sqrt

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.learning.ucb import UCBHybrid
from departing.model.examples import blog, hard
from departing.model.families import random_instance
from departing.model.instance import CLICK, DEPART, Floats, Instance
from departing.paper.claim import Claim, Finding, Scale
from departing.paper.plot import draw_bound
from departing.planning.plan import plan
from departing.plotting.figures import svg
from departing.simulation.regret_curve import slope
from departing.simulation.simulate import simulate

TAU = 0.3  # for learners that are to make up their minds in a check


def regret_bound(users: float, policies: int, tau: float, gap: float, eta: float = 1.0) -> float:
    """A bound on the expected regret of Algorithm 2 against the best of its policies, with all constants.

    While the bounds hold, a policy is given to a user only if twice its radius is at least what it loses, so all
    users of a policy lose at most twice the sum of its radii, and the first one `gap`. A mean is further away than
    its radius with a chance of at most 2 / users⁴ each time (Bernstein), which adds less than one user in all.

    >>> round(regret_bound(10**6, 30, 31.373, 0.017))
    8413084
    """
    t = log(users)
    early = 16 * sqrt(eta) * tau * t * (1 + log(max(8 * eta * t, 1.0)))
    late = 4 * sqrt(8 * tau**2 * t) * sqrt(policies * users)
    return policies * (gap + early) + late + gap


def check_algorithm(scale: Scale) -> Finding:
    """`dp.UCBHybrid` against Algorithm 2 written out, on the same users."""
    same, n, instance = 0, 0, blog()
    for seed in range(scale.of(20, 5)):
        learner = UCBHybrid.thresholds(1000, tau=TAU, horizon=3)
        laws = [evaluate(instance, policy).distribution.returns for policy in learner.policies]
        rng, bounds = np.random.default_rng(seed), np.full(len(laws), inf)
        tried, earned = np.zeros(len(laws)), np.zeros(len(laws))
        for user in range(1000):
            chosen = int(bounds.argmax())
            clicks = int(rng.choice(len(laws[chosen]), p=laws[chosen] / laws[chosen].sum()))
            tried[chosen] += 1
            earned[chosen] += clicks
            wide = 8 * TAU * log(1000) / tried[chosen] if tried[chosen] < 8 * log(1000) else 0.0
            narrow = sqrt(8 * TAU**2 * log(1000) / tried[chosen])
            bounds[chosen] = earned[chosen] / tried[chosen] + (wide or narrow)
            for step in range(clicks + 1):
                shown = learner.recommend([user])
                same += step == 0 and int(learner.versions([user])[0]) == chosen
                learner.observe([user], shown, [CLICK if step < clicks else DEPART])
            n += 1
    return Finding.of(same == n, f"The same policy for {same:,} of {n:,} users, in {n // 1000} runs.")


def _runs(learner: UCBHybrid, instance: Instance, users: int, runs: int) -> tuple[Floats, Floats]:
    """Checkpoints, and the regret of several runs there."""
    optimum = plan(instance, 1e-9)
    found = []
    for seed in range(runs):
        state = UCBHybrid.from_state(learner.state())
        run = simulate(instance, state, users, seed, optimum=optimum)
        found.append(run.regret)
    return run.checkpoints.astype(float), np.array(found)


def _gaps(learner: UCBHybrid, instance: Instance) -> Floats:
    best = plan(instance, 1e-9).value
    return np.array([best - evaluate(instance, policy).value for policy in learner.policies])


def check_general(scale: Scale) -> Finding:
    """Regret over sets of policies of several sizes, against the bound."""
    users, most, rows = scale.of(10**6, 10**5), 0.0, [["policies", "τ", "users", "regret", "bound"]]
    for horizon in (0, 4, 14):
        for tau in (TAU, 3.0):
            learner = UCBHybrid.thresholds(users, tau=tau, horizon=horizon)
            gaps = _gaps(learner, hard())
            points, regret = _runs(learner, hard(), users, 5)
            own = regret.mean(axis=0) - gaps.min() * points
            limit = regret_bound(users, len(gaps), tau, float(gaps.max()))
            most = max(most, float(own[-1]) / limit)
            rows.append([str(len(gaps)), f"{tau:g}", f"{users:,}", f"{own[-1]:,.0f}", f"{limit:,.0f}"])
    return Finding.of(
        most <= 1,
        f"Against the best policy of the set the regret is at most {most:.3f} of the bound with all constants, also "
        "with τ smaller than the paper proves.",
        rows,
    )


def check_one_type(scale: Scale) -> Finding:
    """Regret with one type and the proved τ, against the bound, with its slope."""
    users, rows, most = scale.of(10**8, 10**6), [["categories", "users", "regret", "slope", "bound"]], 0.0
    for seed, k in enumerate((2, 5, 10)):
        instance = random_instance("uniform", types=1, categories=k, seed=seed)
        learner = UCBHybrid.fixed(k, users, epsilon=1 - float(instance.click.max()))
        gaps = _gaps(learner, instance)
        points, regret = _runs(learner, instance, users, scale.of(5, 2))
        limits = np.array([regret_bound(max(t, 2), k, learner.tau, float(gaps.max())) for t in points])
        grown = slope(points, regret, users / 100, users).value
        most = max(most, float((regret.mean(axis=0) / limits).max()))
        rows.append([str(k), f"{users:,}", f"{regret[:, -1].mean():,.0f}", f"{grown:.2f}", f"{limits[-1]:,.0f}"])
    found = Finding.of(most <= 1, f"Regret is at most {most:.3f} of the bound.", rows)
    figure = draw_bound(f"UCB-Hybrid with one type and {k} categories", points, regret, limits, gaps.mean() * points)
    return found.with_picture(svg(figure), "Regret beside the bound.")


def check_two_by_two(scale: Scale) -> Finding:
    """Regret on the hard instance with the proved τ, and with one that bites, beside the bound."""
    users, instance, rows = scale.of(10**8, 10**6), hard(), [["τ", "users", "regret", "slope", "bound"]]
    pictures, slopes, most = [], [], 0.0
    for tau in (None, TAU):
        epsilon = 1 - float(instance.click.max()) if tau is None else None
        learner = UCBHybrid.thresholds(users, tau=tau, epsilon=epsilon)
        gaps = _gaps(learner, instance)
        points, regret = _runs(learner, instance, users, scale.of(5, 2))
        limits = np.array([regret_bound(max(t, 2), len(gaps), learner.tau, float(gaps.max())) for t in points])
        grown = slope(points, regret, users / 100, users).value
        slopes.append(grown)
        most = max(most, float((regret.mean(axis=0) / limits).max()))
        rows.append(
            [f"{learner.tau:.1f}", f"{users:,}", f"{regret[:, -1].mean():,.0f}", f"{grown:.2f}", f"{limits[-1]:,.0f}"]
        )
        pictures.append((points, regret, limits, gaps.mean() * points))
    found = Finding.of(
        most <= 1,
        f"Regret on the hard instance is at most {most:.3f} of the bound. Over the last two decades of {users:,} "
        f"users it grows like users to the power {slopes[0]:.2f} with the proved τ, and "
        f"{slopes[1]:.2f} with a smaller one.",
        rows,
    )
    figure = draw_bound("UCB-Hybrid on the hard instance of two by two, τ = 0.3", *pictures[1])
    return found.with_picture(svg(figure), "Regret beside the bound.")


CLAIMS = (
    Claim(
        "algorithm",
        "Section 3, Algorithm 2",
        "UCB-Hybrid gives every user a policy with the largest upper confidence bound, with two radii.",
        "dp.UCBHybrid against the algorithm written out line by line.",
        check_algorithm,
    ),
    Claim(
        "general-regret",
        "Section 3, theorem on UCB-Hybrid",
        "Against the best policy of the set the regret is O(√(|Π| T log T) + |Π| log T).",
        "Measured regret against a bound of that form with all of its constants.",
        check_general,
    ),
    Claim(
        "one-type",
        "Section 4, theorem on one type",
        "With one type UCB-Hybrid over the fixed categories has regret O(√(K T log T) + K log T).",
        "Measured regret and its slope beside the bound.",
        check_one_type,
    ),
    Claim(
        "two-by-two",
        "Section 5.3, theorem on two by two",
        "UCB-Hybrid over the 2H + 2 threshold policies, H = Θ(ln T), has regret O(√T ln T).",
        "Measured regret and its slope beside the bound.",
        check_two_by_two,
    ),
)
