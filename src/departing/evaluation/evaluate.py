"""`evaluate`: exact value of a policy under an instance."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from departing.evaluation.bounds import ROUNDING, UNDERFLOW, Bounds
from departing.evaluation.closed_form import schedule_values
from departing.evaluation.departures import Departures, new_departures
from departing.evaluation.forward import departure_distribution, forward_pass
from departing.formatting import format_limit, format_significant
from departing.html_tables import html_repr
from departing.model.frames import to_frame
from departing.model.instance import CLICK, EXTENSIONS, STAY, Floats, Instance
from departing.model.validation import check_float, check_instance, check_int
from departing.policy.alpha import Alpha
from departing.policy.library import PolicyLike, policy_for
from departing.policy.protocol import Policy, policy_in_segment
from departing.policy.schedule import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Nodes expanded at most, times the number of categories: some seconds of work, and well below 1 GB.
MAX_NODES = 10**7


@dataclass(frozen=True, eq=False)
class Distribution:
    """Distribution of the clicks and steps of one user, joint with the user's type.

    Every array is weighted by the prior, so that sums over types are probabilities.

    Attributes
    ----------
    returns_by_type : array [C, M]
        Probability of type x and finishing, by departing or at the horizon, after c clicks.
    steps_by_type : array [N, M]
        Probability of type x and finishing at step n.
    survival_by_type : array [N, M]
        Probability of type x and being active after n steps.
    remaining : float
        Probability of all that was not followed to the end: the total error of each of the arrays.
    """

    returns_by_type: Floats
    steps_by_type: Floats
    survival_by_type: Floats
    remaining: float

    @property
    def returns(self) -> Floats:
        """Probability of every number of clicks, `[C]`."""
        return np.asarray(self.returns_by_type.sum(axis=1))

    @property
    def steps(self) -> Floats:
        """Probability of every number of steps, `[N]`."""
        return np.asarray(self.steps_by_type.sum(axis=1))

    @property
    def survival(self) -> Floats:
        """Probability of being active after every number of steps, `[N]`."""
        return np.asarray(self.survival_by_type.sum(axis=1))


@dataclass(frozen=True)
class Evaluation(Bounds):
    """Exact value of a policy: bounds on the expected reward per user, which is the expected clicks by default.

    Attributes
    ----------
    lower, upper : float
        Bounds on the expected reward of one user in `instance.unit`, rounding errors included. With segments they are
        those of all users.
    by_type : tuple of Bounds
        The same for a user of each type.
    by_segment : dict of str to Evaluation
        The same for the users of each segment, if the instance has segments.
    instance : Instance
    policy : Policy
    distribution : Distribution
        Distribution of clicks and steps; computed when it is first read.
    """

    by_type: tuple[Bounds, ...]
    instance: Instance = field(repr=False)
    policy: Policy = field(repr=False)
    target_gap: float = field(repr=False)
    max_nodes: int = field(repr=False)
    by_segment: dict[str, "Evaluation"] = field(default_factory=dict, repr=False)

    @property
    def unit(self) -> str:
        """Unit of the value."""
        return self.instance.unit

    @cached_property
    def distribution(self) -> Distribution:
        """Distribution of clicks and steps, followed until at most `gap` of the users remain."""
        return distribution(self.instance, self.policy, self.target_gap, self.max_nodes)

    def describe(self) -> str:
        """Value of the policy in one sentence.

        Examples
        --------
        >>> from departing.policy.schedule import Fixed
        >>> site = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]], depart=1.0)
        >>> evaluate(site, Fixed(0)).describe()
        'A user clicks 0.633333 times on average.'
        """
        error = f" (± {format_limit(self.gap / 2)})" if self.gap > 1e-6 * self.upper else ""
        if "reward" in self.instance.extensions:
            return f"Expected reward of {self.value:.6g} {self.unit} per user{error}."
        return f"A user clicks {self.value:.6g} times on average{error}."

    def summary(self) -> str:
        """Overview for printing: the value, its gap and the value of each type."""
        lines = [f"Expected {self.unit} per user: {self.value:.6g} (gap {format_limit(self.gap)})"]
        if len(self.by_type) > 1:
            for name, share, bounds in zip(self.instance.types, self.instance.prior, self.by_type, strict=True):
                lines.append(f"  type {name} ({share:.3g} of users): {bounds.value:.6g}")
        for (name, value), share in zip(self.by_segment.items(), segment_shares(self.instance), strict=True):
            lines.append(f"  segment {name} ({share:.3g} of users): {value.value:.6g}")
        return "\n".join(lines)

    __str__ = summary

    def to_frame(self) -> Any:
        """Return the value by type as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each type: type, share, value, lower, upper. With segments one row for each type of each
            segment, with the name in a column segment and the share of all users.
        """
        parts = self.by_segment or {"": self}
        shares = segment_shares(self.instance).tolist() or [1.0]
        rows = [
            (segment, name, share * own, bounds.value, bounds.lower, bounds.upper)
            for (segment, part), share in zip(parts.items(), shares, strict=True)
            for name, own, bounds in zip(part.instance.types, part.instance.prior, part.by_type, strict=True)
        ]
        names = ("segment", "type", "share", "value", "lower", "upper")
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        if not self.by_segment:
            del columns["segment"]
        return to_frame(columns)

    def _repr_html_(self) -> str:
        rows = [
            [name, f"{share:.0%}", format_significant(bounds.value)]
            for name, share, bounds in zip(self.instance.types, self.instance.prior, self.by_type, strict=True)
        ]
        return html_repr(self.describe(), ["type", "share of users", f"{self.unit} per user"], rows)

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draw the distribution of clicks and the survival curve by type.

        Parameters
        ----------
        path : path, optional
            File to write, ending in .svg, .png or .pdf.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from departing.evaluation.plot import draw_distribution
        from departing.plotting.figures import save

        return save(draw_distribution(self), path)


def evaluate(instance: Instance, policy: PolicyLike, gap: float = 1e-9, max_nodes: int | None = None) -> Evaluation:
    """Compute the exact value of a policy, its expected clicks or reward per user, as bounds.

    Schedules (Fixed, Threshold, Walk) have a closed form, also with rewards and a horizon. Every other policy is
    followed through the count graph until the bounds are at most `gap` apart. The policy of a plan under its own
    instance also has the plan's bounds: they are the tighter ones where users stay long, and hold for the value,
    not for the values by type.

    Parameters
    ----------
    instance : Instance
        Users and categories. If it has segments, the policy of each is evaluated for its users, and the value is that
        of all users, by the shares of the segments. If it has none, all users get the policy for unknown segments.
    policy : Policy, Plan or str
        Any object with a method `recommend(counts)`, or a short form: "greedy", "fixed:CATEGORY",
        "threshold:FIRST,STEPS,THEN", "walk:C,C,…,THEN", or the path of a saved policy.
    gap : float
        Largest difference of the bounds, in the unit of the value.
    max_nodes : int, optional
        Largest number of nodes (distinct counts) to expand, for each segment. Then the bounds reached so far are
        returned, valid but wider than `gap`.
        [default: 10⁷ divided by the number of categories]

    Returns
    -------
    Evaluation
        Bounds on the value, overall and by type, and the distribution of clicks and steps.

    Raises
    ------
    InputError
        If an argument is invalid, or the policy was made for other categories or for other segments only.

    Examples
    --------
    >>> from departing.policy.schedule import Fixed, Threshold
    >>> blog = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]], depart=1.0)
    >>> round(evaluate(blog, Fixed(0)).value, 10)
    0.6333333333
    >>> round(evaluate(blog, Threshold(first=1, steps=6, then=0)).value, 10)
    0.6502905844
    """
    check_instance(instance, EXTENSIONS)
    policy = policy_for(instance, policy)
    gap = check_float("gap", gap, 0.0, np.inf)
    max_nodes = MAX_NODES // instance.n_categories + 1 if max_nodes is None else check_int("max_nodes", max_nodes)
    if instance.segments is None:
        return _evaluate(instance, policy, gap, max_nodes)
    parts = {
        name: _evaluate(instance.in_segment(name), policy_in_segment(policy, name), gap, max_nodes)
        for name in instance.segments.names
    }
    return _mixed(instance, policy, parts, gap, max_nodes)


def _evaluate(instance: Instance, policy: Policy, gap: float, max_nodes: int) -> Evaluation:
    """`evaluate` of a resolved policy under an instance without segments."""
    known = (0.0, np.inf)  # bounds of the value of an average user that do not follow from those by type
    if isinstance(policy, Schedule):
        lower, upper = schedule_values(instance, policy)
    else:
        lower, upper, known_lower = forward_pass(instance, policy, gap, max_nodes)
        known = known_lower, np.inf
        if isinstance(policy, Alpha) and policy.upper is not None and policy.instance == instance:
            known = known_lower, policy.upper
    by_type = tuple(Bounds(float(low), float(high)) for low, high in zip(lower, upper, strict=True))
    prior = instance.normalised_prior
    low, high = float(prior @ lower), float(prior @ upper)
    # Roundings: M in the normalised prior (M - 1 additions, a quotient), M in the products and their sum, 4 here.
    rounding, underflow = (2 * instance.n_types + 4) * ROUNDING, UNDERFLOW * 2 * instance.n_types
    low, high = max(low, known[0]) * (1 - rounding) - underflow, high * (1 + rounding) + underflow
    low = max(low, 0.0)
    high = max(min(high, known[1]), low)
    return Evaluation(low, high, by_type, instance, policy, gap, max_nodes)


def segment_shares(instance: Instance) -> Floats:
    """Shares of the segments of an instance, `[S]`: they sum to 1 up to rounding; empty without segments."""
    if instance.segments is None:
        return np.zeros(0)
    return np.asarray(instance.segments.share / instance.segments.share.sum())


def _mixed(
    instance: Instance, policy: Policy, parts: dict[str, Evaluation], gap: float, max_nodes: int
) -> Evaluation:
    """Evaluation for the users of all segments, from one for each."""
    assert instance.segments is not None
    share = segment_shares(instance)
    priors = np.array([part.instance.normalised_prior for part in parts.values()])
    joint = share[:, None] * priors  # of segment and type, [S, M]
    totals = joint.sum(axis=0)
    by_type = np.where(totals > 0, joint / np.where(totals > 0, totals, 1.0), share[:, None])  # P(segment | type)
    # Roundings: S in the shares, M in the priors, S in their sum, S in the products and their sum, 8 in the rest.
    rounding = (4 * len(share) + 2 * instance.n_types + 8) * ROUNDING
    ends = []
    for end, factor in (("lower", 1 - rounding), ("upper", 1 + rounding)):
        values = np.array([getattr(part, end) for part in parts.values()])
        types = np.array([[getattr(bounds, end) for bounds in part.by_type] for part in parts.values()])
        ends.append((float(share @ values) * factor, (by_type * types).sum(axis=0) * factor))
    (low, lower), (high, upper) = ends
    bounds = tuple(Bounds(float(least), float(most)) for least, most in zip(lower, upper, strict=True))
    return Evaluation(low, high, bounds, instance, policy, gap, max_nodes, parts)


def distribution(instance: Instance, policy: Policy, gap: float, max_nodes: int | None = None) -> Distribution:
    """Distribution of clicks and steps under a resolved policy, followed until at most `gap` of the users remain."""
    if instance.segments is not None:
        names = instance.segments.names
        parts = [distribution(instance.in_segment(s), policy_in_segment(policy, s), gap, max_nodes) for s in names]
        return _mixed_distribution(parts, segment_shares(instance))
    max_nodes = MAX_NODES // instance.n_categories + 1 if max_nodes is None else max_nodes
    if isinstance(policy, Schedule):
        departures, remaining = _schedule_distribution(instance, policy, gap, max_nodes)
    else:
        departures, remaining = departure_distribution(instance, policy, gap, max_nodes)
    prior = instance.normalised_prior
    returns = departures.returns[: int(np.argwhere(departures.returns)[:, 0].max(initial=0)) + 1]
    return Distribution(returns * prior, departures.steps * prior, departures.survival * prior, remaining)


def _mixed_distribution(parts: Sequence[Distribution], shares: Floats) -> Distribution:
    """Distribution for the users of all segments."""

    def mixed(name: str) -> Floats:
        arrays = [getattr(part, name) for part in parts]
        total = np.zeros((max(map(len, arrays)), arrays[0].shape[1]))
        for share, array in zip(shares, arrays, strict=True):
            total[: len(array)] += share * array
        return total

    remaining = float(shares @ [part.remaining for part in parts])
    return Distribution(mixed("returns_by_type"), mixed("steps_by_type"), mixed("survival_by_type"), remaining)


def _schedule_distribution(
    instance: Instance, policy: Schedule, gap: float, max_nodes: int
) -> tuple[Departures, float]:
    """`departure_distribution` of a schedule, which ignores the counts: users differ by type and clicks only."""
    departures = new_departures(instance)
    active = np.ones((1, instance.n_types))  # [clicks so far, M]
    expanded, ends = 0, np.append(np.cumsum([n for _, n in policy.phases]), np.inf)
    for step in count():
        survival = active.sum(axis=0)
        if step == instance.horizon:
            departures.end(np.arange(len(active)), active)
            return departures, departures.finish(gap, np.zeros(instance.n_types))
        category = int(policy.phase_categories[np.searchsorted(ends, step, side="right")])
        categories, clicks = np.full(len(active), category), np.arange(len(active))
        if step >= ends[:-1].max(initial=0):
            departures.commit(clicks, categories, active)
            return departures, departures.finish(gap, np.zeros(instance.n_types))
        if instance.prior @ survival <= gap or expanded >= max_nodes:
            departures.add_level(clicks[:0], categories[:0], active[:0], survival)
            return departures, departures.finish(gap, survival)
        departures.add_level(clicks, categories, active)
        expanded += len(active)
        probabilities = instance.outcome_probabilities[category]
        moved = np.zeros((len(active) + 1, instance.n_types))
        moved[1:] = active * probabilities[CLICK]
        moved[:-1] += active * probabilities[STAY]
        active = moved
    raise AssertionError("A schedule has a last phase.")
