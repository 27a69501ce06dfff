"""BySegment: a policy for each segment of users."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from departing.formatting import format_count
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.events import Events
from departing.model.instance import Floats, Instance
from departing.model.names import list_names
from departing.policy.files import SerializablePolicy, policy_to_dict
from departing.policy.protocol import (
    Allowed,
    Mask,
    Policy,
    own_categories,
    recommended,
    reorder_policy,
    resolve_policy,
    switch_probability_bounds,
)


class BySegment(SerializablePolicy):
    """Policy that depends on the segment of a user as well as on the counts.

    Parameters
    ----------
    policies : mapping of str to Policy
        Policy of each segment, by name.
    default : Policy
        Policy of users whose segment is unknown or not given.

    Examples
    --------
    >>> from departing.policy.schedule import Fixed
    >>> policy = BySegment({"mobile": Fixed(1), "desktop": Fixed(0)}, default=Fixed(0))
    >>> policy.recommend([[[0, 0, 0, 0], [0, 0, 0, 0]]], segment="mobile")
    array([1])
    >>> policy.in_segment("tablet")
    Fixed(category=0)
    """

    kind = "by-segment"

    def __init__(self, policies: Mapping[str, Policy], default: Policy) -> None:
        if not isinstance(policies, Mapping) or not policies or not all(isinstance(name, str) for name in policies):
            raise InputError(f"policies are {policies!r:.80}; expected a policy for each name of a segment.")
        for each in (*policies.values(), default):
            resolve_policy(each)
        self.policies, self.default = dict(policies), default

    @property
    def category_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the categories, as far as the policies know them."""
        return tuple(own_categories(self.default))

    def in_segment(self, name: str | None) -> Policy:
        """Return the policy of a segment; the default one for an unknown segment.

        Names are compared exactly; no error is raised for a name that is not in `policies`.
        """
        return self.default if name is None else self.policies.get(name, self.default)

    def recommend(  # type: ignore[override]
        self,
        counts: npt.ArrayLike | None = None,
        allowed: Allowed = None,
        *,
        segment: str | Sequence[str | None] | None = None,
        events: Events | None = None,
    ) -> Integers | str:
        """Recommend a category to each user; see `SerializablePolicy.recommend`.

        Parameters
        ----------
        counts, allowed, events
            As for every policy.
        segment : str, or sequence of str of the shape of the users, optional
            Segment of all users or of each; unknown segments get the default policy.
        """
        if segment is None or isinstance(segment, str):
            policy: Any = self.in_segment(segment)
            restricted = {} if allowed is None else {"allowed": allowed}
            if events is not None:
                return str(policy.recommend(events=events, **restricted))
            return np.asarray(policy.recommend(counts, **restricted))
        given = self._check_counts(counts if counts is not None else [])
        names = np.asarray(segment, object)
        if names.shape != given.shape[:-2]:
            raise InputError(f"segment has shape {names.shape}; expected {given.shape[:-2]}, one for each user.")
        answer = np.empty(names.shape, np.int64)
        for name in set(names.reshape(-1).tolist()):
            rows = names == name
            policy = self.in_segment(name)
            answer[rows] = (
                policy.recommend(given[rows]) if allowed is None else policy.recommend(given[rows], allowed)
            )
        return answer

    def _choose(self, counts: Integers) -> Integers:
        rows = counts.reshape(-1, *counts.shape[-2:])
        return recommended(self.default, rows).reshape(counts.shape[:-2])

    def _instead(self, counts: Integers, mask: Mask) -> Integers:
        return recommended(self.default, counts, mask)

    def switch_probability_bounds(self, counts: Integers, instance: Instance) -> Floats:
        """Bounds `[n, M]` of the default policy."""
        return switch_probability_bounds(self.default, counts, instance)

    def _each(self, function: Any) -> Self:
        policies = {name: function(policy) for name, policy in self.policies.items()}
        return type(self)(policies, function(self.default))

    def resolve(self, categories: Sequence[str]) -> Self:
        """Return this policy with category names replaced by indices into `categories`."""
        return self._each(lambda policy: resolve_policy(policy, categories))

    def reorder(self, order: Sequence[int]) -> Self:
        """Return this policy for its categories in another order, given as old indices."""
        return self._each(lambda policy: reorder_policy(policy, order))

    def describe(self, names: Sequence[str]) -> str:
        """Describe the policy in one phrase, with the names of the categories."""
        own = getattr(self.default, "describe", None)
        default = type(self.default).__name__ if own is None else own(names)
        segments = format_count(len(self.policies), "segment")
        return f"a policy for each of {segments} ({list_names(list(self.policies))}); in other segments: {default}"

    def to_dict(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        policies = {name: policy_to_dict(policy) for name, policy in self.policies.items()}
        return {"policies": policies, "default": policy_to_dict(self.default)}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BySegment):
            return NotImplemented
        return self.policies == other.policies and self.default == other.default

    def __hash__(self) -> int:
        return hash((*self.policies.items(), self.default))

    def __repr__(self) -> str:
        return f"<BySegment of {format_count(len(self.policies), 'segment')}>"
