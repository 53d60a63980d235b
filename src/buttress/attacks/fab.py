"""Fast adaptive boundary attack (Croce and Hein, arXiv:1907.02044): the nearest boundary.

It ignores eps on its way: a point counts only if it is misclassified and inside the ball.
Constants follow the reference implementation in AutoAttack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from buttress.attacks.core import ATTACKS, Attack, State, at_least_one, column
from buttress.attacks.hyperplane import Plane
from buttress.attacks.losses import targeted_margin
from buttress.attacks.problem import Problem, Seen, gradient
from buttress.attacks.targets import choose_target
from buttress.threat import TINY

OVERSHOOT = 1.05  # how far beyond the boundary a step goes
BACK = 0.9  # how much of the way is kept once the point is misclassified
PIXELS = 384  # that are looked at first, to see whether a point is outside the ball
PULL = 0.1  # the largest weight of the step from the clean image


@dataclass
class FABState(State):
    """Per run: the class aimed at, and what the next look is for.

    A step forward is followed by a look at the label alone. If it is wrong the point goes back
    towards the image; there, or where it stayed, the gradient is asked for. So all rows of a batch
    ask for the same thing at the same time.
    """

    target: Tensor
    rounds: Tensor  # (N,) steps forward so far
    has_stepped: Tensor  # (N,) the current point is a step forward, not a step back
    asks_grad: Tensor  # (N,) the gradient is wanted there


@dataclass(frozen=True)
class Boundary(Attack):
    """Steps to the nearest boundary of the linear model, and back."""

    has_queries: ClassVar[bool] = True
    steps: int = 100
    restarts: int = 1

    def __post_init__(self) -> None:
        at_least_one(steps=self.steps, restarts=self.restarts)

    @property
    def length(self) -> int:
        return 2 * self.steps  # a round has two looks

    def runs(self, problem: Problem) -> int:
        return self.restarts

    def aim(self, problem: Problem, run: Tensor) -> Tensor:
        """(N,) the class whose boundary is looked for; the label if that changes at each look."""
        return problem.y

    def goal(self, problem: Problem, state: State, logits: Tensor) -> Tensor:
        assert isinstance(state, FABState)
        return targeted_margin(logits, problem.y, state.target)

    def begin(self, problem: Problem, run: Tensor) -> State:
        again, start = run % self.restarts > 0, problem.x
        if again.any():
            start = problem.border_start(run, 0.5).where(column(again), start)
        no = torch.zeros_like(again)
        return FABState(
            start.clone(),
            self.aim(problem, run),
            rounds=torch.zeros_like(run),
            has_stepped=no,
            asks_grad=~no,
        )

    def wants_grad(self, state: State) -> bool | Tensor:
        assert isinstance(state, FABState)
        return state.asks_grad

    def inside(self, problem: Problem, state: State, broken: Tensor) -> Tensor | None:
        # Most points are far outside: only those that rounding could decide are measured exactly.
        threat, x, x_t = problem.threat, problem.x, state.x_t
        pixels = PIXELS if threat.norm == "Linf" else None  # one pixel is enough to be outside
        delta = x_t.flatten(1)[:, :pixels] - x.flatten(1)[:, :pixels]
        near = broken & (threat.length(delta) <= 1.001 * threat.eps)
        near[near.clone()] = threat.distance(x[near], x_t[near]) <= threat.eps
        return near

    def finished(self, state: State) -> Tensor | None:
        assert isinstance(state, FABState)
        return state.rounds >= self.steps

    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        assert isinstance(state, FABState)
        x, x_t = problem.x, state.x_t
        goes_back = state.has_stepped & (seen.logits.argmax(1) != problem.y)
        goes_on = state.asks_grad & ~goes_back
        if goes_on.all():
            new = self.forward(problem, x, x_t, seen)
        else:
            new = torch.lerp(x, x_t, column(torch.where(goes_back, BACK, 1.0).to(x.dtype)))
            if goes_on.any():
                assert seen.grad is not None
                part = Seen(seen.logits[goes_on], seen.loss[goes_on], seen.grad[goes_on])
                new[goes_on] = self.forward(problem, x[goes_on], x_t[goes_on], part)
        state.rounds = state.rounds + goes_on.long()
        state.has_stepped = goes_on
        state.asks_grad = ~goes_on
        return new

    def forward(self, problem: Problem, x: Tensor, x_t: Tensor, seen: Seen) -> Tensor:
        """One step across the boundary of the linear model."""
        assert seen.grad is not None
        slope, here, clean = seen.grad.flatten(1), x_t.flatten(1), x.flatten(1)
        plane, loss = Plane(problem.threat.norm, slope), seen.loss
        gap = loss + torch.linalg.vecdot(slope, clean - here)
        d1, d2 = plane.amounts(here, loss), plane.amounts(clean, gap)
        near, far = (problem.threat.length(d).clamp_min(1e-8) for d in (d1, d2))
        alpha = (near / (near + far)).clamp_max(PULL)[:, None]
        # (1 - alpha) (x_t + 1.05 d1) + alpha (x + 1.05 d2), with the signs put in at the end
        d1.mul_((alpha - 1) * loss.sign()[:, None] * OVERSHOOT)
        d1.addcmul_(d2, -alpha * gap.sign()[:, None] * OVERSHOOT)
        return torch.lerp(here, clean, alpha).addcmul_(d1, plane.sign).clamp_(0, 1).view_as(x)


@ATTACKS.register("fab-t", paper="arXiv:1907.02044", tags=("white_box", "iterative", "targeted"))
@dataclass(frozen=True)
class FABT(Boundary):
    r"""FAB towards each of the ``targets`` most likely other classes.

    With :math:`f = z_t - z_y` linear around the point, x_t and x are both projected onto
    :math:`\{f = 0\} \cap [0,1]^d` in the norm of the threat, which gives d_1 and d_2:

    .. math:: x_{t+1} = (1-\alpha)(x_t + 1.05\,d_1) + \alpha\,(x + 1.05\,d_2), \quad
              \alpha = \min\Bigl(\tfrac{\lVert d_1 \rVert}{\lVert d_1 \rVert + \lVert d_2 \rVert},
              0.1\Bigr)

    A misclassified point goes back to :math:`x + 0.9\,(x_{t+1} - x)`. The first run of a class
    starts at the image, restarts at a random point of half the radius. As in the reference there is
    no final search on the boundary.

    Departure: a run ends once a point inside the ball is misclassified.
    """

    targets: int = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(targets=self.targets)

    def runs(self, problem: Problem) -> int:
        return min(self.targets, problem.num_classes - 1) * self.restarts

    def aim(self, problem: Problem, run: Tensor) -> Tensor:
        return choose_target(problem, "each", run // self.restarts)


@ATTACKS.register("fab", paper="arXiv:1907.02044", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class FAB(Boundary):
    r"""FAB towards the class whose boundary is nearest in the linear model.

    At each point it is the class k that minimises :math:`|z_k - z_y| / \lVert \nabla (z_k - z_y)
    \rVert_*`, which costs one backward pass per class.
    """

    restarts: int = 5

    def look(self, problem: Problem, state: State) -> Seen:
        assert isinstance(state, FABState)
        wanted = state.asks_grad
        if not wanted.any():
            return problem.look(state.x_t, lambda z: z[:, 0] * 0, grad=False)
        with torch.enable_grad():
            point = state.x_t.detach().requires_grad_(True)
            logits = problem.model(point)
            own = logits.gather(1, problem.y[:, None])
            gaps = logits - own
            best = torch.full_like(own[:, 0], torch.inf)
            loss, slope = torch.zeros_like(best), torch.zeros_like(point)
            for k in range(logits.shape[1]):
                w = gradient(gaps[:, k].sum(), point, retain=True)
                near = gaps[:, k].detach().abs() / (problem.threat.dual(w) + TINY)
                near = near.masked_fill(problem.y == k, torch.inf)
                closer = (near < best) | near.isnan()  # a bad gradient is taken, seen and told
                best = near.where(closer, best)
                loss = gaps[:, k].detach().where(closer, loss)
                slope = w.where(column(closer), slope)
        return problem.counted(Seen(logits.detach(), loss, slope), backward=logits.shape[1])
