"""Spectral norms of layers in L2, at their actual input size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from buttress.analysis.methods.gaussian_bound import gaussian_bound
from buttress.analysis.methods.lanczos import lanczos
from buttress.config import Spec
from buttress.engine.rewrites import find_conv_norm_pairs
from buttress.models.eval_mode import eval_mode
from buttress.models.parts import CONVOLUTIONS
from buttress.system.interrupt import defer_interrupt
from buttress.system.rng import make_generator

MAX_ITERATIONS = 60  # of the iteration for a norm, at most
EIGENVALUE_TOLERANCE = 1e-4  # of the square of the norm; mostly it is far nearer


class LayerCall(NamedTuple):
    """A layer as it was called in a forward pass."""

    name: str
    layer: nn.Module
    shape: tuple[int, ...]  # of one image's input


class LayerTracer(fx.Tracer):
    """Layers stay whole, also those of libraries that build upon torch's own."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_layer = isinstance(m, (nn.Linear, *CONVOLUTIONS))
        return is_layer or super().is_leaf_module(m, module_qualified_name)


def trace_layers(model: nn.Module) -> fx.GraphModule:
    """The graph of a model; raises whatever the model's own code raises where it cannot be."""
    with defer_interrupt():
        return fx.GraphModule(model, LayerTracer().trace(model))


def operator_norm(apply: Callable[[Tensor], Tensor], template: Tensor) -> float:
    r"""The L2 norm of an affine map on inputs of one shape, without its matrix.

    Power iteration :math:`v \leftarrow A^T A v` that keeps all its vectors (Lanczos): the largest
    eigenvalue of :math:`A^T A` on their span rises to the square of the norm, and much sooner than
    on the last vector alone, since singular values of convolutions lie close together.
    """
    with torch.no_grad():
        shift = apply(torch.zeros_like(template))

    def gram_product(v: Tensor) -> Tensor:
        with torch.enable_grad():
            point = v.view_as(template).detach().requires_grad_(True)
            y = apply(point) - shift
            (back,) = torch.autograd.grad(y, point, y.detach())
        return back.flatten()

    start = torch.randn(template.shape, generator=make_generator("operator norm"))
    ends = lanczos(
        gram_product,
        start.to(template).flatten(),
        steps=MAX_ITERATIONS,
        tolerance=EIGENVALUE_TOLERANCE,
    )
    return math.sqrt(max(0.0, ends.largest))


def matrix_norm(weight: Tensor) -> float:
    """The largest singular value, from the smaller of the two products with the transpose."""
    matrix = weight.detach().double()
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    return float(torch.linalg.eigvalsh(gram)[-1].clamp_min(0).sqrt())


def batchnorm_scale(norm: _BatchNorm) -> Tensor:
    """(C,) what a BatchNorm multiplies each channel with in evaluation mode."""
    if norm.running_var is None:  # it then normalizes by the batch, which is no map of one image
        raise ValueError("a BatchNorm without running statistics has no fixed scale")
    scale = (norm.running_var.detach().double() + norm.eps).rsqrt()
    return scale if norm.weight is None else scale * norm.weight.detach().double()


@dataclass
class SpectralNorms:
    """The norms of the layers of a model, each computed once."""

    model: nn.Module
    template: Tensor  # type and device of inputs
    cache: dict[tuple[Any, ...], float] = field(default_factory=dict)

    def norm(self, call: LayerCall, norm: _BatchNorm | None = None) -> float:
        """The norm of a layer, with the BatchNorm behind it folded in if one is given."""
        key = (id(call.layer), call.shape, id(norm))
        if key not in self.cache:
            self.cache[key] = self._compute(call, norm)
        return self.cache[key]

    def _compute(self, call: LayerCall, norm: _BatchNorm | None) -> float:
        layer = call.layer
        if isinstance(layer, _BatchNorm):
            return float(batchnorm_scale(layer).abs().max())
        if isinstance(layer, nn.Linear):
            return matrix_norm(layer.weight)
        like = self.template.new_zeros(1, *call.shape)
        if norm is None:
            return operator_norm(layer, like)
        spatial_ones = [1] * (len(call.shape) - 1)
        scale = batchnorm_scale(norm).to(like).view(1, -1, *spatial_ones)
        return operator_norm(lambda v: layer(v) * scale, like)


def layer_calls(model: nn.Module, x: Tensor) -> list[LayerCall]:
    """The layers with weights that a model calls, in that order, each name and shape once."""
    calls: dict[tuple[str, tuple[int, ...]], LayerCall] = {}

    def hook(name: str) -> Callable[..., None]:
        def note(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            shape = tuple(inputs[0].shape[1:])
            calls.setdefault((name, shape), LayerCall(name, layer, shape))

        return note

    kinds = (nn.Linear, *CONVOLUTIONS, _BatchNorm)
    layers = {
        n: m for n, m in model.named_modules() if isinstance(m, kinds) and _has_fixed_scale(m)
    }
    with forward_hooks({m: hook(n) for n, m in layers.items()}), eval_mode(model), torch.no_grad():
        model(x[:1])
    return list(calls.values())


def _has_fixed_scale(layer: nn.Module) -> bool:
    """Not so for a BatchNorm that takes its statistics from each batch."""
    return not isinstance(layer, _BatchNorm) or layer.running_var is not None


@contextmanager
def forward_hooks(hooks: dict[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Forward hooks that are gone afterwards."""
    handles = [module.register_forward_hook(hook) for module, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def foldable_batchnorms(graph: fx.GraphModule) -> dict[str, tuple[str, _BatchNorm]]:
    """Convolution -> the BatchNorm that alone reads it: its name and the module."""
    pairs = find_conv_norm_pairs(graph, lambda norm: type(norm) is nn.BatchNorm2d)
    return {str(conv.target): (str(node.target), norm) for conv, node, _, norm in pairs}


class LayerNorms(Spec):
    """A linear layer, or a BatchNorm that could not be folded into one; all in L2."""

    name: str
    kind: str
    spectral: float  # of the layer itself
    batchnorm: str  # the BatchNorm behind it
    spectral_with_batchnorm: float | None  # with that folded in
    gaussian: float | None  # for independent weights with these sizes and variance
    product_log10: float  # of all layers up to here, in the order of calls
    gaussian_log10: float  # the same of the figures for independent weights


def layer_norms(model: nn.Module, x: Tensor, norms: SpectralNorms) -> tuple[LayerNorms, ...]:
    """Every layer in the order of calls, with the product of norms up to it."""
    folded = _folded_batchnorms(model)
    folded_names = {norm for norm, _ in folded.values()}
    rows, log, gaussian_log = [], 0.0, 0.0
    for call in layer_calls(model, x):
        if call.name in folded_names:
            continue
        spectral, with_norm, name = norms.norm(call), None, ""
        if call.name in folded:
            name, module = folded[call.name]
            with_norm = norms.norm(call, module)
        factor = spectral if with_norm is None else with_norm
        log += math.log10(factor) if factor > 0 else 0.0
        gaussian = _layer_gaussian_bound(call)
        gaussian_log += math.log10(gaussian) if gaussian else 0.0
        rows.append(
            LayerNorms(
                name=call.name,
                kind=_layer_kind(call),
                spectral=spectral,
                batchnorm=name,
                spectral_with_batchnorm=with_norm,
                gaussian=gaussian,
                product_log10=log,
                gaussian_log10=gaussian_log,
            )
        )
    return tuple(rows)


def _folded_batchnorms(model: nn.Module) -> dict[str, tuple[str, _BatchNorm]]:
    try:
        return foldable_batchnorms(trace_layers(model))
    except Exception:  # a user's model may not be traceable; then no BatchNorm is folded
        return {}


def _layer_kind(call: LayerCall) -> str:
    if isinstance(call.layer, _BatchNorm):
        return "norm"
    return "linear" if isinstance(call.layer, nn.Linear) else "convolution"


def _layer_gaussian_bound(call: LayerCall) -> float | None:
    layer = call.layer
    if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return gaussian_bound(layer, call.shape)
    return None
