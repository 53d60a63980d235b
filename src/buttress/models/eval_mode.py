"""Evaluation mode of a model during an attack, and its device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode and disable parameter gradients inside; restore both afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    requires_grad = [(p, p.requires_grad) for p in model.parameters()]
    try:
        model.eval()
        for parameter, _ in requires_grad:
            parameter.requires_grad_(False)
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, required_grad in requires_grad:
            parameter.requires_grad_(required_grad)


def model_device(model: nn.Module) -> torch.device:
    tensor = next((t for t in _tensors(model)), None)
    return torch.device("cpu") if tensor is None else tensor.device


def to_model_device(model: nn.Module, x: Tensor) -> Tensor:
    """``x`` on the device and in the floating type of the model."""
    dtypes = (t.dtype for t in _tensors(model) if t.is_floating_point())
    return x.to(model_device(model), next(dtypes, x.dtype))


def is_differentiable(model: nn.Module) -> bool:
    """Whether the model provides gradients; a black-box model declares that it does not.

    What a model declares of itself holds for all of it, so that a surrogate can give gradients to a
    black-box model inside of it.
    """
    declared = getattr(model, "has_gradients", None)
    if declared is not None:
        return bool(declared)
    return all(getattr(module, "has_gradients", True) for module in model.modules())


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
