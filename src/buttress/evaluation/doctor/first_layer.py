"""Mean and std of what the first layer of a model receives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn

INPUT_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


class InputStatistics(NamedTuple):
    """Mean and std of the values of a batch."""

    mean: float
    std: float


@contextmanager
def record_first_layer_input(model: nn.Module) -> Iterator[list[InputStatistics]]:
    """Record the statistics of the first input of the first convolution or linear layer."""
    inputs: list[InputStatistics] = []

    def record(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if not inputs and args and isinstance(args[0], Tensor):
            values = args[0].detach().float()
            inputs.append(InputStatistics(float(values.mean()), float(values.std())))

    layers = [m for m in model.modules() if isinstance(m, INPUT_LAYERS)]
    hooks = [layer.register_forward_pre_hook(record) for layer in layers]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()
