"""Policies of a learner over time: which policies the users between two checkpoints were assigned."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from departing.learning.protocol import AssignedPolicy
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.policy.library import describe
from departing.policy.protocol import Policy, recommended
from departing.policy.schedule import Schedule
from departing.simulation.regret_curve import RegretCurve

OTHER = "other policies"


@dataclass(frozen=True, eq=False)
class PolicyUse:
    """Users who were assigned the policies with the same short text.

    Attributes
    ----------
    text : str
        Short text of the policies.
    users : array [C]
        Number of users in the interval before each checkpoint.
    lost : float
        Expected loss of all these users compared with the optimal policy, in clicks.
    """

    text: str
    users: Floats
    lost: float

    @property
    def loss(self) -> float:
        """Expected loss per user compared with the optimal policy."""
        return self.lost / float(self.users.sum())

    @classmethod
    def total(cls, text: str, uses: "Sequence[PolicyUse]") -> "PolicyUse":
        """All these uses together."""
        return cls(text, np.sum([use.users for use in uses], axis=0), sum(use.lost for use in uses))


def policy_uses(curve: RegretCurve) -> list[PolicyUse]:
    """Uses of the policies of a run by their short text, in order of their first use."""
    uses: dict[str, tuple[Floats, list[float]]] = {}
    texts: dict[int, str] = {}
    segments = curve.policy_segments or ()
    for segment, loss in zip(segments, curve.segment_losses if segments else (), strict=True):
        text = texts.get(id(segment.policy)) or short_text(segment.policy, curve.instance_at(segment.interval))
        texts[id(segment.policy)] = text
        users, lost = uses.setdefault(text, (np.zeros(len(curve.checkpoints)), []))
        users[segment.interval] += segment.users
        lost.append(segment.users * loss)
    return [PolicyUse(text, users, sum(lost)) for text, (users, lost) in uses.items()]


def merge_uses(runs: Sequence[Sequence[PolicyUse]]) -> list[PolicyUse]:
    """Uses in several runs together, by their text."""
    by_text: dict[str, list[PolicyUse]] = {}
    for uses in runs:
        for use in uses:
            by_text.setdefault(use.text, []).append(use)
    return [PolicyUse.total(text, uses) for text, uses in by_text.items()]


def main_uses(uses: Sequence[PolicyUse], n: int) -> list[PolicyUse]:
    """The n main policies by increasing loss, and all others as one.

    Policies are ranked by their share of the users of an interval, weighted by its position on the log scale of the
    checkpoints: weighted by users, nine tenths would be those of the last decade.
    """
    total = np.sum([use.users for use in uses], axis=0)
    weight = np.arange(len(total)) / total
    ranked = sorted(uses, key=lambda use: -float(use.users @ weight))
    n = n + 1 if len(ranked) == n + 1 else n  # a single other policy is no shorter than its text
    main = sorted(ranked[:n], key=lambda use: use.loss)
    return main if len(ranked) <= n else [*main, PolicyUse.total(OTHER, ranked[n:])]


def short_text(policy: AssignedPolicy, instance: Instance) -> str:
    """Describe a policy by its first steps, so that policies that begin alike have the same text.

    >>> from departing.policy.greedy import Greedy
    >>> from departing.policy.schedule import Threshold
    >>> shop = Instance([0.5, 0.5], [[0.6, 0.3], [0.3, 0.5]], depart=0.5, categories=["news", "sport"])
    >>> short_text(Threshold(first=0, steps=3, then=1), shop), short_text(Greedy(shop), shop)
    ('news × 3, then sport', 'news, after a no-click sport, …')
    """
    if isinstance(policy, Schedule) or not isinstance(policy, Policy):
        return describe(policy, instance)
    counts = np.zeros((3, instance.n_categories, 4), np.int64)
    first = int(recommended(policy, counts[:1])[0])
    counts[1, first, CLICK] = counts[2, first, STAY] = 1
    clicked, stayed = recommended(policy, counts[1:]).tolist()
    names = instance.categories
    if clicked == stayed:
        return f"{names[first]} × 2, …" if clicked == first else f"{names[first]}, {names[clicked]}, …"
    changes = [("click", clicked), ("no-click", stayed)]
    steps = [f"after a {outcome} {names[category]}" for outcome, category in changes if category != first]
    return ", ".join([names[first], *steps, "…"])
