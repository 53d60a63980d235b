"""The records of one suite -> a view. Records that do not belong together are not combined."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from buttress.errors import CorruptFile
from buttress.records.diagnosis import findings_in, texts
from buttress.records.evaluation import AttackRecord, Evaluation, read_record
from buttress.report.corruptions import COLUMN, corruption_result, one_column
from buttress.report.views import CLEAN, ClassShare, Definition, Result, Share, SuiteView
from buttress.report.words import plain_threat


def collect_suite(folder: Path, place: str) -> SuiteView | None:
    """The usable records of a suite; None where there is not one file."""
    records: list[AttackRecord] = []
    unreadable: dict[str, str] = {}
    for path in sorted(folder.glob("*.parquet")):
        try:
            record = read_record(path)
        except (CorruptFile, OSError):
            unreadable[path.stem] = f"{place}/{path.name} is unreadable, make it again"
            continue
        if len(record):
            records.append(record)
        else:
            unreadable[path.stem] = f"{place}/{path.name} holds no image"
    records.sort(key=lambda r: (r.name != CLEAN, position(r), r.name))
    usable, refused = fitting(records, place)
    return build(folder.name, usable, {**unreadable, **refused}) if usable or unreadable else None


def fitting(
    records: Sequence[AttackRecord], place: str
) -> tuple[dict[str, AttackRecord], dict[str, str]]:
    """Records of the same images and weights as the first, and why the others are refused."""
    usable: dict[str, AttackRecord] = {}
    refused: dict[str, str] = {}
    for record in records:
        first = records[0]
        if not np.array_equal(record.ids, first.ids):
            refused[record.name] = f"{place}/{record.name}: other images than {first.name}"
        elif record.meta.get("data") != first.meta.get("data"):
            refused[record.name] = f"{place}/{record.name}: other pixels than {first.name}"
        elif record.meta.get("weights") != first.meta.get("weights"):
            refused[record.name] = f"{place}/{record.name}: other weights than {first.name}"
        else:
            usable[record.name] = record
    return usable, refused


def build(
    suite: str, records: Mapping[str, AttackRecord], unreadable: Mapping[str, str]
) -> SuiteView:
    made: Mapping[str, Any] = next(iter(records.values())).meta if records else {}
    ids = next(iter(records.values())).ids.tobytes() if records else b""
    pixels = str(made.get("data", "")).encode()
    evaluation = Evaluation(suite, records)
    survived = evaluation.survived if records else np.zeros(0, dtype=np.bool_)
    results = {n: result(r) for n, r in records.items() if not r.is_corruption}
    corrupted = [str(n) for n in made.get("suite_corruptions") or ()]
    if found := corruption_result(records, corrupted, tuple(warnings(made))):
        results[COLUMN] = found
    return SuiteView(
        suite=suite,
        dataset=str(made.get("dataset", "")),
        split=str(made.get("split", "")),
        images=hashlib.sha256(pixels + ids).hexdigest() if records else "",
        results=results,
        unreadable={COLUMN if n in corrupted else n: why for n, why in unreadable.items()},
        expected=one_column([str(n) for n in made.get("suite_attacks") or ()], corrupted),
        survived=survived,
        classes=per_class(evaluation) if records else (),
    )


def result(record: AttackRecord) -> Result:
    meta = record.meta
    return Result(
        definition=Definition(
            name=record.name,
            attack=str(meta.get("attack", "")),
            threat=plain_threat(str(meta.get("threat") or "")),
            args=arguments(meta.get("args") or {}),
        ),
        position=position(record),
        share=Share(int(record.correct.sum()), len(record)),
        warnings=tuple(warnings(meta)),
        made=meta,
        flags=np.packbits(record.correct).tobytes(),
    )


def warnings(meta: Mapping[str, Any]) -> list[str]:
    """Reasons to distrust a number, as the evaluation found them."""
    found = [str(w) for w in meta.get("warnings") or ()]
    found += [text for text in texts(findings_in(meta)) if text not in found]
    if count := meta.get("not_finite"):
        found.append(
            f"a loss or gradient was not finite for {count} images; they count as survivors "
            "unless another point broke them"
        )
    return found


def per_class(evaluation: Evaluation) -> tuple[ClassShare, ...]:
    """Survival of each class that occurs, in one pass over the images."""
    record = next(iter(evaluation.records.values()))
    names = [str(n) for n in record.meta.get("classes") or ()]
    clean = evaluation.records.get(CLEAN)
    labels = np.asarray(record.labels)
    total = np.bincount(labels)
    worst = np.bincount(labels, weights=evaluation.survived)
    right = np.bincount(labels, weights=clean.correct) if clean is not None else None
    return tuple(
        ClassShare(
            name=names[c] if c < len(names) else str(c),
            clean=Share(int(right[c]), int(total[c])) if right is not None else None,
            worst=Share(int(worst[c]), int(total[c])),
        )
        for c in np.flatnonzero(total)
    )


def arguments(args: Mapping[str, Any]) -> str:
    """``steps=20, restarts=2``, the same text for the same arguments."""
    spelt = {k: v if isinstance(v, str) else json.dumps(v, sort_keys=True) for k, v in args.items()}
    return ", ".join(f"{k}={spelt[k]}" for k in sorted(spelt))


def position(record: AttackRecord) -> int:
    """Where the suite lists the attack; last if the record does not say."""
    return int(record.meta.get("position", 10**6))
