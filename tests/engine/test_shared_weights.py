"""Forms that share the weights of a model in training compute the same, and its gradients too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.engine.rewrites import ClassTokenBlock, StridedConv
from buttress.engine.shared_weights import (
    AffineNorm,
    CenterTapConv,
    DistinctTokenAttention,
    FoldedConv,
    attack_form,
    training_form,
)
from buttress.models import create_model
from buttress.models.eval_mode import eval_mode


def perturbed_model(name: str) -> nn.Module:
    """A model in float64 with random BatchNorm statistics and no parameter at zero."""
    model = create_model(name, num_classes=10, image_size=32, seed=0).double()
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 1.5)
    return model


def refresh(form: nn.Module) -> nn.Module:
    layers: list[Any] = list(form.modules())
    for layer in reversed(layers):
        if hasattr(layer, "refresh"):
            layer.refresh()
    return form


FORMS = [
    ("resnet_tiny", FoldedConv), ("wrn_mini", AffineNorm), ("coatnet_cctt_mini", FoldedConv),
    ("coatnet_cctt_mini", AffineNorm), ("vit_tiny", ClassTokenBlock),
    ("pvt_v2_mini", DistinctTokenAttention), ("pvt_v2_mini", CenterTapConv),
]  # fmt: skip


@pytest.mark.parametrize(("name", "layer"), FORMS)
def test_the_attack_form_has_the_logits_and_input_gradients(name: str, layer: type) -> None:
    model = perturbed_model(name)
    x = torch.rand(3, 3, 32, 32, dtype=torch.float64)
    with eval_mode(model):
        form = refresh(attack_form(model, x))
        assert any(isinstance(m, layer) for m in form.modules())
        assert not any(isinstance(m, layer) for m in model.modules()), "the model is left alone"
        outputs = [_logits_and_gradient(m, x) for m in (model, form)]
    torch.testing.assert_close(outputs[1], outputs[0])


def test_the_stem_has_a_strided_gradient_and_its_batchnorm_folded() -> None:
    model = create_model("wrn_mini", num_classes=10, image_size=32, seed=0)
    x = torch.rand(3, 3, 32, 32)
    with eval_mode(model):
        form = attack_form(model, x)
        strided = [m for m in form.modules() if isinstance(m, StridedConv)]
        assert any(isinstance(m.conv, FoldedConv) for m in strided)
        with torch.no_grad():
            next(model.parameters()).mul_(2)
        outputs = [_logits_and_gradient(m, x) for m in (model, refresh(form))]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["wrn_mini", "vit_tiny", "pvt_v2_mini"])
def test_the_attack_form_runs_in_half_precision(name: str) -> None:
    model = create_model(name, num_classes=10, image_size=32, seed=0)
    x = torch.rand(3, 3, 32, 32)
    with eval_mode(model), torch.autocast("cpu", torch.bfloat16):
        form = refresh(attack_form(model, x))
        (logits, gradient), (expected, _) = (_logits_and_gradient(m, x) for m in (form, model))
    assert gradient.dtype == torch.float32
    torch.testing.assert_close(logits.float(), expected.float(), rtol=0.1, atol=0.02)


def _logits_and_gradient(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    point = x.clone().requires_grad_(True)
    logits = model(point)
    return logits.detach(), torch.autograd.grad(logits.square().sum(), point)[0]


@pytest.mark.parametrize("name", ["vit_tiny", "deit_tiny", "pvt_v2_mini", "pvt_v2_tiny"])
def test_the_training_form_has_the_gradients_of_the_weights(name: str) -> None:
    model = perturbed_model(name).train()
    x, y = torch.rand(3, 3, 32, 32, dtype=torch.float64), torch.tensor([1, 2, 3])
    grads = []
    for form in (model, training_form(model).train()):
        model.zero_grad()
        F.cross_entropy(form(x), y).backward()
        grads.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(grads[1], grads[0])


def test_stochastic_depth_of_a_shortened_block_draws_the_same() -> None:
    model = create_model("vit_tiny", num_classes=10, image_size=32, seed=0).train()
    from timm.layers import DropPath

    for module in model.modules():
        if hasattr(module, "drop_path1"):
            module.drop_path1, module.drop_path2 = DropPath(0.5), DropPath(0.5)
    form = training_form(model).train()
    assert any(isinstance(m, ClassTokenBlock) for m in form.modules())
    x, outputs = torch.rand(8, 3, 32, 32), []
    for m in (model, form):
        torch.manual_seed(0)
        outputs.append(m(x))
    torch.testing.assert_close(outputs[1], outputs[0])


def test_dropout_keeps_the_last_block() -> None:
    model = create_model("vit_tiny", num_classes=10, image_size=32, seed=0).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1
    assert training_form(model) is model


def test_a_model_that_nothing_applies_to_is_its_own_training_form() -> None:
    model = create_model("resnet_tiny", num_classes=10, image_size=32, seed=0)
    assert training_form(model) is model
