"""BatchNorm over all processes. torch has one for CUDA only; this one serves processors too."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Sum(torch.autograd.Function):
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


class Synced(_BatchNorm):
    """Statistics of the whole batch, of which each process holds a part."""

    def forward(self, x: Tensor) -> Tensor:
        found = self._normalised(x) if self.training else _BatchNorm.forward(self, x)
        for after in ("drop", "act"):  # timm's BatchNorm brings its activation along
            found = getattr(self, after)(found) if hasattr(self, after) else found
        return found

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions, with the channels in the second."""

    def _normalised(self, x: Tensor) -> Tensor:
        others = [d for d in range(x.ndim) if d != 1]
        shape = [1, -1, *[1] * (x.ndim - 2)]
        count = x.new_tensor([x.numel() / x.shape[1]])
        sums: Tensor = _Sum.apply(torch.cat([x.sum(others), count]))
        n = sums[-1].detach()
        mean = sums[:-1] / n
        centred = x - mean.view(shape)
        squares: Tensor = _Sum.apply(centred.square().sum(others))
        var = squares / n
        self._remember(mean.detach(), var.detach() * n / (n - 1).clamp_min(1))
        scale = (var + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        found = centred * scale.view(shape)
        return found if self.bias is None else found + self.bias.view(shape)

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
        if isinstance(norm, _BatchNorm):
            new = Synced(norm.num_features, norm.eps, norm.momentum, norm.affine)
            new.__dict__.update(norm.__dict__)
            model.set_submodule(name, new)
    return model
