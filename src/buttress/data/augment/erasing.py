"""Random erasing (Zhong et al., arXiv:1708.04896) of images in [0, 1]."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from buttress.data.augment.color import match_dtype, truncate_to_uint8
from buttress.data.augment.crops import DRAWS_PER_BOX, Range, sample_boxes
from buttress.system.rng import SampleRNG

AREA_RANGE: Range = (0.02, 1 / 3)
RATIO_RANGE: Range = (0.3, 1 / 0.3)
MEAN, STD = 0.5, 0.25


def random_erasing(x: Tensor, probability: float, streams: SampleRNG) -> Tensor:
    """A rectangle of some images filled with noise.

    The noise is normal with mean 1/2 and deviation 1/4, truncated to [0, 1], for each pixel and
    channel. The usual standard normal noise would leave the range of images.
    """
    fractions = streams.draw_fractions(1 + DRAWS_PER_BOX, "erasing").cpu()
    size = x.shape[2], x.shape[3]
    boxes = sample_boxes(fractions[:, 1:], size, area=AREA_RANGE, ratio=RATIO_RANGE, size_slack=-1)
    erased_rows = ((fractions[:, 0] < probability) & boxes.fits).nonzero().squeeze(1)
    seeds = streams.select(erased_rows).sample_keys("erasing noise").tolist()
    boxes_list = torch.stack(boxes[:4], 1)[erased_rows].tolist()
    noise = _noise_levels(
        [x.shape[1] * height * width for _, _, height, width in boxes_list], seeds
    )
    out = x.clone()
    for row, (top, left, height, width), levels in zip(
        erased_rows.tolist(), boxes_list, noise, strict=True
    ):
        part = out[row, :, top : top + height, left : left + width]
        part.copy_(match_dtype(levels.to(x.device), x).view_as(part))
    return out


def _noise_levels(counts: list[int], seeds: list[int]) -> tuple[Tensor, ...]:
    """Levels from 0 to 255 for each of some images, drawn from its own seed."""
    indices = torch.empty(sum(counts), dtype=torch.int64)
    generator = torch.Generator()
    pieces = indices.split(counts)
    for piece, seed in zip(pieces, seeds, strict=True):
        torch.randint(_ENTRIES, piece.shape, generator=generator.manual_seed(seed), out=piece)
    return _LEVELS.index_select(0, indices).split(counts)


def _truncated_normal_table() -> Tensor:
    """The inverse of the distribution function, from evenly spaced chances to levels.

    A table is as good as 16 bits of chance, and the same on every machine and in every batch.
    """
    edge = math.erf(MEAN / STD / math.sqrt(2))  # the truncation is symmetric about the mean
    chances = (torch.arange(_ENTRIES, dtype=torch.float64) + 0.5) / _ENTRIES
    values = MEAN + STD * math.sqrt(2) * (edge * (2 * chances - 1)).erfinv()
    return truncate_to_uint8((255 * values).round())


_ENTRIES = 1 << 16
_LEVELS = _truncated_normal_table()
