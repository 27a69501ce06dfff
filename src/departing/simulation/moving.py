"""Simulation of a site that changes: piece by piece, with regret against the optimal policy of every piece."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from departing.evaluation.bounds import Bounds
from departing.learning.base import LearnerBase
from departing.model import random_streams
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.instance import Floats, Instance
from departing.model.non_stationary import NonStationaryInstance, Piece
from departing.planning.plan import REFERENCE_NODES, plan_within
from departing.planning.problem import PlanningProblem
from departing.simulation.regret_curve import PolicySegment, RegretCurve, log_checkpoints, regret_gap, regret_scale
from departing.simulation.run import Run, merge_values
from departing.simulation.run_record import RegretProgress

LINEAR_CHECKPOINTS = 100  # besides those on the log scale: enough to see every change of a site on a linear axis
Simulate = Callable[..., Run]


@lru_cache(maxsize=1024)
def piece_optimum(instance: Instance, allowed: tuple[int, ...] | None, users: int) -> Bounds:
    """Bounds on the value of the optimal policy of a piece, precise enough for the regret of `users` users."""
    gap, mix = regret_scale(instance) * regret_gap(users), instance.segments
    if mix is None:
        best = plan_within(PlanningProblem(instance, allowed), gap, REFERENCE_NODES)
        return Bounds(best.lower, best.upper)
    parts = [piece_optimum(instance.in_segment(name), allowed, users) for name in mix.names]
    share = mix.share / mix.share.sum()
    return Bounds(*(float(share @ [getattr(part, end) for part in parts]) for end in ("lower", "upper")))


def site_optimum(site: NonStationaryInstance, users: int) -> Bounds:
    """Bounds on the mean value of the optimal policies of the pieces in which the first `users` users arrive."""
    pieces = list(site.pieces(users))
    share = np.array([piece.users for piece in pieces]) / users
    optima = [piece_optimum(piece.instance, piece.allowed, users) for piece in pieces]
    return Bounds(*(float(share @ [getattr(each, end) for each in optima]) for end in ("lower", "upper")))


def site_fixed_value(site: NonStationaryInstance, users: int) -> float:
    """Return the mean value of the best fixed categories of the pieces."""
    return sum(piece.users * piece_fixed_value(piece) for piece in site.pieces(users)) / users


def piece_fixed_value(piece: Piece) -> float:
    """Value of the best fixed category among those of a piece that are available."""
    values = piece.instance.fixed_values @ piece.instance.normalised_prior
    return float(values[slice(None) if piece.allowed is None else list(piece.allowed)].max())


@dataclass(frozen=True, eq=False)
class MovingRegretCurve(RegretCurve):
    """Regret curve of a site that changes: against the optimal policy of the piece in which each user arrives.

    Attributes
    ----------
    parts : tuple of RegretCurve
        Curves of the pieces.
    fixed_values : tuple of float
        Value of the best available fixed category of every piece.
    """

    parts: tuple[RegretCurve, ...] = ()
    fixed_values: tuple[float, ...] = ()

    @classmethod
    def join(cls, parts: Sequence[RegretCurve], pieces: Sequence[Piece]) -> "MovingRegretCurve":
        """Curve of consecutive pieces."""
        sizes = [len(part.checkpoints) for part in parts]
        firsts = np.cumsum([0, *sizes[:-1]]).tolist()
        segments: list[PolicySegment] | None = None
        if all(part.policy_segments is not None for part in parts):
            segments = [
                PolicySegment(first + each.interval, each.policy, each.users)
                for first, part in zip(firsts, parts, strict=True)
                for each in part.policy_segments or ()
            ]
        checkpoints = _cumulative([part.checkpoints for part in parts])
        clicks = _cumulative([part.clicks for part in parts])
        known = [part.rewards for part in parts if part.rewards is not None]
        rewards = _cumulative(known) if known else None
        fixed = tuple(piece_fixed_value(piece) for piece in pieces)
        fields: dict[str, Any] = {"rewards": rewards, "parts": tuple(parts), "fixed_values": fixed}
        return cls(parts[-1].instance, checkpoints, clicks, segments, **fields)

    @property
    def changes(self) -> list[int]:
        """Numbers of users at which the site changed."""
        return [int(end) for end in np.cumsum([part.checkpoints[-1] for part in self.parts])[:-1]]

    @cached_property
    def optimum(self) -> Bounds:
        """Bounds on the mean value of the optimal policies of the pieces."""
        users = np.array([part.checkpoints[-1] for part in self.parts])
        share = users / users.sum()
        return Bounds(
            *(float(share @ [getattr(part.optimum, end) for part in self.parts]) for end in ("lower", "upper"))
        )

    @cached_property
    def expected_clicks(self) -> Floats:
        """Expected clicks of the users up to each checkpoint, by the exact values of their policies, `[C]`."""
        return np.asarray(_cumulative([part.expected_clicks for part in self.parts]))

    @cached_property
    def segment_values(self) -> list[float]:
        """Exact value of the policy of every segment, in the piece of its users."""
        return [value for part in self.parts for value in part.segment_values]

    @property
    def segment_losses(self) -> list[float]:
        """Loss per user of the policy of every segment, against the optimal policy of its piece."""
        return [loss for part in self.parts for loss in part.segment_losses]

    def instance_at(self, interval: int) -> Instance:
        """Instance of the users in the interval before a checkpoint."""
        ends = np.cumsum([len(part.checkpoints) for part in self.parts])
        return self.parts[int(np.searchsorted(ends, interval, side="right"))].instance

    @property
    def fixed_regret(self) -> Floats:
        """Expected regret of the best fixed category of every piece up to each checkpoint, `[C]`."""
        parts = zip(self.parts, self.fixed_values, strict=True)
        return np.asarray(_cumulative([part.checkpoints * (part.optimum.value - value) for part, value in parts]))

    @property
    def regret(self) -> Floats:
        """Expected regret up to each checkpoint, `[C]`, against the optimal policy of every piece."""
        return np.asarray(_cumulative([part.regret for part in self.parts]))

    @property
    def realised_regret(self) -> Floats:
        """Realised regret up to each checkpoint, `[C]`, against the optimal policy of every piece."""
        return np.asarray(_cumulative([part.realised_regret for part in self.parts]))


def _cumulative(parts: Sequence[Any]) -> Any:
    """Cumulative curves of consecutive pieces as one."""
    total, joined = 0, []
    for part in parts:
        joined.append(part + total)
        total = joined[-1][-1]
    return np.concatenate(joined)


def simulate_site(
    site: NonStationaryInstance,
    policy: Any,
    users: int,
    seed: int,
    simulate: Simulate,
    regret_progress: RegretProgress | None,
    **options: Any,
) -> Run:
    """Simulate the pieces of a site one after another.

    All users of a piece finish before those of the next one arrive, so that every user keeps the behaviour of the
    piece. A learner is informed of changes of the catalogue, and of nothing else.
    """
    learns = hasattr(policy, "observe")
    if not learns and not site.constant_catalogue:
        raise InputError("The categories of the site change, which a policy does not know; expected a learner.")
    pieces = list(site.pieces(users))
    runs: list[Run] = []
    regret = 0.0
    for i, piece in enumerate(pieces):
        if learns:
            _change_catalogue(policy, piece)
            if regret_progress is not None:
                if runs:
                    curve = runs[-1].regret_curve
                    regret += float((curve.realised_regret if curve.policy_segments is None else curve.regret)[-1])
                options["regret_progress"] = partial(_report, regret_progress, piece.start, regret)
            options["checkpoints"] = _checkpoints(piece, users, len(pieces))
        optimum = piece_optimum(piece.instance, piece.allowed, users) if learns else None
        run = simulate(piece.instance, policy, piece.users, _piece_seed(seed, i), optimum=optimum, **options)
        runs.append(run)
    return _joined(runs, pieces, seed)


def _report(progress: RegretProgress, start: int, before: float, users: int, regret: float) -> None:
    progress(start + users, before + regret)


def _piece_seed(seed: int, piece: int) -> int:
    """Seed of a piece; that of the first one is `seed`, so that a site of one piece equals its instance."""
    if piece == 0:
        return seed
    return int(np.random.SeedSequence([seed, random_streams.PIECES, piece]).generate_state(1, np.uint64)[0])


def _checkpoints(piece: Piece, users: int, pieces: int) -> Integers | None:
    """Checkpoints of a piece, counted from its start; None for those of a stationary run."""
    if pieces == 1:
        return None
    linear = np.arange(1, LINEAR_CHECKPOINTS + 1) * users // LINEAR_CHECKPOINTS
    inside = np.union1d(log_checkpoints(users), linear) - piece.start
    return np.union1d(inside[(inside > 0) & (inside < piece.users)], [piece.users]).astype(np.int64)


def _change_catalogue(agent: Any, piece: Piece) -> None:
    """Add and retire the categories that are new or gone in a piece."""
    learner: Any = agent
    if not isinstance(learner, LearnerBase):
        if piece.allowed is not None:
            raise InputError("The categories of the site change; expected a learner with add_category.")
        return
    names = piece.instance.categories
    for index in range(learner.n_categories, len(names)):
        if "reward" in piece.instance.extensions:
            learner.add_category(names[index], reward=float(piece.instance.reward[index]))
        else:
            learner.add_category(names[index])
    retired = set(getattr(learner, "retired", ()))
    available = range(len(names)) if piece.allowed is None else piece.allowed
    for category in sorted(retired & set(available)):
        learner.add_category(learner.category_names[category])
    for category in sorted(set(range(len(names))) - set(available) - retired):
        learner.retire_category(category)


def _joined(runs: Sequence[Run], pieces: Sequence[Piece], seed: int) -> Run:
    if len(runs) == 1:
        return runs[0]
    returns = merge_values([run.returns for run in runs], [run.returns_users for run in runs])
    return Run(
        steps=sum(run.steps for run in runs),
        truncated=sum(run.truncated for run in runs),
        engine=", ".join(sorted({run.engine for run in runs})),
        seed=seed,
        returns=returns[0],
        returns_users=returns[1],
        regret_curve=MovingRegretCurve.join([run.regret_curve for run in runs], pieces),
        _count_histories=partial(_join_histories, runs),
    )


def _join_histories(runs: Sequence[Run]) -> Histories:
    """Histories of all pieces; a user was not shown the categories that came later."""
    parts = [run.histories for run in runs]
    k = runs[-1].regret_curve.instance.n_categories
    counts = [np.pad(part.counts, ((0, 0), (0, k - part.counts.shape[1]), (0, 0))) for part in parts]
    fields: dict[str, Any] = {}
    names = tuple(dict.fromkeys(name for part in parts for name in part.segments or ()))
    if names:
        fields = {"segments": names, "segment_columns": next(part.segment_columns for part in parts if part.segments)}
        fields["segment"] = np.concatenate([_segment_indices(part, names) for part in parts])
    multiplicity = np.concatenate([part.multiplicity for part in parts])
    return Histories(np.concatenate(counts), multiplicity, **fields).distinct


def _segment_indices(part: Histories, names: Sequence[str]) -> Integers:
    """Segment of every row as an index into `names`, -1 if it is unknown."""
    if part.segment is None or part.segments is None:
        return np.full(len(part), -1)
    return np.array([*(names.index(name) for name in part.segments), -1])[part.segment]
