"""Runs of a board that differ in their seed only: mean and spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from buttress.report.board import Board, Row
from buttress.report.views import RunView
from buttress.spec import digest
from buttress.statistics import Spread, over_seeds, over_seeds_and_images


@dataclass(frozen=True)
class Group:
    """One training with several seeds."""

    run: RunView  # any of them
    seeds: tuple[int, ...]
    worst: Spread  # its interval covers other seeds and other images
    cells: tuple[Spread | None, ...]  # one per column; intervals cover other seeds


def groups(board: Board) -> list[Group]:
    """All trainings with two seeds or more that have a full result, the best first."""
    alike: dict[str, dict[int, Row]] = {}
    for row in board.ranked:
        identity = {k: v for k, v in row.run.spec.identity().items() if k != "seed"}
        alike.setdefault(digest(identity), {}).setdefault(row.run.spec.seed, row)
    found = [group(list(rows.values())) for rows in alike.values() if len(rows) > 1]
    return sorted(found, key=lambda g: (-g.worst.mean, g.run.model))


def group(rows: Sequence[Row]) -> Group:
    rows = sorted(rows, key=lambda r: r.run.spec.seed)
    columns = zip(*(r.cells for r in rows), strict=True)
    return Group(
        run=rows[0].run,
        seeds=tuple(r.run.spec.seed for r in rows),
        worst=over_seeds_and_images(np.stack([r.suite.survived for r in rows])),
        cells=tuple(
            over_seeds([c.share.value for c in cells if c.share is not None])
            if all(c.share is not None for c in cells)
            else None
            for cells in columns
        ),
    )
