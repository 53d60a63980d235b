"""Verdicts per image. Accuracies, intervals and the worst case are computed from them when read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.errors import CorruptFile, RunError
from buttress.files import replacing
from buttress.spec import digest
from buttress.statistics import Interval, wilson

META = b"buttress"


@dataclass(frozen=True)
class AttackRecord:
    """What one attack did to each image."""

    name: str
    ids: NDArray[np.int64]  # (N,) permanent sample ids
    labels: NDArray[np.int64]
    predictions: NDArray[np.int64]  # of the attacked image
    correct: NDArray[np.bool_]
    loss: NDArray[np.float32]  # cross-entropy at the attacked image
    distance: NDArray[np.float32]  # in the threat's norm; 0 for clean images
    meta: Mapping[str, Any] = field(default_factory=dict)  # how it was made

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean()) if len(self) else float("nan")


def write_record(path: Path, record: AttackRecord) -> None:
    """Writes one Parquet file with checksummed pages; how it was made is in its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "id": record.ids,
        "label": record.labels,
        "prediction": record.predictions,
        "correct": record.correct,
        "loss": record.loss,
        "distance": record.distance,
    }
    sha256 = content_digest(columns, record.meta)
    meta = {"name": record.name, "made": dict(record.meta), "sha256": sha256}
    table = pa.table(columns).replace_schema_metadata({META: json.dumps(meta).encode()})
    with replacing(path) as temporary:
        pq.write_table(table, temporary, write_page_checksum=True)


def read_record(path: Path) -> AttackRecord:
    """Reads a record and checks its content; raises `CorruptFile` if anything changed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, page_checksum_verification=True)
        meta = json.loads(table.schema.metadata[META])
        columns = {n: table.column(n).to_numpy() for n in table.column_names}
        made = meta["made"]
        whole = meta["sha256"] == content_digest(columns, made)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        reason = str(error).split("\n")[0][:120]
        raise CorruptFile(f"{path} is truncated or not a record ({reason})") from None
    if not whole:
        raise CorruptFile(f"{path} does not match its own checksum")
    return AttackRecord(
        name=meta["name"],
        ids=columns["id"],
        labels=columns["label"],
        predictions=columns["prediction"],
        correct=columns["correct"],
        loss=columns["loss"],
        distance=columns["distance"],
        meta=made,
    )


def read_made(path: Path) -> tuple[int, dict[str, Any]]:
    """How many images a record has and how it was made, from its footer alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(path)
        made: dict[str, Any] = json.loads(footer.metadata[META])["made"]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        reason = str(error).split("\n")[0][:120]
        raise CorruptFile(f"{path} is truncated or not a record ({reason})") from None
    return int(footer.num_rows), made


def content_digest(columns: Mapping[str, NDArray[Any]], made: Mapping[str, Any]) -> str:
    """A hash over all values of a record and how they were made."""
    parts = {n: digest(np.ascontiguousarray(c).tobytes().hex()) for n, c in columns.items()}
    return digest({"columns": parts, "made": json.loads(json.dumps(dict(made)))})


@dataclass(frozen=True)
class Evaluation:
    """The records of one suite on one model: all images, every attack."""

    suite: str
    records: Mapping[str, AttackRecord]
    warnings: tuple[str, ...] = ()  # reasons to distrust the numbers

    def __post_init__(self) -> None:
        sets = {r.ids.tobytes() for r in self.records.values()}
        if len(sets) > 1:
            sizes = ", ".join(f"{n}: {len(r)}" for n, r in self.records.items())
            raise RunError(f"the attacks of suite {self.suite!r} saw different images ({sizes})")

    def __len__(self) -> int:
        return len(next(iter(self.records.values()))) if self.records else 0

    @property
    def correct(self) -> dict[str, NDArray[np.bool_]]:
        return {name: record.correct for name, record in self.records.items()}

    @property
    def accuracy(self) -> dict[str, float]:
        return {name: record.accuracy for name, record in self.records.items()}

    @property
    def survived(self) -> NDArray[np.bool_]:
        """Per image: right under every attack of the suite, and without one."""
        return np.logical_and.reduce([r.correct for r in self.records.values()])

    @property
    def worst_case(self) -> float:
        """Share of all images that survive everything: the mean of per-image minima."""
        return float(self.survived.mean()) if len(self) else float("nan")

    def interval(self, name: str = "worst_case") -> Interval:
        """The 95% interval of an accuracy, over the draw of test images."""
        flags = self.survived if name == "worst_case" else self.records[name].correct
        return wilson(int(flags.sum()), len(flags))

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        rows = {n: {"accuracy": a, "interval": self.interval(n)} for n, a in self.accuracy.items()}
        return {
            "suite": self.suite,
            "images": len(self),
            "attacks": rows,
            "worst_case": {"accuracy": self.worst_case, "interval": self.interval()},
            "warnings": list(self.warnings),
        }
