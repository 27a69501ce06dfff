"""Plot of a decision: probabilities of first categories, and values of policies with intervals."""

from matplotlib.figure import Figure

from departing.decision.decision import Decision
from departing.formatting import format_percent
from departing.plotting.figures import BLUE, GREY, PALE_BLUE, panels, shorten

MAX_BARS = 8  # categories that stay readable
LABEL_WIDTH = 1.5  # inches


def draw_decision(decision: Decision) -> Figure:
    """Draw the probability that each first category is optimal as bars, and the values of the policies.

    With segments the bars are those of the recommended first category of each of the largest segments.
    """
    values = decision.values
    bars = [(each.category, each.probability) for each in decision.first[:MAX_BARS]]
    if decision.by_segment:
        bars = [
            (f"{name}: {each.candidates[0].first}", each.first_probability)
            for name, _, each in decision.segments[:MAX_BARS]
        ]
    rows = max(len(bars), len(values), 2)
    figure = Figure(figsize=(9.0, 1.1 + 0.36 * rows), layout="constrained")
    left, right = panels(figure, 2)
    colours = [BLUE, *[BLUE if decision.by_segment else PALE_BLUE] * (len(bars) - 1)]
    shares = [probability for _, probability in bars]
    left.barh(range(len(bars)), shares, color=colours)
    for row, share in enumerate(shares):
        left.text(share + 0.02, row, format_percent(share, 0.01), va="center", fontsize=9)
    left.set_yticks(range(len(bars)), [shorten(name, LABEL_WIDTH, 10) for name, _ in bars])
    left.set_xlim(0, 1.15)
    left.set_xticks([0, 0.5, 1], ["0%", "50%", "100%"])
    left.set_title("probability that the first category is optimal", fontsize=10, loc="left")
    for row, each in enumerate(values):
        errors = [[max(each.value - each.lower, 0.0)], [max(each.upper - each.value, 0.0)]]
        right.errorbar(each.value, row, xerr=errors, color=GREY if row else BLUE, marker="o", capsize=4)
    right.set_yticks(range(len(values)), [shorten(each.name, LABEL_WIDTH, 10) for each in values])
    right.set_ylim(-0.6, len(values) - 0.4)
    right.set_xlim(left=0)
    right.set_title(f"{decision.unit} per user, 95% intervals", fontsize=10, loc="left")
    for axes in (left, right):
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", alpha=0.25)
    return figure
