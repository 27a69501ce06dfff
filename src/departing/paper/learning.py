"""Claims on UCB-Hybrid and its regret with one type and on 2 × 2 instances (sections 3, 4 and 5.3)."""

from math import inf, log, sqrt

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.learning.ucb import UCBHybrid
from departing.model.examples import blog, hard
from departing.model.families import random_instance
from departing.model.instance import CLICK, DEPART, Floats, Instance
from departing.paper.item import Finding, Scale, check
from departing.paper.plot import draw_bound
from departing.planning.plan import plan
from departing.plotting.figures import svg
from departing.simulation.regret_curve import slope
from departing.simulation.simulate import simulate

TAU = 0.3  # far below the proved τ, so that learners commit to a policy within the users of a check


def regret_bound(users: float, policies: int, tau: float, gap: float, eta: float = 1.0) -> float:
    """Upper bound of the expected regret of Algorithm 2 against the best of its policies, with all constants.

    While the confidence bounds hold, a policy is used only if twice its radius is at least its loss, so all users
    of a policy lose at most twice the sum of its radii, and the first one `gap`. A mean deviates by more than its
    radius with probability at most 2 / users⁴ each time (Bernstein), which adds less than one user in total.

    >>> round(regret_bound(10**6, 30, 31.373, 0.017))
    8413084
    """
    t = log(users)
    early = 16 * sqrt(eta) * tau * t * (1 + log(max(8 * eta * t, 1.0)))
    late = 4 * sqrt(8 * tau**2 * t) * sqrt(policies * users)
    return policies * (gap + early) + late + gap


@check("algorithm")
def check_algorithm(scale: Scale) -> Finding:
    """dp.UCBHybrid against the algorithm written out line by line."""
    same, n, instance = 0, 0, blog()
    for seed in range(scale.of(20, 5)):
        learner = UCBHybrid.thresholds(1000, tau=TAU, horizon=3)
        returns = [evaluate(instance, policy).distribution.returns for policy in learner.policies]
        rng, bounds = np.random.default_rng(seed), np.full(len(returns), inf)
        pulls, total = np.zeros(len(returns)), np.zeros(len(returns))
        for user in range(1000):
            arm = int(bounds.argmax())
            clicks = int(rng.choice(len(returns[arm]), p=returns[arm] / returns[arm].sum()))
            pulls[arm] += 1
            total[arm] += clicks
            wide = 8 * TAU * log(1000) / pulls[arm] if pulls[arm] < 8 * log(1000) else 0.0
            narrow = sqrt(8 * TAU**2 * log(1000) / pulls[arm])
            bounds[arm] = total[arm] / pulls[arm] + (wide or narrow)
            for step in range(clicks + 1):
                category = learner.recommend([user])
                same += step == 0 and int(learner.versions([user])[0]) == arm
                learner.observe([user], category, [CLICK if step < clicks else DEPART])
            n += 1
    return Finding.of(same == n, f"Equal policies for {same:,} of {n:,} users in {n // 1000} runs.")


def _runs(learner: UCBHybrid, instance: Instance, users: int, runs: int) -> tuple[Floats, Floats]:
    """Checkpoints, and the regret of several runs at each."""
    optimum = plan(instance, 1e-9)
    regret = []
    for seed in range(runs):
        run = simulate(instance, UCBHybrid.from_state(learner.state()), users, seed, optimum=optimum)
        regret.append(run.regret)
    return run.checkpoints.astype(float), np.array(regret)


def _gaps(learner: UCBHybrid, instance: Instance) -> Floats:
    """Losses per user of the learner's policies compared with the optimal policy."""
    best = plan(instance, 1e-9).value
    return np.array([best - evaluate(instance, policy).value for policy in learner.policies])


@check("general-regret")
def check_general(scale: Scale) -> Finding:
    """Measured regret against a bound of this form with all constants."""
    users, worst, rows = scale.of(10**6, 10**5), 0.0, [["policies", "τ", "users", "regret", "bound"]]
    for horizon in (0, 4, 14):
        for tau in (TAU, 3.0):
            learner = UCBHybrid.thresholds(users, tau=tau, horizon=horizon)
            gaps = _gaps(learner, hard())
            points, regret = _runs(learner, hard(), users, 5)
            final = float(regret.mean(axis=0)[-1] - gaps.min() * points[-1])
            bound = regret_bound(users, len(gaps), tau, float(gaps.max()))
            worst = max(worst, final / bound)
            rows.append([str(len(gaps)), f"{tau:g}", f"{users:,}", f"{final:,.0f}", f"{bound:,.0f}"])
    return Finding.of(
        worst <= 1,
        f"Regret against the best policy of the set is at most {worst:.3f} of the bound with all constants, even "
        "with τ smaller than the paper proves.",
        rows,
    )


def _against_bound(
    label: str, learner: UCBHybrid, instance: Instance, users: int, scale: Scale
) -> tuple[list[str], float, float, tuple[Floats, Floats, Floats, Floats]]:
    """Table row of several runs, the slope of regret, its largest ratio to the bound, and the curves to plot."""
    gaps = _gaps(learner, instance)
    points, regret = _runs(learner, instance, users, scale.of(5, 2))
    bounds = np.array([regret_bound(max(t, 2), len(gaps), learner.tau, float(gaps.max())) for t in points])
    exponent = slope(points, regret, users / 100, users).value
    ratio = float((regret.mean(axis=0) / bounds).max())
    row = [label, f"{users:,}", f"{regret[:, -1].mean():,.0f}", f"{exponent:.2f}", f"{bounds[-1]:,.0f}"]
    return row, exponent, ratio, (points, regret, bounds, gaps.mean() * points)


@check("one-type")
def check_one_type(scale: Scale) -> Finding:
    """Measured regret and its slope, against the bound."""
    users, rows, worst = scale.of(10**8, 10**6), [["categories", "users", "regret", "slope", "bound"]], 0.0
    for seed, k in enumerate((2, 5, 10)):
        instance = random_instance("uniform", types=1, categories=k, seed=seed)
        learner = UCBHybrid.fixed(k, users, epsilon=1 - float(instance.click.max()))
        row, _, ratio, curves = _against_bound(str(k), learner, instance, users, scale)
        rows.append(row)
        worst = max(worst, ratio)
    plot = svg(draw_bound(f"UCB-Hybrid with one type and {k} categories", *curves))
    result = f"Regret is at most {worst:.3f} of the bound."
    return Finding.of(worst <= 1, result, rows, plot, "Regret and its upper bound.")


@check("two-by-two")
def check_two_by_two(scale: Scale) -> Finding:
    """Measured regret and its slope, against the bound."""
    users, instance, rows = scale.of(10**8, 10**6), hard(), [["τ", "users", "regret", "slope", "bound"]]
    slopes, worst = [], 0.0
    for tau in (None, TAU):
        epsilon = 1 - float(instance.click.max()) if tau is None else None
        learner = UCBHybrid.thresholds(users, tau=tau, epsilon=epsilon)
        row, exponent, ratio, curves = _against_bound(f"{learner.tau:.1f}", learner, instance, users, scale)
        rows.append(row)
        slopes.append(exponent)
        worst = max(worst, ratio)
    return Finding.of(
        worst <= 1,
        f"Regret on the hard instance is at most {worst:.3f} of the bound. Over the last two decades of {users:,} "
        f"users it grows like users to the power {slopes[0]:.2f} with the proved τ, and {slopes[1]:.2f} with a "
        "smaller one.",
        rows,
        svg(draw_bound("UCB-Hybrid on the hard 2 × 2 instance, τ = 0.3", *curves)),
        "Regret and its upper bound.",
    )
