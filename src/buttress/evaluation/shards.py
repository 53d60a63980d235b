"""An evaluation in shards: each attacks every n-th image, anywhere; together they are the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.data import Dataset
from buttress.errors import RunError, UserError
from buttress.evaluation.doctor.examine import retold
from buttress.evaluation.evaluate import load_evaluation
from buttress.files import file_name
from buttress.records.evaluation import AttackRecord, Evaluation, write_record
from buttress.records.run import differences

SAME = (
    "weights", "dataset", "split", "seed", "attack", "args", "threat", "suite", "mode", "after",
    "counts", "images",
)  # fmt: skip


@dataclass(frozen=True)
class Shard:
    """Shard ``number`` of ``count``, from 1 on."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """``2/4`` -> the second of four."""
        left, _, right = text.partition("/")
        if not (left.isdigit() and right.isdigit() and 1 <= int(left) <= int(right)):
            raise UserError(f"a shard is written like 2/4, from 1/4 to 4/4, but got {text!r}")
        return cls(int(left), int(right))

    def of(self, data: Dataset) -> Dataset:
        """The images of this shard: every n-th, so that classes are spread alike."""
        if len(data) < self.count:
            raise UserError(f"{len(data)} images cannot be cut into {self.count} shards")
        return data.select(list(range(self.number - 1, len(data), self.count)))

    def folder(self, whole: Path) -> Path:
        return whole / f"shard-{self.number}-of-{self.count}"


def merge_shards(folder: Path, count: int, data: Dataset) -> Evaluation | None:
    """Writes the records of the whole from those of its shards; None while some are missing."""
    shards = [load_evaluation(Shard(k + 1, count).folder(folder)) for k in range(count)]
    first = next((r for s in shards for r in s.records.values()), None)
    wanted = None if first is None else first.meta.get("suite_attacks")
    if not wanted or any(set(s.records) != set(wanted) for s in shards):
        return None
    whole: dict[str, AttackRecord] = {}
    for name in wanted:
        record = join_records(name, [s.records[name] for s in shards], data.ids.numpy())
        if not np.array_equal(record.ids, data.ids.numpy()):
            raise RunError(f"the shards in {folder} are not of these {len(data)} images")
        meta = {**record.meta, "data": data.fingerprint()}
        whole[name] = replace(record, meta=meta)
    for name, record in retold(whole).items():
        write_record(folder / f"{file_name(name)}.parquet", record)
    return load_evaluation(folder)


def join_records(name: str, parts: Sequence[AttackRecord], ids: NDArray[np.int64]) -> AttackRecord:
    """One record of the images of several, in the order of ``ids``."""
    first = {k: parts[0].meta.get(k) for k in SAME}
    for part in parts[1:]:
        if changed := differences(first, {k: part.meta.get(k) for k in SAME}):
            raise RunError(f"parts of {name} were made with different {', '.join(changed)}")
    place = {int(i): k for k, i in enumerate(ids)}
    found = np.concatenate([p.ids for p in parts])
    order = np.argsort([place.get(int(i), len(place)) for i in found], kind="stable")
    sizes = [len(p) for p in parts]

    def mean(key: str) -> float:
        return round(float(np.average([p.meta.get(key, 0) for p in parts], weights=sizes)), 3)

    meta = {
        **parts[0].meta,
        "forward": mean("forward"),
        "backward": mean("backward"),
        "seconds": round(sum(p.meta.get("seconds", 0) for p in parts), 3),
        "not_finite": sum(p.meta.get("not_finite", 0) for p in parts),
        "parts": _added([p.meta.get("parts", []) for p in parts]),
        "shards": len(parts),
    }
    fields = ("ids", "labels", "predictions", "correct", "loss", "distance")
    columns = {f: np.concatenate([getattr(p, f) for p in parts])[order] for f in fields}
    return AttackRecord(name, meta=meta, **columns)


def _added(lists: Sequence[Sequence[Sequence[Any]]]) -> list[list[Any]]:
    """The parts of ensembles with their counts of images added up; some may have had no images."""
    longest = max(lists, key=len)
    return [
        [name, *(sum(rows[k][i] for rows in lists if rows) for i in (1, 2))]
        for k, (name, *_) in enumerate(longest)
    ]
