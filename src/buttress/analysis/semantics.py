"""Semantics of perturbations: do other models predict the class from them alone?

Debenedetti, "Adversarially robust vision transformers", the thesis behind arXiv:2209.07399.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from buttress.analysis.core import ANALYSES, AnalysisResult
from buttress.analysis.cost import attack_passes
from buttress.analysis.figures import Figure
from buttress.analysis.subject import AnalysisSubject, NamedModel, RunGroup
from buttress.analysis.uncertainty import SampleUnits, StoredSamples
from buttress.attacks.core import create_attack
from buttress.config import Spec
from buttress.data import Batch
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.errors import UserError
from buttress.models.cost import PassCount
from buttress.models.eval_mode import eval_mode, to_model_device
from buttress.registry import normalize_name
from buttress.results.run import Run
from buttress.threats.norm_ball import NormBall
from buttress.training.objectives import OBJECTIVES

JUDGE_BATCH = 256


class TopAccuracy(Spec):
    """Top-1 and top-5 accuracy of a judge on perturbations."""

    top1: float
    top5: float


class JudgedPerturbations(Spec):
    """The perturbations of one run, by the names of the models that judge them."""

    label: str
    is_adversarially_trained: bool | None  # None for a model that is not a run
    judges: dict[str, TopAccuracy]


class SemanticsResult(AnalysisResult):
    """Accuracy of standard models on the perturbations of each run."""

    attack: str
    steps: int
    threat: str
    images: int
    by_run: dict[str, JudgedPerturbations]  # by the run's folder, or the model's name

    @staticmethod
    def plot(results: Mapping[str, SemanticsResult], figure: Figure) -> None:
        """A group of bars per run, one for each judge."""
        axes = figure.subplots(1, len(results), squeeze=False)[0]
        for axis, (label, result) in zip(axes, results.items(), strict=True):
            rows = list(result.by_run.values())
            judges = sorted({name for row in rows for name in row.judges})
            for number, judge in enumerate(judges):
                positions = [
                    i + (number - len(judges) / 2) * 0.8 / len(judges) for i in range(len(rows))
                ]
                heights = [row.judges[judge].top5 if judge in row.judges else 0.0 for row in rows]
                axis.bar(positions, heights, 0.8 / len(judges), label=judge, align="edge")
            axis.set_xticks(range(len(rows)), [row.label for row in rows], rotation=40, ha="right")
            axis.set(ylabel="top-5 accuracy", ylim=(0, 1), title=label)
            axis.legend(fontsize="small")

    def summary(self) -> str:
        """Summarize the accuracy on perturbations of robust and of standard models."""
        parts = []
        for trained, words in ((True, "robust"), (False, "standard"), (None, "other")):
            rows = [row for row in self.by_run.values() if row.is_adversarially_trained is trained]
            scores = [(s.top1, s.top5) for row in rows for s in row.judges.values()]
            if scores:
                first, five = (sum(s[k] for s in scores) / len(scores) for k in (0, 1))
                parts.append(f"{first:.1%} for those of {words} models (top-5: {five:.1%})")
        return (
            f"Top-1 accuracy of other models on perturbations alone: {', '.join(parts)} "
            f"({self.images} images, {self.attack}-{self.steps} in {self.threat})."
        )


def semantics_cost(
    group: RunGroup, *, judges: Sequence[str], attack: str, steps: int, limit: int
) -> Iterator[tuple[AnalysisSubject, PassCount]]:
    """Cost: the attack on each source model; each judge classifies all perturbations."""
    attack_object, judging = create_attack(attack, steps=steps), _judge_indices(group, judges)
    for index, (_label, subject) in enumerate(group.subjects()):
        images = min(limit, len(subject.data))
        passes = PassCount(images * len(group)) if index in judging else PassCount()
        if _is_attacked(index, judging, judges):
            passes += attack_passes(attack_object, subject.scope, images)
        yield subject, passes


@ANALYSES.register(
    "semantics",
    paper="arXiv:2209.07399",
    tags=("attack",),
    cost=semantics_cost,
    subject="group",
    example_args={"steps": 2, "limit": 4},
)
def semantics(
    group: RunGroup,
    *,
    judges: Sequence[str] = (),
    attack: str = "pgd",
    steps: int = 100,
    limit: int = 5000,
) -> SemanticsResult:
    """Accuracy of other models on perturbations as images, (x - x' + eps) / (2 eps).

    Every model's perturbations are judged by the models ``judges``, or by all but those known to
    be adversarially trained; never by the model itself. All are made in the usual Linf ball of the
    data, with steps of 1.5 eps over their number.

    Departure from the thesis: its text has x' - x, its code the negative, which is used here.
    """
    data = group.subject(0).first_images(limit)
    threat = NormBall("Linf", data.budgets["Linf"])
    attack_object = create_attack(attack, steps=steps, rel_step=1.5 / steps)
    judging = _judge_indices(group, judges)
    sources = [i for i in range(len(group)) if _is_attacked(i, judging, judges)]
    task = group.progress.add_task("semantics of perturbations", len(sources) + len(judging))
    x, y, ids = data.take(torch.arange(len(data)))
    pictures: dict[int, Tensor] = {}
    options = AttackOptions(batch_size=JUDGE_BATCH)
    for index in sources:
        model = group.subject(index).model
        x_adv = run_attack(attack_object, model, x, y, threat, ids=ids, options=options).x_adv
        pictures[index] = perturbations_as_images(x, x_adv.to(x), threat.eps)
        task.advance(1, note=f"made on {group.labels[index]}")
    scores: dict[int, dict[str, TopAccuracy]] = {index: {} for index in sources}
    units = SampleUnits(ids)
    samples: dict[str, StoredSamples] = {}
    for judge in judging:
        model, name = group.subject(judge).model, _model_key(group.members[judge])
        for index in (i for i in sources if i != judge):
            ranks = label_ranks(model, Batch(pictures[index], y, ids))
            scores[index][name] = top_accuracy(ranks)
            path = f"by_run.{_member_key(group.members[index])}.judges.{name}"
            samples |= {f"{path}.top{k}": units.store((ranks < k).float()) for k in (1, 5)}
        task.advance(1, note=f"judged by {group.labels[judge]}")
    task.close()
    return SemanticsResult(
        attack=attack,
        steps=steps,
        threat=str(threat),
        images=len(data),
        by_run={
            _member_key(group.members[i]): JudgedPerturbations(
                label=group.labels[i],
                is_adversarially_trained=_is_adversarially_trained(group.members[i]),
                judges=scores[i],
            )
            for i in sources
        },
        samples=samples,
    )


def perturbations_as_images(x: Tensor, x_adv: Tensor, eps: float) -> Tensor:
    """Perturbations on the scale of images: no change is gray, eps either way black or white."""
    return ((x - x_adv + eps) / (2 * eps)).clamp(0, 1)


def label_ranks(model: torch.nn.Module, batch: Batch) -> Tensor:
    """(N,) how many classes a model finds more likely than the label."""
    ranks = []
    with eval_mode(model), torch.no_grad():
        for x, y in zip(batch.x.split(JUDGE_BATCH), batch.y.split(JUDGE_BATCH), strict=True):
            logits = model(to_model_device(model, x)).cpu()
            ranks.append((logits > logits.gather(1, y.cpu().view(-1, 1))).sum(1))
    return torch.cat(ranks)


def top_accuracy(ranks: Tensor) -> TopAccuracy:
    """How often the class is the first, and among the first five."""
    top1, top5 = (float((ranks < k).float().mean()) for k in (1, 5))
    return TopAccuracy(top1=top1, top5=top5)


def _is_adversarially_trained(member: Run | NamedModel) -> bool | None:
    """Whether a run's objective attacks, not only its validation; None if there is no run."""
    if isinstance(member, NamedModel):
        return None
    return OBJECTIVES.get(member.spec.recipe.objective.name).needs_threat


def _judge_indices(group: RunGroup, names: Sequence[str]) -> list[int]:
    """Which judge: those not known to be adversarially trained, of the models asked for."""
    requested = [_bare_model_name(name) for name in names]
    indices = [
        index
        for index, member in enumerate(group.members)
        if not _is_adversarially_trained(member) and (not names or _model_key(member) in requested)
    ]
    missing = set(requested) - {_model_key(group.members[index]) for index in indices}
    if missing or not indices:
        models_phrase = f"of {', '.join(sorted(missing))}" if missing else "of any model"
        raise UserError(
            "semantics needs at least one model with standard training as a judge, but there "
            f"is none {models_phrase}"
        )
    return indices


def _is_attacked(index: int, judging: Sequence[int], names: Sequence[str]) -> bool:
    """Whether a run's perturbations are judged: judges that were asked for by name only judge."""
    return not names or index not in judging


def _member_key(member: Run | NamedModel) -> str:
    return member.key if isinstance(member, NamedModel) else member.path.name


def _model_key(member: Run | NamedModel) -> str:
    if isinstance(member, NamedModel):
        return _bare_model_name(member.request.model or member.source)
    return _bare_model_name(member.spec.model)


def _bare_model_name(model: str) -> str:
    """A model's name without where it comes from, so that it can be a key."""
    return normalize_name(model.rpartition(":")[2].partition(".")[0])
