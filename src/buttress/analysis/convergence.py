"""Whether an attack has converged: loss against steps, and the gap to a long attack.

Debenedetti, "Adversarially robust vision transformers", and the code published with "A Light Recipe
to Train Robust Vision Transformers" (arXiv:2209.07399).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import MinLen
from torch import Tensor

from buttress.analysis.core import ANALYSES, AnalysisResult, Count
from buttress.analysis.curve import EpsCurve, eps_curve, eps_curve_cost
from buttress.analysis.figures import Axes, Figure
from buttress.analysis.methods.attack_convergence import (
    TINY,
    AttackLengths,
    AttackTrajectories,
    CheckpointGaps,
    checkpoint_gaps,
    checkpoint_model,
)
from buttress.analysis.subject import (
    EPOCH_PREFIX,
    AnalysisNotApplicable,
    AnalysisSubject,
    CostScope,
)
from buttress.analysis.uncertainty import SampleUnits, StoredSamples
from buttress.engine.processes import map_in_processes
from buttress.models.cost import PassCount
from buttress.models.eval_mode import is_differentiable, model_device
from buttress.system.progress import fraction_callback

EPS_FACTORS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # multiples of eps: robust accuracy must fall to zero
EPS_CURVE_STEPS = 10  # of the attack in each of these balls
MIN_EPOCHS_TO_PLOT = 2  # checkpoints: more were kept on purpose
CONVERGED_TOLERANCE = 0.01  # of the last loss


class ConvergenceResult(AnalysisResult):
    """Loss under attacks with an increasing number of steps."""

    threat: str
    images: int
    seeds: int
    rel_step: float  # of the curves: the same for every number of steps
    total_step_length: float  # of the gaps: steps times their length, in eps
    reference_steps: int
    curves: tuple[tuple[float, ...], ...]  # [seed][steps]: mean over images
    long_attack_gap: float  # how far the long attack of the gaps ends below the curves, in percent
    converged_after: int  # steps after which the loss stays within 1% of its last value
    checkpoints: tuple[CheckpointGaps, ...]
    eps_curve: EpsCurve

    @staticmethod
    def plot(results: Mapping[str, ConvergenceResult], figure: Figure) -> None:
        """Plot the loss per step, the gap of short attacks, and robust accuracy against eps."""
        is_by_epoch = any(
            len(_checkpoints_by_epoch(result)) > MIN_EPOCHS_TO_PLOT for result in results.values()
        )
        curve_axes, gaps, eps_axes, *epoch_axes = figure.subplots(1, 4 if is_by_epoch else 3)
        for number, (label, result) in enumerate(results.items()):
            color = f"C{number}"
            for seed, losses in enumerate(result.curves):
                curve_axes.plot(
                    losses, color=color, linewidth=1, label=label if seed == 0 else None
                )
            _draw_gaps(result, label, color, gaps)
            eps = result.eps_curve
            eps_axes.plot(eps.eps, eps.accuracy, marker="o", color=color, label=label)
            eps_axes.fill_between(eps.eps, eps.low, eps.high, alpha=0.15, color=color)
            for axes in epoch_axes:
                _draw_epochs(result, label, color, axes)
        for axes in epoch_axes:
            axes.set(xlabel="epoch", ylabel="gap to the long attack (%)", title="while training")
        curve_axes.set(xlabel="steps", ylabel="loss (a line per seed)", title="along one attack")
        curve_axes.set_xscale("symlog", linthresh=1)
        gaps.set(
            xlabel="steps of the short attack", ylabel="gap to the long attack (%)", xscale="log"
        )
        gaps.set_title("shorter attacks (star: of training, - - last)", fontsize="medium")
        eps_axes.set(xlabel="eps", ylabel="accuracy", ylim=(-0.02, 1.02), title="larger balls")
        if any(results):
            curve_axes.legend(fontsize="small")

    def summary(self) -> str:
        """Summarize the number of steps needed, and the strength of the training attack."""
        best = self.checkpoints[0]
        short = ", ".join(f"{g.gap:.1f}% (k={g.name.removeprefix('pgd-')})" for g in best.gaps)
        training_note = "".join(
            f" The training attack ends {c.training_attack.gap:.1f}% "
            f"{'below' if c.training_attack.loss < c.reference_loss else 'above'} ({c.name} epoch)."
            for c in _best_and_last(self)
            if c.training_attack is not None
        ) + _gap_trend(self)
        lowest, radius = min(self.eps_curve.accuracy), self.eps_curve.eps[-1]
        zero_note = " Robust accuracy that does not reach zero suggests a weak attack."
        reference_note = (
            f" PGD-{self.reference_steps} itself, whose steps are {self.total_step_length:g} eps "
            f"together, ends {self.long_attack_gap:.1f}% below the curve: the gaps are too small "
            "by about as much."
            if self.long_attack_gap > 100 * CONVERGED_TOLERANCE
            else ""
        )
        return (
            f"The loss under PGD converges (within 1%) after {self.converged_after} of "
            f"{self.reference_steps} steps of {self.rel_step:g} eps; PGD-k differs from "
            f"PGD-{self.reference_steps} by {short} ({self.images} images, {self.seeds} "
            f"seeds).{reference_note}{training_note} Robust accuracy falls to {lowest:.1%} at eps "
            f"{radius:.3g}.{zero_note if lowest else ''}"
        )


def _best_and_last(result: ConvergenceResult) -> list[CheckpointGaps]:
    """The best and the last epoch, without other kept epochs."""
    return [point for point in result.checkpoints if not point.name.startswith(EPOCH_PREFIX)]


def _checkpoints_by_epoch(result: ConvergenceResult) -> list[CheckpointGaps]:
    """The checkpoints in the order of training."""
    with_epoch = [point for point in result.checkpoints if point.epoch is not None]
    return sorted(with_epoch, key=lambda point: point.epoch or 0)


def _draw_epochs(result: ConvergenceResult, label: str, color: str, axes: Axes) -> None:
    """The gap of the attack of training, else of the shortest one, after each kept epoch."""
    points = _checkpoints_by_epoch(result)
    gaps = [(point.training_attack or point.gaps[0]).gap for point in points]
    axes.plot([point.epoch or 0 for point in points], gaps, marker="o", ms=4, color=color,
              label=label)  # fmt: skip


def _draw_gaps(result: ConvergenceResult, label: str, color: str, axes: Axes) -> None:
    for point, style in zip(_best_and_last(result), ("-", "--"), strict=False):
        steps = [int(g.name.removeprefix("pgd-")) for g in point.gaps]
        axes.plot(steps, [g.gap for g in point.gaps], style, marker="o", ms=4, color=color)
        axes.fill_between(
            steps, [g.lowest for g in point.gaps], [g.highest for g in point.gaps],
            alpha=0.15, color=color,
        )  # fmt: skip
        if point.training_attack is not None:
            axes.axhline(point.training_attack.gap, color=color, linestyle=":", linewidth=1)
            axes.plot(steps[0], point.training_attack.gap, "*", ms=11, color=color, label=label)


def convergence_cost(
    scope: CostScope,
    *,
    short_steps: tuple[int, ...],
    reference_steps: int,
    seeds: int,
    limit: int,
    **_: Any,
) -> PassCount:
    """The curves, for each checkpoint the short attacks and the long one, and the larger balls."""
    images = seeds * min(limit, scope.num_images)
    steps = reference_steps + (reference_steps + sum(short_steps)) * scope.num_checkpoints
    eps_cost = eps_curve_cost(
        scope, attack="pgd", factors=EPS_FACTORS, limit=limit, steps=EPS_CURVE_STEPS
    )
    return eps_cost + PassCount(images * steps, images * steps)


def _gap_trend(result: ConvergenceResult) -> str:
    """Sentence on the gap of the training attack over the kept epochs."""
    points = [point for point in _checkpoints_by_epoch(result) if point.training_attack is not None]
    if len(points) <= MIN_EPOCHS_TO_PLOT:
        return ""
    first, last = points[0], points[-1]
    assert first.training_attack is not None
    assert last.training_attack is not None
    return (
        f" From epoch {first.epoch} to epoch {last.epoch} its gap went from "
        f"{first.training_attack.gap:.1f}% to {last.training_attack.gap:.1f}%."
    )


@ANALYSES.register(
    "convergence",
    paper="arXiv:2209.07399",
    tags=("attack",),
    cost=convergence_cost,
    example_args={"short_steps": (1, 2), "reference_steps": 3, "seeds": 2, "limit": 4},
)
def convergence(
    subject: AnalysisSubject,
    *,
    short_steps: Annotated[tuple[Count, ...], MinLen(1)] = (1, 2, 5, 10),
    reference_steps: Count = 200,
    rel_step: float = 0.15,
    total_step_length: float = 1.5,
    seeds: Count = 3,
    limit: Count = 16,
) -> ConvergenceResult:
    r"""The loss after each step of PGD, and the gap of k steps to many (200).

    .. math:: r_k = 100\, |L_{200} - L_k| / L_{200}

    L is the mean cross-entropy at the last iterate. Along the curves every step is ``rel_step``
    times eps; an attack of k steps in the gaps has steps of ``total_step_length / k`` times eps.
    Where best and last epoch of a run differ, both are evaluated, and so are epochs that ``--log
    epochs`` kept.

    Departures from the published code: the same images serve for curves and gaps, and misclassified
    images are not left out.
    """
    if not is_differentiable(subject.model):
        raise AnalysisNotApplicable(
            "PGD needs gradients, but this model provides none (black-box model)"
        )
    checkpoints = subject.checkpoints()
    batch = subject.first_images(limit).take(torch.arange(min(limit, len(subject.data))))
    seed_list = tuple(subject.seed + s for s in range(seeds))
    trajectories = AttackTrajectories(batch, subject.threat, seed_list)
    lengths = AttackLengths(tuple(short_steps), reference_steps, total_step_length)

    def find_gaps(name: str) -> tuple[CheckpointGaps, dict[str, Tensor]]:
        model = checkpoint_model(subject, checkpoints[name])
        return checkpoint_gaps(name, model, trajectories, subject, lengths)

    tasks: list[Callable[[], Any]] = [
        lambda: trajectories.losses(subject.model, reference_steps, rel_step),
        *(partial(find_gaps, name) for name in checkpoints),
    ]
    losses, *found = _run_tasks(subject, tasks)
    gaps, image_losses = ([*column] for column in zip(*found, strict=True))
    curves, units = losses.mean(2), SampleUnits(batch.ids)
    by_eps = eps_curve(subject, factors=EPS_FACTORS, limit=limit, steps=EPS_CURVE_STEPS)
    samples = _gap_samples(image_losses, losses[:, -1].mean(0), units)
    reference_loss = gaps[0].reference_loss
    return ConvergenceResult(
        threat=str(subject.threat),
        images=len(batch.x),
        seeds=seeds,
        rel_step=rel_step,
        total_step_length=total_step_length,
        reference_steps=reference_steps,
        curves=tuple(tuple(round(v, 6) for v in row) for row in curves.tolist()),
        long_attack_gap=100 * (1 - reference_loss / max(float(curves[:, -1].mean()), TINY)),
        converged_after=convergence_step(curves.mean(0).tolist()),
        checkpoints=tuple(gaps),
        eps_curve=by_eps.model_copy(update={"samples": {}}),
        samples=samples | {f"eps_curve.{path}": v for path, v in by_eps.samples.items()},
    )


def _run_tasks(subject: AnalysisSubject, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of attacks of about equal length, in as many processes as there are threads."""
    progress_task = subject.progress.add_task("convergence", len(tasks))
    on_progress = fraction_callback(progress_task, len(tasks))
    device = model_device(subject.model)
    results = map_in_processes(lambda task: task(), tasks, device, on_progress)
    progress_task.close()
    return results


def _gap_samples(
    image_losses: Sequence[Mapping[str, Tensor]], curve_end: Tensor, units: SampleUnits
) -> dict[str, StoredSamples]:
    """Losses of each image from which the gaps can be drawn again."""
    long = image_losses[0]["reference"]
    samples = {"long_attack_gap": units.store(long, curve_end, statistic="relative_shortfall")}
    for number, losses in enumerate(image_losses):
        place = f"checkpoints[{number}]"
        samples[f"{place}.reference_loss"] = units.store(losses["reference"])
        for index, (attack, values) in enumerate(losses.items()):
            part = "training_attack" if attack == "training" else f"gaps[{index - 1}]"
            if attack != "reference":
                samples[f"{place}.{part}.loss"] = units.store(values)
                samples[f"{place}.{part}.gap"] = units.store(
                    losses["reference"], values, statistic="relative_gap"
                )
    return samples


def convergence_step(losses: Sequence[float]) -> int:
    """The first step from which on the loss stays within 1% of its last value."""
    bound = CONVERGED_TOLERANCE * abs(losses[-1])
    unconverged = [i for i, loss in enumerate(losses) if abs(loss - losses[-1]) > bound]
    return unconverged[-1] + 1 if unconverged else 0
