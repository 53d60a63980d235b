"""Changes of each pixel's tone: brightness, contrast, saturation."""

from __future__ import annotations

import torch
from torch import Tensor

from buttress.data.corruptions.core import CORRUPTIONS, PAPER
from buttress.errors import UserError
from buttress.streams import Streams


@CORRUPTIONS.register(
    "brightness",
    paper=PAPER,
    tags=("common", "weather"),
    small=(0.05, 0.1, 0.15, 0.2, 0.3),
    large=(0.1, 0.2, 0.3, 0.4, 0.5),
)
def brightness(x: Tensor, amount: float, streams: Streams) -> Tensor:
    """Added to the value of HSV, the largest of a pixel's channels; hue and saturation stay."""
    value = x.amax(1, keepdim=True)
    raised = (value + amount).clamp_max(1)
    # With hue and saturation fixed a pixel grows in proportion; black has neither and turns grey.
    return torch.where(value > 0, x * (raised / value.clamp_min(1 / 255)), raised)


@CORRUPTIONS.register(
    "contrast",
    paper=PAPER,
    tags=("common", "digital"),
    small=(0.75, 0.5, 0.4, 0.3, 0.15),
    large=(0.4, 0.3, 0.2, 0.1, 0.05),
)
def contrast(x: Tensor, factor: float, streams: Streams) -> Tensor:
    """The distance of each channel from its mean over the image, times a factor."""
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * factor + mean


@CORRUPTIONS.register(
    "saturate",
    paper=PAPER,
    tags=("extra", "digital"),
    small=((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    large=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
)
def saturate(x: Tensor, constants: tuple[float, float], streams: Streams) -> Tensor:
    """The saturation of HSV times a factor plus a shift; value and hue stay.

    A grey pixel has no hue; the published code takes that as red, so a shift reddens greys.
    """
    if x.shape[1] == 1:
        raise UserError("saturate changes colours, but the images are grey; leave it out")
    factor, shift = constants
    value, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    chroma = value - low
    is_grey = chroma == 0
    old = chroma / value.clamp_min(1 / 255)
    new = (old * factor + shift).clamp_(0, 1)
    # How far each channel lies below the value: 0 for the largest, 1 for the smallest.
    below = (value - x) / torch.where(is_grey, 1.0, chroma)
    red = torch.tensor([0.0, 1, 1], dtype=x.dtype).view(1, 3, 1, 1)
    return value * (1 - new * torch.where(is_grey, red, below))
