"""Policies that can be saved: a kind and the constructor's arguments as plain values."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self, overload

import numpy.typing as npt

from departing.model.counts import Integers, as_counts
from departing.model.errors import InputError
from departing.model.events import Events, check_either, count_events
from departing.model.files import write_document
from departing.model.instance import Instance
from departing.policy.protocol import Allowed, Mask, Policy, choose_allowed


class SerializablePolicy(ABC):
    """Base of the policies of this package: they can be saved, and their categories given by name."""

    kind: ClassVar[str]
    category_names: tuple[str, ...] = ()  # known after `resolve`; not part of equality

    @overload
    def recommend(self, counts: npt.ArrayLike, allowed: Allowed = None) -> Integers: ...

    @overload
    def recommend(self, *, events: Events, allowed: Allowed = None) -> str: ...

    def recommend(
        self, counts: npt.ArrayLike | None = None, allowed: Allowed = None, *, events: Events | None = None
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
            return self._recommend_after(check_either(counts, events), allowed)
        given = self._check_counts(counts)
        return choose_allowed(self._choose(given), given, allowed, self._instead, self.category_names)

    def _recommend_after(self, events: Events, allowed: Allowed) -> str:
        """Name of the category for one user with these events."""
        names = self.category_names
        if not names:
            raise InputError(
                "This policy does not know the names of the categories; call policy.resolve(names) first, "
                "or pass counts."
            )
        return names[int(self.recommend(count_events(events, names), allowed))]

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
