"""Who takes part in a race: our attacks, the bare passes, and the tools that are installed.

A racer gets a frozen network, images, labels and a threat, and returns adversarial images. All
PGD racers take 20 steps of a tenth of eps from a random start. Other tools get 256 images at a
time; ours get all of them and hold no more than about that many in a batch.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.attacks.call import How, create_attack, run_attack
from buttress.attacks.prepare import prepare
from buttress.registry import Registry
from buttress.threat import Threat

STEPS, STEP = 20, 0.1  # of PGD; the step in units of eps
BATCH = 256  # images that PGD attacks at once


@dataclass(frozen=True)
class Found:
    """What a racer brought back."""

    x_adv: Tensor
    passes: tuple[float, float] | None = None  # forward and backward per image, if it counts them
    preparing: float = 0.0  # seconds before the attack itself


Racer = Callable[[nn.Module, Tensor, Tensor, Threat], Found]
RACERS: Registry[Racer] = Registry("racer")


def _in_batches(racer: Racer) -> Racer:
    """A racer that is called for each batch of a data set, as a loader gives them."""

    @functools.wraps(racer)
    def whole(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Found:
        batches = zip(x.split(BATCH), y.split(BATCH), strict=True)
        return Found(torch.cat([racer(model, *batch, threat).x_adv for batch in batches]))

    return whole


def installed(event: str) -> list[str]:
    """The racers of an event whose package is here."""
    return [
        entry.name
        for entry in RACERS
        if event in entry.tags and importlib.util.find_spec(entry.extra["package"])
    ]


@RACERS.register("bare passes", tags=("pgd",), package="torch")
@_in_batches
def bare(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Found:
    """The passes of our PGD-20 and nothing else."""
    for _ in range(STEPS):
        point = x.detach().requires_grad_(True)
        torch.autograd.grad(F.cross_entropy(model(point), y, reduction="sum"), point)
    with torch.no_grad():
        model(x)
        model(x)
    return Found(x)


def _ours(name: str, how: How, *, is_prepared: bool = True, **args: object) -> Racer:
    """An attack of ours, in float32 as all are; the time of preparing counts."""

    def racer(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Found:
        if how.workers is not None:
            torch.set_num_threads(1)
        here, started = how, time.perf_counter()
        if is_prepared:
            ready = prepare(model, x[:BATCH])
            ready.stay_in_float32()
            here = replace(how, prepared=ready)
        preparing = time.perf_counter() - started if is_prepared else 0.0
        out = run_attack(create_attack(name, **args), model, x, y, threat, how=here)
        counts = [float(c.double().mean()) for c in (out.meter.forward, out.meter.backward)]
        return Found(out.x_adv, (counts[0], counts[1]), preparing)

    return racer


DROP = How(stop_when_broken=True)
RACERS.register("buttress pgd", tags=("pgd",), package="buttress")(
    _ours("pgd", How(), is_prepared=False, steps=STEPS, rel_step=STEP)
)
RACERS.register("buttress pgd, prepared", tags=("pgd",), package="buttress")(
    _ours("pgd", How(), steps=STEPS, rel_step=STEP)
)
RACERS.register("buttress autoattack", tags=("autoattack",), package="buttress")(
    _ours("autoattack", DROP)
)
RACERS.register("buttress fast", tags=("autoattack",), package="buttress")(_ours("fast", DROP))


for count in (1, 2):
    RACERS.register(
        f"buttress, {count} process{'es' * (count > 1)} of one thread",
        tags=("workers",),
        package="buttress",
    )(_ours("autoattack", replace(DROP, workers=count), steps=40, queries=2000))


@RACERS.register("pyautoattack", tags=("autoattack",), package="pyautoattack")
def pyautoattack(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Found:
    from pyautoattack import AutoAttack

    attack = AutoAttack(model, norm=threat.norm, eps=threat.eps, version="standard", seed=0)
    found = attack.run_standard_evaluation(x, y)
    return Found(found[0] if isinstance(found, tuple) else found)


@RACERS.register("torchattacks", tags=("pgd",), package="torchattacks")
@_in_batches
def torchattacks(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Found:
    import torchattacks

    eps = threat.eps
    return Found(torchattacks.PGD(model, eps, STEP * eps, STEPS, random_start=True)(x, y))


@RACERS.register("foolbox", tags=("pgd",), package="foolbox")
@_in_batches
def foolbox(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Found:
    from foolbox import PyTorchModel
    from foolbox.attacks import LinfPGD

    wrapped = PyTorchModel(model, bounds=(0, 1), device=x.device)
    attack = LinfPGD(steps=STEPS, rel_stepsize=STEP)
    _, clipped, _ = attack(wrapped, x, y, epsilons=[threat.eps])
    return Found(clipped[0])


@RACERS.register("ART", tags=("pgd",), package="art")
@_in_batches
def art(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Found:
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    with torch.no_grad():
        classes = model(x[:1]).shape[1]
    wrapped = PyTorchClassifier(
        model, nn.CrossEntropyLoss(), tuple(x.shape[1:]), classes, clip_values=(0, 1)
    )
    attack = ProjectedGradientDescentPyTorch(
        wrapped,
        eps=threat.eps,
        eps_step=STEP * threat.eps,
        max_iter=STEPS,
        num_random_init=1,
        batch_size=len(x),
        verbose=False,
    )
    return Found(torch.from_numpy(attack.generate(x.numpy(), y.numpy())))


@RACERS.register("adv-lib", tags=("pgd",), package="adv_lib")
@_in_batches
def adv_lib(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Found:
    if "visdom" not in sys.modules and importlib.util.find_spec("visdom") is None:
        # It is for plots only, which nobody asks for here.
        stub = types.ModuleType("visdom")
        stub.Visdom = object  # type: ignore[attr-defined]
        sys.modules["visdom"] = stub
    from adv_lib.attacks import pgd_linf

    found = pgd_linf(
        model, x, y, threat.eps, steps=STEPS, random_init=True, restarts=1, relative_step_size=STEP
    )
    return Found(found)
