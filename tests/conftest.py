"""What many tests share: small models with known behaviour."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from buttress.data import Dataset

torch.set_num_threads(1)


class Linear(nn.Module):
    """Logits W x + b of the flattened image: every optimum is known in closed form."""

    def __init__(self, features: int, classes: int, seed: int = 0) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(classes, features, generator=source))
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


def small_net(classes: int = 10, channels: int = 3, size: int = 8) -> nn.Module:
    """A convolutional network with BatchNorm and dropout, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2),
            nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(8 * ((size - 1) // 2) ** 2, classes),
        )  # fmt: skip
    return net.eval()


def images(n: int, channels: int = 3, size: int = 8, classes: int = 10) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    x = torch.rand(n, channels, size, size, generator=source)
    return x, torch.randint(classes, (n,), generator=source)


@pytest.fixture
def tiny_data() -> Dataset:
    x, y = images(24, size=8)
    return Dataset.from_arrays(x, y, classes=[str(k) for k in range(10)])
