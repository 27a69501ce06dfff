"""Policies by kind: loading saved ones, and the short form of the command line."""

import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from departing.model.errors import InputError, errors_in
from departing.model.files import DOCUMENT_SUFFIXES, check_fields, read_document
from departing.model.instance import Instance
from departing.model.instance_fields import check_horizon
from departing.model.names import list_names
from departing.policy.alpha import Alpha
from departing.policy.belief_policy import BeliefPolicy
from departing.policy.by_segment import BySegment
from departing.policy.files import SerializablePolicy
from departing.policy.greedy import Greedy
from departing.policy.protocol import Policy, own_segments, policy_in_segment, resolve_policy
from departing.policy.schedule import Fixed, Threshold, Walk
from departing.policy.starts import describe_by_segment
from departing.policy.table import Table

POLICIES = (Fixed, Threshold, Walk, Greedy, Table, Alpha, BySegment)
KINDS: dict[str, type[SerializablePolicy]] = {cls.kind: cls for cls in POLICIES}

GREEDY = Greedy.kind  # the short form that requires an instance


def load_policy(path: str | os.PathLike[str], categories: Sequence[str] | None = None) -> Policy:
    """Read a policy from a file written by `policy.save` or `plan.save`.

    Parameters
    ----------
    path : path-like
        TOML or JSON file.
    categories : sequence of str, optional
        Names of your categories. A policy made for these names in another order is reordered, one made for other
        names refused, and category names in the policy become indices.

    Returns
    -------
    Policy

    Raises
    ------
    InputError
        If the file is missing or invalid, or the policy was made for other categories.
    """
    document = read_document(path, "policy")
    names, horizon = document.pop("names", None), document.pop("horizon", None)
    policy = policy_from_dict(document, repr(str(path)))
    if names is None:
        names = getattr(getattr(policy, "instance", None), "categories", None)
    own = [str(name) for name in names] if isinstance(names, Sequence) else []
    with errors_in(repr(str(path))):
        check_horizon(horizon)  # a service uses it; elsewhere that of the instance counts
        return resolve_policy(resolve_policy(policy, own), list(categories or ()))


def policy_from_dict(document: dict[str, Any], where: str) -> Policy:
    """Return the policy of a document; error messages start with `where`."""
    fields = dict(document)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"{where} has the policy kind {kind!r:.80}; expected one of {', '.join(sorted(KINDS))}.")
    parameters = inspect.signature(KINDS[kind]).parameters
    optional = {name for name, parameter in parameters.items() if parameter.default is None}
    check_fields(fields, set(parameters) - optional, optional, where)
    for field in {"fallback", "default"} & fields.keys():
        fields[field] = policy_from_dict(_mapping(fields[field], field, where), f"{where}, {field}")
    if "policies" in fields:
        fields["policies"] = {
            name: policy_from_dict(_mapping(each, f"policies.{name}", where), f"{where}, segment {name!r}")
            for name, each in _mapping(fields["policies"], "policies", where).items()
        }
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
        raise InputError(f"{where}: {field} is {value!r:.80}; expected named fields.")
    return value


class HasPolicy(Protocol):
    """A result that stands for its policy, such as a Plan."""

    @property
    def policy(self) -> Policy:
        """The policy."""


PolicyLike = Policy | HasPolicy | str


def to_policy(policy: PolicyLike, categories: Sequence[str], instance: Instance | None = None) -> Policy:
    """Return the policy that `policy` stands for, with indices into `categories`.

    Parameters
    ----------
    policy : Policy, Plan or str
        A policy; a result with the attribute `policy`; or a text for `parse_policy`.
    categories : sequence of str
        Names of the categories.
    instance : Instance, optional
        Model of the text "greedy".

    Raises
    ------
    InputError
        If it is none of these, or was made for other categories.
    """
    if isinstance(policy, str):
        return parse_policy(policy, categories, instance)
    own = policy if hasattr(policy, "recommend") else getattr(policy, "policy", None)
    return resolve_policy(policy if own is None else own, categories)


def policy_for(instance: Instance, policy: PolicyLike) -> Policy:
    """Return the policy that `policy` stands for, to be used with the users of `instance`.

    Users of segments that the policy does not know get its policy for unknown segments. If it knows none of the
    segments of the instance, they are taken for another spelling or other features.

    Raises
    ------
    InputError
        As by `to_policy`, or if the policy depends on segments and the instance has other ones only.
    """
    chosen = to_policy(policy, instance.categories, instance)
    known = own_segments(chosen)
    if known and instance.segments is not None and not set(known) & set(instance.segments.names):
        raise InputError(
            f"The policy is for the segments {list_names(known)}, but the instance has "
            f"{list_names(instance.segments.names)}; expected at least one in common. Rename the segments of the "
            "instance, or pass policy.in_segment(None), the policy for unknown segments."
        )
    return chosen


def parse_policy(text: str, categories: Sequence[str], instance: Instance | None = None) -> Policy:
    """Return the policy that a short form or the path of a saved policy stands for.

    Short forms are `fixed:C`, `threshold:FIRST,STEPS,THEN`, `walk:C,C,…,THEN` and `greedy`, with categories by name
    or index; `greedy` requires an instance.

    >>> parse_policy("threshold:sports,6,economics", ["economics", "sports"])
    Threshold(first=1, steps=6, then=0)
    """
    if Path(text).suffix.lower() in DOCUMENT_SUFFIXES:
        return load_policy(text, categories)
    kind, _, rest = text.partition(":")
    arguments = [part.strip() for part in rest.split(",")] if rest else []
    policy: Policy | None = None
    if kind == "fixed" and len(arguments) == 1:
        policy = Fixed(arguments[0])
    elif kind == "threshold" and len(arguments) == 3:
        first, steps, then = arguments
        if not steps.isdecimal() or len(steps) > 18:
            raise InputError(f"steps is {steps!r}; expected an integer ≥ 0.")
        policy = Threshold(first, int(steps), then)
    elif kind == "walk" and arguments:
        policy = Walk(arguments[:-1], then=arguments[-1])
    elif text == GREEDY and instance is not None:
        policy = Greedy(instance)
    if text == GREEDY and policy is None:
        raise InputError(
            "The policy 'greedy' requires an instance, which is not given here; name another policy, or in Python "
            "pass Greedy(instance)."
        )
    if policy is None:
        raise InputError(
            f"There is no policy {text!r:.80}; write fixed:C, threshold:FIRST,STEPS,THEN, walk:C,C,…, greedy, "
            "or the path of a saved policy (.toml or .json)."
        )
    return resolve_policy(policy, categories)


def describe(policy: object, instance: Instance) -> str:
    """Describe `policy` in one phrase, with the names of the instance's categories and segments."""
    segments = instance.segments if own_segments(policy) else None
    if segments is None and isinstance(policy, BeliefPolicy):
        policy = policy_in_segment(policy, None)  # all users of the instance get this one
    own = getattr(policy, "describe", None)
    try:
        if segments is not None:
            shares = (segments.share / segments.share.sum()).tolist()
            return describe_by_segment(cast(Policy, policy), instance.categories, segments.names, shares)
        return str(own(instance.categories)) if own else type(policy).__name__
    except (IndexError, InputError):  # it is for other categories
        return repr(policy)
