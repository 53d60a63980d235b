"""Networks on paper: built without drawing weights, counted from the shapes of their products.

torch's counter follows every operator of a forward pass, up to a second for a deep network. A list
of all models needs it faster: only functions that multiply are looked at here, and those that keep
the shape of their input are not called at all. Tests hold both counts equal for every model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

Function = Callable[..., Any]

DRAWS = frozenset(
    {"normal_", "uniform_", "kaiming_uniform_", "erfinv_", "clamp_", "mul_", "add_", "fill_"}
)
SHAPE_KEEPING: frozenset[Function] = frozenset(
    {F.batch_norm, F.layer_norm, F.group_norm, F.relu, F.gelu, F.silu, F.hardswish, F.normalize}
)
CONVOLUTIONS: frozenset[Function] = frozenset({torch.conv1d, torch.conv2d, torch.conv3d})
PRODUCTS: frozenset[Function] = frozenset(
    {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.mm, Tensor.mm}
)
LEFT_TO_TORCH: frozenset[Function] = frozenset(
    {torch.einsum, torch.addmm, torch.baddbmm, F.multi_head_attention_forward}
)


class Undrawn(TorchFunctionMode):
    """Leaves out what would fill tensors that have no memory."""

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") in DRAWS:
            tensor = args[0] if args else (kwargs or {})["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **(kwargs or {}))


class Tally(TorchFunctionMode):
    """Adds up the multiply-accumulates of convolutions, linear layers and matrix products."""

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
        if func in SHAPE_KEEPING:
            return args[0]
        if func is F.linear:
            x, weight = args[0], args[1]
            self.macs += x.numel() * weight.shape[0]
            return x.new_empty((*x.shape[:-1], weight.shape[0]))
        if func is F.scaled_dot_product_attention:
            q, k, v = args[:3]
            self.macs += q.shape[:-1].numel() * k.shape[-2] * (q.shape[-1] + v.shape[-1])
            return q.new_empty((*q.shape[:-1], v.shape[-1]))
        if func in LEFT_TO_TORCH:
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


def tally_macs(model: nn.Module, image_size: int) -> int:
    """Multiply-accumulates of one image; the model must be on the meta device, in eval mode."""
    x = torch.empty(1, getattr(model, "in_channels", 3), image_size, image_size, device="meta")
    with torch.no_grad(), Tally() as tally:
        model(x)
    return tally.macs
