"""Items on the horizon H of the threshold policies: the loss of Π_H compared with the optimum (section 5.3)."""

from collections.abc import Sequence
from fractions import Fraction
from math import log, sqrt

import numpy as np

from departing.learning import ucb_bound as bounds
from departing.paper import formulas
from departing.paper.exact import two_phase_value
from departing.paper.formulas import Number
from departing.paper.item import Finding, Scale, check
from departing.paper.learning import growth

# Dominant column with the largest click probability above e^(−1/2): the optimal switch comes long after ln T steps.
LONG_PRIOR = (Fraction(3277, 10000), Fraction(6723, 10000))
LONG_CLICK = ((Fraction(989, 1000), Fraction(467, 1000)), (Fraction(985, 1000), Fraction(957, 1000)))
SHORT_CLICK = ((Fraction(70, 100), Fraction(10, 100)), (Fraction(69, 100), Fraction(68, 100)))


def truncation_loss(prior: Sequence[Number], click: Sequence[Sequence[Number]], horizon: int, steps: int) -> Number:
    """Loss of the best policy of Π_H compared with `steps` steps of the second category and then the first."""
    within = [two_phase_value(prior, click, a, h) for a, h in formulas.threshold_policies(horizon)]
    return two_phase_value(prior, click, 1, steps) - max(within)


def late_prior(click: Sequence[Sequence[Number]], steps: int) -> tuple[Number, Number]:
    """Prior with which both categories are equally good after `steps` clicks on the second (dominant column)."""
    (p1x, p1y), (p2x, p2y) = click
    odds = (p2y - p1y) * (1 - p1x) / ((p1x - p2x) * (1 - p1y)) * (p2y / p2x) ** steps
    return odds / (1 + odds), 1 / (1 + odds)


def least_truncation_loss(click: Sequence[Sequence[Number]], horizon: int, steps: int) -> Number:
    """Proved lower bound of `truncation_loss` with the prior `late_prior` (theory, the paper, the horizon)."""
    (p1x, p1y), (p2x, p2y) = click
    x, y, later = (p1x - p2x) / (1 - p1x), (p2y - p1y) / (1 - p1y), steps - horizon
    return x * y / (x + y) * p2y**horizon * min(1 - (p2y / p2x) ** later, p2y**later * (p2x - p2y))


@check("horizon-ln")
def check_horizon_ln(scale: Scale) -> Finding:
    """Loss of the best policy of Π_H in fractions on two matrices, with the worst of some priors for each T."""
    example = float(truncation_loss(LONG_PRIOR, LONG_CLICK, formulas.paper_horizon(1e8), 58)) * 1e8
    users_of = [10.0**power for power in (4, 8, 16, 32)[: scale.of(4, 3)]]
    rows = [["largest P", "users", "H", "better switch after", "loss × users", "proved lower bound", "√T ln T"]]
    exponents, proved = [], True
    for click, delays in ((LONG_CLICK, range(24, 48, 4)), (SHORT_CLICK, range(2, 7))):
        lost = []
        for users in users_of:
            horizon = formulas.paper_horizon(users)
            switches = (horizon + delay for delay in delays)
            loss, steps = max((truncation_loss(late_prior(click, n), click, horizon, n), n) for n in switches)
            least = least_truncation_loss(click, horizon, steps)
            lost.append(float(loss) * users)
            proved &= loss >= least
            amounts = (lost[-1], float(least) * users, sqrt(users) * log(users))
            cells = [f"{users:.0e}", str(horizon), str(steps), *(f"{each:.3g}" for each in amounts)]
            rows.append([f"{float(click[0][0]):g}", *cells])
        exponents.append(growth(users_of, lost))
    may = growth(users_of, [sqrt(users) * log(users) for users in users_of])
    return Finding.of(
        max(exponents) <= may or not proved,
        "With the click probabilities (0.989, 0.467), (0.985, 0.957), the prior 0.3277 and T = 10⁸ the best policy "
        f"with at most H = ⌈ln T⌉ = 19 steps loses at least {example:.3g} clicks compared with 58 steps. With the "
        f"worst prior for each T the loss grows at least like users to the power {exponents[0]:.2f}, and "
        f"{exponents[1]:.2f} if the largest click probability is 0.7, but √T ln T like {may:.2f} (T from "
        f"{users_of[0]:.0e} to {users_of[-1]:.0e}); the proved exponents are {1 + log(LONG_CLICK[1][1]):.3f} and "
        f"{1 + log(SHORT_CLICK[1][1]):.3f}. For one instance ⌈ln T⌉ exceeds the best switch if T is large enough; no "
        "constant holds for all instances with this ε.",
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
        within = max(float(np.max(two_phase_value(prior, click, a, h))) for a in (0, 1))
        loss = (two_phase_value(prior, click, 1, steps) - within) * users
        bound = bounds.truncation_bound(users, epsilon, horizon)
        worst, most = max(worst, loss / bound), max(most, bound / ((1 - epsilon) / epsilon))
    return Finding.of(
        worst <= 1 and most <= 1 + 1e-9,
        f"On {n:,} matrices with a dominant column the loss over all users is at most {worst:.3f} of "
        "T(1 − ε)^(H+1)/ε, which is at most (1 − ε)/ε.",
    )
