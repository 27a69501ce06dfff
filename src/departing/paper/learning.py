"""Claims on UCB-Hybrid and its regret with one type and on 2 × 2 instances (sections 3, 4 and 5.3)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import exp, expm1, inf, log, sqrt
from typing import Any

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.evaluation.sub_exponential import SubExponential, sub_exponential
from departing.learning import regret_bound as bounds
from departing.learning.ucb import UCBHybrid, proved_tau
from departing.model.examples import blog, hard
from departing.model.families import random_instance
from departing.model.instance import CLICK, DEPART, Floats, Instance
from departing.paper import formulas
from departing.paper.item import Finding, Scale, check
from departing.paper.plot import draw_bound
from departing.planning.plan import plan
from departing.plotting.figures import svg
from departing.policy.schedule import Fixed, Threshold
from departing.simulation.simulate import simulate

TAU = 0.3  # far below the proved τ, so that the learner commits to a policy within the users of the check
# The audit's counterexample to the theorem on one type: long visits, and returns that vary by far more than ε allows.
SLOW_CLICK, SLOW_DEPART, SLOW_EPSILON = (0.5, 0.5), (0.001, 0.00111), 0.5
# Dominant column with the largest click probability above e^(−1/2): the optimal switch comes long after ln T steps.
LONG_PRIOR = (Fraction(3277, 10000), Fraction(6723, 10000))
LONG_CLICK = ((Fraction(989, 1000), Fraction(467, 1000)), (Fraction(985, 1000), Fraction(957, 1000)))
SHORT_CLICK = ((Fraction(70, 100), Fraction(10, 100)), (Fraction(69, 100), Fraction(68, 100)))
Number = Any  # Fraction for exact results, or float


@check("algorithm")
def check_algorithm(scale: Scale) -> Finding:
    """dp.UCBHybrid against the algorithm written out line by line."""
    same, n, instance = 0, 0, blog()
    for seed in range(scale.of(20, 3)):
        learner = UCBHybrid.thresholds(1000, tau=TAU, horizon=3)
        returns = [evaluate(instance, policy).distribution.returns for policy in learner.policies]
        rng, upper = np.random.default_rng(seed), np.full(len(returns), inf)
        pulls, total = np.zeros(len(returns)), np.zeros(len(returns))
        for user in range(1000):
            arm = int(upper.argmax())
            clicks = int(rng.choice(len(returns[arm]), p=returns[arm] / returns[arm].sum()))
            pulls[arm] += 1
            total[arm] += clicks
            upper[arm] = total[arm] / pulls[arm] + formulas.radius(pulls[arm], 1000, TAU, 1.0)
            for step in range(clicks + 1):
                category = learner.recommend([user])
                same += step == 0 and int(learner.versions([user])[0]) == arm
                learner.observe([user], category, [CLICK if step < clicks else DEPART])
            n += 1
    return Finding.of(same == n, f"Equal policies for {same:,} of {n:,} users in {n // 1000} runs.")


@check("algorithm-index")
def check_algorithm_index(_: Scale) -> Finding:
    """Lines 4 to 9 as printed for the first user of a policy, and the mean of dp.UCBHybrid after three users."""
    stored = {0: 2}  # V̂[n(π)] ← 2 clicks before n(π) ← 1
    printed = 1 in stored  # the mean of n(π) = 1 return reads V̂[1]
    learner = UCBHybrid([Fixed(0)], users=100, tau=TAU)
    for clicks in (2, 0, 4):
        learner.recommend([clicks])
        for _step in range(clicks):
            learner.observe([clicks], [0], [CLICK])
            learner.recommend([clicks])
        learner.observe([clicks], [0], [DEPART])
    repair = abs(float(learner.bounds[0]) - 2 - formulas.radius(3, 100, TAU, 1.0)) < 1e-12
    return Finding.repaired(
        printed,
        repair,
        "As printed, the first return of a policy is stored at index 0 and its mean reads index 1, which is not set. "
        "dp.UCBHybrid uses the mean of all n returns.",
    )


@check("general-regret-max")
def check_general_max(_: Scale) -> Finding:
    """Expected maximum of two independent geometric returns in fractions, and from their exact distribution."""
    half = Fraction(1, 2)  # P[V ≥ k] = 2^(−k), so that P[max ≥ k] = 2 · 2^(−k) − 4^(−k)
    each, quarter = half / (1 - half), half**2
    largest = 2 * each - quarter / (1 - quarter)
    below = evaluate(Instance([1.0], [[0.5]]), Fixed(0), 1e-15).distribution.returns.cumsum()
    return Finding.repaired(
        largest <= each,
        abs(float((1 - below**2).sum()) - float(largest)) < 1e-9,
        f"Two policies with independent returns, P = 1/2 and Λ = 1: E[max V] is {largest}, and max E[V] is {each}. "
        f"With the maximum inside the expectation, the left side is at least {largest - each} per user for every "
        "learner.",
    )


@check("global-parameters")
def check_global_parameters(scale: Scale) -> Finding:
    """Regret of UCB-Hybrid over the threshold policies of H = ⌈ln T⌉ with global and with exact local parameters."""
    users, seeds = 10**6, range(scale.of(20, 2))
    rows = [["instance", "policies", "global τ", "regret", "local τ", "regret"]]
    for name, instance in (("the paper's example", blog()), ("hard", hard())):
        epsilon = float(instance.departure_probabilities.min())
        row = [name]
        for options in ({"epsilon": epsilon}, {"scale": "exact", "instance": instance}):
            learner = UCBHybrid.thresholds(users, horizon="paper", **options)
            measured = Measured.of(learner, instance, len(seeds))
            final = measured.regret[:, -1] + measured.set_loss * users
            row += [str(len(learner.policies))] if len(row) == 1 else []
            row += [measured.constants, f"{final.mean():,.0f} ± {final.std(ddof=1):,.0f}"]
        rows.append(row)
    return Finding.measured(
        f"Mean and standard deviation over {len(seeds)} runs of {users:,} users. dp.UCBHybrid accepts both forms; "
        "the local parameters are computed from the exact distributions of the returns. With the global ones all "
        "policies are still used in turn.",
        rows,
    )


def mean_tails(law: Floats, users: int, constants: SubExponential) -> float:
    """Largest probability that the mean of n returns leaves its radius, as a share of 2 / T⁴, n = 1, 2, 4, … ≤ T.

    The distribution of the sum of n returns with distribution `law` is computed by Fourier transform.
    """
    mean = float(law @ np.arange(len(law)))
    size = 2 ** int(np.ceil(np.log2(4 * users * (mean + 1) + len(law))))
    transform, worst, n = np.fft.rfft(law, size), 0.0, 1
    while n <= users:
        total = np.fft.irfft(transform**n, size)
        room = n * formulas.radius(n, users, constants.tau, constants.eta)
        worst = max(worst, float(total[np.abs(np.arange(size) - n * mean) > room].sum()) / (2 / users**4))
        n *= 2
    return worst


def worst_tail(instances: Iterable[Instance]) -> float:
    """The largest `mean_tails` of two fixed policies and one threshold policy, with several of their constants."""
    worst = 0.0
    for instance in instances:
        for policy in (Fixed(0), Fixed(1), Threshold(1, 3, 0)):
            law = evaluate(instance, policy, 1e-18).distribution.returns
            for planned in (10**2, 10**4, 10**6):  # more users: smaller τ and larger b
                worst = max(worst, mean_tails(law, 1000, sub_exponential(instance, policy, planned)))
    return worst


@dataclass(frozen=True)
class Measured:
    """Several runs of a learner: regret `[runs, t]` against the best of its policies, and their number of users."""

    learner: UCBHybrid
    points: Floats
    regret: Floats
    losses: Floats  # of the policies compared with the best of them
    set_loss: float  # of the best of them compared with the optimal policy
    pull_share: float  # largest number of users of a policy, as a share of its bound

    @classmethod
    def of(cls, learner: UCBHybrid, instance: Instance, runs: int) -> "Measured":
        """Simulate the learner `runs` times."""
        optimum = plan(instance, 1e-9)
        values = np.array([evaluate(instance, policy).value for policy in learner.policies])
        losses, regret, share = values.max() - values, [], 0.0
        tau, eta = (np.broadcast_to(np.asarray(each), losses.shape) for each in (learner.tau, learner.eta))
        most = [bounds.pull_bound(*each, learner.users) for each in zip(losses, tau, eta, strict=True)]
        for seed in range(runs):
            fresh = UCBHybrid.from_state(learner.state())
            run = simulate(instance, fresh, learner.users, seed, optimum=optimum)
            regret.append(run.regret - (optimum.value - values.max()) * run.checkpoints)
            share = max(share, float((fresh.pulls / most).max()))
        points = run.checkpoints.astype(float)
        return cls(learner, points, np.array(regret), losses, optimum.value - float(values.max()), share)

    @property
    def trivial(self) -> Floats:
        """The trivial bound at the checkpoints: the largest loss times the number of users."""
        return float(self.losses.max()) * self.points

    @property
    def bound(self) -> Floats:
        """The proved bound at the checkpoints."""
        learner = self.learner
        return np.array(
            [bounds.regret_bound(self.losses, learner.tau, learner.eta, learner.users, t) for t in self.points]
        )

    def curves(self) -> tuple[str, Floats, Floats, Floats, Floats]:
        """Arguments of `draw_bound`: label of the bound, checkpoints, regret, the proved and the trivial bound."""
        return f"proved bound, τ = {self.constants}", self.points, self.regret, self.bound, self.trivial

    @property
    def constants(self) -> str:
        """The τ of the policies."""
        tau = np.asarray(self.learner.tau)
        return f"{tau:.3g}" if tau.ndim == 0 else f"{tau.min():.3g} to {tau.max():.3g}"

    @property
    def share(self) -> float:
        """Largest mean regret as a share of the bound."""
        return float((self.regret.mean(axis=0) / self.bound).max())

    def informative_from(self, policies: Callable[[float], int] | None = None, further: float = 0.0) -> float:
        """Users from which the bound is below the trivial one; `policies` is the number of policies for T users."""

        def bound(users: float) -> float:
            n = len(self.losses) if policies is None else policies(users)
            losses = self.losses if policies is None else np.full(n, self.losses.max())
            tau, eta = np.resize(self.learner.tau, n), np.resize(self.learner.eta, n)
            return bounds.regret_bound(losses, tau, eta, users) + further

        return bounds.informative_from(bound, float(self.losses.max()))

    def cells(self, informative: float) -> list[str]:
        """Cells of a table, see COLUMNS."""
        final, bound = self.regret[:, -1], self.bound[-1]
        regret = f"{final.mean():,.0f} ± {final.std(ddof=1):,.0f} ({len(final)})"
        ratio = f"{bound / self.trivial[-1]:.2g}"
        start = f"{informative:.1e} users" if informative < inf else "never"
        setting = [str(len(self.losses)), self.constants, f"{self.learner.users:,}"]
        return [*setting, regret, f"{bound:,.0f}", ratio, start, f"{self.pull_share:.2f}"]


COLUMNS = ["policies", "τ", "users", "regret ± deviation (runs)", "proved bound", "/ trivial", "below it from"]
COLUMNS += ["users of a policy / bound"]


def summary(rows: Sequence[Measured], tail: float) -> str:
    """Evidence of a row on regret."""
    vacuous = sum(row.bound[-1] >= row.trivial[-1] for row in rows)
    return (
        f"Mean regret is at most {max(row.share for row in rows):.3f} of the proved bound with all constants. The "
        f"bound is vacuous in {vacuous} of {len(rows)} cases: it exceeds the trivial one, largest loss × users; the "
        "table shows by which factor, and from how many users on it does not. Both steps of its proof are checked: "
        f"a mean leaves its radius with at most {tail:.1g} of the probability 2/T⁴ (exact distributions), and no "
        f"policy has more than {max(row.pull_share for row in rows):.2f} of its bound of users in any run."
    )


def holds(rows: Sequence[Measured], tail: float) -> bool:
    """Return True if regret, tails and numbers of users are within their bounds."""
    return tail <= 1 and all(row.share <= 1 and row.pull_share <= 1 for row in rows)


@check("general-regret")
def check_general(scale: Scale) -> Finding:
    """Measured regret against the proved bound with all constants, and both steps of its proof."""
    users, instance = 10**6, hard()
    epsilon = float(instance.departure_probabilities.min())
    tail, rows = worst_tail((blog(), instance)), []
    for horizon in (0, 4, 14)[: scale.of(3, 2)]:
        for options in ({"epsilon": epsilon}, {"scale": "exact", "instance": instance}):
            learner = UCBHybrid.thresholds(users, horizon=horizon, **options)
            rows.append(Measured.of(learner, instance, scale.of(10, 2)))
    table = [COLUMNS, *(row.cells(row.informative_from()) for row in rows)]
    return Finding.of(holds(rows, tail), summary(rows, tail), table)


def lower_bound(click: Sequence[float], depart: Sequence[float], tau: float, users: int) -> float:
    """Proved lower bound of the regret of UCB-Hybrid over two fixed categories of one type, the first better.

    For every level u below the mean of the second return and every n: if the index of the first policy is below u
    after its n-th user, and that of the second is never below u, the first policy has at most n users. The first
    probability is exact (the sum of n returns is negative binomial). The second is at least 1 − exp(−8 θ τ ln T) by
    Ville's inequality, where E exp(−θ(V − u)) ≤ 1 (theory, UCB-Hybrid).
    """
    from scipy.special import nbdtr  # 0.1 s to import

    leave = [leaves * (1 - p) for p, leaves in zip(click, depart, strict=True)]
    means = [p / each for p, each in zip(click, leave, strict=True)]
    stops = [each / (each + p) for p, each in zip(click, leave, strict=True)]
    n = np.arange(1, int(20 * log(users)) + 2)
    radii = np.array([formulas.radius(each, users, tau, 1.0) for each in n.tolist()])
    best = 0.0
    for share in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98):
        level = share * means[1]
        theta = _lundberg(stops[1], level)
        sums = np.ceil(n * (level - radii)) - 1  # the largest below n (u − r)
        stuck = np.where(sums >= 0, nbdtr(np.maximum(sums, 0), n, stops[0]), 0.0)
        never = -expm1(-8 * theta * tau * log(users))
        best = max(best, float(((users - n) * stuck).max()) * never * (means[0] - means[1]))
    return best


def _lundberg(stop: float, level: float) -> float:
    """Nearly the largest θ with E exp(−θ(V − level)) ≤ 1, where V has P[V = k] = stop (1 − stop)^k."""
    low, high = 0.0, 50.0 / level
    for _ in range(60):
        middle = (low + high) / 2
        below = log(stop) + middle * level <= log(1 - (1 - stop) * exp(-middle))
        low, high = (middle, high) if below else (low, middle)
    return low * (1 - 1e-9)


def _growth(users: Sequence[float], values: Sequence[float]) -> float:
    """Exponent of the growth from the first to the last number of users."""
    return log(values[-1] / values[0]) / log(users[-1] / users[0])


def _slow() -> Instance:
    return Instance([1.0], [[p] for p in SLOW_CLICK], [[leaves] for leaves in SLOW_DEPART])


@check("one-type")
def check_one_type(scale: Scale) -> Finding:
    """A proved lower bound of regret on one instance, computed for growing T, beside measured regret."""
    tau, rows = (
        proved_tau(SLOW_EPSILON),
        [["users", "measured regret ± error (runs)", "at least", "bound with the paper's τ"]],
    )
    mean_values = [p / (leaves * (1 - p)) for p, leaves in zip(SLOW_CLICK, SLOW_DEPART, strict=True)]
    losses, measured = max(mean_values) - np.array(mean_values), {}
    for users, runs in ((10**4, scale.of(40, 4)), (10**5, scale.of(30, 0))):
        final = [
            simulate(_slow(), UCBHybrid.fixed(2, users, epsilon=SLOW_EPSILON), users, seed).regret[-1]
            for seed in range(runs)
        ]
        if runs:
            measured[users] = f"{np.mean(final):.2g} ± {np.std(final, ddof=1) / sqrt(runs):.1g} ({runs})"
    users_of = [10**k for k in (4, 5, 6, 8, 10, 12, 14)]
    least = [lower_bound(SLOW_CLICK, SLOW_DEPART, tau, users) for users in users_of]
    claimed = [bounds.regret_bound(losses, tau, 1.0, users) for users in users_of]
    for users, low, high in zip(users_of, least, claimed, strict=True):
        rows.append([f"{users:.0e}", measured.get(users, "–"), f"{low:.2g}", f"{high:.2g}"])
    grows, may = _growth(users_of, least), _growth(users_of, claimed)
    first = next((t for t, low, high in zip(users_of, least, claimed, strict=True) if low > high), inf)
    return Finding.of(
        grows <= may + 0.1 and least[-1] <= claimed[-1],
        f"P = {SLOW_CLICK}, Λ = {SLOW_DEPART}, ε = {SLOW_EPSILON}: the regret is at least a bound that grows like "
        f"users to the power {grows:.2f}, while the theorem allows {may:.2f}. From {first:,} users on it exceeds the "
        f"bound with the paper's τ = {tau:.1f}; the returns have a standard deviation of about "
        f"{mean_values[0]:,.0f} clicks.",
        rows,
    )


@check("one-type-repaired")
def check_one_type_repaired(scale: Scale) -> Finding:
    """Measured regret against the proved bound with all constants, and both steps of its proof."""
    users, rows, tail = scale.of(10**6, 10**5), [], 0.0
    instances = [random_instance("uniform", types=1, categories=k, seed=k) for k in (2, 5, 10)]
    for instance in [_slow(), *instances]:
        click, depart = instance.click[:, 0].tolist(), instance.depart[:, 0].tolist()
        epsilon = formulas.smallest_departure(click, depart)
        tail = max(tail, *(_geometric_tails(p, leaves, epsilon) for p, leaves in zip(click, depart, strict=True)))
        if instance in instances:
            learner = UCBHybrid.fixed(len(click), users, epsilon=epsilon)
            rows.append(Measured.of(learner, instance, scale.of(10, 2)))
            learner = UCBHybrid.fixed(len(click), users, scale="exact", instance=instance)
            rows.append(Measured.of(learner, instance, scale.of(10, 2)))
    slow = Measured.of(
        UCBHybrid.fixed(2, 10**4, epsilon=formulas.smallest_departure(SLOW_CLICK, SLOW_DEPART)), _slow(), 2
    )
    table = [COLUMNS, *(row.cells(row.informative_from()) for row in [slow, *rows])]
    plot = svg(draw_bound("UCB-Hybrid with one type and 10 categories, exact constants", *rows[-1].curves()))
    evidence = (
        summary([slow, *rows], tail) + " The first row of the table is the instance that refutes the printed form."
    )
    return Finding.of(
        holds([slow, *rows], tail), evidence, table, plot, "Regret, the proved bound and the trivial one."
    )


def _geometric_tails(p: float, leaves: float, epsilon: float) -> float:
    """`mean_tails` of a fixed category of one type with the constants of ε; sums of returns are negative binomial."""
    from scipy.special import nbdtr, nbdtrc  # 0.1 s to import

    leave, users, tau = leaves * (1 - p), 1000, proved_tau(epsilon)
    n = 2 ** np.arange(10)
    radii = np.array([formulas.radius(each, users, tau, 1.0) for each in n.tolist()])
    stop, mean = leave / (leave + p), p / leave
    low, high = np.ceil(n * (mean - radii)) - 1, np.floor(n * (mean + radii))
    below = np.where(low >= 0, nbdtr(np.maximum(low, 0), n, stop), 0.0)
    return float((below + nbdtrc(high, n, stop)).max()) / (2 / users**4)


@check("two-by-two")
def check_two_by_two(scale: Scale) -> Finding:
    """Measured regret against the proved bound and the truncation term, and both steps of the proof."""
    users, instance = scale.of(10**7, 10**5), hard()
    epsilon = float(instance.departure_probabilities.min())
    horizon = formulas.repaired_horizon(users, epsilon)
    truncated, rows, table = bounds.truncation_bound(users, epsilon, horizon), [], [COLUMNS]
    for options in ({}, {"scale": "exact", "instance": instance}):
        learner = UCBHybrid.thresholds(users, horizon=horizon, epsilon=epsilon, **options)
        row = Measured.of(learner, instance, scale.of(5, 2))
        start = row.informative_from(lambda t: 2 * formulas.repaired_horizon(t, epsilon) + 2, (1 - epsilon) / epsilon)
        rows.append(row)
        table.append(row.cells(start))
    tail, lost = worst_tail((blog(), instance)), row.set_loss * users
    return Finding.of(
        holds(rows, tail) and lost <= truncated,
        summary(rows, tail) + f" The best policy of the set loses {lost:.1g} clicks over all users compared with the "
        f"optimal policy, at most {truncated:.2g} by the bound of truncation; H = {horizon}.",
        table,
        svg(draw_bound(f"UCB-Hybrid on the hard 2 × 2 instance, exact constants, {users:,} users", *row.curves())),
        "Regret, the proved bound and the trivial one.",
    )


def threshold_value(prior: Sequence[Number], first: Sequence[Number], then: Sequence[Number], n: Any) -> Any:
    """Value of n steps of one category and then always the other, with sure departure; exact for fractions."""
    types = zip(prior, first, then, strict=True)
    return sum(q * (p * (1 - p**n) / (1 - p) + p**n * r / (1 - r)) for q, p, r in types)


def truncation_loss(prior: Sequence[Number], click: Sequence[Sequence[Number]], horizon: int, steps: int) -> Any:
    """Loss of the best policy of Π_H compared with `steps` steps of the second category and then the first."""
    one, two = click
    within = (threshold_value(prior, *pair, n) for pair in ((one, two), (two, one)) for n in range(horizon + 1))
    return threshold_value(prior, two, one, steps) - max(within)


def late_prior(click: Sequence[Sequence[Number]], steps: int) -> tuple[Number, Number]:
    """Prior with which both categories are equally good after `steps` clicks on the second (dominant column)."""
    (p1x, p1y), (p2x, p2y) = click
    odds = (p2y - p1y) * (1 - p1x) / ((p1x - p2x) * (1 - p1y)) * (p2y / p2x) ** steps
    return odds / (1 + odds), 1 / (1 + odds)


@check("horizon-ln")
def check_horizon_ln(scale: Scale) -> Finding:
    """Loss of the best policy of Π_H in fractions on one matrix, with the worst of some priors for each T."""
    example = float(truncation_loss(LONG_PRIOR, LONG_CLICK, formulas.paper_horizon(1e8), 58)) * 1e8
    users_of = [10.0**power for power in (4, 8, 16, 32)[: scale.of(4, 3)]]
    rows, growth = [["largest P", "users", "H", "better switch after", "loss × users, at least", "√T ln T"]], []
    for click, delays in ((LONG_CLICK, range(24, 48, 4)), (SHORT_CLICK, range(2, 7))):
        lost = []
        for users in users_of:
            horizon = formulas.paper_horizon(users)
            switches = (horizon + delay for delay in delays)
            loss, steps = max((truncation_loss(late_prior(click, n), click, horizon, n), n) for n in switches)
            lost.append(float(loss) * users)
            cells = [f"{users:.0e}", str(horizon), str(steps), f"{lost[-1]:.3g}", f"{sqrt(users) * log(users):.3g}"]
            rows.append([f"{float(click[0][0]):g}", *cells])
        growth.append(_growth(users_of, lost))
    may = _growth(users_of, [sqrt(users) * log(users) for users in users_of])
    return Finding.of(
        max(growth) <= may,
        "With the click probabilities (0.989, 0.467), (0.985, 0.957), the prior 0.3277 and T = 10⁸ the best policy "
        f"with at most H = ⌈ln T⌉ = 19 steps loses at least {example:.3g} clicks compared with 58 steps. With the "
        f"worst prior for each T the loss grows at least like users to the power {growth[0]:.2f}, and "
        f"{growth[1]:.2f} if the largest click probability is 0.7, but √T ln T like {may:.2f}.",
        rows,
    )


@check("horizon-repaired")
def check_horizon_repaired(scale: Scale) -> Finding:
    """Closed-form loss of the best policy of Π_H on random matrices, with priors for which a late switch is best."""
    rng, worst, most, n = np.random.default_rng(16), 0.0, 0.0, scale.of(5000, 500)
    for _ in range(n):
        p1y, p2y, p2x, p1x = np.sort(1 - 10 ** rng.uniform(-3, -0.02, 4)).tolist()
        click, epsilon, users = ((p1x, p1y), (p2x, p2y)), 1 - p1x, 10 ** rng.uniform(0, 4)
        horizon = formulas.repaired_horizon(users, epsilon)
        steps = horizon + int(rng.integers(1, 100))
        prior, h = late_prior(click, steps), np.arange(horizon + 1)
        within = max(threshold_value(prior, *pair, h).max() for pair in (click, click[::-1]))
        loss = (threshold_value(prior, click[1], click[0], steps) - within) * users
        bound = bounds.truncation_bound(users, epsilon, horizon)
        worst, most = max(worst, loss / bound), max(most, bound / ((1 - epsilon) / epsilon))
    return Finding.of(
        worst <= 1 and most <= 1 + 1e-9,
        f"On {n:,} matrices with a dominant column the loss over all users is at most {worst:.3f} of "
        "T(1 − ε)^(H+1)/ε, which is at most (1 − ε)/ε.",
    )
