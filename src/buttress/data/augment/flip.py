"""Mirror images."""

from __future__ import annotations

import torch
from torch import Tensor

from buttress.streams import Streams


def random_flip(x: Tensor, streams: Streams) -> Tensor:
    """Each image mirrored left to right with probability one half."""
    mirrored = streams.integers(2, "flip").bool()
    order = mirrored.argsort(stable=True)  # those that stay, then those that are mirrored
    stay, turn = order.to(x.device).split([int((~mirrored).sum()), int(mirrored.sum())])
    pieces = torch.cat([x.index_select(0, stay), x.index_select(0, turn).flip(3)])
    return pieces.index_select(0, order.argsort().to(x.device))
