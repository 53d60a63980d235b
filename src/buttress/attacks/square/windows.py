"""The windows of the Square attack: their sizes, places, signs and patterns.

All random numbers of a query are in the 64 bits that its sample's key and its number give.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from buttress.attacks.problem import Problem
from buttress.system.rng import splitmix64
from buttress.threats.norm_ball import TINY, Norm

# After these queries the share of the image is halved.
HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)


def draw_query_bits(key: Tensor, step: Tensor, count: int) -> Tensor:
    """(N, count) the bits of a query and of those after it."""
    steps = step[:, None] + torch.arange(count, device=step.device)
    return splitmix64(key[:, None] ^ splitmix64(2 * steps + 1))


@lru_cache
def window_side_schedule(
    queries: int, p_init: float, height: int, width: int, norm: Norm
) -> Tensor:
    """(queries,) the side of the window at each query."""
    window_sides = []
    for query in range(queries):
        p = p_init / 2 ** sum(query > h for h in HALVINGS)
        side = round(math.sqrt(p * height * width))
        if norm == "Linf":
            side = max(side, 1)
        else:
            side = max(side, 3)
            side += 1 - side % 2
        window_sides.append(min(side, height, width))
    return torch.tensor(window_sides)


def window_start(bits: Tensor, side: Tensor, length: int) -> Tensor:
    """(N,) where a window begins: as in the reference the last place is never drawn."""
    return bits % (length - side).clamp_min(1)


def window_corner(bits: Tensor, side: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The first row and column of a window drawn from 32 bits."""
    height, width = shape[-2:]
    return (
        window_start(bits & 0xFFFF, side, height),
        window_start((bits >> 16) & 0xFFFF, side, width),
    )


def window_coordinates(bits: Tensor, side: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Rows and columns relative to a window drawn from 32 bits: (N, H) and (N, W)."""
    height, width = shape[2:]
    top, left = window_corner(bits, side, shape)
    device = bits.device
    rows = torch.arange(height, device=device) - top[:, None]
    return rows, torch.arange(width, device=device) - left[:, None]


def window_mask(rows: Tensor, columns: Tensor, side: Tensor) -> Tensor:
    """(N, 1, H, W) the window itself."""
    in_rows = (rows >= 0) & (rows < side[:, None])
    in_columns = (columns >= 0) & (columns < side[:, None])
    return (in_rows[:, :, None] & in_columns[:, None, :])[:, None]


def random_signs(bits: Tensor, channels: int, like: Tensor) -> Tensor:
    """(N, C, 1, 1) random signs, from the upper half of 64 bits, and more where 32 do not do."""
    return (2 * random_bits(bits, channels) - 1).to(like.dtype)[:, :, None, None]


def random_bits(bits: Tensor, channels: int) -> Tensor:
    """(N, C) random zeros and ones."""
    rows = []
    for first in range(0, channels, 32):
        bits = splitmix64(bits) if first else bits
        count = min(32, channels - first)
        rows.append((bits[:, None] >> torch.arange(32, 32 + count, device=bits.device)) & 1)
    return torch.cat(rows, 1)


@lru_cache
def window_pixels(side: int, channels: int, height: int, width: int) -> Tensor:
    """(channels * side * side,) the pixels of a window at the origin, as places in the image."""
    across = torch.arange(side)
    plane = (across[:, None] * width + across).flatten()
    return (torch.arange(channels)[:, None] * (height * width) + plane).flatten()


@lru_cache
def pyramid(height: int, width: int, power: int) -> Tensor:
    """A pyramid of nested squares around the middle: the k-th adds 1 / (k + 1)^power."""
    rows = (torch.arange(height) - height // 2).abs()[:, None]
    columns = (torch.arange(width) - width // 2).abs()[None, :]
    ring = rows.maximum(columns)
    heights = torch.zeros(height, width, dtype=torch.float64)
    for k in range(max(height // 2, width // 2) + 1):
        heights += (ring <= k) / float(k + 1) ** power
    return heights


@lru_cache
def bump_pattern(side: int, norm: Norm) -> Tensor:
    """Two opposite bumps, one above the other, of unit norm."""
    order, power = (2, 2) if norm == "L2" else (1, 4)
    halves = [pyramid(rows, side, power) for rows in (side // 2, side - side // 2)]
    halves = [h / max(float(h.norm(order)), TINY) for h in halves]
    bumps = torch.cat([halves[0], -halves[1]])
    return bumps / bumps.norm(order)


@lru_cache
def pattern_bank(largest: int, norm: Norm) -> Tensor:
    """(2, largest + 1, largest, largest) patterns of all sides, upright and lying, padded."""
    bank = torch.zeros(2, largest + 1, largest, largest)
    for side in range(2, largest + 1):
        bank[0, side, :side, :side] = bump_pattern(side, norm)
        bank[1, side, :side, :side] = bump_pattern(side, norm).T
    return bank


def channel_budget(problem: Problem, total: Tensor, removed: Tensor) -> Tensor:
    """The length that the new values of each channel may have: what was taken, and what is free.

    Of all values and of those taken the sums of squares are given in L2, of sizes in L1.
    """
    eps, channels = problem.ball.eps, problem.x.shape[1]
    if problem.ball.norm == "L2":
        return ((eps**2 - total).clamp_min(0) / channels + removed).sqrt()
    return channels * ((eps - total).clamp_min(0) / channels + removed)
