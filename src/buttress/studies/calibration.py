"""Seconds per multiply-accumulate of each family of models on this device, timed once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.errors import CorruptFileError
from buttress.models.core import resolve_device
from buttress.models.cost import (
    BACKWARD_FACTOR,
    FLOPS_PER_MAC,
    WEIGHT_BACKWARD_FACTOR,
    PassCount,
    SkipInitialization,
)
from buttress.models.eval_mode import eval_mode
from buttress.results.run_spec import RunSpec
from buttress.system.cpu import disable_malloc_trim
from buttress.system.files import read_json, write_json
from buttress.system.progress import Progress
from buttress.training.cost import run_model_cost
from buttress.training.train import build_model

CALIBRATION_FILE = "calibration.json"
MAX_SECONDS = 6.0  # of all calibrations of a plan, about
MAX_FAMILY_SECONDS = 1.5
ASSUMED_FLOPS = {"cpu": 4e10, "cuda": 2e12, "mps": 5e11}  # FLOP/s, to choose what fits that time
TIMED_PASSES = 24  # forward passes of an image that a calibration costs, about
REPEATS = 5


class FamilySpeed(NamedTuple):
    """Seconds per MAC of a forward pass: alone, with the input gradient, and as a training step."""

    forward: float
    input_gradient: float
    train_step: float

    def seconds(self, passes: PassCount, forward_macs: float) -> float:
        forward_only = max(passes.forward - passes.backward - passes.weight_backward, 0.0)
        return forward_macs * (
            forward_only * self.forward
            + passes.backward * self.input_gradient
            + passes.weight_backward * self.train_step
        )


def calibrate(
    specs_by_family: Mapping[str, Sequence[RunSpec]], root: Path, device: str, progress: Progress
) -> dict[str, FamilySpeed]:
    """Speeds of families, from the cache below ``root`` or timed now.

    Time is bounded: a family is not timed if a pass of its smallest model does not fit in the rest.
    """
    device_type = resolve_device(device)
    cache, machine = _read_cache(root / CALIBRATION_FILE), _describe_device(device_type)
    speeds = {
        family: FamilySpeed(*numbers)
        for family, numbers in cache.get(machine, {}).items()
        if len(numbers) == len(FamilySpeed._fields)
    }
    untimed = [family for family in specs_by_family if family not in speeds]
    bar, started = progress.add_task("time models", len(untimed)), time.perf_counter()
    for index, family in enumerate(untimed):
        seconds_left = MAX_SECONDS - (time.perf_counter() - started)
        budget = min(MAX_FAMILY_SECONDS, seconds_left / (len(untimed) - index))
        model_and_size = _choose_model(specs_by_family[family], device_type, budget, seconds_left)
        if model_and_size is not None:
            speeds[family] = time_model(*model_and_size, device_type, budget)
        bar.advance(1, family)
    bar.close()
    if untimed:
        write_json(root / CALIBRATION_FILE, {**cache, machine: speeds})
    return {family: speed for family, speed in speeds.items() if family in specs_by_family}


def _describe_device(device_type: str) -> str:
    name = torch.cuda.get_device_name() if device_type == "cuda" else ""
    return f"{device_type} {name}".strip() + f" {torch.get_num_threads()} threads"


def _read_cache(path: Path) -> dict[str, dict[str, list[float]]]:
    try:
        return read_json(path)
    except (CorruptFileError, FileNotFoundError):
        return {}


def _choose_model(
    specs: Sequence[RunSpec], device: str, budget: float, seconds_left: float
) -> tuple[RunSpec, int] | None:
    """The largest model up to the median that fits the budget, and the images to time it with."""
    by_macs = sorted(specs, key=lambda spec: run_model_cost(spec).macs)

    def seconds_per_image(spec: RunSpec) -> float:
        macs = TIMED_PASSES * run_model_cost(spec).macs
        return FLOPS_PER_MAC * macs / ASSUMED_FLOPS.get(device, ASSUMED_FLOPS["cpu"])

    candidates = by_macs[: len(by_macs) // 2 + 1]
    fitting = [spec for spec in candidates if 2 * seconds_per_image(spec) <= budget]
    spec = (fitting or by_macs[:1])[-1]
    if 2 * seconds_per_image(spec) / TIMED_PASSES > seconds_left:  # not even one forward pass
        return None
    return spec, max(2, min(spec.recipe.batch_size, int(budget / seconds_per_image(spec))))


def time_model(spec: RunSpec, num_images: int, device: str, max_seconds: float) -> FamilySpeed:
    """Time a model without initial weights on a batch."""
    disable_malloc_trim()
    with SkipInitialization():
        model = build_model(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # unset memory may hold numbers that are slow to compute with
    model = model.to(device)
    x = torch.rand(num_images, spec.in_channels, spec.image_size, spec.image_size, device=device)
    y = torch.zeros(num_images, dtype=torch.long, device=device)
    macs = num_images * run_model_cost(spec).macs
    with eval_mode(model):
        forward = _median_seconds(partial(_forward, model, x), max_seconds / 6)
        if TIMED_PASSES * forward > 3 * max_seconds:  # the rest would take too long: by the MACs
            per_mac = forward / macs
            return FamilySpeed(
                per_mac, (1 + BACKWARD_FACTOR) * per_mac, (1 + WEIGHT_BACKWARD_FACTOR) * per_mac
            )
        input_gradient = _median_seconds(partial(_input_gradient, model, x, y), max_seconds / 3)
    model.train()
    train_step = _median_seconds(partial(_train_step, model, x, y), max_seconds / 2)
    return FamilySpeed(forward / macs, input_gradient / macs, train_step / macs)


@torch.no_grad()
def _forward(model: nn.Module, x: Tensor) -> None:
    model(x)


def _input_gradient(model: nn.Module, x: Tensor, y: Tensor) -> None:
    point = x.clone().requires_grad_(True)
    torch.autograd.grad(F.cross_entropy(model(point), y), point, allow_unused=True)


def _train_step(model: nn.Module, x: Tensor, y: Tensor) -> None:
    F.cross_entropy(model(x), y).backward()
    model.zero_grad(set_to_none=True)


def _median_seconds(step: Callable[[], None], max_seconds: float) -> float:
    """Median of a few repeats, at least one, after a warm-up."""
    repeats = int(max_seconds / _seconds_of(step))
    return statistics.median(_seconds_of(step) for _ in range(min(max(repeats, 1), REPEATS)))


def _seconds_of(step: Callable[[], None]) -> float:
    started = time.perf_counter()
    step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started
