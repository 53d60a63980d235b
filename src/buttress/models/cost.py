"""The cost model: passes of single images, and what one pass of a model costs.

Attacks and objectives declare their passes as a `PassCount`, `model_cost` gives the
multiply-accumulates (MACs) of one forward pass, and `PassCount.macs` multiplies the two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from buttress.models.core import create_model, is_known
from buttress.models.eval_mode import eval_mode

# MACs of a backward pass, in forward passes: the gradient with respect to a layer's input costs as
# much as the layer itself, and the gradient with respect to its weights as much again.
BACKWARD_FACTOR, WEIGHT_BACKWARD_FACTOR = 1.0, 2.0
FLOPS_PER_MAC = 2


@dataclass(frozen=True)
class PassCount:
    """Passes of single images; a backward pass is counted beside the forward pass before it."""

    forward: float = 0.0
    backward: float = 0.0  # to the image only
    weight_backward: float = 0.0  # to the weights

    def __add__(self, other: PassCount) -> PassCount:
        return PassCount(
            self.forward + other.forward,
            self.backward + other.backward,
            self.weight_backward + other.weight_backward,
        )

    def __mul__(self, factor: float) -> PassCount:
        return PassCount(
            self.forward * factor, self.backward * factor, self.weight_backward * factor
        )

    def macs(self, forward_macs: float = 1.0) -> float:
        """MACs of a model with so many per forward pass."""
        return forward_macs * (
            self.forward
            + BACKWARD_FACTOR * self.backward
            + WEIGHT_BACKWARD_FACTOR * self.weight_backward
        )


Function = Callable[..., Any]

INITIALIZERS = frozenset(
    {"normal_", "uniform_", "kaiming_uniform_", "erfinv_", "clamp_", "mul_", "add_", "fill_"}
)
# What the backward pass needs of an operation: its input, its output, or both factors.
SAVES_INPUT: frozenset[Function] = frozenset(
    {F.batch_norm, F.layer_norm, F.group_norm, F.gelu, F.silu, F.hardswish, F.normalize}
)
SAVES_OUTPUT: frozenset[Function] = frozenset(
    {torch.softmax, Tensor.softmax, F.softmax, torch.sigmoid, Tensor.sigmoid}
)
CONVOLUTIONS: frozenset[Function] = frozenset({torch.conv1d, torch.conv2d, torch.conv3d})
MATRIX_PRODUCTS: frozenset[Function] = frozenset(
    {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.mm, Tensor.mm}
)
PRODUCTS = MATRIX_PRODUCTS | {torch.mul, Tensor.mul, Tensor.__mul__, Tensor.mul_}
SUMS: frozenset[Function] = frozenset({torch.add, Tensor.add, Tensor.__add__})
COUNTED_BY_TORCH: frozenset[Function] = frozenset(
    {torch.einsum, torch.addmm, torch.baddbmm, F.multi_head_attention_forward}
)


class SkipInitialization(TorchFunctionMode):
    """Leave parameters, and all tensors on the meta device, without initial values."""

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") in INITIALIZERS:
            tensor = args[0] if args else (kwargs or {})["tensor"]
            if tensor.is_meta or isinstance(tensor, nn.Parameter):
                return tensor
        return func(*args, **(kwargs or {}))


def operation_macs(func: Function, args: Sequence[Any], out: Tensor) -> int:
    """Multiply-accumulates of one operation of the kinds that dominate a model; else 0."""
    if func in CONVOLUTIONS:
        return out.numel() * args[1][0].numel()
    if func is F.linear:
        return args[0].numel() * args[1].shape[0]
    if func is F.scaled_dot_product_attention:
        q, k, v = args[:3]
        return q.shape[:-1].numel() * k.shape[-2] * (q.shape[-1] + v.shape[-1])
    return out.numel() * args[0].shape[-1] if func in MATRIX_PRODUCTS else 0


class MacCounter(TorchFunctionMode):
    """Count multiply-accumulates of a real pass, without the compiler that torch's own imports."""

    macs = 0

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.macs += operation_macs(func, args, out)
        return out


class OperationCounter(TorchFunctionMode):
    """Count multiply-accumulates, and the numbers that are kept for the backward pass.

    For models on the meta device: operations whose results have a known shape are not executed.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.macs = 0
        self.weights = {_storage_key(t) for t in (*model.parameters(), *model.buffers())}
        self.saved: dict[int, Tensor] = {}  # by storage; the tensors are kept, so keys stay unique

    @property
    def activations(self) -> int:
        return sum(t.untyped_storage().nbytes() // t.element_size() for t in self.saved.values())

    def save(self, *tensors: Any) -> None:
        for tensor in tensors:
            if isinstance(tensor, Tensor) and (key := _storage_key(tensor)) not in self.weights:
                self.saved[key] = tensor

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in SAVES_INPUT:
            self.save(args[0])
            return args[0].new_empty(args[0].shape)
        if func is F.relu:
            out = args[0] if kwargs.get("inplace") else args[0].new_empty(args[0].shape)
            self.save(out)
            return out
        if func is F.linear:
            out = args[0].new_empty((*args[0].shape[:-1], args[1].shape[0]))
            self.macs += operation_macs(func, args, out)
            self.save(args[0])
            return out
        if func is F.scaled_dot_product_attention:
            q, k, v = args[:3]
            out = q.new_empty((*q.shape[:-1], v.shape[-1]))
            self.macs += operation_macs(func, args, out)
            self.save(q, k, v, out)
            return out
        if func in COUNTED_BY_TORCH:
            with FlopCounterMode(display=False) as counter:
                out = func(*args, **kwargs)
            self.macs += counter.get_total_flops() // FLOPS_PER_MAC
            self.save(*args)
            return out
        if func in SUMS and getattr(args[1], "shape", None) == args[0].shape:
            return args[0].new_empty(args[0].shape)
        out = func(*args, **kwargs)
        if func in CONVOLUTIONS:
            self.macs += operation_macs(func, args, out)
            self.save(args[0])
        elif func in PRODUCTS:
            self.macs += operation_macs(func, args, out)
            self.save(*args[:2])
        elif func in SAVES_OUTPUT:
            self.save(out)
        return out


def _storage_key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class ModelCost(NamedTuple):
    """Cost of a model; MACs and activations are of the forward pass of one image."""

    parameters: int
    macs: int
    activations: int  # numbers that are kept for the backward pass, about
    family: str  # class of the network


def count_parameters(model: nn.Module) -> int:
    """Count the trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def count_macs(model: nn.Module, image_size: int = 32) -> int:
    """Multiply-accumulates of one forward pass of one image: half of what torch calls FLOPs."""
    first = next(model.parameters())
    channels = getattr(model, "in_channels", 3)
    x = torch.zeros(1, channels, image_size, image_size, device=first.device, dtype=first.dtype)
    # The counter fails on a view of a trained parameter, such as a class token of CaiT. Fused
    # attention is one operator without a count; the plain one is matrix products.
    counter = FlopCounterMode(display=False)
    with eval_mode(model), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(x)
    return int(counter.get_total_flops()) // FLOPS_PER_MAC


def model_cost(
    name: str,
    *,
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    options: Mapping[str, Any] | None = None,
) -> ModelCost:
    """Return the cost of a model by name, computed once without memory for its weights."""
    shape = (num_classes, image_size, in_channels)
    return _cached_cost(name, *shape, json.dumps(options or {}, sort_keys=True))


@lru_cache(maxsize=4096)
def _cached_cost(
    name: str, num_classes: int, image_size: int, in_channels: int, options: str
) -> ModelCost:
    with torch.device("meta"), SkipInitialization():
        model = create_model(
            name,
            num_classes=num_classes,
            image_size=image_size,
            in_channels=in_channels,
            options=json.loads(options),
        ).eval()
    x = torch.empty(1, in_channels, image_size, image_size, device="meta")
    parameters, family = count_parameters(model), type(model.net).__name__
    if is_known(name):
        with torch.no_grad(), OperationCounter(model) as counter:
            model(x)
        return ModelCost(parameters, counter.macs, counter.activations, family)
    # A model from elsewhere may use operators that only torch's counters cover.
    return ModelCost(parameters, count_macs(model, image_size), _saved_numbers(model, x), family)


def _saved_numbers(model: nn.Module, x: Tensor) -> int:
    """Numbers that autograd keeps for the backward pass, without the model's own tensors."""
    counter = OperationCounter(model)

    def save(tensor: Tensor) -> Tensor:
        counter.save(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        model(x)
    return counter.activations


class PassTotal:
    """Passes of single images through a model."""

    total: int = 0


@contextmanager
def count_passes(model: nn.Module) -> Iterator[PassTotal]:
    """Count forward passes, and a backward pass for each input that requires a gradient."""
    counter = PassTotal()

    def count(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        counter.total += len(args[0]) * (1 + args[0].requires_grad)

    hook = model.register_forward_pre_hook(count)
    try:
        yield counter
    finally:
        hook.remove()
