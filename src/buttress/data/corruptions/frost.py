"""Frost: the published photographs where they are installed, else crystals drawn from noise.

CIFAR-10-C and ImageNet-C paste photographs of frost. The package ``imagecorruptions`` carries them;
only its files are read, so that nothing it depends on is needed.
"""

from __future__ import annotations

import math
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from buttress.data.corruptions.blur import directional_blur
from buttress.data.corruptions.core import corruption, to_grayscale
from buttress.data.corruptions.weather import plasma_fractal
from buttress.system.rng import SampleRNG

PHOTOGRAPH_PACKAGE = "imagecorruptions"
PHOTOGRAPH_VARIANT = "photographs"  # in the fingerprint and the source of images made with them
# The published code draws among five of its six files.
PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
# Scale of a photograph by the longer side of the image: CIFAR-10-C, Tiny ImageNet-C, ImageNet-C.
PHOTOGRAPH_SCALES = ((32, 0.2), (64, 0.3), (math.inf, 1.0))
PHOTOGRAPH_MARGIN = 1.1  # a photograph smaller than the image is enlarged to this many times it
ICE_COLOR = (0.88, 0.95, 1.0)
NEEDLE_ARMS = 6
NEEDLE_LENGTHS = (1 / 10, 1 / 24)  # lengths of needles, as shares of the longer side
NEEDLE_COVERAGE = 0.3  # how much of the image needles of one length cover, counted with overlaps


def frost_variant() -> str:
    """Name what this machine pastes: the photographs, or nothing for procedural crystals."""
    return PHOTOGRAPH_VARIANT if photograph_folder() is not None else ""


@corruption(
    "common",
    "weather",
    small=((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    large=((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    variant=frost_variant,
    note="procedural: crystals drawn from noise stand in for the published photographs",
)
def frost(x: Tensor, constants: tuple[float, float], streams: SampleRNG) -> Tensor:
    """Ice over the image: the published photographs if installed, else procedural crystals."""
    image_weight, ice_weight = constants
    folder = photograph_folder()
    ice = ice_crystals(x, streams) if folder is None else crop_photographs(x, streams, folder)
    return image_weight * x + ice_weight * ice


def photograph_folder() -> Path | None:
    """The folder of the photographs in the installed package, which is not imported."""
    spec = find_spec(PHOTOGRAPH_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "frost"
    return folder if all((folder / name).is_file() for name in PHOTOGRAPHS) else None


def crop_photographs(x: Tensor, streams: SampleRNG, folder: Path) -> Tensor:
    """(N, C, H, W) for each image a random crop of a random photograph, in [0, 1]."""
    height, width = x.shape[2:]
    choices = streams.draw_integers(len(PHOTOGRAPHS), "photograph").tolist()
    crops = []
    for choice, (down, across) in zip(choices, streams.draw_fractions(2, "crop"), strict=True):
        photograph = load_photograph(folder / PHOTOGRAPHS[choice], height, width)
        top = int(down * (photograph.shape[1] - height))
        left = int(across * (photograph.shape[2] - width))
        crops.append(photograph[:, top : top + height, left : left + width])
    ice = torch.stack(crops)
    return ice if x.shape[1] == 3 else to_grayscale(ice)


@lru_cache(maxsize=16)
def load_photograph(path: Path, height: int, width: int) -> Tensor:
    """(3, H', W') a photograph for images of this size, in [0, 1] and at least as large."""
    levels = torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1).double()
    scale = next(scale for side, scale in PHOTOGRAPH_SCALES if max(height, width) <= side)
    enlargement = max(height / (scale * levels.shape[1]), width / (scale * levels.shape[2]))
    if enlargement > 1:
        scale *= enlargement * PHOTOGRAPH_MARGIN
    if scale != 1:
        size = round(levels.shape[1] * scale), round(levels.shape[2] * scale)
        levels = F.interpolate(levels.unsqueeze(0), size, mode="bilinear")[0].round_()
    return levels / 255


def ice_crystals(x: Tensor, streams: SampleRNG) -> Tensor:
    """(N, C, H, W) in [0, 1]: needles with six arms on a patchy film, white or bluish."""
    n, _, height, width = x.shape
    longer = max(height, width)
    side = 1 << (longer - 1).bit_length()
    film = plasma_fractal(side, 1.8, streams.draw_uniform(torch.empty(n, side * side)).double())
    film = film[:, :height, :width].unsqueeze(1)
    ice = 0.1 + 0.5 * film
    turns = streams.draw_fractions(len(NEEDLE_LENGTHS), "turns") * 60
    for number, share in enumerate(NEEDLE_LENGTHS, start=1):
        length = max(1.0, longer * share)
        u = streams.draw_uniform(torch.empty(n, 1, height, width), number).double()
        # More of them where the film is thick: frost comes in patches.
        points = (u < NEEDLE_COVERAGE / (NEEDLE_ARMS * length) * 4 * film.square()).double()
        stars = torch.zeros_like(points)
        for arm in range(NEEDLE_ARMS):
            stars += directional_blur(points, length, length, turns[:, number - 1] + 60 * arm)
        # A needle is as bright at its root as a whole one is, however long.
        ice += 0.6 * (stars * length).clamp_max(1)
    ice = ice.clamp_max_(1)
    if x.shape[1] == 3:
        ice = ice * torch.tensor(ICE_COLOR, dtype=x.dtype).view(1, 3, 1, 1)
    return ice
