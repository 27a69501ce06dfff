"""Plots of runs: the distribution of clicks, and the regret curve of a learner."""

import numpy as np
from matplotlib.figure import Figure

from departing.learning.lower_bound.result import RegretBound
from departing.plotting.figures import BLUE, GREY, INK, ORANGE, panels
from departing.simulation.compare import Comparison
from departing.simulation.run import Run, normal_interval


def draw_comparison(comparison: Comparison) -> Figure:
    """Draw the difference of two policies with its 95% interval, paired and on different users."""
    figure = Figure(figsize=(6, 2.2), layout="constrained")
    (axes,) = panels(figure, 1)
    errors = {"same users": comparison.stderr, "different users": comparison.unpaired_stderr}
    for y, stderr in enumerate(errors.values()):
        low, high = normal_interval(comparison.difference, stderr, 0.95)
        axes.plot([low, high], [y, y], color=BLUE if y == 0 else GREY, linewidth=3, solid_capstyle="butt")
        axes.plot(comparison.difference, y, "o", color=INK)
    axes.axvline(0, color=ORANGE, linewidth=1)
    axes.set_yticks(range(len(errors)), list(errors))
    axes.set_ylim(len(errors) - 0.5, -0.5)
    axes.set_xlabel("clicks per user, first policy minus second (95% interval)")
    return figure


def draw_run(run: Run, bound: RegretBound | None = None) -> Figure:
    """Draw the share of users by clicks; for a learner also the cumulative regret by users, and its lower bound."""
    learned = len(run.checkpoints) > 1
    figure = Figure(figsize=(9 if learned else 5, 3.4), layout="constrained")
    axes = panels(figure, 2 if learned else 1)
    axes[0].vlines(run.returns, 0, run.returns_users / run.users, color=BLUE)
    axes[0].axvline(run.mean, color=ORANGE, linewidth=1, label=f"mean {run.mean:.4g}")
    axes[0].set_xlabel("clicks of a user")
    axes[0].set_ylabel("share of users")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    if learned:
        expected = run.regret_curve.policy_segments is not None
        regret = run.regret if expected else run.realised_regret
        positive = np.where(regret > 0, regret, np.nan)  # a log axis has no other values
        axes[1].plot(run.checkpoints, positive, color=BLUE, label="learner")
        if bound is not None:
            lowest = bound.at(run.checkpoints)
            lowest = np.where(lowest > 0, lowest, np.nan)
            axes[1].step(run.checkpoints, lowest, where="post", color=INK, linestyle=":", label="lower bound")
            axes[1].legend(frameon=False)
        axes[1].set_xscale("log")
        axes[1].set_yscale("log")
        axes[1].set_xlabel("users")
        axes[1].set_ylabel(f"{'expected' if expected else 'realised'} regret (clicks)")
    return figure
