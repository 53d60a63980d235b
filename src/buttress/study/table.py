"""The measured table of a study: verdicts per image behind every number, so that it has a spread.

A number's uncertainty is over the draw of test images, the same for all rows, and over seeds: a
replicate draws both again with replacement, and every claim is asked of every replicate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.statistics import Interval, wilson

REPLICATES = 1000
Row = tuple[str, ...]  # the labels of its axes
NONE = "-"  # the label of a row on an axis that it has no place on


@dataclass(frozen=True)
class Measured:
    """One number with what it is made of: a score per image, or one figure, for each seed."""

    seeds: tuple[int, ...]
    scores: tuple[NDArray[np.float64], ...] = ()  # per seed: of each image, in order of their ids
    figures: tuple[float, ...] = ()  # where there are no images behind it
    images: str = ""  # a hash of the ids: cells with the same images are resampled together

    @property
    def value(self) -> float:
        parts = [float(f.mean()) for f in self.scores] or list(self.figures)
        return float(np.mean(parts)) if parts else float("nan")


@dataclass(frozen=True)
class View:
    """A table of plain numbers: measured, published, or one replicate. Missing is nan."""

    axes: tuple[str, ...]
    rows: tuple[Row, ...]
    columns: Mapping[str, NDArray[np.float64]]  # name -> (rows,)
    attributes: tuple[Mapping[str, str | float], ...] = ()  # of each row

    def values(self, column: str) -> NDArray[np.float64]:
        if column not in self.columns:
            raise KeyError(column)
        return self.columns[column]

    def mask(self, where: Mapping[str, Any]) -> NDArray[np.bool_]:
        """The rows whose labels and attributes are as asked; a list means any of them."""
        return np.array([self._fits(i, where) for i in range(len(self.rows))], dtype=bool)

    def _fits(self, index: int, where: Mapping[str, Any]) -> bool:
        known = self.about(index)
        for key, wanted in where.items():
            options = wanted if isinstance(wanted, (list, tuple)) else [wanted]
            if str(known.get(key)) not in [str(option) for option in options]:
                return False
        return True

    def about(self, index: int) -> dict[str, str | float]:
        """Labels and attributes of a row."""
        own = self.attributes[index] if self.attributes else {}
        return {**dict(zip(self.axes, self.rows[index], strict=True)), **own}

    def numbers(self, key: str) -> NDArray[np.float64]:
        """A label or attribute as numbers, for trends along it."""
        return np.array([_number(self.about(i).get(key)) for i in range(len(self.rows))])

    def known_rows(self) -> View:
        """The rows with any number at all: a published table speaks of its own rows only."""
        numbers = np.array(list(self.columns.values())).reshape(-1, len(self.rows))
        kept = np.flatnonzero(~np.isnan(numbers).all(axis=0))
        return View(
            self.axes,
            tuple(self.rows[i] for i in kept),
            {name: values[kept] for name, values in self.columns.items()},
            tuple(self.attributes[i] for i in kept) if self.attributes else (),
        )

    def name(self, index: int) -> str:
        return " / ".join(label for label in self.rows[index] if label != NONE) or "the only row"


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return float("nan")


@dataclass(frozen=True)
class Table:
    """What a study measured so far."""

    axes: tuple[str, ...]
    rows: tuple[Row, ...]
    cells: Mapping[tuple[Row, str], Measured]  # missing ones are absent
    columns: tuple[str, ...]
    attributes: tuple[Mapping[str, str | float], ...] = ()
    missing: Mapping[tuple[Row, str], str] = field(default_factory=dict)  # and why

    @property
    def view(self) -> View:
        columns = {
            column: np.array([self._value(row, column) for row in self.rows])
            for column in self.columns
        }
        return View(self.axes, self.rows, columns, self.attributes)

    def _value(self, row: Row, column: str) -> float:
        cell = self.cells.get((row, column))
        return float("nan") if cell is None else cell.value

    def replicates(self, count: int = REPLICATES, seed: int = 0) -> list[View]:
        """The table as other draws of test images and seeds would have shown it."""
        generator = np.random.default_rng(seed)
        drawn = {k: self._draw(cell, count, generator, {}) for k, cell in self._alone()}
        weights: dict[str, NDArray[np.float64]] = {}
        for key, cell in self.cells.items():
            if key not in drawn:
                drawn[key] = self._draw(cell, count, generator, weights)
        stacked = {
            column: np.array(
                [drawn.get((row, column), np.full(count, np.nan)) for row in self.rows]
            ).reshape(len(self.rows), count)
            for column in self.columns
        }
        return [
            View(self.axes, self.rows, {c: v[:, b] for c, v in stacked.items()}, self.attributes)
            for b in range(count)
        ]

    def _alone(self) -> Sequence[tuple[tuple[Row, str], Measured]]:
        return [(key, cell) for key, cell in self.cells.items() if not cell.scores]

    @staticmethod
    def _draw(
        cell: Measured,
        count: int,
        generator: np.random.Generator,
        weights: dict[str, NDArray[np.float64]],
    ) -> NDArray[np.float64]:
        """(count,) values of one cell; cells on the same images share the draw of images."""
        if not cell.scores:
            parts = np.tile(np.array(cell.figures, dtype=float)[:, None], (1, count))
        else:
            size = len(cell.scores[0])
            if cell.images not in weights:
                equal = np.full(size, 1 / size)
                weights[cell.images] = generator.multinomial(size, equal, count) / size
            parts = np.stack(cell.scores) @ weights[cell.images].T
        if len(parts) == 1:
            return parts[0]
        chosen = generator.integers(len(parts), size=(len(parts), count))
        return np.take_along_axis(parts, chosen, axis=0).mean(axis=0)

    def intervals(self, replicates: Sequence[View]) -> dict[tuple[Row, str], Interval]:
        """95% of each cell: Wilson's for one seed, else the middle of the replicates."""
        places = {row: index for index, row in enumerate(self.rows)}
        found = {}
        for (row, column), cell in self.cells.items():
            if len(cell.scores) == 1 and set(np.unique(cell.scores[0])) <= {0.0, 1.0}:
                found[row, column] = wilson(int(cell.scores[0].sum()), len(cell.scores[0]))
            elif (cell.scores or len(cell.seeds) > 1) and replicates:
                values = [view.columns[column][places[row]] for view in replicates]
                low, high = np.quantile(values, (0.025, 0.975))
                found[row, column] = Interval(float(low), float(high))
        return found
