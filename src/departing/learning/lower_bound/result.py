"""RegretBound: a lower bound on the regret of every learner, with its certificate."""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from departing.evaluation.bounds import Bounds
from departing.formatting import format_clicks, format_count, format_percent, format_significant, text_table
from departing.html_tables import html_repr
from departing.learning.lower_bound.policies import PayingPolicy
from departing.model.counts import Integers
from departing.model.frames import to_frame
from departing.model.instance import Floats, Instance
from departing.policy.library import describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICY_COLUMNS = ("policy", "users", "loss per user", "cost", "nats per user")
MAX_POLICIES = 8  # in a printed overview


@dataclass(frozen=True, eq=False)
class ConfusingInstance:
    """Alternative that a learner has to tell from the instance.

    Attributes
    ----------
    instance : Instance
        The alternative.
    nats : float
        Divergence of the records of a run that a smaller regret requires, in nats.
    multiplier : float
        Cost of a nat, in clicks: the dual variable.
    weight, separation : float
        weight × gap + (1 - weight) × gap' ≥ separation for the losses per user of every policy on the instance and on
        the alternative, certified by planning.
    """

    instance: Instance
    nats: float
    multiplier: float
    weight: float
    separation: float


@dataclass(frozen=True)
class BoundCertificate:
    """Proof of a lower bound by weak duality.

    No policy has more than `priced` = max clicks + Σ multiplier × divergence per user, so a learner with the required
    divergences has a regret of at least `dual_value` = Σ multiplier × nats - users × (priced - optimum).

    Attributes
    ----------
    dual_value : float
        Regret on the instance that the claim implies, in clicks; at least the bound.
    users : int
        Number of users of the claim. A bound for fewer users holds for more.
    priced : float
        Upper bound over all policies, of any depth, in clicks per user, rounding included.
    optimum : Bounds
        Bounds on the value of the optimal policy; the proof uses the lower one.
    slack : float
        Estimate of the clicks that the bound loses because types are known at the leaves of the lattice.
    primal_value : float
        Bound over the policies of the linear programme only; no multipliers prove more for these alternatives.
    depth, nodes : int
        Depth and number of nodes of the lattice. Beyond it, upper bounds hold for every policy.
    """

    dual_value: float
    users: int
    priced: float
    optimum: Bounds
    slack: float
    primal_value: float
    depth: int
    nodes: int


@dataclass(frozen=True, eq=False)
class RegretBound:
    """Lower bound on the regret of every learner.

    Attributes
    ----------
    value : float
        The bound, in clicks of all users.
    users : int
        Number of users.
    share : float or None
        Share of the runs, or None if the bound is one of expected regret.
    budget : float or None
        Regret that is allowed on the alternatives; None if it is the bound itself.
    instance : Instance
        The true instance.
    certificate : BoundCertificate
    alternatives : tuple of ConfusingInstance
        Instances that a learner must tell from the true one, the most expensive first.
    policies : tuple of PayingPolicy
        Policies that pay for it in the cheapest allocation, the most expensive first.
    curve_users, curve : array [L]
        Numbers of users, and the bound with each; the last is `value`.
    searched : bool
        True if the alternatives were found by a local search, which may miss some; more alternatives would only make
        the bound larger.
    """

    value: float
    users: int
    share: float | None
    budget: float | None
    instance: Instance = field(repr=False)
    certificate: BoundCertificate = field(repr=False)
    alternatives: tuple[ConfusingInstance, ...] = field(repr=False)
    policies: tuple[PayingPolicy, ...] = field(repr=False)
    curve_users: Integers = field(repr=False)
    curve: Floats = field(repr=False)
    searched: bool = field(repr=False)

    def at(self, users: Any) -> Floats:
        """Bound with other numbers of users: that of the largest number up to it for which it was computed."""
        place = np.searchsorted(self.curve_users, np.asarray(users), side="right")
        return np.append(0.0, self.curve)[place]

    def describe(self) -> str:
        """State the bound in one sentence."""
        clicks, users = f"{format_clicks(self.value)} clicks", format_count(self.users, "user")
        if not self.alternatives:
            return f"No lower bound above 0 clicks was found for {users}."
        others = "the alternative" if len(self.alternatives) == 1 else f"{len(self.alternatives)} alternatives"
        runs = "" if self.share is None else f"{format_percent(self.share)} of its runs"
        if self.budget is None:
            below = f"keeps {runs} below {clicks} of" if runs else f"has less than {clicks} of expected"
            return f"No learner {below} regret with {users} both on the instance and on {others}."
        limit = f"at most {format_clicks(self.budget)} clicks"
        if runs:
            kept = f"A learner that keeps {runs} at {limit} of regret on {others}"
            return f"{kept} does not keep {runs} below {clicks} with {users} on the instance."
        kept = f"A learner with {limit} of expected regret on {others}"
        return f"{kept} loses at least {clicks} with {users} on the instance."

    def summary(self) -> str:
        """Overview in several lines: the bound, its certificate, alternatives and policies.

        Examples
        --------
        >>> from departing.learning.regret_bound import regret_bound
        >>> blog = Instance([1.0], [[0.5], [0.4]], categories=["economics", "sports"])
        >>> rival = Instance([1.0], [[0.5], [0.6]], categories=["economics", "sports"])
        >>> print(regret_bound(blog, 10**4, alternatives=[rival]).summary())
        No learner has less than 14 clicks of expected regret with 10,000 users both on the instance and on ...
          Proved by duality for all policies: dual value 14 clicks with 10,000 users, priced on 1,891 counts ...
        Alternatives (nats required, clicks per nat, loss per user that no policy avoids on both):
          1: 5.80 nats × 2.5 clicks, 0.2; click probability of sports 0.400 → 0.600
        Policies that pay:
          policy                      users  loss per user  cost  nats per user
          sports × 1, then economics     72            0.2    14         0.0811
        """
        lines = [self.describe()]
        if not self.alternatives:
            return lines[0]
        lines += [f"  {sentence}" for sentence in self.sentences()]
        lines.append("Alternatives (nats required, clicks per nat, loss per user that no policy avoids on both):")
        for i, each in enumerate(self.alternatives, 1):
            numbers = f"{each.nats:.2f} nats × {format_clicks(each.multiplier)} clicks"
            lines.append(
                f"  {i}: {numbers}, {format_significant(each.separation)}; {differences(self.instance, each)}"
            )
        lines.append("Policies that pay:")
        rows = self.rows()[:MAX_POLICIES]
        return "\n".join([*lines, *(f"  {line}" for line in text_table(POLICY_COLUMNS, rows).splitlines())])

    __str__ = summary

    def sentences(self) -> list[str]:
        """Sentences about what is proved and what is heuristic."""
        proof = self.certificate
        lattice = f"{format_count(proof.nodes, 'count')} of up to {proof.depth} steps"
        sentences = [
            f"Proved by duality for all policies: dual value {format_clicks(proof.dual_value)} clicks with "
            f"{format_count(proof.users, 'user')}, priced on {lattice} and bounded beyond.",
        ]
        if self.searched:
            sentences.append(
                "The alternatives were found by local search: others could make the bound larger, never smaller."
            )
        return sentences

    def rows(self) -> list[list[str]]:
        """Rows of a table, one per policy, in the order of `POLICY_COLUMNS`."""
        return [
            [
                describe(each.policy, self.instance),
                format_clicks(each.users),
                format_significant(each.gap),
                format_clicks(each.cost),
                ", ".join(format_significant(n) for n in each.nats),
            ]
            for each in self.policies
        ]

    def to_frame(self) -> Any:
        """Return the policies that pay as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row per policy: policy, users, gap (loss per user), cost, and nats_1, nats_2, … (information per user
            against each alternative).
        """
        columns: dict[str, Any] = {
            "policy": [describe(each.policy, self.instance) for each in self.policies],
            "users": [each.users for each in self.policies],
            "gap": [each.gap for each in self.policies],
            "cost": [each.cost for each in self.policies],
        }
        nats = {
            f"nats_{j + 1}": [float(each.nats[j]) for each in self.policies] for j in range(len(self.alternatives))
        }
        return to_frame(columns | nats)

    def to_dict(self) -> dict[str, Any]:
        """Return the bound, its certificate and its alternatives as JSON values."""
        proof = self.certificate
        return {
            "value": self.value,
            "users": self.users,
            "share": self.share,
            "budget": self.budget,
            "curve": [[int(n), float(b)] for n, b in zip(self.curve_users, self.curve, strict=True)],
            "dual_value": proof.dual_value,
            "certified_users": proof.users,
            "alternatives": [
                {
                    "instance": each.instance.to_dict(),
                    "nats": each.nats,
                    "multiplier": each.multiplier,
                    "weight": each.weight,
                    "separation": each.separation,
                }
                for each in self.alternatives
            ],
        }

    def _repr_html_(self) -> str:
        return html_repr(self.describe(), POLICY_COLUMNS, self.rows(), self.sentences() if self.alternatives else [])

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Plot the bound against the number of users, and what the policies cost.

        Parameters
        ----------
        path : path, optional
            File to write, ending in .svg, .png or .pdf.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from departing.learning.lower_bound.plot import draw_bound
        from departing.plotting.figures import save

        return save(draw_bound(self), path)


def differences(true: Instance, alternative: ConfusingInstance) -> str:
    """The largest change of a click probability in an alternative, in one phrase.

    >>> shop = Instance([1.0], [[0.5], [0.4]], categories=["news", "sport"])
    >>> differences(shop, ConfusingInstance(shop.replace(click=[[0.5], [0.6]]), 1.0, 1.0, 0.5, 0.1))
    'click probability of sport 0.400 → 0.600'
    """
    other = alternative.instance
    if other.click.shape != true.click.shape:
        return f"{format_count(other.n_types, 'type')} of users"
    a, x = np.unravel_index(np.abs(other.click - true.click).argmax(), true.click.shape)
    who = "" if true.n_types == 1 else f" ({true.types[x]})"
    return f"click probability of {true.categories[a]}{who} {true.click[a, x]:.3f} → {other.click[a, x]:.3f}"
