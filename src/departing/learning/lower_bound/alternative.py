"""Alternative: an instance that a learner has to distinguish from the true one."""

from functools import cached_property

import numpy as np

from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.model.validation import check_instance


class Alternative:
    """Alternative instance, with its divergences from the true one by type.

    Attributes
    ----------
    instance : Instance
        The alternative.
    matched : array [M]
        For every type of the true instance, the type of the alternative that is hardest to tell from it.
    type_divergence : array [M, N]
        Largest divergence of the histories of a type x and a type y of the alternative, over all policies, in nats.
    excess : array [M, N]
        By how much the divergence of x and y is at most larger than that of x and its matched type, in nats.
    step_divergence : array [K, M]
        Divergence of one outcome of a type and its matched type, in nats.
    """

    def __init__(self, true: Instance, instance: Instance) -> None:
        self.true, self.instance = true, instance
        here, there = true.outcome_probabilities, instance.outcome_probabilities
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = here[:, :, :, None] * (np.log(here)[:, :, :, None] - np.log(there)[:, :, None, :])
        steps = np.where(here[:, :, :, None] > 0, terms, 0.0).sum(axis=1)  # [K, M, N]
        # The type is known here, so a policy collects divergences as clicks: the best fixed category is optimal.
        self.type_divergence: Floats = (steps / true.departure_probabilities[:, :, None]).max(axis=0)
        occurring = np.where(instance.prior > 0, self.type_divergence, np.inf)
        self.matched = occurring.argmin(axis=1)
        self.step_divergence: Floats = np.take_along_axis(steps, self.matched[None, :, None], axis=2)[:, :, 0]
        more = np.maximum(steps - self.step_divergence[:, :, None], 0.0) / true.departure_probabilities[:, :, None]
        self.excess: Floats = more.max(axis=0)

    @cached_property
    def outcome_probabilities(self) -> Floats:
        """Outcome probabilities, `[K, 4, N]`."""
        return np.ascontiguousarray(self.instance.outcome_probabilities)

    @cached_property
    def key(self) -> tuple[bytes, ...]:
        """Bytes that identify the probabilities."""
        other = self.instance
        return tuple(table.tobytes() for table in (other.prior, other.click, other.depart, other.depart_on_click))


def check_alternative(true: Instance, instance: object, where: str) -> Alternative:
    """Return `instance` as an alternative to `true`, or raise an InputError that starts with `where`."""
    if not isinstance(instance, Instance):
        raise InputError(f"{where} is {instance!r:.80}; expected an Instance.", "alternatives")
    check_instance(instance)
    if instance.n_categories != true.n_categories:
        raise InputError(
            f"{where} has {instance.n_categories} categories; expected {true.n_categories}, as the instance.",
            "alternatives",
        )
    possible = (true.outcome_probabilities[:, :, true.prior > 0] > 0).any(axis=2)
    missing = possible & (instance.outcome_probabilities[:, :, instance.prior > 0] == 0).any(axis=2)
    for a, outcome in np.argwhere(missing):
        name = ("click", "stay", "depart", "click_and_depart")[outcome]
        raise InputError(
            f"{where} gives the outcome {name!r} of category {true.categories[a]!r} probability 0 for some type, but "
            "it is possible in the instance: one such outcome would tell them apart. Choose a positive probability.",
            "alternatives",
        )
    return Alternative(true, instance)
