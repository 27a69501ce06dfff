"""What a policy is, and the checks its answers go through."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance


@runtime_checkable
class Policy(Protocol):
    """Anything that tells which category to recommend to users with given counts."""

    def recommend(self, counts: npt.ArrayLike) -> Integers:
        """Categories `[...]` for users with `counts[..., K, 4]`; the same counts always get the same one."""
        ...


def check_policy(policy: object) -> None:
    """Raise unless `policy` can recommend."""
    if not isinstance(policy, Policy):
        raise InputError(f"policy is {policy!r:.80}; expected an object with a method recommend(counts).")


def recommended(policy: Policy, counts: Integers) -> Integers:
    """What `policy` recommends to users with `counts[n, K, 4]`, checked to be n categories that exist."""
    shown = counts.view()
    shown.setflags(write=False)  # a policy that changes what it looks at would change what happened
    categories = np.asarray(policy.recommend(shown))
    n, n_categories = counts.shape[:2]
    name = type(policy).__name__
    if categories.shape != (n,) or categories.dtype.kind not in "iu":
        raise InputError(
            f"{name}.recommend gave {categories.dtype} of shape {categories.shape} for {n} users; "
            f"expected integers of shape ({n},)."
        )
    check_range(name, categories, n_categories)
    return np.array(categories, np.int64)  # a copy: what a policy returns may be its own


def check_range(name: str, categories: Integers, n_categories: int) -> None:
    """Raise unless all `categories` are among the instance's."""
    wrong = categories[(categories < 0) | (categories >= n_categories)]
    if len(wrong):
        raise InputError(
            f"{name} recommends category {wrong[0]}, but the instance has {n_categories} (0 to {n_categories - 1})."
        )


def unsettled(policy: Policy, counts: Integers, instance: Instance) -> Floats:
    """Bounds `[n, M]` on the chance that a user of each type is ever shown another category than now.

    A policy may tell by a method `unsettled(counts, instance)`; for one that does not the bound is 1. Where
    it is 0 for all types the policy has settled: it recommends one category from here on, come what may.
    """
    tells = getattr(policy, "unsettled", None)
    return np.ones((len(counts), instance.n_types)) if tells is None else np.asarray(tells(counts, instance))


def as_categories(field: str, values: Sequence[int] | Integers) -> list[int]:
    """`values` if they are a list of indices of categories, or a sentence."""
    listed = values.tolist() if isinstance(values, np.ndarray) else values
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        raise InputError(f"{field} is {values!r:.80}; expected a list of categories.")
    return [as_category(f"{field}[{i}]", value) for i, value in enumerate(listed)]


def as_category(field: str, value: int) -> int:
    """`value` if it can be the index of a category, or a sentence."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 2**31:
        raise InputError(f"{field} is {value!r}; a category is a whole number from 0.")
    return int(value)
