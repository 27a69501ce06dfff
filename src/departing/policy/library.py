"""Policies by name: reading saved ones, and the short form of the command line."""

import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from departing.model.errors import InputError
from departing.model.files import check_fields, read_document
from departing.model.instance import Instance
from departing.policy.alpha import Alpha
from departing.policy.files import Saved
from departing.policy.greedy import Greedy
from departing.policy.protocol import Policy, check_category_names
from departing.policy.schedule import Fixed, Threshold, Walk
from departing.policy.table import Table

KINDS: dict[str, type[Saved]] = {cls.kind: cls for cls in (Fixed, Threshold, Walk, Greedy, Table, Alpha)}


def load_policy(path: str | os.PathLike[str], categories: Sequence[str] | None = None) -> Policy:
    """Read a policy from the file that its `save` or that of its plan wrote.

    With the names of your `categories` a policy that was made for others, or for another order, is refused; a plan
    saves the names.
    """
    document = read_document(path, "policy")
    names = document.pop("names", None)
    policy = policy_from_dict(document, repr(str(path)))
    if names is None:
        names = getattr(getattr(policy, "instance", None), "categories", None)
    if categories is not None and isinstance(names, Sequence):
        try:
            check_category_names([str(name) for name in names], list(categories))
        except InputError as error:
            raise InputError(f"{str(path)!r}: {error}") from error
    return policy


def policy_from_dict(document: dict[str, Any], where: str) -> Policy:
    """The policy of a document; errors say `where` it stands."""
    fields = dict(document)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"{where} has the policy kind {kind!r}; allowed are {', '.join(sorted(KINDS))}.")
    parameters = inspect.signature(KINDS[kind]).parameters
    check_fields(fields, set(parameters), set(), where)
    if "fallback" in fields:
        fields["fallback"] = policy_from_dict(_mapping(fields["fallback"], "fallback", where), f"{where}, fallback")
    if "instance" in fields:
        instance = _mapping(fields["instance"], "instance", where)
        fields["instance"] = Instance.from_dict(instance, f"{where}, instance")
    try:
        policy = KINDS[kind](**fields)
    except (InputError, TypeError) as error:
        raise InputError(f"{where}: {error}") from error
    assert isinstance(policy, Policy)
    return policy


def _mapping(value: object, field: str, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: {field} is {value!r:.80}; expected fields with names.")
    return value


def parse_policy(text: str, instance: Instance) -> Policy:
    """A policy from its short form, or from a file.

    `fixed:C`; `threshold:FIRST,STEPS,THEN`; `walk:C,C,…,C` (the last one for ever); `greedy`; or a path that
    ends in .toml or .json. Categories go by name or index.

    >>> blog = Instance([0.4, 0.6], [[0.5, 0.28], [0.4, 0.39]], categories=["economics", "sports"])
    >>> parse_policy("threshold:sports,6,economics", blog)
    Threshold(first=1, steps=6, then=0)
    """
    if Path(text).suffix.lower() in (".toml", ".json"):
        return load_policy(text, instance.categories)
    kind, _, rest = text.partition(":")
    arguments = [part.strip() for part in rest.split(",")] if rest else []
    if kind == "fixed" and len(arguments) == 1:
        return Fixed(instance.category_index(arguments[0]))
    if kind == "threshold" and len(arguments) == 3:
        first, then = instance.category_index(arguments[0]), instance.category_index(arguments[2])
        if not arguments[1].isdecimal() or len(arguments[1]) > 18:
            raise InputError(f"steps is {arguments[1]!r}; expected an integer ≥ 0.")
        return Threshold(first=first, steps=int(arguments[1]), then=then)
    if kind == "walk" and arguments:
        *walk, then = (instance.category_index(argument) for argument in arguments)
        return Walk(walk, then=then)
    if text == "greedy":
        return Greedy(instance)
    raise InputError(
        f"There is no policy {text!r}; write fixed:C, threshold:FIRST,STEPS,THEN, walk:C,C,…, greedy, "
        "or the path of a saved policy (.toml or .json)."
    )


def describe(policy: Policy, instance: Instance) -> str:
    """`policy` in words, with the instance's names."""
    words = getattr(policy, "describe", None)
    try:
        return str(words(instance.categories)) if words else type(policy).__name__
    except IndexError:
        return repr(policy)
