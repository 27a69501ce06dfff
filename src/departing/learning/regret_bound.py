"""`regret_bound`: what every learner must lose on an instance or on one of its neighbours."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from departing.evaluation.bounds import Bounds
from departing.learning.lower_bound.alternative import Alternative, check_alternative
from departing.learning.lower_bound.result import BoundCertificate, ConfusingInstance, RegretBound
from departing.learning.lower_bound.separation import Claim
from departing.learning.lower_bound.solver import Certified, LowerBoundSolver
from departing.model import random_streams
from departing.model.blas import one_blas_thread
from departing.model.errors import InputError
from departing.model.instance import Instance
from departing.model.validation import (
    MAX_USERS,
    check_fraction,
    check_instance,
    check_int,
    check_positive,
    check_seed,
)
from departing.planning.plan import plan_within
from departing.planning.problem import PlanningProblem

# Rounds of the search for alternatives for each number of users. With sure departure a policy is a sequence, and a
# round costs a fifth of one with uncertain departure.
ROUNDS, SURE_ROUNDS = 5, 8
# A bound of the search below this share of one for fewer users is not certified: the lattice of the search is coarser
# than that of the certificate, but not by as much.
HOPELESS = 0.2
OPTIMUM_ERROR = 0.02  # clicks of all users, as in regret curves
MIN_GAP = 1e-10  # near the rounding error of a plan
MAX_PLAN_NODES = 200_000


@one_blas_thread
def regret_bound(
    instance: Instance,
    users: int,
    share: float | None = None,
    budget: float | None = None,
    alternatives: Sequence[Instance] | None = None,
    seed: int = 0,
) -> RegretBound:
    """Compute a lower bound on the regret of every learner on an instance and its most confusing alternatives.

    A learner that loses little on every instance must tell the true instance from alternatives that call for another
    policy. The information costs clicks, and a linear programme over all policies bounds this cost from below
    (theory, limits of learning). The result is certified for the alternatives that it lists. They are found by local
    search; others could only make the bound larger.

    Parameters
    ----------
    instance : Instance
        The true instance.
    users : int
        Number of users.
    share : float, optional
        None for expected regret: no learner has an expected regret below the value on the instance and on every
        alternative. A share above 0.5, such as 0.99: no learner keeps this share of its runs below the value on
        the instance and on every alternative.
    budget : float, optional
        Regret in clicks that the learner is allowed on every alternative; the value is then a bound for the instance
        alone. By default the same bound holds for the instance and the alternatives.
    alternatives : sequence of Instance, optional
        Alternatives to use; by default they are searched.
    seed : int
        Seed of the search.

    Returns
    -------
    RegretBound

    Raises
    ------
    InputError
        If an argument is invalid.

    Examples
    --------
    >>> hard = Instance([0.0842, 0.9158], [[0.7846, 0.0541], [0.5867, 0.1994]])
    >>> bound = regret_bound(hard, users=10**4, seed=1)
    >>> bound.value > 20, bound.certificate.dual_value >= bound.value
    (True, True)
    """
    check_instance(instance)
    users, seed = check_int("users", users, most=MAX_USERS), check_seed(seed)
    if share is not None and check_fraction("share", share) <= 0.5:
        raise InputError(f"share is {share!r}; expected a number above 0.5 and below 1.", "share")
    budget = None if budget is None else check_positive("budget", budget)
    given = None if alternatives is None else _check_alternatives(instance, alternatives)
    gap = max(OPTIMUM_ERROR / users, MIN_GAP)
    optimum = plan_within(PlanningProblem(instance), gap, MAX_PLAN_NODES)
    proofs: list[Certified] = []
    if instance.n_categories > 1:
        solver = LowerBoundSolver(instance, optimum.lower, [seed, random_streams.LOWER_BOUND])
        bound, rounds = 0.0, SURE_ROUNDS if instance.sure_departure else ROUNDS
        for n in bound_levels(users):
            claim = Claim(n, share, budget)
            if given is not None:
                solver.use(given, claim, bound)
            bound, solution = solver.solve(claim, bound, 0 if given is not None else rounds)
            if not proofs or bound > HOPELESS * max(proof.value for proof in proofs):
                proofs.append(solver.certify(bound, solution))
    bounds = Bounds(optimum.lower, optimum.upper)
    return _result(instance, users, share, budget, proofs, bounds, given is None)


def bound_levels(users: int) -> list[int]:
    """Numbers of users for which the bound is computed: the powers of ten from 10 on, and `users`.

    >>> bound_levels(2500)
    [10, 100, 1000, 2500]
    """
    levels = [10**k for k in range(1, 16) if 10**k < users]
    return [*levels, users]


def _check_alternatives(instance: Instance, alternatives: Sequence[Instance]) -> list[Alternative]:
    if isinstance(alternatives, Instance) or not len(alternatives):
        raise InputError(f"alternatives is {alternatives!r:.80}; expected a list of at least one Instance.")
    return [check_alternative(instance, each, f"alternatives[{i}]") for i, each in enumerate(alternatives)]


def _result(
    instance: Instance,
    users: int,
    share: float | None,
    budget: float | None,
    proofs: list[Certified],
    optimum: Bounds,
    searched: bool,
) -> RegretBound:
    levels = np.array(bound_levels(users))
    certified = {proof.claim.users: proof.value for proof in proofs}
    curve = np.maximum.accumulate([certified.get(n, 0.0) for n in levels.tolist()])
    if not proofs or curve[-1] <= 0:
        proof = BoundCertificate(0.0, users, optimum.upper, optimum, 0.0, 0.0, 0, 0)
        return RegretBound(0.0, users, share, budget, instance, proof, (), (), levels, 0.0 * curve, searched)
    best = max(proofs, key=lambda proof: proof.value)
    confusing, dual = [], -best.claim.users * (best.priced - optimum.lower)
    for row, multiplier in zip(best.rows, best.multipliers.tolist(), strict=True):
        nats = best.claim.nats(row.separations, best.value)
        dual += multiplier * nats
        (separation,) = row.separations
        numbers = nats, multiplier, separation.weight, separation.loss
        confusing.append(ConfusingInstance(row.alternative.instance, *numbers))
    order = [
        i for i in np.argsort([-each.multiplier * each.nats for each in confusing]) if confusing[i].multiplier > 0
    ]
    proof = BoundCertificate(
        float(dual), int(best.claim.users), best.priced, optimum, best.slack, best.primal, best.depth, best.nodes
    )
    policies = tuple(replace(each, nats=each.nats[order]) for each in best.policies)
    fields = proof, tuple(confusing[i] for i in order), policies, levels, curve, searched
    return RegretBound(float(curve[-1]), users, share, budget, instance, *fields)
