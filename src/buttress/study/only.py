"""Part of a study: the runs at some labels of its axes, and those that they begin with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from buttress.errors import UserError
from buttress.study.cells import Cell
from buttress.study.scales import Scale
from buttress.study.spec import StudySpec

Only = Mapping[str, tuple[str, ...]]  # axis -> labels


def parse_only(texts: Iterable[str], study: StudySpec, scale: Scale) -> Only:
    """``architecture=VGG,ResNet`` -> its axis and labels; names are checked."""
    known = {axis: list(options) for axis, options in study.scaled(scale).axes.items()}
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        axis, _, given = text.partition("=")
        labels = tuple(label.strip() for label in given.split(",") if label.strip())
        if axis not in known or not labels:
            axes = ", ".join(known) or "none"
            raise UserError(
                f"part of a study is written axis=label,label with one of its axes ({axes}), "
                f"but got {text!r}"
            )
        if strange := [label for label in labels if label not in known[axis]]:
            raise UserError(
                f"{axis} {strange[0]!r} is not in {study.name} at scale {scale}; there are "
                f"{', '.join(known[axis])}"
            )
        found[axis] = (*found.get(axis, ()), *labels)
    return found


def chosen(cells: Sequence[Cell], only: Only) -> list[Cell]:
    """The cells at these labels and, over all steps, the runs that they begin with."""
    by_key = {cell.key: cell for cell in cells}
    keys: set[str] = set()
    for cell in cells:
        if not all(cell.labels.get(axis) in labels for axis, labels in only.items()):
            continue
        needed: Cell | None = cell
        while needed is not None and needed.key not in keys:
            keys.add(needed.key)
            needed = None if needed.source is None else by_key[needed.source]
    return [cell for cell in cells if cell.key in keys]
