"""Oracle: the optimal policy of a known instance, for comparison."""

from typing import Any, ClassVar, Self

from departing.learning.base import Option
from departing.learning.frozen import Frozen
from departing.model.instance import Instance
from departing.model.validation import check_instance

GAP = 1e-6  # of the plan, in clicks per user: the default of `plan`


class Oracle(Frozen):
    """A learner that knows the instance and plays its optimal policy: zero regret."""

    kind = "oracle"
    options: ClassVar[dict[str, Option]] = {}
    required: ClassVar[tuple[str, ...]] = ()

    def __init__(self, instance: Instance) -> None:
        from departing.planning.plan import plan_reference

        check_instance(instance)
        super().__init__(plan_reference(instance, GAP).policy, instance.n_categories)

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
