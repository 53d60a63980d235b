"""The picture of a search: robust validation accuracy against what a network costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from buttress.analysis.draw import draw
from buttress.records.search import Front, Search, Tried

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORDS = {"parameters": "parameters", "macs": "multiply-accumulates per image"}


def draw_search(found: Search, path: Path) -> None:
    """Writes the picture; a rung is a colour, for accuracies of other rungs are not comparable."""
    draw(plot_search, {found.search: found}, path)


def plot_search(results: Mapping[str, Search], figure: Figure) -> None:
    panels = figure.subplots(len(results), 2, squeeze=False)
    for row, found in zip(panels, results.values(), strict=True):
        for axes, front in zip(row, found.fronts, strict=True):
            _panel(found, front, axes)
        row[0].set_ylabel("robust validation accuracy")
        row[0].legend(fontsize="small")


def _panel(found: Search, front: Front, axes: Axes) -> None:
    for number, rung in enumerate(found.rungs):
        here = [t for t in found.ranking if len(t.scores) == number + 1]
        is_last = number == len(found.rungs) - 1
        if not here:
            continue
        grey = 0.8 - 0.6 * number / len(found.rungs)
        axes.errorbar(
            [getattr(t, front.price) for t in here], [t.scores[-1].value for t in here],
            yerr=[[t.scores[-1].value - t.scores[-1].low for t in here],
                  [t.scores[-1].high - t.scores[-1].value for t in here]],
            fmt="o" if is_last else "x", color="C0" if is_last else f"{grey:.2f}",
            linewidth=1, capsize=2, label=_epochs(here, rung.share),
        )  # fmt: skip
    line = sorted((getattr(t, front.price), t.scores[-1].value)
                  for t in (found.ranking[i] for i in front.best))  # fmt: skip
    axes.plot([x for x, _ in line], [y for _, y in line], color="C0", linewidth=1, zorder=0)
    if (limit := found.budget.get(front.price)) is not None:
        axes.axvline(limit, color="C3", linewidth=1, linestyle="--")
    axes.set(xlabel=WORDS[front.price], xscale="log")


def _epochs(here: list[Tried], share: float) -> str:
    counts = sorted({t.scores[-1].epochs for t in here})
    named = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"trained {named} epochs" + (" (in full)" if share == 1 else "")
