"""Networks whose loss around their weights is known: a bowl, and two that compute the same."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from buttress.analysis import AnalysisSubject
from buttress.data import Dataset, load_dataset
from buttress.threats.norm_ball import NormBall


class Bowl(nn.Module):
    """Logits (|P - P0|^2, 0), whatever the image: its loss for class 1 is a bowl around P0."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        rows = torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, 2.0]])  # filters of length 5, 1, 2
        self.weight = nn.Parameter(rows.clone())
        self.bias = nn.Parameter(torch.tensor([7.0]))  # directions leave it
        self.register_buffer("centre", rows.clone())

    def forward(self, x: Tensor) -> Tensor:
        height = (self.weight - self.centre).square().sum() + 0 * self.bias.sum()
        return torch.stack([height, 0 * height]).expand(len(x), 2) + 0 * x.flatten(1)[:, :1]


def bowl() -> AnalysisSubject:
    data = Dataset.from_arrays(torch.full((4, 1, 2, 2), 0.5), torch.ones(4, dtype=torch.int64))
    return AnalysisSubject(Bowl().eval(), data, NormBall("Linf", 0.1))


def rescaled(model: nn.Module) -> nn.Module:
    """Another network with the same outputs: filters before a BatchNorm times unlike factors."""
    made: Any = copy.deepcopy(model)
    with torch.no_grad():
        factors = torch.tensor([0.1, 3.0, 10.0, 0.5])
        made[0].weight *= factors.view(-1, 1, 1, 1)
        made[1].running_mean *= factors
        made[1].running_var *= factors.square()
    return made


def normed() -> nn.Module:
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    model.train()(load_dataset("digits", "test", limit=64).images)  # statistics that mean something
    with torch.no_grad():
        model[5].weight *= 20  # logits large enough for the loss to notice
    model[1].eps = 0.0  # else it breaks the symmetry that is tested
    return model.eval()
