"""Decisions for the segments of a fit, and for all users: the means over segments by share, draw by draw."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from departing.decision.candidates import Candidates
from departing.decision.claims import Claim
from departing.decision.ensemble import Ensemble
from departing.fitting.fit import Fit
from departing.model.instance import Floats, Instance
from departing.planning.plan import Plan


@dataclass(frozen=True, eq=False)
class Part:
    """Users of one segment: their plan, and the candidates under their priors; `name` is None for unknown ones."""

    name: str | None
    plan: Plan
    ensemble: Ensemble
    candidates: Candidates


def parts(fit: Fit, plan: Plan, ensemble: Ensemble) -> list[Part]:
    """The users of unknown segment, then those of each segment."""
    names = () if fit.instance.segments is None else fit.instance.segments.names
    found = []
    for name in (None, *names):
        own = plan if plan.common is None else plan.common if name is None else plan.by_segment[name]
        instances = [_in_segment(each, name, fit.instance) for each in ensemble.instances]
        members = replace(ensemble, instances=instances)
        found.append(Part(name, own, members, Candidates.of(members, plan.allowed, 1 + len(names))))
    return found


def _in_segment(draw: Instance, name: str | None, fitted: Instance) -> Instance:
    """The instance of the users of a segment, with the rewards of the fit if it has none."""
    draw = draw.in_segment(name)
    if "reward" in fitted.extensions and "reward" not in draw.extensions:
        draw = draw.replace(reward=fitted.reward, unit=fitted.unit)
    return draw


def shares(fit: Fit, ensemble: Ensemble) -> Floats:
    """Shares of the segments in the fit and in each draw, `[n, S]`; draws without segments have those of the fit."""
    own = fit.instance.segments
    assert own is not None
    rows = [own if each.segments is None else each.segments for each in ensemble.instances]
    return np.array([row.share / row.share.sum() for row in rows])


def mixed(claims: Sequence[Claim], weights: Floats) -> Claim:
    """The claim about all users, with the shares `weights[n, S]` of the segments."""

    def mean(name: str, rows: Floats) -> Floats:
        return np.asarray((np.array([getattr(claim, name) for claim in claims]).T * rows).sum(axis=1))

    return Claim(mean("in_own", weights), mean("in_fit", weights[:1]), mean("in_draws", weights))
