"""The decision from a fit: the best candidate, the claims about it, and the uncertainty."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from departing.decision.candidates import Candidates, choices
from departing.decision.claims import Claim, PolicyValue, gain, observed_value
from departing.decision.decision import Candidate, Decision, FirstCategory
from departing.decision.ensemble import GRAPH_GAP, Ensemble, follow
from departing.decision.information import expected_loss, users_to_halve
from departing.decision.log_value import LogValue
from departing.decision.stack import Stack
from departing.fitting.fit import Fit
from departing.fitting.goodness_of_fit import MAX_FINAL_SURVIVAL
from departing.fitting.type_evidence import describe_hidden
from departing.model.instance import Instance
from departing.model.progress import Progress
from departing.model.validation import check_instance, check_int, check_seed
from departing.planning.plan import Plan, plan
from departing.planning.problem import restrict
from departing.policy.greedy import Greedy
from departing.policy.protocol import Allowed

# The plan of the fitted instance is certified to this fraction of its value, within these seconds.
PLAN_GAP, PLAN_SECONDS = 1e-4, 20.0
MIN_DRAWS, MAX_DRAWS = 20, 10_000  # 20 are the fewest for a 95% interval
# Extensions of the model. Of segments the common prior is used: the policy is one for users whose segment is unknown.
SUPPORTED = ("reward", "segments")


def decide(fit: Fit, allowed: Allowed, bootstrap: int, seed: int, progress: Progress | None) -> Decision:
    """Decide from a fit; see `departing.plan`."""
    check_instance(fit.instance, SUPPORTED)
    draws, seed = check_int("bootstrap", bootstrap, MIN_DRAWS, MAX_DRAWS), check_seed(seed)
    instance = _without_segments(fit.instance, fit.instance)
    best = plan(instance, PLAN_GAP * instance.best_fixed[1], PLAN_SECONDS, allowed=allowed)
    ensemble = Ensemble.bootstrap(fit, draws, seed, progress)
    ensemble = replace(ensemble, instances=[_without_segments(each, fit.instance) for each in ensemble.instances])
    candidates = Candidates.of(ensemble, best.allowed)
    values, gains = _claims(fit, best, ensemble, candidates)
    names, in_draws = instance.categories, candidates.values[:, 1:]
    share = np.bincount(candidates.best, minlength=len(in_draws)) / draws
    first = np.bincount(candidates.first[candidates.best], minlength=len(names)) / draws
    order = np.argsort(-candidates.means, kind="stable")
    return Decision(
        fit=fit,
        policy=candidates.policies[order[0]],
        plan=best,
        first=tuple(
            FirstCategory(names[a], float(first[a])) for a in sorted(best.allowed, key=lambda a: (-first[a], a))
        ),
        candidates=tuple(
            Candidate(candidates.policies[i], names[candidates.first[i]], float(candidates.means[i]), float(share[i]))
            for i in order
        ),
        expected_loss=expected_loss(in_draws),
        users_to_halve=users_to_halve(in_draws, fit.histories.users),
        values=values,
        gains=gains,
        warnings=(*fit.warnings, *_hidden_types(fit), *_extrapolation(fit)),
    )


def _without_segments(draw: Instance, fitted: Instance) -> Instance:
    """The instance of users whose segment is unknown, with the rewards of the fit if it has none."""
    if draw.segments is not None:
        draw = draw.in_segment(None)
    if "reward" in fitted.extensions and "reward" not in draw.extensions:
        draw = draw.replace(reward=fitted.reward, unit=fitted.unit)
    return draw


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


def _claims(
    fit: Fit, best: Plan, ensemble: Ensemble, candidates: Candidates
) -> tuple[tuple[PolicyValue, ...], tuple[PolicyValue, ...]]:
    """Values of the recommended policy and of the others, and the gains over these."""
    allowed = list(best.allowed)
    category, fixed = _fixed(ensemble, allowed)
    recommended, greedy = _recommended(candidates), _greedy(ensemble, allowed)
    value = recommended.value("recommended policy")
    others = [(fixed.value(f"always {fit.instance.categories[category]}"), fixed.in_draws)]
    same = np.allclose(greedy.in_draws, recommended.in_draws, rtol=GRAPH_GAP)
    others.append(((recommended if same else greedy).value("greedy"), (recommended if same else greedy).in_draws))
    if LogValue.of(fit.histories, fit.instance).final_survival(fit.likelihood.users) <= MAX_FINAL_SURVIVAL:
        others.insert(0, (observed_value("policy of the log", ensemble.log_values), ensemble.log_values))
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
