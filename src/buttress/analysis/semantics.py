"""Whether perturbations show what they attack: other networks name the class from them alone.

Debenedetti, "Adversarially robust vision transformers", the thesis behind arXiv:2209.07399.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from buttress.analysis.core import ANALYSES
from buttress.analysis.cost import Passes, passes_of
from buttress.analysis.subject import Group, Subject
from buttress.attacks.call import How, create_attack, run_attack
from buttress.attacks.freeze import frozen, on_device_of
from buttress.data import Batch
from buttress.errors import UserError
from buttress.records.run import Run
from buttress.registry import canonical
from buttress.spec import Spec
from buttress.threat import Threat
from buttress.training.objectives import OBJECTIVES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH = 256


class Score(Spec):
    """How often a judge is right about the image behind a perturbation."""

    top1: float
    top5: float


class Judged(Spec):
    """The perturbations of one run, by the names of the models that judge them."""

    label: str
    is_robust: bool  # trained against an adversary
    judges: dict[str, Score]


class Semantics(Spec):
    """What standard networks see in the perturbations of each run."""

    attack: str
    steps: int
    threat: str
    images: int
    by_run: dict[str, Judged]  # by the name of the run's folder


def plot_semantics(results: Mapping[str, Semantics], figure: Figure) -> None:
    """A group of bars per run, one for each judge."""
    axes = figure.subplots(1, len(results), squeeze=False)[0]
    for place, (label, result) in zip(axes, results.items(), strict=True):
        rows = list(result.by_run.values())
        judges = sorted({name for row in rows for name in row.judges})
        for number, judge in enumerate(judges):
            at = [i + (number - len(judges) / 2) * 0.8 / len(judges) for i in range(len(rows))]
            heights = [row.judges[judge].top5 if judge in row.judges else 0.0 for row in rows]
            place.bar(at, heights, 0.8 / len(judges), label=judge, align="edge")
        place.set_xticks(range(len(rows)), [row.label for row in rows], rotation=40, ha="right")
        place.set(ylabel="right among the first five", ylim=(0, 1), title=label)
        place.legend(fontsize="small")


def says_semantics(result: Semantics) -> str:
    """Robust runs against the others."""
    parts = []
    for is_robust, words in ((True, "robust"), (False, "standard")):
        rows = [row for row in result.by_run.values() if row.is_robust is is_robust]
        scores = [(s.top1, s.top5) for row in rows for s in row.judges.values()]
        if scores:
            first, five = (sum(s[k] for s in scores) / len(scores) for k in (0, 1))
            parts.append(f"{first:.1%} for those of {words} networks (first five: {five:.1%})")
    return (
        f"Shown a perturbation alone, other networks name the class of its image: "
        f"{', '.join(parts)} ({result.images} images, {result.attack}-{result.steps} in "
        f"{result.threat})."
    )


def cost_semantics(
    group: Group, *, judges: Sequence[str], attack: str, steps: int, limit: int
) -> Iterator[tuple[Subject, Passes]]:
    """The attack on each network that makes perturbations; a judge looks at all of them."""
    chosen, judging = create_attack(attack, steps=steps), _judges(group, judges)
    for index, (_label, subject) in enumerate(group.subjects()):
        images = min(limit, len(subject.data))
        passes = Passes(images * len(group)) if index in judging else Passes(0)
        if _makes(index, judging, judges):
            passes += passes_of(chosen, subject, images)
        yield subject, passes


@ANALYSES.register(
    "semantics",
    paper="arXiv:2209.07399",
    tags=("attack",),
    result=Semantics,
    plot=plot_semantics,
    cost=cost_semantics,
    says=says_semantics,
    together=True,
)
def semantics(
    group: Group,
    *,
    judges: Sequence[str] = (),
    attack: str = "pgd",
    steps: int = 100,
    limit: int = 5000,
) -> Semantics:
    """Accuracy of other networks on perturbations as images, (x - x' + eps) / (2 eps).

    Every run's perturbations are judged by the runs of the models ``judges``, or by all that were
    trained without an adversary; never by the run itself. All are made in the usual Linf ball of
    the data, with steps of 1.5 eps over their number.

    Departure from the thesis: its text has x' - x, its code the negative, which is used here.
    """
    data = group.subject(0).first(limit)
    threat = Threat("Linf", data.budgets["Linf"])
    chosen = create_attack(attack, steps=steps, rel_step=1.5 / steps)
    judging = _judges(group, judges)
    makers = [i for i in range(len(group)) if _makes(i, judging, judges)]
    task = group.progress.task("semantics of perturbations", len(makers) + len(judging))
    x, y, ids = data.take(torch.arange(len(data)))
    pictures: dict[int, Tensor] = {}
    for index in makers:
        model = group.subject(index).model
        x_adv = run_attack(chosen, model, x, y, threat, ids=ids, how=How(batch_size=BATCH)).x_adv
        pictures[index] = as_images(x, x_adv.to(x), threat.eps)
        task.advance(1, note=f"made on {group.labels[index]}")
    scores: dict[int, dict[str, Score]] = {index: {} for index in makers}
    for judge in judging:
        subject = group.subject(judge)
        for index in makers:
            if index != judge:
                seen = Batch(pictures[index], y, ids)
                scores[index][_name(group.runs[judge])] = score(subject.model, seen)
        task.advance(1, note=f"judged by {group.labels[judge]}")
    task.close()
    return Semantics(
        attack=attack,
        steps=steps,
        threat=str(threat),
        images=len(data),
        by_run={
            group.runs[i].path.name: Judged(
                label=group.labels[i],
                is_robust=not _is_standard(group.runs[i]),
                judges=scores[i],
            )
            for i in makers
        },
    )


def as_images(x: Tensor, x_adv: Tensor, eps: float) -> Tensor:
    """Perturbations on the scale of images: no change is grey, eps either way black or white."""
    return ((x - x_adv + eps) / (2 * eps)).clamp(0, 1)


def score(model: torch.nn.Module, batch: Batch) -> Score:
    """How often the class is the first, and among the first five."""
    ranks = []
    with frozen(model), torch.no_grad():
        for x, y in zip(batch.x.split(BATCH), batch.y.split(BATCH), strict=True):
            logits = model(on_device_of(model, x)).cpu()
            own = logits.gather(1, y.cpu().view(-1, 1))
            ranks.append((logits > own).sum(1))
    rank = torch.cat(ranks)
    return Score(top1=float((rank < 1).float().mean()), top5=float((rank < 5).float().mean()))


def _is_standard(run: Run) -> bool:
    """Whether training had no adversary; a recipe may name a threat for its validation only."""
    return not OBJECTIVES.get(run.spec.recipe.objective.name).needs_threat


def _judges(group: Group, names: Sequence[str]) -> list[int]:
    """Which runs judge: those trained without an adversary, of the models asked for."""
    wanted = [_plain(name) for name in names]
    found = [
        index
        for index, run in enumerate(group.runs)
        if _is_standard(run) and (not names or _name(run) in wanted)
    ]
    missing = set(wanted) - {_name(group.runs[index]) for index in found}
    if missing or not found:
        what = f"of {', '.join(sorted(missing))}" if missing else "of any model"
        raise UserError(f"semantics needs judges: no run {what} was trained without an adversary")
    return found


def _makes(index: int, judging: Sequence[int], names: Sequence[str]) -> bool:
    """Whether a run's perturbations are judged: judges that were asked for by name only judge."""
    return not names or index not in judging


def _name(run: Run) -> str:
    return _plain(run.spec.model)


def _plain(model: str) -> str:
    """A model's name without where it comes from, so that it can be a key."""
    return canonical(model.rpartition(":")[2].partition(".")[0])
