"""Items on UCB-Hybrid and its regret with one type and on 2 × 2 instances (sections 3, 4 and 5.3)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import exp, expm1, inf, log, sqrt
from typing import Any

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.evaluation.sub_exponential import SubExponential, sub_exponential
from departing.learning import ucb_bound as bounds
from departing.learning.ucb import UCBHybrid
from departing.model.examples import blog, hard
from departing.model.families import random_instance
from departing.model.instance import CLICK, DEPART, Floats, Instance
from departing.model.validation import MAX_USERS
from departing.paper import formulas
from departing.paper.exact import random_tables
from departing.paper.item import Finding, Scale, check
from departing.paper.plot import draw_bound
from departing.planning.plan import plan
from departing.plotting.figures import svg
from departing.policy.schedule import Fixed, Threshold
from departing.simulation.simulate import simulate

TAU = 0.3  # far below the proved τ, so that the learner commits to a policy within the users of the check
# A counterexample to the theorem on one type: long visits, and returns that vary by far more than ε allows.
SLOW_CLICK, SLOW_DEPART, SLOW_EPSILON = (0.5, 0.5), (0.001, 0.00111), 0.5
TAIL_USERS = 1000  # T of the radii in the checks of the tails
CUT = 1e-25  # probability of the returns that the exact distributions leave out


@check("known-epsilon")
def check_known_epsilon(scale: Scale) -> Finding:
    """Both forms of ε against the probability that a step is neither a click nor a stay, in fractions."""
    rng, n, printed, repair = np.random.default_rng(2), scale.of(2000, 200), 0, True
    for _ in range(n):
        types, categories = (int(i) for i in rng.integers(1, 5, 2))
        click = [p for row in random_tables(rng, categories, types)[1] for p in row]
        depart = [Fraction(int(i), 100) for i in rng.integers(1, 101, len(click))]
        least = min(1 - p - (1 - p) * (1 - each) for p, each in zip(click, depart, strict=True))
        printed += formulas.largest_epsilon(click) <= least
        sure = formulas.smallest_departure(click, [Fraction(1)] * len(click))
        repair &= formulas.smallest_departure(click, depart) == least and sure == formulas.largest_epsilon(click)
    half, rarely = Fraction(1, 2), Fraction(1, 100)
    return Finding.repaired(
        printed == n,
        repair,
        f"With P = {half} and Λ = {rarely} the printed assumption allows ε = {formulas.largest_epsilon([half])}, but "
        f"a user departs at a step with probability {half - half * (1 - rarely)}. On {n:,} random tables the largest "
        f"printed ε is a lower bound of this probability on {printed:,}, the repaired one on all. With Λ = 1 both "
        "are the same.",
    )


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
    """Lines 4 to 9 executed for one policy, as printed and in the other order, against dp.UCBHybrid."""
    users, learner, plain = 100, UCBHybrid([Fixed(0)], users=100, tau=TAU), []
    returns = (np.random.default_rng(1).geometric(0.5, 50) - 1).tolist()  # both radii: 8 η ln T = 36.8
    for user, clicks in enumerate(returns):
        for outcome in [CLICK] * clicks + [DEPART]:
            learner.observe([user], learner.recommend([user]), [outcome])
        plain.append(float(learner.bounds[0]))
    printed, repaired = (executed_bounds(returns, users, TAU, order) for order in ((4, 5), (5, 4)))
    unset = printed.count(None)
    agree = sum(one is not None and abs(one - other) < 1e-12 for one, other in zip(repaired, plain, strict=True))
    return Finding.repaired(
        unset == 0,
        agree == len(plain),
        f"As printed, the mean reads an entry of V̂ that is not set, after {unset} of {len(plain)} users. If line 5 "
        f"precedes the assignment of line 4, U is that of dp.UCBHybrid after {agree} of {len(plain)} users.",
    )


def executed_bounds(returns: Sequence[int], users: int, tau: float, order: Sequence[int]) -> list[float | None]:
    """U of a policy after each of its users by lines 4 to 9 of Algorithm 2; None where V̂ is not set.

    `order` is that of the assignment of line 4 and of line 5.
    """
    stored: dict[int, int] = {}
    n, upper = 0, list[float | None]()
    for clicks in returns:
        for line in order:
            if line == 4:
                stored[n] = clicks
            else:
                n += 1
        mean = sum(stored[i] for i in range(1, n + 1)) / n if all(i in stored for i in range(1, n + 1)) else None
        upper.append(None if mean is None else mean + formulas.radius(n, users, tau, 1.0))
    return upper


@check("general-regret-max")
def check_general_max(_: Scale) -> Finding:
    """Both left sides for two independent geometric returns: expected maximum in fractions, and measured regret."""
    users, click = 10**8, (Fraction(1, 2), Fraction(1, 3))
    means = [formulas.fixed_value(p, Fraction(1)) for p in click]
    both = click[0] * click[1]  # P[V₁ ≥ k and V₂ ≥ k] = both^k
    largest = sum(means) - both / (1 - both)
    tau = formulas.global_scale(0.5)
    losses = [float(max(means) - mean) for mean in means]
    bound = bounds.ucb_regret_bound(losses, tau, 1.0, users)
    inside = (largest - max(means)) * users  # E Σ V is at most T max E[V] for every learner
    instance = Instance([1.0], [[float(p)] for p in click])
    regret = simulate(instance, UCBHybrid.fixed(2, 10**5, tau=tau), 10**5, 1).regret
    outside = bounds.ucb_regret_bound(losses, tau, 1.0, 10**5)
    return Finding.repaired(
        inside <= bound,
        float(regret[-1]) <= outside,
        f"Two policies with independent returns, P = 1/2 and 1/3, Λ = 1: E[max V] is {largest}, and max E[V] is "
        f"{max(means)}. With the maximum inside the expectation, the left side is at least {largest - max(means)} "
        f"per user for every learner, {float(inside):.2g} for 10⁸ users, where the bound is {bound:.2g}. With the "
        f"maximum outside, it is {float(regret[-1]):,.0f} in a run of 10⁵ users, where the bound is {outside:,.0f}.",
    )


@check("global-parameters")
def check_global_parameters(scale: Scale) -> Finding:
    """Regret of UCB-Hybrid over the threshold policies of H = ⌈ln T⌉ with global and with exact local parameters."""
    users, seeds = 10**6, range(scale.of(20, 2))
    rows = [["instance", "policies", "global τ", "regret", "local τ", "regret"]]
    for name, instance in (("the paper's example", blog()), ("hard", hard())):
        epsilon = float(instance.departure_probabilities.min())
        row = [name]
        for options in constants_of(epsilon, instance):
            create = partial(UCBHybrid.thresholds, horizon="paper", **options)
            measured = Measured.of(create, users, instance, len(seeds))
            final = measured.regret[:, -1] + measured.set_loss * users
            row += [str(len(measured.losses))] if len(row) == 1 else []
            row += [measured.constants, f"{final.mean():,.0f} ± {final.std(ddof=1):,.0f}"]
        rows.append(row)
    return Finding.measured(
        f"Mean and standard deviation over {len(seeds)} runs of {users:,} users. dp.UCBHybrid accepts both forms; "
        "the local parameters are computed from the exact distributions of the returns. With the global ones all "
        "policies are still used in turn.",
        rows,
    )


def constants_of(epsilon: float, instance: Instance) -> list[dict[str, Any]]:
    """Options of UCBHybrid: the constants of ε, and the exact ones."""
    return [{"epsilon": epsilon}, {"scale": "exact", "instance": instance}]


def mean_tails(law: Floats, users: int, constants: SubExponential) -> float:
    """Largest probability that the mean of n returns leaves its radius, as a share of 2 / T⁴, n = 1, 2, 4, … ≤ T.

    It is an upper bound: the probability that a return is not in its distribution `law`, CUT, is added n times.
    """
    mean, worst = float(law @ np.arange(len(law))), 0.0
    for n, clicks, total in _sums(law, users):
        radius = n * formulas.radius(n, users, constants.tau, constants.eta)
        tail = float(total[np.abs(clicks - n * mean) > radius].sum()) + n * CUT
        worst = max(worst, tail / (2 / users**4))
    return worst


def _sums(law: Floats, most: int) -> Iterator[tuple[int, Floats, Floats]]:
    """Distributions of the sums of n = 1, 2, 4, … ≤ `most` returns: n, the numbers of clicks, their probabilities.

    They are convolutions of positive terms, so that small probabilities have small relative errors as well.
    Probabilities below 1e-40 at both ends are left out.
    """
    n, first = 1, 0
    while n <= most:
        kept = (law > 1e-40).nonzero()[0]
        first, law = first + int(kept[0]), law[kept[0] : kept[-1] + 1]
        yield n, first + np.arange(len(law), dtype=float), law
        n, first, law = 2 * n, 2 * first, np.convolve(law, law)


def worst_tail(instances: Iterable[Instance]) -> float:
    """The largest `mean_tails` of two fixed policies and one threshold policy, with several of their constants."""
    worst = 0.0
    for instance in instances:
        for policy in (Fixed(0), Fixed(1), Threshold(1, 3, 0)):
            law = evaluate(instance, policy, CUT).distribution.returns
            for planned in (10**2, 10**4, 10**6):  # more users: smaller τ and larger b
                worst = max(worst, mean_tails(law, TAIL_USERS, sub_exponential(instance, policy, planned)))
    return worst


@dataclass(frozen=True)
class Measured:
    """Several runs of a learner: regret `[runs, t]` against the best of its policies, and their number of users.

    With `epsilon` the policies are the threshold policies up to a horizon, and regret is against the optimum.
    """

    create: Callable[[int], UCBHybrid]  # learner for a number of users
    learner: UCBHybrid
    points: Floats
    regret: Floats
    losses: Floats  # of the policies compared with the best of them
    set_loss: float  # of the best of them compared with the optimal policy
    pull_share: float  # largest number of users of a policy, as a share of its bound
    epsilon: float | None = None

    @classmethod
    def of(
        cls,
        create: Callable[[int], UCBHybrid],
        users: int,
        instance: Instance,
        runs: int,
        epsilon: float | None = None,
    ) -> "Measured":
        """Simulate the learner for `users` users `runs` times."""
        learner, optimum = create(users), plan(instance, 1e-9)
        values = np.array([evaluate(instance, policy).value for policy in learner.policies])
        losses, regret, share, set_loss = values.max() - values, [], 0.0, optimum.value - float(values.max())
        better = set_loss if epsilon is None else 0.0  # not part of the regret
        tau, eta = (np.broadcast_to(np.asarray(each), losses.shape) for each in (learner.tau, learner.eta))
        most = [bounds.pull_bound(*each, learner.users) for each in zip(losses, tau, eta, strict=True)]
        for seed in range(runs):
            fresh = UCBHybrid.from_state(learner.state())
            run = simulate(instance, fresh, learner.users, seed, optimum=optimum)
            regret.append(run.regret - better * run.checkpoints)
            share = max(share, float((fresh.pulls / most).max()))
        points = run.checkpoints.astype(float)
        return cls(create, learner, points, np.array(regret), losses, set_loss, share, epsilon)

    @property
    def largest_loss(self) -> float:
        """Largest loss of a policy compared with the best one, or with the optimum."""
        return float(self.losses.max()) + (0.0 if self.epsilon is None else self.set_loss)

    @property
    def trivial(self) -> Floats:
        """The trivial bound at the checkpoints: the largest loss times the number of users."""
        return self.largest_loss * self.points

    @property
    def bound(self) -> Floats:
        """The proved bound at the checkpoints."""
        return np.array([self._bound(self.learner, self.losses, t) for t in self.points])

    def _bound(self, learner: UCBHybrid, losses: Floats, after: float) -> float:
        horizon = None if self.epsilon is None else len(learner.policies) // 2 - 1
        constants = learner.tau, learner.eta, learner.users
        return bounds.ucb_regret_bound(losses, *constants, after, epsilon=self.epsilon, horizon=horizon)

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

    def informative_from(self) -> float:
        """Users from which the bound is below the trivial one, with the policies and constants of each number T.

        If the number of policies depends on T, each of them is given the largest loss: the bound increases by less
        than this loss per policy.
        """

        def bound(users: float) -> float:
            learner = self.create(int(users))
            n = len(learner.policies)
            losses = self.losses if n == len(self.losses) else np.full(n, self.losses.max())
            return self._bound(learner, losses, users)

        return bounds.informative_from(bound, self.largest_loss, MAX_USERS)

    def cells(self) -> list[str]:
        """Cells of a table, see COLUMNS."""
        final, bound, informative = self.regret[:, -1], self.bound[-1], self.informative_from()
        regret = f"{final.mean():,.0f} ± {final.std(ddof=1):,.0f} ({len(final)})"
        ratio = f"{bound / self.trivial[-1]:.2g}"
        start = f"{informative:.1e} users" if informative < inf else f"above {MAX_USERS:.0e} users"
        setting = [str(len(self.losses)), self.constants, f"{self.learner.users:,}"]
        return [*setting, regret, f"{bound:,.0f}", ratio, start, f"{self.pull_share:.2f}"]


COLUMNS = ["policies", "τ", "users", "regret ± deviation (runs)", "proved bound", "/ trivial", "below it from"]
COLUMNS += ["users of a policy / bound"]


def summary(rows: Sequence[Measured], tail: float, accuracy: str) -> str:
    """Evidence of a row on regret; `accuracy` is that of the tails."""
    vacuous = sum(row.bound[-1] >= row.trivial[-1] for row in rows)
    share, pulls = (max(shares) for shares in zip(*((row.share, row.pull_share) for row in rows), strict=True))
    tails = f"at most {tail:.1g}" if tail >= 1e-9 else "less than 10⁻⁹"
    return (
        f"Mean regret is at most {share:.3f} of the proved bound with all constants; the check would notice a bound "
        f"more than {1 / share:.0f} times smaller. The bound is vacuous in {vacuous} of {len(rows)} cases: it "
        "exceeds the trivial one, largest loss × users; the table shows by which factor, and from how many users on "
        "it does not. Both steps of its proof are checked. For T = 1,000 the mean of n = 1, 2, 4, …, 512 returns "
        f"leaves its radius with {tails} of the probability 2/T⁴ ({accuracy}). No policy has more than "
        f"{pulls:.2f} of its bound of users in any run."
    )


CONVOLVED = "exact distributions, summed by convolution without cancellation; 10⁻¹⁰ of it is cut off at most"


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
        for options in constants_of(epsilon, instance):
            create = partial(UCBHybrid.thresholds, horizon=horizon, **options)
            rows.append(Measured.of(create, users, instance, scale.of(10, 2)))
    return Finding.of(holds(rows, tail), summary(rows, tail, CONVOLVED), [COLUMNS, *(row.cells() for row in rows)])


def lower_bound(click: Sequence[float], depart: Sequence[float], tau: float, users: int) -> float:
    """Proved lower bound of the regret of UCB-Hybrid over two fixed categories of one type, the first better.

    For every level u below the mean of the second return and every n: if the index of the first policy is below u
    after its n-th user, and that of the second is never below u, the first policy has at most n users. The first
    probability is exact (the sum of n returns is negative binomial). The second is at least 1 − exp(−8 θ τ ln T) by
    Ville's inequality, where E exp(−θ(V − u)) ≤ 1 (theory, UCB-Hybrid).
    """
    from scipy.special import nbdtr  # 0.1 s to import

    leave = [formulas.leave_probability(p, each) for p, each in zip(click, depart, strict=True)]
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


def growth(users: Sequence[float], values: Sequence[float]) -> float:
    """Exponent of the growth from the first to the last number of users."""
    return log(values[-1] / values[0]) / log(users[-1] / users[0])


def _slow() -> Instance:
    return Instance([1.0], [[p] for p in SLOW_CLICK], [[each] for each in SLOW_DEPART])


@check("one-type")
def check_one_type(scale: Scale) -> Finding:
    """A proved lower bound of regret on one instance, computed for growing T, beside measured regret."""
    tau = formulas.global_scale(SLOW_EPSILON)
    rows = [["users", "measured regret ± error (runs)", "at least", "bound with the paper's τ"]]
    mean_values = [formulas.fixed_value(p, each) for p, each in zip(SLOW_CLICK, SLOW_DEPART, strict=True)]
    losses, measured = max(mean_values) - np.array(mean_values), {}
    for users, runs in ((10**4, scale.of(40, 4)), (10**5, scale.of(30, 0))):
        final = [
            simulate(_slow(), UCBHybrid.fixed(2, users, tau=tau), users, seed).regret[-1] for seed in range(runs)
        ]
        if runs:
            measured[users] = f"{np.mean(final):.2g} ± {np.std(final, ddof=1) / sqrt(runs):.1g} ({runs})"
    users_of = [10**k for k in (4, 5, 6, 8, 10, 12, 14)]
    least = [lower_bound(SLOW_CLICK, SLOW_DEPART, tau, users) for users in users_of]
    claimed = [bounds.ucb_regret_bound(losses, tau, 1.0, users) for users in users_of]
    for users, low, high in zip(users_of, least, claimed, strict=True):
        rows.append([f"{users:.0e}", measured.get(users, "–"), f"{low:.2g}", f"{high:.2g}"])
    grows, may = growth(users_of, least), growth(users_of, claimed)
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
        tail = max(tail, *(_geometric_tails(p, each, epsilon) for p, each in zip(click, depart, strict=True)))
        slow = instance not in instances
        for options in constants_of(epsilon, instance)[: 1 if slow else 2]:
            create = partial(UCBHybrid.fixed, len(click), **options)
            rows.append(Measured.of(create, 10**4 if slow else users, instance, 2 if slow else scale.of(10, 2)))
    accuracy = "negative binomial distribution of the sums, relative error below 10⁻⁹"
    plot = svg(draw_bound("UCB-Hybrid with one type and 10 categories, exact constants", *rows[-1].curves()))
    return Finding.of(
        holds(rows, tail),
        summary(rows, tail, accuracy) + " The first row of the table is the instance that refutes the printed form.",
        [COLUMNS, *(row.cells() for row in rows)],
        plot,
        "Regret, the proved bound and the trivial one.",
    )


def _geometric_tails(p: float, depart: float, epsilon: float) -> float:
    """`mean_tails` of a fixed category of one type with the constants of ε; sums of returns are negative binomial."""
    from scipy.special import nbdtr, nbdtrc  # 0.1 s to import

    leave, users, tau = formulas.leave_probability(p, depart), TAIL_USERS, formulas.global_scale(epsilon)
    n = 2 ** np.arange(10)
    radii = np.array([formulas.radius(each, users, tau, 1.0) for each in n.tolist()])
    stop, mean = leave / (leave + p), p / leave
    low, high = np.ceil(n * (mean - radii)) - 1, np.floor(n * (mean + radii))
    below = np.where(low >= 0, nbdtr(np.maximum(low, 0), n, stop), 0.0)
    return float((below + nbdtrc(high, n, stop)).max()) / (2 / users**4)


@check("two-by-two")
def check_two_by_two(scale: Scale) -> Finding:
    """Measured regret against the optimum, the proved bound with the truncation term, and both steps of the proof."""
    users, instance = scale.of(10**7, 10**5), hard()
    epsilon = float(instance.departure_probabilities.min())
    horizon = formulas.repaired_horizon(users, epsilon)
    truncated, rows = bounds.truncation_bound(users, epsilon, horizon), []
    for options in constants_of(epsilon, instance):

        def create(t: int, options: dict[str, Any] = options) -> UCBHybrid:
            return UCBHybrid.thresholds(t, horizon=formulas.repaired_horizon(t, epsilon), **options)

        rows.append(Measured.of(create, users, instance, scale.of(5, 2), epsilon))
    row, tail = rows[-1], worst_tail((blog(), instance))
    lost = row.set_loss * users
    return Finding.of(
        holds(rows, tail) and lost <= truncated,
        summary(rows, tail, CONVOLVED) + f" The best policy of the set loses {lost:.1g} clicks over all users "
        f"compared with the optimal policy, at most {truncated:.2g} by the bound of truncation; H = {horizon}.",
        [COLUMNS, *(row.cells() for row in rows)],
        svg(draw_bound(f"UCB-Hybrid on the hard 2 × 2 instance, exact constants, {users:,} users", *row.curves())),
        "Regret, the proved bound and the trivial one.",
    )
