"""LeViT: biases of attention are those of the weights, in every mode."""

from __future__ import annotations

import copy

import pytest
import torch
from timm.models.levit import AttentionDownsample, Levit
from torch import nn

from buttress.models import create_model, network_blocks


@pytest.fixture
def model() -> nn.Module:
    """In eval mode, with statistics of a batch: without any, the signal fades on its way."""
    net = create_model("levit_tiny", seed=0)
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.momentum = 1.0
    net(torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    return net.eval()


def test_new_biases_hold_at_once_in_eval_mode(model: nn.Module) -> None:
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        before = model(x)
        for name, parameter in model.named_parameters():
            if name.endswith("attention_biases"):
                parameter.copy_(torch.randn(parameter.shape, generator=torch.manual_seed(0)))
        assert not torch.allclose(model(x), before)


def test_gradients_reach_the_biases_in_every_pass_in_eval_mode(model: nn.Module) -> None:
    x = torch.rand(2, 3, 32, 32)
    for _ in range(2):
        model.zero_grad()
        model(x).square().sum().backward()
        for name, parameter in model.named_parameters():
            if name.endswith("attention_biases"):
                assert parameter.grad is not None
                assert parameter.grad.abs().max() > 0
    copy.deepcopy(model)


def test_it_computes_what_timm_computes() -> None:
    ours = create_model("levit", image_size=80, seed=0).net.eval()
    theirs = Levit(
        img_size=80,
        num_classes=10,
        embed_dim=(128, 256, 384),
        key_dim=16,
        depth=(2, 3, 4),
        num_heads=(4, 6, 8),
    ).eval()
    theirs.load_state_dict(ours.state_dict())
    x = torch.rand(1, 3, 80, 80)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))


def test_shrinking_attention_is_a_block_of_the_stage_it_opens() -> None:
    parts = network_blocks(create_model("levit_mini", seed=0))
    assert [part.stage for part in parts] == [0, 1, 1, 1, 2, 2, 2]
    shrinks = [any(isinstance(m, AttentionDownsample) for m in p.module.modules()) for p in parts]
    assert shrinks == [False, True, False, False, True, False, False]


def test_the_published_activation_is_a_choice_too() -> None:
    kinds = {
        activation: create_model("levit_tiny", options={"activation": activation}, seed=0)
        for activation in ("hard_swish", "silu")
    }
    assert any(isinstance(m, nn.Hardswish) for m in kinds["hard_swish"].modules())
    assert not any(isinstance(m, nn.Hardswish) for m in kinds["silu"].modules())
