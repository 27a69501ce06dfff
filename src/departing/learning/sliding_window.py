"""SlidingWindow: posterior sampling from the latest users, a baseline for users who change."""

from collections.abc import Sequence
from typing import Any, ClassVar

from departing.learning.base import Option
from departing.learning.bayes import AUTO, Bayes, check_types
from departing.learning.blocks import check_growth
from departing.model.instance import CLICKS
from departing.model.validation import MAX_USERS, check_int

WINDOW = 10_000  # default; no window suits all sites


class SlidingWindow(Bayes):
    """Assign new users the plans of posterior samples, given the latest users only.

    This is sliding-window Thompson sampling for the model of users and types.

    Parameters
    ----------
    types : int or "auto", default "auto"
        Number of types of the inferred instance.
    categories : int or sequence of str
        Number of categories, or their names.
    seed : int, default 0
        Seed of inference and of posterior sampling.
    window : int, default 10,000
        Number of users that count.
    growth : float, default 0.1
        Block size as a share of the users that count.
    reward, unit, horizon, segments
        As for `Bayes`.
    """

    kind = "sliding-window"
    options: ClassVar[dict[str, Option]] = {"types": check_types, "window": check_int, "growth": check_growth}

    def __init__(
        self,
        types: int | str = AUTO,
        categories: int | Sequence[str] = (),
        seed: int = 0,
        window: int = WINDOW,
        *,
        growth: float = 0.1,
        reward: Sequence[float] | None = None,
        unit: str = CLICKS,
        horizon: int | None = None,
        segments: int | Sequence[str] | None = None,
    ) -> None:
        self.window = check_int("window", window, 10, MAX_USERS)
        objective: dict[str, Any] = {"reward": reward, "unit": unit, "horizon": horizon, "segments": segments}
        super().__init__(types, categories, seed, "thompson", growth=growth, **objective)
