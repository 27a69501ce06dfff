"""Oracle: the optimal policy of a known instance, for comparison."""

from typing import Any, ClassVar, Self

from departing.learning.base import Option
from departing.learning.frozen import Frozen
from departing.model.instance import EXTENSIONS, Instance
from departing.model.validation import check_instance
from departing.policy.by_segment import BySegment

GAP = 1e-6  # of the plan, relative to the mean reward of a click: the default of `plan`


class Oracle(Frozen):
    """A learner that knows the instance and plays its optimal policy: zero regret."""

    kind = "oracle"
    options: ClassVar[dict[str, Option]] = {}
    required: ClassVar[tuple[str, ...]] = ()

    def __init__(self, instance: Instance) -> None:
        from departing.planning.plan import plan_reference

        check_instance(instance, EXTENSIONS)
        gap = GAP * float(instance.reward.mean())
        policy: Any = plan_reference(instance.in_segment(None), gap).policy
        if instance.segments is not None:
            parts = {name: plan_reference(instance.in_segment(name), gap).policy for name in instance.segments.names}
            policy = BySegment(parts, policy)
        super().__init__(policy, instance.n_categories)

    @classmethod
    def from_options(cls, options: dict[str, Any], instance: Instance, users: int, seed: int) -> Self:
        """Plan for `instance`."""
        return cls(instance)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Create a learner that continues from a `state`, without planning again."""
        learner = cls.__new__(cls)
        Frozen.__init__(learner, **state["arguments"])
        learner.restore(state)
        return learner
