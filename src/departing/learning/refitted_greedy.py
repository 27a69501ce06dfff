"""RefittedGreedy: the greedy policy of the latest fit, without planning or exploration."""

from departing.learning.blocks import Block
from departing.learning.model_learner import ModelLearner
from departing.policy.greedy import Greedy


class RefittedGreedy(ModelLearner):
    """Recommend the category with the largest expected reward under the belief, by the most likely instance."""

    kind = "refitted-greedy"

    def _block(self) -> Block:
        return [(Greedy(self.objective.apply(self.instance())), self._block_size())]
