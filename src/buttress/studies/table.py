"""The measured table of a study, and tables redrawn from it.

A value is uncertain because of the test images, the same for all rows, because of the seed of the
training, and because of what an analysis sampled. A redraw draws all of them again:

- images with replacement, the same for all values on the same images; every accuracy also gets
  noise of the size of one image, so that no accuracy of few images is taken as exact;
- the mean over seeds from the t distribution of its standard error. Accuracies of one column share
  the standard deviation over seeds; with one seed everywhere `ASSUMED_SEED_SD` stands for it;
- the images or draws that the figure of an analysis was averaged over, with replacement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.analysis.uncertainty import FigureSamples
from buttress.statistics import (
    Interval,
    mean_interval,
    summarize_seeds_and_images,
    wilson_interval,
)

REDRAWS = 2000
ASSUMED_SEED_SD = 0.005  # of an accuracy over training seeds, where every run has one seed
IMAGE_NOISE = 1.0  # images: standard deviation of the noise of an accuracy
CHUNK = 4_000_000  # weights of images drawn at once
RowLabels = tuple[str, ...]  # the labels of its axes
CellKey = tuple[RowLabels, str]  # row, column
NO_LABEL = "-"  # label of a row on an axis that does not apply to it


@dataclass(frozen=True)
class MeasuredValue:
    """A value with its per-sample scores, or one number, for each seed."""

    seeds: tuple[int, ...]
    scores: tuple[NDArray[np.float64], ...] = ()  # per seed: of each image, in order of their ids
    values_per_seed: tuple[float, ...] = ()  # for values without per-sample scores
    image_set: str = ""  # a hash of the ids: cells with the same images are resampled together
    figures: tuple[FigureSamples, ...] = ()  # per seed: what an analysis averaged over
    is_exact: bool = False  # a count or a formula: nothing that could be drawn again
    problem: str = ""  # why it decides no claim

    @property
    def by_seed(self) -> NDArray[np.float64]:
        parts = [float(f.mean()) for f in self.scores] or list(self.values_per_seed)
        return np.array(parts, dtype=np.float64)

    @property
    def value(self) -> float:
        return float(self.by_seed.mean()) if len(self.by_seed) else float("nan")

    @property
    def is_sampled(self) -> bool:
        """Whether it is a mean over images, or over draws of an analysis."""
        return bool(self.scores) or any(len(figure) for figure in self.figures)

    @property
    def mean_scores(self) -> NDArray[np.float64]:
        """(images,) mean score over seeds."""
        return np.asarray(np.mean(self.scores, axis=0))

    def redraw_figures(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(count,) the mean figure over seeds for each row of weights (count, units)."""
        return np.asarray(np.mean([figure.redraw(weights) for figure in self.figures], axis=0))

    @property
    def units(self) -> tuple[str, int]:
        """Which units it is a mean over, and how many: those of others are drawn together."""
        if self.scores:
            return self.image_set, len(self.scores[0])
        return self.figures[0].unit_set, len(self.figures[0])

    @property
    def is_uncertain(self) -> bool:
        """Whether something about it can be drawn again."""
        seeds = self.values_per_seed
        return self.is_sampled or len(set(seeds)) > 1 or len(seeds) > 2


@dataclass(frozen=True)
class ValueTable:
    """A table of numbers, measured or published, with its redraws. Missing is nan."""

    axes: tuple[str, ...]
    rows: tuple[RowLabels, ...]
    columns: Mapping[str, NDArray[np.float64]]  # name -> (rows,)
    attributes: tuple[Mapping[str, str | float], ...] = ()  # of each row
    units: Mapping[str, str] = field(default_factory=dict)  # percent unless stated otherwise
    redraws: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)  # (rows, redraws)
    accuracies: frozenset[str] = frozenset()  # columns with a floor of 0 and a ceiling of 1
    problems: Mapping[CellKey, str] = field(default_factory=dict)  # why a value decides nothing
    missing: Mapping[CellKey, str] = field(default_factory=dict)  # why there is none
    used: set[CellKey] = field(default_factory=set, compare=False)  # by the claim being assessed

    def values(self, column: str) -> NDArray[np.float64]:
        if column not in self.columns:
            raise KeyError(column)
        return self.columns[column]

    def draws(self, column: str) -> NDArray[np.float64]:
        """(rows, 1 + redraws): the values, then those of each redraw."""
        values = self.values(column)[:, None]
        return np.hstack([values, self.redraws[column]]) if column in self.redraws else values

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
            self.units,
        )

    def row_name(self, index: int) -> str:
        return _row_name(self.rows[index])

    def unit(self, column: str) -> str:
        return self.units.get(column, "percent")

    def format(self, column: str, value: float) -> str:
        """A value of a column in its unit: ``45.2`` percent, or the number."""
        return format_value(value, self.unit(column))

    def format_difference(self, column: str, value: float) -> str:
        return format_difference(value, self.unit(column))


def format_value(value: float, unit: str) -> str:
    return f"{100 * value:.1f}" if unit == "percent" else f"{value:.4g}"


def format_difference(value: float, unit: str) -> str:
    """``+1.2 points`` of percent, or the number with its sign."""
    return f"{100 * value:+.1f} points" if unit == "percent" else f"{value:+.3g}"


def _row_name(row: RowLabels) -> str:
    return " / ".join(label for label in row if label != NO_LABEL) or "the only row"


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
    values: Mapping[CellKey, MeasuredValue]  # missing ones are absent
    columns: tuple[str, ...]
    attributes: tuple[Mapping[str, str | float], ...] = ()
    missing: Mapping[CellKey, str] = field(default_factory=dict)  # and why
    units: Mapping[str, str] = field(default_factory=dict)

    def as_values(self, redraws: int = REDRAWS, seed: int = 0) -> ValueTable:
        """The table of the values, redrawn so many times."""
        estimates = {key: value.value for key, value in self.values.items()}
        columns = {
            column: np.array([estimates.get((row, column), np.nan) for row in self.rows])
            for column in self.columns
        }
        return ValueTable(
            self.axes,
            self.rows,
            columns,
            self.attributes,
            self.units,
            self._redraw(redraws, seed) if redraws else {},
            frozenset(column for (_, column), value in self.values.items() if value.scores),
            {key: text for key, value in self.values.items() if (text := _problem(key, value))},
            self.missing,
        )

    def _redraw(self, count: int, seed: int) -> dict[str, NDArray[np.float64]]:
        """(rows, count) redraws of each column."""
        generator = np.random.default_rng(seed)
        samples = self._redraw_units(count, generator)
        for key, value in self.values.items():
            samples.setdefault(key, np.full(count, value.value))
        for column in self.columns:
            cells = [(key, v) for key, v in self.values.items() if key[1] == column]
            for key, noise in _seed_noise(cells, count, generator).items():
                samples[key] = samples[key] + noise
        empty = np.full(count, np.nan)
        return {
            column: np.array([samples.get((row, column), empty) for row in self.rows]).reshape(
                len(self.rows), count
            )
            for column in self.columns
        }

    def _redraw_units(
        self, count: int, generator: np.random.Generator
    ) -> dict[CellKey, NDArray[np.float64]]:
        """Values on images drawn with replacement; those on the same images share the draw."""
        groups: dict[tuple[str, int], list[CellKey]] = {}
        for key, value in self.values.items():
            if value.is_sampled:
                groups.setdefault(value.units, []).append(key)
        samples: dict[CellKey, NDArray[np.float64]] = {}
        for (_, size), keys in groups.items():
            chunk, parts = max(CHUNK // size, 1), []
            scores = [self.values[k].mean_scores for k in keys if self.values[k].scores]
            for start in range(0, count, chunk):
                weights = _resampling_weights(size, min(chunk, count - start), generator)
                accuracies = iter(np.array(scores) @ weights.T if scores else ())
                parts.append(
                    [
                        next(accuracies)
                        if (value := self.values[key]).scores
                        else value.redraw_figures(weights)
                        for key in keys
                    ]
                )
            for key, replicate in zip(keys, np.concatenate(parts, axis=1), strict=True):
                scale = IMAGE_NOISE / size if self.values[key].scores else 0.0
                samples[key] = replicate + scale * generator.standard_normal(count)
        return samples

    def intervals(self, table: ValueTable) -> dict[CellKey, Interval]:
        """95% interval of each value: over images, over images and seeds, or of the redraws."""
        row_index = {row: index for index, row in enumerate(self.rows)}
        intervals = {}
        for (row, column), value in self.values.items():
            if len(value.scores) > 1:
                intervals[row, column] = summarize_seeds_and_images(value.scores).interval
            elif value.scores and set(np.unique(value.scores[0])) <= {0.0, 1.0}:
                intervals[row, column] = wilson_interval(
                    int(value.scores[0].sum()), len(value.scores[0])
                )
            elif value.scores and value.scores[0].min() >= 0 and value.scores[0].max() <= 1:
                intervals[row, column] = mean_interval(value.scores[0])
            elif value.is_uncertain and column in table.redraws:
                draws = table.redraws[column][row_index[row]]
                low, high = np.quantile(draws, (0.025, 0.975))
                intervals[row, column] = Interval(float(low), float(high))
        return intervals


def _problem(key: CellKey, value: MeasuredValue) -> str:
    """Why a value decides no claim."""
    row, column = key
    name = _row_name(row)
    if value.problem:
        return f"{name}: {value.problem}"
    if value.is_exact or value.is_uncertain:
        return ""
    reasons = {figure.reason for figure in value.figures if figure.reason}
    return f"{column} of {name} has no uncertainty with one seed" + "".join(
        f": {why}" for why in sorted(reasons)
    )


def _resampling_weights(
    size: int, count: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """(count, size) how often each unit is drawn, as a share."""
    draws = generator.integers(size, size=(count, size)) + size * np.arange(count)[:, None]
    return np.bincount(draws.ravel(), minlength=count * size).reshape(count, size) / size


def _seed_noise(
    cells: Sequence[tuple[CellKey, MeasuredValue]], count: int, generator: np.random.Generator
) -> dict[CellKey, NDArray[np.float64]]:
    """What another choice of seeds may change in each value of a column."""
    several = [v.by_seed for _, v in cells if v.scores and len(v.by_seed) > 1]
    freedom = sum(len(values) - 1 for values in several)
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in several)
    pooled = squares / freedom if freedom else ASSUMED_SEED_SD**2
    shared_scale = np.sqrt(freedom / generator.chisquare(freedom, count)) if freedom else 1.0
    noise = {}
    for key, value in cells:
        seeds = len(value.by_seed)
        own = float(value.by_seed.var(ddof=1)) if seeds > 1 else 0.0
        if value.scores:
            deviation, scale = math.sqrt(max(own, pooled) / seeds), shared_scale
        elif seeds > 1 and not value.is_exact:
            deviation = math.sqrt(own / seeds)
            scale = np.sqrt((seeds - 1) / generator.chisquare(seeds - 1, count))
        else:
            continue
        noise[key] = deviation * scale * generator.standard_normal(count)
    return noise
