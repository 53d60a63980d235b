"""Random erasing (Zhong et al., arXiv:1708.04896) of images that are not normalised."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from buttress.data.augment.boxes import DRAWS, Range, draw_boxes
from buttress.streams import Streams

AREA: Range = (0.02, 1 / 3)
RATIO: Range = (0.3, 1 / 0.3)
MEAN, STD = 0.5, 0.25


def random_erasing(x: Tensor, probability: float, streams: Streams) -> Tensor:
    """A rectangle of some images filled with noise.

    The noise is normal with mean 1/2 and deviation 1/4, truncated to [0, 1], for each pixel and
    channel. The usual standard normal noise would leave the range of images.
    """
    fractions = streams.fractions(1 + DRAWS, "erasing").cpu()
    size = x.shape[2], x.shape[3]
    boxes = draw_boxes(fractions[:, 1:], size, area=AREA, ratio=RATIO, largest=-1)
    erased = ((fractions[:, 0] < probability) & boxes.fits).nonzero().squeeze(1)
    seeds = streams.select(erased).keys("erasing noise").tolist()
    places = torch.stack(boxes[:4], 1)[erased].tolist()
    out, source = x.clone(), torch.Generator()
    for row, seed, (top, left, height, width) in zip(erased.tolist(), seeds, places, strict=True):
        noise = _noise((x.shape[1], height, width), source.manual_seed(seed))
        if not x.is_floating_point():
            noise = noise.mul_(255).round_()
        out[row, :, top : top + height, left : left + width] = noise.to(x.device, x.dtype)
    return out


def _noise(shape: tuple[int, int, int], source: torch.Generator) -> Tensor:
    """Truncated normal noise by the inverse of the distribution function."""
    edge = math.erf(MEAN / STD / math.sqrt(2))  # the truncation is symmetric about the mean
    noise = torch.rand(shape, generator=source).mul_(2 * edge).sub_(edge).erfinv_()
    return noise.mul_(STD * math.sqrt(2)).add_(MEAN).clamp_(0, 1)
