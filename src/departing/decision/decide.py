"""The decision from a fit: the best candidate, the claims about it, and the uncertainty."""

from collections.abc import Iterator
from typing import cast

import numpy as np

from departing.decision.candidates import Candidates, choices
from departing.decision.claims import Claim, PolicyValue, gain, observed_value
from departing.decision.decision import IGNORING, Candidate, Decision, FirstCategory
from departing.decision.ensemble import GRAPH_GAP, Ensemble, follow
from departing.decision.information import expected_loss, users_to_halve
from departing.decision.log_value import LogValue
from departing.decision.segments import Part, mixed, parts, shares
from departing.decision.stack import Stack
from departing.fitting.fit import Fit
from departing.fitting.goodness_of_fit import MAX_FINAL_SURVIVAL
from departing.fitting.type_evidence import describe_hidden
from departing.model.blas import one_blas_thread
from departing.model.instance import Floats
from departing.model.progress import Progress
from departing.model.validation import check_int, check_seed
from departing.planning.plan import Plan, plan
from departing.planning.problem import restrict
from departing.policy.by_segment import BySegment
from departing.policy.greedy import Greedy
from departing.policy.protocol import Allowed, Policy
from departing.policy.starts import group_starts

# The plan of the fitted instance is certified to this fraction of its value, within these seconds.
PLAN_GAP, PLAN_SECONDS = 1e-4, 20.0
MIN_DRAWS, MAX_DRAWS = 20, 10_000  # 20 are the fewest for a 95% interval


@one_blas_thread
def decide(fit: Fit, allowed: Allowed, bootstrap: int, seed: int, progress: Progress | None) -> Decision:
    """Decide from a fit; see `departing.plan`."""
    draws, seed = check_int("bootstrap", bootstrap, MIN_DRAWS, MAX_DRAWS), check_seed(seed)
    best = plan(fit.instance, PLAN_GAP * fit.instance.best_fixed[1], PLAN_SECONDS, allowed=allowed)
    ensemble = Ensemble.bootstrap(fit, draws, seed, progress)
    common, *rest = parts(fit, best, ensemble)
    log = None
    if LogValue.of(fit.histories, fit.instance).final_survival(fit.likelihood.users) <= MAX_FINAL_SURVIVAL:
        log = observed_value("policy of the log", ensemble.log_values), ensemble.log_values
    if not rest:
        return _decision(fit, common, _claims(common), log)
    claims = [_claims(part) for part in rest]
    by_segment = {str(part.name): _decision(fit, part, own, None) for part, own in zip(rest, claims, strict=True)}
    return _mix(fit, best, common, rest, claims, by_segment, shares(fit, ensemble), log)


Claims = tuple[Claim, tuple[int, Claim], Claim]  # of the recommended policy, the best fixed one and greedy


def _decision(fit: Fit, part: Part, claims: Claims, log: tuple[PolicyValue, Floats] | None) -> Decision:
    """The decision for users of one prior."""
    names, candidates, best = fit.instance.categories, part.candidates, part.plan
    in_draws = candidates.values[:, 1:]
    n_draws = in_draws.shape[1]
    share = np.bincount(candidates.best, minlength=len(in_draws)) / n_draws
    first = np.bincount(candidates.first[candidates.best], minlength=len(names)) / n_draws
    order = np.argsort(-candidates.means, kind="stable")
    values, gains = _values(fit, claims, log)
    return Decision(
        fit=fit,
        policy=candidates.policies[order[0]],
        plan=best,
        first=_first(fit, best, first),
        candidates=tuple(
            Candidate(candidates.policies[i], names[candidates.first[i]], float(candidates.means[i]), float(share[i]))
            for i in order
        ),
        expected_loss=expected_loss(in_draws),
        users_to_halve=users_to_halve([(1.0, in_draws)], fit.histories.users),
        values=values,
        gains=gains,
        warnings=(*fit.warnings, *_hidden_types(fit), *_extrapolation(fit)),
    )


def _mix(
    fit: Fit,
    best: Plan,
    common: Part,
    rest: list[Part],
    claims: list[Claims],
    by_segment: dict[str, Decision],
    weights: Floats,
    log: tuple[PolicyValue, Floats] | None,
) -> Decision:
    """The decision for all users: the policy of each segment, and means by share."""
    recommended = mixed([each for each, _, _ in claims], weights)
    greedy = mixed([each for _, _, each in claims], weights)
    own = recommended, _fixed(common.ensemble, list(best.allowed)), greedy
    # The common prior is the mean of those of the segments, so its values are those of all users.
    values, gains = _values(fit, own, log, ignoring=_recommended(common.candidates))
    names, decisions = fit.instance.categories, list(by_segment.values())
    first = np.zeros(len(names))
    for share, decision in zip(weights[0], decisions, strict=True):
        for category in decision.first:
            first[names.index(category.category)] += share * category.probability
    unknown = common.candidates.policies[int(common.candidates.means.argmax())]
    policy = BySegment({name: decision.policy for name, decision in by_segment.items()}, unknown)
    probability = float(sum(w * d.candidates[0].probability for w, d in zip(weights[0], decisions, strict=True)))
    value = float(sum(w * d.candidates[0].value for w, d in zip(weights[0], decisions, strict=True)))
    ranked = _first(fit, best, first)
    starts = group_starts({name: each.candidates[0].first for name, each in by_segment.items()}, weights[0])
    in_draws = [(float(w), part.candidates.values[:, 1:]) for w, part in zip(weights[0], rest, strict=True)]
    return Decision(
        fit=fit,
        policy=cast(Policy, policy),
        plan=best,
        first=ranked,
        candidates=(Candidate(cast(Policy, policy), starts[0].category, value, probability),),
        expected_loss=sum(w * expected_loss(own) for w, own in in_draws),
        users_to_halve=users_to_halve(in_draws, fit.histories.users),
        values=values,
        gains=gains,
        warnings=(*fit.warnings, *_hidden_types(fit), *_extrapolation(fit)),
        by_segment=by_segment,
        starts=starts,
    )


def _first(fit: Fit, best: Plan, probabilities: Floats) -> tuple[FirstCategory, ...]:
    """Probabilities of first categories, the largest first."""
    names = fit.instance.categories
    ranked = sorted(best.allowed, key=lambda a: (-probabilities[a], a))
    return tuple(FirstCategory(names[a], float(probabilities[a])) for a in ranked)


def _hidden_types(fit: Fit) -> Iterator[str]:
    """Sentence about types that the fit lacks, if there are."""
    if fit.hidden_types is not None:
        yield describe_hidden(fit.instance.n_types, fit.hidden_types)


def _extrapolation(fit: Fit) -> Iterator[str]:
    """Sentence about steps that the log does not show, if they matter."""
    survival = LogValue.of(fit.histories, fit.instance).final_survival(fit.likelihood.users)
    if survival > MAX_FINAL_SURVIVAL:
        yield (
            f"{survival:.0%} of users are still active after the longest history, so the values of all policies are "
            "extrapolated by the model, and the value of the policy of the log is unknown."
        )


def _claims(part: Part) -> Claims:
    """Claims about the recommended policy, the best fixed policy and greedy."""
    allowed = list(part.plan.allowed)
    return _recommended(part.candidates), _fixed(part.ensemble, allowed), _greedy(part.ensemble, allowed)


def _values(
    fit: Fit, claims: Claims, log: tuple[PolicyValue, Floats] | None, ignoring: Claim | None = None
) -> tuple[tuple[PolicyValue, ...], tuple[PolicyValue, ...]]:
    """Values of the recommended policy and of the others, and the gains over these."""
    recommended, (category, fixed), greedy = claims
    value = recommended.value("recommended policy")
    others = [] if ignoring is None else [(ignoring.value(IGNORING), ignoring.in_draws)]
    others += [(fixed.value(f"always {fit.instance.categories[category]}"), fixed.in_draws)]
    same = np.allclose(greedy.in_draws, recommended.in_draws, rtol=GRAPH_GAP)
    others.append(((recommended if same else greedy).value("greedy"), (recommended if same else greedy).in_draws))
    if log is not None:
        others.insert(0, log)
    gains = (gain(value, other, recommended.in_draws, in_draws) for other, in_draws in others)
    return (value, *(other for other, _ in others)), tuple(gains)


def _recommended(candidates: Candidates) -> Claim:
    """Values of the recommended policy."""
    own, values = candidates.choices, candidates.values
    return Claim(values[own, np.arange(len(own))], values[own, 0], values[own[0]])


def _fixed(ensemble: Ensemble, allowed: list[int]) -> tuple[int, Claim]:
    """Category of the best fixed policy, chosen as the recommended policy is, and the values of that policy."""
    values = ensemble.stack.fixed_values[allowed]
    own = choices(values)
    return allowed[own[0]], Claim(values[own, np.arange(len(own))], values[own, 0], values[own[0]])


def _greedy(ensemble: Ensemble, allowed: list[int]) -> Claim:
    """Values of the greedy policy."""
    instances = [restrict(each, allowed) for each in ensemble.instances]
    rules = [follow(Greedy(each), each) for each in instances]
    in_own, in_fit = np.array(
        [Stack.of([each, instances[0]]).values(rule) for each, rule in zip(instances, rules, strict=True)]
    ).T
    return Claim(in_own, in_fit, Stack.of(instances).values(rules[0]))
