"""What counts tell about a user: the posterior over types and the chances of the next step."""

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers, as_counts, flat_rows
from departing.model.errors import InputError
from departing.model.instance import Floats, Instance

IMPOSSIBLE = -1e290  # stands for the logarithm of 0, so that 0 times it is 0
_FLOOR = -1e300


def finite_log_probabilities(instance: Instance) -> tuple[Floats, Floats]:
    """The logarithms of the prior, `[M]`, and of the chances, `[4 K, M]`, finite also where they are of 0."""
    with np.errstate(divide="ignore"):
        prior = np.maximum(np.log(instance.prior), _FLOOR)
    return prior, np.maximum(instance.log_outcome_probabilities, _FLOOR).reshape(-1, instance.n_types)


def log_weights(instance: Instance, counts: Integers) -> Floats:
    """`log(prior · Π chances^counts)`, `[..., M]`; below `IMPOSSIBLE` where the type cannot have done this."""
    prior, chances = finite_log_probabilities(instance)
    flat = flat_rows(counts).astype(np.float64)
    with np.errstate(over="ignore"):
        return np.asarray(flat @ chances + prior)


def posterior(weights: Floats, prior: Floats) -> Floats:
    """Beliefs from log weights `[..., M]`; the prior where no type is possible."""
    top = row_max(weights)[..., None]
    shares = np.exp(weights - top)
    beliefs = shares / (shares @ np.ones(len(prior)))[..., None]
    possible = top > IMPOSSIBLE
    return beliefs if possible.all() else np.where(possible, beliefs, prior)


def row_max(array: Floats) -> Floats:
    """The maximum over the last axis; several times faster than NumPy's where that axis is short."""
    top = array[..., 0].copy()
    for column in range(1, array.shape[-1]):
        np.maximum(top, array[..., column], out=top)
    return top


def belief(instance: Instance, counts: npt.ArrayLike) -> Floats:
    """The posterior over types after `counts[..., K, 4]`, `[..., M]`.

    Computed in logarithms, so histories of millions of steps are as good as short ones.

    >>> shop = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]])
    >>> belief(shop, [[1, 0, 0, 0], [0, 0, 0, 0]]).round(4)
    array([0.5435, 0.4565])
    """
    counts = as_counts(counts, instance.n_categories)
    weights = log_weights(instance, counts)
    impossible = np.argwhere(row_max(weights) <= IMPOSSIBLE)
    if len(impossible):
        row = counts[tuple(impossible[0])].tolist()
        raise InputError(f"counts {row!s:.200} have chance 0 under every type, so there is no belief.")
    return posterior(weights, instance.prior)


def predict(instance: Instance, counts: npt.ArrayLike) -> Floats:
    """The chance of every outcome of every category at the next step, `[..., K, 4]`.

    >>> shop = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]])
    >>> predict(shop, [[0, 0, 0, 0], [0, 0, 0, 0]])[:, 0].round(3)
    array([0.368, 0.394])
    """
    return np.asarray(np.einsum("...x,aox->...ao", belief(instance, counts), instance.outcome_probabilities))
