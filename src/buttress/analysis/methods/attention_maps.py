"""Attention maps of any model: every softmax over tokens, captured in a forward pass.

Products with fused attention are computed step by step, and softmaxes over the last of four
dimensions are taken as they come. The classes of modules are asked for two things only, by name.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

CHANNEL_ATTENTION_CLASS = "XCA"  # of XCiT, in timm and in the code of its authors
STRIDED_ATTENTION_CLASS = "MobileVitBlock"  # tokens of a group are a patch apart
SOFTMAX_FUNCTIONS = (torch.softmax, Tensor.softmax, F.softmax)


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one layer: (N x groups, heads, queries, keys), each row sums to 1."""

    name: str
    weights: Tensor
    is_over_channels: bool  # the rows are channels, not positions
    is_strided: bool  # groups of tokens are spread over the whole image, not windows of it


class AttentionCapture(TorchFunctionMode):
    """Capture the attention weights of forward passes inside the context."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[AttentionMap] = []
        self.module_stack: list[tuple[str, nn.Module]] = []  # the modules that are running

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            weights = attention_weights(*args[:2], **_query_key_kwargs(args, kwargs))
            self._record(weights)
            return weights @ (args[2] if len(args) > 2 else kwargs["value"])
        if func is F.multi_head_attention_forward:
            need_weights = kwargs.get("need_weights", True)
            out, weights = func(
                *args, **{**kwargs, "need_weights": True, "average_attn_weights": False}
            )
            self._record(weights)
            averaged = kwargs.get("average_attn_weights", True)
            return out, (weights.mean(1) if averaged else weights) if need_weights else None
        out = func(*args, **kwargs)
        if func in SOFTMAX_FUNCTIONS and isinstance(out, Tensor) and out.ndim == 4:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if dim in (-1, 3):
                self._record(out)
        return out

    def _record(self, weights: Tensor) -> None:
        owner = next(
            ((n, m) for n, m in reversed(self.module_stack) if any(True for _ in m.parameters())),
            ("", nn.Identity()),
        )
        strided = any(_has_class_name(STRIDED_ATTENTION_CLASS, m) for _, m in self.module_stack)
        channels = _has_class_name(CHANNEL_ATTENTION_CLASS, owner[1])
        self.maps.append(AttentionMap(owner[0], weights.detach(), channels, strided))


def _has_class_name(name: str, module: nn.Module) -> bool:
    return any(kind.__name__ == name for kind in type(module).__mro__)


def _query_key_kwargs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    arguments = {**dict(zip(names[2:], args[2:], strict=False)), **kwargs}
    return {k: v for k, v in arguments.items() if k not in ("value", "dropout_p", "enable_gqa")}


def attention_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(q k / sqrt(d) + mask), as fused attention has it."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    logits = (query * scale) @ key.transpose(-2, -1)
    if is_causal:
        logits = logits.masked_fill(torch.ones_like(logits[0, 0]).triu(1).bool(), -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        logits = logits.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        logits = logits + attn_mask
    return logits.softmax(-1)


def attention_maps(model: nn.Module, x: Tensor) -> tuple[Tensor, list[AttentionMap]]:
    """Output of a batch, and its attention maps in execution order."""
    capture = AttentionCapture()
    with torch.no_grad(), _track_modules(model, capture.module_stack), capture:
        out = model(x)
    return out, capture.maps


@contextlib.contextmanager
def _track_modules(model: nn.Module, module_stack: list[tuple[str, nn.Module]]) -> Iterator[None]:
    """Keep ``module_stack`` at the modules that are running."""

    def push_module(name: str) -> Callable[..., None]:
        return lambda module, inputs: module_stack.append((name, module))

    def pop_module(module: nn.Module, inputs: Any, output: Any) -> None:
        module_stack.pop()

    hooks = []
    try:
        for name, module in model.named_modules():
            hooks.append(module.register_forward_pre_hook(push_module(name)))
            hooks.append(module.register_forward_hook(pop_module))
        yield
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True)
class TokenLayout:
    """Positions of queries and keys of a map: distances in pixels, class tokens first."""

    distance: Tensor  # (queries, keys) without class tokens
    num_class_queries: int
    num_class_keys: int
    groups: int


def token_layout(
    attention_map: AttentionMap, images: int, size: tuple[int, int]
) -> TokenLayout | None:
    """Place tokens at the center of their cells; None if no query has a position."""
    count, _, queries, keys = attention_map.weights.shape
    if attention_map.is_over_channels or count % images:
        return None
    groups, (height, width) = count // images, size
    ratio = height / width if groups == 1 or attention_map.is_strided else 1.0
    key_grid = token_grid(keys, ratio)
    if key_grid is None or (queries == key_grid[0] and queries < keys):
        return None
    query_grid = token_grid(queries, ratio)
    if query_grid is None:
        return None
    extent = (float(height), float(width))
    if groups > 1 and not attention_map.is_strided:  # a window is its share of the image
        window_fraction = 1 / math.sqrt(groups)
        extent = (height * window_fraction, width * window_fraction)
    distance = torch.cdist(
        _cell_centers(query_grid[1:], extent), _cell_centers(key_grid[1:], extent)
    )
    return TokenLayout(distance, query_grid[0], key_grid[0], groups)


def token_grid(tokens: int, aspect_ratio: float) -> tuple[int, int, int] | None:
    """Class tokens, rows and columns of a row of tokens; ``aspect_ratio`` is height over width."""
    for extra in (0, 1, 2):
        rows = round(math.sqrt((tokens - extra) * aspect_ratio)) if tokens > extra else 0
        if rows and (tokens - extra) % rows == 0:
            columns = (tokens - extra) // rows
            if round(columns * aspect_ratio) == rows:
                return extra, rows, columns
    return None


def _cell_centers(grid: tuple[int, int], extent: tuple[float, float]) -> Tensor:
    """(rows x columns, 2) the middles of cells."""
    down, right = (
        (torch.arange(n, dtype=torch.float64) + 0.5) * (length / n)
        for n, length in zip(grid, extent, strict=True)
    )
    return torch.cartesian_prod(down, right)


def attention_distances(weights: Tensor, layout: TokenLayout) -> Tensor:
    """(N, heads) mean attention distance of each image over queries, without class tokens."""
    spatial = weights[:, :, layout.num_class_queries :, layout.num_class_keys :].double()
    spatial = spatial / spatial.sum(-1, keepdim=True).clamp_min(1e-12)
    distances = (
        (spatial * layout.distance.to(spatial.device)).sum(-1).mean(2)
    )  # (N x groups, heads)
    return distances.unflatten(0, (-1, layout.groups)).mean(1).cpu()


def attention_changes(clean: Tensor, adversarial: Tensor, images: int) -> Tensor:
    """(N,) mean total variation distance between two attention maps of each image."""
    change = (clean - adversarial).abs().sum(-1).double() / 2
    return change.reshape(images, -1).mean(1).cpu()


def attention_rollout(maps: Sequence[Tensor], aspect_ratio: float = 1.0) -> Tensor | None:
    """(N, positions) attention rollout through all layers (arXiv:2005.00928).

    The residual is half of each layer. The row of the class token is used where there is one, or
    layers of class attention at the end; otherwise the mean over tokens. None where tokens change
    on the way. ``aspect_ratio`` is height over width of the image.
    """
    self_attention = [m.mean(1) for m in maps if m.shape[-1] == m.shape[-2]]
    class_attention = [m.mean(1) for m in maps if m.shape[-1] != m.shape[-2]]
    if not self_attention or any(m.shape != self_attention[0].shape for m in self_attention):
        return None
    tokens = self_attention[0].shape[-1]
    if any(m.shape[-2:] != (1, tokens + 1) for m in class_attention):
        return None
    eye = torch.eye(tokens, dtype=self_attention[0].dtype, device=self_attention[0].device)
    joint = eye.expand_as(self_attention[0])
    for layer in self_attention:
        joint = (layer + eye) / 2 @ joint
    readout = (
        torch.stack([m[:, 0, 1:] for m in class_attention]).mean(0).unsqueeze(1) @ joint
        if class_attention
        else joint
    )
    grid = token_grid(tokens, aspect_ratio)
    extra = grid[0] if grid and not class_attention else 0
    scores = readout[:, 0, extra:] if extra else readout.mean(1)
    return scores / scores.sum(-1, keepdim=True).clamp_min(1e-12)
