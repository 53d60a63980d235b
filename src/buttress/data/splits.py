"""Train, validation and test splits, determined by permanent sample ids alone."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from buttress.results.core import check_split
from buttress.system.rng import derive_seed


def stratified_order(ids: list[int], labels: list[int], purpose: str) -> list[int]:
    """Order of positions in which every prefix is stratified by class.

    The order comes from hashes of the ids, so no version of any random generator can change it.
    """
    by_class: dict[int, list[int]] = defaultdict(list)
    hashes = [derive_seed(purpose, sample_id) for sample_id in ids]
    for position, label in enumerate(labels):
        by_class[label].append(position)
    ranked: list[tuple[float, int, int]] = []
    for members in by_class.values():
        members.sort(key=hashes.__getitem__)
        quantiles = [(rank + 0.5) / len(members) for rank in range(len(members))]
        ranked += [(s, hashes[p], p) for s, p in zip(quantiles, members, strict=True)]
    return [position for _, _, position in sorted(ranked)]


def split_indices(split: str, *, train: Tensor, val: Tensor, test: Tensor) -> Tensor:
    """The rows of a split in ascending order."""
    check_split(split)
    parts = {"train": train, "val": val, "test": test, "train+val": torch.cat([train, val])}
    return parts[split].sort().values
