"""An evaluation that stops when the worst case is known well enough.

Images are attacked in blocks, in a random order that the seed decides. After each block the 95%
interval of the worst case over the images so far is looked at. The result is about those images: it
says so, and how many they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from buttress.data import Dataset
from buttress.errors import UserError
from buttress.evaluation.doctor.examine import retold
from buttress.evaluation.evaluate import Ways, evaluate_network, notes_of
from buttress.evaluation.shards import join_records
from buttress.evaluation.suite import SuiteSpec, load_suite
from buttress.evaluation.verdicts import Network
from buttress.files import file_name
from buttress.progress import Progress, Silent
from buttress.records.evaluation import Evaluation, write_record
from buttress.streams import generator

BLOCK = 256  # images between two looks at the interval
LEAST = 2  # blocks: a first look at few images could stop by luck


def evaluate_until(  # noqa: PLR0913 - what `evaluate` takes, and the width
    model: nn.Module,
    data: Dataset,
    suite: str | Path | Sequence[str] | SuiteSpec,
    width: float,
    *,
    batch_size: int = 256,
    seed: int = 0,
    out: Path | None = None,
    compile: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Like `evaluate`, on random images until the worst case's 95% interval is narrow.

    Args:
        model: any network from [0, 1] images to logits.
        data: the images to draw from.
        suite: as for `evaluate`.
        width: stop when the interval is narrower than this share, such as 0.05 for 5 points.
        batch_size: changes speed and memory, not verdicts.
        seed: of the order of the images and of the attacks.
        out: a folder for the records; blocks that are there are not done again.
        compile: as for `evaluate`.
        progress: where to show progress.
    """
    if not 0 < width < 1:
        raise UserError(f"`0 < width < 1` must hold, but got width={width}")
    progress = progress or Silent()
    spec, network = load_suite(suite), Network(model, compile)  # prepared once, for all blocks
    order = torch.randperm(len(data), generator=generator(seed, "until")).tolist()
    done: list[Evaluation] = []
    for number, start in enumerate(range(0, len(order), BLOCK)):
        here = data.select(order[start : start + BLOCK])
        where = None if out is None else out / f"block-{number}"
        ways = Ways(batch_size, seed, where, progress)
        done.append(evaluate_network(network, here, spec, ways))
        found = _joined(done, data, width, out)
        low, high = found.interval()
        progress.log(
            f"{len(found)} images: worst case {found.worst_case:.1%}, 95% interval "
            f"{100 * (high - low):.1f} points wide"
        )
        if number + 1 >= LEAST and high - low < width:
            break
    return found


def _joined(
    done: Sequence[Evaluation], data: Dataset, width: float, out: Path | None
) -> Evaluation:
    """The images so far as one evaluation, in the order of the data set."""
    seen = np.concatenate([next(iter(e.records.values())).ids for e in done])
    ids = data.ids.numpy()
    ids = ids[np.isin(ids, seen)]
    records = {}
    for name in done[0].records:
        record = join_records(name, [e.records[name] for e in done], ids)
        meta = {**record.meta, "until": width, "drawn_from": len(data)}
        records[name] = replace(record, meta=meta)
    records = retold(records)
    for name, record in records.items():
        if out is not None:
            write_record(out / f"{file_name(name)}.parquet", record)
    first = dict.fromkeys(next(iter(done[0].records.values())).meta.get("warnings", ()))
    return Evaluation(done[0].suite, records, (*first, *notes_of(records)))
