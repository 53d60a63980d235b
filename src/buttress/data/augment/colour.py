"""Brightness, contrast, saturation, sharpness and hue of uint8 images, as Pillow computes them.

Each of the first four moves an image away from (factor > 1) or towards (factor < 1) one that lacks
the quality altogether: black, uniform grey, without colour, blurred.
"""

from __future__ import annotations

import torch
from torch import Tensor

from buttress.data.augment.bits import cut
from buttress.errors import UserError


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    return _blend(torch.zeros(()), x.float(), factor)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Towards the mean grey of the image."""
    mean = grey(x.float()).mean((1, 2, 3), keepdim=True, dtype=torch.float64)
    return _blend((mean + 0.5).floor().float(), x.float(), factor)


def saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Towards the grey image, of which an image without colours is one."""
    values = x.float()
    return _blend(grey(values), values, factor)


def sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Towards a blur that weighs the centre 5 and its eight neighbours 1; edges stay."""
    values = x.float()
    blurred = values.clone()
    thirds = values[..., :-2] + values[..., 1:-1] + values[..., 2:]
    sums = thirds[..., :-2, :] + thirds[..., 1:-1, :] + thirds[..., 2:, :]
    inner = sums + 4 * values[..., 1:-1, 1:-1]
    blurred[..., 1:-1, 1:-1] = ((inner + 6.5) / 13).floor_()  # a sum of 13 weights has no ties
    return _blend(blurred, values, factor)


def hue(x: Tensor, turn: Tensor) -> Tensor:
    """Colours turned on their circle; a turn of 1 is the whole circle. Grey images stay."""
    if x.shape[1] == 1:
        return x
    red, green, blue = (values := _coloured(x.float())).unbind(1)
    high = values.amax(1)
    chroma = high - values.amin(1)
    is_red = (high == red).float()
    is_green = (high == green).float() * (1 - is_red)
    is_blue = 1 - is_red - is_green
    sixths = is_red * (green - blue) + is_green * (blue - red) + is_blue * (red - green)
    sixths = sixths / chroma.clamp_min(1) + 2 * is_green + 4 * is_blue
    sixths = sixths + 6 * turn.to(x.device, torch.float32).view(-1, 1, 1)
    offsets = torch.tensor([5.0, 3.0, 1.0], device=x.device).view(1, 3, 1, 1)
    place = (sixths.unsqueeze(1) + offsets).remainder_(6)
    below = torch.minimum(place, 4 - place).clamp_(0, 1)
    return cut((high.unsqueeze(1) - chroma.unsqueeze(1) * below).round_())


def grey(values: Tensor) -> Tensor:
    """(N, 1, H, W) the luma of Rec. 601, rounded as in Pillow; exact, for sums stay below 2^24."""
    if values.shape[1] == 1:
        return values
    red, green, blue = _coloured(values).split(1, 1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 32768) / 65536).floor_()


def _coloured(values: Tensor) -> Tensor:
    if values.shape[1] != 3:
        raise UserError(
            f"changing colours needs 1 or 3 channels, but the images have {values.shape[1]}"
        )
    return values


def _blend(without: Tensor, values: Tensor, factor: Tensor) -> Tensor:
    without = without.to(values.device)
    factor = factor.to(values.device, torch.float32).view(-1, 1, 1, 1)
    # Pillow cuts fractions off where one would expect rounding; so do we.
    return cut((values - without).mul_(factor).add_(without).clamp_(0, 255))
