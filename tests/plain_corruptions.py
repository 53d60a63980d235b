"""The corruptions without chance, written for one image at a time from their formulas."""

from __future__ import annotations

import colorsys
import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]


def cut_off(image: Floats) -> Bytes:
    """An image in [0, 1] as 8-bit; what rounding leaves a hair below a level is that level."""
    return np.floor(image.clip(0, 1) * 255 + 1e-6).astype(np.uint8)


def contrast(image: Bytes, c: float) -> Bytes:
    x = image / 255.0
    out = np.empty_like(x)
    for channel in range(x.shape[2]):
        mean = x[..., channel].mean()
        out[..., channel] = mean + c * (x[..., channel] - mean)
    return cut_off(out)


def in_hsv(image: Bytes, change: Callable[[float, float, float], tuple[float, ...]]) -> Bytes:
    out = np.empty(image.shape)
    for place in np.ndindex(image.shape[:2]):
        hsv = colorsys.rgb_to_hsv(*(image[place] / 255.0))
        out[place] = colorsys.hsv_to_rgb(*change(*hsv))
    return cut_off(out)


def brightness(image: Bytes, c: float) -> Bytes:
    return in_hsv(image, lambda h, s, v: (h, s, min(1.0, v + c)))


def saturate(image: Bytes, c: tuple[float, float]) -> Bytes:
    return in_hsv(image, lambda h, s, v: (h, min(1.0, max(0.0, s * c[0] + c[1])), v))


def pixelate(image: Bytes, c: float) -> Bytes:
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * c), int(height * c)), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(image: Bytes, c: int) -> Bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="JPEG", quality=c)
    return np.asarray(Image.open(file))


def gaussian_blur(image: Bytes, c: float) -> Bytes:
    return cut_off(ndimage.gaussian_filter(image / 255.0, (c, c, 0), mode="nearest", truncate=4))


def defocus_blur(image: Bytes, c: tuple[float, float]) -> Bytes:
    radius, softening = c
    reach, near = (8, 1) if radius <= 8 else (int(radius), 2)
    steps = range(-reach, reach + 1)
    disc = np.array([[float(a * a + b * b <= radius**2) for a in steps] for b in steps])
    taps = [math.exp(-(k**2) / (2 * softening**2)) for k in range(-near, near + 1)]
    rim = np.outer(taps, taps) / sum(taps) ** 2
    kernel = ndimage.correlate(disc / disc.sum(), rim, mode="mirror")
    channels = [ndimage.correlate(plane / 255.0, kernel, mode="mirror") for plane in planes(image)]
    return cut_off(np.stack(channels, 2))


def zoom_blur(image: Bytes, c: tuple[float, float]) -> Bytes:
    x = image / 255.0
    factors = np.arange(1, *c)
    return cut_off((x + sum(zoomed(x, z) for z in factors)) / (len(factors) + 1))


def zoomed(x: Floats, factor: float) -> Floats:
    cuts = [slice((n - math.ceil(n / factor)) // 2, None) for n in x.shape[:2]]
    rows, columns = (
        slice(cut.start, cut.start + math.ceil(n / factor))
        for cut, n in zip(cuts, x.shape[:2], strict=True)
    )
    large = ndimage.zoom(x[rows, columns], (factor, factor, 1), order=1)
    top, left = ((large.shape[k] - x.shape[k]) // 2 for k in (0, 1))
    return large[top : top + x.shape[0], left : left + x.shape[1]]


def planes(image: NDArray[Any]) -> list[NDArray[Any]]:
    return [image[..., k] for k in range(image.shape[2])]


PLAIN: dict[str, Callable[[Bytes, Any], Bytes]] = {
    f.__name__: f
    for f in (
        contrast,
        brightness,
        saturate,
        pixelate,
        jpeg_compression,
        gaussian_blur,
        defocus_blur,
        zoom_blur,
    )
}


def glass(image: NDArray[Any], shifts: NDArray[Any], reach: int) -> NDArray[Any]:
    """The published loop: the 'swap' of two views of one array copies one way."""
    x = image.copy()
    for h in range(x.shape[0] - reach, reach, -1):
        for w in range(x.shape[1] - reach, reach, -1):
            down, across = shifts[:, h, w]
            x[h, w], x[h + down, w + across] = x[h + down, w + across], x[h, w]
    return x


def motion(image: Bytes, radius: float, sigma: float, degrees: float) -> Bytes:
    """ImageMagick's motion blur, pixel by pixel."""
    count = 2 * math.ceil(radius) + 1
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(count)]
    angle = math.radians(degrees)
    height, width = image.shape[:2]
    out = np.zeros(image.shape)
    for v, u in np.ndindex(height, width):
        for i, weight in enumerate(weights):
            row = min(max(v + math.ceil(i * math.sin(angle) - 0.5), 0), height - 1)
            column = min(max(u + math.ceil(i * math.cos(angle) - 0.5), 0), width - 1)
            out[v, u] += weight / sum(weights) * image[row, column]
    return np.rint(out).astype(np.uint8)


def cloud(side: int, decay: float, u: Floats) -> Floats:
    """Midpoint displacement, point by point, on a torus; ``u`` is used in the order of the paper's
    code: centres, then the points above them, then those to their left."""
    heights, used, step, spread = np.zeros((side, side)), 0, side, 100.0
    while step >= 2:
        half = step // 2
        for first_v, first_u, near in (
            (half, half, ((-half, -half), (-half, half), (half, -half), (half, half))),
            (0, half, ((-half, 0), (half, 0), (0, -half), (0, half))),
            (half, 0, ((-half, 0), (half, 0), (0, -half), (0, half))),
        ):
            for v in range(first_v, side, step):
                for w in range(first_u, side, step):
                    total = sum(heights[(v + a) % side, (w + b) % side] for a, b in near)
                    heights[v, w] = total / 4 + spread * (2 * u[used] - 1) * spread
                    used += 1
        step, spread = half, spread / decay
    heights -= heights.min()
    return heights / heights.max()
