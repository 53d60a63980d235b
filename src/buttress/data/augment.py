"""Random crops and flips of whole batches, drawn for each sample from its id.

The draw belongs to (seed, purpose, epoch, sample id): how samples are put into batches, and which
worker has them, changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from buttress.errors import UserError
from buttress.streams import Streams


@dataclass(frozen=True)
class Augmentation:
    """Shifts by up to ``crop`` pixels, with black moving in, and mirrors half of the images."""

    crop: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        if self.crop < 0:
            raise UserError(f"`crop >= 0` must hold, but got crop={self.crop}")

    def __call__(self, x: Tensor, streams: Streams, epoch: int = 0) -> Tensor:
        """The batch ``x`` (N, C, H, W), uint8 or float, as epoch ``epoch`` sees it."""
        streams = replace(streams, purpose=f"{streams.purpose}/epoch {epoch}")
        if self.crop:
            x = random_crop(x, self.crop, streams)
        return random_flip(x, streams) if self.flip else x


def random_crop(x: Tensor, padding: int, streams: Streams) -> Tensor:
    """A window of the old size, placed at random in the image with a black border added."""
    _, _, height, width = x.shape
    places = 2 * padding + 1
    place = streams.integers(places**2, "crop").to(x.device)
    padded = F.pad(x, (padding,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (N, C, places, places, H, W)
    return windows[torch.arange(len(x), device=x.device), :, place // places, place % places]


def random_flip(x: Tensor, streams: Streams) -> Tensor:
    """Each image mirrored left to right with probability one half."""
    mirrored = streams.integers(2, "flip").to(x.device).bool()
    return torch.where(mirrored.view(-1, 1, 1, 1), x.flip(3), x)
