"""Changes of grey levels of uint8 images, the same for all pixels of a channel, as in Pillow."""

from __future__ import annotations

import torch
from torch import Tensor


def invert(x: Tensor) -> Tensor:
    return x ^ 255


def solarise(x: Tensor, threshold: Tensor) -> Tensor:
    """Levels from ``threshold`` on are inverted."""
    limit = threshold.ceil().to(x.device, torch.int16).view(-1, 1, 1, 1)
    return x ^ ((x >= limit).to(torch.uint8) * 255)


def solarise_add(x: Tensor, amount: Tensor) -> Tensor:
    """Levels below 128 grow by ``amount``."""
    added = amount.to(x.device, torch.int16).view(-1, 1, 1, 1)
    return (x.short() + added * (x < 128)).clamp_(max=255).to(torch.uint8)


def posterise(x: Tensor, bits: Tensor) -> Tensor:
    """Only the highest ``bits`` of the eight are kept."""
    masks = 256 - (1 << (8 - bits.to(x.device, torch.int64)))
    return x & masks.to(torch.uint8).view(-1, 1, 1, 1)


def autocontrast(x: Tensor) -> Tensor:
    """Each channel stretched to the whole range; one of a single level stays as it is."""
    low, high = (v.double() for v in torch.aminmax(x.flatten(2), dim=2, keepdim=True))
    is_flat = (high == low).double()
    scale = 255 * (1 - is_flat) / (high - low + is_flat) + is_flat
    # On 256 levels, not on all pixels: double precision, as in Pillow, is slow.
    levels = torch.arange(256, dtype=torch.float64, device=x.device)
    table = (levels * scale - low * scale * (1 - is_flat)).clamp_(0, 255).to(torch.uint8)
    return look_up(x, table)


def equalise(x: Tensor) -> Tensor:
    """Each channel's histogram made flat; one of too few levels to do so stays as it is."""
    n, channels = x.shape[:2]
    rows = torch.arange(n * channels, device=x.device).view(n, channels, 1)
    places = (x.flatten(2) + 256 * rows).flatten()
    counts = places.bincount(minlength=256 * n * channels).view(n, channels, 256)
    highest = x.flatten(2).amax(2, keepdim=True).long()
    step = (x[0, 0].numel() - counts.gather(2, highest)) // 255
    below = counts.cumsum(2) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(max=255)
    is_kept = (step == 0).long()
    table = table * (1 - is_kept) + torch.arange(256, device=x.device) * is_kept
    return look_up(x, table.to(torch.uint8))


def look_up(x: Tensor, table: Tensor) -> Tensor:
    """Each level replaced by the entry of its channel's table (N, C, 256)."""
    return table.gather(2, x.flatten(2).long()).view_as(x)
