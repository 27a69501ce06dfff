"""Uploaded policies: checks of a policy document, and its policy version."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from departing.model.errors import InputError, errors_in
from departing.model.files import strip_header
from departing.model.instance import Instance
from departing.model.instance_fields import check_horizon
from departing.model.names import list_names
from departing.model.validation import MAX_TYPES
from departing.policy.by_segment import BySegment
from departing.policy.library import policy_from_dict
from departing.policy.protocol import Category, own_categories, recommended, resolve_policy
from departing.policy.schedule import Schedule
from departing.policy.table import Table
from departing.service.policy_version import UPLOADED, PolicyVersion, policy_details

WHERE = "The policy"
MAX_NESTED = 20  # fallbacks inside each other; each takes several calls, of which Python allows 1,000
MAX_PHASES = 10_000  # of a schedule: many times those of a plan; a million would take seconds to parse


def uploaded_version(document: dict[str, Any], names: Sequence[str], now: float) -> tuple[PolicyVersion, str]:
    """Return the version of a policy document, as `plan.save` writes it, and the document that the store keeps.

    The policy must know all categories of the store, or those without the ones that were added last. Its categories
    are brought into the order of the store.
    """
    fields = strip_header(document, "policy", WHERE)
    listed, given = fields.pop("names", None), fields.pop("horizon", None)
    _check_nesting(fields)
    policy = policy_from_dict(fields, WHERE)
    if listed is not None and not (isinstance(listed, list) and all(isinstance(name, str) for name in listed)):
        raise InputError(f"{WHERE} has names {listed!r:.80}; expected a list of category names.")
    with errors_in(WHERE):
        horizon = check_horizon(given)
        own = list(listed or own_categories(policy)) or list(names)
        known = list(names[: len(own)])
        if sorted(own) != sorted(known):
            expected = f"{list_names(names)} (those added last may be missing)"
            raise InputError(f"names are {list_names(own):.200}; expected the categories of the service, {expected}.")
        for each in _with_fallbacks(policy):
            _check_size(each, len(known))
        policy = resolve_policy(resolve_policy(policy, own), known)
        for each in _with_fallbacks(policy):
            _check_choice(each, len(known))
    details: dict[str, Any] = {"source": UPLOADED}
    instance = getattr(policy, "instance", None)
    if isinstance(instance, Instance):
        details |= policy_details(policy, instance)
    else:
        describe = getattr(policy, "describe", None)
        details["description"] = str(describe(known)) if describe else type(policy).__name__
    instances = [each.instance for each in _with_fallbacks(policy) if hasattr(each, "instance")]
    horizons = [each for each in (horizon, *(each.horizon for each in instances)) if each is not None]
    if horizons:
        details["horizon"] = min(horizons)
    version = PolicyVersion(-1, now, policy, len(known), details)
    stored = version.row()[2]
    identity = f"{stored}{details.get('horizon', '')}"
    details["upload"] = hashlib.sha256(identity.encode()).hexdigest()  # recognises a repeated upload
    return version, stored


def _check_nesting(fields: dict[str, Any]) -> None:
    """Raise if too many fallbacks are inside each other."""
    depth, inner = 0, fields.get("fallback")
    while isinstance(inner, dict):
        depth, inner = depth + 1, inner.get("fallback")
    if depth > MAX_NESTED:
        raise InputError(f"{WHERE} has {depth} fallbacks inside each other; at most {MAX_NESTED} are accepted.")


def _with_fallbacks(policy: Any) -> Iterator[Any]:
    """Yield a policy, its fallback, the fallback of that, and so on; of one by segment, those of every segment."""
    while policy is not None:
        yield policy
        if isinstance(policy, BySegment):
            for each in policy.policies.values():
                yield from _with_fallbacks(each)
            policy = policy.default
        else:
            policy = getattr(policy, "fallback", None)


def _check_size(policy: Any, n_categories: int) -> None:
    """Raise if a policy, without its fallback, is too large, or not made for this number of categories."""
    kind, n_known = type(policy).__name__, n_categories
    chosen: tuple[Category, ...] = ()
    if isinstance(policy, Schedule):
        chosen = (*(category for category, _ in policy.given_phases), policy.then)
        if len(chosen) > MAX_PHASES:
            raise InputError(f"{kind} has {len(chosen):,} phases; at most {MAX_PHASES:,} are accepted.")
    elif isinstance(policy, Table):
        chosen, n_known = policy.given_categories, policy.counts.shape[1] if len(policy.counts) else n_categories
    elif isinstance(instance := getattr(policy, "instance", None), Instance):
        n_known = instance.n_categories
        if instance.n_types > MAX_TYPES:
            raise InputError(f"{kind} has {instance.n_types:,} types; at most {MAX_TYPES} are accepted.")
    if n_known != n_categories:
        raise InputError(
            f"{kind} is for {n_known} categories; expected {n_categories}, as in the rest of the policy."
        )
    for category in chosen:
        if isinstance(category, int) and category >= n_categories:
            raise InputError(f"{kind} recommends category {category}; expected one from 0 to {n_categories - 1}.")


def _check_choice(policy: Any, n_categories: int) -> None:
    """Raise unless the policy recommends a category to a new user, also if only one is allowed."""
    counts = np.zeros((1, n_categories, 4), np.int64)
    try:
        recommended(policy, counts)
        for mask in np.eye(n_categories, dtype=bool):
            recommended(policy, counts, mask[None])
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"it cannot recommend a category to a new user: {error!r:.200}.") from error
