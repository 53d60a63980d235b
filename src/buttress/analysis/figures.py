"""Figures of analysis results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from buttress.errors import UserError
from buttress.system.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
    from matplotlib.figure import SubFigure as SubFigure
else:  # matplotlib is imported when something is drawn
    Axes = Figure = SubFigure = Any

FIGURE_FORMATS = (".png", ".svg", ".pdf")
FIGURE_SIZE = (11, 4.5)


class PlotFunction(Protocol):
    """Plot the results of one or several runs into a figure."""

    def __call__(self, results: Mapping[str, Any], figure: Figure) -> None: ...


def save_figure(plot: PlotFunction, results: Mapping[str, Any], path: Path) -> None:
    """Save the figure of one or several results; the file suffix sets the format."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    suffix = path.suffix.lower()
    if suffix not in FIGURE_FORMATS:
        raise UserError(f"the figure file must end in .png, .svg or .pdf, but got {path}")
    # The same result gives the same file: no date, ids from the content alone.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)
    with mpl.rc_context({"svg.hashsalt": "buttress"}), atomic_write(path) as temporary:
        figure = Figure(figsize=FIGURE_SIZE, layout="constrained")
        FigureCanvasAgg(figure)
        plot(results, figure)
        figure.savefig(temporary, format=suffix[1:], dpi=150, metadata=metadata)
