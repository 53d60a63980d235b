"""How long multiplications take here: learnt from finished runs, else timed, else looked up."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from buttress.evaluation.passes import Passes
from buttress.records.spec import RunSpec
from buttress.study.devices import Device
from buttress.study.survey import Found
from buttress.study.tasks import Kind, Task, macs_of
from buttress.study.work import Work
from buttress.training.objectives import OBJECTIVES

Sort = tuple[str, bool, str]  # data set, whether training had an adversary, label of the attack
# Before anything is measured: the share of images that survive, and the passes of one that breaks.
LEFT, LEFT_STANDARD, EARLY = 0.3, 0.02, 10


@dataclass
class Pace:
    """Seconds per multiply-accumulate by model and kind of work, and passes that attacks took."""

    learnt: dict[tuple[str, Kind], float] = field(default_factory=dict)
    timed: dict[tuple[str, Kind], float] = field(default_factory=dict)
    device: Device | None = None
    passes: dict[Sort, Passes] = field(default_factory=dict)  # that attacks took

    def expected(self, work: Work, task: Task) -> Task:
        """The task with the passes that the attack took on runs of this sort, else an estimate."""
        if task.kind != "attack":
            return task
        known = self.passes.get(sort_of(work.spec, task)) or before_any(work.spec, task)
        return Task(
            task.label, task.kind, task.file, task.images, known,
            forward=task.images * known.forward, backward=task.images * known.backward,
        )  # fmt: skip

    def seconds(self, work: Work, task: Task) -> float | None:
        """About how long a task takes; None if nothing is known of the machine."""
        if task.kind == "analysis":
            return 0.0  # says itself what it costs when it starts
        macs = self.expected(work, task).macs(macs_of(work.spec))
        if self.device is not None:
            return 2 * macs / self.device.flops
        rate = self._rate(name_of(work.spec), task.kind)
        return None if rate is None else rate * macs

    def _rate(self, model: str, kind: Kind) -> float | None:
        other: Kind = "attack" if kind == "train" else "train"
        for known in (self.learnt, self.timed):
            for key in ((model, kind), (model, other)):
                if key in known:
                    return known[key]
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
    most = task.per_image
    if most.forward <= 1:
        return most
    left = LEFT if OBJECTIVES.get(spec.recipe.objective.name).needs_threat else LEFT_STANDARD
    early = Passes(min(EARLY, most.forward), min(EARLY, most.backward))
    return Passes(*(left * m + (1 - left) * e for m, e in zip(most, early, strict=True)))


def name_of(spec: RunSpec) -> str:
    """What is timed: a model with its arguments at a size."""
    args = "".join(f",{k}={v}" for k, v in sorted(spec.model_args.items()))
    return f"{spec.model}{args}@{spec.image_size}"


def learn(found: Sequence[Found]) -> Pace:
    """The pace of what is finished."""
    rates: dict[tuple[str, Kind], list[float]] = defaultdict(list)
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
                spent = macs * task.images * (took.forward + took.backward)
            else:
                spent = task.macs(macs)
            if spent > 0:
                rates[name, task.kind].append(took.seconds / spent)
    return Pace(
        {key: statistics.fmean(values) for key, values in rates.items()},
        passes={key: _mean(values) for key, values in passes.items()},
    )


def _mean(values: Sequence[Passes]) -> Passes:
    return Passes(*(statistics.fmean(column) for column in zip(*values, strict=True)))
