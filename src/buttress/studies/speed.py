"""Speed model: seconds of tasks, from finished runs, timed batches or device specs."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.engine.cost import PassEstimate
from buttress.engine.fast_model import prepare
from buttress.errors import CorruptFileError, UnknownNameError
from buttress.models.eval_mode import eval_mode
from buttress.registry import normalize_name
from buttress.results.run_spec import RunSpec
from buttress.studies.jobs import RunJob, RunStatus, RunTask, TaskKind, macs_of, resolve_device
from buttress.system.cpu import disable_malloc_trim
from buttress.system.files import read_json, write_json
from buttress.system.progress import Progress
from buttress.training.objectives import OBJECTIVES
from buttress.training.train import build_model


class DeviceSpec(NamedTuple):
    """A device: peak FLOP/s, and the fraction of it that is reached."""

    name: str
    peak_flops: float  # FLOP/s
    efficiency: float = 0.35

    @property
    def sustained_flops(self) -> float:
        return self.peak_flops * self.efficiency


DEVICES = {
    normalize_name(device.name): device
    for device in (
        DeviceSpec("cpu-core", 96e9, 0.3),  # 3 GHz, two 8-wide fused products per cycle
        DeviceSpec("rtx2080ti", 13.4e12),
        DeviceSpec("v100", 15.7e12),
        DeviceSpec("a100", 19.5e12),
        DeviceSpec("rtx3090", 35.6e12),
        DeviceSpec("a6000", 38.7e12),
        DeviceSpec("h100", 67e12),
        DeviceSpec("rtx4090", 82.6e12),
    )
}


def get_device(name: str) -> DeviceSpec:
    if normalize_name(name) not in DEVICES:
        names = ", ".join(device.name for device in DEVICES.values())
        raise UnknownNameError(f"--device-name: unknown device {name!r}; choose from {names}")
    return DEVICES[normalize_name(name)]


PassGroup = tuple[str, bool, str]  # dataset, whether training was adversarial, label of the attack
# Defaults before any measurement: robust accuracy in the norm of training, in another norm and
# after standard training, and the passes of an image that is fooled.
ROBUST_SHARE_SEEN, ROBUST_SHARE_UNSEEN, ROBUST_SHARE_STANDARD, FOOLED_PASSES = 0.3, 0.15, 0.005, 10


class ModelTiming(NamedTuple):
    """Seconds per image: forward pass, pass with input gradient, training step."""

    forward: float
    input_gradient: float
    train_step: float

    def seconds(self, task: RunTask) -> float:
        forward_only = max(
            task.forward_passes - task.backward_passes - task.weight_backward_passes, 0.0
        )
        passes = forward_only * self.forward + task.backward_passes * self.input_gradient
        return passes + task.weight_backward_passes * self.train_step


@dataclass
class SpeedModel:
    """Seconds per MAC by model and kind of task, and measured passes of attacks."""

    seconds_per_mac: dict[tuple[str, TaskKind], float] = field(default_factory=dict)
    timings: dict[str, ModelTiming] = field(default_factory=dict)
    device: DeviceSpec | None = None
    measured_passes: dict[PassGroup, PassEstimate] = field(
        default_factory=dict
    )  # that attacks took

    def expected_task(self, job: RunJob, task: RunTask) -> RunTask:
        """The task with the measured passes of its attack on similar runs, else an estimate."""
        if task.kind != "attack":
            return task
        per_image = self.measured_passes.get(pass_group(job.spec, task)) or default_passes(
            job.spec, task
        )
        forward, backward = task.images * per_image.forward, task.images * per_image.backward
        return replace(task, forward_passes=forward, backward_passes=backward)

    def estimate_seconds(self, job: RunJob, task: RunTask) -> float | None:
        """Estimated seconds of a task; None without any timing."""
        if task.kind == "analysis":
            return 0.0  # an analysis logs its own cost
        expected, model = self.expected_task(job, task), model_label(job.spec)
        macs = expected.macs(macs_of(job.spec))
        if self.device is not None:
            return 2 * macs / self.device.sustained_flops
        if (model, task.kind) not in self.seconds_per_mac and model in self.timings:
            return self.timings[model].seconds(expected)
        rate = self._seconds_per_mac(model, task.kind)
        return None if rate is None else rate * macs

    def _seconds_per_mac(self, model: str, kind: TaskKind) -> float | None:
        other_kind: TaskKind = "attack" if kind == "train" else "train"
        for key in ((model, kind), (model, other_kind)):
            if key in self.seconds_per_mac:
                return self.seconds_per_mac[key]
        rates = [r for (_, k), r in self.seconds_per_mac.items() if k == kind] or list(
            self.seconds_per_mac.values()
        )
        return statistics.median(rates) if rates else None

    @property
    def source_text(self) -> str:
        if self.device is not None:
            efficiency = (
                f"{self.device.efficiency:.0%} of {self.device.peak_flops / 1e12:g} TFLOP/s"
            )
            return f"a rough estimate for {self.device.name}, {efficiency}"
        sources = ["finished runs"] * bool(self.seconds_per_mac) + ["timed batches"] * bool(
            self.timings
        )
        return " and ".join(sources) or "no measurements"


def pass_group(spec: RunSpec, task: RunTask) -> PassGroup:
    """Key of runs on which an attack takes about as many passes."""
    return spec.dataset, OBJECTIVES.get(spec.recipe.objective.name).needs_threat, task.label


def default_passes(spec: RunSpec, task: RunTask) -> PassEstimate:
    """Default passes before any run is finished: some images are robust, others fooled early."""
    typical = task.typical
    if typical.forward <= 1:
        return typical
    robust_share = default_robust_share(spec, str(task.identity.get("threat", "")))
    fooled_passes = PassEstimate(
        min(FOOLED_PASSES, typical.forward), min(FOOLED_PASSES, typical.backward)
    )
    return PassEstimate(
        *(
            robust_share * m + (1 - robust_share) * e
            for m, e in zip(typical, fooled_passes, strict=True)
        )
    )


def default_robust_share(spec: RunSpec, threat: str) -> float:
    """Default robust accuracy."""
    train_threat = spec.recipe.threat
    if train_threat is None or not OBJECTIVES.get(spec.recipe.objective.name).needs_threat:
        return ROBUST_SHARE_STANDARD
    return (
        ROBUST_SHARE_SEEN
        if threat.partition(":")[0] == str(train_threat).partition(":")[0]
        else ROBUST_SHARE_UNSEEN
    )


def model_label(spec: RunSpec) -> str:
    """Key of a timing: model, arguments and image size."""
    args = "".join(f",{k}={v}" for k, v in sorted(spec.model_args.items()))
    return f"{spec.model}{args}@{spec.image_size}"


def fit_speed_model(statuses: Sequence[RunStatus]) -> SpeedModel:
    """Fit the speed model to finished runs."""
    seconds: dict[tuple[str, TaskKind], float] = defaultdict(float)
    macs_done: dict[tuple[str, TaskKind], float] = defaultdict(float)
    passes: dict[PassGroup, list[PassEstimate]] = defaultdict(list)
    for run in statuses:
        macs, name = 0, model_label(run.job.spec)
        for task in run.tasks:
            usage = run.usage.get(task.file)
            if usage is None or usage.seconds <= 0 or task.kind == "analysis":
                continue
            macs = macs or macs_of(run.job.spec)
            if task.kind == "attack":
                passes[pass_group(run.job.spec, task)].append(
                    PassEstimate(usage.forward, usage.backward)
                )
                macs_done[name, task.kind] += macs * task.images * (usage.forward + usage.backward)
            else:
                macs_done[name, task.kind] += task.macs(macs)
            seconds[name, task.kind] += usage.seconds
    return SpeedModel(
        {key: seconds[key] / macs for key, macs in macs_done.items() if macs > 0},
        measured_passes={key: _mean_passes(values) for key, values in passes.items()},
    )


def _mean_passes(values: Sequence[PassEstimate]) -> PassEstimate:
    return PassEstimate(*(statistics.fmean(column) for column in zip(*values, strict=True)))


MAX_BATCH_SECONDS = 1.0  # seconds that one timed batch may take
REPEATS = 5
TIMINGS_FILE = "pace.json"


def time_models(
    speed: SpeedModel, specs: Iterable[RunSpec], root: Path, device: str, progress: Progress
) -> None:
    """Time every model without measurements; timings are cached."""
    device_type = resolve_device(device)
    machine = (
        f"{device_type} {torch.cuda.get_device_name() if device_type == 'cuda' else ''}".strip()
    )
    machine += f" {torch.get_num_threads()} threads"
    cache = _read_cache(root / TIMINGS_FILE)
    machine_timings = {
        n: t for n, t in cache.get(machine, {}).items() if len(t) == len(ModelTiming._fields)
    }
    cache[machine] = machine_timings
    specs_by_label = {model_label(s): s for s in specs}
    measured = {model for model, _ in speed.seconds_per_mac}
    untimed = {
        n: s for n, s in specs_by_label.items() if n not in machine_timings and n not in measured
    }
    bar = progress.add_task("time models", len(untimed))
    for name, spec in untimed.items():
        machine_timings[name] = list(time_model(spec, device_type))
        bar.advance(1, name)
    bar.close()
    if untimed:
        write_json(root / TIMINGS_FILE, cache)
    speed.timings.update(
        (name, ModelTiming(*machine_timings[name]))
        for name in specs_by_label.keys() & machine_timings.keys()
    )


def _read_cache(path: Path) -> dict[str, dict[str, list[float]]]:
    try:
        return read_json(path)
    except (CorruptFileError, FileNotFoundError):
        return {}


def time_model(spec: RunSpec, device: str) -> ModelTiming:
    """Time the inference-optimized model, in seconds per image."""
    disable_malloc_trim()
    model = build_model(spec).to(device)
    shape = (spec.in_channels, spec.image_size, spec.image_size)
    with eval_mode(model):
        batch_size = _largest_batch(partial(_input_gradient, model, shape), spec.recipe.batch_size)
        fast_model: nn.Module = model
        if batch_size == spec.recipe.batch_size:  # slow models are not optimized here
            prepared = prepare(model, _batch(model, shape, batch_size)[0])
            prepared.optimize_forward()
            fast_model = prepared.module
        forward = (
            _median_seconds(partial(_forward, fast_model, _batch(model, shape, batch_size)[0]))
            / batch_size
        )
        grad = _median_seconds(partial(_input_gradient, fast_model, shape, batch_size)) / batch_size
    model.train()
    batch_size = max(batch_size, 2)  # BatchNorm needs two
    return ModelTiming(
        forward, grad, _median_seconds(partial(_train_step, model, shape, batch_size)) / batch_size
    )


@torch.no_grad()
def _forward(model: nn.Module, x: Tensor) -> None:
    model(x)


def _input_gradient(model: nn.Module, shape: tuple[int, ...], n: int) -> None:
    x, y = _batch(model, shape, n)
    x.requires_grad_(True)
    torch.autograd.grad(F.cross_entropy(model(x), y), x, allow_unused=True)


def _train_step(model: nn.Module, shape: tuple[int, ...], n: int) -> None:
    x, y = _batch(model, shape, n)
    F.cross_entropy(model(x), y).backward()
    model.zero_grad(set_to_none=True)


def _batch(model: nn.Module, shape: tuple[int, ...], n: int) -> tuple[Tensor, Tensor]:
    device = next(model.parameters()).device
    x = torch.linspace(0, 1, n * shape[0] * shape[1] * shape[2], device=device).reshape(n, *shape)
    return x, torch.zeros(n, dtype=torch.long, device=device)


def _largest_batch(step: Callable[[int], None], max_batch: int) -> int:
    """The largest batch up to the recipe's that takes no longer than allowed."""
    n = min(2, max_batch)
    step(n)  # the first pass also sets things up
    while n < max_batch and _seconds_of(partial(step, n)) * 2 < MAX_BATCH_SECONDS:
        n = min(2 * n, max_batch)
    return n


def _median_seconds(step: Callable[[], None]) -> float:
    """Median of a few repeats, after a warm-up."""
    first = _seconds_of(step)
    repeats = REPEATS if first < MAX_BATCH_SECONDS / REPEATS else 1
    return statistics.median(_seconds_of(step) for _ in range(repeats))


def _seconds_of(step: Callable[[], None]) -> float:
    started = time.perf_counter()
    step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started
