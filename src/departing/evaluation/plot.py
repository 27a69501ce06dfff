"""Plot of an evaluation: the distribution of clicks and the survival curve."""

import numpy as np
from matplotlib.figure import Figure

from departing.evaluation.evaluate import Evaluation
from departing.plotting.figures import BLUE, PALETTE, panels

TAIL = 1e-3  # probability of the long tail that the axes leave out


def draw_distribution(evaluation: Evaluation) -> Figure:
    """Draw the probability of every number of clicks, and of being active after every number of steps by type."""
    distribution, instance = evaluation.distribution, evaluation.instance
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    returns, survival = panels(figure, 2)
    probabilities = distribution.returns
    last = int(np.searchsorted(probabilities.cumsum(), 1 - TAIL)) + 1
    returns.vlines(np.arange(len(probabilities))[:last], 0, probabilities[:last], color=BLUE)
    returns.set_xlabel("clicks of a user")
    returns.set_ylabel("probability")
    returns.set_ylim(bottom=0)
    last = max(int((distribution.survival > TAIL).sum()), 2)
    by_type = distribution.survival_by_type[:last] / instance.normalised_prior
    for x, name in enumerate(instance.types):
        survival.plot(by_type[:, x], color=PALETTE[x % len(PALETTE)], label=name)
    survival.set_xlabel("steps")
    survival.set_ylabel("probability of being active")
    survival.set_ylim(0, 1)
    survival.legend(frameon=False, fontsize=8)
    return figure
