"""Mirror images."""

from __future__ import annotations

from torch import Tensor

from buttress.streams import Streams


def random_flip(x: Tensor, streams: Streams) -> Tensor:
    """Each image mirrored left to right with probability one half."""
    rows = streams.integers(2, "flip").nonzero().squeeze(1).to(x.device)
    return x.index_copy(0, rows, x.index_select(0, rows).flip(3))
