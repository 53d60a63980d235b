"""The layers of a network in the order of calls: norms, and what Gaussian weights would have."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from buttress.analysis.gaussian import gaussian_bound
from buttress.analysis.spectral import Call, Norms, calls_of, folded_of, traced
from buttress.spec import Spec


class Layer(Spec):
    """A linear layer, or a BatchNorm that could not be folded into one; all in L2."""

    name: str
    kind: str
    spectral: float  # of the layer itself
    norm: str  # the BatchNorm behind it
    with_norm: float | None  # with that folded in
    gaussian: float | None  # for independent weights with these sizes and variance
    product_log10: float  # of all layers up to here, in the order of calls
    gaussian_log10: float  # the same of the figures for independent weights


def layer_table(model: nn.Module, x: Tensor, norms: Norms) -> tuple[Layer, ...]:
    """Every layer in the order of calls, with the product of norms up to it."""
    folded = _folded(model)
    behind = {norm for norm, _ in folded.values()}
    rows, log, expected = [], 0.0, 0.0
    for call in calls_of(model, x):
        if call.name in behind:
            continue
        spectral, with_norm, name = norms.of(call), None, ""
        if call.name in folded:
            name, module = folded[call.name]
            with_norm = norms.of(call, module)
        factor = spectral if with_norm is None else with_norm
        log += math.log10(factor) if factor > 0 else 0.0
        gaussian = _gaussian(call)
        expected += math.log10(gaussian) if gaussian else 0.0
        rows.append(
            Layer(
                name=call.name,
                kind=_kind(call),
                spectral=spectral,
                norm=name,
                with_norm=with_norm,
                gaussian=gaussian,
                product_log10=log,
                gaussian_log10=expected,
            )
        )
    return tuple(rows)


def _folded(model: nn.Module) -> dict[str, tuple[str, _BatchNorm]]:
    try:
        return folded_of(traced(model))
    except Exception:  # any user's network may refuse to be traced; then no BatchNorm is folded
        return {}


def _kind(call: Call) -> str:
    if isinstance(call.layer, _BatchNorm):
        return "norm"
    return "linear" if isinstance(call.layer, nn.Linear) else "convolution"


def _gaussian(call: Call) -> float | None:
    layer = call.layer
    if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return gaussian_bound(layer, call.shape)
    return None
