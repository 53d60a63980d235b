"""Uncertainty of the figures of an analysis: what a figure was averaged over, kept in its record.

An analysis that averages over images (or random draws) keeps one value per image of each figure, so
that a figure can be redrawn without computing the analysis again. A figure without such values
is exact (a formula), varies between training seeds only (a function of the weights), or has no
known uncertainty; the record says which, and why.

``figure_samples(record, path)`` is the one way to read them.
"""

from __future__ import annotations

import base64
import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from buttress.config import Spec
from buttress.system.files import digest

Floats = NDArray[np.float64]
VariesBy = Literal["image", "draw", "class", "seed", "exact", "none"]
Statistic = Literal["mean", "relative_gap", "relative_shortfall", "log_log_slope"]
TINY = 1e-12


@dataclass(frozen=True)
class FigureSamples:
    """Values from which one figure can be drawn again, or why there are none.

    ``varies_by`` is the unit to resample: ``image``, ``draw`` (of the analysis itself) or
    ``class`` come with ``values``; ``seed`` means that the figure is a function of the weights and
    varies between runs only; ``exact`` that it is a formula and does not vary; ``none`` that its
    uncertainty is not known. The last three come with a ``reason``.
    """

    varies_by: VariesBy
    values: Floats | None = None  # (terms, n): one row per term, one column per unit; nan: left out
    statistic: Statistic = "mean"  # function of the means of the terms that gives the figure
    grid: tuple[float, ...] = ()  # of `log_log_slope`: where the terms are
    unit_set: str = ""  # hash of the units: figures with the same one are resampled together
    reason: str = ""

    def __len__(self) -> int:
        """The number of units."""
        return 0 if self.values is None else self.values.shape[1]

    @property
    def value(self) -> float:
        """The figure itself."""
        return float(self.redraw(np.full((1, len(self)), 1 / max(len(self), 1)))[0])

    def redraw(self, weights: Floats) -> Floats:
        """(count,) the figure for each row of weights (count, n) of the units.

        A bootstrap resample is ``generator.multinomial(n, [1 / n] * n, count) / n``.

        Raises:
            ValueError: there are no values to redraw from; ``reason`` says why.
        """
        if self.values is None:
            raise ValueError(self.reason)
        is_counted = np.isfinite(self.values)
        total = weights @ is_counted.T.astype(float)
        sums = weights @ np.where(is_counted, self.values, 0.0).T
        means = np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)  # (count, terms)
        return _apply_statistic(self.statistic, means, self.grid)


def _apply_statistic(statistic: Statistic, means: Floats, grid: Sequence[float]) -> Floats:
    """(count,) the figure from the means (count, terms) of its terms."""
    if statistic == "relative_gap":
        return 100 * np.abs(means[:, 0] - means[:, 1]) / np.maximum(means[:, 0], TINY)
    if statistic == "relative_shortfall":
        return 100 * (1 - means[:, 0] / np.maximum(means[:, 1], TINY))
    if statistic == "log_log_slope":
        x = np.log(np.array(grid))
        x = x - x.mean()
        slopes = np.log(np.maximum(means, TINY)) @ x / (x @ x)
        return np.where((means > 0).all(1), slopes, 0.0)
    return means[:, 0]


class StoredSamples(Spec):
    """The samples of one figure as they are saved: bytes in base64."""

    varies_by: VariesBy
    shape: tuple[int, int]
    encoding: Literal["float32", "bits"]  # bits where all values are 0 or 1
    values: str
    statistic: Statistic = "mean"
    grid: tuple[float, ...] = ()
    unit_set: str = ""

    def load(self) -> FigureSamples:
        content = base64.b64decode(self.values)
        if self.encoding == "bits":
            values = np.unpackbits(np.frombuffer(content, "u1"), count=math.prod(self.shape))
        else:
            values = np.frombuffer(content, "<f4")
        array = values.astype(float).reshape(self.shape)
        return FigureSamples(self.varies_by, array, self.statistic, self.grid, self.unit_set)


class UncertaintyNote(Spec):
    """Why the figures at paths that match ``pattern`` have no samples."""

    pattern: str
    varies_by: VariesBy
    reason: str


WEIGHTS_ONLY = UncertaintyNote(
    pattern="*",
    varies_by="seed",
    reason="it is a function of the weights and varies between training seeds only",
)
FORMULA = UncertaintyNote(pattern="*", varies_by="exact", reason="it is a formula without samples")
OWN_INTERVAL = UncertaintyNote(
    pattern="*", varies_by="none", reason="its 95% interval is beside it (low, high)"
)
UNKNOWN = UncertaintyNote(
    pattern="*", varies_by="none", reason="the analysis keeps no samples of this figure"
)


@dataclass(frozen=True)
class SampleUnits:
    """The images, draws or classes that the figures of one analysis are averaged over."""

    ids: Any  # (n,) integers: a tensor or a sequence
    varies_by: VariesBy = "image"

    def store(
        self, *terms: Any, statistic: Statistic = "mean", grid: Sequence[float] = ()
    ) -> StoredSamples:
        """Store a figure by its terms, each (n,) in the order of ``ids``.

        Args:
            terms: arrays or tensors with one value per unit; nan leaves a unit out.
            statistic: what gives the figure from the means of the terms.
            grid: where the terms of a slope are.
        """
        ids = np.asarray(self.ids)
        order = np.argsort(ids, kind="stable")
        values = np.stack([np.asarray(term, dtype="<f4")[order] for term in terms])
        is_binary = bool(np.isin(values, (0, 1)).all())
        content = np.packbits(values.astype(bool)) if is_binary else values
        return StoredSamples(
            varies_by=self.varies_by,
            shape=(values.shape[0], values.shape[1]),
            encoding="bits" if is_binary else "float32",
            values=base64.b64encode(content.tobytes()).decode(),
            statistic=statistic,
            grid=tuple(map(float, grid)),
            unit_set=digest(ids[order].tolist()),
        )


def figure_samples(record: Mapping[str, Any], path: str, *, run: str = "") -> FigureSamples:
    """Samples of one figure in the saved record of an analysis.

    Args:
        record: the content of ``analysis/<name>.json``.
        path: where the figure is in the result, as in a column of a study:
            ``stable.fraction``, ``blocks[0].l1_linf.at_attack_result``, ``blocks.logits.l2_l2``.
        run: for an analysis of several runs, the run whose part the path is in.

    Returns:
        The samples; without values, ``varies_by`` and ``reason`` say why there are none.

    Raises:
        LookupError: the result has nothing at this path.
    """
    result = record["result"]
    prefix = ("by_run", run) if run else ()
    name = format_path((*prefix, *resolve_path(result["by_run"][run] if run else result, path)))
    stored = result.get("samples", {}).get(name)
    if stored is not None:
        return StoredSamples.model_validate(stored).load()
    notes = [UncertaintyNote.model_validate(note) for note in record.get("uncertainty", ())]
    note = next((n for n in notes if fnmatch.fnmatchcase(name, n.pattern)), UNKNOWN)
    return FigureSamples(note.varies_by, reason=note.reason)


def resolve_path(result: Any, path: str) -> tuple[str | int, ...]:
    """Keys and positions that lead to ``path``; items of lists are found by position or value.

    Raises:
        LookupError: the result has nothing there.
    """
    keys: list[str | int] = []
    for part in path.replace("[", ".[").strip(".").split("."):
        key = _find_key(result, part)
        if key is None:
            raise LookupError(f"the result has no key {part!r} ({path})")
        keys.append(key)
        result = result[key]
    return tuple(keys)


def _find_key(container: Any, part: str) -> str | int | None:
    if isinstance(container, Mapping):
        return part if part in container else None
    if not isinstance(container, Sequence) or isinstance(container, str):
        return None
    if part.startswith("["):
        index = int(part.strip("[]"))
        return index % len(container) if -len(container) <= index < len(container) else None
    items = ((i, item) for i, item in enumerate(container) if isinstance(item, Mapping))
    return next((i for i, item in items if part in map(str, item.values())), None)


def format_path(keys: Sequence[str | int]) -> str:
    """``blocks[0].l1_linf`` of ("blocks", 0, "l1_linf")."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return text.removeprefix(".")
