"""Projected gradient ascent (Madry et al., arXiv:1706.06083)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from buttress.attacks.core import (
    ATTACKS,
    Attack,
    AttackState,
    KeptPoint,
    broadcast_to_images,
    check_positive,
)
from buttress.attacks.losses import cross_entropy, kl_divergence, margin, targeted_margin
from buttress.attacks.problem import ModelOutput, Problem
from buttress.attacks.targets import TargetRule, choose_target
from buttress.errors import UserError
from buttress.threats.core import SPACES, Space
from buttress.threats.norm_ball import NORMS

StartRule = Literal["random", "clean", "gaussian", "unclipped"]
MAX_STEP_SIZE = 1e6  # a longer step ends at the same border, but numbers may overflow on the way


@dataclass
class TargetedState(AttackState):
    """The current points, and the class each is driven to in a targeted attack."""

    target: Tensor | None = field(default=None)


@dataclass(frozen=True)
class ProjectedGradientAttack(Attack):
    """Steps of a set length along the gradient of a loss, from a random start.

    Three arguments are for published protocols and make an attack weaker: ``keep="last"`` judges
    the last point alone, ``projection="radial"`` scales the step back to the ball and then clips
    it to [0, 1], and ``start="unclipped"`` takes the first gradient outside [0, 1].
    """

    spaces: ClassVar[tuple[Space, ...]] = SPACES
    steps: int = 20
    rel_step: float = 0.25
    restarts: int = 1
    start: StartRule = "random"
    noise: float = 1e-3  # the standard deviation of a Gaussian start, as TRADES has it
    schedule: Literal["constant", "cosine"] = "constant"
    target: TargetRule | int = "none"
    targets: int | None = None  # classes that "each" goes through; all if not given
    skip_targets: int = 0  # nearest classes that are left out; all again where no others are left
    keep: KeptPoint = "best"
    projection: Literal["exact", "radial"] = "exact"

    def __post_init__(self) -> None:
        check_positive(steps=self.steps, restarts=self.restarts)
        check_positive(targets=1 if self.targets is None else self.targets)
        if self.skip_targets < 0:
            raise UserError(f"`skip_targets >= 0` must hold, but got {self.skip_targets}")
        if not self.rel_step > 0:
            raise UserError(f"`rel_step > 0` must hold, but got rel_step={self.rel_step}")

    @property
    def max_steps(self) -> int:
        return self.steps

    def num_runs(self, num_classes: int) -> int:
        return self.restarts

    def target_ranks(self, num_classes: int) -> Tensor | None:
        runs = torch.arange(self.num_runs(num_classes))
        return self._target_rank(runs, num_classes) if self.target == "each" else None

    def _target_rank(self, run_index: Tensor, num_classes: int) -> Tensor:
        num_others = num_classes - 1
        num_targets = max(1, min(self.targets or num_others, num_others - self.skip_targets))
        return (self.skip_targets + run_index % num_targets) % num_others

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        if self.start == "gaussian":
            noise = problem.rng.draw_normal(problem.x, run_index)
            x_t = problem.project(problem.x + self.noise * noise)
        elif self.start == "unclipped":
            x_t = problem.threat.random_point(problem.x, problem.rng, run_index)
        else:
            x_t = problem.random_start(run_index)
        if self.start == "clean":  # the first run; others must differ
            x_t = problem.x.where(broadcast_to_images(run_index == 0), x_t)
        if self.target == "none":
            return TargetedState(x_t)
        is_each = self.target == "each"
        rank = self._target_rank(run_index, problem.num_classes) if is_each else run_index
        return TargetedState(x_t, target=choose_target(problem, self.target, rank))

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        assert output.grad is not None
        step = problem.threat.step_direction(state.x_t, output.grad)
        step *= min(self.rel_step * problem.threat.radius, MAX_STEP_SIZE)
        if self.schedule == "cosine":
            decay = (1 + torch.cos(torch.pi * state.step.to(step.dtype) / self.steps)) / 2
            step *= broadcast_to_images(decay)
        x_next = step.add_(state.x_t)
        if self.projection == "radial":
            return problem.scale_into_ball_(x_next)
        return problem.project_(x_next)

    def valid_mask(self, problem: Problem, state: AttackState, fooled: Tensor) -> Tensor | None:
        if self.keep == "last":
            return state.step >= self.max_steps
        return state.step > 0 if self.start == "unclipped" else None


@ATTACKS.register("pgd", paper="arXiv:1706.06083", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class PGD(ProjectedGradientAttack):
    r"""Projected gradient ascent from a random start.

    .. math:: x_{t+1} = \Pi\bigl(x_t + \alpha_t\, s(\nabla_{x_t} \ell(f(x_t), y))\bigr)

    where :math:`\Pi` projects exactly onto :math:`B_\epsilon(x) \cap [0,1]^d`, :math:`s` is
    `Threat.step_direction` and :math:`\alpha_t` = ``rel_step * eps``, constant or falling as a
    cosine. With a ``target`` class t it maximizes -CE(f(x), t), or z_t - z_y if the loss is
    ``margin``; any wrong class counts as a success.

    Departures from the paper: each sample's best iterate is returned, not its last; the L1 step
    moves the largest 1% of the gradient's coordinates, not all of them.
    """

    loss: Literal["ce", "margin", "kl"] = "ce"

    def compute_loss(self, problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
        target = getattr(state, "target", None)
        if target is not None and self.loss == "margin":
            return targeted_margin(logits, problem.y, target)
        if target is not None:
            return -cross_entropy(logits, target)
        if self.loss == "kl":
            assert problem.clean_logits is not None
            return kl_divergence(logits, problem.clean_logits)
        return (margin if self.loss == "margin" else cross_entropy)(logits, problem.y)


@ATTACKS.register("fgsm", paper="arXiv:1412.6572", tags=("white_box", "one_step"))
@dataclass(frozen=True)
class FGSM(Attack):
    r"""One step to the border of the ball: :math:`\Pi(x + \epsilon\, s(\nabla \mathrm{CE}))`.

    With ``start="random"`` it begins anywhere in the ball, as in arXiv:2001.03994, with the step
    1.25 eps given there.
    """

    spaces: ClassVar[tuple[Space, ...]] = SPACES
    start: Literal["clean", "random"] = "clean"

    @property
    def max_steps(self) -> int:
        return 1

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        return AttackState(problem.x.clone() if self.start == "clean" else problem.random_start())

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        assert output.grad is not None
        step_size = problem.threat.radius * (1.0 if self.start == "clean" else 1.25)
        return problem.project(
            state.x_t + step_size * problem.threat.step_direction(state.x_t, output.grad)
        )


@ATTACKS.register(
    "pgd_dense_l1", paper="arXiv:2209.14105", tags=("white_box", "iterative", "published_weak")
)
@dataclass(frozen=True)
class DenseL1PGD(PGD):
    r"""PGD in L1 as the architecture study ran it: a dense step and a rescale. Weak on purpose.

    The direction is the whole gradient over its L1 norm, the point is clipped to [0, 1], then the
    displacement is rescaled to the ball. For replication of published numbers only: `apgd-ce`
    shows how much accuracy the dense step hides.
    """

    spaces: ClassVar[tuple[Space, ...]] = ("L1",)
    rel_step: float = 0.075

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        assert output.grad is not None
        flat = output.grad.flatten(1)
        unit = flat / flat.abs().sum(1, keepdim=True).clamp_min(1e-12)
        x_next = state.x_t + self.rel_step * problem.ball.eps * unit.view_as(problem.x)
        delta = (x_next.clamp(0, 1) - problem.x).flatten(1)
        l1_norm = delta.abs().sum(1, keepdim=True).clamp_min(1e-12)
        return problem.x + (delta * (problem.ball.eps / l1_norm).clamp_max(1)).view_as(problem.x)


@ATTACKS.register("cw", paper="arXiv:1608.04644", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class CarliniWagner(ProjectedGradientAttack):
    r"""Carlini and Wagner's margin in a ball: PGD on :math:`-\max(0, z_y - \max_{k \ne y} z_k)`.

    The hinge is taken per sample, so a fooled sample stops and the others go on. With a
    ``target`` class t the margin is that of t.
    """

    rel_step: float = 0.1

    def compute_loss(self, problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
        return margin_to_target(problem, state, logits).clamp_max(0)


@ATTACKS.register(
    "cw_batch_sum", paper="arXiv:2110.03825", tags=("white_box", "iterative", "published_weak")
)
@dataclass(frozen=True)
class BatchSumCarliniWagner(CarliniWagner):
    r"""The margin attack of the RobustWRN code: one hinge on the sum over the batch.

    Once the sum is negative every gradient of the batch is zero and all samples stop, so the
    result depends on the batch. For replication of published numbers only.
    """

    spaces: ClassVar[tuple[Space, ...]] = NORMS

    def compute_loss(self, problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
        margins = margin_to_target(problem, state, logits)
        return margins if float(margins.detach().sum()) < 0 else torch.zeros_like(margins) * margins


def margin_to_target(problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
    """(N,) the margin of the target, or of the best other class if there is none."""
    target = getattr(state, "target", None)
    if target is None:
        return margin(logits, problem.y)
    return targeted_margin(logits, problem.y, target)
