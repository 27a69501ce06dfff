"""Layout of plan plots: axes measured in inches, and the colours, names and numbers on them."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from departing.model.instance import Instance
from departing.plotting.figures import INK, PALETTE, shorten

WIDTH, MARGIN = 9.0, 0.35  # inches
TINY_SHARE = 5e-4  # of all users: smaller shares round to 0.0 %


class CategoryStyle:
    """Colours and names of the categories in a plot, of which `plotted` occur."""

    def __init__(self, instance: Instance, plotted: Sequence[int]) -> None:
        self.names, self.plotted = instance.categories, plotted
        order = list(range(instance.n_categories))
        if len(order) > len(PALETTE):
            order.sort(key=lambda category: category not in plotted)
        self.colours = {category: PALETTE[i % len(PALETTE)] for i, category in enumerate(order)}

    def name(self, category: int, width: float, size: float = 9.5, weight: str = "bold") -> str:
        """The name, shortened to a width in inches."""
        return shorten(self.names[category], width, size, weight)


def percent(share: float) -> str:
    """Format a fraction as a percentage.

    >>> percent(0.4321), percent(0.0123), percent(0.0041), percent(1e-6)
    ('43%', '1.2%', '0.4%', '< 0.1%')
    """
    if share < TINY_SHARE:
        return "< 0.1%"
    return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


def clicks(value: float) -> str:
    """Format expected clicks per user, with fewer decimals for large values.

    >>> clicks(0.65029058), clicks(12.3), clicks(123456.789)
    ('0.65029', '12.3000', '123456.8')
    """
    return f"{value:.5f}" if value < 1 else f"{value:.4f}" if value < 1000 else f"{value:.7g}"


def area(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes at a position given in inches."""
    whole = figure.get_figheight()
    return figure.add_axes((left / WIDTH, bottom / whole, width / WIDTH, height / whole))


def inches(axes: Axes) -> tuple[float, float]:
    """Make the axes an empty canvas with units of inches; return its width and height."""
    width, height = axes.bbox.width / axes.figure.dpi, axes.bbox.height / axes.figure.dpi
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.set_axis_off()
    return width, height


def write(axes: Axes, x: float, y: float, text: str, size: float = 9.0, **style: Any) -> None:
    """Write text without mathtext: a dollar sign is a dollar sign."""
    axes.text(x, y, text, fontsize=size, parse_math=False, **{"color": INK, "ha": "center", "va": "center"} | style)


def legend(axes: Axes, entries: Sequence[tuple[Any, str]], **options: Any) -> None:
    """Add a legend whose labels are used verbatim, also those that start with an underscore."""
    handles = [handle for handle, _ in entries]
    box = Legend(axes, handles, ["-"] * len(handles), frameon=False, fontsize=9, ncols=len(entries), **options)
    for text, (_, label) in zip(box.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(label)
    axes.add_artist(box)
