"""Items on the model, the example, the POMDP, beliefs and the value of a walk (sections 2 and 5.1)."""

from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.learning.ucb import UCBHybrid
from departing.model.belief import belief
from departing.model.examples import blog, hard
from departing.model.families import random_instance
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats, Instance
from departing.paper import formulas
from departing.paper.exact import (
    BLOG,
    Click,
    Row,
    best_walk_value,
    instance_of,
    largest_first,
    random_cases,
    random_instances,
    threshold_value,
    walk_value,
)
from departing.paper.item import IMPLEMENTED, REFUTED, Finding, Scale, check
from departing.planning.closed_form import two_by_two
from departing.planning.plan import plan
from departing.planning.plot.threshold_plot import draw_thresholds
from departing.plotting.figures import svg
from departing.policy.greedy import Greedy
from departing.policy.schedule import Schedule, Walk
from departing.simulation.simulate import simulate

MAX_Z = 4.0  # standard errors; exceeded by chance in 1 of 16,000 comparisons


@check("protocol")
def check_protocol(scale: Scale) -> Finding:
    """Outcomes of the reference simulation loop, by category, against the protocol's expectations."""
    users, worst, outcomes = scale.of(200_000, 20_000), 0.0, np.zeros(4, np.int64)
    for seed in range(5):
        instance = random_instance("uniform", types=3, categories=3, seed=seed)
        policy = Walk([0, 1, 2], then=seed % 3)
        seen = simulate(instance, policy, users, seed, "step").histories
        shares = seen.multiplicity / users
        mean = np.tensordot(shares, seen.counts, axes=1)
        variance = np.tensordot(shares, (seen.counts - mean) ** 2, axes=1)[:, :3]
        deviation = np.abs(mean[:, :3] - _expected_outcomes(instance, policy)) / np.sqrt(variance / users)
        worst = max(worst, float(deviation.max()))
        outcomes += np.tensordot(seen.multiplicity, seen.counts, axes=1).sum(axis=0)
    result = (
        f"{5 * users:,} users on 5 instances: {outcomes[CLICK]:,} clicks, none followed by a departure, "
        f"{outcomes[STAY]:,} no-clicks followed by a stay and {outcomes[DEPART]:,} by a departure. "
        f"The outcomes per user and category deviate from their expectations by at most {worst:.1f} standard errors."
    )
    return Finding.of(bool(outcomes[CLICK_DEPART] == 0) and worst < MAX_Z, result)


def _expected_outcomes(instance: Instance, policy: Schedule) -> Floats:
    """Expected clicks, stays and departures of a user by category, `[K, 3]`, step by step from the protocol."""
    expected, active = np.zeros((instance.n_categories, 3)), np.array(instance.prior)
    for a in policy.first_categories(1000):
        outcomes = np.array(formulas.outcome_probabilities(instance.click[a], instance.depart[a]))
        expected[a] += outcomes @ active
        active = active * outcomes[:2].sum(axis=0)
    return expected


@check("regret")
def check_regret(scale: Scale) -> Finding:
    """Regret of simulated learners against the definition; expected and realised regret over many runs."""
    users, differences, worst = 500, [], 0.0
    best = plan(blog(), 1e-9)
    for seed in range(scale.of(400, 40)):
        run = simulate(blog(), UCBHybrid.fixed(2, users, tau=0.3), users, seed, optimum=best)
        seen = run.histories
        returns = [
            formulas.total_return([1] * clicks + [0] * (steps - clicks))
            for clicks, steps, n in zip(seen.clicks, seen.steps, seen.multiplicity, strict=True)
            for _ in range(n)
        ]
        worst = max(worst, abs(run.realised_regret[-1] - formulas.regret(best.value, returns)))
        differences.append(run.realised_regret[-1] - run.regret[-1])
    z = abs(np.mean(differences)) / (np.std(differences, ddof=1) / np.sqrt(len(differences)))
    return Finding(
        IMPLEMENTED if worst < 1e-6 and z < MAX_Z else REFUTED,
        f"Realised regret equals the definition in {len(differences)} runs of {users} users (largest difference "
        f"{worst:.0e}). Expected regret, computed from the values of the policies, deviates from its mean by {z:.1f} "
        "standard errors.",
    )


@check("deterministic")
def check_deterministic(scale: Scale) -> Finding:
    """Values of random randomised policies of four steps, functions of the history, in exact fractions."""
    rng, n, exceeded, equal = np.random.default_rng(3), scale.of(200, 20), 0, 0
    for _ in range(n):
        (q, click), (_, depart) = _random_fractions(rng), _random_fractions(rng)
        value = partial(_history_value, click, depart, [q, 1 - q], 4)
        best, randomised = value(None), value(rng)
        exceeded += randomised > best
        equal += randomised == best
    return Finding.of(
        exceeded == 0,
        f"None of {n} randomised policies, which draw a category after every history of clicks and stays, has a "
        f"higher value than the best deterministic one; {equal} have the same value.",
    )


def _history_value(
    click: Click, depart: Click, weights: list[Fraction], steps: int, rng: np.random.Generator | None
) -> Fraction:
    """Expected clicks within `steps` steps of a policy that draws categories at random, or of the best one.

    `weights` are the probabilities of each type and of the history; the policy draws with random probabilities.
    """
    if not steps:
        return Fraction(0)
    values = []
    for p, leave in zip(click, depart, strict=True):
        clicked = [w * x for w, x in zip(weights, p, strict=True)]
        stayed = [w * (1 - x) * (1 - d) for w, x, d in zip(weights, p, leave, strict=True)]
        later = (_history_value(click, depart, after, steps - 1, rng) for after in (clicked, stayed))
        values.append(sum(clicked, Fraction(0)) + sum(later))
    if rng is None:
        return formulas.deterministic_choice(values)
    share = Fraction(int(rng.integers(0, 5)), 4)
    return share * values[0] + (1 - share) * values[1]


@check("example-table")
def check_example_table(_: Scale) -> Finding:
    """Exact fractions."""
    (q_x, q_y), ((p1x, p1y), (p2x, p2y)) = BLOG
    same = np.array_equal(blog().click, np.array(BLOG[1], float)) and blog().structure == "column"
    return Finding.of(
        same and p1x > p2x and p2y > p1y and q_y > q_x,
        f"P₁ₓ − P₂ₓ = {p1x - p2x}, P₂ᵧ − P₁ᵧ = {p2y - p1y}, qᵧ − qₓ = {q_y - q_x}. It has a dominant column.",
    )


@check("first-step")
def check_first_step(_: Scale) -> Finding:
    """Exact fractions, and the probability of a click that the model predicts for a new user."""
    prior, click = BLOG
    first = [formulas.first_reward(prior, row) for row in click]
    predicted = blog().click @ blog().prior
    holds = first == list(formulas.FIRST_STEP) and np.allclose(predicted, np.array(first, float), atol=1e-15)
    return Finding.of(holds, f"Exactly {float(first[0])} and {float(first[1])}.")


@check("example-myopic")
def check_example_myopic(_: Scale) -> Finding:
    """Exact fractions; a counterexample to the reason that the paper gives."""
    values = [walk_value(*BLOG, [], a) for a in (0, 1)]
    better = formulas.EXAMPLE_BETTER
    prior = (Fraction(2, 5), Fraction(3, 5))
    click = ((Fraction(9, 10), Fraction(1, 10)), (Fraction(6, 10), Fraction(5, 10)))
    first = [float(formulas.first_reward(prior, row)) for row in click]
    other = [float(walk_value(prior, click, [], a)) for a in (0, 1)]
    return Finding.of(
        values[better] > values[1 - better],
        f"E[V²] = {values[1]} and E[V¹] = {values[0]}. A larger first reward does not imply it: with "
        f"P = ((0.9, 0.1), (0.6, 0.5)) and the same prior, category 2 has the larger first reward ({first[1]:.2f} "
        f"against {first[0]:.2f}) and the smaller value ({other[1]:.2f} against {other[0]:.2f}).",
    )


@check("example-gaps")
def check_example_gaps(_: Scale) -> Finding:
    """Exact fractions, for every number of recommendations before switching."""
    prior, click = BLOG
    best = max(walk_value(prior, click, [1] * n, 0) for n in range(40))
    gains = [best - walk_value(prior, click, [], a) for a in (0, 1)]
    return Finding.of(
        all(gain > stated for gain, stated in zip(gains, formulas.EXAMPLE_GAPS, strict=True)),
        f"The gain of the best policy is {float(gains[0]):.9f} over always category 1 and {float(gains[1]):.6e} over "
        "always category 2.",
    )


@check("example-switch")
def check_example_switch(_: Scale) -> Finding:
    """Exact fractions, for every number of recommendations before switching."""
    prior, click = BLOG
    fixed = walk_value(prior, click, [], 1)
    gains = {n: walk_value(prior, click, [1] * n, 0) - fixed for n in range(60)}
    # After 60 steps a share below 0.4^60 of the users is active, with a gain of at most 1 click each.
    best, stated = max(gains, key=lambda n: gains[n]), formulas.EXAMPLE_STEPS
    table = [["recommendations of category 2 first", "gain over always category 2"]]
    table += [[str(n), f"{float(gains[n]):+.6e}"] for n in range(4, 10)]
    return Finding.of(
        best == stated,
        f"The best policy recommends category 2 for {best} steps, with a gain of {float(gains[best]):.5e}. The value "
        f"1.22e-5 in the paper is the gain of {stated} steps ({float(gains[stated]):.5e}).",
        table,
        svg(draw_thresholds(blog(), 1, 0, 14)),
        "Clicks per user against the switching step; category 2 is sports.",
    )


@check("linear")
def check_linear(_: Scale) -> Finding:
    """Exact expected regret of the better fixed category, and the paper's linear lower bound, up to 10⁹ users."""
    best = walk_value(*BLOG, [1] * 6, 0)
    loss = min(best - walk_value(*BLOG, [], a) for a in (0, 1))
    return Finding.of(
        all(users * loss >= formulas.example_regret(users) > 0 for users in (1, 10**3, 10**6, 10**9)),
        f"The better fixed category loses {float(loss):.5e} clicks per user, {float(loss) * 1e9:,.0f} clicks over a "
        "billion users; no sequence of fixed categories loses less.",
    )


@check("fixed-arms")
def check_fixed_arms(scale: Scale) -> Finding:
    """Optimal policies against fixed categories on an instance found by search, and on random instances."""
    best, fixed = (two_by_two(hard()).best[1].lower, hard().best_fixed[1])
    n = scale.of(2000, 200)
    losses = np.array(
        [
            1 - instance.best_fixed[1] / two_by_two(instance).best[1].value
            for instance in random_instances("column", n)
        ]
    )
    return Finding.of(
        formulas.fixed_is_inferior(best, fixed),
        f"On the instance `hard` the optimal policy has {best:.4f} expected clicks per user and the better fixed "
        f"category {fixed:.4f}, a loss of {1 - fixed / best:.0%}. On {(losses > 1e-9).mean():.0%} of {n:,} random "
        f"instances with a dominant column both fixed categories lose, by {losses.max():.1%} at most.",
    )


@check("belief-monotone")
def check_belief_monotone(scale: Scale) -> Finding:
    """Beliefs along random and optimal walks of instances with a dominant column, in exact fractions."""
    rng, n, steps = np.random.default_rng(4), scale.of(500, 60), 40
    decreases, wrong, crossed, tied = 0, 0, 0, 0
    for b, click in random_cases(formulas.dominant_column, n):
        informative = [row[0] > row[1] for row in click]  # always in category 1; in category 2 unless P₂ₓ = P₂ᵧ
        tied += not all(informative)
        walk = rng.integers(0, 2, steps).tolist()
        for a, (before, after) in zip(walk, pairwise(_beliefs(b, click, walk)), strict=True):
            decreases += not (formulas.belief_increases(before, after) if informative[a] else after == before)
        below = [x <= belief_threshold(click) for x in _beliefs(b, click, [1] * steps)]
        switch = steps if all(below) else below.index(False)
        crossed += 0 < switch < steps
        values = [threshold_value(b, click, 1, h) for h in range(steps + 1)]
        wrong += values[switch] < max(values) or (switch < steps and any(below[switch:]))
    return Finding.of(
        decreases + wrong == 0,
        f"On {n} instances the belief in type x increases with every click of walks of {steps} random steps. With "
        "the threshold (P₂ᵧ − P₁ᵧ)(1 − P₁ₓ) / [(P₂ᵧ − P₁ᵧ)(1 − P₁ₓ) + (P₁ₓ − P₂ₓ)(1 − P₁ᵧ)] the policy has the "
        f"largest value of all that switch within {steps} steps. Its belief crosses the threshold once on {crossed} "
        f"of the instances and not within {steps} steps on the others. On {tied} of them P₂ₓ = P₂ᵧ: category 2 does "
        "not change the belief.",
    )


def belief_threshold(click: Click) -> Fraction:
    """Belief in type x above which category 1 is better now than category 2 once and then category 1."""
    (p1x, p1y), (p2x, p2y) = click
    y, x = (p2y - p1y) * (1 - p1x), (p1x - p2x) * (1 - p1y)
    return y / (y + x)


def _beliefs(b: Fraction, click: Click, walk: list[int]) -> list[Fraction]:
    """Beliefs in type x before every step of a walk and after it, by Bayes' rule from the prior."""
    x, y, beliefs = b, 1 - b, [b]
    for a in walk:
        x, y = x * click[a][0], y * click[a][1]
        beliefs.append(x / (x + y))
    return beliefs


@check("pomdp")
def check_pomdp(scale: Scale) -> Finding:
    """Value iteration with Tr and Ω in fractions against all walks; the POMDP planner against the closed form."""
    rng, n, steps, wrong, outside = np.random.default_rng(5), scale.of(50, 6), 7, 0, 0
    for _ in range(n):
        q, click = _random_fractions(rng)
        prior = (q, 1 - q)
        sums = {sum(formulas.stay_or_depart(p)) for row in click for p in row}
        wrong += sums != {1} or _pomdp_value(prior, click, steps) != best_walk_value(prior, click, steps)
    planned = scale.of(60, 3)
    for seed in range(planned):
        instance = random_instance(("column", "row", "diagonal")[seed % 3], seed=seed)
        search, exact = plan(instance, 1e-5, method="search"), two_by_two(instance).best[1]
        outside += search.lower > exact.upper + 1e-9 or exact.lower > search.upper + 1e-9
    return Finding.of(
        wrong + outside == 0,
        f"Tr and Ω sum to 1, and {steps} steps of value iteration over beliefs give the value of the best walk on "
        f"{n - wrong} of {n} instances, in fractions. The closed form lies within the bounds of the POMDP planner, "
        f"which does not use the structures, on {planned - outside} of {planned}.",
    )


def _pomdp_value(prior: Row, click: Click, steps: int) -> Fraction:
    """Value iteration over beliefs with the transition and observation functions of the paper."""
    if not steps:
        return Fraction(0)
    values = []
    for row in click:
        reward = sum(b * p for b, p in zip(prior, row, strict=True))
        x, y = (b * formulas.stay_or_depart(p)[0] for b, p in zip(prior, row, strict=True))
        values.append(reward + (x + y) * _pomdp_value((x / (x + y), y / (x + y)), click, steps - 1))
    return max(values)


@check("relabelling")
def check_relabelling(scale: Scale) -> Finding:
    """Maximal expected clicks within seven steps before and after, in exact fractions."""
    rng, n, wrong = np.random.default_rng(6), scale.of(200, 20), 0
    for _ in range(n):
        q, click = _random_fractions(rng)
        b, permuted = largest_first(q, click)
        wrong += permuted[0][0] != max(p for row in click for p in row)
        wrong += best_walk_value((b, 1 - b), permuted, 7) != best_walk_value((q, 1 - q), click, 7)
    evidence = f"The largest entry comes first, and the optimum is unchanged, on {n} random instances."
    return Finding.of(wrong == 0, evidence)


@check("belief")
def check_belief(scale: Scale) -> Finding:
    """dp.belief, and Bayes' rule from the prior in exact fractions, against the update, along random walks."""
    rng, worst, unequal = np.random.default_rng(0), 0.0, 0
    for _ in range(scale.of(500, 50)):
        b, click = _random_fractions(rng)
        counts, instance = np.zeros((2, 4), np.int64), instance_of(b, click)
        walk = rng.integers(0, 2, 30).tolist()
        for a, exact in zip(walk, _beliefs(b, click, walk)[1:], strict=True):
            b = formulas.next_belief(b, click[a])
            unequal += b != exact
            counts[a, CLICK] += 1
            worst = max(worst, abs(float(belief(instance, counts)[0]) - float(b)))
    return Finding.of(
        unequal == 0 and worst < 1e-12,
        f"Equal in fractions along walks of 30 clicks. The largest difference of dp.belief is {worst:.1e}.",
    )


@check("bellman")
def check_bellman(scale: Scale) -> Finding:
    """Exact fractions, for random beliefs and threshold policies."""
    rng, equal, n = np.random.default_rng(1), 0, scale.of(500, 50)
    for _ in range(n):
        b, click = _random_fractions(rng)
        steps = int(rng.integers(1, 12))
        after = _beliefs(b, click, [1])[1]
        later = walk_value((after, 1 - after), click, [1] * (steps - 1), 0)
        equal += walk_value((b, 1 - b), click, [1] * steps, 0) == formulas.bellman(b, click[1], later)
    return Finding.of(equal == n, f"Equal in fractions for {equal} of {n} random policies.")


@check("single-walk")
def check_single_walk(scale: Scale) -> Finding:
    """Simulated users of greedy policies: the categories shown, by number of steps."""
    n, users, several, longest = scale.of(50, 5), 20_000, 0, 0
    for seed in range(n):
        instance = random_instance("uniform", types=3, categories=3, seed=seed, depart=formulas.SURE_DEPARTURE)
        seen = simulate(instance, Greedy(instance), users, seed, "step").histories
        shown = np.unique(seen.counts.sum(axis=2), axis=0)
        steps = shown.sum(axis=1)
        several += len(np.unique(steps)) < len(steps) or bool((np.diff(shown[steps.argsort()], axis=0) < 0).any())
        longest = max(longest, int(steps.max()))
    return Finding.of(
        several == 0,
        f"On {n - several} of {n} random instances users with the same number of steps were shown the same "
        f"categories, and users with more steps these and more ({users:,} users each, up to {longest} steps).",
    )


@check("walk")
def check_walk(scale: Scale) -> Finding:
    """The sum against exact fractions, dp.evaluate and simulated users, on random walks."""
    rng, outside, worst = np.random.default_rng(2), 0, 0.0
    n = scale.of(300, 40)
    for seed in range(n):
        q, click = _random_fractions(rng, 20)
        walk, then = rng.integers(0, 2, int(rng.integers(0, 15))).tolist(), int(rng.integers(0, 2))
        value = _printed_sum(float(q), np.array(click, float), walk, then)
        exact = float(walk_value((q, 1 - q), click, walk, then))
        evaluated = evaluate(instance_of(q, click), Walk(walk, then=then))
        outside += abs(value - exact) > 1e-9 or not evaluated.lower - 1e-9 <= value <= evaluated.upper + 1e-9
        if seed < 10:
            run = simulate(instance_of(q, click), Walk(walk, then=then), 10**6, seed)
            worst = max(worst, abs(run.mean - value) / run.stderr)
    return Finding.of(
        outside == 0 and worst < MAX_Z,
        f"The sum equals the exact value and lies within the bounds of dp.evaluate for {n - outside} of {n} random "
        f"walks. The mean of a million simulated users deviates by at most {worst:.1f} standard errors.",
    )


def _printed_sum(b: float, click: Floats, walk: list[int], then: int) -> float:
    """The sum of the theorem; 600 further steps of the last category, 0.95 at most, leave less than 1e-11."""
    counts, total = [0, 0], 0.0
    for a in walk + [then] * 600:
        counts[a] += 1
        total += formulas.active_probability((b, 1 - b), click.tolist(), counts)
    return total


def _random_fractions(rng: np.random.Generator, unit: int = 100) -> tuple[Fraction, Click]:
    """Random belief and click probabilities, multiples of 1/`unit`."""
    b, p1x, p1y, p2x, p2y = (Fraction(int(i), unit) for i in rng.integers(1, unit, 5))
    return b, ((p1x, p1y), (p2x, p2y))
