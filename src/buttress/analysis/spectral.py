"""Norms of single layers as maps in L2, at the size of the inputs they really get."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from buttress.analysis.lanczos import lanczos
from buttress.attacks.freeze import frozen
from buttress.attacks.rewrite import normed
from buttress.interrupt import held
from buttress.models.parts import CONVOLUTIONS
from buttress.streams import generator

ROUNDS = 60  # of the iteration for a norm, at most
SETTLED = 1e-4  # of the square of the norm: an eigenvalue is within this, and mostly far nearer


class Call(NamedTuple):
    """A layer as it was called in a forward pass."""

    name: str
    layer: nn.Module
    shape: tuple[int, ...]  # of one image's input


class Tracer(fx.Tracer):
    """Layers stay whole, also those of libraries that build upon torch's own."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_layer = isinstance(m, (nn.Linear, *CONVOLUTIONS))
        return is_layer or super().is_leaf_module(m, module_qualified_name)


def traced(model: nn.Module) -> fx.GraphModule:
    """The graph of a model; raises whatever the model's own code raises where it cannot be."""
    with held():
        return fx.GraphModule(model, Tracer().trace(model))


def operator_norm(apply: Callable[[Tensor], Tensor], like: Tensor) -> float:
    r"""The L2 norm of an affine map on inputs of one shape, without its matrix.

    Power iteration :math:`v \leftarrow A^T A v` that keeps all its vectors (Lanczos): the largest
    eigenvalue of :math:`A^T A` on their span rises to the square of the norm, and much sooner than
    on the last vector alone, since singular values of convolutions lie close together.
    """
    with torch.no_grad():
        shift = apply(torch.zeros_like(like))

    def twice(v: Tensor) -> Tensor:
        with torch.enable_grad():
            point = v.view_as(like).detach().requires_grad_(True)
            y = apply(point) - shift
            (back,) = torch.autograd.grad(y, point, y.detach())
        return back.flatten()

    v = torch.randn(like.shape, generator=generator("operator norm")).to(like).flatten()
    return math.sqrt(max(0.0, lanczos(twice, v, steps=ROUNDS, tolerance=SETTLED).largest))


def matrix_norm(weight: Tensor) -> float:
    """The largest singular value, from the smaller of the two products with the transpose."""
    wide = weight.detach().double()
    gram = wide @ wide.T if wide.shape[0] <= wide.shape[1] else wide.T @ wide
    return float(torch.linalg.eigvalsh(gram)[-1].clamp_min(0).sqrt())


def scale_of(norm: _BatchNorm) -> Tensor:
    """(C,) what a BatchNorm multiplies each channel with in evaluation mode."""
    if norm.running_var is None:  # it then normalises by the batch, which is no map of one image
        raise ValueError("a BatchNorm without running statistics has no fixed scale")
    scale = (norm.running_var.detach().double() + norm.eps).rsqrt()
    return scale if norm.weight is None else scale * norm.weight.detach().double()


@dataclass
class Norms:
    """The norms of the layers of a model, each computed once."""

    model: nn.Module
    like: Tensor  # type and device of inputs
    known: dict[tuple[Any, ...], float] = field(default_factory=dict)

    def of(self, call: Call, norm: _BatchNorm | None = None) -> float:
        """The norm of a layer, with the BatchNorm behind it folded in if one is given."""
        key = (id(call.layer), call.shape, id(norm))
        if key not in self.known:
            self.known[key] = self._compute(call, norm)
        return self.known[key]

    def _compute(self, call: Call, norm: _BatchNorm | None) -> float:
        layer = call.layer
        if isinstance(layer, _BatchNorm):
            return float(scale_of(layer).abs().max())
        if isinstance(layer, nn.Linear):
            return matrix_norm(layer.weight)
        like = self.like.new_zeros(1, *call.shape)
        if norm is None:
            return operator_norm(layer, like)
        spots = [1] * (len(call.shape) - 1)
        scale = scale_of(norm).to(like).view(1, -1, *spots)
        return operator_norm(lambda v: layer(v) * scale, like)


def calls_of(model: nn.Module, x: Tensor) -> list[Call]:
    """The layers with weights that a model calls, in that order, each name and shape once."""
    found: dict[tuple[str, tuple[int, ...]], Call] = {}

    def hook(name: str) -> Callable[..., None]:
        def note(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            shape = tuple(inputs[0].shape[1:])
            found.setdefault((name, shape), Call(name, layer, shape))

        return note

    kinds = (nn.Linear, *CONVOLUTIONS, _BatchNorm)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, kinds) and _is_fixed(m)}
    with hooked({m: hook(n) for n, m in layers.items()}), frozen(model), torch.no_grad():
        model(x[:1])
    return list(found.values())


def _is_fixed(layer: nn.Module) -> bool:
    """Not so for a BatchNorm that takes its statistics from each batch."""
    return not isinstance(layer, _BatchNorm) or layer.running_var is not None


@contextmanager
def hooked(hooks: dict[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Forward hooks that are gone afterwards."""
    handles = [module.register_forward_hook(hook) for module, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def folded_of(graph: fx.GraphModule) -> dict[str, tuple[str, _BatchNorm]]:
    """Convolution -> the BatchNorm that alone reads it: its name and the module."""
    pairs = normed(graph, lambda norm: type(norm) is nn.BatchNorm2d)
    return {str(conv.target): (str(node.target), norm) for conv, node, _, norm in pairs}
