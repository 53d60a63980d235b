"""Which runs of an attack each process works off: as many as any other has, of whole images."""

from __future__ import annotations

import torch
from torch import Tensor


def dealt(asked: Tensor, count: int) -> list[Tensor]:
    """Cuts runs (N, runs), a mask, into such masks for each of up to ``count`` processes.

    The runs of all images lie in a row, which is cut into pieces of equal length. So an image is in
    two of them only where that makes them equal: what breaks it in one is not known in the other.
    """
    # images that follow each other go to different processes: they may be of one kind
    images = torch.arange(len(asked), device=asked.device)
    order = torch.cat([images[k::count] for k in range(count)])
    place = asked[order].flatten().cumsum(0).view_as(asked) - 1
    owner = torch.empty_like(place)
    owner[order] = place * count // place[-1, -1].add(1).clamp_min(1)
    shares = [asked & (owner == k) for k in range(count)]
    return [share for share in shares if share.any()]
