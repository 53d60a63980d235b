"""Whether an attack has converged: loss against steps, and the gap to a long attack.

Debenedetti, "Adversarially robust vision transformers", and the code published with "A Light Recipe
to Train Robust Vision Transformers" (arXiv:2209.07399).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from buttress.analysis.ascent import Ascents
from buttress.analysis.core import ANALYSES
from buttress.analysis.cost import Passes
from buttress.analysis.curve import EpsCurve, cost_curve, curve
from buttress.analysis.gaps import (
    EPOCH,
    TINY,
    Attacks,
    Checkpoint,
    checkpoints_of,
    gaps_at,
    model_at,
)
from buttress.analysis.subject import DoesNotApply, Subject
from buttress.attacks.freeze import gives_gradients
from buttress.errors import UserError
from buttress.spec import Spec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FACTORS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # of eps: accuracy must fall to zero
BALL_STEPS = 10  # of the attack in each of these balls
SOME = 2  # checkpoints: more were kept on purpose
SETTLED = 0.01  # of the last loss


class Convergence(Spec):
    """The loss under attacks of more and more steps."""

    threat: str
    images: int
    seeds: int
    rel_step: float  # of the curves: the same for every number of steps
    reach: float  # of the gaps: steps times their length, in eps
    long_steps: int
    curves: tuple[tuple[float, ...], ...]  # [seed][steps]: mean over images
    behind: float  # how far the long attack of the gaps ends below the curves, in percent
    settled: int  # steps after which the loss stays within 1% of its last value
    checkpoints: tuple[Checkpoint, ...]
    by_eps: EpsCurve


def plot_convergence(results: Mapping[str, Convergence], figure: Figure) -> None:
    """The loss after each step, the gap of short attacks, and accuracy against eps."""
    is_by_epoch = any(len(_by_epoch(result)) > SOME for result in results.values())
    along, gaps, fall, *more = figure.subplots(1, 4 if is_by_epoch else 3)
    for number, (label, result) in enumerate(results.items()):
        colour = f"C{number}"
        for seed, losses in enumerate(result.curves):
            along.plot(losses, color=colour, linewidth=1, label=label if seed == 0 else None)
        _draw_gaps(result, label, colour, gaps)
        eps = result.by_eps
        fall.plot(eps.eps, eps.accuracy, marker="o", color=colour, label=label)
        fall.fill_between(eps.eps, eps.low, eps.high, alpha=0.15, color=colour)
        for axes in more:
            _draw_epochs(result, label, colour, axes)
    for axes in more:
        axes.set(xlabel="epoch", ylabel="gap to the long attack (%)", title="while training")
    along.set(xlabel="steps", ylabel="loss (a line per seed)", title="along one attack")
    along.set_xscale("symlog", linthresh=1)
    gaps.set(xlabel="steps of the short attack", ylabel="gap to the long attack (%)", xscale="log")
    gaps.set_title("shorter attacks (star: of training, - - last)", fontsize="medium")
    fall.set(xlabel="eps", ylabel="accuracy", ylim=(-0.02, 1.02), title="larger balls")
    if any(results):
        along.legend(fontsize="small")


def _ends(result: Convergence) -> list[Checkpoint]:
    """The best epoch and, where it is another one, the last: not those kept on the way."""
    return [point for point in result.checkpoints if not point.name.startswith(EPOCH)]


def _by_epoch(result: Convergence) -> list[Checkpoint]:
    """The checkpoints in the order of training."""
    known = [point for point in result.checkpoints if point.epoch is not None]
    return sorted(known, key=lambda point: point.epoch or 0)


def _draw_epochs(result: Convergence, label: str, colour: str, axes: Axes) -> None:
    """The gap of the attack of training, else of the shortest one, after each kept epoch."""
    points = _by_epoch(result)
    gaps = [(point.training or point.gaps[0]).gap for point in points]
    axes.plot([point.epoch or 0 for point in points], gaps, marker="o", ms=4, color=colour,
              label=label)  # fmt: skip


def _draw_gaps(result: Convergence, label: str, colour: str, axes: Axes) -> None:
    for point, style in zip(_ends(result), ("-", "--"), strict=False):
        steps = [int(g.name.removeprefix("pgd-")) for g in point.gaps]
        axes.plot(steps, [g.gap for g in point.gaps], style, marker="o", ms=4, color=colour)
        axes.fill_between(
            steps, [g.least for g in point.gaps], [g.most for g in point.gaps],
            alpha=0.15, color=colour,
        )  # fmt: skip
        if point.training is not None:
            axes.axhline(point.training.gap, color=colour, linestyle=":", linewidth=1)
            axes.plot(steps[0], point.training.gap, "*", ms=11, color=colour, label=label)


def cost_convergence(
    subject: Subject,
    *,
    ks: tuple[int, ...],
    reference: int,
    seeds: int,
    limit: int,
    **_: Any,
) -> Passes:
    """The curves, for each checkpoint the short attacks and the long one, and the larger balls."""
    images = seeds * min(limit, len(subject.data))
    each = reference + sum(ks)
    balls = cost_curve(subject, attack="pgd", factors=FACTORS, limit=limit, steps=BALL_STEPS)
    return balls + Passes(0, images * (reference + each * len(checkpoints_of(subject))))


def _grown(result: Convergence) -> str:
    """How the gap of the training attack went over the kept epochs."""
    points = [point for point in _by_epoch(result) if point.training is not None]
    if len(points) <= SOME:
        return ""
    first, last = points[0], points[-1]
    assert first.training is not None
    assert last.training is not None
    return (
        f" From epoch {first.epoch} to epoch {last.epoch} its gap went from "
        f"{first.training.gap:.1f}% to {last.training.gap:.1f}%."
    )


def says_convergence(result: Convergence) -> str:
    """How long the attack must be, and whether the one of training was strong enough."""
    best = result.checkpoints[0]
    short = ", ".join(f"{g.gap:.1f}% (k={g.name.removeprefix('pgd-')})" for g in best.gaps)
    trained = "".join(
        f" The attack that it was trained with ends {c.training.gap:.1f}% "
        f"{'below' if c.training.loss < c.long_loss else 'above'} ({c.name} epoch)."
        for c in _ends(result)
        if c.training is not None
    ) + _grown(result)
    lowest, radius = min(result.by_eps.accuracy), result.by_eps.eps[-1]
    tail = "" if lowest == 0 else " That it does not reach zero is a reason to distrust the attack."
    weak = (
        f" PGD-{result.long_steps} itself, whose steps reach {result.reach:g} eps together, ends "
        f"{result.behind:.1f}% below the curve: the gaps are too small by about as much."
        if result.behind > 100 * SETTLED
        else ""
    )
    return (
        f"The loss under PGD settles (within 1%) after {result.settled} of {result.long_steps} "
        f"steps of {result.rel_step:g} eps; PGD-k differs from PGD-{result.long_steps} by {short} "
        f"({result.images} images, {result.seeds} seeds).{weak}{trained} "
        f"Accuracy falls to {lowest:.1%} at eps {radius:.3g}.{tail}"
    )


@ANALYSES.register(
    "convergence",
    paper="arXiv:2209.07399",
    tags=("attack",),
    result=Convergence,
    plot=plot_convergence,
    cost=cost_convergence,
    says=says_convergence,
)
def convergence(
    subject: Subject,
    *,
    ks: tuple[int, ...] = (1, 2, 5, 10),
    reference: int = 200,
    rel_step: float = 0.15,
    reach: float = 1.5,
    seeds: int = 3,
    limit: int = 16,
) -> Convergence:
    r"""The loss after each step of PGD, and the gap of k steps to many (200).

    .. math:: r_k = 100\, |L_{200} - L_k| / L_{200}

    L is the mean cross-entropy at the last iterate. Along the curves every step is ``rel_step``
    times eps; an attack of k steps in the gaps has steps of ``reach / k`` times eps. Where best and
    last epoch of a run differ, both are looked at, and so are epochs that ``--log epochs`` kept.

    Departures from the published code: the same images serve for curves and gaps, and images that
    are wrong already are not left out.
    """
    for name, least in {"reference": reference, "seeds": seeds, "limit": limit}.items():
        if least < 1:
            raise UserError(f"`{name} >= 1` must hold, but got {name}={least}")
    if not ks or any(k < 1 for k in ks):
        raise UserError(f"`ks` must be numbers of steps like [1, 2, 5], but got {list(ks)}")
    if not gives_gradients(subject.model):
        raise DoesNotApply("PGD needs gradients, which this model does not give")
    wanted = checkpoints_of(subject)
    batch = subject.first(limit).take(torch.arange(min(limit, len(subject.data))))
    total = (reference + (reference + sum(ks)) * len(wanted)) * seeds
    task = subject.progress.task("convergence", total)
    every = tuple(subject.seed + s for s in range(seeds))
    ascents = Ascents(batch, subject.threat, every, task)
    curves = ascents.losses(subject.model, reference, rel_step)
    checkpoints = tuple(
        gaps_at(
            name, model_at(subject, which), ascents, subject, Attacks(tuple(ks), reference, reach)
        )
        for name, which in wanted.items()
    )
    task.close()
    return Convergence(
        threat=str(subject.threat),
        images=len(batch.x),
        seeds=seeds,
        rel_step=rel_step,
        reach=reach,
        long_steps=reference,
        curves=tuple(tuple(round(v, 6) for v in row) for row in curves.tolist()),
        behind=100 * (1 - checkpoints[0].long_loss / max(float(curves[:, -1].mean()), TINY)),
        settled=settled(curves.mean(0).tolist()),
        checkpoints=checkpoints,
        by_eps=curve(subject, factors=FACTORS, limit=limit, steps=BALL_STEPS),
    )


def settled(losses: Sequence[float]) -> int:
    """The first step from which on the loss stays within 1% of its last value."""
    bound = SETTLED * abs(losses[-1])
    late = [i for i, loss in enumerate(losses) if abs(loss - losses[-1]) > bound]
    return late[-1] + 1 if late else 0
