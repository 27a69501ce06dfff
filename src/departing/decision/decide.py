"""The decision from a fit: candidate policies, their values under bootstrap draws, and the choice between them."""

from dataclasses import dataclass

import numpy as np

from departing.decision.claims import PolicyValue, claim_difference, claim_value
from departing.decision.decision import Candidate, Decision, FirstCategory
from departing.decision.ensemble import Ensemble
from departing.decision.information import expected_loss, users_to_halve
from departing.decision.log_value import LogValue
from departing.fitting.fit import Fit
from departing.fitting.goodness_of_fit import MAX_FINAL_SURVIVAL
from departing.model.counts import Integers
from departing.model.instance import Floats
from departing.model.progress import Progress
from departing.model.validation import check_int, check_seed
from departing.planning.plan import Plan, plan, plan_within
from departing.planning.problem import PlanningProblem
from departing.policy.greedy import Greedy
from departing.policy.protocol import Allowed, Policy, recommended
from departing.policy.schedule import Fixed

# Candidates are planned to this fraction of their value: far below the sampling error of a log. The limit on nodes
# makes the result independent of the speed of the machine.
RELATIVE_GAP, MAX_NODES = 1e-3, 5_000
# The plan of the fitted instance is certified to this fraction of its value, within these seconds.
PLAN_GAP, PLAN_SECONDS = 1e-4, 20.0
MIN_DRAWS, MAX_DRAWS = 20, 10_000  # 20 are the fewest for a 95% interval
SAME_VALUE = 1e-6  # relative difference of values below which two candidates are one


@dataclass(frozen=True, eq=False)
class Candidates:
    """Distinct policies with their values `[policies, 1 + draws]` under the fit and the draws."""

    policies: list[Policy]
    values: Floats
    first: Integers


def find_candidates(ensemble: Ensemble, allowed: tuple[int, ...]) -> Candidates:
    """Plan for the fitted instance and for every draw; keep the distinct policies, and the fixed ones."""
    policies: list[Policy] = []
    values: list[Floats] = []
    first: list[int] = []
    start = np.zeros((1, ensemble.instances[0].n_categories, 4), np.int64)

    def add(policy: Policy, value: Floats) -> None:
        if not any(np.allclose(value, other, SAME_VALUE, 0.0) for other in values):
            policies.append(policy)
            values.append(value)
            first.append(int(recommended(policy, start)[0]))

    for instance in ensemble.instances:
        gap = RELATIVE_GAP * float(instance.best_fixed[1])
        best = plan_within(PlanningProblem(instance, list(allowed)), gap, MAX_NODES)
        add(best.policy, ensemble.values(best.controller))
    for a in allowed:
        add(Fixed(a), ensemble.fixed_values[a])
    return Candidates(policies, np.array(values), np.array(first))


def decide(fit: Fit, allowed: Allowed, bootstrap: int, seed: int, progress: Progress | None) -> Decision:
    """The decision from a fit; see `plan`."""
    draws, seed = check_int("bootstrap", bootstrap, MIN_DRAWS, MAX_DRAWS), check_seed(seed)
    instance = fit.instance
    best = plan(instance, PLAN_GAP * instance.best_fixed[1], PLAN_SECONDS, allowed=allowed)
    ensemble = Ensemble.bootstrap(fit, draws, seed, progress)
    candidates = find_candidates(ensemble, best.allowed)
    in_draws = candidates.values[:, 1:]
    means = in_draws.mean(axis=1)
    chosen = int(means.argmax())
    own = in_draws.argmax(axis=0)  # best candidate under each draw
    order = np.argsort(-means, kind="stable")
    share = np.bincount(own, minlength=len(means)) / draws
    names = instance.categories
    first = np.bincount(candidates.first[own], minlength=len(names)) / draws
    values, gains = _claims(fit, best, ensemble, candidates, chosen)
    return Decision(
        fit=fit,
        policy=candidates.policies[chosen],
        plan=best,
        first=tuple(
            FirstCategory(names[a], float(first[a])) for a in sorted(best.allowed, key=lambda a: (-first[a], a))
        ),
        candidates=tuple(
            Candidate(candidates.policies[i], names[candidates.first[i]], float(means[i]), float(share[i]))
            for i in order
        ),
        expected_loss=expected_loss(in_draws),
        users_to_halve=users_to_halve(in_draws, fit.histories.users),
        values=values,
        gains=gains,
        warnings=fit.warnings,
    )


def _claims(
    fit: Fit, best: Plan, ensemble: Ensemble, candidates: Candidates, chosen: int
) -> tuple[tuple[PolicyValue, ...], tuple[PolicyValue, ...]]:
    """Values of the recommended policy and of the others, and the gains over these."""
    matrix, n = candidates.values, len(ensemble.instances) - 1
    rows = np.arange(1, n + 1)
    # In the world of a draw the recommended policy is the one with the best mean over its own draws, which differ
    # from those of the fit by the difference of draw and fit.
    shift = matrix[:, 1:].mean(axis=1) - matrix[:, 0]
    own = (matrix[:, 1:] + shift[:, None]).argmax(axis=0)
    own_value = (matrix[chosen, 0], matrix[own, rows], matrix[own, 0])
    fixed = ensemble.fixed_values[list(best.allowed)]
    fixed_own = fixed[:, 1:].argmax(axis=0)
    fixed_chosen = int(fixed[:, 0].argmax())
    everything = len(best.allowed) == fit.instance.n_categories
    restricted = ensemble if everything else ensemble.restrict(best.allowed)
    greedy = restricted.values(Greedy(restricted.instances[0]))
    others = {
        f"always {fit.instance.categories[best.allowed[fixed_chosen]]}": (
            fixed[fixed_chosen, 0],
            fixed[fixed_own, rows],
            fixed[fixed_own, 0],
        ),
        "greedy": (greedy[0], greedy[1:], np.full(n, greedy[0])),
    }
    log = LogValue.of(fit.histories)
    if log.final_survival(fit.likelihood.users) <= MAX_FINAL_SURVIVAL:
        observed = ensemble.log_values
        others = {"policy of the log": (observed[0], observed[1:], np.full(n, observed[0])), **others}
    values = [claim_value("recommended policy", *own_value)]
    values += [claim_value(name, *parts) for name, parts in others.items()]
    gains = [
        claim_difference(name, *(mine - theirs for mine, theirs in zip(own_value, parts, strict=True)))
        for name, parts in others.items()
    ]
    return tuple(values), tuple(gains)
