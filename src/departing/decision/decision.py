"""`Decision`: the policy to use, given a fit, and how sure that is."""

import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from departing.decision.claims import PolicyValue
from departing.fitting.fit import Fit
from departing.formatting import first_few, format_count, format_percent, format_share, format_significant
from departing.html_tables import html_repr
from departing.model.frames import to_frame
from departing.planning.plan import Plan
from departing.policy.files import write_policy
from departing.policy.library import describe
from departing.policy.protocol import Policy, policy_in_segment, recommended
from departing.policy.starts import Start, describe_policies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ESTIMATED_BY = "model"
IGNORING = "policy that ignores segments"
USE_SEGMENTS = "The recommended policy and greedy use the segment; the other policies do not depend on it."
ONE_TYPE = "One type of users suffices, so planning has nothing to gain over the best fixed category."
MAX_CATEGORIES = 5  # first categories, or segments, in a sentence


@dataclass(frozen=True)
class FirstCategory:
    """Probability that an optimal policy starts with a category.

    Attributes
    ----------
    category : str
        Name of the category.
    probability : float
        Share of the draws whose best policy starts with it.
    """

    category: str
    probability: float


@dataclass(frozen=True, eq=False)
class Candidate:
    """Policy that was compared.

    Attributes
    ----------
    policy : Policy
        The policy.
    first : str
        Category that it shows first; with segments, to the most users.
    value : float
        Mean over the draws, in expected reward per user.
    probability : float
        Share of the draws under which it is the best candidate.
    """

    policy: Policy
    first: str
    value: float
    probability: float


@dataclass(frozen=True, eq=False)
class Decision:
    """Recommended policy of a fit, with the uncertainty of the fit.

    Attributes
    ----------
    fit : Fit
        Fit that the decision is based on.
    policy : Policy
        Recommended policy: the candidate with the best mean over the draws.
    plan : Plan
        Optimal policy of the fitted instance, with certified bounds.
    first : tuple of FirstCategory
        Probability that each first category is optimal, in decreasing order. With segments it is the mean over the
        segments by share, so that several probabilities do not mean that the decision is uncertain; `by_segment` has
        the probabilities within each segment.
    candidates : tuple of Candidate
        Policies that were compared, the recommended one first.
    expected_loss : float
        Expected loss of the decision compared with the optimal policy, in reward per user: the expected value of
        perfect information.
    users_to_halve : int or None
        Further users in the log that would halve the expected loss; None if there is hardly any.
    values : tuple of PolicyValue
        Reward per user of the recommended policy, the policy of the log, the policy that ignores segments (if there
        are any), the best fixed policy and greedy, with 95% intervals. Greedy uses the segment too.
    gains : tuple of PolicyValue
        Gain of the recommended policy over each of the others, with 95% intervals.
    warnings : tuple of str
        Sentences about what the log does not determine.
    by_segment : dict of str to Decision
        Decision for each segment, if the fit has segments; the values above are then those of all users.
    starts : tuple of Start
        Segments by the category that their policies show first; empty without segments.
    """

    fit: Fit
    policy: Policy
    plan: Plan
    first: tuple[FirstCategory, ...]
    candidates: tuple[Candidate, ...] = field(repr=False)
    expected_loss: float
    users_to_halve: int | None
    values: tuple[PolicyValue, ...]
    gains: tuple[PolicyValue, ...]
    warnings: tuple[str, ...]
    by_segment: "dict[str, Decision]" = field(default_factory=dict, repr=False)
    starts: tuple[Start, ...] = field(default=(), repr=False)

    @property
    def value(self) -> PolicyValue:
        """Reward per user of the recommended policy, corrected for optimism, with a 95% interval."""
        return self.values[0]

    @property
    def unit(self) -> str:
        """Unit of the values: clicks by default."""
        return self.fit.instance.unit

    @property
    def allowed(self) -> tuple[int, ...]:
        """Indices of the categories that may be recommended."""
        return self.plan.allowed

    @property
    def estimated_by(self) -> str:
        """Source of the values: the fitted model. The value of the log's policy is observed."""
        return ESTIMATED_BY

    @property
    def one_type(self) -> bool:
        """True if one type of users suffices, so that planning has nothing to gain."""
        return self.fit.one_type

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recommended policy to a TOML or JSON file, which `load_policy` reads; see `Plan.save`."""
        write_policy(path, self.policy, self.fit.instance)

    def describe_policy(self) -> str:
        """Describe the recommended policy in one phrase, with the names of the categories."""
        if self.by_segment:
            return describe_policies((each.describe_policy() for each in self.by_segment.values()), self.starts)
        return describe(self.policy, self.fit.instance)

    def describe(self) -> str:
        """Describe the decision in one sentence."""
        value, interval = self.value.cells
        return (
            f"Recommended policy: {self.describe_policy()}. {value} {self.unit} per user (95% interval {interval})."
        )

    @property
    def first_probability(self) -> float:
        """Probability that the first category of the recommended policy is optimal; of segments the mean by share."""
        if self.by_segment:
            return sum(share * each.first_probability for _, share, each in self.segments)
        own = self.candidates[0].first
        return next((each.probability for each in self.first if each.category == own), 0.0)

    @property
    def first_if_unknown(self) -> str:
        """Category that users of unknown segment are shown first."""
        instance = self.fit.instance
        start = np.zeros((1, instance.n_categories, 4), np.int64)
        return instance.categories[int(recommended(policy_in_segment(self.policy, None), start)[0])]

    @property
    def segments(self) -> "list[tuple[str, float, Decision]]":
        """Name, share of users and decision of each segment, that with the most users first."""
        own = self.fit.instance.segments
        if not self.by_segment or own is None:
            return []
        share = dict(zip(own.names, (own.share / own.share.sum()).tolist(), strict=True))
        return sorted(((name, share[name], each) for name, each in self.by_segment.items()), key=lambda row: -row[1])

    @property
    def sentences(self) -> tuple[str, ...]:
        """The policy and its value, the probabilities of first categories, and the expected loss, as sentences."""
        likely = [each for each in self.first if each.probability > 0]
        shown = [f"{each.category} {format_percent(each.probability)}" for each in likely]
        if self.by_segment:
            shown = [
                f"{each.candidates[0].first} in {name} {format_percent(each.first_probability)}"
                for name, _, each in self.segments
            ]
        first = f"Probability that the first category is optimal: {first_few(shown, MAX_CATEGORIES)}."
        if self.candidates[0].first != likely[0].category and not self.by_segment:
            first += f" {self.candidates[0].first} is recommended because it loses less where it is not optimal."
        loss = f"Expected loss of the decision: {format_significant(self.expected_loss)} {self.unit} per user"
        if self.users_to_halve is not None:
            loss += f"; {format_count(self.users_to_halve, 'more user')} would halve it"
        return (
            self.describe(),
            first,
            f"{loss}.",
            *([ONE_TYPE] if self.one_type and not self.fit.hidden_types else []),
        )

    def rows(self) -> list[list[str]]:
        """Rows of a table: policy, value and interval; gain of the recommended policy over it and interval."""
        gain_over = {gain.name: gain.cells for gain in self.gains}
        return [[value.name, *value.cells, *gain_over.get(value.name, ["", ""])] for value in self.values]

    def summary(self) -> str:
        """Overview in several lines: policy, value, first categories, expected loss, gains, warnings."""
        width = max(24, *(len(each.name) for each in self.values))
        lines = [*self.sentences, f"{'policy':{width}}  {self.unit + ' per user':>28}  {'gain over it':>28}"]
        for name, value, interval, gain, gain_interval in self.rows():
            cells = f"{value} ({interval})", f"{gain} ({gain_interval})" if gain else ""
            lines.append(f"{name:{width}}  {cells[0]:>28}  {cells[1]:>28}".rstrip())
        if self.by_segment:
            lines.append(USE_SEGMENTS)
            lines.append("By segment:")
        for segment, share, decision in self.segments:
            value, interval = decision.value.cells
            first = f"first {decision.candidates[0].first} ({format_percent(decision.first_probability)})"
            text = f"{format_share(share):>4} of users  {value} {self.unit} per user ({interval}), {first}"
            lines.append(f"  {segment:22}  {text}")
        if self.by_segment:
            lines.append(f"  {'unknown segment':22}  first {self.first_if_unknown}")
        return "\n".join([*lines, *(f"Warning: {warning}" for warning in self.warnings)])

    __str__ = summary

    def to_frame(self) -> Any:
        """Return the values and gains as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each policy, the recommended one first: policy, value, lower, upper, and the gain of the
            recommended policy over it, gain, gain_lower, gain_upper (NaN for itself).
        """
        ends, gains = ("value", "lower", "upper"), {gain.name: gain for gain in self.gains}
        columns: dict[str, Any] = {"policy": [each.name for each in self.values]}
        for end in ends:
            columns[end] = [getattr(each, end) for each in self.values]
        for end, name in zip(ends, ("gain", "gain_lower", "gain_upper"), strict=True):
            columns[name] = [getattr(gains.get(each.name), end, math.nan) for each in self.values]
        return to_frame(columns)

    def _repr_html_(self) -> str:
        head = ["policy", f"{self.unit} per user", "95% interval", "gain over it", "95% interval"]
        return html_repr(self.sentences[0], head, self.rows(), [*self.sentences[1:], *self.warnings])

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Plot the probability that each first category is optimal, and the values of the policies.

        Parameters
        ----------
        path : path, optional
            File to write, ending in .svg, .png or .pdf.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from departing.decision.plot import draw_decision
        from departing.plotting.figures import save

        return save(draw_decision(self), path)

    def __repr__(self) -> str:
        return f"<Decision: {self.describe()}>"
