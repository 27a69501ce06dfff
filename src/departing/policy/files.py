"""Saving policies: a kind and the plain values of the constructor's arguments."""

import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from departing.model.errors import InputError
from departing.model.files import write_document
from departing.policy.protocol import Policy


class Saved(ABC):
    """A policy that can be written to a file."""

    kind: ClassVar[str]

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The constructor's arguments as plain values."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to a TOML or JSON file, by the ending of `path`."""
        write_document(path, "policy", policy_to_dict(self))


def policy_to_dict(policy: Policy | Saved) -> dict[str, Any]:
    """The plain values of `policy`, with its kind."""
    if not isinstance(policy, Saved):
        raise InputError(f"A policy of type {type(policy).__name__} cannot be saved; it has no document().")
    return {"kind": policy.kind, **policy.to_dict()}
