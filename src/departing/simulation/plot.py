"""Plots of comparisons, and of runs under a policy."""

from matplotlib.figure import Figure

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


def draw_clicks(run: Run) -> Figure:
    """Draw the share of users by their clicks."""
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    (axes,) = panels(figure, 1)
    axes.vlines(run.returns, 0, run.returns_users / run.users, color=BLUE)
    axes.axvline(run.mean, color=ORANGE, linewidth=1, label=f"mean {run.mean:.4g}")
    axes.set_xlabel("clicks of a user")
    axes.set_ylabel("share of users")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure
