"""A prepared network answers like the original or is dropped; nothing false counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import buttress as bt
from buttress.attacks.core import create_attack
from buttress.engine import fast_model as preparing
from buttress.engine.fast_model import FastModel, prepare
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.models import MODELS
from buttress.threats.norm_ball import Threat
from conftest import images, small_net

TINY = [name for name in MODELS.names() if name.endswith("_tiny")]
QUICK = ("resnet_tiny", "vgg_tiny", "vit_tiny", "swin_tiny", "coatnet_tiny", "xcit_tiny")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in TINY],
)
def test_every_family_is_prepared_without_another_answer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "MAX_TIME_RATIO", 100.0)  # whatever can be done is done
    model = bt.create_model(name, num_classes=10, image_size=32).eval()
    x = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    ready = prepare(model, x)
    ready.optimize_forward()
    more = torch.rand(7, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ready.module(more), model(more), rtol=1e-3, atol=1e-4)
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert len(ready.notes) >= 2


def test_batch_normalisation_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "MAX_TIME_RATIO", 100.0)
    norm: Any = nn.BatchNorm2d(4)
    norm.running_mean.uniform_()
    net = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Flatten(), nn.Linear(144, 10))
    ready = prepare(net.train(), images(8)[0])
    assert net.training
    assert not any(isinstance(m, nn.BatchNorm2d) for m in ready.module.modules())
    assert "BatchNorm folded" in ready.notes[0]


def test_what_cannot_be_prepared_says_why() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_net()

        def forward(self, x: Tensor) -> Tensor:
            if float(x.detach().sum()) < 0:  # no trace can follow this
                return x.flatten(1)
            return self.inner(x)

    ready = prepare(Stubborn().eval(), images(8)[0])
    ready.optimize_forward()
    assert any("BatchNorm folded: not used, " in note for note in ready.notes)


def test_randomised_networks_are_used_as_they_are() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_net()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + torch.randn(len(x), 10)

    model = Noisy().eval()
    ready = prepare(model, images(8)[0])
    ready.optimize_forward()
    assert ready.module is model
    assert any("differ" in note for note in ready.notes)


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
    wrong = Shifted(model)
    ready = FastModel(wrong)
    threat = Threat("Linf", 0.01)
    args = {"steps": 5, "loss": "margin"}
    plain = run_attack(create_attack("pgd", **args), model, x, y, threat)
    found = run_attack(
        create_attack("pgd", **args), model, x, y, threat, options=AttackOptions(fast_model=ready)
    )
    with torch.no_grad():
        assert torch.equal(model(found.x_adv).argmax(1) != y, found.fooled)
    assert found.counter.forward.sum() > plain.counter.forward.sum()


def test_torch_compile_is_tried_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "MAX_TIME_RATIO", 100.0)
    monkeypatch.setattr(torch, "compile", lambda model, **_: nn.Sequential(model))
    x = images(8)[0]
    assert not any("compiled" in note for note in prepare(small_net(), x).notes)
    ready = prepare(small_net(), x, compile=True)
    assert any(note.startswith("compiled: ") for note in ready.notes)
    assert isinstance(ready.module, nn.Sequential)
    assert len(ready.module) == 1


@pytest.mark.parametrize(("name", "args"), [("square", {"queries": 5}), ("pgd", {"steps": 2})])
def test_the_form_for_queries_is_made_when_they_come(
    name: str, args: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "MAX_TIME_RATIO", 100.0)
    model, (x, y) = small_net(), images(8)
    ready = prepare(model, x)
    before = ready.module
    assert not any("frozen forward" in note for note in ready.notes)
    for _ in range(2):  # the second attack finds it made
        run_attack(
            create_attack(name, **args),
            model,
            x,
            y,
            Threat("Linf", 0.01),
            options=AttackOptions(fast_model=ready),
        )
        count = sum("frozen forward" in note for note in ready.notes)
        assert count == (name == "square")
        assert (ready.module is before) == (name == "pgd")
    assert sum("busy with" in note for note in ready.notes) == 1


def test_a_form_with_other_gradients_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits alone do not show it: an attack would climb the wrong slope."""

    class Cut(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.detach() + 0.5 * (x - x.detach()))

    form = preparing.RewriteOption("cut", lambda model, x: Cut(model))
    monkeypatch.setattr(preparing, "REWRITE_OPTIONS", (form,))
    monkeypatch.setattr(preparing, "MAX_TIME_RATIO", 100.0)
    model = small_net()
    ready = prepare(model, images(8)[0])
    assert ready.module is model
    assert "its gradients differ" in ready.notes[0]
