"""Segments: groups of users known on arrival, each with its own prior over types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from departing.model.errors import InputError
from departing.model.files import check_fields
from departing.model.names import check_names

Floats = npt.NDArray[np.float64]
SEPARATOR = "/"  # between the values of several features in the name of a segment


@dataclass(frozen=True, eq=False)
class Segments:
    """Segments of users with their shares and priors: a latent class model with concomitant variables.

    Parameters
    ----------
    names : sequence of str, length S
        Names of the segments. Of several features, the values are joined by "/": "de/mobile".
    share : array_like of float, shape (S,)
        Share of the users in each segment; they sum to 1.
    prior : array_like of float, shape (S, M)
        Probability of each type in each segment; every row sums to 1.
    columns : sequence of str, optional
        Names of the features, such as "country" and "device".

    Raises
    ------
    InputError
        If a field is invalid.

    Examples
    --------
    >>> devices = Segments(["mobile", "desktop"], share=[0.75, 0.25], prior=[[0.8, 0.2], [0.4, 0.6]])
    >>> devices.common_prior
    array([0.7, 0.3])
    >>> devices.index("tablet") is None
    True
    """

    names: tuple[str, ...]
    share: Floats
    prior: Floats
    columns: tuple[str, ...] = ()

    def __init__(
        self,
        names: Sequence[str],
        share: npt.ArrayLike,
        prior: npt.ArrayLike,
        columns: Sequence[str] = (),
    ) -> None:
        names = check_names("segments.names", names)
        shares, priors = _distributions("segments.share", share, 1), _distributions("segments.prior", prior, 2)
        for field, array in (("share", shares), ("prior", priors)):
            if len(array) != len(names):
                raise InputError(
                    f"segments.{field} has {len(array)} entries; expected {len(names)}, one per segment."
                )
        given = check_names("segments.columns", columns) if len(columns) else ()
        self.__dict__.update(names=names, share=shares, prior=priors, columns=given)  # the class is frozen

    @property
    def common_prior(self) -> Floats:
        """Prior over types of all users, `[M]`: the mean of the segments' priors by share."""
        return np.minimum(self.share @ self.prior, 1.0)  # rounding

    def index(self, name: str | None) -> int | None:
        """Index of a segment, or None for an unknown one."""
        return self.names.index(name) if name in self.names else None

    def prior_of(self, name: str | None) -> Floats:
        """Prior over types of the users of a segment, `[M]`; the common one for an unknown segment."""
        index = self.index(name)
        return self.common_prior if index is None else self.prior[index]

    def relabel(self, types: Sequence[int]) -> "Segments":
        """Return the segments with types in another order, given as old indices."""
        return Segments(self.names, self.share, self.prior[:, list(types)], self.columns)

    @property
    def key(self) -> tuple[object, ...]:
        """Fields as hashable values."""
        return self.names, self.share.tobytes(), self.prior.tobytes(), self.columns

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Segments) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        fields = {"names": list(self.names), "share": self.share.tolist(), "prior": self.prior.tolist()}
        if self.columns:
            fields["columns"] = list(self.columns)
        return f"Segments({', '.join(f'{name}={value!r}' for name, value in fields.items())})"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, as in a file."""
        fields: dict[str, Any] = {"columns": list(self.columns)} if self.columns else {}
        return fields | {"names": list(self.names), "share": self.share.tolist(), "prior": self.prior.tolist()}

    @classmethod
    def from_dict(cls, document: object, where: str = "segments") -> "Segments":
        """Return segments from the fields of `document`; error messages start with `where`."""
        if not isinstance(document, Mapping):
            raise InputError(f"{where} is {document!r:.80}; expected the fields names, share and prior.")
        check_fields(dict(document), {"names", "share", "prior"}, {"columns"}, where)
        return cls(**document)


def _distributions(field: str, values: npt.ArrayLike, ndim: int) -> Floats:
    """`values` as an array whose last axis sums to 1."""
    try:
        array = np.array(values, np.float64) + 0.0
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim != ndim or not array.size or not ((array >= 0) & (array <= 1)).all():
        shape = "one probability for each segment" if ndim == 1 else "one row of probabilities for each segment"
        raise InputError(f"{field} is {values!s:.80}; expected {shape}.")
    sums = array.sum(axis=-1)
    wrong = np.atleast_1d(sums)[np.abs(np.atleast_1d(sums) - 1) > 1e-9]
    if len(wrong):
        raise InputError(f"{field} has a sum of {wrong[0]:.12g}; expected 1.")
    array.setflags(write=False)
    return array
