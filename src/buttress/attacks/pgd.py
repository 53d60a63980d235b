"""Projected gradient ascent (Madry et al., arXiv:1706.06083)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from buttress.attacks.core import ATTACKS, Attack, Keep, State, at_least_one, column
from buttress.attacks.losses import cross_entropy, kl, margin, targeted_margin
from buttress.attacks.problem import Problem, Seen
from buttress.attacks.targets import Target, choose_target
from buttress.errors import UserError
from buttress.threat import Norm

Start = Literal["random", "clean", "gaussian", "unclipped"]
FAR = 1e6  # a longer step ends at the same border, but numbers may overflow on the way


@dataclass
class AscentState(State):
    """The current points, and the class each is driven to in a targeted attack."""

    target: Tensor | None = field(default=None)


@dataclass(frozen=True)
class Ascent(Attack):
    """Steps of a set length along the gradient, from a random start; what rises is for others.

    Three arguments are for published protocols and make an attack weaker: ``keep="last"`` judges
    the last point alone, ``projection="radial"`` scales the step back to the ball and then clips
    it to [0, 1], and ``start="unclipped"`` takes the first gradient outside [0, 1].
    """

    steps: int = 20
    rel_step: float = 0.25
    restarts: int = 1
    start: Start = "random"
    noise: float = 1e-3  # the standard deviation of a Gaussian start, as TRADES has it
    schedule: Literal["constant", "cosine"] = "constant"
    target: Target | int = "none"
    targets: int | None = None  # classes that "each" goes through; all if not given
    skip: int = 0  # classes that it passes over; where no others are left it begins again
    keep: Keep = "best"
    projection: Literal["exact", "radial"] = "exact"

    def __post_init__(self) -> None:
        at_least_one(steps=self.steps, restarts=self.restarts)
        at_least_one(targets=1 if self.targets is None else self.targets)
        if self.skip < 0:
            raise UserError(f"`skip >= 0` must hold, but got skip={self.skip}")
        if not self.rel_step > 0:
            raise UserError(f"`rel_step > 0` must hold, but got rel_step={self.rel_step}")

    @property
    def length(self) -> int:
        return self.steps

    def runs(self, problem: Problem) -> int:
        return self.restarts

    def ranks(self, problem: Problem) -> Tensor | None:
        runs = torch.arange(self.runs(problem))
        return self._rank_of(runs, problem) if self.target == "each" else None

    def _rank_of(self, run: Tensor, problem: Problem) -> Tensor:
        others = problem.num_classes - 1
        count = max(1, min(self.targets or others, others - self.skip))
        return (self.skip + run % count) % others

    def begin(self, problem: Problem, run: Tensor) -> State:
        if self.start == "gaussian":
            noise = problem.streams.normal(problem.x, run)
            x_t = problem.project(problem.x + self.noise * noise)
        elif self.start == "unclipped":
            x_t = problem.threat.random_point(problem.x, problem.streams, run)
        else:
            x_t = problem.random_start(run)
        if self.start == "clean":  # the first run; others must differ
            x_t = problem.x.where(column(run == 0), x_t)
        target, rank = None, self._rank_of(run, problem) if self.target == "each" else run
        if self.target != "none":
            target = choose_target(problem, self.target, rank)
        return AscentState(x_t, target=target)

    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        assert seen.grad is not None
        move = problem.threat.ascent(state.x_t, seen.grad)
        move *= min(self.rel_step * problem.threat.eps, FAR)
        if self.schedule == "cosine":
            share = (1 + torch.cos(torch.pi * state.step.to(move.dtype) / self.steps)) / 2
            move *= column(share)
        moved = move.add_(state.x_t)
        if self.projection == "radial":
            return problem.rescale_(moved)
        return problem.project_(moved)

    def inside(self, problem: Problem, state: State, broken: Tensor) -> Tensor | None:
        if self.keep == "last":
            return state.step >= self.length
        return state.step > 0 if self.start == "unclipped" else None


@ATTACKS.register("pgd", paper="arXiv:1706.06083", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class PGD(Ascent):
    r"""Projected gradient ascent from a random start.

    .. math:: x_{t+1} = \Pi\bigl(x_t + \alpha_t\, s(\nabla_{x_t} \ell(f(x_t), y))\bigr)

    where :math:`\Pi` projects exactly onto :math:`B_\epsilon(x) \cap [0,1]^d`, :math:`s` is
    `Threat.ascent` and :math:`\alpha_t` = ``rel_step * eps``, constant or falling as a cosine.
    With a ``target`` class t it maximises -CE(f(x), t), or z_t - z_y if the loss is ``margin``;
    any wrong class counts as a success.

    Departures from the paper: each sample's best iterate is returned, not its last; the L1 step
    moves the largest 1% of the gradient's coordinates, not all of them.
    """

    loss: Literal["ce", "margin", "kl"] = "ce"

    def goal(self, problem: Problem, state: State, logits: Tensor) -> Tensor:
        target = getattr(state, "target", None)
        if target is not None and self.loss == "margin":
            return targeted_margin(logits, problem.y, target)
        if target is not None:
            return -cross_entropy(logits, target)
        if self.loss == "kl":
            assert problem.clean is not None
            return kl(logits, problem.clean)
        return (margin if self.loss == "margin" else cross_entropy)(logits, problem.y)


@ATTACKS.register("fgsm", paper="arXiv:1412.6572", tags=("white_box", "one_step"))
@dataclass(frozen=True)
class FGSM(Attack):
    r"""One step to the border of the ball: :math:`\Pi(x + \epsilon\, s(\nabla \mathrm{CE}))`.

    With ``start="random"`` it begins anywhere in the ball, as in arXiv:2001.03994, with the step
    1.25 eps given there.
    """

    start: Literal["clean", "random"] = "clean"

    @property
    def length(self) -> int:
        return 1

    def begin(self, problem: Problem, run: Tensor) -> State:
        return State(problem.x.clone() if self.start == "clean" else problem.random_start())

    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        assert seen.grad is not None
        length = problem.threat.eps * (1.0 if self.start == "clean" else 1.25)
        return problem.project(state.x_t + length * problem.threat.ascent(state.x_t, seen.grad))


@ATTACKS.register(
    "pgd_dense_l1", paper="arXiv:2209.14105", tags=("white_box", "iterative", "published_weak")
)
@dataclass(frozen=True)
class DensePGD(PGD):
    r"""PGD in L1 as the architecture study ran it: a dense step and a rescale. Weak on purpose.

    The direction is the whole gradient over its L1 norm, the point is clipped to [0, 1], then the
    displacement is rescaled to the ball. For replication of published numbers only: `apgd-ce`
    shows how much accuracy the dense step hides.
    """

    norms: ClassVar[tuple[Norm, ...]] = ("L1",)
    rel_step: float = 0.075

    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        assert seen.grad is not None
        flat = seen.grad.flatten(1)
        unit = flat / flat.abs().sum(1, keepdim=True).clamp_min(1e-12)
        moved = state.x_t + self.rel_step * problem.threat.eps * unit.view_as(problem.x)
        delta = (moved.clamp(0, 1) - problem.x).flatten(1)
        size = delta.abs().sum(1, keepdim=True).clamp_min(1e-12)
        return problem.x + (delta * (problem.threat.eps / size).clamp_max(1)).view_as(problem.x)


@ATTACKS.register("cw", paper="arXiv:1608.04644", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class CW(Ascent):
    r"""Carlini and Wagner's margin in a ball: PGD on :math:`-\max(0, z_y - \max_{k \ne y} z_k)`.

    The hinge is taken per sample, so a sample that is broken stops and the others go on. With a
    ``target`` class t the margin is that of t.
    """

    rel_step: float = 0.1

    def goal(self, problem: Problem, state: State, logits: Tensor) -> Tensor:
        return gap(problem, state, logits).clamp_max(0)


@ATTACKS.register(
    "cw_batch_sum", paper="arXiv:2110.03825", tags=("white_box", "iterative", "published_weak")
)
@dataclass(frozen=True)
class BatchSumCW(CW):
    r"""The margin attack of the RobustWRN code: one hinge on the sum over the batch.

    Once the sum is negative every gradient of the batch is zero and all samples stop, so the
    result depends on the batch. For replication of published numbers only.
    """

    def goal(self, problem: Problem, state: State, logits: Tensor) -> Tensor:
        gaps = gap(problem, state, logits)
        return gaps if float(gaps.detach().sum()) < 0 else torch.zeros_like(gaps) * gaps


def gap(problem: Problem, state: State, logits: Tensor) -> Tensor:
    """(N,) the margin of the target, or of the best other class if there is none."""
    target = getattr(state, "target", None)
    if target is None:
        return margin(logits, problem.y)
    return targeted_margin(logits, problem.y, target)
