"""What histories do not tell: estimates at the edge, types that cannot be told apart, other explanations."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from departing.fitting.likelihood import Evidence, Parameters
from departing.fitting.maximum import Solution
from departing.fitting.type_matching import matched
from departing.model.instance import Floats, Instance

Booleans = npt.NDArray[np.bool_]
SCARCE = 100  # times that a category must be shown, for each type, not to be named as one with little data
FEW = 10.0  # yes and no that a type must be expected to have said, for an estimate not to be at the edge
WIDE = 1.0  # standard error of log-odds from which a chance is as good as unknown
RIVAL = 3.0  # nats below the best, within which another maximum is another explanation
ALIKE = 3.0  # standard errors within which two types are the same in everything
LONG = 0.01  # share of users that must have answered often enough to tell types apart


@dataclass(frozen=True)
class Identifiability:
    """Which of prior, click, depart and depart_on_click to believe, and sentences about the others."""

    identified: Parameters
    warnings: tuple[str, ...]


def doubts(
    instance: Instance, evidence: Evidence, eta: Floats, covariance: Floats, solution: Solution
) -> Identifiability:
    """What to doubt of an estimate."""
    m, questions = evidence.n_types, evidence.n_questions
    chance = (0.5 * (1 + np.tanh(0.5 * eta[: questions * m]))).reshape(questions, m)
    error = np.sqrt(np.diag(covariance)[: questions * m]).reshape(questions, m)
    said = _said(evidence, eta)
    edge = (said.min(axis=0) < FEW) | (error > WIDE)
    warnings = [
        *_scarce(instance, evidence),
        *_unlinked(instance, evidence),
        *_short(evidence),
        *_at_edge(instance, evidence, edge),
    ]
    twins = _twins(chance, error)
    warnings += [
        f"Types {instance.types[x]!r} and {instance.types[y]!r} cannot be told apart: everything they do is the same "
        "within its error; fewer types will do."
        for x, y in twins
    ]
    sure = ~edge
    shares = np.ones(m, bool)
    for x, y in twins:
        sure[:, [x, y]] = False
        shares[[x, y]] = False
    near = np.flatnonzero(solution.depths < RIVAL)
    if len(near):
        other, gap = solution.others[near[0]], float(solution.depths[near[0]])
        moved = _moved_by(instance, evidence, other, chance, error)
        if moved.any():
            warnings.append(
                f"Another explanation is nearly as likely (by {gap:.1f} nats): {int(moved.sum())} chances differ in "
                "it by more than twice their error; more users, or longer histories, would decide."
            )
            sure &= ~moved
            shares &= not moved.any()
    prior_error = np.sqrt(np.diag(covariance)[questions * m :])
    if (prior_error > WIDE).any():
        shares[:] = False
    return Identifiability(_as_parameters(evidence, sure, shares), tuple(warnings))


def _said(evidence: Evidence, eta: Floats) -> Floats:
    """How often every type is expected to have said yes and no to every question, `[2, F, M]`."""
    types = evidence.beliefs(eta)
    weight = types * evidence.users[:, None]
    return np.stack([evidence.yes.T @ weight, (evidence.asked - evidence.yes).T @ weight])


def _scarce(instance: Instance, evidence: Evidence) -> list[str]:
    asked = evidence.asked_in_all
    few = np.flatnonzero(asked < SCARCE * evidence.n_types)
    if not len(few):
        return []
    named = ", ".join(f"{instance.categories[a]!r} ({int(asked[a])} times)" for a in few[:5])
    more = f" and {len(few) - 5} more" if len(few) > 5 else ""
    return [f"There is little data on {named}{more}: shown less than {SCARCE} times for each type."]


def _unlinked(instance: Instance, evidence: Evidence) -> list[str]:
    """Whether some categories are shown only to users who are shown none of the others."""
    shown = evidence.asked[:, : evidence.n_categories] > 0
    linked = np.arange(evidence.n_categories) == evidence.asked_in_all.argmax()
    while (more := shown[shown[:, linked].any(axis=1)].any(axis=0) & ~linked).any():
        linked |= more
    apart = shown.any(axis=0) & ~linked
    if evidence.n_types == 1 or not apart.any():
        return []
    first, other = (instance.categories[int(np.flatnonzero(part)[0])] for part in (linked, apart))
    return [
        f"No user links all categories, such as {first!r} and {other!r}: that a type of the one is the same type in "
        "the other follows only from equal shares."
    ]


def _short(evidence: Evidence) -> list[str]:
    m, k = evidence.n_types, evidence.n_categories
    if m == 1:
        return []
    needed = 2 * m - 1
    enough = evidence.users[evidence.asked[:, :k].sum(axis=1) >= needed].sum() / evidence.users.sum()
    if enough >= LONG:
        return []
    return [
        f"Histories are short: {enough:.1%} of the users have {needed} steps or more, which it takes to tell "
        f"{m} types apart by what one user does."
    ]


def _at_edge(instance: Instance, evidence: Evidence, edge: Booleans) -> list[str]:
    places = np.argwhere(edge)
    if not len(places):
        return []
    named = ", ".join(
        f"{_question(instance, evidence, f)} of type {instance.types[x]!r}" for f, x in places[:3].tolist()
    )
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return [f"Hardly anything is known of {named}{more}: too few users decide it, or it is next to 0 or 1."]


def _question(instance: Instance, evidence: Evidence, f: int) -> str:
    k, d = evidence.n_categories, len(evidence.departing)
    if f < k:
        return f"click on {instance.categories[f]!r}"
    if f < k + d:
        return f"depart after {instance.categories[evidence.departing[f - k]]!r}"
    return f"depart_on_click at {instance.categories[evidence.leaving[f - k - d]]!r}"


def _twins(chance: Floats, error: Floats) -> list[tuple[int, int]]:
    """Pairs of types that answer everything alike."""
    logit = np.log(chance / (1 - chance))
    found = []
    for x, y in combinations(range(chance.shape[1]), 2):
        apart = np.abs(logit[:, x] - logit[:, y]) / np.sqrt(error[:, x] ** 2 + error[:, y] ** 2)
        if apart.max() < ALIKE:
            found.append((x, y))
    return found


def _moved_by(instance: Instance, evidence: Evidence, other: Floats, chance: Floats, error: Floats) -> Booleans:
    """Which chances are elsewhere in another explanation, by more than twice their error."""
    there = matched(evidence.unpack(other), instance)
    values = np.concatenate([there.click, there.depart[evidence.departing], there.depart_on_click[evidence.leaving]])
    return np.asarray(np.abs(values - chance) > 2 * error * chance * (1 - chance))


def _as_parameters(evidence: Evidence, sure: Booleans, shares: Booleans) -> Parameters:
    """Booleans for every field; what was not estimated is not in doubt."""
    k, d = evidence.n_categories, len(evidence.departing)
    depart, last = np.ones((2, k, evidence.n_types), bool)
    depart[evidence.departing] = sure[k : k + d]
    last[evidence.leaving] = sure[k + d :]
    return Parameters(shares, sure[:k], depart, last)  # type: ignore[arg-type]
