"""AutoAugment (Cubuk et al., arXiv:1805.09501) with the policies found for CIFAR-10 and ImageNet.

Ten levels from 0 to 9. As in the widely used port of the policies, a rotation is always
anticlockwise while other signs are drawn, and grey comes in from outside.
Departure from that port: shears take the nearest pixel, as rotations and shifts do. Kept from it:
the 17th pair for CIFAR-10 equalises with probability 0.8 where torchvision's list has 0.6.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from buttress.data.augment.operations import apply
from buttress.streams import Streams

Policy = Literal["cifar10", "imagenet"]


class Choice(NamedTuple):
    """An operation, how likely it is, and how strong."""

    name: str
    probability: float
    level: int


# One sub-policy per line: operation probability@level, twice.
_TEXTS: dict[str, str] = {
    "cifar10": """
        invert .1@7        contrast .2@6
        rotate .7@2        translate_x .3@9
        sharpness .8@1     sharpness .9@3
        shear_y .5@8       translate_y .7@9
        autocontrast .5@0  equalise .9@0
        shear_y .2@7       posterise .3@7
        saturation .4@3    brightness .6@7
        sharpness .3@9     brightness .7@9
        equalise .6@0      equalise .5@0
        contrast .6@7      sharpness .6@5
        saturation .7@7    translate_x .5@8
        equalise .3@0      autocontrast .4@0
        translate_y .4@3   sharpness .2@6
        brightness .9@6    saturation .2@8
        solarise .5@2      invert .0@0
        equalise .2@0      autocontrast .6@0
        equalise .2@0      equalise .8@0
        saturation .9@9    equalise .6@0
        autocontrast .8@0  solarise .2@8
        brightness .1@3    saturation .7@0
        solarise .4@5      autocontrast .9@0
        translate_y .9@9   translate_y .7@9
        autocontrast .9@0  solarise .8@3
        equalise .8@0      invert .1@0
        translate_y .7@9   autocontrast .9@0
    """,
    "imagenet": """
        posterise .4@8     rotate .6@9
        solarise .6@5      autocontrast .6@0
        equalise .8@0      equalise .6@0
        posterise .6@7     posterise .6@6
        equalise .4@0      solarise .2@4
        equalise .4@0      rotate .8@8
        solarise .6@3      equalise .6@0
        posterise .8@5     equalise 1@0
        rotate .2@3        solarise .6@8
        equalise .6@0      posterise .4@6
        rotate .8@8        saturation .4@0
        rotate .4@9        equalise .6@0
        equalise 0@0       equalise .8@0
        invert .6@0        equalise 1@0
        saturation .6@4    contrast 1@8
        rotate .8@8        saturation 1@2
        saturation .8@8    solarise .8@7
        sharpness .4@7     invert .6@0
        shear_x .6@5       equalise 1@0
        saturation .4@0    equalise .6@0
        equalise .4@0      solarise .2@4
        solarise .6@5      autocontrast .6@0
        invert .6@0        equalise 1@0
        saturation .6@4    contrast 1@8
        equalise .8@0      equalise .6@0
    """,
}


def _read(text: str) -> tuple[tuple[Choice, Choice], ...]:
    found = []
    for line in text.strip().splitlines():
        first, one, second, two = line.split()
        found.append((_choice(first, one), _choice(second, two)))
    return tuple(found)


def _choice(name: str, strength: str) -> Choice:
    probability, level = strength.split("@")
    return Choice(name, float(probability), int(level))


POLICIES = {name: _read(text) for name, text in _TEXTS.items()}


def amount(name: str, level: int, sign: int) -> float:
    """What an operation is given at a level from 0 to 9; ``sign`` is 1 or -1."""
    share = level / 9
    if name in ("shear_x", "shear_y"):
        return sign * 0.3 * share
    if name in ("translate_x", "translate_y"):
        return sign * 150 / 331 * share
    if name == "rotate":
        return 30 * share
    if name == "posterise":
        return round(8 - 4 * share)
    if name == "solarise":
        return 256 * (1 - share)
    if name in ("brightness", "contrast", "saturation", "sharpness"):
        return 1 + sign * 0.9 * share
    return 0.0


def auto_augment(x: Tensor, policy: Policy, streams: Streams) -> Tensor:
    """Each uint8 image under one of the 25 sub-policies, whose two parts are each drawn or not."""
    choices = POLICIES[policy]
    fractions = streams.fractions(5, "auto").cpu()
    chosen = (fractions[:, 0] * len(choices)).long().tolist()
    for part in range(2):
        happens, signs = fractions[:, 1 + 2 * part].tolist(), fractions[:, 2 + 2 * part].tolist()
        names: list[str | None] = []
        amounts = []
        for number, chance, side in zip(chosen, happens, signs, strict=True):
            name, probability, level = choices[number][part]
            names.append(name if chance < probability else None)
            amounts.append(amount(name, level, 1 if side < 0.5 else -1))
        x = apply(x, names, torch.tensor(amounts, dtype=torch.float64))
    return x
