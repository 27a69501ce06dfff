"""Beliefs: the posterior over types given counts, and predictions of the next outcome."""

import numpy as np
import numpy.typing as npt

from departing.model.counts import Integers, as_counts, flat_rows
from departing.model.errors import InputError
from departing.model.events import Events, check_either, count_events
from departing.model.instance import EXTENSIONS, Floats, Instance
from departing.model.validation import check_instance

IMPOSSIBLE = -1e290  # sums with `LOG_ZERO` stay below it, real log weights far above


def log_weights(instance: Instance, counts: Integers) -> Floats:
    """`log(prior · Π probability^count)`, `[..., M]`; below `IMPOSSIBLE` for types of probability 0."""
    prior, outcomes = instance.finite_log_probabilities
    flat = flat_rows(counts).astype(np.float64)
    with np.errstate(over="ignore"):
        return np.asarray(flat @ outcomes + prior)


def posterior(weights: Floats, prior: Floats) -> Floats:
    """Normalise log weights `[..., M]` to beliefs; the prior where no type is possible."""
    top = row_max(weights)[..., None]
    shares = np.exp(weights - top)
    beliefs = shares / (shares @ np.ones(len(prior)))[..., None]
    possible = top > IMPOSSIBLE
    return beliefs if possible.all() else np.where(possible, beliefs, prior)


def row_max(array: Floats) -> Floats:
    """Maximum over the last axis; several times faster than `numpy.max` where that axis is short."""
    top = array[..., 0].copy()
    for column in range(1, array.shape[-1]):
        np.maximum(top, array[..., column], out=top)
    return top


def belief(instance: Instance, counts: npt.ArrayLike | None = None, *, events: Events | None = None) -> Floats:
    """Return the posterior over types given counts, or given the events of one user.

    Parameters
    ----------
    instance : Instance
        Prior and outcome probabilities.
    counts : array_like of int, shape (..., K, 4)
        Counts of users. Logarithms are used, so millions of steps are no problem.
    events : sequence of (category, outcome), optional
        Events of one user in the place of counts, such as `[("news", "click"), ("sport", "no-click")]`.

    Returns
    -------
    ndarray of float, shape (..., M)

    Raises
    ------
    InputError
        If counts have probability 0 under every type, or an argument is invalid.

    Examples
    --------
    >>> shop = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]])
    >>> belief(shop, [[1, 0, 0, 0], [0, 0, 0, 0]]).round(4)
    array([0.5435, 0.4565])
    >>> belief(shop, events=[("category 0", "click")]).round(4)
    array([0.5435, 0.4565])
    """
    check_instance(instance, EXTENSIONS)
    if counts is None or events is not None:
        counts = count_events(check_either(counts, events), instance.categories)
    counts = as_counts(counts, instance.n_categories)
    weights = log_weights(instance, counts)
    impossible = np.argwhere(row_max(weights) <= IMPOSSIBLE)
    if len(impossible):
        row = counts[tuple(impossible[0])].tolist()
        raise InputError(f"counts {row!s:.200} have probability 0 under every type, so there is no belief.")
    return posterior(weights, instance.prior)


def predict(instance: Instance, counts: npt.ArrayLike | None = None, *, events: Events | None = None) -> Floats:
    """Return the probability of every outcome of every category at the next step.

    Parameters
    ----------
    instance : Instance
        Prior and outcome probabilities.
    counts : array_like of int, shape (..., K, 4)
        Counts of users.
    events : sequence of (category, outcome), optional
        Events of one user in the place of counts.

    Returns
    -------
    ndarray of float, shape (..., K, 4)
        Probabilities of click, stay, depart, and click with departure.

    Examples
    --------
    >>> shop = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]])
    >>> predict(shop, [[0, 0, 0, 0], [0, 0, 0, 0]])[:, 0].round(3)
    array([0.368, 0.394])
    """
    return np.asarray(
        np.einsum("...x,aox->...ao", belief(instance, counts, events=events), instance.outcome_probabilities)
    )
