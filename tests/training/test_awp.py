"""Adversarial weight perturbation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from buttress.training.awp import perturbed_weights
from conftest import Linear, images, small_net


def test_weights_move_by_a_share_of_their_norm_along_the_gradient_and_back() -> None:
    model = Linear(3 * 8 * 8, 10).double()
    x, y = images(8)
    x = x.double()
    w = model.weight.detach().clone()
    p = (x.flatten(1) @ w.T + model.bias).softmax(1) - F.one_hot(y, 10)
    slope = p.detach().T @ x.flatten(1)  # of the summed cross-entropy
    expected = w + 0.01 * w.norm() * slope / slope.norm()

    def loss() -> Tensor:
        return F.cross_entropy(model(x), y, reduction="sum")

    with perturbed_weights(model, loss, 0.01, lambda grad: grad):
        torch.testing.assert_close(model.weight.detach(), expected)
        assert not model.bias.any(), "tensors of one dimension stay"
        assert model.weight.grad is None
        with torch.no_grad():
            model.weight.add_(1.0)  # a step taken inside is kept
    torch.testing.assert_close(model.weight.detach(), w + 1)


def test_statistics_of_batchnorm_stay_while_the_gradient_is_computed() -> None:
    model = small_net().train()
    x, y = images(8)
    before = {k: v.clone() for k, v in model.state_dict().items() if "running" in k}

    def loss() -> Tensor:
        return F.cross_entropy(model(x), y)

    with perturbed_weights(model, loss, 0.1, lambda grad: grad):
        after = model.state_dict()
        assert all(torch.equal(after[k], v) for k, v in before.items())
    norm: Any = model[1]
    assert int(norm.num_batches_tracked) == 0
    model(x)
    assert int(norm.num_batches_tracked) == 1, "it remembers again"


def test_a_failure_inside_puts_the_weights_back() -> None:
    model = Linear(3 * 8 * 8, 10)
    x, y = images(4)
    before = model.weight.detach().clone()
    with (
        pytest.raises(KeyError),
        perturbed_weights(model, lambda: F.cross_entropy(model(x), y), 0.1, lambda grad: grad),
    ):
        raise KeyError
    torch.testing.assert_close(model.weight.detach(), before)
