"""Colour jitter: brightness, contrast, saturation and hue, in an order drawn for each image."""

from __future__ import annotations

import torch
from torch import Tensor

from buttress.data.augment.operations import apply
from buttress.streams import Streams


def colour_jitter(
    x: Tensor,
    streams: Streams,
    *,
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
    hue: float = 0.0,
) -> Tensor:
    """Each quality of uint8 images times a factor from 1 - s to 1 + s; hue turned by up to ``hue``.

    As in torchvision: factors are drawn evenly and never below zero, and a turn of 1 is the whole
    circle of colours.
    """
    strengths = {
        "brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue,
    }  # fmt: skip
    asked = [name for name, strength in strengths.items() if strength]
    count = len(asked)
    fractions = streams.fractions(2 * count, "jitter")
    order = fractions[:, count:].argsort(1)  # (N, count) which comes first, second, ...
    low = [-hue if name == "hue" else max(0.0, 1 - strengths[name]) for name in asked]
    high = [hue if name == "hue" else 1 + strengths[name] for name in asked]
    span = torch.tensor(high, dtype=torch.float64) - torch.tensor(low, dtype=torch.float64)
    amounts = torch.tensor(low, dtype=torch.float64) + span * fractions[:, :count].cpu()
    for turn in order.cpu().unbind(1):
        names = [asked[i] for i in turn.tolist()]
        x = apply(x, names, amounts.gather(1, turn.unsqueeze(1)).squeeze(1))
    return x
