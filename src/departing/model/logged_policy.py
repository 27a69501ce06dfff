"""Policy of a log: how often it showed each category, as saved beside a fitted instance."""

import os
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from departing.model.errors import InputError, errors_in
from departing.model.files import check_fields, read_document
from departing.model.histories import Histories
from departing.model.instance import Floats
from departing.model.instance_fields import LOG_FIELDS
from departing.model.validation import check_float, check_int


@dataclass(frozen=True, eq=False)
class LoggedPolicy:
    """Policy of a log, summarised by the shown frequencies.

    Attributes
    ----------
    users : int
        Number of users in the log.
    shown : array [K]
        Share of the steps of the log at which each category was shown.
    clicks_per_user : float or None
        Mean clicks per user; None if some user is censored before the horizon, because their clicks are incomplete.
    """

    users: int
    shown: Floats
    clicks_per_user: float | None = None

    @classmethod
    def from_histories(cls, histories: Histories) -> Self:
        """Shown frequencies of all steps of `histories`."""
        total = histories.totals.sum(axis=1)
        clicks = None
        if not (histories.censored & (histories.steps != (histories.horizon or -1))).any():
            clicks = float(histories.multiplicity @ histories.clicks) / histories.users
        return cls(histories.users, total / total.sum(), clicks)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, as in a file."""
        fields: dict[str, Any] = {"users": self.users, "shown": self.shown.tolist()}
        return fields if self.clicks_per_user is None else fields | {"clicks_per_user": self.clicks_per_user}

    @classmethod
    def from_dict(cls, document: Any, n_categories: int, where: str) -> Self:
        """Return the policy from the table `log` of a file; error messages start with `where`."""
        if not isinstance(document, dict):
            raise InputError(f"{where}: log is {document!r:.80}; expected a table with the fields users and shown.")
        check_fields(document, {"users", "shown"}, set(LOG_FIELDS), f"{where}, log")
        with errors_in(f"{where}, log"):
            shown = document["shown"]
            if not isinstance(shown, list) or len(shown) != n_categories:
                raise InputError(f"shown is {shown!r:.80}; expected {n_categories} shares, one per category.")
            shares = np.array([check_float("shown", share, 0.0, 1.0) for share in shown])
            if abs(shares.sum() - 1) > 1e-6:
                raise InputError(f"shown sums to {shares.sum():.9g}; expected 1.")
            clicks = document.get("clicks_per_user")
            clicks = None if clicks is None else check_float("clicks_per_user", clicks, 0.0, np.inf)
            return cls(check_int("users", document["users"]), shares / shares.sum(), clicks)

    @classmethod
    def load(cls, path: str | os.PathLike[str], n_categories: int) -> Self | None:
        """Read the policy of the log from the file of a fit; None if the file has no table `log`."""
        document = read_document(path, "instance")
        return cls.from_dict(document["log"], n_categories, repr(str(path))) if "log" in document else None
