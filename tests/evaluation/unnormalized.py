"""A model that is wrong without its normalization, and images on which this shows."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from buttress.data import Dataset

IMAGENET_STATISTICS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class BrightnessModel(nn.Module):
    """Tells ten brightnesses apart, with some mean and std; has none of these itself."""

    levels = torch.linspace(0.2, 0.8, 11)[:10]

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)  # so that it has weights
        self.channels = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)

    def normalized(self, x: Tensor) -> Tensor:
        return (x - self.channels[0]) / self.channels[1]

    def forward(self, x: Tensor) -> Tensor:
        centers = self.normalized(self.levels.view(-1, 1, 1, 1)).mean((1, 2, 3))
        period = 10 * (centers[1] - centers[0])
        phase = (x.mean((1, 2, 3))[:, None] - centers) / period
        return 10 * torch.cos(2 * math.pi * phase)


def brightness_images(count: int) -> Dataset:
    labels = torch.arange(count) % 10
    noise = 0.02 * torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images = BrightnessModel.levels[labels].view(-1, 1, 1, 1) + noise
    return Dataset.from_arrays(images, labels, classes=list("abcdefghij"))


def white_images_first() -> Dataset:
    """White stays white if mean and std are 1/2; only the images behind the first 64 change."""
    rest = brightness_images(128)
    white = 1 - 0.02 * torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    labels = torch.cat([torch.full((64,), 3), rest.labels])
    images = torch.cat([white, rest.images])
    return Dataset.from_arrays(images, labels, classes=list("abcdefghij"))
