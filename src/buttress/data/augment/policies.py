"""AutoAugment (Cubuk et al., arXiv:1805.09501) with the policies found for CIFAR-10 and ImageNet.

Ten levels from 0 to 9. As in the widely used port of the policies, a rotation is always
counterclockwise while other signs are drawn, and gray comes in from outside.
Departure from that port: shears take the nearest pixel, as rotations and shifts do. Kept from it:
the 17th pair for CIFAR-10 equalizes with probability 0.8 where torchvision's list has 0.6.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from buttress.data.augment.operations import apply_operations
from buttress.system.rng import SampleRNG

AutoPolicy = Literal["cifar10", "imagenet"]


class PolicyOperation(NamedTuple):
    """An operation, how likely it is, and how strong."""

    name: str
    probability: float
    level: int


# One sub-policy per line: operation probability@level, twice.
_POLICY_TEXTS: dict[str, str] = {
    "cifar10": """
        invert .1@7        contrast .2@6
        rotate .7@2        translate_x .3@9
        sharpness .8@1     sharpness .9@3
        shear_y .5@8       translate_y .7@9
        autocontrast .5@0  equalize .9@0
        shear_y .2@7       posterize .3@7
        saturation .4@3    brightness .6@7
        sharpness .3@9     brightness .7@9
        equalize .6@0      equalize .5@0
        contrast .6@7      sharpness .6@5
        saturation .7@7    translate_x .5@8
        equalize .3@0      autocontrast .4@0
        translate_y .4@3   sharpness .2@6
        brightness .9@6    saturation .2@8
        solarize .5@2      invert .0@0
        equalize .2@0      autocontrast .6@0
        equalize .2@0      equalize .8@0
        saturation .9@9    equalize .6@0
        autocontrast .8@0  solarize .2@8
        brightness .1@3    saturation .7@0
        solarize .4@5      autocontrast .9@0
        translate_y .9@9   translate_y .7@9
        autocontrast .9@0  solarize .8@3
        equalize .8@0      invert .1@0
        translate_y .7@9   autocontrast .9@0
    """,
    "imagenet": """
        posterize .4@8     rotate .6@9
        solarize .6@5      autocontrast .6@0
        equalize .8@0      equalize .6@0
        posterize .6@7     posterize .6@6
        equalize .4@0      solarize .2@4
        equalize .4@0      rotate .8@8
        solarize .6@3      equalize .6@0
        posterize .8@5     equalize 1@0
        rotate .2@3        solarize .6@8
        equalize .6@0      posterize .4@6
        rotate .8@8        saturation .4@0
        rotate .4@9        equalize .6@0
        equalize 0@0       equalize .8@0
        invert .6@0        equalize 1@0
        saturation .6@4    contrast 1@8
        rotate .8@8        saturation 1@2
        saturation .8@8    solarize .8@7
        sharpness .4@7     invert .6@0
        shear_x .6@5       equalize 1@0
        saturation .4@0    equalize .6@0
        equalize .4@0      solarize .2@4
        solarize .6@5      autocontrast .6@0
        invert .6@0        equalize 1@0
        saturation .6@4    contrast 1@8
        equalize .8@0      equalize .6@0
    """,
}


def _parse_policy(text: str) -> tuple[tuple[PolicyOperation, PolicyOperation], ...]:
    sub_policies = []
    for line in text.strip().splitlines():
        first, one, second, two = line.split()
        sub_policies.append((_parse_operation(first, one), _parse_operation(second, two)))
    return tuple(sub_policies)


def _parse_operation(name: str, strength: str) -> PolicyOperation:
    probability, level = strength.split("@")
    return PolicyOperation(name, float(probability), int(level))


POLICIES = {name: _parse_policy(text) for name, text in _POLICY_TEXTS.items()}


def operation_amount(name: str, level: int, sign: int) -> float:
    """What an operation is given at a level from 0 to 9; ``sign`` is 1 or -1."""
    fraction = level / 9
    if name in ("shear_x", "shear_y"):
        return sign * 0.3 * fraction
    if name in ("translate_x", "translate_y"):
        return sign * 150 / 331 * fraction
    if name == "rotate":
        return 30 * fraction
    if name == "posterize":
        return round(8 - 4 * fraction)
    if name == "solarize":
        return 256 * (1 - fraction)
    if name in ("brightness", "contrast", "saturation", "sharpness"):
        return 1 + sign * 0.9 * fraction
    return 0.0


def auto_augment(x: Tensor, policy: AutoPolicy, streams: SampleRNG) -> Tensor:
    """Each uint8 image under one of the 25 sub-policies, whose two parts are each drawn or not."""
    choices = POLICIES[policy]
    fractions = streams.draw_fractions(5, "auto").cpu()
    sub_policy = (fractions[:, 0] * len(choices)).long().tolist()
    for part in range(2):
        chances, signs = fractions[:, 1 + 2 * part].tolist(), fractions[:, 2 + 2 * part].tolist()
        names: list[str | None] = []
        amounts = []
        for number, chance, side in zip(sub_policy, chances, signs, strict=True):
            name, probability, level = choices[number][part]
            names.append(name if chance < probability else None)
            amounts.append(operation_amount(name, level, 1 if side < 0.5 else -1))
        x = apply_operations(x, names, torch.tensor(amounts, dtype=torch.float64))
    return x


MAX_MAGNITUDE = 10.0


class MagnitudeScale(NamedTuple):
    """The amount at a magnitude: ``start + slope * magnitude``, to either side if ``is_signed``."""

    start: float = 0.0
    per_magnitude: float = 0.0
    is_signed: bool = False
    is_integer: bool = False  # the change is cut down to a whole number


MAGNITUDE_SCALES = {
    "autocontrast": MagnitudeScale(),
    "equalize": MagnitudeScale(),
    "invert": MagnitudeScale(),
    "rotate": MagnitudeScale(0, 30 / MAX_MAGNITUDE, is_signed=True),
    "posterize": MagnitudeScale(4, -4 / MAX_MAGNITUDE, is_integer=True),
    "solarize": MagnitudeScale(256, -256 / MAX_MAGNITUDE, is_integer=True),
    "solarize_add": MagnitudeScale(0, 110 / MAX_MAGNITUDE, is_integer=True),
    "saturation": MagnitudeScale(1, 0.9 / MAX_MAGNITUDE, is_signed=True),
    "contrast": MagnitudeScale(1, 0.9 / MAX_MAGNITUDE, is_signed=True),
    "brightness": MagnitudeScale(1, 0.9 / MAX_MAGNITUDE, is_signed=True),
    "sharpness": MagnitudeScale(1, 0.9 / MAX_MAGNITUDE, is_signed=True),
    "shear_x": MagnitudeScale(0, 0.3 / MAX_MAGNITUDE, is_signed=True),
    "shear_y": MagnitudeScale(0, 0.3 / MAX_MAGNITUDE, is_signed=True),
    "translate_x": MagnitudeScale(0, 0.45 / MAX_MAGNITUDE, is_signed=True),
    "translate_y": MagnitudeScale(0, 0.45 / MAX_MAGNITUDE, is_signed=True),
}
OPERATION_NAMES = tuple(MAGNITUDE_SCALES)


def rand_augment(
    x: Tensor,
    streams: SampleRNG,
    *,
    num_ops: int = 2,
    magnitude: float = 9.0,
    std: float = 0.5,
    probability: float = 0.5,
) -> Tensor:
    """Each uint8 image under ``num_ops`` operations, drawn evenly from fifteen.

    The magnitude is normal about ``magnitude`` with deviation ``std``, cut to 0..10.
    """
    fractions = streams.draw_fractions(4 * num_ops, "rand").cpu()
    for operation, chances, level, side in fractions.view(-1, num_ops, 4).permute(1, 2, 0):
        numbers = (operation * len(OPERATION_NAMES)).long()
        # A draw of exactly zero would be minus infinity; it is cut to 0 like any other.
        levels = (magnitude + std * torch.special.ndtri(level)).clamp_(0, MAX_MAGNITUDE)
        amounts = operation_amounts(numbers, levels, torch.sign(side - 0.5))
        draws = zip(numbers.tolist(), chances.tolist(), strict=True)
        names = [
            OPERATION_NAMES[number] if chance < probability else None for number, chance in draws
        ]
        x = apply_operations(x, names, amounts)
    return x


def operation_amounts(numbers: Tensor, magnitudes: Tensor, signs: Tensor) -> Tensor:
    """(N,) what each operation, by its number in `OPERATION_NAMES`, is given at its magnitude."""
    table = torch.tensor(list(MAGNITUDE_SCALES.values()), dtype=torch.float64)
    start, per_magnitude, is_signed, is_integer = table[numbers].unbind(1)
    change = per_magnitude * magnitudes
    change = change - is_integer * change.frac()
    return start + change * (is_signed * signs + (1 - is_signed))
