"""Snow: streaks of flakes, and a paler scene."""

from __future__ import annotations

import torch
from torch import Tensor

from buttress.data.corruptions.core import CORRUPTIONS, PAPER
from buttress.data.corruptions.levels import grey, whole
from buttress.data.corruptions.motion import streaked
from buttress.data.corruptions.zoom import enlarged
from buttress.streams import Streams


@CORRUPTIONS.register(
    "snow",
    paper=PAPER,
    tags=("common", "weather"),
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
def snow(x: Tensor, constants: tuple[float, ...], streams: Streams) -> Tensor:
    """Flakes above a threshold of noise, streaked, over a paler image, and once more turned."""
    mean, std, factor, threshold, radius, sigma, kept = constants
    layer = enlarged(mean + std * streams.normal(x[:, :1].float()).double(), factor)
    flakes = whole(torch.where(layer < threshold, 0, layer).clamp_(0, 1) * 255)
    degrees = streams.fractions(1, "angle").squeeze(1) * 90 - 135
    flakes = streaked(flakes, radius, sigma, degrees).round_() / 255
    pale = torch.maximum(x, 1.5 * grey(x) + 0.5)
    return kept * x + (1 - kept) * pale + flakes + flakes.rot90(2, (2, 3))
