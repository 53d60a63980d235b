"""A network made ready for the many passes of a landscape: the same function, faster."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from buttress.attacks import rewrite
from buttress.attacks.freeze import frozen

CLOSE = 1e-4  # logits may differ by this much of their size: sums in another order


def ready(model: nn.Module, x: Tensor) -> nn.Module:
    """A copy with the channels of a pixel side by side in memory, or the network itself.

    The copy has the parameters of the network under the same names, so that its weights can be
    moved; forms that fold layers into one another have not. Only for networks with BatchNorm: they
    pass maps from layer to layer and gain up to half of the time; tokens gain nothing. It is not
    timed, so that the same network always gets the same form.
    """
    if not any(isinstance(m, nn.BatchNorm2d) for m in model.modules()):
        return model
    try:
        with frozen(model), torch.no_grad():
            made = rewrite.channels_last(model, x)
            right, found = model(x), made(x)
    except Exception:  # any user's network may refuse in its own way
        return model
    gap = float((right - found).abs().max() / right.abs().max().clamp_min(1e-12))
    return made if gap <= CLOSE else model
