"""Segments of the users of a log, each with its share and its policy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from departing.formatting import format_share
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.instance import Floats, Instance
from departing.model.names import list_names
from departing.model.segments import SEPARATOR
from departing.policy.protocol import Policy, own_segments, policy_in_segment


@dataclass(frozen=True)
class LogSegments:
    """Segments of a log with users: their names, None for users whose segment is unknown, and policies.

    Segments with the same policy are a group: the policy is evaluated once for each group, because its values by type
    do not depend on the prior of a segment.

    Attributes
    ----------
    names : tuple of str or None
        Names of the S segments; a log without segments has one, None.
    users : array [S]
        Users of each segment with confirmed steps.
    all_users : array [S]
        Users of each segment, those whose only step is pending included.
    policies : tuple of Policy
        Policy of each group.
    group : array [S]
        Group of each segment.
    codes : array [C + 1]
        For every index of a segment in the log, and last for unknown segments, its position in `names`; -1 if none.
    """

    names: tuple[str | None, ...]
    users: Integers
    all_users: Integers
    policies: tuple[Policy, ...]
    group: Integers
    codes: Integers

    @classmethod
    def of(cls, log: Histories, policy: Policy) -> "LogSegments":
        """Segments of a log."""
        known = log.confirmed
        if known.segment is None or known.segments is None:
            return cls(
                (None,),
                np.array([known.users]),
                np.array([log.users]),
                (policy_in_segment(policy, None),),
                np.zeros(1, np.int64),
                np.zeros(1, np.int64),
            )
        users, every_user = (
            np.append(each.segment_users, each.users - each.segment_users.sum()) for each in (known, log)
        )
        kept = np.flatnonzero(users)
        every: tuple[str | None, ...] = (*known.segments, None)
        names = tuple(every[i] for i in kept.tolist())
        codes = np.full(len(users), -1)
        codes[kept] = np.arange(len(kept))
        policies: list[Policy] = []
        group = [_position(policy_in_segment(policy, name), policies) for name in names]
        return cls(names, users[kept], every_user[kept], tuple(policies), np.array(group), codes)

    @property
    def share(self) -> Floats:
        """Shares of the segments, `[S]`."""
        return np.asarray(self.users / self.users.sum())

    def only(self, segment: int) -> "LogSegments":
        """This segment alone."""
        policy = self.policies[self.group[segment]]
        codes = np.where(self.codes == segment, 0, -1)
        users = self.users[[segment]], self.all_users[[segment]]
        return LogSegments((self.names[segment],), *users, (policy,), np.zeros(1, np.int64), codes)

    def shares_under(self, instance: Instance, fitted: Instance) -> Floats:
        """Shares `[S]` under a replicate of the `fitted` instance: those of the log, changed as in the replicate."""
        if instance.segments is None or fitted.segments is None or len(self.names) == 1:
            return self.share
        change = np.ones(len(self.names))
        for i, name in enumerate(self.names):
            own, other = instance.segments.index(name), fitted.segments.index(name)
            if own is not None and other is not None and fitted.segments.share[other] > 0:
                change[i] = instance.segments.share[own] / fitted.segments.share[other]
        shares = self.share * change
        return np.asarray(shares / shares.sum())

    def priors(self, instance: Instance) -> Floats:
        """Prior over types of each segment, `[S, M]`."""
        return np.array([instance.in_segment(name).normalised_prior for name in self.names])

    def of_group(self, instance: Instance, group: int) -> Instance:
        """Instance of the users of a group, without segments."""
        members = np.flatnonzero(self.group == group)
        if len(members) == 1 or instance.segments is None:
            return instance.in_segment(self.names[members[0]])
        weights = self.users[members] @ self.priors(instance)[members]
        return instance.replace(prior=weights / weights.sum(), segments=None)

    def group_share(self) -> Floats:
        """Share of the users in each group, `[G]`."""
        return np.bincount(self.group, self.share, len(self.policies)).astype(np.float64)


def _position(policy: Policy, policies: list[Policy]) -> int:
    """Position of a policy in a list, to which it is added if it is new."""
    for i, other in enumerate(policies):
        if policy is other or (type(policy) is type(other) and policy == other):
            return i
    policies.append(policy)
    return len(policies) - 1


def segment_warnings(log: Histories, policy: Policy) -> list[str]:
    """Sentences about users whose segments a policy does not know; they get its policy for unknown segments.

    Raises
    ------
    InputError
        If the policy knows no segment of the log, but would if their features had another order.
    """
    known, named = own_segments(policy), log.segments
    if not known:
        return []
    if named is None:
        return [
            f"The policy depends on the segments {list_names(known)}, but the log has no segments, so all users get "
            "its policy for unknown segments. Name the columns of the features as `segment`."
        ]
    other = [i for i, name in enumerate(named) if name not in known]
    order = _order(named, known, log.segment_columns) if len(other) == len(named) else ()
    if order:
        raise InputError(
            f"The segments of the log, {list_names(named)}, have the features of those of the policy, "
            f"{list_names(known)}, in another order; read the log with `segment`={','.join(order)!r}.",
            "segment",
        )
    users = int(log.segment_users[other].sum())
    if not users:
        return []
    return [
        f"The policy does not know the segments of {format_share(users / log.users)} of the users, "
        f"{list_names([named[i] for i in other])}, who get its policy for unknown segments; it has "
        f"{list_names(known)}. Read the log with the features of which these are made as `segment`."
    ]


def _order(names: Sequence[str], known: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """The `columns` of `names` in the order of the features of `known`; () unless the features are the same."""
    for name in names:
        parts = name.split(SEPARATOR)
        for other in (each.split(SEPARATOR) for each in known):
            if sorted(parts) == sorted(other) and len(set(parts)) == len(parts) == len(columns):
                return tuple(columns[parts.index(part)] for part in other)
    return ()
