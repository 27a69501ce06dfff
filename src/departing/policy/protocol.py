"""The Policy protocol, category names and indices, and the checks on recommendations."""

import inspect
from collections.abc import Callable, Sequence
from typing import Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.model.names import default_names, find_category

Category = int | str  # an index, or a name that `resolve` turns into one
Allowed = npt.ArrayLike | None
Mask = npt.NDArray[np.bool_]


@runtime_checkable
class Policy(Protocol):
    """Deterministic, stateless rule that maps the counts of a user to a category.

    Any object with this method is a policy. The policies of this package also accept
    `recommend(counts, allowed=...)`, which restricts the categories: names or indices, or a Boolean mask `[..., K]`.
    """

    def recommend(self, counts: npt.ArrayLike) -> Integers:
        """Recommend a category to each user.

        Parameters
        ----------
        counts : array_like of int, shape (..., K, 4)
            Clicks, stays, departures and clicks with departure of each user, by category.

        Returns
        -------
        ndarray of int64, shape (...)
            Category indices. Equal counts get equal categories.
        """
        ...


def policy_in_segment(policy: Policy, segment: str | None) -> Policy:
    """The policy for the users of a segment, by its method `in_segment(name)`; others ignore segments."""
    own = getattr(policy, "in_segment", None)
    return policy if own is None else cast(Policy, own(segment))


def own_segments(policy: object) -> tuple[str, ...]:
    """Names of the segments that a policy distinguishes; () if it ignores segments or does not say."""
    return tuple(getattr(policy, "segment_names", ()))


def resolve_policy(policy: object, names: Sequence[str] = ()) -> Policy:
    """Check that `policy` is a policy for the categories `names`, and replace category names in it by indices.

    A policy that was made for the same categories in another order is reordered by name.
    """
    if isinstance(policy, type):
        raise InputError(f"policy is the class {policy.__name__}; expected an object, such as Fixed('news').")
    if not callable(getattr(policy, "recommend", None)):  # several times faster than isinstance with a protocol
        raise InputError(f"policy is {policy!r:.80}; expected an object with a method recommend(counts).")
    if (order := category_order(own_categories(policy), names)) is not None:
        policy = reorder_policy(cast(Policy, policy), order)
    resolve = getattr(policy, "resolve", None)
    return cast(Policy, resolve(names) if names and resolve is not None else policy)


def reorder_policy(policy: Policy, order: Sequence[int]) -> Policy:
    """The policy for its categories in another order, given as old indices."""
    reorder = getattr(policy, "reorder", None)
    return Reordered(policy, order) if reorder is None else cast(Policy, reorder(order))


def own_categories(policy: object) -> Sequence[str]:
    """Names of the categories that a policy was made for, or of its instance or fallback; () if it knows none."""
    own: Sequence[str] = getattr(policy, "category_names", ()) or getattr(
        getattr(policy, "instance", None), "categories", ()
    )
    fallback = getattr(policy, "fallback", None)
    return own if own or fallback is None else own_categories(fallback)


class Reordered:
    """Policy of any kind for its categories in another order: `order[i]` is its index of category i."""

    def __init__(self, policy: Policy, order: Sequence[int]) -> None:
        self.policy, self.order = policy, np.array(order, np.int64)
        self.place = np.argsort(self.order)  # index of the policy's category in the new order
        own = own_categories(policy)
        self.category_names = tuple(own[i] for i in order) if own else ()
        self.segment_names = own_segments(policy)

    def in_segment(self, name: str | None) -> "Reordered":
        """Return the policy for the users of a segment."""
        own = policy_in_segment(self.policy, name)
        return self if own is self.policy else Reordered(own, self.order.tolist())

    def recommend(self, counts: npt.ArrayLike, allowed: Allowed = None) -> Integers:
        """Recommend a category to each user; see `Policy.recommend`."""
        given = np.asarray(counts)
        rows = given[..., self.place, :].reshape(-1, *given.shape[-2:])
        mask = None
        if allowed is not None:
            mask = allowed_mask(allowed, given.shape[:-1], self.category_names)[..., self.place]
            mask = mask.reshape(len(rows), -1)
        return np.asarray(self.place[recommended(self.policy, rows, mask)].reshape(given.shape[:-2]))


def recommended(policy: Policy, counts: Integers, mask: Mask | None = None) -> Integers:
    """Categories `[n]` that `policy` recommends to users with `counts[n, K, 4]`, checked to exist.

    A policy that is given a `mask[n, K]` of allowed categories must accept the argument `allowed`.
    """
    view = counts.view()
    view.setflags(write=False)  # a policy that changes its input would change the history
    n, n_categories = counts.shape[:2]
    name = type(policy).__name__
    if mask is None:
        categories = np.asarray(policy.recommend(view))
    elif "allowed" in inspect.signature(policy.recommend).parameters:
        categories = np.asarray(policy.recommend(view, allowed=mask))  # type: ignore[call-arg]
    else:
        raise InputError(f"{name}.recommend has no parameter allowed, so it cannot be restricted to some categories.")
    return checked_categories(name, categories, n, n_categories)


def checked_categories(name: str, categories: npt.ArrayLike, n: int, n_categories: int) -> Integers:
    """Categories `[n]` that `recommend` of an object with this name returned, as a copy."""
    returned = np.asarray(categories)
    if returned.shape != (n,) or returned.dtype.kind not in "iu":
        raise InputError(
            f"{name}.recommend returned {returned.dtype} of shape {returned.shape} for {n} users; "
            f"expected integers of shape ({n},)."
        )
    check_category_range(name, returned, n_categories)
    return np.array(returned, np.int64)  # a copy: the object may own the array it returns


def allowed_mask(allowed: npt.ArrayLike, shape: tuple[int, ...], names: Sequence[str] = ()) -> Mask:
    """Boolean mask `[..., K]` of this `shape` from names or indices of categories, or from a mask."""
    if isinstance(allowed, str):
        raise InputError(f"allowed is {allowed!r:.80}; expected a list, such as [{allowed!r:.80}].", "allowed")
    if isinstance(allowed, Sequence) and any(isinstance(category, str) for category in allowed):
        if not names:
            raise InputError(
                f"allowed is {allowed!r:.80}, but this policy does not know the names of the categories; "
                "give indices, or call policy.resolve(names) first."
            )
        allowed = [find_category(category, names) for category in allowed]
    expected = "expected names or indices of categories, or a Boolean mask"
    try:
        given = np.asarray(allowed)
    except ValueError as error:
        raise InputError(f"allowed is {allowed!r:.80}; {expected}.") from error
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
            raise InputError(f"allowed is {allowed!r:.80}; {expected}.")
        wrong = given[(given < 0) | (given >= n_categories)]
        if len(wrong):
            raise InputError(f"allowed contains {wrong[0]}; categories are 0 to {n_categories - 1}.")
        if len(np.unique(given)) < len(given):
            raise InputError(
                f"allowed is {allowed!r:.80}; expected each category once, or True and False for all of them.",
                "allowed",
            )
        mask = np.broadcast_to(np.isin(np.arange(n_categories), given), shape)
    if not mask.any(axis=-1).all():
        raise InputError("allowed forbids every category; at least one must be allowed.")
    return mask


def choose_allowed(
    chosen: Integers,
    counts: Integers,
    allowed: Allowed,
    instead: Callable[[Integers, Mask], Integers],
    names: Sequence[str] = (),
) -> Integers:
    """`chosen[...]` where it is allowed; elsewhere the choice of `instead(counts[n, K, 4], mask[n, K])`."""
    if allowed is None:
        return chosen
    n_categories = counts.shape[-2]
    mask = allowed_mask(allowed, counts.shape[:-1], names).reshape(-1, n_categories)
    answer = chosen.reshape(-1).copy()
    forbidden = ~mask[np.arange(len(answer)), answer]
    if forbidden.any():
        rows = counts.reshape(-1, n_categories, 4)[forbidden]
        answer[forbidden] = instead(rows, mask[forbidden])
    return answer.reshape(chosen.shape)


def check_category_range(name: str, categories: Integers, n_categories: int) -> None:
    """Raise unless all `categories` are indices of one of `n_categories`."""
    wrong = categories[(categories < 0) | (categories >= n_categories)]
    if len(wrong):
        raise InputError(
            f"{name} recommends category {wrong[0]}, but the instance has {n_categories} (0 to {n_categories - 1})."
        )


def category_order(own: Sequence[str], names: Sequence[str]) -> list[int] | None:
    """Indices into `own` of the categories `names`, or None if the order is the same; default names match any.

    >>> category_order(["news", "sport"], ["sport", "news"])
    [1, 0]
    >>> category_order(["news", "sport"], ["sport", "music"])
    Traceback (most recent call last):
    departing.model.errors.InputError: The policy was made for the categories news, sport, not for sport, music; \
use a policy for these categories.
    """
    unnamed = any(list(each) == default_names("category", len(each)) for each in (own, names))
    if not own or not names or unnamed or list(own) == list(names):
        return None
    if sorted(own) != sorted(names):
        raise InputError(
            f"The policy was made for the categories {', '.join(own)}, not for {', '.join(names)}; "
            "use a policy for these categories."
        )
    return [list(own).index(name) for name in names]


def switch_probability_bounds(policy: Policy, counts: Integers, instance: Instance) -> Floats:
    """Upper bounds `[n, M]` on the probability that a user of each type is ever shown another category.

    A policy may supply them by a method `switch_probability_bounds(counts, instance)`; otherwise they are 1. Where
    all are 0 the policy is committed: it recommends the same category from then on, whatever the outcomes.
    """
    supplied = getattr(policy, "switch_probability_bounds", None)
    return np.ones((len(counts), instance.n_types)) if supplied is None else np.asarray(supplied(counts, instance))


def check_category_refs(field: str, values: Sequence[Category] | Integers) -> list[Category]:
    """`values` as a list of category names and indices."""
    listed = values.tolist() if isinstance(values, np.ndarray) else values
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        raise InputError(f"{field} is {values!r:.80}; expected a list of categories.")
    return [check_category(f"{field}[{i}]", value) for i, value in enumerate(listed)]


def check_category(field: str, value: Category) -> Category:
    """`value` if it is a category name or can be a category index."""
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 2**31:
        raise InputError(f"{field} is {value!r}; expected a category name or an integer ≥ 0.")
    return int(value)


def resolved_indices(categories: Sequence[Category]) -> Integers:
    """`categories` as an array of indices; raise if one of them is still a name."""
    for category in categories:
        if isinstance(category, str):
            raise InputError(
                f"The policy names the category {category!r}, which has no index yet; "
                "call policy.resolve(categories) with the names of all categories first."
            )
    return np.array(categories, np.int64)


def resolve_category(category: Category, names: Sequence[str]) -> int:
    """The index of a category given by its name; an index stays as it is."""
    return find_category(category, names) if isinstance(category, str) else category
