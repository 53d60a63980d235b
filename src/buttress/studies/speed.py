"""Speed model: seconds of tasks, from finished runs, calibrations or device specs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from buttress.errors import UnknownNameError
from buttress.models.cost import FLOPS_PER_MAC, PassCount
from buttress.registry import normalize_name
from buttress.results.run_spec import RunSpec
from buttress.studies.calibration import FamilySpeed
from buttress.studies.jobs import RunJob, RunStatus, RunTask, TaskKind
from buttress.training.cost import run_model_cost
from buttress.training.objectives import OBJECTIVES


class DeviceSpec(NamedTuple):
    """A device: peak FLOP/s and the fraction of it that is reached, and memory."""

    name: str
    peak_flops: float  # FLOP/s
    memory_gb: float | None = None  # None: that of the machine
    efficiency: float = 0.35

    @property
    def sustained_flops(self) -> float:
        return self.peak_flops * self.efficiency


DEVICES = {
    normalize_name(device.name): device
    for device in (
        DeviceSpec("cpu-core", 96e9, None, 0.3),  # 3 GHz, two 8-wide fused products per cycle
        DeviceSpec("rtx2080ti", 13.4e12, 11),
        DeviceSpec("v100", 15.7e12, 32),
        DeviceSpec("a100", 19.5e12, 80),
        DeviceSpec("rtx3090", 35.6e12, 24),
        DeviceSpec("a6000", 38.7e12, 48),
        DeviceSpec("h100", 67e12, 80),
        DeviceSpec("rtx4090", 82.6e12, 24),
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


@dataclass
class SpeedModel:
    """Seconds per MAC by model or family and kind of task, and measured passes of attacks."""

    seconds_per_mac: dict[tuple[str, TaskKind], float] = field(default_factory=dict)
    calibrations: dict[str, FamilySpeed] = field(default_factory=dict)  # by family
    device: DeviceSpec | None = None
    measured_passes: dict[PassGroup, PassCount] = field(default_factory=dict)  # per image

    def expected_passes(self, job: RunJob, task: RunTask) -> PassCount:
        """Passes of a task; of an attack those measured on similar runs, else an estimate."""
        if task.kind != "attack":
            return task.passes
        if task.is_repeated:
            return PassCount()
        per_image = self.measured_passes.get(pass_group(job.spec, task))
        return (per_image or default_passes(job.spec, task)) * task.images

    def estimate_seconds(self, job: RunJob, task: RunTask) -> float | None:
        """Estimated seconds of a task; None without any timing."""
        passes, cost = self.expected_passes(job, task), run_model_cost(job.spec)
        macs = passes.macs(cost.macs)
        if macs == 0:
            return 0.0
        if self.device is not None:
            return FLOPS_PER_MAC * macs / self.device.sustained_flops
        rates = self.seconds_per_mac
        kind: TaskKind = "train" if task.kind == "train" else "attack"  # an analysis is like one
        for name in (model_label(job.spec), cost.family):
            if (name, kind) in rates:
                return rates[name, kind] * macs
        if cost.family in self.calibrations:
            return self.calibrations[cost.family].seconds(passes, cost.macs)
        return self._estimate_from_others(passes, cost.macs, kind)

    def _estimate_from_others(
        self, passes: PassCount, forward_macs: float, kind: TaskKind
    ) -> float | None:
        """Median over other families: measured for this kind of task, calibrated, or measured."""
        rates = [rate for (_, k), rate in self.seconds_per_mac.items() if k == kind]
        if not rates and self.calibrations:
            speeds = self.calibrations.values()
            return statistics.median(s.seconds(passes, forward_macs) for s in speeds)
        rates = rates or list(self.seconds_per_mac.values())
        return statistics.median(rates) * passes.macs(forward_macs) if rates else None

    @property
    def source_text(self) -> str:
        if self.device is not None:
            efficiency = (
                f"{self.device.efficiency:.0%} of {self.device.peak_flops / 1e12:g} TFLOP/s"
            )
            return f"a rough estimate for {self.device.name}, {efficiency}"
        sources = ["finished runs"] * bool(self.seconds_per_mac)
        sources += ["timed batches"] * bool(self.calibrations)
        return " and ".join(sources) or "no measurements"


def pass_group(spec: RunSpec, task: RunTask) -> PassGroup:
    """Key of runs on which an attack takes about as many passes."""
    return spec.dataset, OBJECTIVES.get(spec.recipe.objective.name).needs_threat, task.label


def default_passes(spec: RunSpec, task: RunTask) -> PassCount:
    """Passes per image before any run is finished: some are robust, the others fooled early."""
    robust = task.passes * (1 / max(task.images, 1))
    share = default_robust_share(spec, str(task.identity.get("threat", "")))
    fooled = PassCount(min(FOOLED_PASSES, robust.forward), min(FOOLED_PASSES, robust.backward))
    return robust * share + fooled * (1 - share)


def default_robust_share(spec: RunSpec, threat: str) -> float:
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
    seconds: dict[tuple[str, TaskKind], float] = defaultdict(float)
    macs_done: dict[tuple[str, TaskKind], float] = defaultdict(float)
    passes_by_group: dict[PassGroup, list[PassCount]] = defaultdict(list)
    for run in statuses:
        for task in run.tasks:
            usage, passes = run.usage.get(task.file), task.passes
            is_timed = task.kind != "analysis" and not task.is_repeated
            if usage is None or usage.seconds <= 0 or not is_timed:
                continue
            if task.kind == "attack":
                per_image = PassCount(usage.forward, usage.backward)
                passes_by_group[pass_group(run.job.spec, task)].append(per_image)
                passes = per_image * task.images
            cost = run_model_cost(run.job.spec)
            for name in (model_label(run.job.spec), cost.family):
                macs_done[name, task.kind] += passes.macs(cost.macs)
                seconds[name, task.kind] += usage.seconds
    return SpeedModel(
        {key: seconds[key] / macs for key, macs in macs_done.items() if macs > 0},
        measured_passes={
            group: sum(counts, PassCount()) * (1 / len(counts))
            for group, counts in passes_by_group.items()
        },
    )
