"""Random rectangles with a given share of the area and a given shape."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

TRIES = 10
DRAWS = 2 * TRIES + 2  # numbers that a box takes: an area and a ratio per try, then its place

Range = tuple[float, float]


class Boxes(NamedTuple):
    """One rectangle for each sample, in pixels."""

    top: Tensor  # (N,) int64
    left: Tensor
    height: Tensor
    width: Tensor
    fits: Tensor  # (N,) bool: False where no try fitted, and the box is the whole image


def draw_boxes(
    fractions: Tensor, size: tuple[int, int], *, area: Range, ratio: Range, largest: int = 0
) -> Boxes:
    """The first of ten tries that fits into the image, at a place where it fits.

    Args:
        fractions: (N, DRAWS) numbers in [0, 1) that decide everything.
        size: height and width of the image.
        area: range of the share of the image's area, drawn evenly.
        ratio: range of width / height, drawn evenly on the log scale.
        largest: a box fits if its sides are at most this many pixels longer than the image's.
    """
    height, width = size
    shares = area[0] + (area[1] - area[0]) * fractions[:, :TRIES]
    logs = math.log(ratio[0]), math.log(ratio[1])
    ratios = (logs[0] + (logs[1] - logs[0]) * fractions[:, TRIES : 2 * TRIES]).exp()
    widths = (shares * height * width * ratios).sqrt().round().long()
    heights = (shares * height * width / ratios).sqrt().round().long()
    fitting = (widths > 0) & (widths <= width + largest)
    fitting &= (heights > 0) & (heights <= height + largest)
    first = fitting.byte().argmax(1, keepdim=True)  # argmax gives the first of equals
    fits = fitting.any(1)
    h = torch.where(fits, heights.gather(1, first).squeeze(1), height)
    w = torch.where(fits, widths.gather(1, first).squeeze(1), width)
    top = (fractions[:, -2] * (height - h + 1)).long()
    left = (fractions[:, -1] * (width - w + 1)).long()
    return Boxes(top, left, h, w, fits)
