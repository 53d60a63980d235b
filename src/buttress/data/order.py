"""The order in which an epoch visits the training images."""

from __future__ import annotations

import torch
from torch import Tensor

from buttress.streams import generator


def epoch_order(n: int, seed: int, epoch: int) -> Tensor:
    """A permutation of 0..n-1 that belongs to (seed, epoch): resuming needs no stored state."""
    return torch.randperm(n, generator=generator("order", seed, epoch))
