"""Saving learners: their state as JSON, with arrays and policies in it, exact to the bit."""

import json
import os
from typing import Any

import numpy as np

from departing.model.errors import InputError
from departing.model.files import atomic_write, check_suffix, read_document
from departing.policy.files import SerializablePolicy, policy_to_dict
from departing.policy.library import policy_from_dict


def write_state(path: str | os.PathLike[str], kind: str, state: dict[str, Any]) -> None:
    """Write the state of a learner of this kind to a JSON file."""
    check_suffix(path, (".json",))
    document = {"format": "departing-learner", "version": 1, "kind": kind, "state": plain(state)}
    text = json.dumps(document)
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")


def read_state(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """The state of a learner of this kind, from the file `write_state` made."""
    check_suffix(path, (".json",))
    document = read_document(path, "learner")
    if document.get("kind") != kind:
        raise InputError(f"{str(path)!r} holds a learner of kind {document.get('kind')!r}; expected {kind!r}.")
    try:
        state = alive(document["state"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{str(path)!r} is damaged: {error}.") from error
    if not isinstance(state, dict):
        raise InputError(f"{str(path)!r} is damaged: it holds no fields.")
    return state


def kind_of(path: str | os.PathLike[str]) -> str:
    """The kind of the learner in a file."""
    return str(read_document(path, "learner").get("kind"))


def plain(value: Any) -> Any:
    """`value` as what JSON has."""
    if isinstance(value, np.ndarray):
        return {"array": value.dtype.str, "shape": list(value.shape), "values": value.reshape(-1).tolist()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, SerializablePolicy):
        return {"policy": policy_to_dict(value)}
    if isinstance(value, dict):
        return {"fields": {str(name): plain(part) for name, part in value.items()}}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"A learner that holds a {type(value).__name__} cannot be saved.")


def alive(value: Any) -> Any:
    """The other way."""
    if isinstance(value, list):
        return [alive(part) for part in value]
    if isinstance(value, dict):
        if "array" in value:
            return np.array(value["values"], np.dtype(value["array"])).reshape(value["shape"])
        if "policy" in value:
            return policy_from_dict(value["policy"], "the learner's policy")
        return {name: alive(part) for name, part in value["fields"].items()}
    return value
