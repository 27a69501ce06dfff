"""`compare`: two policies on common random numbers."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from departing.html_tables import html_repr
from departing.model import random_streams
from departing.model.counts import Integers, clicks
from departing.model.frames import to_frame
from departing.model.instance import CLICKS, DEPART, EXTENSIONS, Instance
from departing.model.sampling import sample_outcomes, sample_types
from departing.model.validation import MAX_USERS, check_instance, check_int, check_max_steps, check_seed
from departing.policy.library import PolicyLike, policy_for
from departing.policy.protocol import Policy, recommended
from departing.simulation.reference import Recommend, Users, UsersProgress
from departing.simulation.run import (
    Rewards,
    exact_total,
    merge_values,
    normal_interval,
    standard_error,
    user_rewards,
)
from departing.simulation.segments import SegmentPolicies, joined_instance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH_USERS = 2**16  # played together: amortises the cost of NumPy calls; the counts take 64 K bytes a user


@dataclass(frozen=True)
class Comparison:
    """Difference of the reward, by default the clicks, per user of two policies, on the same users.

    Attributes
    ----------
    users : int
        Number of users.
    first, second : float
        Reward per user of each policy.
    difference : float
        `first - second`.
    stderr : float
        Standard error of the difference.
    unpaired_stderr : float
        Standard error that the difference would have on different users.
    unit : str
        Unit of the reward.
    """

    users: int
    first: float
    second: float
    difference: float
    stderr: float
    unpaired_stderr: float
    unit: str = CLICKS

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the difference, by the normal approximation."""
        return normal_interval(self.difference, self.stderr, confidence)

    def describe(self) -> str:
        """Difference in one sentence."""
        low, high = self.interval()
        more = "more" if self.difference >= 0 else "fewer"
        more = more if self.unit == CLICKS else more.replace("fewer", "less")
        return (
            f"The first policy gets {abs(self.difference):.3g} {self.unit} per user {more} than the second "
            f"(95% interval of the difference {low:.3g} to {high:.3g})."
        )

    def summary(self) -> str:
        """Overview for printing: clicks per user of both policies and their difference."""
        low, high = self.interval()
        return "\n".join(
            [
                f"Users: {self.users:,}",
                f"{self.unit.capitalize()} per user of the first policy: {self.first:.6g}",
                f"{self.unit.capitalize()} per user of the second policy: {self.second:.6g}",
                f"Difference: {self.difference:.4g} ± {self.stderr:.2g} (95% interval {low:.4g} to {high:.4g})",
                f"Standard error on different users: {self.unpaired_stderr:.2g}",
            ]
        )

    __str__ = summary

    def to_frame(self) -> Any:
        """Return the comparison as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row: users, first, second, difference, stderr, unpaired_stderr, and the ends lower and upper of the
            95% interval of the difference.
        """
        lower, upper = self.interval()
        columns = vars(self) | {"lower": lower, "upper": upper}
        return to_frame({name: [value] for name, value in columns.items() if name != "unit"})

    def _repr_html_(self) -> str:
        low, high = self.interval()
        rows = [
            ["first policy", f"{self.first:.6g}", ""],
            ["second policy", f"{self.second:.6g}", ""],
            ["difference", f"{self.difference:.4g}", f"{low:.4g} to {high:.4g}"],
        ]
        return html_repr(self.describe(), [f"{self.users:,} users", f"{self.unit} per user", "95% interval"], rows)

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draw the difference with its 95% interval, on the same users and as it would be on different users.

        Parameters
        ----------
        path : path, optional
            File to write, ending in .svg, .png or .pdf.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from departing.plotting.figures import save
        from departing.simulation.plot import draw_comparison

        return save(draw_comparison(self), path)


def compare(
    instance: Instance,
    first: PolicyLike,
    second: PolicyLike,
    users: int = 10**6,
    seed: int = 0,
    *,
    max_steps: int | None = None,
    progress: UsersProgress | None = None,
) -> Comparison:
    """Compare two policies on the same users: the same segments and types, and the same random number at every step.

    Parameters
    ----------
    instance : Instance
        Users and categories.
    first, second : Policy, Plan or str
        Policies to compare, or their short forms such as "greedy" and "fixed:CATEGORY".
    users : int
        Number of users.
    seed : int
        Seed of all random numbers.
    max_steps : int, optional
        Number of steps after which users are truncated.
    progress : callable, optional
        Called with the number of users who finished since the last call.

    Returns
    -------
    Comparison
        Difference of the reward per user, with its standard error.

    Raises
    ------
    InputError
        If an argument is invalid.

    Examples
    --------
    >>> from departing.policy.schedule import Fixed, Threshold
    >>> blog = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]], depart=1.0)
    >>> result = compare(blog, Fixed(1), Threshold(first=1, steps=6, then=0), users=10**5)
    >>> result.stderr < result.unpaired_stderr / 10
    True
    """
    check_instance(instance, EXTENSIONS)
    users, seed = check_int("users", users, most=MAX_USERS), check_seed(seed)
    max_steps = check_max_steps(instance, max_steps)
    if instance.horizon is not None:
        max_steps = min(instance.horizon, instance.horizon if max_steps is None else max_steps)
    policies = [_by_user(policy_for(instance, policy), instance) for policy in (first, second)]
    sampled = instance if instance.segments is None else joined_instance(instance)
    empty = np.empty(0, np.int64)
    # Distinct returns of the first policy, of the second, and differences; with the number of users with each.
    samples: list[tuple[Rewards, Integers]] = [(empty, empty)] * 3
    for batch, start in enumerate(range(0, users, BATCH_USERS)):
        rng = np.random.default_rng([seed, random_streams.COMPARE, batch])
        pair = _play_pair(sampled, policies, min(BATCH_USERS, users - start), rng, max_steps)
        for i, new in enumerate((*pair, pair[0] - pair[1])):
            values, multiplicity = samples[i]
            samples[i] = merge_values([values, new], [multiplicity, np.ones_like(new)])
        if progress is not None:
            progress(pair.shape[1])
    means = [_total(*sample) / users for sample in samples]
    errors = [standard_error(*sample) for sample in samples]
    return Comparison(users, means[0], means[1], means[2], errors[2], math.hypot(*errors[:2]), instance.unit)


def _by_user(policy: Policy, instance: Instance) -> Recommend:
    """Recommendations of a policy by counts and, if the instance has segments, by segment."""
    if instance.segments is not None:
        return SegmentPolicies.of(instance, policy)
    return lambda users: recommended(policy, users.counts)


def _total(rewards: Rewards, users: Integers) -> float:
    """Sum of `rewards * users`, exact for clicks, otherwise without accumulated rounding errors."""
    return exact_total(rewards, users) if rewards.dtype.kind == "i" else math.fsum((rewards * users).tolist())


def _play_pair(
    instance: Instance,
    policies: Sequence[Recommend],
    n: int,
    rng: np.random.Generator,
    max_steps: int | None,
) -> Rewards:
    """Clicks or rewards `[2, n]` of n users under each policy, with one uniform number a user and step for both."""
    types = sample_types(instance, n, rng)
    counts = np.zeros((2, n, instance.n_categories, 4), np.int64)
    active = np.ones((2, n), bool)
    step = 0
    while active.any() and step != max_steps:
        either = np.flatnonzero(active.any(axis=0))
        uniforms = np.zeros(n)
        uniforms[either] = rng.random(len(either))
        for i, policy in enumerate(policies):
            rows = np.flatnonzero(active[i])
            categories = policy(Users(rows, types[rows], counts[i, rows]))
            outcomes = sample_outcomes(instance, categories, types[rows], uniforms[rows])
            counts[i, rows, categories, outcomes] += 1
            active[i, rows[outcomes >= DEPART]] = False
        step += 1
    if "reward" not in instance.extensions:
        return clicks(counts)
    return np.array([user_rewards(instance, each) for each in counts])
