"""Accuracy against eps: the same attack with increasing eps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from buttress.attacks.core import create_attack
from buttress.engine import AttackOptions, run_attack
from buttress.evaluation.inputs import load_images
from buttress.models.eval_mode import eval_mode, to_model_device
from buttress.statistics import Interval, wilson_interval
from buttress.threats.norm_ball import Norm, NormBall

if TYPE_CHECKING:
    from buttress.data.convert import DataLike


@dataclass(frozen=True, repr=False)
class AccuracyCurve:
    """Per-sample robustness at each eps."""

    norm: Norm
    eps: tuple[float, ...]
    is_robust: NDArray[np.bool_]  # (len(eps), N)

    def __repr__(self) -> str:
        pairs = zip(self.eps, self.accuracy, strict=True)
        points = ", ".join(f"{eps:.4g}: {100 * accuracy:.1f}%" for eps, accuracy in pairs)
        return f"AccuracyCurve({self.norm}, {self.is_robust.shape[1]:,} images, {points})"

    @property
    def accuracy(self) -> tuple[float, ...]:
        return tuple(float(row.mean()) for row in self.is_robust)

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """The 95% interval of each accuracy, over the images."""
        return tuple(wilson_interval(int(row.sum()), len(row)) for row in self.is_robust)


def accuracy_curve(
    model: nn.Module,
    data: DataLike,
    attack: str,
    norm: Norm,
    eps: Sequence[float],
    *,
    options: AttackOptions | None = None,
    **args: Any,
) -> AccuracyCurve:
    """Compute robust accuracy under one attack for each eps, in increasing order.

    The eps-balls are nested, so an image that is fooled at one eps counts as fooled at all larger
    ones and is skipped there.
    """
    attack_fn, options = (
        create_attack(attack, **args),
        replace(options or AttackOptions(), stop_when_fooled=True),
    )
    eps_values = tuple(sorted(set(eps)))
    columns = []
    for x, y, ids in load_images(model, data).batches(options.batch_size):
        x, y = to_model_device(model, x), y.to(to_model_device(model, x).device)
        with eval_mode(model), torch.no_grad():
            is_robust = model(x).argmax(1) == y
        flags = []
        for eps_value in eps_values:
            if eps_value > 0 and is_robust.any():
                threat, attacked_ids = NormBall(norm, eps_value), ids[is_robust.cpu()]
                outcome = run_attack(
                    attack_fn,
                    model,
                    x[is_robust],
                    y[is_robust],
                    threat,
                    ids=attacked_ids,
                    options=options,
                )
                is_robust[is_robust.clone()] = ~outcome.fooled
            flags.append(is_robust.cpu().numpy().copy())
        columns.append(np.stack(flags))
    return AccuracyCurve(norm, eps_values, np.concatenate(columns, axis=1))
