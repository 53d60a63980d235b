"""Noise corruptions: independent noise per pixel and channel."""

from __future__ import annotations

import torch
from torch import Tensor

from buttress.data.corruptions.core import corruption
from buttress.system.rng import SampleRNG


@corruption(
    "common", "noise", small=(0.04, 0.06, 0.08, 0.09, 0.10), large=(0.08, 0.12, 0.18, 0.26, 0.38)
)
def gaussian_noise(x: Tensor, sigma: float, streams: SampleRNG) -> Tensor:
    """Normal noise of one deviation, as from a sensor in low light."""
    return x + sigma * streams.draw_normal(x.float())


@corruption("common", "noise", small=(500, 250, 100, 75, 50), large=(60, 25, 12, 5, 3))
def shot_noise(x: Tensor, photons: float, streams: SampleRNG) -> Tensor:
    """Poisson noise: white is this many photons on average."""
    rates, counts = (x * photons).float(), torch.empty(x.shape, dtype=torch.float32)
    source = torch.Generator()
    for row, key in enumerate(streams.sample_keys("photons").tolist()):
        counts[row] = torch.poisson(rates[row], generator=source.manual_seed(key))
    return counts.double() / photons


@corruption(
    "common", "noise", small=(0.01, 0.02, 0.03, 0.05, 0.07), large=(0.03, 0.06, 0.09, 0.17, 0.27)
)
def impulse_noise(x: Tensor, amount: float, streams: SampleRNG) -> Tensor:
    """Salt and pepper: a share of the values becomes 0 or 1, half of it each."""
    u = streams.draw_uniform(x.float())
    return torch.where(u < amount, (u < amount / 2).double(), x)


@corruption(
    "extra", "noise", small=(0.06, 0.1, 0.12, 0.16, 0.2), large=(0.15, 0.2, 0.35, 0.45, 0.6)
)
def speckle_noise(x: Tensor, sigma: float, streams: SampleRNG) -> Tensor:
    """Normal noise in proportion to the value."""
    return x + x * sigma * streams.draw_normal(x.float())
