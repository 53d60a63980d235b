"""Cost of a model: parameters and multiply-accumulates (MACs)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

Function = Callable[..., Any]

INITIALIZERS = frozenset(
    {"normal_", "uniform_", "kaiming_uniform_", "erfinv_", "clamp_", "mul_", "add_", "fill_"}
)
SHAPE_PRESERVING: frozenset[Function] = frozenset(
    {F.batch_norm, F.layer_norm, F.group_norm, F.relu, F.gelu, F.silu, F.hardswish, F.normalize}
)
CONVOLUTIONS: frozenset[Function] = frozenset({torch.conv1d, torch.conv2d, torch.conv3d})
PRODUCTS: frozenset[Function] = frozenset(
    {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.mm, Tensor.mm}
)
COUNTED_BY_TORCH: frozenset[Function] = frozenset(
    {torch.einsum, torch.addmm, torch.baddbmm, F.multi_head_attention_forward}
)


class SkipInitialization(TorchFunctionMode):
    """Skip weight initialization, for tensors on the meta device."""

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") in INITIALIZERS:
            tensor = args[0] if args else (kwargs or {})["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **(kwargs or {}))


class MacCounter(TorchFunctionMode):
    """Count the multiply-accumulates of convolutions, linear layers and matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.macs = 0

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in SHAPE_PRESERVING:
            return args[0]
        if func is F.linear:
            x, weight = args[0], args[1]
            self.macs += x.numel() * weight.shape[0]
            return x.new_empty((*x.shape[:-1], weight.shape[0]))
        if func is F.scaled_dot_product_attention:
            q, k, v = args[:3]
            self.macs += q.shape[:-1].numel() * k.shape[-2] * (q.shape[-1] + v.shape[-1])
            return q.new_empty((*q.shape[:-1], v.shape[-1]))
        if func in COUNTED_BY_TORCH:
            with FlopCounterMode(display=False) as counter:
                out = func(*args, **(kwargs or {}))
            self.macs += counter.get_total_flops() // 2
            return out
        out = func(*args, **(kwargs or {}))
        if func in CONVOLUTIONS:
            self.macs += out.numel() * args[1][0].numel()
        elif func in PRODUCTS:
            self.macs += out.numel() * args[0].shape[-1]
        return out


def count_macs_on_meta(model: nn.Module, image_size: int) -> int:
    """Multiply-accumulates of one image; the model must be on the meta device, in eval mode."""
    x = torch.empty(1, getattr(model, "in_channels", 3), image_size, image_size, device="meta")
    with torch.no_grad(), MacCounter() as tally:
        model(x)
    return tally.macs


class ModelCost(NamedTuple):
    parameters: int
    macs: int  # per image, forward


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
    return int(counter.get_total_flops()) // 2


@lru_cache(maxsize=4096)
def model_cost(
    name: str, *, num_classes: int = 10, image_size: int = 32, in_channels: int = 3
) -> ModelCost:
    """Return the cost of a model by name, without allocating its weights."""
    with torch.device("meta"), SkipInitialization():
        model = create_model(
            name, num_classes=num_classes, image_size=image_size, in_channels=in_channels
        )
    # A model from elsewhere may use operators that only torch's counter covers.
    count = count_macs_on_meta if is_known(name) else count_macs
    return ModelCost(count_parameters(model), count(model.eval(), image_size))
