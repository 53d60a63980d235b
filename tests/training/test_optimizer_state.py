"""A fused optimizer resumes with its state laid out in memory as the weights are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from buttress.results.run_spec import OptimizerSpec
from buttress.training.schedules import build_optimizer, restore_optimizer


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_state_in_another_layout_gives_the_same_steps(name: str) -> None:
    spec = OptimizerSpec(name=name, lr=0.1)
    torch.manual_seed(0)
    grads, weights = torch.randn(3, 8, 4, 3, 3), []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(1)
        conv: nn.Module = nn.Conv2d(4, 8, 3, bias=False)
        optimizer = _take_steps(conv, build_optimizer(conv, spec), grads[:2])
        conv = conv.to(memory_format=layout)  # type: ignore[call-overload]
        resumed = build_optimizer(conv, spec)
        restore_optimizer(resumed, optimizer.state_dict())
        _take_steps(conv, resumed, grads[2:])
        weights.append(next(conv.parameters()).detach())
    torch.testing.assert_close(weights[1], weights[0])


def _take_steps(
    conv: nn.Module, optimizer: torch.optim.Optimizer, grads: torch.Tensor
) -> torch.optim.Optimizer:
    (weight,) = conv.parameters()
    for grad in grads:
        weight.grad = torch.empty_like(weight).copy_(grad)
        optimizer.step()
    return optimizer
