"""The measured table of a study, with per-sample results for bootstrap resampling.

A number's uncertainty is over the draw of test images, the same for all rows, and over seeds: a
replicate draws both again with replacement, and every claim is asked of every replicate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.statistics import Interval, wilson_interval

REPLICATES = 1000
RowLabels = tuple[str, ...]  # the labels of its axes
NO_LABEL = "-"  # label of a row on an axis that does not apply to it


@dataclass(frozen=True)
class MeasuredValue:
    """A value with its per-sample scores, or one number, for each seed."""

    seeds: tuple[int, ...]
    scores: tuple[NDArray[np.float64], ...] = ()  # per seed: of each image, in order of their ids
    values_per_seed: tuple[float, ...] = ()  # for values without per-sample scores
    image_set: str = ""  # a hash of the ids: cells with the same images are resampled together

    @property
    def value(self) -> float:
        parts = [float(f.mean()) for f in self.scores] or list(self.values_per_seed)
        return float(np.mean(parts)) if parts else float("nan")


@dataclass(frozen=True)
class ValueTable:
    """A table of plain numbers: measured, published, or one replicate. Missing is nan."""

    axes: tuple[str, ...]
    rows: tuple[RowLabels, ...]
    columns: Mapping[str, NDArray[np.float64]]  # name -> (rows,)
    attributes: tuple[Mapping[str, str | float], ...] = ()  # of each row

    def values(self, column: str) -> NDArray[np.float64]:
        if column not in self.columns:
            raise KeyError(column)
        return self.columns[column]

    def mask(self, where: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Mask of the rows with these labels and attributes; a list means any of them."""
        return np.array([self._matches(i, where) for i in range(len(self.rows))], dtype=bool)

    def _matches(self, index: int, where: Mapping[str, Any]) -> bool:
        attributes = self.row_attributes(index)
        for key, expected in where.items():
            options = expected if isinstance(expected, (list, tuple)) else [expected]
            if str(attributes.get(key)) not in [str(option) for option in options]:
                return False
        return True

    def row_attributes(self, index: int) -> dict[str, str | float]:
        """Labels and attributes of a row."""
        attributes = self.attributes[index] if self.attributes else {}
        return {**dict(zip(self.axes, self.rows[index], strict=True)), **attributes}

    def numeric(self, key: str) -> NDArray[np.float64]:
        """A label or attribute as numbers, for trends along it."""
        return np.array([_as_float(self.row_attributes(i).get(key)) for i in range(len(self.rows))])

    def measured_rows(self) -> ValueTable:
        """The table without rows that have no value at all."""
        numbers = np.array(list(self.columns.values())).reshape(-1, len(self.rows))
        rows = np.flatnonzero(~np.isnan(numbers).all(axis=0))
        return ValueTable(
            self.axes,
            tuple(self.rows[i] for i in rows),
            {name: values[rows] for name, values in self.columns.items()},
            tuple(self.attributes[i] for i in rows) if self.attributes else (),
        )

    def row_name(self, index: int) -> str:
        return (
            " / ".join(label for label in self.rows[index] if label != NO_LABEL) or "the only row"
        )


def _as_float(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return float("nan")


@dataclass(frozen=True)
class StudyTable:
    """The measured values of a study."""

    axes: tuple[str, ...]
    rows: tuple[RowLabels, ...]
    values: Mapping[tuple[RowLabels, str], MeasuredValue]  # missing ones are absent
    columns: tuple[str, ...]
    attributes: tuple[Mapping[str, str | float], ...] = ()
    missing: Mapping[tuple[RowLabels, str], str] = field(default_factory=dict)  # and why

    @property
    def as_values(self) -> ValueTable:
        columns = {
            column: np.array([self._value(row, column) for row in self.rows])
            for column in self.columns
        }
        return ValueTable(self.axes, self.rows, columns, self.attributes)

    def _value(self, row: RowLabels, column: str) -> float:
        value = self.values.get((row, column))
        return float("nan") if value is None else value.value

    def replicates(self, count: int = REPLICATES, seed: int = 0) -> list[ValueTable]:
        """Bootstrap tables, resampled over test images and seeds."""
        generator = np.random.default_rng(seed)
        samples = {
            k: self._resample(value, count, generator, {}) for k, value in self._without_images()
        }
        weights: dict[str, NDArray[np.float64]] = {}
        for key, value in self.values.items():
            if key not in samples:
                samples[key] = self._resample(value, count, generator, weights)
        columns = {
            column: np.array(
                [samples.get((row, column), np.full(count, np.nan)) for row in self.rows]
            ).reshape(len(self.rows), count)
            for column in self.columns
        }
        return [
            ValueTable(
                self.axes, self.rows, {c: v[:, b] for c, v in columns.items()}, self.attributes
            )
            for b in range(count)
        ]

    def _without_images(self) -> Sequence[tuple[tuple[RowLabels, str], MeasuredValue]]:
        return [(key, cell) for key, cell in self.values.items() if not cell.scores]

    @staticmethod
    def _resample(
        value: MeasuredValue,
        count: int,
        generator: np.random.Generator,
        weights: dict[str, NDArray[np.float64]],
    ) -> NDArray[np.float64]:
        """(count,) bootstrap values of one cell; cells on the same images share the resample."""
        if not value.scores:
            seed_means = np.tile(np.array(value.values_per_seed, dtype=float)[:, None], (1, count))
        else:
            size = len(value.scores[0])
            if value.image_set not in weights:
                equal = np.full(size, 1 / size)
                weights[value.image_set] = generator.multinomial(size, equal, count) / size
            seed_means = np.stack(value.scores) @ weights[value.image_set].T
        if len(seed_means) == 1:
            return seed_means[0]
        seed_draws = generator.integers(len(seed_means), size=(len(seed_means), count))
        return np.take_along_axis(seed_means, seed_draws, axis=0).mean(axis=0)

    def intervals(self, replicates: Sequence[ValueTable]) -> dict[tuple[RowLabels, str], Interval]:
        """95% interval of each cell: Wilson's for one seed, else bootstrap percentiles."""
        row_index = {row: index for index, row in enumerate(self.rows)}
        intervals = {}
        for (row, column), value in self.values.items():
            if len(value.scores) == 1 and set(np.unique(value.scores[0])) <= {0.0, 1.0}:
                intervals[row, column] = wilson_interval(
                    int(value.scores[0].sum()), len(value.scores[0])
                )
            elif (value.scores or len(value.seeds) > 1) and replicates:
                values = [view.columns[column][row_index[row]] for view in replicates]
                low, high = np.quantile(values, (0.025, 0.975))
                intervals[row, column] = Interval(float(low), float(high))
        return intervals
