"""Per-sample results of one attack, and the Parquet file that stores them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from buttress.config import short_repr
from buttress.errors import CorruptFileError, OutdatedFileError, UserError
from buttress.results.core import (
    CLEAN,
    RECORD_VERSION,
    VERSION_KEY,
    AccuracyEstimate,
    check_record_version,
)
from buttress.results.diagnosis import Finding, parse_findings, warning_texts
from buttress.results.suite_spec import CORRUPTION_ATTACK
from buttress.statistics import effective_image_fraction
from buttress.system.files import atomic_write, digest
from buttress.threats.core import Threat

OFFICIAL_SUFFIX = "-official"  # ends the name of a dataset of published corrupted images
METADATA_KEY = b"buttress"

COLUMN_DTYPES = {
    "id": "int64",
    "label": "int64",
    "prediction": "int64",
    "correct": "bool",
    "loss": "float32",
    "distance": "float32",
}
DRAWS_COLUMN = "correct_draws"  # only of models that are scored over several draws

PARSE_ERRORS = (ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError)
MAX_IMAGES = 10_000_000  # a file of a few bytes can claim any number
MAX_CLASSES = 100_000


@dataclass(frozen=True)
class AttackDefinition:
    """Settings of an attack. Two results are comparable only if all of them are equal."""

    name: str
    attack: str = ""
    threat: str = ""
    args: str = ""  # "steps=20, restarts=2"

    @property
    def is_clean(self) -> bool:
        return self.name == CLEAN


@dataclass(frozen=True, repr=False)
class AttackRecord:
    """Per-sample results of one attack or one corruption.

    An attack runs only on images that are classified correctly clean, so ``correct`` is correct
    clean and under the attack. A corruption is scored on all images: one that is misclassified
    clean may be classified correctly corrupted.

    A randomized model is scored over several draws of its randomness, ``metadata["draws"]``:
    ``correct`` is then correct in every draw, and the accuracy is the mean over draws.
    """

    name: str
    ids: NDArray[np.int64]  # (N,) permanent sample ids
    labels: NDArray[np.int64]
    predictions: NDArray[np.int64]  # of the attacked or corrupted image
    correct: NDArray[np.bool_]
    loss: NDArray[np.float32]  # cross-entropy at the attacked image
    perturbation_size: NDArray[np.float32]  # in the threat model's norm; 0 for clean images
    metadata: Mapping[str, Any] = field(default_factory=dict)  # settings, cost, versions
    correct_draws: NDArray[np.int64] | None = None  # (N,) draws that are correct; None: one draw

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        threat = f", {self.metadata['threat']}" if self.metadata.get("threat") else ""
        return (
            f"AttackRecord({self.name!r}{threat}, {len(self):,} images, accuracy "
            f"{100 * self.accuracy:.1f}%)"
        )

    @property
    def draws(self) -> int:
        """Draws of the randomness of the model that it is scored over."""
        return int(self.metadata.get("draws", 1))

    @cached_property
    def scores(self) -> NDArray[Any]:
        """(N,) correct or not; of a randomized model the fraction of draws that are correct."""
        return self.correct if self.correct_draws is None else self.correct_draws / self.draws

    @property
    def accuracy(self) -> float:
        return float(self.scores.mean()) if len(self) else float("nan")

    @property
    def is_corruption(self) -> bool:
        return bool(self.metadata.get("attack") == CORRUPTION_ATTACK)

    @cached_property
    def is_robust(self) -> NDArray[np.bool_]:
        """(N,) correct, and not fooled by the queries that cross-checked the attack."""
        return self.correct & self._withstands_queries

    @cached_property
    def robust_scores(self) -> NDArray[Any]:
        """(N,) `scores`, zero for what the queries fooled that cross-checked the attack."""
        return self.scores * self._withstands_queries

    @property
    def _withstands_queries(self) -> NDArray[np.bool_]:
        fooled_ids = (self.metadata.get("cross_check") or {}).get("fooled_ids", ())
        return ~np.isin(self.ids, fooled_ids)

    @property
    def in_worst_case(self) -> bool:
        """Whether it counts towards worst-case robust accuracy."""
        return bool(self.metadata.get("in_worst_case", True))

    @property
    def suite_position(self) -> int:
        """Where the suite lists it; last if the record does not say."""
        return int(self.metadata.get("suite_position", 10**6))

    @cached_property
    def duplicate_groups(self) -> NDArray[np.int64]:
        """(N,) the same number for images that are copies of each other."""
        groups = np.arange(len(self))
        for copies in self.metadata.get("duplicate_ids") or ():
            rows = np.flatnonzero(np.isin(self.ids, copies))
            groups[rows] = rows[:1]
        return groups

    def estimate(self, scores: NDArray[Any]) -> AccuracyEstimate:
        """The accuracy of scores of these images; copies of an image narrow no interval."""
        return AccuracyEstimate.from_scores(scores, effective_image_fraction(self.duplicate_groups))

    @cached_property
    def definition(self) -> AttackDefinition:
        args = dict(self.metadata.get("args") or {})
        if skipped_square_queries(self.metadata):
            args["square_queries"] = "skipped"  # not the standard AutoAttack
        texts = {
            k: v if isinstance(v, str) else json.dumps(v, sort_keys=True) for k, v in args.items()
        }
        threat = str(self.metadata.get("threat") or "")
        with suppress(UserError):
            threat = str(Threat.parse(threat))  # one spelling for equal threat models
        return AttackDefinition(
            self.name,
            str(self.metadata.get("attack", "")),
            threat,
            ", ".join(f"{k}={texts[k]}" for k in sorted(texts)),
        )

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        return parse_findings(self.metadata.get("findings") or ())

    @cached_property
    def numerical_warnings(self) -> tuple[str, ...]:
        """Warnings about values that were not finite."""
        warnings = []
        if nonfinite := self.metadata.get("nonfinite_images"):
            warnings.append(
                f"a loss or gradient was not finite for {nonfinite} images; gradient steps may "
                "have failed there"
            )
        if nonfinite_outputs := self.metadata.get("nonfinite_outputs"):
            warnings.append(
                f"the outputs of the model were not finite for {nonfinite_outputs} images, which "
                "count as fooled"
            )
        elif nan_outputs := int(np.isnan(self.loss).sum()):  # of a record that does not count them
            warnings.append(f"the outputs of the model were NaN for {nan_outputs} images")
        return tuple(warnings)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Every reason why its accuracy may be wrong, once: of the model, findings, values."""
        stored = map(str, self.metadata.get("warnings") or ())
        texts = (*stored, *warning_texts(self.findings), *self.numerical_warnings)
        return tuple(dict.fromkeys(texts))

    def drop_values(self, first: AttackRecord) -> AttackRecord:
        """Keep what tables show, so that many records fit into memory; share ids and labels."""
        small = replace(
            self,
            ids=first.ids,
            labels=first.labels,
            predictions=self.predictions[:0].copy(),
            loss=self.loss[:0].copy(),
            perturbation_size=self.perturbation_size[:0].copy(),
        )
        vars(small)["numerical_warnings"] = self.numerical_warnings  # needs the loss
        return small


def write_attack_record(path: Path, record: AttackRecord) -> None:
    """Write one Parquet file with checksummed pages and metadata on how it was made."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "id": record.ids,
        "label": record.labels,
        "prediction": record.predictions,
        "correct": record.correct,
        "loss": record.loss,
        "distance": record.perturbation_size,
    }
    if record.correct_draws is not None:
        columns[DRAWS_COLUMN] = record.correct_draws
    metadata = json.loads(json.dumps(dict(record.metadata)))  # as it will be read
    header = {
        VERSION_KEY: RECORD_VERSION,
        "name": record.name,
        "metadata": metadata,
        "sha256": content_digest(columns, metadata),
    }
    table = pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(header).encode()})
    with atomic_write(path) as temporary, temporary.open("wb") as stream:
        pq.write_table(table, stream, write_page_checksum=True)


_RECORD_CACHE: ContextVar[dict[Path, AttackRecord] | None] = ContextVar("_READ", default=None)
_RECENT_ARRAYS: deque[NDArray[Any]] = deque(maxlen=8)  # ids and labels of records read last


@contextmanager
def cache_records() -> Iterator[None]:
    """Cache records that are read in this context, for work that reads a file twice."""
    token = _RECORD_CACHE.set({})
    try:
        yield
    finally:
        _RECORD_CACHE.reset(token)


def read_attack_record(path: Path) -> AttackRecord:
    """Read a record and check its content; raise `CorruptFileError` if it was changed."""
    cache = _RECORD_CACHE.get()
    if cache is None:
        return _read_parquet(path)
    if path not in cache:
        cache[path] = _read_parquet(path)
    return cache[path]


def _read_parquet(path: Path) -> AttackRecord:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _refusing_invalid_files(path):
        with _open_file(path) as stream:  # read whole: Arrow's own small reads cost more
            file = pq.ParquetFile(pa.BufferReader(stream.read()), page_checksum_verification=True)
        header = _parse_header(path, file.metadata)
        table = file.read(use_threads=False)
        columns = {n: table.column(n).to_numpy() for n in table.column_names}
        name, metadata = header["name"], header["metadata"]
        is_intact = header["sha256"] == content_digest(columns, metadata)
        problem = content_problem(columns, metadata)
    if not is_intact:
        raise CorruptFileError(f"{path} is corrupt: its checksum does not match; evaluate again")
    if name != path.stem:
        raise CorruptFileError(
            f"{path} must contain the record of {path.stem!r}, but contains that of "
            f"{short_repr(name)}"
        )
    if problem is not None:
        raise CorruptFileError(f"{path} is not a valid attack record: {problem}")
    return AttackRecord(
        name=name,
        ids=_share_array(columns["id"]),
        labels=_share_array(columns["label"]),
        predictions=columns["prediction"],
        correct=columns["correct"],
        loss=columns["loss"],
        perturbation_size=columns["distance"],
        metadata=metadata,
        correct_draws=columns.get(DRAWS_COLUMN),
    )


def read_record_metadata(path: Path) -> tuple[int, dict[str, Any]]:
    """Read the number of images and the metadata of a record from its footer."""
    import pyarrow.parquet as pq

    with _refusing_invalid_files(path):
        with _open_file(path) as stream:
            footer = pq.read_metadata(stream)
        metadata: dict[str, Any] = _parse_header(path, footer)["metadata"]
        problem = metadata_problem(metadata)
    if problem is not None:
        raise CorruptFileError(f"{path} is not a valid attack record: {problem}")
    return int(footer.num_rows), metadata


def _share_array(array: NDArray[Any]) -> NDArray[Any]:
    """An equal array of a record read before: runs of a study have the same ids and labels."""
    for known in tuple(_RECENT_ARRAYS):
        if known.dtype == array.dtype and np.array_equal(known, array):
            return known
    array = array.copy()  # without the other columns of the file
    array.flags.writeable = False
    _RECENT_ARRAYS.append(array)
    return array


@contextmanager
def _refusing_invalid_files(path: Path) -> Iterator[None]:
    """Turn errors of parsing into `CorruptFileError`."""
    import pyarrow as pa

    try:
        yield
    except (FileNotFoundError, OutdatedFileError):
        raise
    except (pa.ArrowException, OSError, *PARSE_ERRORS) as error:
        reason = " ".join(str(error).split())[:120]
        raise CorruptFileError(
            f"{path} is truncated or is not an attack record ({reason}); evaluate again"
        ) from None


def _parse_header(path: Path, footer: Any) -> dict[str, Any]:
    """Parse the JSON header in a Parquet footer, and check size and version before all else."""
    if footer.num_rows > MAX_IMAGES:
        raise ValueError(f"expected at most {MAX_IMAGES} images, but got {footer.num_rows}")
    header: dict[str, Any] = json.loads(footer.metadata[METADATA_KEY])
    check_record_version(path, header)
    return header


def _open_file(path: Path) -> IO[bytes]:
    """Open a regular file; Arrow does not take paths that are not valid text."""
    if not path.is_file() and path.exists():  # reading a pipe would block
        raise CorruptFileError(f"{path} must be a regular file")
    return path.open("rb")


OTHER_GRADIENTS = "other gradients than the model"  # of a smoothed copy


class CrossCheckSummary(BaseModel):
    """Queries and examples of a smoothed copy, on images that are robust to an attack."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    queries: int
    images: int  # that were queried
    fooled_ids: list[int]
    transfer_images: int = 0
    transfer_fooled_ids: list[int] = []  # of those fooled, by examples of the copy
    copy_gradients: str = ""  # whether they are those of the model
    forward_passes: float  # per image of the evaluation
    copy_passes: float = 0.0


class RecordMetadata(BaseModel):
    """Types of the metadata keys of a record that this package reads."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    attack: str = ""
    threat: str = ""
    suite: str = ""
    dataset: str = ""
    split: str = ""
    mode: str = ""
    weights_digest: str = ""
    data_fingerprint: str = ""
    corruption_source: str = ""
    square_queries: str = ""
    in_worst_case: bool = True
    findings: list[dict[str, Any]] = []
    suite_position: int = 0
    draws: int = 1
    surrogate: str = ""
    draw_accuracies: list[float] = []
    args: dict[str, Any] = {}
    class_names: list[str] = []
    warnings: list[str] = []
    suite_entries: list[str] = []
    stages: list[tuple[str, int, int]] = []
    versions: dict[str, str] = {}
    nonfinite_images: int = 0
    nonfinite_outputs: int = 0
    cross_check: CrossCheckSummary | None = None
    duplicate_ids: list[list[int]] = []
    check_passes: float = 0.0
    images_available: int = 0
    interval_width: float = 0.0
    forward_passes: float = 0.0
    backward_passes: float = 0.0
    seconds: float = 0.0
    peak_memory_mb: float = 0.0


def metadata_problem(metadata: Any) -> str | None:
    """Describe the first invalid metadata key; None if all are valid."""
    try:
        parsed = RecordMetadata.model_validate_json(json.dumps(metadata))
    except ValidationError as error:
        first = error.errors()[0]
        return f"metadata key {'.'.join(map(str, first['loc']))!r}: {first['msg']}"
    corruption_args = (parsed.args.get("corruption"), parsed.args.get("severity"))
    if parsed.attack == CORRUPTION_ATTACK and [type(v) for v in corruption_args] != [str, int]:
        return "metadata key 'args' must have `corruption` (string) and `severity` (integer)"
    return None


def content_problem(columns: Mapping[str, NDArray[Any]], metadata: Any) -> str | None:
    """Describe the first invalid value of a record with a matching checksum, or None."""
    if (problem := metadata_problem(metadata)) is not None:
        return problem
    dtypes = {n: str(c.dtype) for n, c in columns.items() if n in COLUMN_DTYPES}
    if dtypes != COLUMN_DTYPES:
        return f"expected columns {COLUMN_DTYPES}, but got {dtypes}"
    ids, labels, predictions = (columns[n] for n in ("id", "label", "prediction"))
    num_classes = len(metadata.get("class_names", ())) or MAX_CLASSES
    if len(np.unique(ids)) < len(ids):
        return "sample ids must be unique, but one occurs twice"
    for column, values in (("label", labels), ("prediction", predictions)):
        if len(values) and not (values.min() >= 0 and values.max() < num_classes):
            return f"every {column} must be a class index below {num_classes}"
    if (columns["correct"] & (labels != predictions)).any():
        return "`correct` is true for an image whose prediction differs from its label"
    if (problem := _draws_problem(columns, int(metadata.get("draws", 1)))) is not None:
        return problem
    distance = columns["distance"]
    if not (np.isfinite(distance) & (distance >= 0)).all():
        return "every perturbation size (distance) must be a finite number >= 0"
    return None


def _draws_problem(columns: Mapping[str, NDArray[Any]], draws: int) -> str | None:
    """Describe what is wrong with the draws of a randomized model, or None."""
    counts = columns.get(DRAWS_COLUMN)
    if counts is None:
        return None if draws == 1 else f"{draws} draws need the column {DRAWS_COLUMN!r}"
    if counts.dtype != np.int64 or not ((counts >= 0) & (counts <= draws)).all():
        return f"every value of {DRAWS_COLUMN!r} must be an integer from 0 to {draws}"
    if (columns["correct"] != (counts == draws)).any():
        return "`correct` must be true exactly for the images that are correct in every draw"
    return None


def content_digest(columns: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> str:
    """Hash all values of a record and its metadata as parsed from JSON."""
    parts = {n: digest(np.ascontiguousarray(c).tobytes().hex()) for n, c in columns.items()}
    return digest({"columns": parts, "metadata": metadata})


def uses_official_images(record: AttackRecord) -> bool:
    """Whether the images of a corruption were the published ones."""
    return str(record.metadata.get("corruption_source", "")).endswith(OFFICIAL_SUFFIX)


def skipped_square_queries(metadata: Mapping[str, Any]) -> bool:
    """Whether a record is of an AutoAttack that skipped queries of Square, as it did at first.

    Records of before have no ``square_queries``; the versions rand and custom never skipped any.
    """
    version = (metadata.get("args") or {}).get("version", "standard")
    return (
        metadata.get("attack") == "autoattack"
        and version in ("standard", "plus")
        and metadata.get("square_queries") != "all"
    )
