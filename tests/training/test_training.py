"""Objectives, schedules, recipes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from buttress.errors import UserError
from buttress.models.loading.checkpoint import load_checkpoint
from buttress.results.run_spec import LRScheduleSpec, OptimizerSpec, WeightAveragingSpec
from buttress.system.rng import SampleRNG
from buttress.threats.norm_ball import NormBall
from buttress.training import OBJECTIVES, load_recipe, train
from buttress.training.averaging import AveragedWeights
from buttress.training.loop import Trainer, weight_l1_norm
from buttress.training.objectives import TrainingBatch
from buttress.training.schedules import build_optimizer, learning_rate_factor
from conftest import images, small_net, taken


def a_step(n: int = 16) -> TrainingBatch:
    x, y = images(n)
    return TrainingBatch(x, y, NormBall("Linf", 0.05), SampleRNG(0, "train", torch.arange(n)))


def test_standard_is_cross_entropy() -> None:
    model, step = small_net(), a_step()
    loss = taken(OBJECTIVES.create("standard", {}), model, step)
    torch.testing.assert_close(loss.loss, F.cross_entropy(model(step.x), step.y))


def test_pgd_at_trains_on_worse_images_inside_the_ball() -> None:
    seen: list[torch.Tensor] = []

    class Watch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.detach().clone())
            return self.net(x)

    model, step = Watch(), a_step()
    loss = taken(OBJECTIVES.create("pgd_at", {"steps": 3}), model, step)
    assert len(seen) == 4  # three attack passes and the training pass
    assert float((seen[-1] - step.x).abs().max()) <= 0.05 + 1e-6
    assert loss.loss.item() > F.cross_entropy(model.net(step.x), step.y).item()


def test_schedules_go_through_known_points() -> None:
    cosine = LRScheduleSpec(
        name="cosine", warmup_epochs=2, warmup_start_factor=0.1, final_factor=0.01
    )
    assert learning_rate_factor(cosine, 0, 10) == pytest.approx(0.1)
    assert learning_rate_factor(cosine, 1, 10) == pytest.approx(0.55)
    assert learning_rate_factor(cosine, 2, 10) == pytest.approx(1.0)
    assert learning_rate_factor(cosine, 6, 10) == pytest.approx(0.01 + 0.99 * 0.5)
    assert learning_rate_factor(cosine, 10, 10) == pytest.approx(0.01)
    step = LRScheduleSpec(name="step", milestones=(75, 90), factor=0.1)
    factors = [learning_rate_factor(step, e, 100) for e in (0, 74.9, 75, 90)]
    assert factors == pytest.approx([1, 1, 0.1, 0.01])
    assert learning_rate_factor(LRScheduleSpec(name="constant"), 5, 10) == 1
    assert math.isfinite(learning_rate_factor(LRScheduleSpec(name="cosine", warmup_epochs=5), 5, 5))


def test_vectors_are_left_out_of_weight_decay_only_if_asked() -> None:
    model = small_net()
    spec = OptimizerSpec(name="adamw", lr=1e-3, weight_decay=0.5, decay_1d_parameters=False)
    groups = build_optimizer(model, spec).param_groups
    assert [g["weight_decay"] for g in groups] == [0.5, 0.0]
    assert all(p.ndim > 1 for p in groups[0]["params"])
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))
    everything = build_optimizer(model, OptimizerSpec(lr=0.1, weight_decay=5e-4)).param_groups
    assert [g["weight_decay"] for g in everything] == [5e-4]


def test_mistakes_in_recipes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"did you mean 'quickstart-at'"):
        load_recipe("quickstart-ta")
    with pytest.raises(
        UserError, match=r"unknown key 'optimizer.momentun', did you mean 'momentum'"
    ):
        load_recipe("quickstart-at", ("optimizer.momentun=0.9",))
    with pytest.raises(UserError, match=r"'optimiser': it is now `optimizer`"):
        load_recipe("quickstart-at", ("optimiser.lr=0.1",))
    with pytest.raises(UserError, match=r"'augmentation.crop': it is now `crop_padding`"):
        load_recipe("quickstart-at", ("augmentation.crop=2",))
    with pytest.raises(UserError, match=r"did you mean 'pgd_at'"):
        load_recipe("quickstart-at", ("objective.name=pgdat",))
    with pytest.raises(UserError, match="write 8/255 if"):
        load_recipe("quickstart-at", ("threat=Linf:8",))
    with pytest.raises(UserError, match="needs a threat"):
        load_recipe("quickstart-standard", ("objective=pgd_at",))
    with pytest.raises(UserError, match="unknown argument 'stepz'"):
        load_recipe("quickstart-at", ("objective.args={stepz: 3}",))
    (tmp_path / "broken.yaml").write_text("epochs: [1")
    with pytest.raises(UserError, match="not valid YAML"):
        load_recipe(tmp_path / "broken.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(UserError, match="must be a mapping"):
        load_recipe(tmp_path / "list.yaml")


def test_the_cyclic_rate_is_a_triangle_and_cooling_down_stays_low() -> None:
    cyclic = LRScheduleSpec(name="cyclic", peak_position=0.4)
    factors = [learning_rate_factor(cyclic, e, 10) for e in (0, 2, 4, 7, 10)]
    assert factors == pytest.approx([0, 0.5, 1, 0.5, 0])
    cool = LRScheduleSpec(name="cosine", final_factor=0.02, cooldown_epochs=10)
    assert learning_rate_factor(cool, 100, 110) == pytest.approx(0.02)
    assert learning_rate_factor(cool, 109.5, 110) == pytest.approx(0.02)
    assert learning_rate_factor(cool, 50, 110) == pytest.approx(0.51)


def test_smoothing_spreads_the_label_over_all_classes() -> None:
    model, step = small_net(), a_step()
    with torch.no_grad():
        logs = model(step.x).log_softmax(1)
    expected = -(0.9 * logs[torch.arange(16), step.y] + 0.1 * logs.mean(1)).mean()
    loss = taken(OBJECTIVES.create("standard", {}), model, replace(step, label_smoothing=0.1))
    torch.testing.assert_close(loss.loss.detach(), expected)


NET = """
from torch import nn
def net(num_classes=10):
    return nn.Sequential(nn.Conv2d(3, 4, 5, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(num_classes))
"""


def trained(tmp_path: Path, name: str, *changes: str) -> dict[str, torch.Tensor]:
    (tmp_path / "net.py").write_text(NET.replace("nn.LazyLinear(", "nn.Linear(4 * 49, "))
    base = ("epochs=1", "batch_size=48", "optimizer={name: sgd, lr: 0.1}", "validation={limit: 16}")
    run = train(
        f"{tmp_path}/net.py:net", "digits", "quickstart-standard", tmp_path / name, limit=192,
        overrides=(*base, *changes),
    )  # fmt: skip
    return load_checkpoint(run.checkpoint("last"))["model"]


def test_parts_of_a_batch_add_up_to_the_batch(tmp_path: Path) -> None:
    whole, parts = trained(tmp_path, "whole"), trained(tmp_path, "parts", "accumulation_steps=3")
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-4, atol=1e-6)


def test_l1_makes_weights_small_and_leaves_biases(tmp_path: Path) -> None:
    plain, sparse = trained(tmp_path, "plain"), trained(tmp_path, "sparse", "l1_weight=0.01")
    sizes = [
        sum(float(v.abs().sum()) for v in net.values() if v.ndim > 1) for net in (plain, sparse)
    ]
    assert sizes[1] < 0.95 * sizes[0]
    model = small_net()
    total = weight_l1_norm(model)
    assert float(total.detach()) == pytest.approx(
        sum(float(p.detach().abs().sum()) for p in model.parameters() if p.ndim > 1), rel=1e-5
    )


def test_eps_warms_up_along_a_line_or_a_sine() -> None:
    trainer = Trainer.__new__(Trainer)
    trainer.threat = NormBall("Linf", 0.08)
    shares = {}
    for kind in ("linear", "sine"):
        trainer.recipe = load_recipe(
            "quickstart-at",
            ("eps_zero_epochs=2", "eps_warmup_epochs=4", f"eps_warmup={kind}"),
        )
        found = [trainer._threat_at(e) for e in (0, 2, 3, 4, 6, 9)]
        shares[kind] = [t.eps / 0.08 for t in found if t is not None]
    assert shares["linear"] == pytest.approx([0, 0, 0.25, 0.5, 1, 1])
    low = (1 + math.sin(-math.pi / 4)) / 2
    assert shares["sine"] == pytest.approx([0, 0, low, 0.5, 1, 1])


def test_eps_can_start_late_without_a_warmup() -> None:
    trainer = Trainer.__new__(Trainer)
    trainer.threat = NormBall("Linf", 0.08)
    trainer.recipe = load_recipe("quickstart-at", ("eps_zero_epochs=2", "eps_warmup_epochs=0"))
    threats = [trainer._threat_at(epoch) for epoch in (0, 1.9, 2, 3)]
    assert [None if t is None else t.eps for t in threats] == [0, 0, 0.08, 0.08]


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_averaged_weights_are_the_mean_of_the_steps(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    averaged = AveragedWeights(model, WeightAveragingSpec(kind=kind, decay=0.9, from_epoch=1.0))
    steps = [torch.randn(2, 3) for _ in range(5)]
    expected = None
    for number, weight in enumerate(steps):
        with torch.no_grad():
            model.weight.copy_(weight)
        averaged.update(epoch=number / 2)  # the first two are before epoch 1
        if number < 2:
            assert averaged.evaluated_module is model
        elif expected is None:
            expected = weight.clone()
        else:
            new = 0.9 * expected + 0.1 * weight
            expected = new if kind == "ema" else (expected * (number - 2) + weight) / (number - 1)
    torch.testing.assert_close(averaged.evaluated_module.state_dict()["weight"], expected)


def test_a_run_keeps_averaged_weights_and_goes_on_with_its_own(tmp_path: Path) -> None:
    average = "weight_averaging={kind: ema, decay: 0.5}"
    whole = trained(tmp_path, "ema", average, "epochs=3")
    plain = trained(tmp_path, "raw", "epochs=3")
    assert not torch.equal(whole["net.0.weight"], plain["net.0.weight"])
    kept = load_checkpoint(tmp_path / "ema" / "last.pt")
    torch.testing.assert_close(kept["raw"]["net.0.weight"], plain["net.0.weight"])


def test_repeated_augmentation_takes_a_batch_as_it_is_and_then_augmented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    prepare = Trainer._prepare_batch

    def watch(self: Trainer, sampler: Any, shard: Any, *rest: Any) -> TrainingBatch:
        batch = prepare(self, sampler, shard, *rest)
        seen.append((sampler.load(shard.indices).x, batch.x))
        return batch

    monkeypatch.setattr(Trainer, "_prepare_batch", watch)
    trained(tmp_path, "run", "augmentation={crop_padding: 4}", "augmentation_repeats=3")
    assert len(seen) == 3 * 4
    for raw, first in seen[::3]:
        torch.testing.assert_close(first.float(), raw.float(), check_dtype=False)
    assert all(not torch.equal(seen[i][1], seen[i + 1][1]) for i in range(len(seen) - 1))
