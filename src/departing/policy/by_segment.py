"""BySegment: a policy for each segment of users."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from departing.formatting import format_count
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.events import Events
from departing.model.instance import Floats, Instance
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
from departing.policy.starts import describe_by_segment


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
        """The names of the categories, if one of the policies knows them."""
        known = (own_categories(policy) for policy in (self.default, *self.policies.values()))
        return tuple(next((names for names in known if names), ()))

    @property
    def segment_names(self) -> tuple[str, ...]:
        """Names of the segments that have a policy."""
        return tuple(self.policies)

    def in_segment(self, name: str | None) -> Policy:
        """Return the policy of a segment; the default one for an unknown segment.

        Names are compared exactly; no error is raised for a name that is not in `policies`.
        """
        return self.default if name is None else self.policies.get(name, self.default)

    def _recommend_after(self, events: Events, allowed: Allowed, segment: str | None) -> str:
        own = self.in_segment(segment)
        if isinstance(own, SerializablePolicy):
            return own._recommend_after(events, allowed, None)
        return super()._recommend_after(events, allowed, segment)

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
        segments = describe_by_segment(self, names, list(self.policies))
        return segments if segments == default else f"{segments}; in other segments: {default}"

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
