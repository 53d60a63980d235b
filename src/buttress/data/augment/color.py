"""Color operations on 8-bit images, and conversion between [0, 1] and uint8."""

from __future__ import annotations

import torch
from torch import Tensor

from buttress.errors import UserError


def to_uint8(x: Tensor) -> Tensor:
    """Images as uint8; a float in [0, 1] becomes the nearest of 256 levels."""
    return x if x.dtype == torch.uint8 else truncate_to_uint8((x * 255).round_())


def truncate_to_uint8(values: Tensor) -> Tensor:
    """Floats from 0 to 255 as uint8, fractions cut off.

    Converting through int16 takes a third of the time of the direct conversion.
    """
    return values.to(torch.int16).to(torch.uint8)


def match_dtype(x: Tensor, original: Tensor) -> Tensor:
    """A uint8 image in the form of ``original``: uint8, or float in [0, 1]."""
    return x if original.dtype == torch.uint8 else x.to(original.dtype).div_(255)


def adjust_brightness(x: Tensor, factor: Tensor) -> Tensor:
    return _blend(torch.zeros(()), x.float(), factor)


def adjust_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Blend each image with its mean gray level."""
    mean = to_grayscale(x.float()).mean((1, 2, 3), keepdim=True, dtype=torch.float64)
    return _blend((mean + 0.5).floor().float(), x.float(), factor)


def adjust_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Blend each image with its grayscale version."""
    values = x.float()
    return _blend(to_grayscale(values), values, factor)


def adjust_sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend each image with a 3x3 blur (center weight 5, neighbors 1); border pixels stay."""
    values = x.float()
    blurred = values.clone()
    thirds = values[..., :-2] + values[..., 1:-1] + values[..., 2:]
    sums = thirds[..., :-2, :] + thirds[..., 1:-1, :] + thirds[..., 2:, :]
    inner = sums + 4 * values[..., 1:-1, 1:-1]
    blurred[..., 1:-1, 1:-1] = ((inner + 6.5) / 13).floor_()  # a sum of 13 weights has no ties
    return _blend(blurred, values, factor)


def adjust_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate the hue; 1 is a full turn. Grayscale images are unchanged."""
    if x.shape[1] == 1:
        return x
    red, green, blue = (values := _require_rgb(x.float())).unbind(1)
    high = values.amax(1)
    chroma = high - values.amin(1)
    is_red = (high == red).float()
    is_green = (high == green).float() * (1 - is_red)
    is_blue = 1 - is_red - is_green
    sixths = is_red * (green - blue) + is_green * (blue - red) + is_blue * (red - green)
    sixths = sixths / chroma.clamp_min(1) + 2 * is_green + 4 * is_blue
    sixths = sixths + 6 * turn.to(x.device, torch.float32).view(-1, 1, 1)
    offsets = torch.tensor([5.0, 3.0, 1.0], device=x.device).view(1, 3, 1, 1)
    hue_position = (sixths.unsqueeze(1) + offsets).remainder_(6)
    below = torch.minimum(hue_position, 4 - hue_position).clamp_(0, 1)
    return truncate_to_uint8((high.unsqueeze(1) - chroma.unsqueeze(1) * below).round_())


def to_grayscale(values: Tensor) -> Tensor:
    """(N, 1, H, W) the luma of Rec. 601, rounded as in Pillow; exact, for sums stay below 2^24."""
    if values.shape[1] == 1:
        return values
    red, green, blue = _require_rgb(values).split(1, 1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 32768) / 65536).floor_()


def _require_rgb(values: Tensor) -> Tensor:
    if values.shape[1] != 3:
        raise UserError(
            f"color augmentation needs 1 or 3 channels, but the images have {values.shape[1]}"
        )
    return values


def _blend(degenerate: Tensor, values: Tensor, factor: Tensor) -> Tensor:
    degenerate = degenerate.to(values.device)
    factor = factor.to(values.device, torch.float32).view(-1, 1, 1, 1)
    # Pillow truncates here instead of rounding; so do we.
    return truncate_to_uint8((values - degenerate).mul_(factor).add_(degenerate).clamp_(0, 255))


def invert(x: Tensor) -> Tensor:
    return x ^ 255


def solarize(x: Tensor, threshold: Tensor) -> Tensor:
    """Levels from ``threshold`` on are inverted."""
    limit = threshold.ceil().to(x.device, torch.int16).view(-1, 1, 1, 1)
    return x ^ ((x >= limit).to(torch.uint8) * 255)


def solarize_add(x: Tensor, amount: Tensor) -> Tensor:
    """Levels below 128 grow by ``amount``."""
    added = amount.to(x.device, torch.int16).view(-1, 1, 1, 1)
    return (x.short() + added * (x < 128)).clamp_(max=255).to(torch.uint8)


def posterize(x: Tensor, bits: Tensor) -> Tensor:
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
    return apply_lookup_table(x, table)


def equalize(x: Tensor) -> Tensor:
    """Each channel's histogram made flat; one of too few levels to do so stays as it is."""
    n, channels = x.shape[:2]
    rows = torch.arange(n * channels, device=x.device).view(n, channels, 1)
    level_index = (x.flatten(2) + 256 * rows).flatten()
    counts = level_index.bincount(minlength=256 * n * channels).view(n, channels, 256)
    highest = x.flatten(2).amax(2, keepdim=True).long()
    step = (x[0, 0].numel() - counts.gather(2, highest)) // 255
    below = counts.cumsum(2) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(max=255)
    is_kept = (step == 0).long()
    table = table * (1 - is_kept) + torch.arange(256, device=x.device) * is_kept
    return apply_lookup_table(x, table.to(torch.uint8))


def apply_lookup_table(x: Tensor, table: Tensor) -> Tensor:
    """Each level replaced by the entry of its channel's table (N, C, 256)."""
    return table.gather(2, x.flatten(2).long()).view_as(x)
