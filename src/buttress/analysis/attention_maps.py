"""Attention maps of any network: every softmax over tokens, caught while images pass through.

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

BETWEEN_CHANNELS = "XCA"  # of XCiT, in timm and in the code of its authors
STRIDED = "MobileVitBlock"  # tokens of a group are a patch apart
SOFTMAXES = (torch.softmax, Tensor.softmax, F.softmax)


@dataclass(frozen=True)
class Map:
    """The weights of one layer: (N x groups, heads, queries, keys), each row sums to 1."""

    name: str
    weights: Tensor
    between_channels: bool  # the rows are channels, not places
    is_strided: bool  # groups of tokens are spread over the whole image, not windows of it


class Capture(TorchFunctionMode):
    """Keeps the attention weights of what runs inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[Map] = []
        self.path: list[tuple[str, nn.Module]] = []  # the modules that are running

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            weights = product_weights(*args[:2], **_without_values(args, kwargs))
            self._keep(weights)
            return weights @ (args[2] if len(args) > 2 else kwargs["value"])
        if func is F.multi_head_attention_forward:
            wanted = kwargs.get("need_weights", True)
            out, weights = func(
                *args, **{**kwargs, "need_weights": True, "average_attn_weights": False}
            )
            self._keep(weights)
            averaged = kwargs.get("average_attn_weights", True)
            return out, (weights.mean(1) if averaged else weights) if wanted else None
        out = func(*args, **kwargs)
        if func in SOFTMAXES and isinstance(out, Tensor) and out.ndim == 4:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if dim in (-1, 3):
                self._keep(out)
        return out

    def _keep(self, weights: Tensor) -> None:
        owner = next(
            ((n, m) for n, m in reversed(self.path) if any(True for _ in m.parameters())),
            ("", nn.Identity()),
        )
        strided = any(_is_a(STRIDED, m) for _, m in self.path)
        channels = _is_a(BETWEEN_CHANNELS, owner[1])
        self.maps.append(Map(owner[0], weights.detach(), channels, strided))


def _is_a(name: str, module: nn.Module) -> bool:
    return any(kind.__name__ == name for kind in type(module).__mro__)


def _without_values(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    named = {**dict(zip(names[2:], args[2:], strict=False)), **kwargs}
    return {k: v for k, v in named.items() if k not in ("value", "dropout_p", "enable_gqa")}


def product_weights(
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


def attention_maps(model: nn.Module, x: Tensor) -> tuple[Tensor, list[Map]]:
    """The output for a batch, and the maps in the order of the network."""
    capture = Capture()
    with torch.no_grad(), _followed(model, capture.path), capture:
        out = model(x)
    return out, capture.maps


@contextlib.contextmanager
def _followed(model: nn.Module, path: list[tuple[str, nn.Module]]) -> Iterator[None]:
    """Keeps ``path`` at the modules that are running."""

    def entering(name: str) -> Callable[..., None]:
        return lambda module, inputs: path.append((name, module))

    def leaving(module: nn.Module, inputs: Any, output: Any) -> None:
        path.pop()

    hooks = []
    try:
        for name, module in model.named_modules():
            hooks.append(module.register_forward_pre_hook(entering(name)))
            hooks.append(module.register_forward_hook(leaving))
        yield
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True)
class Layout:
    """Where the queries and keys of a map are: distances in pixels, class tokens first."""

    distance: Tensor  # (queries, keys) without class tokens
    queries: int  # class tokens among the queries
    keys: int  # class tokens among the keys
    groups: int


def layout_of(found: Map, images: int, size: tuple[int, int]) -> Layout | None:
    """Places tokens in the middle of their cells; None where no query has a place."""
    count, _, queries, keys = found.weights.shape
    if found.between_channels or count % images:
        return None
    groups, (high, wide) = count // images, size
    ratio = high / wide if groups == 1 or found.is_strided else 1.0
    here = grid_of(keys, ratio)
    if here is None or (queries == here[0] and queries < keys):
        return None
    there = grid_of(queries, ratio)
    if there is None:
        return None
    extent = (float(high), float(wide))
    if groups > 1 and not found.is_strided:  # a window is its share of the image
        share = 1 / math.sqrt(groups)
        extent = (high * share, wide * share)
    distance = torch.cdist(_cells(there[1:], extent), _cells(here[1:], extent))
    return Layout(distance, there[0], here[0], groups)


def grid_of(tokens: int, ratio: float) -> tuple[int, int, int] | None:
    """Class tokens, rows and columns of a row of tokens; ``ratio`` is height over width."""
    for extra in (0, 1, 2):
        rows = round(math.sqrt((tokens - extra) * ratio)) if tokens > extra else 0
        if rows and (tokens - extra) % rows == 0:
            columns = (tokens - extra) // rows
            if round(columns * ratio) == rows:
                return extra, rows, columns
    return None


def _cells(grid: tuple[int, int], extent: tuple[float, float]) -> Tensor:
    """(rows x columns, 2) the middles of cells."""
    down, right = (
        (torch.arange(n, dtype=torch.float64) + 0.5) * (whole / n)
        for n, whole in zip(grid, extent, strict=True)
    )
    return torch.cartesian_prod(down, right)


def mean_distance(weights: Tensor, layout: Layout) -> Tensor:
    """(heads,) how far heads look: the mean over images and queries, class tokens left out."""
    spatial = weights[:, :, layout.queries :, layout.keys :].double()
    spatial = spatial / spatial.sum(-1, keepdim=True).clamp_min(1e-12)
    return (spatial * layout.distance.to(spatial.device)).sum(-1).mean((0, 2)).cpu()


def moved(clean: Tensor, attacked: Tensor) -> float:
    """The share of attention that went elsewhere: half the sum of changes, averaged."""
    return float((clean - attacked).abs().sum(-1).double().mean() / 2)


def rollout(maps: Sequence[Tensor], ratio: float = 1.0) -> Tensor | None:
    """(N, places) which places the output reads, through all layers (arXiv:2005.00928).

    The residual is half of each layer. The class token reads where there is one, or layers of
    class attention at the end; otherwise the mean over tokens. None where tokens change on the way.
    ``ratio`` is height over width of the image.
    """
    body = [m.mean(1) for m in maps if m.shape[-1] == m.shape[-2]]
    ends = [m.mean(1) for m in maps if m.shape[-1] != m.shape[-2]]
    if not body or any(m.shape != body[0].shape for m in body):
        return None
    tokens = body[0].shape[-1]
    if any(m.shape[-2:] != (1, tokens + 1) for m in ends):
        return None
    eye = torch.eye(tokens, dtype=body[0].dtype, device=body[0].device)
    through = eye.expand_as(body[0])
    for layer in body:
        through = (layer + eye) / 2 @ through
    read = (
        torch.stack([m[:, 0, 1:] for m in ends]).mean(0).unsqueeze(1) @ through if ends else through
    )
    grid = grid_of(tokens, ratio)
    extra = grid[0] if grid and not ends else 0
    seen = read[:, 0, extra:] if extra else read.mean(1)
    return seen / seen.sum(-1, keepdim=True).clamp_min(1e-12)
