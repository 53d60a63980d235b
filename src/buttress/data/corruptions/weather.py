"""Weather corruptions: fog, snow and spatter."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from buttress.data.corruptions.blur import directional_blur, zoom_center
from buttress.data.corruptions.core import corruption, to_grayscale, truncate_levels
from buttress.data.corruptions.filters import canny, gaussian_smooth
from buttress.system.rng import SampleRNG


@corruption(
    "common",
    "weather",
    small=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    large=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
)
def fog(x: Tensor, constants: tuple[float, float], streams: SampleRNG) -> Tensor:
    """A random cloud is added, and the brightest value of the image is kept."""
    amount, decay = constants
    highest = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * fog_map(x, decay, streams)) * (highest / (highest + amount))


def fog_map(x: Tensor, decay: float, streams: SampleRNG) -> Tensor:
    """(N, 1, H, W) for each image a map from 0 to 1, a cut of a square of side 2^k."""
    side = 1 << (max(x.shape[2:]) - 1).bit_length()
    heights = plasma_fractal(
        side, decay, streams.draw_uniform(torch.empty(len(x), side * side)).double()
    )
    return heights[:, : x.shape[2], : x.shape[3]].unsqueeze(1)


def plasma_fractal(side: int, decay: float, u: Tensor) -> Tensor:
    """(N, side, side) diamond-square maps on a torus, from 0 to 1.

    A midpoint is the mean of its four neighbors plus w U(-w, w), where w is 100 at first and is
    divided by ``decay`` from level to level: the noise falls with its square.

    Args:
        side: a power of two.
        decay: of the noise.
        u: (N, side^2) uniform on [0, 1); the last one is not used.
    """
    heights = torch.zeros(len(u), side, side, dtype=torch.float64)
    step, noise_scale, used = side, 100.0, 0

    def displaced_mean(total: Tensor) -> Tensor:
        nonlocal used
        count = total[0].numel()
        noise = (2 * u[:, used : used + count] - 1).view_as(total)
        used += count
        return total / 4 + noise_scale**2 * noise

    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        centers = displaced_mean(pairs + pairs.roll(-1, 2))
        heights[:, half::step, half::step] = centers
        upper = centers + centers.roll(1, 1) + corners + corners.roll(-1, 2)
        heights[:, ::step, half::step] = displaced_mean(upper)
        left = centers + centers.roll(1, 2) + corners + corners.roll(-1, 1)
        heights[:, half::step, ::step] = displaced_mean(left)
        step, noise_scale = half, noise_scale / decay
    heights -= heights.amin((1, 2), keepdim=True)
    return heights / heights.amax((1, 2), keepdim=True)


@corruption(
    "common",
    "weather",
    small=(
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    large=(
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
)
def snow(x: Tensor, constants: tuple[float, ...], streams: SampleRNG) -> Tensor:
    """Flakes above a threshold of noise, streaked, over a paler image, and once more turned."""
    mean, std, factor, threshold, radius, sigma, image_weight = constants
    layer = zoom_center(mean + std * streams.draw_normal(x[:, :1].float()).double(), factor)
    flakes = truncate_levels(torch.where(layer < threshold, 0, layer).clamp_(0, 1) * 255)
    degrees = streams.draw_fractions(1, "angle").squeeze(1) * 90 - 135
    flakes = directional_blur(flakes, radius, sigma, degrees).round_() / 255
    brightened = torch.maximum(x, 1.5 * to_grayscale(x) + 0.5)
    return image_weight * x + (1 - image_weight) * brightened + flakes + flakes.rot90(2, (2, 3))


WATER_COLOR, MUD_COLOR = (175, 238, 238), (63, 42, 20)
MAX_EDGE_DISTANCE = 20.0  # pixels from an edge; all beyond are alike
EMBOSS_KERNEL = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
MIN_MUD_COVERAGE = 0.8

Floats = NDArray[np.float64]


@corruption(
    "extra",
    "weather",
    small=(
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    ),
    large=(
        (0.65, 0.3, 4, 0.69, 0.6, False),
        (0.65, 0.3, 3, 0.68, 0.6, False),
        (0.65, 0.3, 2, 0.68, 0.5, False),
        (0.65, 0.3, 1, 0.65, 1.5, True),
        (0.67, 0.4, 1, 0.65, 1.5, True),
    ),
)
def spatter(x: Tensor, constants: tuple[float, ...], streams: SampleRNG) -> Tensor:
    """Smooth noise above a threshold, as pale water with lit rims, or as brown mud.

    Departure from the published code: distances to an edge are exact, not of a 5 x 5 mask.
    """
    mean, std, sigma, threshold, strength, is_mud = constants
    layer = gaussian_smooth(mean + std * streams.draw_normal(x[:, :1].float()).double(), sigma)
    if is_mud:
        cover = gaussian_smooth((layer > threshold).double(), strength)
        cover = torch.where(cover < MIN_MUD_COVERAGE, 0, cover)
        return x * (1 - cover) + cover * color_image(MUD_COLOR, x)
    liquid = truncate_levels(torch.where(layer < threshold, 0, layer).clamp_max_(1) * 255)
    light = liquid * torch.from_numpy(rim_light(liquid[:, 0].numpy())).unsqueeze(1)
    most = light.amax((1, 2, 3), keepdim=True).clamp_min(1e-9)  # a dry image stays as it is
    return x + strength * light / most * color_image(WATER_COLOR, x)


def color_image(rgb: tuple[int, int, int], x: Tensor) -> Tensor:
    """A color for these images; its gray if they are gray."""
    color = torch.tensor(rgb, dtype=x.dtype).view(1, 3, 1, 1) / 255
    return color if x.shape[1] == 3 else to_grayscale(color)


def rim_light(liquid: Floats) -> Floats:
    """(N, H, W) how much light each place of the drops (N, H, W) throws back."""
    from scipy.ndimage import correlate, uniform_filter

    size = (1, 3, 3)
    edge_distance = uniform_filter(edge_distances(canny(liquid, 50, 150)), size, mode="mirror")
    equalized = np.stack(
        [equalize_histogram(image) for image in np.floor(edge_distance + 1e-6).astype(np.uint8)]
    )
    embossed = correlate(
        equalized, np.array([EMBOSS_KERNEL], dtype=np.float64), mode="mirror"
    ).clip(0, 255)
    return np.rint(uniform_filter(embossed, size, mode="mirror"))


def edge_distances(edges: NDArray[np.bool_]) -> Floats:
    from scipy.ndimage import distance_transform_edt

    out = np.full(edges.shape, MAX_EDGE_DISTANCE)
    for row, image in enumerate(edges):
        if image.any():
            out[row] = np.minimum(distance_transform_edt(~image), MAX_EDGE_DISTANCE)
    return out


def equalize_histogram(image: NDArray[np.uint8]) -> Floats:
    """One image with its levels spread evenly; the lowest becomes 0. A flat image stays."""
    counts = np.bincount(image.ravel(), minlength=256)
    lowest = int(np.flatnonzero(counts)[0])
    if counts[lowest] == image.size:
        return image.astype(np.float64)
    above = counts.cumsum() - counts[lowest]
    table: Floats = np.rint(255 * above / (image.size - counts[lowest])).clip(0, 255)
    return table[image]
