"""The figure of the main study: accuracies of each architecture with their 95% intervals."""

from __future__ import annotations

import hashlib
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from buttress.results.study_result import StudyTableRow, read_study_result

# Column -> label, color and marker; the last one orders the rows.
SERIES = {
    "at_clean": ("clean", "#9aa5b1", "o"),
    "strong_linf": ("Linf 8/255, trained on", "#1f6fb4", "s"),
    "strong_l2": ("L2 0.5, unseen", "#3a9a57", "D"),
    "strong_l1": ("L1 12, unseen", "#d98a1f", "^"),
    "field_worst_case": ("worst case", "#b8263a", "o"),
}
CATEGORY_MARKS = {"cnn": "C", "transformer": "T", "hybrid": "H"}


def draw_answer(answer: Path, path: Path) -> None:
    """Draw the rows that have all values, the most robust first; T, H and C are categories.

    The picture carries the hash of the answer, so that a stale one is found.
    """
    result = read_study_result(answer)
    rows = sorted(filter(_is_measured, result.rows), key=_worst_case)
    with mpl.rc_context({"svg.hashsalt": "buttress", "font.size": 9}):
        height = 1.3 + 0.28 * len(rows)
        figure = Figure(figsize=(8, height), layout="constrained", facecolor="white")
        FigureCanvasSVG(figure)
        ax = figure.add_subplot()
        for column, (label, color, marker) in SERIES.items():
            values = [row.values[column] for row in rows]
            ax.hlines(
                range(len(rows)), [100 * (v.low or 0) for v in values],
                [100 * (v.high or 0) for v in values], color=color, linewidth=1.2,
            )  # fmt: skip
            ax.scatter(
                [100 * (v.value or 0) for v in values], range(len(rows)), s=22, color=color,
                marker=marker, label=label, zorder=3,
            )  # fmt: skip
        names = [
            f"{row.labels[0]} ({CATEGORY_MARKS[str(row.attributes['category'])]})" for row in rows
        ]
        ax.set_yticks(range(len(rows)), names)
        ax.set_xlim(left=0)
        ax.set_xlabel("accuracy, % (95% interval)")
        ax.grid(True, axis="x", color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)
        figure.legend(loc="outside upper center", ncols=len(SERIES), frameon=False)
        figure.savefig(
            path, format="svg", metadata={"Date": None, "Description": answer_hash(answer)}
        )


def answer_hash(answer: Path) -> str:
    return hashlib.sha256(answer.read_bytes()).hexdigest()


def _is_measured(row: StudyTableRow) -> bool:
    return all(row.values[column].value is not None for column in SERIES)


def _worst_case(row: StudyTableRow) -> float:
    return row.values["field_worst_case"].value or 0.0
