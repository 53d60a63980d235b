"""Synchronized BatchNorm for CPUs; torch's own supports CUDA only."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm


class AllReduceSum(torch.autograd.Function):
    """The sum over processes; so is its gradient, because each of them has a loss of its own."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        total = x.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        total = grads[0].clone()
        distributed.all_reduce(total)
        return total


class CPUSyncBatchNorm(_BatchNorm):
    """Statistics of the whole batch, of which each process holds a part."""

    def forward(self, x: Tensor) -> Tensor:
        output = self._normalize(x) if self.training else _BatchNorm.forward(self, x)
        for attribute in ("drop", "act"):  # timm's BatchNorm brings its activation along
            output = getattr(self, attribute)(output) if hasattr(self, attribute) else output
        return output

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions, with the channels in the second."""

    def _normalize(self, x: Tensor) -> Tensor:
        reduced_dims = [d for d in range(x.ndim) if d != 1]
        shape = [1, -1, *[1] * (x.ndim - 2)]
        count = x.new_tensor([x.numel() / x.shape[1]])
        sums: Tensor = AllReduceSum.apply(torch.cat([x.sum(reduced_dims), count]))
        n = sums[-1].detach()
        mean = sums[:-1] / n
        centered = x - mean.view(shape)
        squares: Tensor = AllReduceSum.apply(centered.square().sum(reduced_dims))
        var = squares / n
        self._update_running_statistics(mean.detach(), var.detach() * n / (n - 1).clamp_min(1))
        scale = (var + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        output = centered * scale.view(shape)
        return output if self.bias is None else output + self.bias.view(shape)

    def _update_running_statistics(self, mean: Tensor, var: Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = self.momentum or 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(var, momentum)


def convert_sync_batchnorm(model: nn.Module, is_cuda: bool) -> nn.Module:
    """The same model with BatchNorm over all processes; its parameters stay the same tensors."""
    if is_cuda:
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for name, norm in list(model.named_modules()):
        if isinstance(norm, _BatchNorm):
            new = CPUSyncBatchNorm(norm.num_features, norm.eps, norm.momentum, norm.affine)
            new.__dict__.update(norm.__dict__)
            model.set_submodule(name, new)
    return model
