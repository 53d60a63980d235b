"""Random crops, flips and resized crops of batches."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from buttress.data.augment.color import truncate_to_uint8
from buttress.system.rng import SampleRNG


def random_crop(x: Tensor, padding: int, streams: SampleRNG) -> Tensor:
    """A window of the old size, placed at random in the image with a black border added."""
    _, _, height, width = x.shape
    num_offsets = 2 * padding + 1
    offset = streams.draw_integers(num_offsets**2, "crop").to(x.device)
    padded = F.pad(x, (padding,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (N, C, places, places, H, W)
    samples = torch.arange(len(x), device=x.device)
    return windows[samples, :, offset // num_offsets, offset % num_offsets]


def random_flip(x: Tensor, streams: SampleRNG) -> Tensor:
    """Each image mirrored left to right with probability one half."""
    mirrored = streams.draw_integers(2, "flip").bool()
    order = mirrored.argsort(stable=True)  # those that stay, then those that are mirrored
    counts = [int((~mirrored).sum()), int(mirrored.sum())]
    kept_rows, flipped_rows = order.to(x.device).split(counts)
    pieces = torch.cat([x.index_select(0, kept_rows), x.index_select(0, flipped_rows).flip(3)])
    return pieces.index_select(0, order.argsort().to(x.device))


MAX_TRIES = 10
DRAWS_PER_BOX = 2 * MAX_TRIES + 2  # numbers of a box: area and ratio per try, then its place

Range = tuple[float, float]


class CropBoxes(NamedTuple):
    """One rectangle for each sample, in pixels."""

    top: Tensor  # (N,) int64
    left: Tensor
    height: Tensor
    width: Tensor
    fits: Tensor  # (N,) bool: False where no try fitted, and the box is the whole image


def sample_boxes(
    fractions: Tensor, size: tuple[int, int], *, area: Range, ratio: Range, size_slack: int = 0
) -> CropBoxes:
    """The first of ten tries that fits into the image, at a place where it fits.

    Args:
        fractions: (N, DRAWS) numbers in [0, 1) that decide everything.
        size: height and width of the image.
        area: range of the share of the image's area, drawn evenly.
        ratio: range of width / height, drawn evenly on the log scale.
        size_slack: a box fits if its sides are at most this many pixels longer than the image's.
    """
    height, width = size
    shares = area[0] + (area[1] - area[0]) * fractions[:, :MAX_TRIES]
    logs = math.log(ratio[0]), math.log(ratio[1])
    ratios = (logs[0] + (logs[1] - logs[0]) * fractions[:, MAX_TRIES : 2 * MAX_TRIES]).exp()
    widths = (shares * height * width * ratios).sqrt().round().long()
    heights = (shares * height * width / ratios).sqrt().round().long()
    fitting = (widths > 0) & (widths <= width + size_slack)
    fitting &= (heights > 0) & (heights <= height + size_slack)
    first = fitting.byte().argmax(1, keepdim=True)  # argmax gives the first of equals
    fits = fitting.any(1)
    h = torch.where(fits, heights.gather(1, first).squeeze(1), height)
    w = torch.where(fits, widths.gather(1, first).squeeze(1), width)
    top = (fractions[:, -2] * (height - h + 1)).long()
    left = (fractions[:, -1] * (width - w + 1)).long()
    return CropBoxes(top, left, h, w, fits)


Interpolation = Literal["bicubic", "bilinear"]

_WEIGHT_UNIT = float(1 << 14)


def random_resized_crop(
    x: Tensor,
    streams: SampleRNG,
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
    fractions = streams.draw_fractions(DRAWS_PER_BOX, "resized crop")
    boxes = sample_boxes(fractions, size, area=scale, ratio=ratio)
    return resize_boxes(x, _center_fallback(boxes, size, ratio), interpolation)


def _center_fallback(boxes: CropBoxes, size: tuple[int, int], ratio: Range) -> CropBoxes:
    """Boxes that did not fit become the largest central part with an allowed ratio."""
    height, width = size
    h = min(height, round(width / ratio[0]))
    w = min(width, round(height * ratio[1]))
    return CropBoxes(
        torch.where(boxes.fits, boxes.top, (height - h) // 2),
        torch.where(boxes.fits, boxes.left, (width - w) // 2),
        torch.where(boxes.fits, boxes.height, h),
        torch.where(boxes.fits, boxes.width, w),
        boxes.fits,
    )


def resize_boxes(x: Tensor, boxes: CropBoxes, interpolation: Interpolation = "bicubic") -> Tensor:
    """The part of each uint8 image (N, C, H, W) inside its box, enlarged to (H, W)."""
    n, c, height, width = x.shape
    across = _resampling_weights(boxes.left, boxes.width, width, interpolation).to(x.device)
    down = _resampling_weights(boxes.top, boxes.height, height, interpolation).to(x.device)
    rows = _round_to_uint8_range(x.float().view(n, c * height, width) @ across.transpose(1, 2))
    columns = rows.view(n, c, height, width).transpose(1, 2).reshape(n, height, c * width)
    resized = _round_to_uint8_range(down @ columns).view(n, height, c, width)
    return truncate_to_uint8(resized.transpose(1, 2).contiguous())


def _round_to_uint8_range(x: Tensor) -> Tensor:
    return x.add_(_WEIGHT_UNIT / 2).mul_(1 / _WEIGHT_UNIT).floor_().clamp_(0, 255)


def _resampling_weights(
    start: Tensor, length: Tensor, size: int, interpolation: Interpolation
) -> Tensor:
    """(N, size, size) the weight of each old pixel in each new one, in units of 2^-14.

    Parts are never larger than the image, so that no averaging over many pixels is needed.
    """
    points = torch.arange(size, dtype=torch.float32) + 0.5
    pixel_position = points - start.float().unsqueeze(1)  # (N, size) old pixels, from the box on
    center = points * (length.float() / size).unsqueeze(1)  # (N, size) new pixels in the same units
    inside = (pixel_position > 0) & (pixel_position < length.unsqueeze(1))
    distance = (pixel_position.unsqueeze(1) - center.unsqueeze(2)).abs_()
    weights = _KERNELS[interpolation](distance) * inside.unsqueeze(1)
    return weights.div_(weights.sum(2, keepdim=True)).mul_(_WEIGHT_UNIT).round_()


def _linear_kernel(distance: Tensor) -> Tensor:
    return (1 - distance).clamp_(min=0)


def _cubic_kernel(distance: Tensor) -> Tensor:
    """Keys' kernel with a = -1/2, as in Pillow (torch's own resizing has a = -3/4)."""
    near, far = distance.clamp(max=1), distance.clamp(1, 2)
    inner = (1.5 * near - 2.5) * near * near + 1
    return inner + ((-0.5 * far + 2.5) * far - 4) * far + 2


_KERNELS = {"bicubic": _cubic_kernel, "bilinear": _linear_kernel}
