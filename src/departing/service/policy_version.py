"""One published policy: the category it shows after given counts, and its details for the dashboard."""

import json
import random
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from departing.model.instance import Instance
from departing.planning.policy_tree import policy_tree
from departing.policy.files import policy_to_dict
from departing.policy.library import describe, policy_from_dict
from departing.policy.protocol import Policy, recommended
from departing.service.user import counts_array

# Sources of a policy version, in `details["source"]`.
INSTANCE, LEARNED, EXPLORATION, INITIAL = "instance", "learned", "exploration", "initial"
MAX_MEMO_BYTES = 4_000_000  # per version, of counts whose category is cached
TREE_DEPTH = 4  # steps of the policy tree on the dashboard: as many as fit on the page


class PolicyVersion:
    """A policy with its version number, details for the dashboard, and a cache of its choices."""

    def __init__(
        self, number: int, created: float, policy: Policy, n_categories: int, details: dict[str, Any]
    ) -> None:
        self.number, self.created, self.policy = number, created, policy
        self.n_categories, self.details = n_categories, details
        self.uniform = bool(details.get("uniform"))  # True if all categories have equal probability
        self._choices: dict[tuple[int, ...], int] = {}

    @classmethod
    def from_row(cls, number: int, created: float, document: str, details: str) -> "PolicyVersion":
        """Return a version from its columns."""
        fields = json.loads(document)
        n_categories = fields.pop("categories_known")
        return cls(number, created, policy_from_dict(fields, f"policy {number}"), n_categories, json.loads(details))

    def row(self) -> tuple[int, float, str, str]:
        """Return the columns of the version."""
        document = policy_to_dict(self.policy) | {"categories_known": self.n_categories}
        return self.number, self.created, json.dumps(document), json.dumps(self.details)

    @property
    def from_instance(self) -> bool:
        """True if it was planned for a given instance, False for a learned one."""
        return bool(self.details.get("source") == INSTANCE)

    @cached_property
    def instance(self) -> Instance | None:
        """The instance it was planned for, if there is one."""
        document = self.details.get("instance")
        return None if document is None else Instance.from_dict(document, f"policy {self.number}")

    def choose(
        self, counts: list[int], allowed: list[int], explore: float, rng: random.Random
    ) -> tuple[int, float, int]:
        """Choose a category; return it, its propensity, and the policy's own choice.

        With probability `explore` the category is drawn uniformly from those `allowed`, which are in order. `counts`
        are those of a user, in a row.
        """
        explore = 1.0 if self.uniform else explore
        known = allowed if allowed[-1] < self.n_categories else [a for a in allowed if a < self.n_categories]
        if not known:  # only categories added after this version
            return rng.choice(allowed), 1 / len(allowed), allowed[0]
        mask = None
        if len(known) < self.n_categories:
            mask = np.zeros(self.n_categories, bool)
            mask[known] = True
        best = self._best(counts, mask)
        shown = rng.choice(allowed) if explore > 0 and rng.random() < explore else best
        propensity = explore / len(allowed) + (1 - explore if shown == best else 0.0)
        return shown, propensity, best

    def _best(self, counts: list[int], mask: NDArray[np.bool_] | None) -> int:
        """Return the policy's category for counts, among the categories it knows and those allowed."""
        if mask is not None:
            return int(recommended(self.policy, counts_array(counts, self.n_categories)[None], mask[None])[0])
        key = tuple(counts[: 4 * self.n_categories])
        category = self._choices.get(key)
        if category is None:
            category = int(recommended(self.policy, counts_array(counts, self.n_categories)[None])[0])
            if 8 * len(self._choices) * len(key) < MAX_MEMO_BYTES:
                self._choices[key] = category
        return category


def policy_details(policy: Policy, instance: Instance) -> dict[str, Any]:
    """Return the details of a policy for an instance: its description and its policy tree."""
    return {
        "description": describe(policy, instance),
        "instance": instance.to_dict(),
        "tree": policy_tree(policy, instance, TREE_DEPTH).to_dict(instance),
    }
