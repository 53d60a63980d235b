"""Evaluation of a subset of the images: in shards, or until an interval is narrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from buttress.data import Dataset
from buttress.engine.randomness import EotSamples
from buttress.errors import RunError, UserError
from buttress.evaluation.doctor.core import recompute_record_findings
from buttress.evaluation.doctor.images import (
    EvaluatedImages,
    audit_images,
    find_training_images,
)
from buttress.evaluation.evaluate import EvaluationOptions, evaluate_model
from buttress.evaluation.inputs import load_images
from buttress.evaluation.run_entry import EvaluatedModel
from buttress.evaluation.suite import load_suite
from buttress.results.attack_record import AttackRecord, write_attack_record
from buttress.results.evaluation import Evaluation, load_evaluation
from buttress.results.run import changed_keys
from buttress.results.suite_spec import SuiteSpec
from buttress.system.files import safe_file_name
from buttress.system.locks import lock_folder
from buttress.system.progress import Progress, SilentProgress
from buttress.system.rng import make_generator

if TYPE_CHECKING:
    from buttress.data.convert import DataLike

SHARED_KEYS = (
    "weights_digest", "dataset", "split", "seed", "attack", "args", "threat", "suite", "mode",
    "previous_entries", "in_worst_case", "corruption_source", "draws", "surrogate",
)  # fmt: skip


@dataclass(frozen=True)
class ImageShard:
    """Shard ``index`` of ``count``, from 1 on."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> ImageShard:
        """``2/4`` -> the second of four."""
        index_text, _, count_text = text.partition("/")
        if not (
            index_text.isdigit()
            and count_text.isdigit()
            and 1 <= int(index_text) <= int(count_text)
        ):
            raise UserError(f"--shard must be I/N with 1 <= I <= N, e.g. 2/4, but got {text!r}")
        return cls(int(index_text), int(count_text))

    def select(self, data: Dataset) -> Dataset:
        """Select the images of this shard: every n-th, to balance the classes."""
        if len(data) < self.count:
            raise UserError(
                f"{self.count} shards need at least that many images, but got {len(data)}"
            )
        return data.select(list(range(self.index - 1, len(data), self.count)))

    def folder(self, root: Path) -> Path:
        return root / f"shard-{self.index}-of-{self.count}"


def evaluate_shard(
    shard: ImageShard,
    model: nn.Module,
    data: Dataset,
    suite: SuiteSpec,
    *,
    out: Path,
    compile: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Evaluation:
    """Like `evaluate`, on one shard of the images; ``out`` is the folder of all shards.

    ``options`` are those of `EvaluationOptions`. Every shard uses the form of the model that the
    evaluation of all images would use.
    """
    folder = shard.folder(out)
    with lock_folder(folder, progress or SilentProgress()) as locked_progress:
        shard_options = EvaluationOptions(
            out=folder, progress=locked_progress, total_images=len(data), **options
        )
        evaluated = EvaluatedModel(model, compile)
        return evaluate_model(evaluated, shard.select(data), suite, shard_options)


def merge_shards(
    folder: Path, count: int, data: Dataset, model: nn.Module | None = None
) -> Evaluation | None:
    """Merge the records of all shards and write them; None while some are missing."""
    shards = [load_evaluation(ImageShard(k + 1, count).folder(folder)) for k in range(count)]
    expected = next((s.expected_entries for s in shards if s.records), ())
    if not expected or any(set(s.records) != set(expected) for s in shards):
        return None
    merged: dict[str, AttackRecord] = {}
    for name in expected:
        record = merge_records(name, [s.records[name] for s in shards], data.ids.numpy())
        if not np.array_equal(record.ids, data.ids.numpy()):
            raise RunError(
                f"the shards in {folder} do not cover exactly these {len(data)} images; delete the "
                "folder and evaluate again"
            )
        meta = {**record.metadata, "data_fingerprint": data.fingerprint()}
        merged[name] = replace(record, metadata=meta)
    with lock_folder(folder, SilentProgress()):
        training = None if model is None else find_training_images(model, data)
        images = EvaluatedImages(data, training)
        for name, record in recompute_record_findings(audit_images(merged, images)).items():
            write_attack_record(folder / f"{safe_file_name(name)}.parquet", record)
    return load_evaluation(folder)


def merge_records(name: str, parts: Sequence[AttackRecord], ids: NDArray[np.int64]) -> AttackRecord:
    """Merge records of disjoint images, in the order of ``ids``."""
    reference = {k: parts[0].metadata.get(k) for k in SHARED_KEYS}
    for part in parts[1:]:
        if changed := changed_keys(reference, {k: part.metadata.get(k) for k in SHARED_KEYS}):
            raise RunError(
                f"the shards of {name} differ in {', '.join(changed)}; evaluate all of them with "
                "the same settings"
            )
    position = {int(i): k for k, i in enumerate(ids)}
    all_ids = np.concatenate([p.ids for p in parts])
    order = np.argsort([position.get(int(i), len(position)) for i in all_ids], kind="stable")
    sizes = [len(p) for p in parts]

    def mean(key: str) -> float:
        return round(float(np.average([p.metadata.get(key, 0) for p in parts], weights=sizes)), 3)

    meta = {
        **parts[0].metadata,
        "forward_passes": mean("forward_passes"),
        "backward_passes": mean("backward_passes"),
        "seconds": round(sum(p.metadata.get("seconds", 0) for p in parts), 3),
        "peak_memory_mb": max(p.metadata.get("peak_memory_mb", 0) for p in parts),
        **{
            key: sum(p.metadata.get(key, 0) for p in parts)
            for key in ("nonfinite_images", "nonfinite_outputs")
        },
        **_merge_cross_checks(parts),
        "stages": _sum_stage_counts([p.metadata.get("stages", []) for p in parts]),
        "shards": len(parts),
    }
    if parts[0].draws > 1:
        accuracies = [p.metadata["draw_accuracies"] for p in parts]
        meta["draw_accuracies"] = np.average(accuracies, axis=0, weights=sizes).tolist()
    fields = ["ids", "labels", "predictions", "correct", "loss", "perturbation_size"]
    fields += [] if parts[0].correct_draws is None else ["correct_draws"]
    columns = {f: np.concatenate([getattr(p, f) for p in parts])[order] for f in fields}
    return AttackRecord(name, metadata=meta, **columns)


def _merge_cross_checks(parts: Sequence[AttackRecord]) -> dict[str, Any]:
    """The queries of all parts together, if any made some."""
    summaries = [(p.metadata["cross_check"], len(p)) for p in parts if "cross_check" in p.metadata]
    if not summaries:
        return {}
    images = sum(len(p) for p in parts)

    def mean(key: str) -> float:
        return round(sum(s.get(key, 0) * n for s, n in summaries) / images, 3)

    def join(key: str) -> list[int]:
        return sorted(i for s, _ in summaries for i in s.get(key, ()))

    merged = {
        "copy_gradients": "; ".join(sorted({s.get("copy_gradients", "") for s, _ in summaries})),
        "queries": max(s["queries"] for s, _ in summaries),
        **{k: sum(s.get(k, 0) for s, _ in summaries) for k in ("images", "transfer_images")},
        **{k: join(k) for k in ("fooled_ids", "transfer_fooled_ids")},
        **{k: mean(k) for k in ("forward_passes", "copy_passes")},
    }
    return {"cross_check": merged}


def _sum_stage_counts(lists: Sequence[Sequence[Sequence[Any]]]) -> list[list[Any]]:
    """Add up the image counts of the stages; some lists may be empty."""
    template = max(lists, key=len)
    return [
        [name, *(sum(rows[k][i] for rows in lists if rows) for i in (1, 2))]
        for k, (name, *_) in enumerate(template)
    ]


BLOCK_IMAGES = 256  # images between two checks of the interval
MIN_BLOCKS = 2  # fewer images could stop by chance


def evaluate_until(  # noqa: PLR0913 - what `evaluate` takes, and the width
    model: nn.Module,
    data: DataLike,
    suite: str | Path | Sequence[str] | SuiteSpec,
    interval_width: float,
    *,
    batch_size: int = 256,
    seed: int = 0,
    out: Path | None = None,
    compile: bool = False,
    draws: int | None = None,
    surrogate: Any = None,
    eot_samples: EotSamples | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Like `evaluate`, on random images until the 95% interval of the worst case is narrow.

    Args:
        model: any model from [0, 1] images to logits.
        data: the images to draw from, as for `evaluate`.
        suite: as for `evaluate`.
        interval_width: stop when the interval is narrower than this, such as 0.05 for 5 points.
        batch_size: affects speed and memory, not the per-sample results.
        seed: of the order of the images and of the attacks.
        out: folder for the records; finished blocks are skipped.
        compile: as for `evaluate`.
        draws: as for `evaluate`.
        surrogate: as for `evaluate`.
        eot_samples: as for `evaluate`.
        progress: where to show progress.
    """
    if not 0 < interval_width < 1:
        raise UserError(f"`0 < interval_width < 1` must hold, but got {interval_width}")
    images = load_images(model, data)
    spec, evaluated = load_suite(suite), EvaluatedModel(model, compile)  # optimized once
    with lock_folder(out, progress or SilentProgress()) as locked_progress:
        options = EvaluationOptions(
            batch_size, seed, out, locked_progress, draws, surrogate, eot_samples, len(images)
        )
        return _evaluate_blocks(evaluated, images, spec, options, interval_width)


def _evaluate_blocks(
    evaluated: EvaluatedModel,
    data: Dataset,
    spec: SuiteSpec,
    options: EvaluationOptions,
    interval_width: float,
) -> Evaluation:
    """Evaluate random blocks of images until the interval is narrow."""
    order = torch.randperm(len(data), generator=make_generator(options.seed, "until")).tolist()
    blocks: list[Evaluation] = []
    images = EvaluatedImages(data, evaluated.training_images(data))
    for number, start in enumerate(range(0, len(order), BLOCK_IMAGES)):
        block = data.select(order[start : start + BLOCK_IMAGES])
        block_folder = None if options.out is None else options.out / f"block-{number}"
        blocks.append(evaluate_model(evaluated, block, spec, replace(options, out=block_folder)))
        evaluation = _merge_blocks(blocks, images, interval_width, options.out)
        low, high = evaluation.interval()
        options.progress.log(
            f"{len(evaluation)} images: worst-case robust accuracy {evaluation.worst_case:.1%}, "
            f"95% interval {100 * (high - low):.1f} points wide"
        )
        if number + 1 >= MIN_BLOCKS and high - low < interval_width:
            break
    return evaluation


def _merge_blocks(
    blocks: Sequence[Evaluation], images: EvaluatedImages, width: float, out: Path | None
) -> Evaluation:
    """Merge the blocks so far to one evaluation, in the order of the dataset."""
    attacked_ids = np.concatenate([e.sample_ids for e in blocks])
    data = images.data.select(torch.isin(images.data.ids, torch.from_numpy(attacked_ids)))
    ids = data.ids.numpy()
    records = {}
    for name in blocks[0].records:
        record = merge_records(name, [e.records[name] for e in blocks], ids)
        meta = {**record.metadata, "interval_width": width, "images_available": len(images.data)}
        records[name] = replace(record, metadata=meta)
    records = recompute_record_findings(audit_images(records, replace(images, data=data)))
    for name, record in records.items():
        if out is not None:
            write_attack_record(out / f"{safe_file_name(name)}.parquet", record)
    return Evaluation(blocks[0].suite, records)
