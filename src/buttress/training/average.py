"""Averaged weights: exponential (EMA) or uniform (SWA, arXiv:1803.05407) over training steps.

Statistics of BatchNorm are averaged too.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

from buttress.records.spec import Average


class Averaged:
    """The averaged network of a run; before its first epoch it is the network itself."""

    def __init__(self, model: nn.Module, spec: Average) -> None:
        mean = get_ema_multi_avg_fn(spec.decay) if spec.kind == "ema" else get_swa_multi_avg_fn()
        self.from_epoch, self.source = spec.from_epoch, model
        self.copy = AveragedModel(model, multi_avg_fn=mean, use_buffers=True)

    def update(self, epoch: float) -> None:
        """Takes in the weights after a step."""
        if epoch >= self.from_epoch:
            self.copy.update_parameters(self.source)

    @property
    def module(self) -> nn.Module:
        """The network to judge."""
        return self.copy.module if int(self.copy.n_averaged) else self.source

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: the judged weights, and those that training goes on with."""
        return {
            "model": self.module.state_dict(),
            "raw": self.source.state_dict(),
            "averaged": int(self.copy.n_averaged),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.source.load_state_dict(state["raw"])
        self.copy.module.load_state_dict(state["model"])
        self.copy.n_averaged.fill_(state["averaged"])
