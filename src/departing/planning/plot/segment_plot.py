"""Plot of a plan for segments: the value in each segment beside that of the best fixed policy."""

from matplotlib.figure import Figure

from departing.formatting import format_percent
from departing.planning.plan import Plan
from departing.planning.segment_tables import segment_columns
from departing.plotting.figures import BLUE, GREY, panels, shorten

MAX_BARS = 30  # segments that stay readable
LABEL_WIDTH = 2.2  # inches


def draw_segments(plan: Plan) -> Figure:
    """Draw bars of the values by segment, labelled with the first category, and of the best fixed policy."""
    columns, unit = segment_columns(plan), plan.instance.unit
    order = sorted(range(len(columns["segment"])), key=lambda i: -columns["share"][i])[:MAX_BARS]
    figure = Figure(figsize=(9.0, 1.3 + 0.36 * max(len(order), 2)), layout="constrained")
    (axes,) = panels(figure, 1)
    values = [columns["lower"][i] for i in order]
    axes.barh([row - 0.18 for row in range(len(order))], values, 0.34, color=BLUE, label="this plan")
    fixed = [columns["best_fixed_value"][i] for i in order]
    axes.barh([row + 0.18 for row in range(len(order))], fixed, 0.34, color=GREY, label="best fixed policy")
    most = max(values) or 1.0
    for row, i in enumerate(order):
        text = f"{columns['lower'][i]:.4g}, first {shorten(columns['first'][i], LABEL_WIDTH, 9)}"
        axes.text(values[row] + 0.01 * most, row - 0.18, text, va="center", fontsize=9, parse_math=False)
    labels = [
        f"{shorten(columns['segment'][i], LABEL_WIDTH, 10)} ({format_percent(columns['share'][i])})" for i in order
    ]
    axes.set_yticks(range(len(order)), labels)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_xlim(0, 1.4 * most)
    axes.set_xlabel(f"expected {unit} per user; all users: {plan.value:.5g}", parse_math=False)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize=9)
    return figure
