"""Saved learners: state as JSON with arrays and policies, exact to the bit."""

import json
import os
from typing import Any

import numpy as np

from departing.learning.last_outcome import LastOutcomePolicy
from departing.model.errors import InputError
from departing.model.files import atomic_write, check_suffix, read_document
from departing.policy.files import SerializablePolicy, policy_to_dict
from departing.policy.library import policy_from_dict


def write_state(path: str | os.PathLike[str], kind: str, state: dict[str, Any]) -> None:
    """Write the state of a learner of this kind to a JSON file."""
    check_suffix(path, (".json",))
    document = {"format": "departing-learner", "version": 1, "kind": kind, "state": encode_state(state)}
    text = json.dumps(document)
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")


def read_learner(path: str | os.PathLike[str]) -> tuple[str, Any]:
    """Read the kind and the encoded state of a learner from the file written by `write_state`."""
    check_suffix(path, (".json",))
    document = read_document(path, "learner")
    return str(document.get("kind")), document.get("state")


def check_shape(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise `ValueError` unless an array of a state has this shape."""
    if array.shape != shape:
        raise ValueError(f"{name} has the shape {array.shape}; expected {shape}")


def encode_state(value: Any) -> Any:
    """Return `value` with arrays, policies and dictionaries as JSON objects."""
    if isinstance(value, np.ndarray):
        return {"array": value.dtype.str, "shape": list(value.shape), "values": value.reshape(-1).tolist()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, SerializablePolicy):
        return {"policy": policy_to_dict(value)}
    if isinstance(value, LastOutcomePolicy):
        return {"last_outcome_policy": [value.after_click, value.after_no_click]}
    if isinstance(value, dict):
        return {"items": [[encode_state(key), encode_state(part)] for key, part in value.items()]}
    if isinstance(value, set):
        return {"set": sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [encode_state(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"A learner that contains a {type(value).__name__} cannot be saved.")


def decode_state(value: Any) -> Any:
    """Return the value that `encode_state` encoded."""
    if isinstance(value, list):
        return [decode_state(part) for part in value]
    if isinstance(value, dict):
        if "array" in value:
            return np.array(value["values"], np.dtype(value["array"])).reshape(value["shape"])
        if "policy" in value:
            return policy_from_dict(value["policy"], "the learner's policy")
        if "last_outcome_policy" in value:
            return LastOutcomePolicy(*value["last_outcome_policy"])
        if "set" in value:
            return set(value["set"])
        return {decode_state(key): decode_state(part) for key, part in value["items"]}
    return value
