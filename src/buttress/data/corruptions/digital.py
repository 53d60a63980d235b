"""Digital corruptions: pixelate, JPEG, elastic transform, brightness, contrast, saturate."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from buttress.data.corruptions.core import corruption
from buttress.data.corruptions.filters import gaussian_smooth
from buttress.errors import UserError
from buttress.system.rng import SampleRNG


@corruption(
    "common", "digital", small=(0.95, 0.9, 0.85, 0.75, 0.65), large=(0.6, 0.5, 0.4, 0.3, 0.25)
)
def pixelate(x: Tensor, share: float, streams: SampleRNG) -> Tensor:
    """Shrunk to a share of each side and enlarged again, both by boxes."""

    def change(image: Image.Image) -> Image.Image:
        small = int(image.width * share), int(image.height * share)
        return image.resize(small, Image.Resampling.BOX).resize(image.size, Image.Resampling.BOX)

    return apply_pillow(x, change)


@corruption("common", "digital", small=(80, 65, 58, 50, 40), large=(25, 18, 15, 10, 7))
def jpeg_compression(x: Tensor, quality: int, streams: SampleRNG) -> Tensor:
    """Stored as JPEG of a quality, with halved color resolution, and read again."""

    def change(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file, formats=["JPEG"])

    return apply_pillow(x, change)


def apply_pillow(x: Tensor, transform: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Every image of a batch, changed by Pillow."""
    pixels = x.mul(255).round_().byte().permute(0, 2, 3, 1).contiguous().numpy()
    out = np.empty_like(pixels)
    is_gray = pixels.shape[3] == 1
    for row, image in enumerate(pixels):
        changed = transform(Image.fromarray(image[..., 0] if is_gray else image))
        out[row] = np.asarray(changed).reshape(image.shape)
    return torch.from_numpy(out).permute(0, 3, 1, 2).double() / 255


def rescale_constants(*rows: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    """Constants that were meant for images of 224 pixels and written for 244."""
    return tuple(tuple(value * (244 / 224) for value in row) for row in rows)


@corruption(
    "common",
    "digital",
    small=(
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    large=rescale_constants(
        (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)
    ),
)
def elastic_transform(x: Tensor, constants: tuple[float, ...], streams: SampleRNG) -> Tensor:
    """Three points are moved at random and the image with them; then each pixel moves a little.

    The constants are shares of the shorter side: strength and smoothness of the small moves, and
    the largest shift of the three points. Departure from the published code: OpenCV rounds the
    places it reads from to 1/32 pixel in the affine map, we do not.
    """
    side = min(x.shape[2:])
    strength, sigma, shift = (value * side for value in constants)
    coordinates = random_affine_grid(x.shape[2], x.shape[3], shift, streams)
    warped = sample_bilinear(x, coordinates, at_centers=True)
    if strength == 0:
        return warped
    noise = 2 * streams.draw_uniform(torch.empty(len(x), 2, *x.shape[2:])).double() - 1
    moves = strength * gaussian_smooth(noise, sigma, "reflect", truncate=3)
    return sample_bilinear(
        warped, pixel_grid(x.shape[2], x.shape[3]) + moves.movedim(1, 3), at_centers=False
    )


def random_affine_grid(height: int, width: int, shift: float, streams: SampleRNG) -> Tensor:
    """(N, H, W, 2) where each pixel comes from, as (u, v) with v down."""
    offset = min(height, width) // 3
    u, v = width // 2, height // 2
    corners = torch.tensor(
        [[u + offset, v + offset], [u + offset, v - offset], [u - offset, v - offset]],
        dtype=torch.float64,
    )
    draws = streams.draw_fractions(6, "corners").view(-1, 3, 2)
    moved_corners = corners + (2 * draws - 1) * shift
    back = torch.linalg.solve(
        F.pad(moved_corners, (0, 1), value=1.0), corners.expand(len(moved_corners), -1, -1)
    )
    coordinates: Tensor = F.pad(pixel_grid(height, width), (0, 1), value=1.0).flatten(0, 1) @ back
    return coordinates.view(-1, height, width, 2)


def pixel_grid(height: int, width: int) -> Tensor:
    """(H, W, 2) the place (u, v) of each pixel."""
    v, u = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([u, v], 2).double()


def sample_bilinear(x: Tensor, coordinates: Tensor, *, at_centers: bool) -> Tensor:
    """Images at places (N, H, W, 2) in pixels, linearly; outside they are mirrored.

    The mirror stands at the centers of the edge pixels, or else at their outer edges.
    """
    size = torch.tensor([x.shape[3], x.shape[2]], dtype=torch.float64)
    scaled = 2 * coordinates / (size - 1) - 1 if at_centers else (2 * coordinates + 1) / size - 1
    return F.grid_sample(x, scaled, "bilinear", "reflection", align_corners=at_centers)


@corruption("common", "weather", small=(0.05, 0.1, 0.15, 0.2, 0.3), large=(0.1, 0.2, 0.3, 0.4, 0.5))
def brightness(x: Tensor, amount: float, streams: SampleRNG) -> Tensor:
    """Added to the value of HSV, the largest of a pixel's channels; hue and saturation stay."""
    value = x.amax(1, keepdim=True)
    raised = (value + amount).clamp_max(1)
    # With hue and saturation fixed a pixel grows in proportion; black has neither and turns gray.
    return torch.where(value > 0, x * (raised / value.clamp_min(1 / 255)), raised)


@corruption(
    "common", "digital", small=(0.75, 0.5, 0.4, 0.3, 0.15), large=(0.4, 0.3, 0.2, 0.1, 0.05)
)
def contrast(x: Tensor, factor: float, streams: SampleRNG) -> Tensor:
    """The distance of each channel from its mean over the image, times a factor."""
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * factor + mean


@corruption(
    "extra",
    "digital",
    small=((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    large=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
)
def saturate(x: Tensor, constants: tuple[float, float], streams: SampleRNG) -> Tensor:
    """The saturation of HSV times a factor plus a shift; value and hue stay.

    A gray pixel has no hue; the published code takes that as red, so a shift reddens grays.
    """
    if x.shape[1] == 1:
        raise UserError(
            "the corruption saturate needs color images, but the images are grayscale; omit it"
        )
    factor, shift = constants
    value, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    chroma = value - low
    is_gray = chroma == 0
    old = chroma / value.clamp_min(1 / 255)
    new = (old * factor + shift).clamp_(0, 1)
    # How far each channel lies below the value: 0 for the largest, 1 for the smallest.
    below = (value - x) / torch.where(is_gray, 1.0, chroma)
    red = torch.tensor([0.0, 1, 1], dtype=x.dtype).view(1, 3, 1, 1)
    return value * (1 - new * torch.where(is_gray, red, below))
