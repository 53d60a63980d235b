"""Tools of the attack benchmarks: our attacks, bare passes, and installed packages.

A tool gets a frozen model, images, labels and a threat model, and returns adversarial images. All
PGD tools take 20 steps of a tenth of eps from a random start. Other tools get 256 images at a time;
ours get all of them and hold no more than about that many in a batch.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.attacks.core import create_attack
from buttress.engine.cost import attack_passes
from buttress.engine.fast_model import FastModel
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.registry import Registry
from buttress.threats.norm_ball import NormBall

STEPS, REL_STEP = 20, 0.1  # of PGD; the step in units of eps
BATCH = 256  # images that PGD attacks at once
NUM_CLASSES = 10  # to predict the passes of an attack
NORMS = ("Linf", "L2", "L1")
STOP_WHEN_FOOLED = AttackOptions(stop_when_fooled=True)


@dataclass(frozen=True)
class ToolOutput:
    x_adv: Tensor
    passes: tuple[float, float] | None = None  # forward and backward per image, if it counts them
    setup_seconds: float = 0.0  # seconds before the attack itself


Tool = Callable[[nn.Module, Tensor, Tensor, NormBall], ToolOutput]
TOOLS: Registry[Tool] = Registry("tool")


def _call_per_batch(tool: Tool) -> Tool:
    """Wrap a tool that is called once per batch."""

    @functools.wraps(tool)
    def run_batches(model: nn.Module, x: Tensor, y: Tensor, threat: NormBall) -> ToolOutput:
        batches = zip(x.split(BATCH), y.split(BATCH), strict=True)
        return ToolOutput(torch.cat([tool(model, *batch, threat).x_adv for batch in batches]))

    return run_batches


def installed_tools(benchmark: str, norm: str = "Linf") -> list[str]:
    """Tools of a benchmark for a norm whose package is installed."""
    return [
        entry.name
        for entry in TOOLS
        if benchmark in entry.tags
        and norm in entry.metadata.get("norms", (norm,))
        and importlib.util.find_spec(entry.metadata["package"])
    ]


@TOOLS.register("bare passes", tags=("pgd",), package="torch")
@_call_per_batch
def bare_passes(model: nn.Module, x: Tensor, y: Tensor, threat: NormBall) -> ToolOutput:
    """The forward and backward passes of our PGD-20, and nothing else."""
    for _ in range(STEPS):
        point = x.detach().requires_grad_(True)
        torch.autograd.grad(F.cross_entropy(model(point), y, reduction="sum"), point)
    with torch.no_grad():
        model(x)
        model(x)
    return ToolOutput(x)


def _register_buttress(
    tool_name: str,
    benchmark: str,
    attack: str,
    options: AttackOptions = STOP_WHEN_FOOLED,
    *,
    use_fast_model: bool = True,
    norms: tuple[str, ...] = NORMS,
    **args: object,
) -> None:
    """Register an attack of ours; the time of building the inference-optimized model counts."""
    workers = options.workers

    @TOOLS.register(tool_name, tags=(benchmark,), package="buttress", norms=norms, workers=workers)
    def tool(model: nn.Module, x: Tensor, y: Tensor, threat: NormBall) -> ToolOutput:
        if workers is not None:
            torch.set_num_threads(1)
        run_options, started = options, time.perf_counter()
        configured = create_attack(attack, **args)
        if use_fast_model:
            passes = attack_passes(configured, threat, NUM_CLASSES, expected=True).macs()
            fast_model = FastModel.select(model, x[:BATCH], images=len(x), passes=passes)
            run_options = replace(options, fast_model=fast_model)
        setup_seconds = time.perf_counter() - started if use_fast_model else 0.0
        out = run_attack(configured, model, x, y, threat, options=run_options)
        counts = [float(c.double().mean()) for c in (out.counter.forward, out.counter.backward)]
        return ToolOutput(out.x_adv, (counts[0], counts[1]), setup_seconds)


for name, use_fast_model in (("buttress pgd", False), ("buttress pgd, fast model", True)):
    _register_buttress(
        name, "pgd", "pgd", AttackOptions(), use_fast_model=use_fast_model,
        steps=STEPS, rel_step=REL_STEP,
    )  # fmt: skip
for name in ("autoattack", "fast"):
    _register_buttress(f"buttress {name}", "autoattack", name)
for count, label in ((1, "1 process"), (2, "2 processes")):
    options = replace(STOP_WHEN_FOOLED, workers=count)
    _register_buttress(
        f"buttress, {label} of one thread", "workers", "autoattack", options,
        steps=40, queries=2000,
    )  # fmt: skip
SINGLE_ATTACKS: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    ("noise", ("Linf",), {}),
    ("fgsm", ("Linf",), {}),
    ("pgd_dense_l1", ("L1",), {"steps": 20}),
    ("pgd", ("Linf", "L1"), {"steps": 20}),
    ("gama", ("Linf",), {"steps": 100}),
    ("apgd-ce", ("Linf", "L1"), {}),
    ("apgd-t", ("Linf",), {}),
)
for name, norms, args in SINGLE_ATTACKS:
    label = " ".join([name, *map(str, args.values())])
    _register_buttress(label, "strength", name, use_fast_model=False, norms=norms, **args)


@TOOLS.register("pyautoattack", tags=("autoattack",), package="pyautoattack")
def pyautoattack(model: nn.Module, x: Tensor, y: Tensor, threat: NormBall) -> ToolOutput:
    from pyautoattack import AutoAttack

    attack = AutoAttack(model, norm=threat.norm, eps=threat.eps, version="standard", seed=0)
    x_adv = attack.run_standard_evaluation(x, y)
    return ToolOutput(x_adv[0] if isinstance(x_adv, tuple) else x_adv)


@TOOLS.register("torchattacks", tags=("pgd",), package="torchattacks")
@_call_per_batch
def torchattacks(model: nn.Module, x: Tensor, y: Tensor, threat: NormBall) -> ToolOutput:
    import torchattacks

    eps = threat.eps
    return ToolOutput(torchattacks.PGD(model, eps, REL_STEP * eps, STEPS, random_start=True)(x, y))


@TOOLS.register("foolbox", tags=("pgd",), package="foolbox")
@_call_per_batch
def foolbox(model: nn.Module, x: Tensor, y: Tensor, threat: NormBall) -> ToolOutput:
    from foolbox import PyTorchModel
    from foolbox.attacks import LinfPGD

    wrapped = PyTorchModel(model, bounds=(0, 1), device=x.device)
    attack = LinfPGD(steps=STEPS, rel_stepsize=REL_STEP)
    _, clipped, _ = attack(wrapped, x, y, epsilons=[threat.eps])
    return ToolOutput(clipped[0])


@TOOLS.register("ART", tags=("pgd",), package="art")
@_call_per_batch
def art(model: nn.Module, x: Tensor, y: Tensor, threat: NormBall) -> ToolOutput:
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    with torch.no_grad():
        classes = model(x[:1]).shape[1]
    wrapped = PyTorchClassifier(
        model, nn.CrossEntropyLoss(), tuple(x.shape[1:]), classes, clip_values=(0, 1)
    )
    attack = ProjectedGradientDescentPyTorch(
        wrapped, eps=threat.eps, eps_step=REL_STEP * threat.eps, max_iter=STEPS,
        num_random_init=1, batch_size=len(x), verbose=False,
    )  # fmt: skip
    return ToolOutput(torch.from_numpy(attack.generate(x.numpy(), y.numpy())))


@TOOLS.register("adv-lib", tags=("pgd",), package="adv_lib")
@_call_per_batch
def adv_lib(model: nn.Module, x: Tensor, y: Tensor, threat: NormBall) -> ToolOutput:
    options = {"random_init": True, "restarts": 1, "relative_step_size": REL_STEP}
    pgd_linf = import_adv_lib().pgd_linf
    return ToolOutput(pgd_linf(model, x, y, threat.eps, steps=STEPS, **options))


def import_adv_lib() -> Any:
    """The attacks of adv-lib, also without visdom, which is for plots only."""
    if "visdom" not in sys.modules and importlib.util.find_spec("visdom") is None:
        stub = types.ModuleType("visdom")
        stub.Visdom = object  # type: ignore[attr-defined]
        sys.modules["visdom"] = stub
    return importlib.import_module("adv_lib.attacks")
