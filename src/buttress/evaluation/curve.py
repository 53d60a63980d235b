"""Accuracy against eps: the same attack with growing balls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from buttress.attacks.call import HOW, How, create_attack, run_attack
from buttress.attacks.freeze import frozen, on_device_of
from buttress.data import Dataset
from buttress.statistics import Interval, wilson
from buttress.threat import Norm, Threat


@dataclass(frozen=True)
class Curve:
    """Which images survive each eps."""

    norm: Norm
    eps: tuple[float, ...]
    survived: NDArray[np.bool_]  # (len(eps), N)

    @property
    def accuracy(self) -> tuple[float, ...]:
        return tuple(float(row.mean()) for row in self.survived)

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """The 95% interval of each accuracy, over the draw of images."""
        return tuple(wilson(int(row.sum()), len(row)) for row in self.survived)


def accuracy_curve(
    model: nn.Module,
    data: Dataset,
    attack: str,
    norm: Norm,
    eps: Sequence[float],
    *,
    how: How = HOW,
    **args: Any,
) -> Curve:
    """Accuracy under one attack for each eps, from the smallest on.

    The balls are nested, so an image that one eps breaks is broken for all larger ones and is not
    attacked again.
    """
    chosen, how = create_attack(attack, **args), replace(how, stop_when_broken=True)
    radii = tuple(sorted(set(eps)))
    columns = []
    for x, y, ids in data.batches(how.batch_size):
        x, y = on_device_of(model, x), y.to(on_device_of(model, x).device)
        with frozen(model), torch.no_grad():
            alive = model(x).argmax(1) == y
        flags = []
        for radius in radii:
            if radius > 0 and alive.any():
                ball, here = Threat(norm, radius), ids[alive.cpu()]
                out = run_attack(chosen, model, x[alive], y[alive], ball, ids=here, how=how)
                alive[alive.clone()] = ~out.broken
            flags.append(alive.cpu().numpy().copy())
        columns.append(np.stack(flags))
    return Curve(norm, radii, np.concatenate(columns, axis=1))
