"""On an accelerator, attacks and objectives wait for the device at most a few times."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from buttress.attacks.core import create_attack
from buttress.engine.run import run_attack
from buttress.system.rng import SampleRNG
from buttress.threats.core import Threat
from buttress.training.objectives import OBJECTIVES
from buttress.training.objectives.core import TrainingBatch, example_args
from slow_device import DeviceTensor, SlowDevice, to_device


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5)
    ).eval()


def make_images() -> tuple[Tensor, Tensor]:
    x = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return x, make_model()(x).argmax(1)


def attack_on_device(name: str, threat: str, **args: Any) -> tuple[Tensor, SlowDevice]:
    x, y = make_images()
    with SlowDevice() as device:
        model = to_device(make_model())
        device.counts.clear()
        x_adv = run_attack(create_attack(name, **args), model, x, y, Threat.parse(threat)).x_adv
    return x_adv, device


# attack, threat model, name of the number of steps, waits per step
ATTACKS = [
    ("pgd", "Linf:0.003", "steps", 0.5),
    ("pgd", "L2:0.01", "steps", 1.5),
    ("pgd", "L1:0.02", "steps", 1.5),
    ("apgd-ce", "Linf:0.003", "steps", 0.5),
    ("apgd-t", "L2:0.01", "steps", 3.0),  # of four targets
    ("fab", "Linf:0.003", "steps", 6.0),  # two passes each; the projections are iterative
    ("square", "Linf:0.003", "queries", 0.5),
]


@pytest.mark.parametrize(("name", "threat", "steps", "limit"), ATTACKS)
def test_an_attack_waits_for_the_device_every_few_steps(
    name: str, threat: str, steps: str, limit: float
) -> None:
    few, many = 8, 20
    short, device = attack_on_device(name, threat, **{steps: few})
    _, long_device = attack_on_device(name, threat, **{steps: many})
    x, y = make_images()
    on_cpu = run_attack(
        create_attack(name, **{steps: few}), make_model(), x, y, Threat.parse(threat)
    )

    assert (long_device.stalls - device.stalls) / (many - few) <= limit, long_device.counts
    assert torch.allclose(short, on_cpu.x_adv, atol=1e-5)  # the same examples as on a CPU


def test_the_fast_ensemble_waits_at_most_once_per_pass() -> None:
    _, device = attack_on_device("fast", "Linf:0.003")
    x, y = make_images()
    passes = run_attack(create_attack("fast"), make_model(), x, y, Threat.parse("Linf:0.003"))
    assert device.stalls <= int(passes.counter.forward.max()), device.counts


@pytest.mark.parametrize("name", OBJECTIVES.names())
def test_a_training_step_reads_nothing_back(name: str) -> None:
    objective = OBJECTIVES.create(name, example_args(name))
    x, y = make_images()
    with SlowDevice() as device:
        model = to_device(make_model().train())
        batch = TrainingBatch(
            DeviceTensor(x), DeviceTensor(y), Threat.parse("Linf:0.03"),
            SampleRNG(0, "train", torch.arange(6)), batch_positions=torch.arange(6),
        )  # fmt: skip
        device.counts.clear()
        objective.loss(model, batch, objective.find_adversarial(model, batch)).loss.backward()
    reads = {k: n for k, n in device.counts.items() if not k.startswith("copy: to device")}
    # Projections on L1 and L2 balls are iterative; all others read nothing.
    assert sum(reads.values()) <= (25 if name == "multi_norm" else 0), reads
    assert device.stalls - sum(reads.values()) <= 5, device.counts  # noise of random starts


def test_the_made_up_device_counts_what_stalls_a_real_one() -> None:
    with SlowDevice() as device:
        x = DeviceTensor(torch.tensor([1.0, 2.0, 3.0]))
        total = (x * 2).sum() + x.max()
        assert device.stalls == 0
        _ = float(total), bool(x[0] > 0), x.tolist(), x[x > 1], x.nonzero(), x.cpu()
        x[x > 1] = 0.0
    assert device.stalls >= 7, device.counts
