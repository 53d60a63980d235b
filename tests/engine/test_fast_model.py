"""The inference-optimized model has the outputs of the original; nothing false counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import buttress as bt
from buttress.attacks.core import create_attack
from buttress.engine import fast_model as fast_models
from buttress.engine.fast_model import FastModel
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.engine.shared_weights import FoldedConv
from buttress.models import MODELS, create_model
from buttress.models.eval_mode import eval_mode
from buttress.threats.norm_ball import NormBall
from conftest import images, small_net

TINY = [name for name in MODELS.names() if name.endswith("_tiny")]
QUICK = ("resnet_tiny", "vgg_tiny", "vit_tiny", "swin_tiny", "coatnet_tiny", "xcit_tiny")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in TINY],
)
def test_every_family_keeps_its_outputs(name: str) -> None:
    model = bt.create_model(name, num_classes=10, image_size=32).eval()
    x = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    fast_model = FastModel.select(model, x)
    fast_model.optimize_forward()
    more = torch.rand(7, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(fast_model.module(more), model(more), rtol=1e-3, atol=1e-4)
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert len(fast_model.notes) == 5


def test_batch_normalization_is_folded() -> None:
    norm: Any = nn.BatchNorm2d(4)
    norm.running_mean.uniform_()
    net = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Flatten(), nn.Linear(144, 10))
    fast_model = FastModel.select(net.train(), images(8)[0])
    assert net.training
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fast_model.module.modules())
    assert fast_model.notes[0] == "BatchNorm folded"


def test_a_rewrite_that_fails_says_why() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_net()

        def forward(self, x: Tensor) -> Tensor:
            if float(x.detach().sum()) < 0:  # no trace can follow this
                return x.flatten(1)
            return self.inner(x)

    fast_model = FastModel.select(Stubborn().eval(), images(8)[0])
    fast_model.optimize_forward()
    assert any("BatchNorm folded: not used, " in note for note in fast_model.notes)


def test_randomised_networks_are_used_as_they_are() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_net()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + torch.randn(len(x), 10)

    model = Noisy().eval()
    fast_model = FastModel.select(model, images(8)[0])
    fast_model.optimize_forward()
    assert fast_model.module is model
    assert any("differ" in note for note in fast_model.notes)


class Shifted(nn.Module):
    """Almost the model: it finds successes that the model denies, and misses some."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.shift = torch.linspace(-0.03, 0.03, 10, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.shift


def test_no_false_success_counts_and_what_is_denied_is_searched_again() -> None:
    model, (x, _) = small_net().double(), images(24)
    x = x.double()
    y = model(x).argmax(1)
    fast_model = FastModel(Shifted(model))
    threat = NormBall("Linf", 0.01)
    args = {"steps": 5, "loss": "margin"}
    plain = run_attack(create_attack("pgd", **args), model, x, y, threat)
    options = AttackOptions(fast_model=fast_model)
    result = run_attack(create_attack("pgd", **args), model, x, y, threat, options=options)
    with torch.no_grad():
        assert torch.equal(model(result.x_adv).argmax(1) != y, result.fooled)
    assert result.counter.forward.sum() > plain.counter.forward.sum()


def test_torch_compile_is_used_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, **_: nn.Sequential(model))
    x = images(8)[0]
    assert not any("compile" in note for note in FastModel.select(small_net(), x).notes)
    fast_model = FastModel.select(small_net(), x, compile=True)
    assert fast_model.notes[-1] == "torch.compile"
    assert isinstance(fast_model.module, nn.Sequential)
    assert len(fast_model.module) == 1


@pytest.mark.parametrize(("name", "args"), [("square", {"queries": 5}), ("pgd", {"steps": 2})])
def test_forward_passes_are_optimized_when_an_attack_has_many(
    name: str, args: dict[str, int]
) -> None:
    model, (x, y) = small_net(), images(8)
    fast_model = FastModel.select(model, x)
    before = fast_model.module
    assert not any("frozen forward" in note for note in fast_model.notes)
    for _ in range(2):  # once for all attacks
        run_attack(
            create_attack(name, **args),
            model,
            x,
            y,
            NormBall("Linf", 0.01),
            options=AttackOptions(fast_model=fast_model),
        )
        assert sum("frozen forward" in note for note in fast_model.notes) == (name == "square")
        assert (fast_model.module is before) == (name == "pgd")


def test_a_form_with_other_gradients_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits alone do not show it: an attack would follow a wrong gradient."""

    class Cut(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.detach() + 0.5 * (x - x.detach()))

    monkeypatch.setattr(fast_models, "REWRITES", (("cut", lambda model, x: Cut(model)),))
    model = small_net()
    fast_model = FastModel.select(model, images(8)[0])
    assert fast_model.module is model
    assert "its gradients differ" in fast_model.notes[0]


@pytest.mark.parametrize("name", ["resnet_tiny", "wrn_tiny", "vit_tiny", "mobilevit_tiny"])
def test_a_form_that_shares_weights_follows_them(name: str) -> None:
    model = create_model(name, num_classes=10, image_size=32, seed=0).train()
    x = torch.rand(4, 3, 32, 32)
    fast_model = FastModel.share_weights(model, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        model.train()
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        with eval_mode(model), torch.no_grad():
            expected, logits = model(x), fast_model.refresh()(x)
        assert (expected - logits).norm() <= 1e-4 * expected.norm()
    assert all(p.requires_grad for p in model.parameters())
    assert len(list(model.parameters())) == len({id(p) for p in model.parameters()})


def test_batchnorm_behind_a_convolution_is_folded() -> None:
    model = small_net()
    fast_model = FastModel.share_weights(model, torch.rand(2, 3, 8, 8))
    assert sum(isinstance(m, FoldedConv) for m in fast_model.module.modules()) == 1
    assert not any(isinstance(m, FoldedConv) for m in model.modules()), "the model is left alone"


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) if x.mean() > 0 else self.net(-x)


def test_a_model_without_a_graph_is_folded_inside_its_sequences() -> None:
    model = Branching()
    fast_model = FastModel.share_weights(model, torch.rand(2, 3, 8, 8))
    assert sum(isinstance(m, FoldedConv) for m in fast_model.module.modules()) == 1
    for x in (torch.rand(2, 3, 8, 8), -torch.rand(2, 3, 8, 8)):
        with eval_mode(model), torch.no_grad():
            torch.testing.assert_close(fast_model.refresh()(x), model(x))
