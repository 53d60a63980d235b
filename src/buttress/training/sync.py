"""BatchNorm over all processes. torch has one for CUDA only; this one serves processors too."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce


class SyncedBatchNorm(nn.BatchNorm2d):
    """Statistics of the whole batch, of which each process holds a part."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        count = x.new_tensor([x.numel() / x.shape[1]])
        sums = torch.cat([x.sum((0, 2, 3)), x.square().sum((0, 2, 3)), count])
        sums = all_reduce(sums)
        total, squares, n = sums[: x.shape[1]], sums[x.shape[1] : -1], sums[-1]
        mean = total / n
        var = (squares / n - mean.square()).clamp_min(0)
        self._remember(mean.detach(), (var * n / (n - 1).clamp_min(1)).detach())
        scale = (var + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        return torch.addcmul(shift.view(1, -1, 1, 1), x, scale.view(1, -1, 1, 1))

    def _remember(self, mean: Tensor, var: Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = self.momentum or 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(var, share)


def synchronise(model: nn.Module, is_cuda: bool) -> nn.Module:
    """The same model with BatchNorm over all processes; its parameters stay the same tensors."""
    if is_cuda:
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for name, norm in list(model.named_modules()):
        if type(norm) is nn.BatchNorm2d:
            new = SyncedBatchNorm(norm.num_features, norm.eps, norm.momentum, norm.affine)
            new.__dict__.update(norm.__dict__)
            model.set_submodule(name, new)
    return model
