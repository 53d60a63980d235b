"""Random resized crops: a part of the image, enlarged to the whole.

Resampling is that of Pillow: first along rows, then along columns, each pass rounded to 8 bits.
Weights are multiples of 2^-14, so that float32 sums are exact and no order of summing, hence no
batch size, changes a bit.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from buttress.data.augment.bits import cut
from buttress.data.augment.boxes import DRAWS, Boxes, Range, draw_boxes
from buttress.streams import Streams

Interpolation = Literal["bicubic", "bilinear"]

_UNIT = float(1 << 14)


def random_resized_crop(
    x: Tensor,
    streams: Streams,
    *,
    scale: Range = (0.08, 1.0),
    ratio: Range = (3 / 4, 4 / 3),
    interpolation: Interpolation = "bicubic",
) -> Tensor:
    """A random part of each uint8 image, resized to the old size (Szegedy et al. 2014).

    ``scale`` is the part's share of the area, ``ratio`` its width by its height. Where ten tries
    do not fit, the largest central part with an allowed ratio is taken, as in torchvision.
    """
    size = x.shape[2], x.shape[3]
    fractions = streams.fractions(DRAWS, "resized crop")
    boxes = draw_boxes(fractions, size, area=scale, ratio=ratio)
    return resize_boxes(x, _central(boxes, size, ratio), interpolation)


def _central(boxes: Boxes, size: tuple[int, int], ratio: Range) -> Boxes:
    """Boxes that did not fit become the largest central part with an allowed ratio."""
    height, width = size
    h = min(height, round(width / ratio[0]))
    w = min(width, round(height * ratio[1]))
    return Boxes(
        torch.where(boxes.fits, boxes.top, (height - h) // 2),
        torch.where(boxes.fits, boxes.left, (width - w) // 2),
        torch.where(boxes.fits, boxes.height, h),
        torch.where(boxes.fits, boxes.width, w),
        boxes.fits,
    )


def resize_boxes(x: Tensor, boxes: Boxes, interpolation: Interpolation = "bicubic") -> Tensor:
    """The part of each uint8 image (N, C, H, W) inside its box, enlarged to (H, W)."""
    n, c, height, width = x.shape
    across = _weights(boxes.left, boxes.width, width, interpolation).to(x.device)
    down = _weights(boxes.top, boxes.height, height, interpolation).to(x.device)
    rows = _rounded(x.float().view(n, c * height, width) @ across.transpose(1, 2))
    columns = rows.view(n, c, height, width).transpose(1, 2).reshape(n, height, c * width)
    done = _rounded(down @ columns).view(n, height, c, width)
    return cut(done.transpose(1, 2).contiguous())


def _rounded(x: Tensor) -> Tensor:
    return x.add_(_UNIT / 2).mul_(1 / _UNIT).floor_().clamp_(0, 255)


def _weights(start: Tensor, length: Tensor, size: int, interpolation: Interpolation) -> Tensor:
    """(N, size, size) the weight of each old pixel in each new one, in units of 2^-14.

    Parts are never larger than the image, so that no averaging over many pixels is needed.
    """
    points = torch.arange(size, dtype=torch.float32) + 0.5
    place = points - start.float().unsqueeze(1)  # (N, size) old pixels, counted from the box
    centre = points * (length.float() / size).unsqueeze(1)  # (N, size) new pixels in the same units
    inside = (place > 0) & (place < length.unsqueeze(1))
    distance = (place.unsqueeze(1) - centre.unsqueeze(2)).abs_()
    weights = _KERNELS[interpolation](distance) * inside.unsqueeze(1)
    return weights.div_(weights.sum(2, keepdim=True)).mul_(_UNIT).round_()


def _linear(distance: Tensor) -> Tensor:
    return (1 - distance).clamp_(min=0)


def _cubic(distance: Tensor) -> Tensor:
    """Keys' kernel with a = -1/2, as in Pillow (torch's own resizing has a = -3/4)."""
    near, far = distance.clamp(max=1), distance.clamp(1, 2)
    inner = (1.5 * near - 2.5) * near * near + 1
    return inner + ((-0.5 * far + 2.5) * far - 4) * far + 2


_KERNELS = {"bicubic": _cubic, "bilinear": _linear}
