"""Information gained from one user under a policy: Fisher information, and divergences between modes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from departing.evaluation.traversal import first_level, traverse
from departing.kernels.learning.path_probabilities import path_probabilities
from departing.learning.posterior import DIFFERENCE_STEP, Mode
from departing.model.counts import Integers
from departing.model.instance import CLICK, STAY, Floats, Instance
from departing.policy.protocol import Policy
from departing.policy.schedule import Schedule

# Limits of the count graph that information is computed from. Set by hand: 30 steps as in the transition counts (14
# before), at most 400 counts, and none that fewer than 1 in 100,000 users reach; larger limits count rare paths.
MAX_STEPS, MAX_NODES, MIN_REACH = 30, 400, 1e-5
MIN_PROBABILITY = 1e-12  # guards logarithms and divisions; paths this rare carry no information


@dataclass(frozen=True, eq=False)
class InformationGain:
    """Information from one user of a policy.

    `fisher[k, d, d]` is the Fisher information at mode k. `divergence[k, i]` is the Kullback-Leibler divergence in
    nats of mode i from mode k: the expected log likelihood ratio against mode i if mode k is true.
    """

    fisher: Floats
    divergence: Floats

    @classmethod
    def of(cls, policy: Policy, modes: Sequence[Mode], steps: int = MAX_STEPS) -> "InformationGain":
        """Compute the information from the first `steps` of a user, over the count graph of the first mode."""
        graph = observed_graph(policy, modes[0].instance, steps)
        fisher, at_modes = [], []
        for mode in modes:
            paths = path_probabilities(*graph, mode.neighbours.prior, mode.neighbours.outcomes)
            d = len(paths) // 2
            slopes = (paths[1 : d + 1] - paths[d + 1 :]) / (2 * DIFFERENCE_STEP)
            # Without BLAS, whose sums depend on the number of its threads.
            fisher.append(np.einsum("dp,ep->de", slopes / np.maximum(paths[0], MIN_PROBABILITY), slopes))
            at_modes.append(paths[0])
        probabilities = np.array(at_modes)
        logs = np.log(np.maximum(probabilities, MIN_PROBABILITY))
        divergence = np.maximum((probabilities * logs).sum(axis=1)[:, None] - probabilities @ logs.T, 0.0)
        return cls(np.array(fisher), divergence)


def observed_graph(policy: Policy, instance: Instance, steps: int = MAX_STEPS) -> tuple[Integers, Integers]:
    """Return the count graph that most users traverse in the first `steps` under a policy.

    `category[n]` is recommended at node n; `child[n, 2]` are the nodes after a click and after a stay, -1 where the
    observation ends. Nodes are in the order of steps.
    """
    if isinstance(policy, Schedule) and not instance.outcome_probabilities[:, STAY].any():
        return _click_chain(policy, instance, steps)
    categories, children, first = [], [], 0
    for level in traverse(first_level(instance, policy, instance.prior)):
        categories.append(level.categories)
        first += len(level)
        reach = level.next.weights.sum(axis=1)
        kept = (reach >= MIN_REACH) & (level.next.step < steps) & (first < MAX_NODES)
        index = np.where(kept, first + np.cumsum(kept) - 1, -1)
        children.append(np.where(level.child >= 0, np.append(index, -1)[level.child], -1))
        level.next.keep(kept)
    return np.concatenate(categories), np.concatenate(children)


def _click_chain(policy: Schedule, instance: Instance, steps: int) -> tuple[Integers, Integers]:
    """Return the same graph where departure is sure and the only path is from click to click."""
    shown = policy.first_categories(steps)
    clicks = instance.outcome_probabilities[shown, CLICK]
    reach = np.cumprod(np.vstack([instance.prior, clicks]), axis=0).sum(axis=1)[:steps]
    n = max(int((reach >= MIN_REACH).argmin()) if reach[-1] < MIN_REACH else steps, 1)
    child = np.full((n, 2), -1)
    child[:-1, 0] = np.arange(1, n)
    return shown[:n], child
