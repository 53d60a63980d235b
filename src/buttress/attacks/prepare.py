"""A network made ready for an attack: the same function, faster, checked before it is used."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from buttress.attacks.freeze import frozen
from buttress.attacks.problem import gradient

CLOSE = 1e-4  # logits may differ by this much of their size: rounding in another order
WORTH = 0.95  # of the time of the original: less gain is not worth another network
WORTH_LOW = 0.7  # low precision needs a second look at survivors, so it must gain more
PROBE = 32  # images that are timed and compared


@dataclass(frozen=True)
class Prepared:
    """What an attack searches in. Successes are confirmed by the original."""

    model: nn.Module
    low: nn.Module | None = None  # bfloat16, for a first search; survivors are searched in `model`
    notes: tuple[str, ...] = ()  # what was done, and what was not and why


def prepare(model: nn.Module, x: Tensor) -> Prepared:
    """The fastest form of a model that gives its answers on the images ``x``.

    Tried are BatchNorm folded into convolutions, the memory order channels-last, and bfloat16; each
    is measured (forward pass and gradient of the image) and compared with the original.
    """
    x, notes = x[:PROBE], []
    with frozen(model):
        best, base = model, _seconds(model, x)
        fastest = base
        for name, change in (("BatchNorm folded", _folded), ("channels last", _channels_last)):
            made = _tried(change, best, x)
            why = made if isinstance(made, str) else _difference(model, made, x)
            if isinstance(made, str) or why:
                notes.append(f"{name}: not used, {why}")
                continue
            seconds = _seconds(made, x)
            if seconds > WORTH * fastest:
                notes.append(f"{name}: not used, {seconds / base:.2f} of the time")
                continue
            best, fastest = made, seconds
            notes.append(f"{name}: {seconds / base:.2f} of the time")
        low = _low_precision(best, x, fastest, notes)
    return Prepared(best, low, tuple(notes))


class Cast(nn.Module):
    """A network in another floating type, with images and logits in the old one."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.dtype = inner.to(dtype), dtype

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.to(self.dtype)).to(x.dtype)


def _tried(
    change: Callable[[nn.Module], nn.Module], model: nn.Module, x: Tensor
) -> nn.Module | str:
    """The changed network, or why there is none."""
    try:
        made = change(model).eval().requires_grad_(False)
        with torch.no_grad():
            made(x[:1])  # a trace may have fixed the number of images
    except Exception as error:  # any user's network may refuse in its own way
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return made


def _folded(model: nn.Module) -> nn.Module:
    """A copy in which each BatchNorm after a convolution that feeds nothing else is part of it."""
    if not any(isinstance(m, nn.BatchNorm2d) for m in model.modules()):
        raise ValueError("there is none")
    traced = fx.symbolic_trace(copy.deepcopy(model))
    modules, count = dict(traced.named_modules()), 0
    for node in traced.graph.nodes:
        before = node.args[0] if node.args else None
        if not isinstance(before, fx.Node) or len(before.users) != 1:
            continue
        if node.op != "call_module" or before.op != "call_module":
            continue
        norm, conv = modules[node.target], modules[str(before.target)]
        if type(norm) is nn.BatchNorm2d and type(conv) is nn.Conv2d:
            traced.set_submodule(str(before.target), fuse_conv_bn_eval(conv, norm))
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
            count += 1
    if not count:
        raise ValueError("none follows a convolution")
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def _channels_last(model: nn.Module) -> nn.Module:
    if not any(isinstance(m, nn.Conv2d) for m in model.modules()):
        raise ValueError("there is no convolution")
    return copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _low_precision(
    model: nn.Module, x: Tensor, seconds: float, notes: list[str]
) -> nn.Module | None:
    """The model in bfloat16 where that is much faster; it need only be nearly right."""
    if x.dtype != torch.float32:
        return None
    made = _tried(lambda m: Cast(copy.deepcopy(m), torch.bfloat16), model, x)
    if isinstance(made, str):
        notes.append(f"bfloat16: not used, {made}")
        return None
    started = time.perf_counter()
    with torch.no_grad():
        made(x)
    if time.perf_counter() - started > 2 * seconds:  # hopeless: do not measure it at length
        notes.append("bfloat16: not used, more than 2 times the time")
        return None
    share = _seconds(made, x) / seconds
    notes.append(f"bfloat16: {'' if share <= WORTH_LOW else 'not used, '}{share:.2f} of the time")
    return made if share <= WORTH_LOW else None


def _difference(model: nn.Module, made: nn.Module, x: Tensor) -> str:
    """Why another network does not stand for the model; nothing if it does."""
    with torch.no_grad():
        right, found = model(x), made(x)
    if right.shape != found.shape or not found.isfinite().all():
        return "its logits have another shape or are not finite"
    gap = float((right - found).abs().max() / right.abs().max().clamp_min(1e-12))
    if gap > CLOSE:
        return f"its logits differ by {gap:.1e} of their size"
    return ""


def _seconds(model: nn.Module, x: Tensor) -> float:
    """Median time of a forward pass with the gradient of the images, after one to warm up."""
    times = []
    for _ in range(4):
        started = time.perf_counter()
        with torch.enable_grad():
            point = x.detach().clone().requires_grad_(True)
            float(gradient(model(point).sum(), point).flatten()[:1].sum())  # waits for the device
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])
