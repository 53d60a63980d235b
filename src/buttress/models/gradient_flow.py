"""Tensors at the inputs and outputs of submodules, and where gradients to the input stop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from buttress.models.eval_mode import eval_mode

PROBE_IMAGES = 2  # on which gradients are looked for


class PassPoint(NamedTuple):
    """The input or the output of a submodule, in a forward pass."""

    submodule: str
    is_output: bool


INPUT = PassPoint("", False)


@contextlib.contextmanager
def visit_points(
    model: nn.Module, points: Sequence[PassPoint], visit: Callable[[PassPoint, Tensor], Tensor]
) -> Iterator[None]:
    """Call ``visit`` on the tensors at some points of each pass, and go on with what it returns."""
    modules, handles = dict(model.named_modules()), []

    def on_input(point: PassPoint) -> Callable[[nn.Module, Any], Any]:
        def hook(module: nn.Module, args: Any) -> Any:
            is_tensor = bool(args) and isinstance(args[0], Tensor)
            return (visit(point, args[0]), *args[1:]) if is_tensor else None

        return hook

    def on_output(point: PassPoint) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            return visit(point, output) if isinstance(output, Tensor) else None

        return hook

    try:
        for point in points:
            module = modules[point.submodule]
            if point.is_output:
                handles.append(module.register_forward_hook(on_output(point)))
            else:
                handles.append(module.register_forward_pre_hook(on_input(point)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def find_gradient_stop(model: nn.Module, x: Tensor) -> tuple[PassPoint, PassPoint] | None:
    """The last images with a gradient to the input, and the next without one; None: all have one.

    Images are the tensors of the shape of ``x`` that enter or leave a submodule.
    """
    start = x[:PROBE_IMAGES].detach().clone().requires_grad_(True)
    last, stop = INPUT, None

    def visit(point: PassPoint, tensor: Tensor) -> Tensor:
        nonlocal last, stop
        if stop is None and tensor.shape == start.shape and tensor.is_floating_point():
            if _has_gradient(tensor, start):
                last = point
            else:
                stop = point
        return tensor

    points = [PassPoint(name, out) for name, _ in model.named_modules() for out in (False, True)]
    with eval_mode(model), torch.enable_grad(), visit_points(model, points, visit):
        model(start)
    return None if stop is None else (last, stop)


def _has_gradient(tensor: Tensor, start: Tensor) -> bool:
    """Whether some gradient of a tensor with respect to ``start`` is not zero."""
    if not tensor.requires_grad:
        return False
    weights = torch.arange(tensor.numel(), device=tensor.device).sin().view_as(tensor)
    total = (tensor * weights.to(tensor.dtype)).sum()
    (grad,) = torch.autograd.grad(total, start, retain_graph=True, allow_unused=True)
    return grad is not None and bool((grad != 0).any())


def gradient_reaches_input(model: nn.Module, x: Tensor) -> bool:
    """Whether a gradient of the logits reaches the input."""
    with torch.enable_grad():
        start = x.detach().clone().requires_grad_(True)
        return _has_gradient(model(start), start)
