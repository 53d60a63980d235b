"""Draws results into a picture file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from buttress.analysis.core import Plot
from buttress.errors import UserError
from buttress.files import replacing

FORMATS = (".png", ".svg", ".pdf")
SIZE = (11, 4.5)


def draw(plot: Plot, results: Mapping[str, Any], path: Path) -> None:
    """Writes the picture of one or several results; the file's ending says which format."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise UserError(f"a picture is .png, .svg or .pdf, but got {path}")
    # The same result gives the same file: no date, ids from the content alone.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(kind)
    with mpl.rc_context({"svg.hashsalt": "buttress"}), replacing(path) as temporary:
        figure = Figure(figsize=SIZE, layout="constrained")
        FigureCanvasAgg(figure)
        plot(results, figure)
        figure.savefig(temporary, format=kind[1:], dpi=150, metadata=metadata)
