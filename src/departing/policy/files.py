"""Policies that can be saved: a kind and the constructor's arguments as plain values."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy.typing as npt

from departing.model.counts import Integers, as_counts
from departing.model.errors import InputError
from departing.model.files import write_document
from departing.policy.protocol import Allowed, Mask, Policy, choose_allowed


class SerializablePolicy(ABC):
    """Base of the policies of this package: they can be saved, and their categories given by name."""

    kind: ClassVar[str]
    category_names: tuple[str, ...] = ()  # known after `resolve`; not part of equality

    def recommend(self, counts: npt.ArrayLike, allowed: Allowed = None) -> Integers:
        """Recommend a category to each user: the policy's choice, or where that is not allowed its next best.

        Parameters and return value are those of `Policy.recommend`; `allowed` are names or indices of categories, or
        a Boolean mask `[..., K]`.
        """
        given = self._check_counts(counts)
        return choose_allowed(self._choose(given), given, allowed, self._instead, self.category_names)

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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to a TOML or JSON file, chosen by the suffix of `path`."""
        write_document(path, "policy", policy_to_dict(self))


def policy_to_dict(policy: Policy | SerializablePolicy) -> dict[str, Any]:
    """Return the kind and the constructor's arguments of `policy` as plain values."""
    if not isinstance(policy, SerializablePolicy):
        raise InputError(f"A policy of type {type(policy).__name__} cannot be saved; it has no to_dict().")
    return {"kind": policy.kind, **policy.to_dict()}
