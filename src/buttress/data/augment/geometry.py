"""Affine maps of whole batches with the nearest pixel, exactly as Pillow computes them.

A matrix (a, b, c, d, e, f) takes a pixel (u, v) of the result to the place
(a u + b v + c, d u + e v + f) in the image, with v downwards and pixel centers at halves.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from buttress.system.rng import SampleRNG

_FIXED_POINT = 65536  # Pillow counts in units of 2^-16 pixels


def apply_affine(x: Tensor, matrices: Tensor, fill: float) -> Tensor:
    """Each image (N, C, H, W) under its own map (N, 6) float64; ``fill`` comes in from outside."""
    n, channels, height, width = x.shape
    index = _source_index(matrices.to(x.device), height, width)
    border = x.new_full((n, channels, 1), fill)
    pixels = torch.cat([x.flatten(2), border], 2)  # the last one stands for all outside
    return pixels.gather(2, index.unsqueeze(1).expand(-1, channels, -1)).view_as(x)


def _source_index(matrices: Tensor, height: int, width: int) -> Tensor:
    """(N, H*W) which pixel each pixel comes from; H*W if from outside."""
    a, b, c, d, e, f = matrices.unbind(1)
    terms = torch.stack([a, b, c + (a + b) / 2, d, e, f + (d + e) / 2])
    a, b, c, d, e, f = (terms * _FIXED_POINT + 0.5).floor().long().unsqueeze(2)  # each (N, 1)
    u, v = torch.arange(width, device=a.device), torch.arange(height, device=a.device)
    columns = ((c + a * u).unsqueeze(1) + (b * v).unsqueeze(2)) >> 16  # (N, H, W)
    rows = ((f + d * u).unsqueeze(1) + (e * v).unsqueeze(2)) >> 16
    # The sign bit tells outside from inside: bool masks are slow on the CPU.
    outside = (columns | (width - 1 - columns) | rows | (height - 1 - rows)) >> 63  # 0 or -1
    inner = (rows * width + columns) & ~outside
    return (inner | (outside & (height * width))).flatten(1)


def shear_x(amount: Tensor, size: tuple[int, int]) -> Tensor:
    """Rows move by ``amount`` times their distance from the top edge."""
    return _affine_matrices(amount, b=amount)


def shear_y(amount: Tensor, size: tuple[int, int]) -> Tensor:
    """Columns move by ``amount`` times their distance from the left edge."""
    return _affine_matrices(amount, d=amount)


def translate_x(share: Tensor, size: tuple[int, int]) -> Tensor:
    """The image moves to the left by this share of its width."""
    return _affine_matrices(share, c=share * size[1])


def translate_y(share: Tensor, size: tuple[int, int]) -> Tensor:
    """The image moves up by this share of its height."""
    return _affine_matrices(share, f=share * size[0])


def rotate(degrees: Tensor, size: tuple[int, int]) -> Tensor:
    """The image turns counterclockwise about its center."""
    height, width = size
    angle = degrees.double() * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    c = width / 2 - cos * (width / 2) + sin * (height / 2)
    f = height / 2 - sin * (width / 2) - cos * (height / 2)
    return torch.stack([cos, -sin, c, sin, cos, f], 1)


def _affine_matrices(like: Tensor, **entries: Tensor) -> Tensor:
    """(N, 6) the identity with some entries changed."""
    matrices = torch.tensor([[1.0, 0, 0, 0, 1, 0]], dtype=torch.float64).repeat(len(like), 1)
    for name, values in entries.items():
        matrices[:, "abcdef".index(name)] = values.double()
    return matrices


def random_rotation(x: Tensor, degrees: float, streams: SampleRNG) -> Tensor:
    """Each image turned by up to ``degrees`` either way, with black coming in."""
    share = streams.draw_fractions(1, "rotation").squeeze(1)
    return apply_affine(x, rotate((2 * share - 1) * degrees, (x.shape[2], x.shape[3])), 0)
