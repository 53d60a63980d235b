"""How long multiplications take here: learnt from finished runs, else timed, else looked up."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from buttress.evaluation.passes import Passes
from buttress.records.spec import RunSpec
from buttress.study.devices import Device
from buttress.study.survey import Found
from buttress.study.tasks import Kind, Task, macs_of
from buttress.study.work import Work
from buttress.training.objectives import OBJECTIVES

Sort = tuple[str, bool, str]  # data set, whether training had an adversary, label of the attack
# Before anything is measured: the share of images that survive, in the norm of training, in another
# and without an adversary in training, and the passes of an image that breaks.
LEFT, LEFT_UNSEEN, LEFT_STANDARD, EARLY = 0.3, 0.15, 0.005, 10


class Timed(NamedTuple):
    """Seconds of one image here: a pass, one with the gradient of the image, a step of training."""

    forward: float
    grad: float
    step: float

    def of(self, task: Task) -> float:
        alone = max(task.forward - task.backward - task.learning, 0.0)
        passes = alone * self.forward + task.backward * self.grad
        return passes + task.learning * self.step


@dataclass
class Pace:
    """Seconds per multiply-accumulate by model and kind of work, and passes that attacks took."""

    learnt: dict[tuple[str, Kind], float] = field(default_factory=dict)
    timed: dict[str, Timed] = field(default_factory=dict)
    device: Device | None = None
    passes: dict[Sort, Passes] = field(default_factory=dict)  # that attacks took

    def expected(self, work: Work, task: Task) -> Task:
        """The task with the passes that the attack took on runs of this sort, else an estimate."""
        if task.kind != "attack":
            return task
        known = self.passes.get(sort_of(work.spec, task)) or before_any(work.spec, task)
        forward, backward = task.images * known.forward, task.images * known.backward
        return replace(task, forward=forward, backward=backward)

    def seconds(self, work: Work, task: Task) -> float | None:
        """About how long a task takes; None if nothing is known of the machine."""
        if task.kind == "analysis":
            return 0.0  # says itself what it costs when it starts
        expected, model = self.expected(work, task), name_of(work.spec)
        macs = expected.macs(macs_of(work.spec))
        if self.device is not None:
            return 2 * macs / self.device.flops
        if (model, task.kind) not in self.learnt and model in self.timed:
            return self.timed[model].of(expected)
        rate = self._rate(model, task.kind)
        return None if rate is None else rate * macs

    def _rate(self, model: str, kind: Kind) -> float | None:
        other: Kind = "attack" if kind == "train" else "train"
        for key in ((model, kind), (model, other)):
            if key in self.learnt:
                return self.learnt[key]
        rates = [r for (_, k), r in self.learnt.items() if k == kind] or list(self.learnt.values())
        return statistics.median(rates) if rates else None

    @property
    def source(self) -> str:
        if self.device is not None:
            share = f"{self.device.efficiency:.0%} of {self.device.peak / 1e12:g} TFLOP/s"
            return f"a rough estimate for {self.device.name}: {share}"
        words = ["finished runs"] * bool(self.learnt) + ["timed batches here"] * bool(self.timed)
        return " and ".join(words) or "nothing yet"


def sort_of(spec: RunSpec, task: Task) -> Sort:
    """Runs in which the same attack breaks about as many images."""
    return spec.dataset, OBJECTIVES.get(spec.recipe.objective.name).needs_threat, task.label


def before_any(spec: RunSpec, task: Task) -> Passes:
    """A guess before any run is finished: some images survive, the others break early."""
    usual = task.usual
    if usual.forward <= 1:
        return usual
    left = left_of(spec, str(task.made.get("threat", "")))
    early = Passes(min(EARLY, usual.forward), min(EARLY, usual.backward))
    return Passes(*(left * m + (1 - left) * e for m, e in zip(usual, early, strict=True)))


def left_of(spec: RunSpec, threat: str) -> float:
    """A guess of the share of images that survive."""
    seen = spec.recipe.threat
    if seen is None or not OBJECTIVES.get(spec.recipe.objective.name).needs_threat:
        return LEFT_STANDARD
    return LEFT if threat.partition(":")[0] == str(seen).partition(":")[0] else LEFT_UNSEEN


def name_of(spec: RunSpec) -> str:
    """What is timed: a model with its arguments at a size."""
    args = "".join(f",{k}={v}" for k, v in sorted(spec.model_args.items()))
    return f"{spec.model}{args}@{spec.image_size}"


def learn(found: Sequence[Found]) -> Pace:
    """The pace of what is finished."""
    seconds: dict[tuple[str, Kind], float] = defaultdict(float)
    spent: dict[tuple[str, Kind], float] = defaultdict(float)
    passes: dict[Sort, list[Passes]] = defaultdict(list)
    for run in found:
        macs, name = 0, name_of(run.work.spec)
        for task in run.tasks:
            took = run.took.get(task.file)
            if took is None or took.seconds <= 0 or task.kind == "analysis":
                continue
            macs = macs or macs_of(run.work.spec)
            if task.kind == "attack":
                passes[sort_of(run.work.spec, task)].append(Passes(took.forward, took.backward))
                spent[name, task.kind] += macs * task.images * (took.forward + took.backward)
            else:
                spent[name, task.kind] += task.macs(macs)
            seconds[name, task.kind] += took.seconds
    return Pace(
        {key: seconds[key] / macs for key, macs in spent.items() if macs > 0},
        passes={key: _mean(values) for key, values in passes.items()},
    )


def _mean(values: Sequence[Passes]) -> Passes:
    return Passes(*(statistics.fmean(column) for column in zip(*values, strict=True)))
