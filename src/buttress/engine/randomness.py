"""Randomized models: the noise of their outputs, and how many passes average it out."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from buttress.attacks.losses import margin
from buttress.models.eval_mode import eval_mode, model_device
from buttress.system.rng import isolated_rng

NOISE_PASSES = 10  # passes over the same images from which the noise is estimated
NOISE_IMAGES = 64
MAX_RELATIVE_ERROR = 0.1  # standard error of an averaged margin, of the size of the margins
EOT_SAMPLES = (1, 2, 5, 10, 20, 50, 100)  # choices: nearly equal noise gives equal attacks
EotSamples = int | Literal["auto"]


class OutputNoise(NamedTuple):
    """How much the margin of an image differs between passes; root mean squares over images."""

    margin_std: float
    margin_size: float

    @property
    def relative(self) -> float:
        return self.margin_std / self.margin_size if self.margin_size > 0 else 0.0


def measure_output_noise(model: nn.Module, x: Tensor, y: Tensor, seed: int = 0) -> OutputNoise:
    """The noise of a model on some images (N, C, H, W) with labels; zero if it is deterministic."""
    x, y = x[:NOISE_IMAGES], y[:NOISE_IMAGES]
    with eval_mode(model), torch.no_grad(), isolated_rng(model_device(model), seed, "noise"):
        margins = torch.stack([margin(model(x).double(), y) for _ in range(NOISE_PASSES)])
    margins = margins[:, margins.isfinite().all(0)]
    if not margins.numel():
        return OutputNoise(0.0, 0.0)
    is_constant = (margins == margins[0]).all()
    std = 0.0 if is_constant else float(margins.var(0).mean().sqrt())
    return OutputNoise(std, float(margins.mean(0).square().mean().sqrt()))


def choose_eot_samples(model: nn.Module, x: Tensor, y: Tensor, seed: int = 0) -> int:
    r"""The smallest number of passes whose mean margin has a small standard error.

    With noise :math:`\sigma` and margins of size m it is the smallest k of `EOT_SAMPLES` with
    :math:`\sigma / \sqrt{k} \le 0.1\, m`, at most 100; 1 for a deterministic model.
    """
    needed = (measure_output_noise(model, x, y, seed).relative / MAX_RELATIVE_ERROR) ** 2
    return next((k for k in EOT_SAMPLES if k >= math.ceil(needed)), EOT_SAMPLES[-1])
