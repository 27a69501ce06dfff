"""The lattice learner: optimism over counts, for any number of types."""

from math import ceil, log
from typing import Any, ClassVar

import numpy as np

from departing.kernels.learning.kl import kl_end
from departing.kernels.learning.optimism import look_ahead
from departing.learning.blocks import BlockLearner, next_block
from departing.learning.transition_counts import TransitionCounts
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY, Floats
from departing.model.validation import MAX_USERS, check_float, check_int, check_seed
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed
from departing.policy.table import Table

GROWTH = 0.01
HORIZON = 30  # steps that are told apart unless there is a reason for more
SCALES = ("practical", "proved")
PRACTICAL = 2.0  # nats of room in an interval: it then holds its chance about 95 times in 100


class LatticeUCB(BlockLearner):
    """Plan over the counts that users met, as optimistically as what was seen there allows.

    What comes of showing a category to a user with given counts is the same for every policy, whatever types there
    are. At every counts the chances of a click and of departing are kept in intervals, and the policy is the best
    one if every chance is at the better end. `epsilon` is the least chance of leaving at any step, as in the paper,
    `horizon` how many steps are told apart. With scale `proved` all intervals hold together but with chance
    1/users, and regret grows like the square root of users; with `practical` each holds about 95 times in 100.
    Nothing is drawn by lot; `seed` is there as for every learner.

    >>> LatticeUCB(categories=2, users=1000).recommend(["ann"]).shape
    (1,)
    """

    kind: ClassVar[str] = "lattice"

    def __init__(
        self,
        categories: int,
        users: int | None = None,
        seed: int = 0,
        *,
        epsilon: float = 0.05,
        horizon: int | None = None,
        scale: str = "practical",
        growth: float = GROWTH,
    ) -> None:
        super().__init__(categories)
        if users is None:
            raise InputError("users is missing; the lattice learner needs to know about how many users will come.")
        self.users = check_int("users", users, 1, MAX_USERS)
        self.seed = check_seed(seed)
        self.epsilon = check_float("epsilon", epsilon, 1e-6, 1 - 1e-6)
        if scale not in SCALES:
            raise InputError(f"scale is {scale!r}; allowed are {', '.join(SCALES)}.")
        self.scale = scale
        whole = ceil(log(self.users + 1) / log(1 / (1 - self.epsilon)))
        usual = whole if scale == "proved" else min(whole, HORIZON)
        self.horizon = usual if horizon is None else check_int("horizon", horizon)
        proved = 3 * log(self.users + 1) + log(6 * self.n_categories * self.horizon)
        self.room = proved if scale == "proved" else PRACTICAL
        self.growth = check_float("growth", growth, 1e-3, 10.0)
        self.depth = self.horizon
        self.ledger = TransitionCounts(self.n_categories, self.horizon)

    def _learn(self, counts: Integers, categories: Integers, outcomes: Integers) -> None:
        self.ledger.book(counts, categories, outcomes)

    def bounds(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Of every node and category, `[n, K]`: the least and most chance of a click, the least of departing after a
        no-click and after a click."""
        seen = self.ledger.seen
        clicks = seen[..., CLICK] + seen[..., CLICK_DEPART]
        shown = seen.sum(axis=2)
        misses = seen[..., STAY] + seen[..., DEPART]
        return (
            self._end(clicks, shown, 0.0),
            self._end(clicks, shown, 1.0),
            self._end(seen[..., DEPART], misses, 0.0),
            self._end(seen[..., CLICK_DEPART], clicks, 0.0),
        )

    def _end(self, yes: Integers, asked: Integers, end: float) -> Floats:
        """The end of the interval of a chance that is `end` where nothing is known."""
        bound = np.full(yes.shape, end)
        known = asked > 0
        if end == 0.0:
            known &= yes > 0
        n = asked[known]
        bound[known] = kl_end(yes[known] / n, self.room / n, end)
        return bound

    def _otherwise(self) -> int:
        """The category to show where nothing is known: the best if there was one type."""
        total = self.ledger.seen.sum(axis=0)
        clicks = total[:, CLICK] + total[:, CLICK_DEPART]
        leaves = total[:, DEPART] + total[:, CLICK_DEPART]
        return int(((clicks + 1) / (leaves + 1)).argmax())

    def _block(self) -> list[tuple[Policy, int]]:
        ledger, otherwise = self.ledger, self._otherwise()
        if not ledger.seen[0].any():
            return [(Fixed(otherwise), 1)]
        steps = np.arange(self.horizon, -1, -1)
        go = 1 - self.epsilon
        top = 1.0 if ledger.seen[..., CLICK_DEPART].any() else go  # who clicks stays, as far as anybody knows
        ceiling = top * (1 - go**steps) / self.epsilon
        order = np.argsort(-ledger.depth, kind="stable")
        least, most, depart, last = self.bounds()
        _, category = look_ahead(
            order, ledger.depth, ledger.child, least, np.minimum(most, top), depart, last, ceiling, otherwise
        )
        inside = ledger.depth < self.horizon
        counts = np.zeros((int(inside.sum()), self.n_categories, 4), np.int64)
        counts[..., CLICK : STAY + 1] = ledger.nodes[inside]
        policy = Table(counts, category[inside], Fixed(otherwise))
        return [(policy, next_block(self.arrived, self.growth))]

    def state(self) -> dict[str, Any]:
        """All that it takes to go on from here."""
        return super().state() | {
            "of_users": self.users,
            "seed": self.seed,
            "epsilon": self.epsilon,
            "horizon": self.horizon,
            "scale": self.scale,
            "growth": self.growth,
            "ledger": self.ledger.state(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "LatticeUCB":
        """A learner that goes on from a `state`."""
        options = {name: state[name] for name in ("seed", "epsilon", "horizon", "scale", "growth")}
        learner = cls(state["categories"], state["of_users"], **options)
        learner.restore(state)
        learner.ledger = TransitionCounts.from_state(learner.n_categories, state["ledger"])
        return learner
