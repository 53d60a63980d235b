"""Averaged weights: exponential (EMA) or uniform (SWA, arXiv:1803.05407) over training steps.

Statistics of BatchNorm are averaged too.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

from buttress.results.run_spec import WeightAveragingSpec


class AveragedWeights:
    """Weight average of a run; before its first epoch it is the model itself."""

    def __init__(self, model: nn.Module, spec: WeightAveragingSpec) -> None:
        average_fn = (
            get_ema_multi_avg_fn(spec.decay) if spec.kind == "ema" else get_swa_multi_avg_fn()
        )
        self.start_epoch, self.module = spec.from_epoch, model
        self.averaged_model = AveragedModel(model, multi_avg_fn=average_fn, use_buffers=True)

    def update(self, epoch: float) -> None:
        """Update the average with the weights after a step."""
        if epoch >= self.start_epoch:
            self.averaged_model.update_parameters(self.module)

    @property
    def evaluated_module(self) -> nn.Module:
        """The module to evaluate."""
        return self.averaged_model.module if int(self.averaged_model.n_averaged) else self.module

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint: the evaluated weights, and those that training resumes with."""
        return {
            "model": self.evaluated_module.state_dict(),
            "raw": self.module.state_dict(),
            "averaged": int(self.averaged_model.n_averaged),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["raw"])
        self.averaged_model.module.load_state_dict(state["model"])
        self.averaged_model.n_averaged.fill_(state["averaged"])
