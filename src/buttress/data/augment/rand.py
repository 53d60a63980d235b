"""RandAugment (Cubuk et al., arXiv:1909.13719) in the form of timm's ``rand-m9-mstd0.5-inc1``.

Magnitudes run from 0 to 10 and all operations grow stronger with them. As in timm, and unlike the
paper, an operation that was drawn happens with probability one half, and each draw has a magnitude
of its own. Departures from timm: the nearest pixel is taken and grey 128 comes in from outside,
where timm interpolates and takes the mean colour of the data set.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from buttress.data.augment.operations import apply
from buttress.streams import Streams

MOST = 10.0


class Scale(NamedTuple):
    """The amount at a magnitude: ``start + slope * magnitude``, to either side if ``signed``."""

    start: float = 0.0
    slope: float = 0.0
    signed: bool = False
    whole: bool = False  # the change is cut down to a whole number


SCALES = {
    "autocontrast": Scale(),
    "equalise": Scale(),
    "invert": Scale(),
    "rotate": Scale(0, 30 / MOST, signed=True),
    "posterise": Scale(4, -4 / MOST, whole=True),
    "solarise": Scale(256, -256 / MOST, whole=True),
    "solarise_add": Scale(0, 110 / MOST, whole=True),
    "saturation": Scale(1, 0.9 / MOST, signed=True),
    "contrast": Scale(1, 0.9 / MOST, signed=True),
    "brightness": Scale(1, 0.9 / MOST, signed=True),
    "sharpness": Scale(1, 0.9 / MOST, signed=True),
    "shear_x": Scale(0, 0.3 / MOST, signed=True),
    "shear_y": Scale(0, 0.3 / MOST, signed=True),
    "translate_x": Scale(0, 0.45 / MOST, signed=True),
    "translate_y": Scale(0, 0.45 / MOST, signed=True),
}
NAMES = tuple(SCALES)


def rand_augment(
    x: Tensor,
    streams: Streams,
    *,
    ops: int = 2,
    magnitude: float = 9.0,
    std: float = 0.5,
    probability: float = 0.5,
) -> Tensor:
    """Each uint8 image under ``ops`` operations, drawn evenly from fifteen.

    The magnitude is normal about ``magnitude`` with deviation ``std``, cut to 0..10.
    """
    fractions = streams.fractions(4 * ops, "rand").cpu()
    for kind, happens, level, side in fractions.view(-1, ops, 4).permute(1, 2, 0):
        numbers = (kind * len(NAMES)).long()
        # A draw of exactly zero would be minus infinity; it is cut to 0 like any other.
        levels = (magnitude + std * torch.special.ndtri(level)).clamp_(0, MOST)
        amounts = amounts_of(numbers, levels, torch.sign(side - 0.5))
        drawn = zip(numbers.tolist(), happens.tolist(), strict=True)
        names = [NAMES[number] if chance < probability else None for number, chance in drawn]
        x = apply(x, names, amounts)
    return x


def amounts_of(numbers: Tensor, magnitudes: Tensor, signs: Tensor) -> Tensor:
    """(N,) what each operation, by its number in `NAMES`, is given at its magnitude."""
    table = torch.tensor(list(SCALES.values()), dtype=torch.float64)
    start, slope, signed, whole = table[numbers].unbind(1)
    change = slope * magnitudes
    change = change - whole * change.frac()
    return start + change * (signed * signs + (1 - signed))
