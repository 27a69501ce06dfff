"""Two policies on common random numbers."""

import math
from dataclasses import dataclass

import numpy as np

from departing.model.counts import Integers, clicks
from departing.model.instance import DEPART, Instance
from departing.model.validation import MAX_USERS, check_instance, check_int, check_max_steps, check_seed
from departing.policy.protocol import Policy, recommended, resolve_policy
from departing.simulation.reference import draw_outcomes, draw_types
from departing.simulation.run import Progress, add_up, normal_interval, standard_error, total

BATCH = 2**16


@dataclass(frozen=True)
class Comparison:
    """How many more clicks per user the first policy brings than the second, on the same users.

    `stderr` is the standard error of `difference`; `unpaired_stderr` what it would be on different users.
    """

    users: int
    first: float
    second: float
    difference: float
    stderr: float
    unpaired_stderr: float

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The confidence interval of the difference, by the normal approximation."""
        return normal_interval(self.difference, self.stderr, confidence)


def compare(
    instance: Instance,
    first: Policy,
    second: Policy,
    users: int = 10**6,
    seed: int = 0,
    *,
    max_steps: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Play the same users under both policies: the same types, and the same luck at every step.

    >>> from departing.policy.schedule import Fixed, Threshold
    >>> blog = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]], depart=1.0)
    >>> result = compare(blog, Fixed(1), Threshold(first=1, steps=6, then=0), users=10**5)
    >>> result.stderr < result.unpaired_stderr / 10
    True
    """
    check_instance(instance)
    users, seed = check_int("users", users, most=MAX_USERS), check_seed(seed)
    max_steps = check_max_steps(instance, max_steps)
    first, second = (resolve_policy(policy, instance.categories) for policy in (first, second))
    none = np.empty(0, np.int64)
    seen = [(none, none)] * 3  # how often each return of the first, of the second, and each difference occurred
    for batch, start in enumerate(range(0, users, BATCH)):
        rng = np.random.default_rng([seed, 5, batch])
        one, two = _play_pair(instance, (first, second), min(BATCH, users - start), rng, max_steps)
        for i, new in enumerate((one, two, one - two)):
            values, times = seen[i]
            seen[i] = add_up([values, new], [times, np.ones_like(new)])
        if progress is not None:
            progress(len(one))
    means = [total(values, times) / users for values, times in seen]
    errors = [standard_error(values, times) for values, times in seen]
    return Comparison(users, means[0], means[1], means[2], errors[2], math.hypot(*errors[:2]))


def _play_pair(
    instance: Instance,
    policies: tuple[Policy, Policy],
    n: int,
    rng: np.random.Generator,
    max_steps: int | None,
) -> Integers:
    """The clicks `[2, n]` of n users under either policy, one uniform number a user and step for both."""
    cumulative = instance.outcome_probabilities.cumsum(axis=1)[:, :3]
    types = draw_types(instance, n, rng)
    counts = np.zeros((2, n, instance.n_categories, 4), np.int64)
    here = np.ones((2, n), bool)
    step = 0
    while here.any() and step != max_steps:
        someone = np.flatnonzero(here.any(axis=0))
        uniforms = np.zeros(n)
        uniforms[someone] = rng.random(len(someone))
        for i, policy in enumerate(policies):
            rows = np.flatnonzero(here[i])
            categories = recommended(policy, counts[i, rows])
            outcomes = draw_outcomes(cumulative, categories, types[rows], uniforms[rows])
            counts[i, rows, categories, outcomes] += 1
            here[i, rows[outcomes >= DEPART]] = False
        step += 1
    return clicks(counts)
