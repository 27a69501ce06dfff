"""Policies that can be saved: a kind and the constructor's arguments as plain values."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from departing.model.errors import InputError
from departing.model.files import write_document
from departing.policy.protocol import Policy


class SerializablePolicy(ABC):
    """Base of the policies of this package: they can be saved, and their categories given by name."""

    kind: ClassVar[str]
    category_names: tuple[str, ...] = ()  # known after `resolve`; not part of equality

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
