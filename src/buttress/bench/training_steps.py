"""Step benchmark: the CPU time of a training step by a recipe, beside a plain PyTorch loop.

Every trainer has a process of its own, with one thread. They take turns in slices of a few
steps, so that a busy machine slows all of them; CPU time leaves out what others use.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from buttress.data import Dataset
from buttress.engine.fast_model import FastModel
from buttress.errors import RunError
from buttress.models.eval_mode import eval_mode
from buttress.models.memory_format import use_channels_last
from buttress.registry import Registry
from buttress.results.run import Run
from buttress.results.run_spec import RunSpec
from buttress.system.cpu import disable_malloc_trim
from buttress.system.progress import Progress, SilentProgress
from buttress.threats.norm_ball import NormBall
from buttress.training.distributed import create_fabric
from buttress.training.loop import Trainer
from buttress.training.recipe import load_recipe
from buttress.training.sampler import BatchSampler
from buttress.training.schedules import build_optimizer
from buttress.training.train import build_model, resolve_run_spec

STEP_MODELS = "resnet_18_slim,resnet_mini,wrn_mini,vit_mini,pvt_v2_mini,coatnet_cctt_mini"
STEPS_PER_SLICE = 3
RECIPE, CROP_PADDING = "mini-at", 4
EPOCH_AT_FULL_EPS = 3


@dataclass(frozen=True)
class StepRun:
    """Settings of one process."""

    trainer: str = "buttress"
    model: str = "vit_mini"
    data: str = "cifar10"  # shape and number of classes; the images are random


Step = Callable[[], object]  # one slice
STEP_TRAINERS: Registry[Callable[[RunSpec, Dataset], Step]] = Registry("step trainer")


@STEP_TRAINERS.register("buttress")
def slice_of_buttress(spec: RunSpec, data: Dataset) -> Step:
    disable_malloc_trim()
    model, sampler = build_model(spec), BatchSampler(data, spec.recipe.batch_size, spec.seed)
    fabric = create_fabric("cpu", 1, spec.recipe.precision)
    with tempfile.TemporaryDirectory() as folder:  # nothing is written
        trainer = Trainer(Run(folder), use_channels_last(model), spec, fabric)
    trainer.optimize_attacks(sampler.first_images(8))
    trainer.state.epoch = EPOCH_AT_FULL_EPS
    task = SilentProgress().add_task("", 1)
    return lambda: trainer.train_epoch(sampler, task)


@STEP_TRAINERS.register("plain loop")
def slice_of_plain_loop(spec: RunSpec, data: Dataset) -> Step:
    return _plain_loop(spec, data, torch.contiguous_format)


@STEP_TRAINERS.register("plain loop, channels-last")
def slice_of_channels_last_loop(spec: RunSpec, data: Dataset) -> Step:
    return _plain_loop(spec, data, torch.channels_last)


def _plain_loop(spec: RunSpec, data: Dataset, layout: torch.memory_format) -> Step:
    """The recipe as a careful user writes it: no gradients of weights in the attack."""
    model: Any = build_model(spec)
    model = model.to(memory_format=layout)
    threat, attack_args = NormBall.parse(spec.recipe.threat or ""), spec.recipe.objective.args
    optimizer = build_optimizer(model, spec.recipe.optimizer, fused=False)
    generator = torch.Generator().manual_seed(0)

    def step(x: Tensor, y: Tensor) -> None:
        x = _augment(x, generator).contiguous(memory_format=layout)
        low, high = (x - threat.eps).clamp_(min=0), (x + threat.eps).clamp_(max=1)
        x_adv = low + (high - low) * torch.rand(x.shape, generator=generator)
        model.eval()
        for _ in range(attack_args["steps"]):
            x_adv.requires_grad_(True)
            (grad,) = torch.autograd.grad(F.cross_entropy(model(x_adv), y), x_adv)
            x_adv = x_adv.detach() + attack_args["rel_step"] * threat.eps * grad.sign()
            x_adv = torch.clamp(x_adv, low, high)
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(x_adv), y).backward()
        optimizer.step()

    def run_slice() -> None:
        for x, y, _ in data.batches(spec.recipe.batch_size):
            step(x, y)

    return run_slice


def _augment(x: Tensor, generator: torch.Generator) -> Tensor:
    """Random crops and flips, with one index operation for the batch."""
    n, _, height, width = x.shape
    padded = F.pad(x, (CROP_PADDING,) * 4)
    top, left = torch.randint(2 * CROP_PADDING + 1, (2, n, 1, 1), generator=generator)
    rows, columns = top + torch.arange(height)[:, None], left + torch.arange(width)
    is_mirrored = torch.rand(n, 1, 1, generator=generator) < 0.5
    columns = torch.where(is_mirrored, columns.flip(2), columns)
    return padded[torch.arange(n)[:, None, None], :, rows, columns].permute(0, 3, 1, 2)


@STEP_TRAINERS.register("floor")
def slice_of_bare_passes(spec: RunSpec, data: Dataset) -> Step:
    """The passes of a step in the forms that Buttress trains with, and nothing around them."""
    disable_malloc_trim()
    model = use_channels_last(build_model(spec))
    batches = list(data.batches(spec.recipe.batch_size))
    attack_model = FastModel.share_weights(model, batches[0].x[:8])
    training_model = FastModel.train_weights(model, batches[0].x[:8]).module.train()

    def step(x: Tensor, y: Tensor) -> None:
        with eval_mode(model):
            frozen = attack_model.refresh()
            for _ in range(spec.recipe.objective.args["steps"]):
                point = x.detach().requires_grad_(True)
                torch.autograd.grad(F.cross_entropy(frozen(point), y), point)
        model.zero_grad(set_to_none=True)
        F.cross_entropy(training_model(x), y).backward()

    def run_slice() -> None:
        for x, y, _ in batches:
            step(x, y)

    return run_slice


def random_data(spec: RunSpec) -> Dataset:
    """Random images and labels, enough for one slice."""
    generator = torch.Generator().manual_seed(0)
    n = STEPS_PER_SLICE * spec.recipe.batch_size
    shape = (n, spec.in_channels, spec.image_size, spec.image_size)
    images = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    labels = torch.randint(spec.num_classes, (n,), generator=generator)
    return Dataset.from_arrays(images, labels, classes=list(map(str, range(spec.num_classes))))


class SliceProcess:
    """A trainer in a process of its own, which runs a slice when told to."""

    def __init__(self, run: StepRun) -> None:
        command = [sys.executable, "-m", __name__, json.dumps(asdict(run))]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def run_slice(self) -> float:
        """CPU seconds of one step, the mean over a slice."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print("slice", file=self.process.stdin, flush=True)
        if not (line := self.process.stdout.readline()):
            _, errors = self.process.communicate()
            raise RunError((errors.strip().splitlines() or ["no message"])[-1])
        return float(line) / STEPS_PER_SLICE

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def serve_slices(run: StepRun) -> None:
    """Body of the process: run one slice per line of standard input, print its CPU seconds."""
    torch.set_num_threads(1)
    spec = resolve_run_spec(run.model, run.data, load_recipe(RECIPE))
    step = STEP_TRAINERS.get(run.trainer)(spec, random_data(spec))
    for _ in sys.stdin:
        started = time.process_time()
        step()
        print(time.process_time() - started, flush=True)


def run_steps(settings: StepRun, repeats: int, progress: Progress) -> list[dict[str, Any]]:
    """Measure all trainers on one model in turns; the first turn warms up."""
    runs = [replace(settings, trainer=name) for name in STEP_TRAINERS.names()]
    processes = [SliceProcess(run) for run in runs]
    seconds: list[list[float]] = [[] for _ in runs]
    task = progress.add_task(f"{settings.model}, steps of {RECIPE}", (repeats + 1) * len(runs))
    try:
        for turn in range(repeats + 1):
            for process, times in zip(processes, seconds, strict=True):
                taken = process.run_slice()
                if turn:
                    times.append(taken)
                task.advance(1)
    finally:
        task.close()
        for process in processes:
            process.close()
    return [
        {**asdict(run), "step_seconds": statistics.median(times), "all_step_seconds": times}
        for run, times in zip(runs, seconds, strict=True)
    ]


def step_table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Markdown table with a line for each model."""
    names = list(dict.fromkeys(row["trainer"] for row in rows))
    yield f"\nA step of `{RECIPE}`, milliseconds of CPU time with one thread\n"
    yield f"| model | {' | '.join(names)} | buttress / better plain loop | floor / same |"
    yield "| --- |" + " --- |" * (len(names) + 2)
    for model in dict.fromkeys(row["model"] for row in rows):
        times = {row["trainer"]: row["step_seconds"] for row in rows if row["model"] == model}
        reference = min(value for name, value in times.items() if name.startswith("plain loop"))
        cells = [f"{1000 * times[name]:.0f}" for name in names]
        cells += [f"{times[name] / reference:.2f}" for name in ("buttress", "floor")]
        yield f"| `{model}` | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve_slices(StepRun(**json.loads(sys.argv[1])))
