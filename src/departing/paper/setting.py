"""Claims on the protocol, the example, beliefs and the value of a walk (sections 2 and 5.1)."""

from fractions import Fraction

import numpy as np

from departing.evaluation.evaluate import evaluate
from departing.model.belief import belief
from departing.model.examples import blog
from departing.model.families import random_instance
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Instance
from departing.paper.claim import Claim, Finding, Scale
from departing.paper.exact import BLOG, walk_value
from departing.paper.plot import draw_walks
from departing.plotting.figures import svg
from departing.policy.schedule import Threshold, Walk
from departing.simulation.simulate import simulate

FAR = 4.0  # standard errors


def check_protocol(scale: Scale) -> Finding:
    """Users as the loop plays them against exact expectations of clicks and steps."""
    users, worst, outcomes = scale.of(200_000, 20_000), 0.0, np.zeros(4, np.int64)
    for seed in range(5):
        instance = random_instance("uniform", types=3, categories=3, seed=seed)
        policy = Walk([0, 1, 2], then=seed % 3)
        run = simulate(instance, policy, users, seed, "step")
        worst = max(worst, abs(run.mean - evaluate(instance, policy).value) / run.stderr)
        outcomes += np.tensordot(run.histories.multiplicity, run.histories.counts, axes=1).sum(axis=0)
    never = outcomes[CLICK_DEPART] == 0
    result = (
        f"{5 * users:,} users on 5 instances: {outcomes[CLICK]:,} clicks, after which everybody stayed, "
        f"{outcomes[STAY]:,} no-clicks after which users stayed and {outcomes[DEPART]:,} after which they departed; "
        f"clicks per user are at most {worst:.1f} standard errors from what is expected."
    )
    return Finding.of(bool(never) and worst < FAR, result)


def check_first_step(_: Scale) -> Finding:
    """The two chances of a first click, in fractions."""
    prior, click = BLOG
    first = [sum(q * p for q, p in zip(prior, row, strict=True)) for row in click]
    holds = first == [Fraction(368, 1000), Fraction(394, 1000)]
    return Finding.of(holds, f"Exactly {float(first[0])} and {float(first[1])}.")


def check_example_gaps(_: Scale) -> Finding:
    """What the best policy brings more than the fixed categories, in fractions."""
    prior, click = BLOG
    best = max(walk_value(prior, click, [1] * n, 0) for n in range(40))
    over = [best - walk_value(prior, click, [], a) for a in (0, 1)]
    holds = over[0] > Fraction("0.0169") and over[1] > Fraction("1.22e-5") and over[0] > over[1]
    return Finding.of(
        holds,
        f"The best policy brings {float(over[0]):.9f} more than always category 1 and {float(over[1]):.6e} more than "
        "always category 2, which is the better one.",
    )


def check_example_switch(_: Scale) -> Finding:
    """After how many recommendations of category 2 to switch, in fractions, with every later switch bounded."""
    prior, click = BLOG
    always = walk_value(prior, click, [], 1)
    gains = {n: walk_value(prior, click, [1] * n, 0) - always for n in range(60)}
    best = max(gains, key=lambda n: gains[n])
    # Beyond 60 steps fewer than 0.4^60 users are left, who bring at most 1 click each more: far below the gain.
    holds = best == 7
    table = [["recommendations of category 2 first", "gain over always category 2"]]
    table += [[str(n), f"{float(gains[n]):+.6e}"] for n in range(4, 10)]
    figure = draw_walks(blog(), 1, 0, 14)
    found = Finding.of(
        holds,
        f"Category 2 is best for {best} recommendations, with a gain of {float(gains[best]):.5e}. The 1.22e-5 that "
        f"the paper prints is the gain of 7 ({float(gains[7]):.5e}).",
        table,
    )
    return found.with_picture(svg(figure), "What switching after n steps gains.")


def check_linear(scale: Scale) -> Finding:
    """What the best fixed category loses with every user, in the example and over random instances."""
    best = walk_value(*BLOG, [1] * 6, 0)
    lost = min(best - walk_value(*BLOG, [], a) for a in (0, 1))
    loses, n = 0, scale.of(2000, 200)
    for seed in range(n):
        instance = random_instance("column", seed=seed)
        most = instance.best_fixed[1]
        walks = [Threshold(first=1, steps=steps, then=0) for steps in range(1, 40)]
        loses += any(evaluate(instance, walk).lower > most + 1e-9 for walk in walks)
    return Finding.of(
        lost > 0,
        f"In the example every user under the best fixed category loses {float(lost):.5e} clicks, so a billion users "
        f"lose {float(lost) * 1e9:,.0f}. Of {n:,} random instances with a dominant column {loses / n:.0%} have a "
        "policy that beats both fixed categories.",
    )


def check_belief(scale: Scale) -> Finding:
    """`dp.belief` against the update, click by click, in fractions."""
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(scale.of(500, 50)):
        numbers = rng.integers(1, 100, 5)
        b, click = Fraction(int(numbers[0]), 100), [[Fraction(int(p), 100)] for p in numbers[1:]]
        rows = [[click[0][0], click[1][0]], [click[2][0], click[3][0]]]
        counts = np.zeros((2, 4), np.int64)
        instance = Instance([float(b), float(1 - b)], [[float(p) for p in row] for row in rows])
        for a in rng.integers(0, 2, 30):
            x, y = rows[a]
            b = b * x / (b * x + y * (1 - b))
            counts[a, CLICK] += 1
            worst = max(worst, abs(float(belief(instance, counts)[0]) - float(b)))
    return Finding.of(worst < 1e-12, f"Over walks of 30 clicks the largest difference is {worst:.1e}.")


def check_bellman(scale: Scale) -> Finding:
    """The Bellman equation of threshold policies, in fractions: one step, then the value from the next belief."""
    rng, equal, n = np.random.default_rng(1), 0, scale.of(500, 50)
    for _ in range(n):
        q, *p = (Fraction(int(i), 100) for i in rng.integers(1, 100, 5))
        click = ((p[0], p[1]), (p[2], p[3]))
        steps = int(rng.integers(1, 12))
        value = walk_value((q, 1 - q), click, [1] * steps, 0)
        chance = q * click[1][0] + (1 - q) * click[1][1]
        after = q * click[1][0] / chance
        equal += value == chance * (1 + walk_value((after, 1 - after), click, [1] * (steps - 1), 0))
    return Finding.of(equal == n, f"Equal as fractions for {equal} of {n} random policies.")


def check_walk(scale: Scale) -> Finding:
    """The closed form of a walk against `dp.evaluate`, and against users who walk it."""
    rng, outside, worst = np.random.default_rng(2), 0, 0.0
    n = scale.of(300, 40)
    for seed in range(n):
        q, *p = (Fraction(int(i), 100) for i in rng.integers(1, 100, 5))
        click = ((p[0], p[1]), (p[2], p[3]))
        walk, then = rng.integers(0, 2, int(rng.integers(0, 15))).tolist(), int(rng.integers(0, 2))
        exact = walk_value((q, 1 - q), click, walk, then)
        instance = Instance([float(q), float(1 - q)], [[float(c) for c in row] for row in click])
        found = evaluate(instance, Walk(walk, then=then))
        outside += not found.lower <= float(exact) <= found.upper
        if seed < 10:
            run = simulate(instance, Walk(walk, then=then), 10**6, seed)
            worst = max(worst, abs(run.mean - float(exact)) / run.stderr)
    return Finding.of(
        outside == 0 and worst < FAR,
        f"The exact sum lies in the bracket of dp.evaluate for {n - outside} of {n} random walks; a million users "
        f"are at most {worst:.1f} standard errors away from it.",
    )


CLAIMS = (
    Claim(
        "protocol",
        "Section 2, Algorithm 1",
        "Users come one after the other, with a type drawn from q; each clicks with chance P and stays, and after a "
        "no-click departs with chance Λ.",
        "The loop that defines a simulation, against exact expectations.",
        check_protocol,
    ),
    Claim(
        "first-step",
        "Section 2.1, Table 1",
        "The first recommendation is clicked with chance 0.368 (category 1) or 0.394 (category 2).",
        "Fractions.",
        check_first_step,
    ),
    Claim(
        "example-gaps",
        "Section 2.1",
        "E[V*] − E[V¹] > 0.0169 and E[V*] − E[V²] > 1.22 × 10⁻⁵; always category 2 is better than always category 1.",
        "Fractions, over the number of recommendations before switching.",
        check_example_gaps,
    ),
    Claim(
        "example-switch",
        "Section 2.1",
        "The best policy of the example recommends category 2 until iteration 7 and then category 1.",
        "Fractions, for every number of recommendations before switching.",
        check_example_switch,
    ),
    Claim(
        "linear",
        "Section 2.1",
        "A learner that uses fixed categories only suffers linear regret.",
        "The exact loss per user in the example; policies that switch against fixed ones on random instances.",
        check_linear,
    ),
    Claim(
        "belief",
        "Section 5.1, belief update",
        "After a click the belief in type x is b P / (b P + (1 − b) P').",
        "dp.belief against the formula in fractions, along random walks.",
        check_belief,
    ),
    Claim(
        "bellman",
        "Section 5.1, Bellman equation",
        "E[V(b)] = (chance of a click) · (1 + E[V(b')]).",
        "Fractions, for random beliefs and threshold policies.",
        check_bellman,
    ),
    Claim(
        "walk",
        "Section 5.1, theorem on the expected return",
        "A policy is one belief-category walk, worth Σ b P₁ₓ^m₁ P₂ₓ^m₂ + (1 − b) P₁ᵧ^m₁ P₂ᵧ^m₂ over its steps.",
        "The sum in fractions against dp.evaluate on random walks, and against simulated users.",
        check_walk,
    ),
)
