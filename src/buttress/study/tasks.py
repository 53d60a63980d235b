"""The pieces of a run's work: what each leaves behind, and the passes it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import torch

from buttress.analysis.core import ANALYSES, settled
from buttress.data import Facts, facts_of
from buttress.evaluation.passes import Passes, passes_of, usual_passes_of
from buttress.evaluation.suite import Entry, load_suite, resolve_suite
from buttress.models.core import is_known
from buttress.models.cost import Cost, count_macs, count_parameters
from buttress.models.on_paper import Undrawn, tally_macs
from buttress.records.run import Run
from buttress.records.spec import Recipe, RunSpec
from buttress.spec import Component
from buttress.study.work import Work
from buttress.training.objectives import OBJECTIVES
from buttress.training.train import build

Kind = Literal["train", "attack", "analysis"]
NONE = Passes(0)
LOOKS_TWICE = ("trades", "mart", "rst", "alp")  # losses of the clean image and the attacked one


@dataclass(frozen=True)
class Task:
    """One file of a run that must be there in the end."""

    label: str  # as its progress is called
    kind: Kind
    file: Path
    images: int = 0  # of a record
    usual: Passes = NONE  # of a record: for an image that survives
    forward: float = 0.0  # passes of single images in all
    backward: float = 0.0  # to the image only
    learning: float = 0.0  # backward passes to the weights too
    made: Mapping[str, Any] = field(default_factory=dict)  # what the file must say of itself

    def macs(self, forward_macs: float) -> float:
        """Multiply-accumulates: a gradient costs a pass for the image, one more for the weights."""
        return forward_macs * (self.forward + self.backward + 2 * self.learning)


def tasks_of(work: Work) -> list[Task]:
    """Training, every attack of every suite, every analysis, in their order."""
    run = Run(work.folder)
    found = [training_of(work.spec, run.path / "done.json")]
    for which in work.whiches:
        for suite in work.suites:
            name = suite if which == "best" else f"{suite}-{which}"
            for entry, most, usual in _entries(suite, work.spec.dataset, work.spec.num_classes):
                path = run.suite_folder(name) / f"{entry.name}.parquet"
                found.append(attack_of(entry, (most, usual), suite, work, path))
    for use in work.analyses:
        made = {"args": _arguments(use)}
        found.append(Task(use.name, "analysis", run.analysis_file(use.name), made=made))
    return found


def _arguments(use: Component) -> dict[str, Any]:
    """The arguments that the file of an analysis must name."""
    return settled(ANALYSES.entry(use.name), use.args)


def training_of(spec: RunSpec, file: Path) -> Task:
    """The passes of a recipe: its attack, its loss, and the epochs' validation."""
    recipe, known = spec.recipe, facts(spec.dataset)
    images = min(known.train, spec.limit or known.train) * recipe.epochs
    objective = OBJECTIVES.create(recipe.objective.name, recipe.objective.args)
    steps = getattr(objective, "steps", 0) if recipe.threat else 0
    if getattr(objective, "how", "") in ("max", "avg"):  # one attack for each norm
        steps *= len(getattr(objective, "threats", ("",)))
    looks = objective.repeats * (2 if recipe.objective.name in LOOKS_TWICE else 1)
    looks += 0 if recipe.awp is None else 1
    checked = min(known.test, recipe.validation.limit or known.test)
    checked *= sum(map(partial(_is_checked, recipe), range(1, recipe.epochs + 1)))
    moves = recipe.validation.attack.args.get("steps", 10) if recipe.threat else 0
    return Task(
        f"train {spec.model}", "train", file,
        forward=images * (steps + looks) + checked * (moves + 1),
        backward=images * steps + checked * moves,
        learning=images * looks,
    )  # fmt: skip


def _is_checked(recipe: Recipe, epoch: int) -> bool:
    """Whether the best epoch may be this one, counted from 1."""
    when = recipe.validation
    return epoch == recipe.epochs or (epoch % when.every == 0 and epoch >= when.from_epoch)


def attack_of(
    entry: Entry, passes: tuple[Passes, Passes], suite: str, work: Work, file: Path
) -> Task:
    """An attack, with the passes that an image takes at most, and usually if it survives."""
    most, usual = passes
    known = facts(work.spec.dataset)
    images = min(known.test, work.test_limit or known.test)
    threat = "" if entry.threat is None else str(entry.threat)
    return Task(
        f"{suite}: {entry.name}", "attack", file, images, usual,
        forward=images * most.forward, backward=images * most.backward,
        made={"attack": entry.attack, "args": dict(entry.args), "threat": threat},
    )  # fmt: skip


def units_of(work: Work) -> dict[str, float]:
    """The share of each task in a progress bar, by its label."""
    found: dict[str, float] = {}
    for task in tasks_of(work):
        found[task.label] = found.get(task.label, 0.0) + task.macs(1.0)
    return found


@lru_cache(maxsize=256)
def facts(dataset: str) -> Facts:
    """Facts of a data set; one without a registration is read once."""
    return facts_of(dataset)


@lru_cache(maxsize=1024)
def _entries(suite: str, dataset: str, classes: int) -> tuple[tuple[Entry, Passes, Passes], ...]:
    """The attacks of a suite and what each takes for an image."""
    found = resolve_suite(load_suite(suite), facts(dataset).budgets, dataset)
    return tuple(
        (
            entry,
            passes_of(entry.attack, entry.args, entry.threat, classes),
            usual_passes_of(entry.attack, entry.args, entry.threat, classes),
        )
        for entry in found
    )


_COSTS: dict[tuple[Any, ...], Cost] = {}


def network_cost(spec: RunSpec) -> Cost:
    """Parameters and multiply-accumulates of a run's network, without memory for weights."""
    size = (spec.num_classes, spec.image_size, spec.in_channels)
    key = (spec.model, repr(sorted(spec.model_args.items())), *size)
    if key not in _COSTS:
        with torch.device("meta"), Undrawn():
            model = build(spec)
        count = tally_macs if is_known(spec.model) else count_macs
        macs = int(count(model.eval(), spec.image_size))
        _COSTS[key] = Cost(count_parameters(model), macs)
    return _COSTS[key]


def macs_of(spec: RunSpec) -> int:
    """Multiply-accumulates of one image through a run's network."""
    return network_cost(spec).macs
