"""The policies that were published, and what each shows to users with given counts."""

import json
import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from departing.model.counts import Integers
from departing.model.instance import Floats, Instance
from departing.planning.policy_text import outline
from departing.policy.files import policy_to_dict
from departing.policy.library import describe, policy_from_dict
from departing.policy.protocol import Policy, recommended

GIVEN = "the instance"  # the source of such a version
MEMORY = 4_000_000  # bytes of different counts whose category is remembered, for each version
DEPTH = 4  # steps of the decision graph


class Version:
    """A policy under its number, with what is told about it, and what it said so far."""

    def __init__(self, number: int, made: float, policy: Policy, categories: int, about: dict[str, Any]) -> None:
        self.number, self.made, self.policy, self.n_categories, self.about = number, made, policy, categories, about
        self._said: dict[bytes, int] = {}
        self._instance: Instance | None = None

    @classmethod
    def of_row(cls, number: int, made: float, document: str, about: str) -> "Version":
        """A version as it is stored."""
        fields = json.loads(document)
        categories = fields.pop("categories_known")
        return cls(number, made, policy_from_dict(fields, f"policy {number}"), categories, json.loads(about))

    def row(self) -> tuple[int, float, str, str]:
        """The version as it is stored."""
        document = policy_to_dict(self.policy) | {"categories_known": self.n_categories}
        return self.number, self.made, json.dumps(document), json.dumps(self.about)

    @property
    def given(self) -> bool:
        """Whether it was planned for an instance that somebody gave, not one that was learned."""
        return bool(self.about.get("source") == GIVEN)

    @property
    def instance(self) -> Instance | None:
        """The instance it was planned for, if that is known."""
        if self._instance is None and "instance" in self.about:
            self._instance = Instance.from_dict(self.about["instance"], f"policy {self.number}")
        return self._instance

    def category(self, counts: Integers, mask: "np.typing.NDArray[np.bool_] | None") -> int:
        """What it shows to a user with `counts[K, 4]`, of the categories it knows and that are allowed."""
        own = counts[: self.n_categories]
        if mask is not None:
            return int(recommended(self.policy, own[None], mask[None, : self.n_categories])[0])
        key = own.tobytes()
        found = self._said.get(key)
        if found is None:
            found = int(recommended(self.policy, own[None])[0])
            if len(self._said) * len(key) < MEMORY:
                self._said[key] = found
        return found


class Versions:
    """All versions, and which one new users get: allotments of so many users each, in turn, then the last one."""

    def __init__(self) -> None:
        self.known: dict[int, Version] = {}
        self.current = -1
        self._parts: list[tuple[int, int]] = []  # the first user who does not get it any more, and a version

    def __getitem__(self, number: int) -> Version:
        return self.known[number]

    def publish(self, version: Version) -> None:
        """A new version."""
        self.known[version.number] = version

    def allot(self, parts: Sequence[tuple[int, int]], current: int, first: int = 0) -> None:
        """What new users get from user `first` on."""
        versions, users = [number for number, _ in parts], [users for _, users in parts]
        ends = (first + end for end in accumulate(users))
        self._parts = list(zip(ends, versions, strict=True))
        self.current = current

    def assign(self, number: int) -> int:
        """The version of the user of this number."""
        return next((version for end, version in self._parts if number < end), self.current)


def choose(
    version: Version, counts: Integers, allowed: list[int], explore: float, rng: random.Random
) -> tuple[int, float, int]:
    """A category, the chance it had, and what the policy itself would show.

    With a chance of `explore` any of the `allowed` categories is shown, all alike.
    """
    n = len(counts)
    explore = 1.0 if version.about.get("uniform") else explore
    own = [a for a in allowed if a < version.n_categories]
    if not own:  # only categories that came after this version
        return rng.choice(allowed), 1 / len(allowed), allowed[0]
    mask = None
    if len(own) < version.n_categories:
        mask = np.zeros(n, bool)
        mask[own] = True
    best = version.category(counts, mask)
    shown = rng.choice(allowed) if explore > 0 and rng.random() < explore else best
    chance = explore / len(allowed) + (1 - explore if shown == best else 0.0)
    return shown, chance, best


def told_of(policy: Policy, instance: Instance) -> dict[str, Any]:
    """What is told about a policy for an instance: in words, and its first steps."""
    return {
        "words": describe(policy, instance),
        "instance": instance.to_dict(),
        "graph": outline(policy, instance, DEPTH).to_dict(instance),
    }


def types_of(instance: Instance, belief: Floats) -> dict[str, float]:
    """The belief by the names of the types."""
    return {name: float(share) for name, share in zip(instance.types, belief, strict=True)}
