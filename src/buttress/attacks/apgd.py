"""AutoPGD (Croce and Hein, arXiv:2003.01690): gradient ascent that sets its own step size.

Constants and order of operations follow the reference implementation, because verdicts depend on
them. The L1 form is in `apgd_l1`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from buttress.attacks import apgd_l1
from buttress.attacks.core import ATTACKS, Attack, State, at_least_one, column, put, some
from buttress.attacks.losses import dlr, targeted_dlr, targeted_margin
from buttress.attacks.problem import Problem, Seen
from buttress.attacks.targets import choose_target
from buttress.errors import UserError

RISING = 0.75  # a window in which at most this share of the steps rose halves the step
SHARE = 0.75  # of a move that is new; the rest repeats the last move


@dataclass
class APGDState(State):
    """Per run: the point before the current one, the best point, and how the loss went."""

    target: Tensor
    last: Tensor  # the point before x_t
    eta: Tensor  # (N,) step size
    best_x: Tensor
    best_grad: Tensor
    best_loss: Tensor
    old_best: Tensor  # (N,) best loss at the last checkpoint
    old_loss: Tensor  # (N,) loss at the last point
    rises: Tensor  # (N,) rising steps in this window
    reduced: Tensor  # (N,) the last checkpoint halved the step


@dataclass(frozen=True)
class APGD(Attack):
    """What the variants share."""

    steps: int = 100
    restarts: int = 1
    eot: int = 1
    wide_start: bool = True
    give_up: bool = False

    def __post_init__(self) -> None:
        at_least_one(steps=self.steps, restarts=self.restarts, eot=self.eot)

    @property
    def length(self) -> int:
        return self.steps + 2  # L1 looks again where a phase begins; other norms end before

    @property
    def passes(self) -> int:
        return self.eot

    def runs(self, problem: Problem) -> int:
        return self.restarts

    def target_of(self, problem: Problem, run: Tensor) -> Tensor:
        return problem.y

    def begin(self, problem: Problem, run: Tensor) -> State:
        target = self.target_of(problem, run)
        if problem.threat.norm == "L1":
            return apgd_l1.begin(problem, run, target, self.phases)
        x_0, zero = problem.border_start(run), problem.x.new_zeros(len(problem.x))
        return APGDState(
            x_0,
            target,
            last=x_0.clone(),
            eta=zero + 2 * problem.threat.eps,
            best_x=x_0.clone(),
            best_grad=torch.zeros_like(x_0),
            best_loss=zero - torch.inf,
            old_best=zero - torch.inf,
            old_loss=zero.clone(),  # the first point of the history is compared with zero
            rises=zero.clone(),
            reduced=zero == 0,
        )

    @property
    def phases(self) -> apgd_l1.Phases:
        return apgd_l1.phases_of(self.steps, self.wide_start)

    def wants_grad(self, state: State) -> bool | Tensor:
        return ~self.finished(state) if state.step.device.type == "cpu" else True

    def finished(self, state: State) -> Tensor:
        if not isinstance(state, apgd_l1.L1State):
            return state.step >= self.steps
        over = state.step >= self.phases.length
        return over | apgd_l1.is_hopeless(state, self.phases) if self.give_up else over

    def inside(self, problem: Problem, state: State, broken: Tensor) -> Tensor | None:
        if isinstance(state, apgd_l1.L1State):
            return apgd_l1.is_last_phase(state, self.phases)
        return None

    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        assert seen.grad is not None
        if isinstance(state, apgd_l1.L1State):
            return apgd_l1.advance(problem, state, seen, self.phases)
        assert isinstance(state, APGDState)
        grad, x_t = _remember(state, seen, self.steps), state.x_t
        move = problem.threat.steepest(grad).mul_(column(state.eta))
        along = problem.rescale_(move.add_(x_t))
        share = torch.where(state.step == 0, 1.0, SHARE).to(x_t.dtype)
        new = torch.lerp(x_t, along, column(share))
        new.addcmul_(x_t - state.last, column(1 - share))
        state.last = x_t
        return problem.rescale_(new)


def _remember(state: APGDState, seen: Seen, steps: int) -> Tensor:
    """Takes in what was seen at ``x_t``; the gradient to go on with, at a point that may change."""
    assert seen.grad is not None
    better = seen.loss > state.best_loss
    put(state.best_x, better, state.x_t)
    put(state.best_grad, better, seen.grad)
    state.best_loss = seen.loss.maximum(state.best_loss)
    is_start = state.step == 0
    state.old_best = seen.loss.where(is_start, state.old_best)
    state.rises += ((seen.loss > state.old_loss) & ~is_start).to(state.rises.dtype)
    state.old_loss = seen.loss.where(~is_start, state.old_loss)
    window = windows(steps).to(state.step.device)[state.step.clamp_max(steps)]
    if some(window > 0):
        return _checkpoint(state, window, seen.grad)
    return seen.grad


def _checkpoint(state: APGDState, window: Tensor, grad: Tensor) -> Tensor:
    """Halves the step and goes back to the best point where the loss oscillates or stagnates."""
    ends = window > 0
    oscillates = state.rises <= RISING * window
    stagnates = ~state.reduced & (state.old_best >= state.best_loss)
    reduce = ends & (oscillates | stagnates)
    state.eta = torch.where(reduce, state.eta / 2, state.eta)
    state.reduced = reduce.where(ends, state.reduced)
    state.old_best = state.best_loss.where(ends, state.old_best)
    state.rises = state.rises.masked_fill(ends, 0)
    x_t, slope = state.x_t.clone(), grad.clone()
    put(x_t, reduce, state.best_x)
    put(slope, reduce, state.best_grad)
    state.x_t = x_t
    return slope


@lru_cache
def windows(steps: int) -> Tensor:
    """(steps + 1,) the length of the window that ends after so many steps, 0 where none ends.

    The first is 22% of the steps, each next one 3% shorter, down to 6%.
    """
    ends = torch.zeros(steps + 1)
    length, at = max(int(0.22 * steps), 1), 0
    while at + length <= steps:
        at += length
        ends[at] = length
        length = max(length - max(int(0.03 * steps), 1), max(int(0.06 * steps), 1))
    return ends


@ATTACKS.register("apgd-ce", paper="arXiv:2003.01690", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class APGDCE(APGD):
    r"""AutoPGD on the cross-entropy.

    .. math:: x_{t+1} = \Pi\bigl(x_t + a\,(u - x_t) + (1-a)(x_t - x_{t-1})\bigr), \quad
              u = \Pi(x_t + \eta\, s(\nabla))

    with a = 0.75 (1 in the first step) and :math:`\eta` = 2 eps at first. After windows of 22, 19,
    16 ... 6 steps (of 100) :math:`\eta` is halved and the best point taken up again, where at most
    75% of the steps rose or the best loss did not. In L1 (arXiv:2103.01208): balls of 3, 2 and 1
    eps for 30, 30 and 40% of the steps, steps on the largest gradients only, their number from the
    sparsity of the best point; ``wide_start=False`` leaves the larger balls out. With ``give_up`` a
    run in L1 ends early that fooled the model nowhere in the ball of 2 eps.

    As in the reference :math:`\Pi` draws a point straight towards the image and clips it in L2,
    which costs a fraction of the exact projection. Departures from it: the sparsity in L1 counts
    true changes, not rounding residue; noise per sample.
    """


@ATTACKS.register("apgd-dlr", paper="arXiv:2003.01690", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class APGDDLR(APGD):
    r"""AutoPGD on the difference of logits ratio.

    .. math:: -\frac{z_y - \max_{k \ne y} z_k}{z_{(1)} - z_{(3)}}

    Two classes have no third logit: there it is the plain margin.
    """

    def goal(self, problem: Problem, state: State, logits: Tensor) -> Tensor:
        return dlr(logits, problem.y)


@ATTACKS.register("apgd-t", paper="arXiv:2003.01690", tags=("white_box", "iterative", "targeted"))
@dataclass(frozen=True)
class APGDT(APGD):
    r"""AutoPGD on the targeted ratio, for each of the ``targets`` most likely other classes.

    .. math:: -\frac{z_y - z_t}{z_{(1)} - (z_{(3)} + z_{(4)})/2}

    Targets by the clean logits, at most as many as there are other classes. Any wrong class is a
    success. With fewer than four classes, and with ``loss="margin"``, the loss is z_t - z_y.
    ``skip`` passes over the first classes; where no others are left it begins again.
    """

    targets: int = 9
    loss: Literal["dlr", "margin"] = "dlr"
    skip: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(targets=self.targets)
        if self.skip < 0:
            raise UserError(f"`skip >= 0` must hold, but got skip={self.skip}")

    def runs(self, problem: Problem) -> int:
        others = problem.num_classes - 1
        return max(1, min(self.targets, others - self.skip)) * self.restarts

    def ranks(self, problem: Problem) -> Tensor:
        return self._rank_of(torch.arange(self.runs(problem)), problem)

    def _rank_of(self, run: Tensor, problem: Problem) -> Tensor:
        return (self.skip + run // self.restarts) % (problem.num_classes - 1)

    def target_of(self, problem: Problem, run: Tensor) -> Tensor:
        return choose_target(problem, "each", self._rank_of(run, problem))

    def goal(self, problem: Problem, state: State, logits: Tensor) -> Tensor:
        assert isinstance(state, APGDState | apgd_l1.L1State)
        score = targeted_dlr if self.loss == "dlr" else targeted_margin
        return score(logits, problem.y, state.target)
