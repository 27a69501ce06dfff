"""What a policy is, and the checks its answers go through."""

import inspect
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance, default_names


@runtime_checkable
class Policy(Protocol):
    """Anything that tells which category to recommend to users with given counts.

    The policies of this package also take `recommend(counts, allowed=...)`: only these categories may be recommended,
    given as a list of indices, or as True and False for every category (of every user, `[..., K]`).
    """

    def recommend(self, counts: npt.ArrayLike) -> Integers:
        """Categories `[...]` for users with `counts[..., K, 4]`; the same counts always get the same one."""
        ...


def check_policy(policy: object, names: Sequence[str] = ()) -> None:
    """Raise unless `policy` can recommend, and was made for categories that stand where `names` have them."""
    if not isinstance(policy, Policy):
        raise InputError(f"policy is {policy!r:.80}; expected an object with a method recommend(counts).")
    check_category_names(getattr(getattr(policy, "instance", None), "categories", ()), names)


def recommended(policy: Policy, counts: Integers, mask: "Mask | None" = None) -> Integers:
    """What `policy` recommends to users with `counts[n, K, 4]`, checked to be n categories that exist.

    With a `mask[n, K]` the policy must know how to keep to allowed categories.
    """
    shown = counts.view()
    shown.setflags(write=False)  # a policy that changes what it looks at would change what happened
    n, n_categories = counts.shape[:2]
    name = type(policy).__name__
    if mask is None:
        categories = np.asarray(policy.recommend(shown))
    elif "allowed" in inspect.signature(policy.recommend).parameters:
        categories = np.asarray(policy.recommend(shown, allowed=mask))  # type: ignore[call-arg]
    else:
        raise InputError(f"{name}.recommend does not take allowed, so it cannot keep to some categories.")
    if categories.shape != (n,) or categories.dtype.kind not in "iu":
        raise InputError(
            f"{name}.recommend gave {categories.dtype} of shape {categories.shape} for {n} users; "
            f"expected integers of shape ({n},)."
        )
    check_category_range(name, categories, n_categories)
    return np.array(categories, np.int64)  # a copy: what a policy returns may be its own


Allowed = npt.ArrayLike | None
Mask = npt.NDArray[np.bool_]


def allowed_mask(allowed: npt.ArrayLike, shape: tuple[int, ...]) -> Mask:
    """`allowed` as True and False of this shape, `[..., K]`, or a sentence about what is wrong with it."""
    try:
        given = np.asarray(allowed)
    except ValueError as error:
        raise InputError(f"allowed is {allowed!r:.80}; expected indices of categories, or True and False.") from error
    n_categories = shape[-1]
    if given.dtype == np.bool_:
        if given.shape[-1:] != (n_categories,):
            raise InputError(f"allowed has shape {given.shape}; expected True or False for each of {n_categories}.")
        try:
            mask = np.broadcast_to(given, shape)
        except ValueError as error:
            raise InputError(f"allowed has shape {given.shape}; expected one that fits {shape}.") from error
    else:
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise InputError(f"allowed is {allowed!r:.80}; expected indices of categories, or True and False.")
        chosen = given.astype(np.int64)
        wrong = chosen[(chosen < 0) | (chosen >= n_categories)]
        if len(wrong):
            raise InputError(f"allowed holds {wrong[0]}; categories are 0 to {n_categories - 1}.")
        mask = np.broadcast_to(np.isin(np.arange(n_categories), chosen), shape)
    if not mask.any(axis=-1).all():
        raise InputError("allowed forbids every category; at least one must be allowed.")
    return mask


def choose_allowed(
    chosen: Integers, counts: Integers, allowed: Allowed, instead: Callable[[Integers, Mask], Integers]
) -> Integers:
    """`chosen[...]` where that is allowed; else what `instead(counts[n, K, 4], mask[n, K])` tells."""
    if allowed is None:
        return chosen
    mask = allowed_mask(allowed, counts.shape[:-1])
    n_categories = counts.shape[-2]
    mask, answer = mask.reshape(-1, n_categories), np.array(chosen).reshape(-1)
    check_category_range("The policy", answer, n_categories)
    forbidden = ~mask[np.arange(len(answer)), answer]
    if forbidden.any():
        rows = counts.reshape(-1, *counts.shape[-2:])[forbidden]
        answer[forbidden] = instead(rows, mask[forbidden])
    return answer.reshape(chosen.shape)


def check_category_range(name: str, categories: Integers, n_categories: int) -> None:
    """Raise unless all `categories` are among the instance's."""
    wrong = categories[(categories < 0) | (categories >= n_categories)]
    if len(wrong):
        raise InputError(
            f"{name} recommends category {wrong[0]}, but the instance has {n_categories} (0 to {n_categories - 1})."
        )


def check_category_names(own: Sequence[str], names: Sequence[str]) -> None:
    """Raise if a policy that was made for the categories `own` is asked about `names`, and both have been named.

    >>> check_category_names(["news", "sport"], ["sport", "news"])
    Traceback (most recent call last):
    departing.model.errors.InputError: The policy was made for the categories news, sport, not for sport, news.
    """
    unnamed = any(list(each) == default_names("category", len(each)) for each in (own, names))
    if own and names and not unnamed and list(own) != list(names):
        raise InputError(f"The policy was made for the categories {', '.join(own)}, not for {', '.join(names)}.")


def switch_probability_bounds(policy: Policy, counts: Integers, instance: Instance) -> Floats:
    """Upper bounds `[n, M]` on the probability that a user of each type is ever shown another category.

    A policy may supply them by a method `switch_probability_bounds(counts, instance)`; otherwise they are 1. Where
    all are 0 the policy is committed: it recommends the same category from then on, whatever the outcomes.
    """
    tells = getattr(policy, "switch_probability_bounds", None)
    return np.ones((len(counts), instance.n_types)) if tells is None else np.asarray(tells(counts, instance))


def check_categories(field: str, values: Sequence[int] | Integers) -> list[int]:
    """`values` if they are a list of indices of categories, or a sentence."""
    listed = values.tolist() if isinstance(values, np.ndarray) else values
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        raise InputError(f"{field} is {values!r:.80}; expected a list of categories.")
    return [check_category(f"{field}[{i}]", value) for i, value in enumerate(listed)]


def check_category(field: str, value: int) -> int:
    """`value` if it can be the index of a category, or a sentence."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 2**31:
        raise InputError(f"{field} is {value!r}; expected a category name or an integer ≥ 0.")
    return int(value)
