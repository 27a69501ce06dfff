"""Policies that can be saved: a kind and the constructor's arguments as plain values."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self, cast, overload

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers, as_counts
from departing.model.errors import InputError
from departing.model.events import Events, check_either, count_events
from departing.model.files import write_document
from departing.model.instance import Instance
from departing.policy.protocol import (
    Allowed,
    Mask,
    Policy,
    allowed_mask,
    choose_allowed,
    policy_in_segment,
    recommended,
)

Segment = str | Sequence[str | None] | None  # of all users, or of each


class SerializablePolicy(ABC):
    """Base of the policies of this package: they can be saved, and their categories given by name."""

    kind: ClassVar[str]
    category_names: tuple[str, ...] = ()  # known after `resolve`; not part of equality

    @property
    def segment_names(self) -> tuple[str, ...]:
        """Names of the segments that the policy distinguishes; () if it ignores segments."""
        return ()

    def in_segment(self, name: str | None) -> Policy:
        """Return the policy for the users of a segment; for users of unknown segment if `name` is None or unknown.

        Names are compared exactly.
        """
        return self

    @overload
    def recommend(self, counts: npt.ArrayLike, allowed: Allowed = None, *, segment: Segment = None) -> Integers: ...

    @overload
    def recommend(self, *, events: Events, allowed: Allowed = None, segment: str | None = None) -> str: ...

    def recommend(
        self,
        counts: npt.ArrayLike | None = None,
        allowed: Allowed = None,
        *,
        events: Events | None = None,
        segment: Segment = None,
    ) -> Integers | str:
        """Recommend a category to each user: the policy's choice, or where that is not allowed its next best.

        Parameters
        ----------
        counts : array_like of int, shape (..., K, 4)
            Clicks, stays, departures and clicks with departure of each user, by category. Whether a user departed is
            not checked.
        allowed : sequence of str or int, or array_like of bool, shape (..., K), optional
            Categories that may be recommended: names, indices or a mask [default: all].
        events : sequence of (category, outcome), optional
            Events of one user in the place of counts: names of categories, and outcomes "click" and "no-click" (or
            True and False).
        segment : str, or sequence of str or None of shape (...), optional
            Segment of all users or of each. None and names that the policy does not know stand for an unknown
            segment; policies that do not depend on segments ignore it.

        Returns
        -------
        ndarray of int64, shape (...), or str
            Category indices; for `events` the name of the category.

        Raises
        ------
        InputError
            If an argument is invalid, the events contain a departure, or the policy does not know the names of the
            categories.

        Examples
        --------
        >>> from departing.policy.schedule import Threshold
        >>> Threshold("music", 2, "news").recommend(events=[("music", "no-click"), ("music", "click")])
        'news'
        """
        if counts is None or events is not None:
            if segment is not None and not isinstance(segment, str):
                raise InputError(f"segment is {segment!r:.80}; expected the name of one segment, or None.", "segment")
            return self._recommend_after(check_either(counts, events), allowed, segment)
        given = self._check_counts(counts)
        if segment is not None:
            return self._recommend_in_segments(given, allowed, segment)
        return choose_allowed(self._choose(given), given, allowed, self._instead, self.category_names)

    def _recommend_after(self, events: Events, allowed: Allowed, segment: str | None) -> str:
        """Name of the category for one user with these events."""
        names = self.category_names
        if not names:
            raise InputError(
                "This policy does not know the names of the categories; call policy.resolve(names) first, "
                "or pass counts."
            )
        return names[int(self.recommend(count_events(events, names), allowed, segment=segment))]

    def _recommend_in_segments(self, counts: Integers, allowed: Allowed, segment: Segment) -> Integers:
        """Categories `[...]` for `counts[..., K, 4]` of users whose segments are given."""
        names, shape = np.asarray(segment, object), counts.shape[:-2]
        if names.shape not in ((), shape):
            raise InputError(f"segment has shape {names.shape}; expected {shape}, one for each user.", "segment")
        mask = None if allowed is None else allowed_mask(allowed, counts.shape[:-1], self.category_names)
        rows, each = counts.reshape(-1, *counts.shape[-2:]), np.broadcast_to(names, shape).reshape(-1)
        answer = np.empty(len(rows), np.int64)
        for name in dict.fromkeys(each.tolist()):
            if name is not None and not isinstance(name, str):
                raise InputError(f"segment contains {name!r:.80}; expected names of segments, or None.", "segment")
            group = each == name
            own = None if mask is None else mask.reshape(len(rows), -1)[group]
            answer[group] = recommended(policy_in_segment(cast(Policy, self), name), rows[group], own)
        return answer.reshape(shape)

    def _check_counts(self, counts: npt.ArrayLike) -> Integers:
        return as_counts(counts)

    @abstractmethod
    def _choose(self, counts: Integers) -> Integers:
        """Categories for `counts[..., K, 4]`."""

    @abstractmethod
    def _instead(self, counts: Integers, mask: Mask) -> Integers:
        """Allowed categories for `counts[n, K, 4]` whose first choice is forbidden by `mask[n, K]`."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""

    def resolve(self, categories: Sequence[str]) -> Self:
        """Return this policy with category names replaced by indices into `categories`.

        `evaluate`, `simulate`, `compare` and `off_policy_value` do so with the names of the instance or log.
        """
        return self

    @abstractmethod
    def reorder(self, order: Sequence[int]) -> Self:
        """Return this policy for its categories in another order, given as old indices."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to a TOML or JSON file, chosen by the suffix of `path`."""
        write_document(path, "policy", policy_to_dict(self))


def policy_to_dict(policy: Policy | SerializablePolicy) -> dict[str, Any]:
    """Return the kind and the constructor's arguments of `policy` as plain values."""
    if not isinstance(policy, SerializablePolicy):
        raise InputError(f"A policy of type {type(policy).__name__} cannot be saved; it has no to_dict().")
    return {"kind": policy.kind, **policy.to_dict()}


def write_policy(path: str | os.PathLike[str], policy: Policy, instance: Instance) -> None:
    """Write a policy for an instance to a file, with the names of the categories and the horizon."""
    document = policy_to_dict(policy) | {"names": list(instance.categories)}
    write_document(path, "policy", document | ({} if instance.horizon is None else {"horizon": instance.horizon}))
