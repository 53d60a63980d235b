"""The windows of the Square attack: their sizes, places, signs and patterns.

All random numbers of a query are in the 64 bits that its sample's key and its number give.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from buttress.attacks.problem import Problem
from buttress.streams import mix
from buttress.threat import TINY, Norm

# After these queries the share of the image is halved.
HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)


def draw(key: Tensor, step: Tensor, count: int) -> Tensor:
    """(N, count) the bits of a query and of those after it."""
    steps = step[:, None] + torch.arange(count, device=step.device)
    return mix(key[:, None] ^ mix(2 * steps + 1))


@lru_cache
def sides(queries: int, share: float, height: int, width: int, norm: Norm) -> Tensor:
    """(queries,) the side of the window at each query."""
    found = []
    for query in range(queries):
        p = share / 2 ** sum(query > h for h in HALVINGS)
        side = round(math.sqrt(p * height * width))
        if norm == "Linf":
            side = max(side, 1)
        else:
            side = max(side, 3)
            side += 1 - side % 2
        found.append(min(side, height, width))
    return torch.tensor(found)


def position(bits: Tensor, side: Tensor, length: int) -> Tensor:
    """(N,) where a window begins: as in the reference the last place is never drawn."""
    return bits % (length - side).clamp_min(1)


def corner(bits: Tensor, side: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The first row and column of a window drawn from 32 bits."""
    height, width = shape[-2:]
    return (
        position(bits & 0xFFFF, side, height),
        position((bits >> 16) & 0xFFFF, side, width),
    )


def window(bits: Tensor, side: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Rows and columns relative to a window drawn from 32 bits: (N, H) and (N, W)."""
    height, width = shape[2:]
    top, left = corner(bits, side, shape)
    device = bits.device
    rows = torch.arange(height, device=device) - top[:, None]
    return rows, torch.arange(width, device=device) - left[:, None]


def mask(rows: Tensor, columns: Tensor, side: Tensor) -> Tensor:
    """(N, 1, H, W) the window itself."""
    down = (rows >= 0) & (rows < side[:, None])
    along = (columns >= 0) & (columns < side[:, None])
    return (down[:, :, None] & along[:, None, :])[:, None]


def signs_of(bits: Tensor, channels: int, like: Tensor) -> Tensor:
    """(N, C, 1, 1) random signs, from the upper half of 64 bits, and more where 32 do not do."""
    return (2 * ups_of(bits, channels) - 1).to(like.dtype)[:, :, None, None]


def ups_of(bits: Tensor, channels: int) -> Tensor:
    """(N, C) random zeros and ones."""
    rows = []
    for first in range(0, channels, 32):
        bits = mix(bits) if first else bits
        count = min(32, channels - first)
        rows.append((bits[:, None] >> torch.arange(32, 32 + count, device=bits.device)) & 1)
    return torch.cat(rows, 1)


@lru_cache
def footprint(side: int, channels: int, height: int, width: int) -> Tensor:
    """(channels * side * side,) the pixels of a window at the origin, as places in the image."""
    across = torch.arange(side)
    plane = (across[:, None] * width + across).flatten()
    return (torch.arange(channels)[:, None] * (height * width) + plane).flatten()


@lru_cache
def bump(height: int, width: int, power: int) -> Tensor:
    """A pyramid of nested squares around the middle: the k-th adds 1 / (k + 1)^power."""
    rows = (torch.arange(height) - height // 2).abs()[:, None]
    columns = (torch.arange(width) - width // 2).abs()[None, :]
    ring = rows.maximum(columns)
    heights = torch.zeros(height, width, dtype=torch.float64)
    for k in range(max(height // 2, width // 2) + 1):
        heights += (ring <= k) / float(k + 1) ** power
    return heights


@lru_cache
def pattern(side: int, norm: Norm) -> Tensor:
    """Two opposite bumps, one above the other, of unit norm."""
    order, power = (2, 2) if norm == "L2" else (1, 4)
    halves = [bump(rows, side, power) for rows in (side // 2, side - side // 2)]
    halves = [h / max(float(h.norm(order)), TINY) for h in halves]
    both = torch.cat([halves[0], -halves[1]])
    return both / both.norm(order)


@lru_cache
def patterns(largest: int, norm: Norm) -> Tensor:
    """(2, largest + 1, largest, largest) patterns of all sides, upright and lying, padded."""
    bank = torch.zeros(2, largest + 1, largest, largest)
    for side in range(2, largest + 1):
        bank[0, side, :side, :side] = pattern(side, norm)
        bank[1, side, :side, :side] = pattern(side, norm).T
    return bank


def budget(problem: Problem, total: Tensor, taken: Tensor) -> Tensor:
    """The length that the new values of each channel may have: what was taken, and what is free.

    Of all values and of those taken the sums of squares are given in L2, of sizes in L1.
    """
    eps, channels = problem.threat.eps, problem.x.shape[1]
    if problem.threat.norm == "L2":
        return ((eps**2 - total).clamp_min(0) / channels + taken).sqrt()
    return channels * ((eps - total).clamp_min(0) / channels + taken)
