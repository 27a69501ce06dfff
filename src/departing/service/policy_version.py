"""One published policy: the category it shows after given counts, and its details for the dashboard."""

import json
import random
from collections.abc import Mapping
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from departing.evaluation.remaining import remaining_clicks
from departing.model.belief import belief as belief_after
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Instance
from departing.planning.policy_tree import policy_tree
from departing.policy.by_segment import BySegment
from departing.policy.files import policy_to_dict
from departing.policy.library import describe, policy_from_dict
from departing.policy.protocol import Policy, policy_in_segment, recommended
from departing.policy.schedule import Schedule
from departing.service.store.cache import Recent
from departing.service.store.connection import Rows
from departing.service.user import counts_array

# Sources of a policy version, in `details["source"]`.
INSTANCE, LEARNED, EXPLORATION, INITIAL, UPLOADED = "instance", "learned", "exploration", "initial", "uploaded"
# Of counts whose category is cached, for all versions together, in each of two generations. A trainer publishes
# versions for as long as users arrive, so a limit per version would not bound the memory.
MAX_MEMO_BYTES = 12_000_000
MEMO_ENTRY_BYTES = 100  # of an entry, apart from its counts
TREE_DEPTH = 4  # steps of the policy tree on the dashboard: as many as fit on the page


class _Memo(Recent[tuple[int, ...], int]):
    """Choices of all versions, by serial number of the version and counts; the least recently used are evicted."""

    n_bytes = 0

    def add(self, key: tuple[int, ...], category: int) -> None:
        """Add a choice."""
        self[key] = category
        self.n_bytes += MEMO_ENTRY_BYTES + 8 * len(key)
        if self.n_bytes > MAX_MEMO_BYTES:
            self.rotate(0)
            self.n_bytes = 0


_memo = _Memo()
_serials = count()


class PolicyVersion:
    """A policy with its version number, and details for the dashboard."""

    def __init__(
        self, number: int, created: float, policy: Policy, n_categories: int, details: dict[str, Any]
    ) -> None:
        self.number, self.created, self.policy = number, created, policy
        self.n_categories, self.details = n_categories, details
        self.uniform = bool(details.get("uniform"))  # True if all categories have equal probability
        self.horizon: int | None = details.get("horizon") or details.get("instance", {}).get("horizon")
        self._serial = next(_serials)  # in this process; numbers are unique in one store only
        self._has_segments = hasattr(policy, "in_segment")
        self._segments: dict[str | None, tuple[int, Policy]] = {}  # at most as many as the store has

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

    @cached_property
    def shows(self) -> frozenset[int]:
        """Categories that the policy may show: those of a schedule, otherwise all that it knows."""
        known = range(self.n_categories)
        return frozenset(self.policy.phase_categories.tolist() if isinstance(self.policy, Schedule) else known)

    @property
    def from_instance(self) -> bool:
        """True if it was planned for a given instance."""
        return bool(self.details.get("source") == INSTANCE)

    @property
    def is_learned(self) -> bool:
        """True if a trainer published it."""
        return self.details.get("source") in (LEARNED, EXPLORATION)

    @cached_property
    def instance(self) -> Instance | None:
        """The instance it was planned for, if there is one."""
        document = self.details.get("instance")
        return None if document is None else Instance.from_dict(document, f"policy {self.number}")

    def choose(
        self,
        counts: list[int],
        allowed: list[int],
        explore: float,
        rng: random.Random,
        segment: str | None = None,
    ) -> tuple[int, float, int]:
        """Choose a category; return it, its propensity, and the policy's own choice.

        With probability `explore` the category is drawn uniformly from those `allowed`, which are in order. `counts`
        are those of a user, in a row, and `segment` is that of the user.
        """
        explore = 1.0 if self.uniform else explore
        known = allowed if allowed[-1] < self.n_categories else [a for a in allowed if a < self.n_categories]
        if not known:  # only categories added after this version
            return rng.choice(allowed), 1 / len(allowed), allowed[0]
        mask = None
        if len(known) < self.n_categories:
            mask = np.zeros(self.n_categories, bool)
            mask[known] = True
        best = self._best(counts, mask, segment)
        shown = rng.choice(allowed) if explore > 0 and rng.random() < explore else best
        propensity = explore / len(allowed) + (1 - explore if shown == best else 0.0)
        return shown, propensity, best

    def _best(self, counts: list[int], mask: NDArray[np.bool_] | None, segment: str | None) -> int:
        """Return the policy's category for counts, among the categories it knows and those allowed."""
        serial, policy = self._serial, self.policy
        if self._has_segments:
            serial, policy = self._in_segment(segment)
        if mask is not None:
            known = counts_array(counts, self.n_categories)
            if isinstance(policy, Schedule) and not mask[policy.phase_categories].any():
                return self._best_fixed(known, mask, segment)
            return int(recommended(policy, known[None], mask[None])[0])
        key = (serial, *counts[: 4 * self.n_categories])
        category: int | None = _memo.get(key)
        if category is None:
            category = _memo.find(key)
            if category is None:
                category = int(recommended(policy, counts_array(counts, self.n_categories)[None])[0])
                _memo.add(key, category)
        return category

    def _best_fixed(self, counts: Integers, mask: NDArray[np.bool_], segment: str | None) -> int:
        """Return the allowed category that is worth most from now on, the first one without an instance."""
        if self.instance is None or self.instance.n_categories != self.n_categories:
            return int(mask.argmax())
        instance = self.instance.in_segment(segment)
        try:
            belief = belief_after(instance, counts)
        except InputError:  # no type of the instance can have these counts
            belief = instance.normalised_prior
        return int(np.where(mask, instance.fixed_values @ belief, -np.inf).argmax())

    def _in_segment(self, segment: str | None) -> tuple[int, Policy]:
        """Return the policy of a segment and its serial number; unknown segments have the default policy."""
        own = self._segments.get(segment)
        if own is None:
            own = self._segments[segment] = next(_serials), policy_in_segment(self.policy, segment)
        return own

    @cached_property
    def segments(self) -> frozenset[str] | None:
        """Segments on which the policy depends, None if it depends on none."""
        policy: object = self.policy
        if isinstance(policy, BySegment):
            return frozenset(policy.policies)
        segments = getattr(getattr(policy, "instance", None), "segments", None)
        return None if segments is None or not self._has_segments else frozenset(segments.names)

    def knows_segment(self, segment: str | None) -> bool | None:
        """Return whether a segment has a policy of its own, None if the policy does not depend on segments."""
        return None if self.segments is None else segment in self.segments

    def forecast(self, counts: list[int], segment: str | None = None) -> tuple[dict[str, float], float] | None:
        """Return belief and expected remaining clicks of a user who stays, from the prior of the segment.

        None if the version has no instance or the counts are impossible.
        """
        instance = self.instance
        if instance is None:
            return None
        instance, policy = instance.in_segment(segment), self.policy
        if self._has_segments:
            policy = self._in_segment(segment)[1]
        known = counts_array(counts, instance.n_categories)
        known[:, 2:] = 0  # the forecast is for a user who stays
        try:
            belief = belief_after(instance, known)
        except InputError:  # no type of the instance can have these counts
            return None
        # Without lookahead, too slow for a request: exact for schedules, the best alpha vector of a plan.
        remaining = remaining_clicks(instance, policy, known[None], gap=0.0, max_nodes=0)
        return dict(zip(instance.types, belief.tolist(), strict=True)), float(remaining.values[0])


def parse_versions(rows: Rows, built: Mapping[tuple[str, str], PolicyVersion]) -> dict[int, PolicyVersion]:
    """Return versions by number from their columns; those `built` from the same document and details are reused."""
    unused, versions = dict(built), {}
    for number, created, document, details in rows:
        version = unused.pop((document, details), None) or PolicyVersion.from_row(number, created, document, details)
        version.number, version.created = number, created
        versions[number] = version
    return versions


def policy_details(policy: Policy, instance: Instance) -> dict[str, Any]:
    """Return the details of a policy for an instance: its description and its policy tree."""
    return {
        "description": describe(policy, instance),
        "instance": instance.to_dict(),
        "tree": _tree(policy, instance),
    }


def _tree(policy: Policy, instance: Instance) -> dict[str, Any]:
    """Return the policy tree of users whose segment is not known."""
    instance, policy = instance.in_segment(None), policy_in_segment(policy, None)
    return policy_tree(policy, instance, TREE_DEPTH).to_dict(instance)
