"""MixUp (Zhang et al., arXiv:1710.09412) and CutMix (Yun et al., arXiv:1905.04899) in a batch.

Both belong to the batch: which images are in it decides the pairs and the one weight they share,
in whatever order they come.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from buttress.data.pixels import to_float
from buttress.system.rng import SampleRNG


class Mixing(NamedTuple):
    """Mixing partners: loss = weight * loss(y) + (1 - weight) * loss(y[partner])."""

    partner: Tensor  # (N,) int64 rows
    weight: Tensor  # (N,) float32, the share of the image's own label


class MixedBatch(NamedTuple):
    """A mixed batch; ``mixing`` is None if nothing was mixed."""

    x: Tensor
    mixing: Mixing | None


def mix_batch(
    x: Tensor, streams: SampleRNG, *, mixup: float = 0.0, cutmix: float = 0.0
) -> MixedBatch:
    """The batch under MixUp or CutMix, with equal chances where both have a positive alpha.

    Args:
        x: (N, C, H, W), float in [0, 1]; uint8 is turned into that.
        streams: the ids decide the draw.
        mixup: alpha of MixUp: the weight is drawn from Beta(alpha, alpha).
        cutmix: alpha of CutMix, likewise.
    """
    x = x if x.is_floating_point() else to_float(x)
    if not len(x) or not (mixup or cutmix):
        return MixedBatch(x, None)
    partner = draw_partners(streams).to(x.device)
    from scipy.special import betaincinv  # late: it takes a fifth of a second

    choice, beta_quantile, row, column = batch_fractions(streams, 4)
    is_cut = bool(cutmix) and (not mixup or choice < 0.5)
    alpha = cutmix if is_cut else mixup
    weight = float(betaincinv(alpha, alpha, beta_quantile))  # the Beta distribution, inverted
    if is_cut:
        box = cutmix_box(weight, (row, column), (x.shape[2], x.shape[3]))
        x, weight = cut(x, partner, box)
    else:
        own_weight = torch.tensor(weight, dtype=x.dtype, device=x.device)
        x = own_weight * x + (1 - own_weight) * x.index_select(0, partner)
    return MixedBatch(x, Mixing(partner, torch.full((len(x),), weight, device=x.device)))


def draw_partners(streams: SampleRNG) -> Tensor:
    """(N,) the next row in a ring drawn at random, so that no image has itself for a partner."""
    ring = streams.sample_keys("mix partner").argsort()
    partner = torch.empty_like(ring)
    partner[ring] = ring.roll(-1)
    return partner


def batch_fractions(streams: SampleRNG, count: int) -> list[float]:
    """Numbers in [0, 1) that belong to the ids together, in any order."""
    batch_key = streams.sample_keys("mix").sum().view(1)
    return (
        SampleRNG(streams.seed, streams.purpose, batch_key)
        .draw_fractions(count, "mix batch")[0]
        .tolist()
    )


def cutmix_box(
    weight: float, center: tuple[float, float], size: tuple[int, int]
) -> tuple[slice, slice]:
    """A window of share 1 - ``weight`` about a place in the image, cut off at the edges."""
    sides = []
    for fraction, side in zip(center, size, strict=True):
        middle, length = int(fraction * side), int(side * math.sqrt(1 - weight))
        sides.append(slice(max(0, middle - length // 2), min(side, middle + (length + 1) // 2)))
    return sides[0], sides[1]


def cut(x: Tensor, partner: Tensor, box: tuple[slice, slice]) -> tuple[Tensor, float]:
    """The batch with a window from each one's partner, and the exact share that was kept."""
    out = x.clone()
    window = out[:, :, box[0], box[1]]
    window.copy_(x[:, :, box[0], box[1]].index_select(0, partner))
    replaced_fraction = window.shape[2] * window.shape[3] / (x.shape[2] * x.shape[3])
    return out, 1 - replaced_fraction
