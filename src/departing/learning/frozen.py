"""Frozen: a fixed policy as a learner."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from departing.learning.base import Option
from departing.learning.blocks import ALL_USERS, Block, BlockLearner
from departing.model.counts import Integers
from departing.model.instance import Instance
from departing.policy.by_segment import BySegment
from departing.policy.library import PolicyLike, to_policy
from departing.policy.schedule import Fixed


class Frozen(BlockLearner):
    """A learner that assigns `policy` to every user and never changes it.

    Parameters
    ----------
    policy : Policy, Plan or str
        The policy of all users, or its short form such as "fixed:CATEGORY".
    categories : int or sequence of str
        Number of categories, or their names.

    Examples
    --------
    >>> Frozen(Fixed(1), categories=2).recommend(["ann", "bob"])
    array([1, 1])
    """

    kind = "frozen"
    options: ClassVar[dict[str, Option]] = {"category": lambda field, value: value}
    required: ClassVar[tuple[str, ...]] = ("category",)
    depth = 0

    def __init__(self, policy: PolicyLike, categories: int | Sequence[str]) -> None:
        super().__init__(categories)
        self._policy = to_policy(policy, self.category_names)
        self.segments = _segment_names(self._policy)

    @classmethod
    def from_options(cls, options: dict[str, Any], instance: Instance, users: int, seed: int) -> Self:
        """Create a learner that always recommends one category, given by index or name."""
        return cls(Fixed(instance.category_index(options["category"])), instance.n_categories)

    def _arguments(self) -> dict[str, Any]:
        return {"policy": self._policy, "categories": self.categories}

    def _block(self) -> Block:
        return [(self._policy, ALL_USERS)]

    def learn(self, counts: Integers, categories: Integers, outcomes: Integers, segment: int | None = None) -> None:
        """Learn nothing."""


def _segment_names(policy: Any) -> tuple[str, ...] | None:
    """Names of the segments that a policy distinguishes."""
    if isinstance(policy, BySegment):
        return tuple(policy.policies)
    own = getattr(getattr(policy, "instance", None), "segments", None)
    return None if own is None else tuple(own.names)
