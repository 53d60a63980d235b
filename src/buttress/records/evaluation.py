"""Verdicts per image. Accuracies, intervals and the worst case are computed from them when read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from buttress.errors import CorruptFile, RunError
from buttress.files import replacing
from buttress.records.corruption import CORRUPTION, Corruptions, summary_of
from buttress.records.diagnosis import (
    Diagnosis,
    Finding,
    are_trustworthy,
    findings_in,
    load_diagnosis,
    merged,
    texts,
)
from buttress.spec import digest, short
from buttress.statistics import Interval, mean_interval, wilson

META = b"buttress"
COLUMNS = {
    "id": "int64",
    "label": "int64",
    "prediction": "int64",
    "correct": "bool",
    "loss": "float32",
    "distance": "float32",
}
NOT_READ = (ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError)
MOST_IMAGES = 10_000_000  # a file of a few bytes can claim any number
MOST_CLASSES = 100_000


@dataclass(frozen=True)
class AttackRecord:
    """What one attack, or one corruption, did to each image.

    An attack looks only at images that are right without it, so ``correct`` is right under the
    attack and clean. A corruption is scored on all images: one that is wrong clean may be right
    corrupted.
    """

    name: str
    ids: NDArray[np.int64]  # (N,) permanent sample ids
    labels: NDArray[np.int64]
    predictions: NDArray[np.int64]  # of the attacked or corrupted image
    correct: NDArray[np.bool_]
    loss: NDArray[np.float32]  # cross-entropy at the attacked image
    distance: NDArray[np.float32]  # in the threat's norm; 0 for clean images
    meta: Mapping[str, Any] = field(default_factory=dict)  # how it was made

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean()) if len(self) else float("nan")

    @property
    def is_corruption(self) -> bool:
        return bool(self.meta.get("attack") == CORRUPTION)

    @property
    def counts(self) -> bool:
        """Whether it is part of the worst case."""
        return bool(self.meta.get("counts", True))


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
    made = json.loads(json.dumps(dict(record.meta)))  # as it will be read
    meta = {"name": record.name, "made": made, "sha256": content_digest(columns, made)}
    table = pa.table(columns).replace_schema_metadata({META: json.dumps(meta).encode()})
    with replacing(path) as temporary, temporary.open("wb") as stream:
        pq.write_table(table, stream, write_page_checksum=True)


_READ: ContextVar[dict[Path, AttackRecord] | None] = ContextVar("_READ", default=None)


@contextmanager
def reading_once() -> Iterator[None]:
    """Inside, a record that was read is kept: for work that goes over the same files twice."""
    token = _READ.set({})
    try:
        yield
    finally:
        _READ.reset(token)


def read_record(path: Path) -> AttackRecord:
    """Reads a record and checks its content; raises `CorruptFile` if anything changed."""
    kept = _READ.get()
    if kept is None:
        return _read_record(path)
    if path not in kept:
        kept[path] = _read_record(path)
    return kept[path]


def _read_record(path: Path) -> AttackRecord:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with _opened(path) as stream:  # read whole: Arrow's own small reads cost more
            file = pq.ParquetFile(pa.BufferReader(stream.read()), page_checksum_verification=True)
        check_size(file.metadata.num_rows)
        table = file.read(use_threads=False)
        meta = json.loads(table.schema.metadata[META])
        columns = {n: table.column(n).to_numpy() for n in table.column_names}
        name, made = meta["name"], meta["made"]
        whole = meta["sha256"] == content_digest(columns, made)
        problem = problem_of(columns, made)
    except (pa.ArrowException, OSError, *NOT_READ) as error:
        if isinstance(error, FileNotFoundError):
            raise
        reason = " ".join(str(error).split())[:120]
        raise CorruptFile(f"{path} is truncated or not a record ({reason})") from None
    if not whole:
        raise CorruptFile(f"{path} does not match its own checksum")
    if name != path.stem:
        raise CorruptFile(f"{path} holds the record of another attack, {short(name)}")
    if problem is not None:
        raise CorruptFile(f"{path} is no record of an attack: {problem}")
    return AttackRecord(
        name=name,
        ids=columns["id"],
        labels=columns["label"],
        predictions=columns["prediction"],
        correct=columns["correct"],
        loss=columns["loss"],
        distance=columns["distance"],
        meta=made,
    )


def _opened(path: Path) -> IO[bytes]:
    """Opened here, as Arrow takes no path that is not text."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise CorruptFile(f"{path} must be a file, but is something else")
    return path.open("rb")


class Made(BaseModel):
    """The types of what a record says of how it was made, as far as anything here relies on it."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    attack: str = ""
    threat: str = ""
    suite: str = ""
    dataset: str = ""
    split: str = ""
    mode: str = ""
    weights: str = ""
    data: str = ""
    images: str = ""
    counts: bool = True
    findings: list[dict[str, Any]] = []
    position: int = 0
    args: dict[str, Any] = {}
    classes: list[str] = []
    warnings: list[str] = []
    suite_attacks: list[str] = []
    parts: list[tuple[str, int, int]] = []
    versions: dict[str, str] = {}
    not_finite: int = 0
    drawn_from: int = 0
    until: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    seconds: float = 0.0


def problem_in_words(made: Any) -> str | None:
    """Why this cannot say how a record was made; None if it can."""
    try:
        said = Made.model_validate_json(json.dumps(made))
    except ValidationError as error:
        first = error.errors()[0]
        return f"its {'.'.join(map(str, first['loc']))} is wrong: {first['msg']}"
    corrupted = (said.args.get("corruption"), said.args.get("severity"))
    if said.attack == CORRUPTION and [type(v) for v in corrupted] != [str, int]:
        return "its args must name a corruption and a severity"
    return None


def problem_of(columns: Mapping[str, NDArray[Any]], made: Any) -> str | None:
    """Why values with a right checksum still cannot be verdicts; None if they can."""
    if (problem := problem_in_words(made)) is not None:
        return problem
    kinds = {n: str(c.dtype) for n, c in columns.items() if n in COLUMNS}
    if kinds != COLUMNS:
        return f"its columns must be {COLUMNS}, but are {kinds}"
    ids, labels, predictions = (columns[n] for n in ("id", "label", "prediction"))
    most = len(made.get("classes", ())) or MOST_CLASSES
    if len(np.unique(ids)) < len(ids):
        return "an id occurs twice"
    for what, values in (("label", labels), ("prediction", predictions)):
        if len(values) and not (values.min() >= 0 and values.max() < most):
            return f"a {what} is none of its classes"
    if (columns["correct"] & (labels != predictions)).any():
        return "an image counts as right, but its prediction is not its label"
    distance = columns["distance"]
    if not (np.isfinite(distance) & (distance >= 0)).all():
        return "a distance is no distance"
    return None


def check_size(rows: int) -> None:
    if rows > MOST_IMAGES:
        raise ValueError(f"it says that it has {rows} images")


def read_made(path: Path) -> tuple[int, dict[str, Any]]:
    """How many images a record has and how it was made, from its footer alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with _opened(path) as stream:
            footer = pq.read_metadata(stream)
        check_size(footer.num_rows)
        made: dict[str, Any] = json.loads(footer.metadata[META])["made"]
        problem = problem_in_words(made)
    except (pa.ArrowException, OSError, *NOT_READ) as error:
        if isinstance(error, FileNotFoundError):
            raise
        reason = " ".join(str(error).split())[:120]
        raise CorruptFile(f"{path} is truncated or not a record ({reason})") from None
    if problem is not None:
        raise CorruptFile(f"{path} is no record of an attack: {problem}")
    return int(footer.num_rows), made


def content_digest(columns: Mapping[str, NDArray[Any]], made: Mapping[str, Any]) -> str:
    """A hash over all values of a record and how they were made, as JSON gives it back."""
    parts = {n: digest(np.ascontiguousarray(c).tobytes().hex()) for n, c in columns.items()}
    return digest({"columns": parts, "made": made})


@dataclass(frozen=True)
class Evaluation:
    """The records of one suite on one model: all images, every attack and corruption."""

    suite: str
    records: Mapping[str, AttackRecord]
    warnings: tuple[str, ...] = ()  # reasons to distrust the numbers
    diagnosis: Diagnosis | None = None  # what the doctor said of this model, if it was asked

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
        """Per image: right without an attack and under everything in the suite that counts."""
        return np.logical_and.reduce([r.correct for r in self.records.values() if r.counts])

    @property
    def worst_case(self) -> float:
        """Share of all images that survive everything: the mean of per-image minima."""
        return float(self.survived.mean()) if len(self) else float("nan")

    def interval(self, name: str = "worst_case") -> Interval:
        """The 95% interval of an accuracy, over the draw of test images."""
        flags = self.survived if name == "worst_case" else self.records[name].correct
        return wilson(int(flags.sum()), len(flags))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Reasons to distrust the numbers, with their evidence; one of each kind, the gravest."""
        stored = [f for r in self.records.values() for f in findings_in(r.meta)]
        return merged([*stored, *(self.diagnosis.findings if self.diagnosis else ())])

    @property
    def trustworthy(self) -> bool:
        return are_trustworthy(self.findings)

    @property
    def attacks(self) -> dict[str, AttackRecord]:
        """The records that are not of corruptions."""
        return {n: r for n, r in self.records.items() if not r.is_corruption}

    @property
    def corruptions(self) -> Corruptions | None:
        """All corruptions together; None if the suite has none."""
        return summary_of(self.records.values())

    def per_class(self) -> dict[str, dict[str, float]]:
        """Class -> number of images, and accuracy under each attack and in the worst case."""
        return {
            name: {
                "images": len(next(iter(columns.values()))),
                **{n: float(c.mean()) for n, c in columns.items()},
            }
            for name, columns in self._classes()
        }

    def class_intervals(self) -> dict[str, dict[str, Interval]]:
        """Class -> the 95% interval of each of its accuracies."""
        return {
            name: {
                n: wilson(int(c.sum()), len(c)) if c.dtype == bool else mean_interval(c)
                for n, c in columns.items()
            }
            for name, columns in self._classes()
        }

    def _classes(self) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
        """Each class that occurs: what came of its images, under each attack and in the end."""
        first = next(iter(self.records.values()))
        names = [str(n) for n in first.meta.get("classes") or ()]
        columns: dict[str, NDArray[Any]] = {n: r.correct for n, r in self.attacks.items()}
        if (corrupted := self.corruptions) is not None:
            columns["corruptions"] = corrupted.shares
        columns["worst_case"] = self.survived
        order = np.argsort(first.labels, kind="stable")
        labels, starts = np.unique(first.labels[order], return_index=True)
        groups = np.split(order, starts[1:])
        for label, rows in zip(labels.tolist(), groups, strict=True):
            name = names[label] if label < len(names) else str(label)
            yield name, {n: c[rows] for n, c in columns.items()}

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        rows = {
            n: {"accuracy": r.accuracy, "interval": self.interval(n)}
            for n, r in self.attacks.items()
        }
        corrupted = self.corruptions
        return {
            "suite": self.suite,
            "images": len(self),
            "attacks": rows,
            **({} if corrupted is None else {"corruptions": corrupted.to_dict()}),
            "worst_case": {"accuracy": self.worst_case, "interval": self.interval()},
            "trustworthy": self.trustworthy,
            "per_class": self._per_class_dict() if len(self) else {},
            "warnings": list(self.warnings),
            "findings": [f.model_dump(mode="json") for f in self.findings],
        }

    def _per_class_dict(self) -> dict[str, Any]:
        intervals = self.class_intervals()
        return {n: {**row, "intervals": intervals[n]} for n, row in self.per_class().items()}


def load_evaluation(folder: Path) -> Evaluation:
    """The evaluation that was written to a folder."""
    found = [read_record(p) for p in sorted(folder.glob("*.parquet"))]
    found.sort(key=lambda r: r.meta.get("position", 0))
    warnings = tuple(found[0].meta.get("warnings", ())) if found else ()
    records = {r.name: r for r in found}
    return Evaluation(folder.name, records, warnings + notes_of(records))


def diagnosed(found: Evaluation, path: Path) -> Evaluation:
    """The evaluation with what the doctor said of the same weights, if it was asked."""
    said, first = load_diagnosis(path), next(iter(found.records.values()), None)
    if said is None or first is None or first.meta.get("weights") != said.weights:
        return found
    more = [t for t in texts(said.findings) if t not in found.warnings]
    return replace(found, diagnosis=said, warnings=(*found.warnings, *more))


def notes_of(records: Mapping[str, AttackRecord]) -> tuple[str, ...]:
    """What a reader must know of how records were made."""
    found = [
        f"{n}: a loss or gradient was not finite for {r.meta['not_finite']} images; they are "
        "counted as survivors unless another point broke them"
        for n, r in records.items()
        if r.meta.get("not_finite", 0)
    ]
    found += [
        f"{n}: the outputs were not numbers for {int(np.isnan(r.loss).sum())} images"
        for n, r in records.items()
        if np.isnan(r.loss).any()
    ]
    first = [w for r in [*records.values()][:1] for w in r.meta.get("warnings", ())]
    seen = merged([f for r in records.values() for f in findings_in(r.meta)])
    found += [text for text in texts(seen) if text not in first]
    last = [*records.values()][-1:]
    if last and last[0].meta.get("mode") == "worst_case":
        found.append(
            "worst case only: each attack saw what the attacks before it left, so its accuracy is "
            "that of all attacks so far"
            + (
                ", counted corruptions included"
                if any(r.is_corruption and r.counts for r in records.values())
                else ""
            )
        )
    if last and len(last[0]) < last[0].meta.get("drawn_from", 0):
        found.append(
            f"stopped early: {len(last[0])} images drawn at random from "
            f"{last[0].meta['drawn_from']}, until the 95% interval of the worst case was narrower "
            f"than {100 * last[0].meta['until']:g} points"
        )
    return tuple(found)
