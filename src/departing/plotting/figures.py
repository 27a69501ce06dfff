"""Shared figure utilities: colours, panels, text that fits, and figures as files."""

import os
import warnings
from collections.abc import Sequence
from io import BytesIO

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath
from PIL import Image

from departing.model.files import atomic_write, check_suffix

BLUE, ORANGE, GREY = "#1f6f8b", "#d9763d", "#8a8a8a"
INK, FAINT = "#222222", "#505050"
PALE_BLUE = "#a9c9d4"
# Okabe-Ito palette, distinguishable with colour blindness, and a grey.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#a6a6a6")

FIGURE_SUFFIXES = (".svg", ".png", ".pdf")
DISPLAY_DPI = 80  # of a figure in a notebook, in CSS pixels per inch: nine inches fit the width of a cell
DISPLAY_COLOURS = 128  # of that figure: a third of the size of one in all colours, and no visible difference
_CANVASES = {"svg": FigureCanvasSVG, "png": FigureCanvasAgg, "pdf": FigureCanvasPdf}
_METADATA = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def render(figure: Figure, form: str = "svg", dpi: int = 150) -> bytes:
    """Render the figure as SVG, PNG or PDF, without dates and other metadata that change between runs."""
    buffer = BytesIO()
    with rc_context({"svg.hashsalt": "departing"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in letters the font does not have
        _CANVASES[form](figure).print_figure(buffer, format=form, dpi=dpi, metadata=_METADATA[form])
    return buffer.getvalue()


def svg(figure: Figure) -> str:
    """Return the figure as SVG to embed in a page."""
    text = render(figure).decode()
    return text[text.index("<svg") :]


class NotebookFigure(Figure):
    """Figure that a notebook displays, also without pyplot."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        width, height = (round(DISPLAY_DPI * inches) for inches in self.get_size_inches())
        image = Image.open(BytesIO(render(self, "png", 2 * DISPLAY_DPI))).convert("RGB")
        buffer = BytesIO()
        image.quantize(DISPLAY_COLOURS, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
        return buffer.getvalue(), {"width": width, "height": height}


def save(figure: Figure, path: str | os.PathLike[str] | None, dpi: int = 150) -> Figure:
    """Write the figure to a .svg, .png or .pdf file, if `path` is given, and return it for display."""
    figure.__class__ = NotebookFigure  # every public plot passes through here
    if path is None:
        return figure
    drawn = render(figure, check_suffix(path, FIGURE_SUFFIXES)[1:], dpi)
    with atomic_write(path) as part:
        part.write_bytes(drawn)
    return figure


def panels(figure: Figure, columns: int, widths: Sequence[float] | None = None) -> list[Axes]:
    """Axes side by side, without frames at the top and the right."""
    axes_row = figure.subplots(1, columns, squeeze=False, width_ratios=widths)[0]
    for axes in axes_row:
        tidy(axes)
    return list(axes_row)


def tidy(axes: Axes) -> None:
    """Remove the frame at the top and the right, and add a thin horizontal grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)


def tint(colour: str, strength: float) -> tuple[float, float, float]:
    """Mix `colour` with white; strength 0 is white."""
    red, green, blue = (1 - strength * (1 - part) for part in to_rgb(colour))
    return red, green, blue


def ink_on(colour: str) -> str:
    """Return a text colour, dark or white, that is legible on `colour`.

    >>> ink_on("#0072b2"), ink_on("#f0e442")
    ('white', '#222222')
    """
    red, green, blue = to_rgb(colour)
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else INK


def shorten(text: str, width: float, size: float, weight: str = "normal") -> str:
    """Put `text` on one line, with an ellipsis in the middle if it is wider than `width` inches at this font size.

    >>> shorten("a very long name", 0.7, 9)
    'a ver…me'
    """
    line = " ".join(text.split())
    fits, too_long = 1, len(line) + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if text_width(_cut(line, middle), size, weight) <= width:
            fits = middle
        else:
            too_long = middle
    return _cut(line, fits)


def _cut(line: str, letters: int) -> str:
    """Shorten `line` to `letters` characters: the first two thirds, an ellipsis, the last third."""
    if letters >= len(line):
        return line
    tail = letters // 3
    return line[: letters - tail].rstrip() + "…" + line[len(line) - tail :].lstrip()


def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Width of a line of text in inches."""
    font = FontProperties(size=size, weight=weight)
    return float(TextToPath().get_text_width_height_descent(text, font, ismath=False)[0]) / 72
