"""What storing an image does to it: fewer pixels, and JPEG. Pillow does the work."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from buttress.data.corruptions.core import CORRUPTIONS, PAPER
from buttress.streams import Streams


@CORRUPTIONS.register(
    "pixelate",
    paper=PAPER,
    tags=("common", "digital"),
    small=(0.95, 0.9, 0.85, 0.75, 0.65),
    large=(0.6, 0.5, 0.4, 0.3, 0.25),
)
def pixelate(x: Tensor, share: float, streams: Streams) -> Tensor:
    """Shrunk to a share of each side and enlarged again, both by boxes."""

    def change(image: Image.Image) -> Image.Image:
        small = int(image.width * share), int(image.height * share)
        return image.resize(small, Image.Resampling.BOX).resize(image.size, Image.Resampling.BOX)

    return each(x, change)


@CORRUPTIONS.register(
    "jpeg_compression",
    paper=PAPER,
    tags=("common", "digital"),
    small=(80, 65, 58, 50, 40),
    large=(25, 18, 15, 10, 7),
)
def jpeg_compression(x: Tensor, quality: int, streams: Streams) -> Tensor:
    """Stored as JPEG of a quality, with halved colour resolution, and read again."""

    def change(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file, formats=["JPEG"])

    return each(x, change)


def each(x: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Every image of a batch, changed by Pillow."""
    pixels = x.mul(255).round_().byte().permute(0, 2, 3, 1).contiguous().numpy()
    out = np.empty_like(pixels)
    is_grey = pixels.shape[3] == 1
    for row, image in enumerate(pixels):
        made = change(Image.fromarray(image[..., 0] if is_grey else image))
        out[row] = np.asarray(made).reshape(image.shape)
    return torch.from_numpy(out).permute(0, 3, 1, 2).double() / 255
