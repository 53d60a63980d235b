"""A shift by a few pixels: padding and a random crop of the old size."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from buttress.streams import Streams


def random_crop(x: Tensor, padding: int, streams: Streams) -> Tensor:
    """A window of the old size, placed at random in the image with a black border added."""
    _, _, height, width = x.shape
    places = 2 * padding + 1
    place = streams.integers(places**2, "crop").to(x.device)
    padded = F.pad(x, (padding,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (N, C, places, places, H, W)
    return windows[torch.arange(len(x), device=x.device), :, place // places, place % places]
