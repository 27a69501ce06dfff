"""Plot of an off-policy value: estimates with intervals, and overlap by step."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from departing.offpolicy.value import OffPolicyValue
from departing.plotting.figures import BLUE, GREY, INK, panels


def draw_off_policy_value(value: OffPolicyValue) -> Figure:
    """Draw the estimates with their confidence intervals and, if there is overlap, the effective sample size."""
    figure = Figure(figsize=(9.0 if value.overlap else 4.6, 3.0), layout="constrained")
    axes, *others = panels(figure, 2 if value.overlap else 1)
    estimates = value.estimates
    for x, estimate in enumerate(estimates.values()):
        errors = [[estimate.value - estimate.lower], [estimate.upper - estimate.value]]
        axes.errorbar(x, estimate.value, np.maximum(errors, 0), color=BLUE, marker="o", capsize=4)
    axes.set_xticks(range(len(estimates)), [name.upper() for name in estimates])
    axes.set_xlim(-0.5, len(estimates) - 0.5)
    axes.set_title(f"{value.unit} per user, {value.confidence:.0%} intervals", fontsize=10, loc="left")
    for right in others:
        steps = [step.step + 1 for step in value.overlap]
        right.semilogy(steps, [step.ess for step in value.overlap], color=INK, marker=".")
        right.axvline(value.horizon + 0.5, color=GREY, linestyle="--")
        right.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.set_xlabel("step (dashed: horizon)")
        right.set_title("effective sample size", fontsize=10, loc="left")
    return figure
